//! The first words between a CUDA client and a control daemon, as far as they were recorded (recordings 22 and 23).
//!
//! NVIDIA documents none of this. The daemon speaks first, on each connection. A client connects once to see whether
//! anybody is there, and closes as soon as it was greeted; from then on it never runs outside MPS: whatever fails
//! afterwards ends its `cuInit` with `CUDA_ERROR_MPS_CONNECTION_FAILED`. A client that is not greeted before its
//! connection ends runs outside MPS in silence. Then, for the process and for each context:
//!
//! ```text
//!   daemon ── OUTBHELL ────────────────▶ client
//!   daemon ◀── OUTBCRED + credentials ── client
//!   daemon ◀── 4 bytes: 2 ────────────── client
//!   daemon ── OUTBCUFD + a socket ─────▶ client      or the end of the connection, which refuses it
//!   daemon ◀── 4 bytes: 0 ────────────── client
//! ```

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::host::seqpacket::{Ancillary, Connection, UCred};

/// First message of a daemon.
pub const GREETING: &[u8] = b"OUTBHELL\0";
/// Answer of a client, with its credentials.
const CREDENTIALS: &[u8] = b"OUTBCRED\0";
/// Message with which the socket to the server comes.
const DESCRIPTOR: &[u8] = b"OUTBCUFD\0";
/// Request of a CUDA client.
const CLIENT: [u8; 4] = 2_u32.to_le_bytes();
/// Longest time for a daemon to greet.
const GREETS: Duration = Duration::from_secs(2);

/// A client that was greeted and wants to be admitted.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Credentials of the client.
    pub client: UCred,
}

/// Connects to a daemon and returns its greeting; `None` if it ends the connection first.
pub async fn greeting_of(control: &Path) -> io::Result<Option<Vec<u8>>> {
    let connection = Connection::connect(control)?;
    let received = tokio::time::timeout(GREETS, connection.receive()).await;
    Ok(received.map_err(|_| io::ErrorKind::TimedOut)??.map(|packet| packet.bytes))
}

/// Greets a client, and nothing more.
pub fn greet(connection: &Connection, greeting: &[u8]) -> io::Result<()> {
    connection.send(greeting, &Ancillary::None)
}

/// Greets a client and receives what it wants; `None` where it leaves, as a client does that only wanted to
/// know whether anybody is there, or wants something else than a client does.
pub async fn receive(connection: &Connection, greeting: &[u8]) -> io::Result<Option<Request>> {
    greet(connection, greeting)?;
    let Some(first) = connection.receive().await? else { return Ok(None) };
    let Some(client) = first.credentials.filter(|_| first.bytes == CREDENTIALS) else { return Ok(None) };
    let Some(wanted) = connection.receive().await? else { return Ok(None) };
    Ok((wanted.bytes == CLIENT).then_some(Request { client }))
}

/// Returns true if the kernel lets this process speak for a client: only root may give another's credentials.
pub fn may_forward(request: &Request) -> bool {
    rustix::process::geteuid().is_root() || request.client.pid == rustix::process::getpid()
}

/// Has the daemon at this socket admitted a client that was greeted here, as if it had come there; to the end of its connection.
///
/// Whatever fails refuses the client, since the end of its connection does.
pub async fn forward(connection: &Connection, request: Request, control: &Path) -> io::Result<()> {
    let daemon = Connection::connect(control)?;
    let greeted =
        tokio::time::timeout(GREETS, daemon.receive()).await.map_err(|_| io::ErrorKind::TimedOut)??;
    if greeted.is_none() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    daemon.send(CREDENTIALS, &Ancillary::Credentials(request.client))?;
    daemon.send(&CLIENT, &Ancillary::None)?;
    let answer = tokio::select! {
        answer = daemon.receive() => answer?,
        // It has nothing to say before the answer: it is gone.
        _ = connection.receive() => None,
    };
    let Some(answer) = answer else { return Err(io::ErrorKind::ConnectionAborted.into()) };
    let Some(socket) = answer.descriptor.filter(|_| answer.bytes == DESCRIPTOR) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    connection.send(DESCRIPTOR, &Ancillary::Descriptor(&socket))?;
    if let Some(last) = connection.receive().await? {
        daemon.send(&last.bytes, &Ancillary::None)?;
    }
    Ok(())
}
