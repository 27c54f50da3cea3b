//! The placeholder for the control socket of a tenant while its daemon may not be used.
//!
//! It greets every client, as a daemon does: a client that was greeted never runs outside MPS ([`crate::mps::handshake`]).
//! Then the client waits until the daemon may be used again, and is admitted there as if it had come later; or it is refused,
//! which ends its `cuInit` with an error. A client is also refused when it has waited too long, and when this manager ends.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, io};

use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::directory::{self, Inode};
use crate::clock::Clock;
use crate::domain::tenant::WaitingProcess;
use crate::host::seqpacket::{Connection, Listener};
use crate::mps::handshake;

/// Time for which a placeholder that was replaced still accepts clients that resolved its name before.
const LATE: Duration = Duration::from_secs(2);
/// Time that a connection may take to send its request.
const SPEAKS: Duration = Duration::from_secs(30);
/// Most connections of a tenant at a time; further ones are refused.
const CONNECTIONS: usize = 256;
/// Pause after a failed accept, for instance for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Decision about a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClientDecision {
    /// It waits.
    Wait,
    /// It is refused.
    Refuse,
    /// It is admitted by the daemon at this socket.
    Forward(PathBuf),
}

/// Waiting clients of a tenant and the decision about them; shared by all placeholders of the tenant.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    decision: watch::Sender<ClientDecision>,
    waiting: Arc<Mutex<Vec<WaitingProcess>>>,
    places: Arc<Semaphore>,
    /// Longest wait.
    timeout: Duration,
    /// Greeting that daemons use.
    greeting: watch::Receiver<Vec<u8>>,
    clock: Clock,
}

impl Queue {
    pub(super) fn new(timeout: Duration, greeting: watch::Receiver<Vec<u8>>, clock: Clock) -> Self {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        Self {
            decision: watch::Sender::new(ClientDecision::Wait),
            waiting: Arc::default(),
            places,
            timeout,
            greeting,
            clock,
        }
    }

    /// Sets the decision for the clients that wait and those that come.
    pub(super) fn decide(&self, decision: ClientDecision) {
        self.decision.send_if_modified(|now| {
            let other = *now != decision;
            *now = decision;
            other
        });
    }

    pub(super) fn waiting(&self) -> Vec<WaitingProcess> {
        self.list().clone()
    }

    fn list(&self) -> MutexGuard<'_, Vec<WaitingProcess>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one connection until it ends.
    async fn serve_connection(&self, connection: Connection) -> io::Result<()> {
        let greeting = self.greeting.borrow().clone();
        let received = tokio::time::timeout(SPEAKS, handshake::receive(&connection, &greeting)).await;
        let Some(request) = received.map_err(|_| io::ErrorKind::TimedOut)?? else { return Ok(()) };
        let pid = u32::try_from(request.client.pid.as_raw_nonzero().get()).unwrap_or(0);
        let entry = WaitingProcess { pid, uid: request.client.uid.as_raw(), since: self.clock.unix_ms() };
        let _listed = Listed::new(self, entry);
        if !handshake::may_forward(&request) {
            return Ok(());
        }
        let mut decision = self.decision.subscribe();
        let decided = async move {
            decision
                .wait_for(|decision| *decision != ClientDecision::Wait)
                .await
                .ok()
                .map(|decision| decision.clone())
        };
        let decided = tokio::select! {
            decided = tokio::time::timeout(self.timeout, decided) => decided.ok().flatten(),
            // The client has nothing to send at this point: it is gone.
            _ = connection.receive() => return Ok(()),
        };
        match decided {
            Some(ClientDecision::Forward(control)) => {
                handshake::forward(&connection, request, &control).await
            }
            // The client is refused by the end of its connection.
            _ => {
                tracing::info!(pid, uid = entry.uid, "refused a client that came to a placeholder");
                Ok(())
            }
        }
    }
}

/// Entry of a client in the list of waiting ones, for as long as it lives.
struct Listed<'q> {
    queue: &'q Queue,
    entry: WaitingProcess,
}

impl<'q> Listed<'q> {
    fn new(queue: &'q Queue, entry: WaitingProcess) -> Self {
        queue.list().push(entry);
        Self { queue, entry }
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut list = self.queue.list();
        if let Some(at) = list.iter().position(|listed| *listed == self.entry) {
            list.swap_remove(at);
        }
    }
}

/// Socket of a tenant on which this manager answers.
#[derive(Debug)]
pub(super) struct Placeholder {
    retired: CancellationToken,
    /// Device and number of its socket's file.
    pub(super) inode: Inode,
}

impl Placeholder {
    /// Listens at a path, and removes any file that is there.
    pub(super) fn bind(path: &Path, queue: &Queue) -> io::Result<Self> {
        let _ = fs::remove_file(path);
        let listener = Listener::bind(path)?;
        let retired = CancellationToken::new();
        tokio::spawn(serve(listener, queue.clone(), retired.clone()));
        let metadata = fs::symlink_metadata(path)?;
        Ok(Self { retired, inode: (metadata.dev(), metadata.ino()) })
    }

    /// Returns true if the file at this path is its socket.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        directory::inode(path) == Some(self.inode)
    }
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        self.retired.cancel();
    }
}

async fn serve(listener: Listener, queue: Queue, retired: CancellationToken) {
    let mut ended = std::pin::pin!(async {
        retired.cancelled().await;
        tokio::time::sleep(LATE).await;
    });
    loop {
        let connection = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut ended => return,
        };
        match connection {
            Ok(connection) => {
                let queue = queue.clone();
                let place = Arc::clone(&queue.places).try_acquire_owned();
                tokio::spawn(async move {
                    let served = match &place {
                        Ok(_place) => queue.serve_connection(connection).await,
                        // Greeted, so that the client does not run outside MPS.
                        Err(_full) => handshake::greet(&connection, &queue.greeting.borrow()),
                    };
                    if let Err(error) = served {
                        tracing::debug!(%error, "a client at a placeholder was refused");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a placeholder could not take a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{getgid, getpid, getuid};

    use super::*;
    use crate::host::seqpacket::{Ancillary, Packet, UCred};

    const TIMEOUT: Duration = Duration::from_secs(30);

    struct Host {
        home: tempfile::TempDir,
        queue: Queue,
        placeholder: Placeholder,
        _greeting: watch::Sender<Vec<u8>>,
    }

    fn host(timeout: Duration) -> Host {
        let home = tempfile::tempdir_in("/tmp").expect("directory");
        let (greeting, updates) = watch::channel(handshake::GREETING.to_vec());
        let queue = Queue::new(timeout, updates, Clock::system());
        let placeholder = Placeholder::bind(&home.path().join("control"), &queue).expect("bound");
        Host { home, queue, placeholder, _greeting: greeting }
    }

    impl Host {
        /// Connects a client, which was greeted and has sent its request.
        async fn client(&self) -> Connection {
            let connection = Connection::connect(&self.home.path().join("control")).expect("connected");
            assert_eq!(next(&connection).await.expect("greeted").bytes, b"OUTBHELL\0");
            let me = UCred { pid: getpid(), uid: getuid(), gid: getgid() };
            connection.send(b"OUTBCRED\0", &Ancillary::Credentials(me)).expect("sent");
            connection.send(&[2, 0, 0, 0], &Ancillary::None).expect("sent");
            connection
        }

        async fn waits(&self, count: usize) {
            let waited = async {
                while self.queue.waiting().len() != count {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            tokio::time::timeout(TIMEOUT, waited).await.expect("in time");
        }
    }

    async fn next(connection: &Connection) -> Option<Packet> {
        tokio::time::timeout(TIMEOUT, connection.receive()).await.expect("in time").ok().flatten()
    }

    #[tokio::test]
    async fn waiting_client_is_listed_and_refused() {
        let host = host(TIMEOUT);
        let client = host.client().await;
        host.waits(1).await;
        let listed = host.queue.waiting()[0];
        assert_eq!((listed.pid, listed.uid), (std::process::id(), getuid().as_raw()));
        host.queue.decide(ClientDecision::Refuse);
        assert!(next(&client).await.is_none(), "its connection ends");
        host.waits(0).await;
        let later = host.client().await;
        assert!(next(&later).await.is_none(), "at once");
    }

    #[tokio::test]
    async fn client_that_leaves_is_no_longer_listed() {
        let host = host(TIMEOUT);
        let probe = Connection::connect(&host.home.path().join("control")).expect("connected");
        assert!(next(&probe).await.is_some());
        drop(probe);
        let client = host.client().await;
        host.waits(1).await;
        drop(client);
        host.waits(0).await;
    }

    #[tokio::test]
    async fn client_waits_no_longer_than_allowed() {
        let host = host(Duration::from_millis(20));
        let client = host.client().await;
        assert!(next(&client).await.is_none());
    }

    #[tokio::test]
    async fn forwarded_client_gets_the_daemons_descriptor() {
        let host = host(TIMEOUT);
        let client = host.client().await;
        host.waits(1).await;
        let control = host.home.path().join("real");
        let daemon = Listener::bind(&control).expect("bound");
        host.queue.decide(ClientDecision::Forward(control));
        drop(host.placeholder);
        let upstream =
            tokio::time::timeout(TIMEOUT, daemon.accept()).await.expect("in time").expect("accepted");
        upstream.send(b"OUTBHELL\0", &Ancillary::None).expect("sent");
        let first = next(&upstream).await.expect("credentials");
        assert_eq!(first.bytes, b"OUTBCRED\0");
        assert_eq!(first.credentials.map(|me| me.pid), Some(getpid()));
        assert_eq!(next(&upstream).await.expect("a request").bytes, [2, 0, 0, 0]);
        let file = std::os::fd::OwnedFd::from(fs::File::open("/proc/self/stat").expect("opened"));
        upstream.send(b"OUTBCUFD\0", &Ancillary::Descriptor(&file)).expect("sent");
        let answer = next(&client).await.expect("answered");
        assert!(answer.descriptor.is_some() && answer.bytes == b"OUTBCUFD\0");
        client.send(&[0, 0, 0, 0], &Ancillary::None).expect("sent");
        assert_eq!(next(&upstream).await.expect("its last message").bytes, [0, 0, 0, 0]);
    }

    #[tokio::test]
    async fn request_that_is_not_understood_is_refused() {
        let host = host(TIMEOUT);
        let connection = Connection::connect(&host.home.path().join("control")).expect("connected");
        assert!(next(&connection).await.is_some());
        connection.send(b"something", &Ancillary::None).expect("sent");
        assert!(next(&connection).await.is_none());
    }
}
