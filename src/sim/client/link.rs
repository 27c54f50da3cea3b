//! A client's connections to MPS, and what comes over them by itself.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use super::super::protocol::{ClientRequest, Grant, Hello, Notice, door};
use super::super::wire::Conn;

/// The first error that this process got; it stays.
#[derive(Debug, Clone, Default)]
pub(super) struct Sticky {
    error: Arc<Mutex<Option<String>>>,
    /// True if this process stops (SIGSTOP) when MPS asks it to exit, as if it were stopped at that moment.
    stops: bool,
}

impl Sticky {
    pub(super) fn new(stops: bool) -> Self {
        Self { error: Arc::default(), stops }
    }

    pub(super) fn get(&self) -> Option<String> {
        self.error.lock().expect("no thread panics while it holds the error").clone()
    }

    pub(super) fn set(&self, error: &str) {
        let mut held = self.error.lock().expect("no thread panics while it holds the error");
        held.get_or_insert_with(|| error.to_owned());
    }
}

/// One accepted connection, read by a thread of its own until either side closes it.
#[derive(Debug)]
pub(super) struct Link {
    conn: Arc<Conn>,
    /// Dropped with the link, which signals its thread that this side is leaving.
    _open: mpsc::Sender<()>,
}

/// The answer to a request.
pub(super) type Answered = Result<(Link, Grant), String>;

impl Link {
    /// Returns true if a daemon greets in the pipe directory, so that MPS is used; recorded (21, 22).
    ///
    /// Only a socket of this kind can be connected to. A peer that stays and sends something else, or nothing, is waited for; one that ends
    /// first is no daemon, and the process goes on outside MPS. The client sends nothing itself; the daemon logs missing credentials.
    pub(super) fn probe(pipe: &Path) -> bool {
        let Ok(conn) = Conn::connect(&pipe.join("control")) else { return false };
        loop {
            match conn.recv() {
                Ok(Some(packet)) if packet.bytes == door::GREETING => return true,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return false,
            }
        }
    }

    /// Gets a socket to the server; whatever fails refuses the client, which was greeted once and never goes outside
    /// MPS from then on, recorded (22).
    fn enter(pipe: &Path) -> Result<Conn, &'static str> {
        const REFUSED: &str = "CUDA_ERROR_MPS_CONNECTION_FAILED";
        let failed = |_: io::Error| REFUSED;
        let control = Conn::connect(&pipe.join("control")).map_err(failed)?;
        let greeted = control.recv().map_err(failed)?;
        greeted.filter(|packet| packet.bytes == door::GREETING).ok_or(REFUSED)?;
        control.send_credentials(door::CREDENTIALS).map_err(failed)?;
        control.send(&door::CLIENT).map_err(failed)?;
        let answer = control.recv().map_err(failed)?.ok_or(REFUSED)?;
        let socket = answer.fd.filter(|_| answer.bytes == door::DESCRIPTOR).ok_or(REFUSED)?;
        let _ = control.send(&door::DONE);
        Ok(Conn::from_fd(socket))
    }

    /// Sends a request and waits for the answer, however long the server takes to come; or `dies` before it is taken.
    pub(super) fn open(pipe: &Path, request: ClientRequest, sticky: &Sticky, dies: bool) -> Answered {
        const LOST: &str = "CUDA_ERROR_MPS_RPC_FAILURE";
        let failed = |_: io::Error| LOST.to_owned();
        let conn = Self::enter(pipe)?;
        conn.send_message(&Hello::Client(request)).map_err(failed)?;
        if dies {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
        conn.send_message(&Notice::Here).map_err(failed)?;
        match conn.receive_message::<Grant>() {
            Some((Grant::Refused(error), _)) => Err(error),
            Some((grant, _)) => {
                let conn = Arc::new(conn);
                let (open, closed) = mpsc::channel();
                let (theirs, sticky) = (Arc::clone(&conn), sticky.clone());
                thread::spawn(move || listen(&theirs, &sticky, &closed));
                Ok((Self { conn, _open: open }, grant))
            }
            None => Err(LOST.to_owned()),
        }
    }

    pub(super) fn conn(&self) -> &Conn {
        &self.conn
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&*self.conn, rustix::net::Shutdown::Both);
    }
}

fn listen(conn: &Conn, sticky: &Sticky, closed: &mpsc::Receiver<()>) {
    loop {
        match conn.receive_message::<Grant>() {
            Some((Grant::Sticky(error), _)) => sticky.set(&error),
            Some((Grant::Terminate, _)) => {
                if sticky.stops {
                    use rustix::process::{Signal, getpid, kill_process};
                    let _ = kill_process(getpid(), Signal::STOP);
                    // The kernel may stop another thread first, and this one a moment later; it must not answer in between.
                    thread::sleep(Duration::from_millis(200));
                }
                sticky.set("cudaErrorMpsClientTerminated");
                // The server waits for the end of this connection.
                let _ = rustix::net::shutdown(conn, rustix::net::Shutdown::Both);
                return;
            }
            Some(_) => {}
            None => {
                if !matches!(closed.try_recv(), Err(mpsc::TryRecvError::Disconnected)) {
                    sticky.set("cudaErrorMpsRpcFailure");
                }
                return;
            }
        }
    }
}
