//! Sockets of the kind that MPS clients connect to: sequenced packets, in the file system.

use std::fs::{self, Permissions};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::io::Errno;
pub use rustix::net::UCred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with, sockopt,
};
use tokio::io::unix::AsyncFd;

use super::readable;

/// Connections that may wait to be accepted; the kernel has a bound of its own.
const BACKLOG: i32 = 4096;
/// The longest packet that is received whole.
const LONGEST: usize = 4096;

/// A socket that is listened on.
#[derive(Debug)]
pub struct Listener {
    fd: AsyncFd<OwnedFd>,
}

/// One side of a connection.
#[derive(Debug)]
pub struct Connection {
    fd: AsyncFd<OwnedFd>,
}

/// Data that goes along with a packet.
#[derive(Debug)]
pub enum Ancillary<'a> {
    /// Nothing.
    None,
    /// Credentials; others than the process's own need a privilege.
    Credentials(UCred),
    /// A file descriptor.
    Descriptor(&'a OwnedFd),
}

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The sender's credentials: the kernel's, or those that it allowed the sender to state.
    pub credentials: Option<UCred>,
    /// A file descriptor that came along.
    pub descriptor: Option<OwnedFd>,
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

impl Listener {
    /// Listens at a path that must not exist; everybody may connect. Needs a tokio runtime.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let fd = socket()?;
        bind(&fd, &SocketAddrUnix::new(path)?)?;
        // The umask may have removed permissions that a client needs.
        fs::set_permissions(path, Permissions::from_mode(0o666))?;
        listen(&fd, BACKLOG)?;
        Ok(Self { fd: readable(fd)? })
    }

    /// Accepts the next connection.
    pub async fn accept(&self) -> io::Result<Connection> {
        loop {
            let mut ready = self.fd.readable().await?;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            // Waits again if nobody is there: the client has left.
            if let Ok(accepted) = ready.try_io(|fd| Ok(accept_with(fd.get_ref(), flags)?)) {
                return Connection::of(accepted?);
            }
        }
    }
}

impl Connection {
    /// Connects to a socket, without waiting.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let fd = socket()?;
        connect(&fd, &SocketAddrUnix::new(path)?)?;
        Self::of(fd)
    }

    fn of(fd: OwnedFd) -> io::Result<Self> {
        sockopt::set_socket_passcred(&fd, true)?;
        Ok(Self { fd: readable(fd)? })
    }

    /// Returns the credentials of the process that connected, as the kernel reports them.
    pub fn peer(&self) -> io::Result<UCred> {
        Ok(sockopt::socket_peercred(self.fd.get_ref())?)
    }

    /// Sends one packet; fails if the other side does not read.
    pub fn send(&self, bytes: &[u8], along: &Ancillary<'_>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors;
        match along {
            Ancillary::None => {}
            Ancillary::Credentials(credentials) => {
                control.push(SendAncillaryMessage::ScmCredentials(*credentials));
            }
            Ancillary::Descriptor(descriptor) => {
                descriptors = [descriptor.as_fd()];
                control.push(SendAncillaryMessage::ScmRights(&descriptors));
            }
        }
        loop {
            match sendmsg(self.fd.get_ref(), &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                sent => return sent.map(drop).map_err(Into::into),
            }
        }
    }

    /// Receives the next packet; `None` at the end. An empty packet reads like the end.
    pub async fn receive(&self) -> io::Result<Option<Packet>> {
        loop {
            let mut ready = self.fd.readable().await?;
            match ready.try_io(|fd| receive(fd.get_ref())) {
                Ok(received) => return received,
                Err(_would_block) => {}
            }
        }
    }
}

fn receive(fd: &OwnedFd) -> io::Result<Option<Packet>> {
    let mut bytes = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        match recvmsg(fd, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let (mut credentials, mut descriptor) = (None, None);
    for message in control.drain() {
        match message {
            RecvAncillaryMessage::ScmCredentials(sent) => credentials = Some(sent),
            RecvAncillaryMessage::ScmRights(mut sent) => descriptor = sent.next(),
            _ => {}
        }
    }
    bytes.truncate(received.bytes);
    Ok(Some(Packet { bytes, credentials, descriptor }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    async fn next(connection: &Connection) -> Option<Packet> {
        tokio::time::timeout(TIMEOUT, connection.receive()).await.expect("in time").expect("received")
    }

    #[tokio::test]
    async fn packets_carry_credentials_and_descriptors() {
        let home = tempfile::tempdir_in("/tmp").expect("directory");
        let path = home.path().join("control");
        let listener = Listener::bind(&path).expect("bound");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o666);
        let client = Connection::connect(&path).expect("connected");
        let server =
            tokio::time::timeout(TIMEOUT, listener.accept()).await.expect("in time").expect("accepted");
        let me = server.peer().expect("known");
        assert_eq!(me.pid, rustix::process::getpid());
        client.send(b"hello", &Ancillary::Credentials(me)).expect("sent");
        let packet = next(&server).await.expect("a packet");
        assert_eq!((packet.bytes.as_slice(), packet.credentials), (&b"hello"[..], Some(me)));
        let file = OwnedFd::from(fs::File::open("/proc/self/stat").expect("opened"));
        server.send(b"file", &Ancillary::Descriptor(&file)).expect("sent");
        let packet = next(&client).await.expect("a packet");
        assert!(packet.descriptor.is_some() && packet.bytes == b"file");
        drop(client);
        assert!(next(&server).await.is_none());
    }
}
