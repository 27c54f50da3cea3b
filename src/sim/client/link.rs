//! A client's connections to MPS, and what comes over them by itself.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use super::super::protocol::{Grant, Hello, Notice, Wish};
use super::super::wire::Conn;

/// The first error that this process was given; it stays.
#[derive(Debug, Clone, Default)]
pub(super) struct Sticky(Arc<Mutex<Option<String>>>);

impl Sticky {
    pub(super) fn get(&self) -> Option<String> {
        self.0.lock().expect("no thread panics while it holds the error").clone()
    }

    pub(super) fn set(&self, error: &str) {
        let mut held = self.0.lock().expect("no thread panics while it holds the error");
        held.get_or_insert_with(|| error.to_owned());
    }
}

/// One accepted connection, read by a thread of its own until either side closes it.
#[derive(Debug)]
pub(super) struct Link {
    conn: Arc<Conn>,
    /// Dropped with the link, which tells its thread that this side is leaving.
    _open: mpsc::Sender<()>,
}

/// What a wish was answered.
pub(super) type Answered = Result<(Link, Grant), String>;

impl Link {
    /// Whether MPS is to be used at all: whether somebody listens in the pipe directory.
    ///
    /// The real driver too connects once and says nothing; the daemon logs missing credentials.
    pub(super) fn probe(pipe: &Path) -> bool {
        Conn::connect(&pipe.join("control")).is_ok()
    }

    /// Makes a wish and waits for the answer, however long the server takes to come; or `dies` before it is taken.
    pub(super) fn open(pipe: &Path, wish: Wish, sticky: &Sticky, dies: bool) -> Answered {
        const LOST: &str = "CUDA_ERROR_MPS_RPC_FAILURE";
        let failed = |_: io::Error| LOST.to_owned();
        let conn = Conn::connect(&pipe.join("control")).map_err(|_| "CUDA_ERROR_MPS_CONNECTION_FAILED")?;
        conn.tell(&Hello::Client(wish)).map_err(failed)?;
        if dies {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
        conn.tell(&Notice::Here).map_err(failed)?;
        match conn.hear::<Grant>() {
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
        match conn.hear::<Grant>() {
            Some((Grant::Sticky(error), _)) => sticky.set(&error),
            Some((Grant::Terminate, _)) => {
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
