//! Callers that are busy, alone and beside many that are slow.

use std::cell::{Cell, RefCell};
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinHandle, LocalSet};

use crate::server::Server;
use crate::{Table, median, millis};

const BUSY: usize = 64;
const SLOW: u16 = 500;
/// Slow callers of one address: fewer than `limits.connections_per_address`.
const SLOW_PER_ADDRESS: u16 = 125;
/// How often it is measured without the slow callers and, in turns, beside them.
const ROUNDS: usize = 8;
const ROUND: Duration = Duration::from_secs(4);
/// The time over which the slow callers come: about as long as one stays, so that they do not all go at once.
const SLOW_SPREAD: Duration = Duration::from_secs(10);
/// What the callers request: something from memory, and something from the database.
const BUSY_PATHS: [&str; 2] = ["/api/v1/daemons/gpu0", "/api/v1/tenants"];
/// A body of a byte a second that is whole before `limits.body_timeout_s`, and one that never is.
const SHORT_BODY: usize = 8;
const LONG_BODY: usize = 1000;

/// The same 64 busy callers without 500 slow ones and beside them, by turns, the server on one CPU and all callers on another.
pub(crate) fn callers(directory: &Path, table: &mut Table) {
    let cpus = Cpus::two();
    let server = cpus.start(directory);
    let caller = Caller::of(server.address, &server.token(), BUSY, &BUSY_PATHS);
    let rounds = cpus.call(rounds(&caller));

    let column = |part: fn(&Round) -> f64| rounds.iter().map(part).collect::<Vec<_>>();
    let counts = &caller.counts;
    table.row("64 busy callers: p50, ms", median(column(|round| round.alone.p50)), None);
    table.row("the same: p99, ms", median(column(|round| round.alone.p99)), None);
    table.row("the same: requests a second", median(column(|round| round.alone.per_second)), None);
    table.row("beside 500 slow callers: p50, ms", median(column(|round| round.beside.p50)), None);
    table.row("the same: p99, ms", median(column(|round| round.beside.p99)), None);
    table.row("the same: requests a second", median(column(|round| round.beside.per_second)), None);
    table.row(
        "**p99 beside them as a multiple of that without (median of 8 rounds)**",
        median(column(|round| round.beside.p99 / round.alone.p99)),
        Some(2.0),
    );
    let worst = column(|round| round.beside.p99 / round.alone.p99).into_iter().fold(0.0, f64::max);
    table.row("the same: the largest of the 8", worst, None);
    let fewest = rounds.iter().map(|round| round.slow).min().unwrap_or_default();
    table.row("slow callers that were connected all the while, at least", f64::from(fewest), None);
    table.row("slow bodies that came to their end and were answered", f64::from(counts.answered.get()), None);
    table.row("slow bodies that were refused (408)", f64::from(counts.refused.get()), None);
    table.row("slow heads that were closed", f64::from(counts.closed.get()), None);
    table.row("busy requests that were lost", f64::from(counts.lost.get()), Some(0.0));
    table.row("slow bodies that were lost", f64::from(counts.slow_lost.get()), Some(0.0));
}

/// A CPU for the server and another one for all callers, so that neither takes time from the other.
pub(crate) struct Cpus {
    all: CpuSet,
    of_the_server: usize,
    of_the_callers: usize,
}

impl Cpus {
    pub(crate) fn two() -> Self {
        let all = sched_getaffinity(None).expect("an affinity");
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu));
        let [Some(of_the_server), Some(of_the_callers)] = [allowed.next(), allowed.next()] else {
            panic!("the callers need a CPU beside that of the server");
        };
        Self { all, of_the_server, of_the_callers }
    }

    /// Does something on the server's CPU; threads and children that it starts stay there.
    pub(crate) fn on_the_servers<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let done = scope.spawn(|| {
                pin(self.of_the_server);
                work()
            });
            done.join().expect("it is done")
        })
    }

    /// A server that has no bound on requests a second, and takes a slow body for as long as a slow head.
    pub(crate) fn start(&self, directory: &Path) -> Server {
        let unbounded = "[limits]\nrequests_per_s = 0\nbody_timeout_s = 10\n";
        let server = self.on_the_servers(|| Server::start_configured(directory, "h200x2@13.0", unbounded).0);
        server.wait_ready();
        server
    }

    /// Runs callers on their CPU.
    pub(crate) fn call<T>(&self, calls: impl Future<Output = T>) -> T {
        pin(self.of_the_callers);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let result = LocalSet::new().block_on(&runtime.expect("a runtime of this thread"), calls);
        sched_setaffinity(None, &self.all).expect("the affinity from before");
        result
    }
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("a CPU that is allowed");
}

/// The same callers, without the slow ones and beside them.
struct Round {
    alone: Latency,
    beside: Latency,
    /// The fewest slow callers that were connected at any time of it.
    slow: u16,
}

/// Of the requests of a few seconds, in milliseconds.
pub(crate) struct Latency {
    p50: f64,
    pub(crate) p99: f64,
    pub(crate) per_second: f64,
}

async fn rounds(caller: &Caller) -> Vec<Round> {
    // Connections are made and code is paged in before anything counts.
    caller.busy(ROUND).await;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        // The order alternates, so that disturbances hit both.
        let (alone, (beside, slow)) = if round % 2 == 0 {
            (caller.busy(ROUND).await, caller.beside_slow_ones().await)
        } else {
            let beside = caller.beside_slow_ones().await;
            (caller.busy(ROUND).await, beside)
        };
        rounds.push(Round { alone, beside, slow });
    }
    rounds
}

#[derive(Default)]
struct Counts {
    lost: Cell<u32>,
    connected: Cell<u16>,
    fewest_connected: Cell<u16>,
    answered: Cell<u32>,
    refused: Cell<u32>,
    closed: Cell<u32>,
    slow_lost: Cell<u32>,
}

fn count<T: Copy + From<u8> + std::ops::Add<Output = T>>(counter: &Cell<T>) {
    counter.set(counter.get() + T::from(1));
}

/// What all callers share: the manager they call, with which token, and what became of it.
#[derive(Clone)]
pub(crate) struct Caller {
    address: SocketAddr,
    token: Rc<str>,
    /// How many callers are busy, and what they request in turns.
    busy: usize,
    paths: &'static [&'static str],
    counts: Rc<Counts>,
}

impl Caller {
    pub(crate) fn of(address: SocketAddr, token: &str, busy: usize, paths: &'static [&'static str]) -> Self {
        Self { address, token: Rc::from(token), busy, paths, counts: Rc::default() }
    }

    /// So many callers, each of which asks again as soon as it is answered.
    pub(crate) async fn busy(&self, long: Duration) -> Latency {
        let until = Instant::now() + long;
        let latencies = Rc::new(RefCell::new(Vec::new()));
        let callers: Vec<JoinHandle<()>> = (0..self.busy)
            .map(|number| {
                let (caller, latencies) = (self.clone(), Rc::clone(&latencies));
                tokio::task::spawn_local(async move {
                    let mut connection = None;
                    for turn in number.. {
                        let began = Instant::now();
                        if began >= until {
                            break;
                        }
                        match caller.ask(&mut connection, caller.paths[turn % caller.paths.len()]).await {
                            Ok(200) => latencies.borrow_mut().push(millis(began.elapsed())),
                            _ => {
                                connection = None;
                                count(&caller.counts.lost);
                            }
                        }
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.expect("a busy caller ends");
        }
        let mut latencies = latencies.take();
        latencies.sort_by(f64::total_cmp);
        #[allow(clippy::cast_precision_loss, reason = "some ten thousand")]
        let per_second = latencies.len() as f64 / long.as_secs_f64();
        Latency {
            p50: latencies[latencies.len() / 2],
            p99: latencies[latencies.len() * 99 / 100],
            per_second,
        }
    }

    pub(crate) fn lost(&self) -> u32 {
        self.counts.lost.get()
    }

    /// The same beside the slow callers; and how many of them were connected, at least.
    async fn beside_slow_ones(&self) -> (Latency, u16) {
        let slow: Vec<JoinHandle<()>> = (0..SLOW)
            .map(|number| {
                let caller = self.clone();
                tokio::task::spawn_local(async move {
                    tokio::time::sleep(SLOW_SPREAD * u32::from(number) / u32::from(SLOW)).await;
                    caller.slow(number).await;
                })
            })
            .collect();
        // Until they all come and go as they will, and slow bodies have been refused.
        self.busy(2 * SLOW_SPREAD).await;
        self.counts.fewest_connected.set(SLOW);
        let latency = self.busy(ROUND).await;
        let fewest = self.counts.fewest_connected.get();
        for caller in slow {
            caller.abort();
            let _ = caller.await;
        }
        self.counts.connected.set(0);
        (latency, fewest)
    }

    /// Sends a request and takes its whole answer; the status.
    async fn ask(&self, connection: &mut Option<TcpStream>, path: &str) -> Result<u16> {
        let stream = match connection {
            Some(stream) => stream,
            None => connection.insert(TcpStream::connect(self.address).await?),
        };
        let token = &self.token;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        answer(stream).await
    }

    /// Sends heads or bodies, a byte a second, again and again.
    async fn slow(&self, number: u16) {
        loop {
            let Ok(mut stream) = self.connect_from(number).await else {
                count(&self.counts.slow_lost);
                return;
            };
            count(&self.counts.connected);
            if number.is_multiple_of(2) {
                self.slow_head(&mut stream).await;
            } else {
                let length = if number % 4 == 1 { SHORT_BODY } else { LONG_BODY };
                match self.slow_body(&mut stream, length).await {
                    Ok(408) => count(&self.counts.refused),
                    Ok(_) => count(&self.counts.answered),
                    Err(_) => count(&self.counts.slow_lost),
                }
            }
            self.counts.connected.set(self.counts.connected.get() - 1);
            let fewest = self.counts.fewest_connected.get().min(self.counts.connected.get());
            self.counts.fewest_connected.set(fewest);
        }
    }

    async fn connect_from(&self, number: u16) -> Result<TcpStream> {
        let last = u8::try_from(2 + number / SLOW_PER_ADDRESS).map_err(Error::other)?;
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), 0))?;
        let stream = socket.connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Until the server closes the connection, as it is to do with a head that does not end.
    async fn slow_head(&self, stream: &mut TcpStream) {
        let head = format!("GET / HTTP/1.1\r\nX-Slow: {}", "a".repeat(3600));
        for byte in head.as_bytes() {
            if stream.write_all(&[*byte]).await.is_err() || second_or_end(stream).await {
                break;
            }
        }
        count(&self.counts.closed);
    }

    /// Until the body is whole, or the server answers before it is; the status.
    async fn slow_body(&self, stream: &mut TcpStream, length: usize) -> Result<u16> {
        let token = &self.token;
        let head = format!(
            "PUT /api/v1/tenants/slow HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        for sent in 1..=length {
            stream.write_all(b" ").await?;
            if sent < length && second_or_readable(stream).await {
                break;
            }
        }
        answer(stream).await
    }
}

/// Waits for a second; whether something came meanwhile, be it the end.
async fn second_or_readable(stream: &TcpStream) -> bool {
    tokio::time::timeout(Duration::from_secs(1), stream.readable()).await.is_ok()
}

/// Waits for a second; whether the connection was ended meanwhile.
async fn second_or_end(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 1024];
    let second = tokio::time::sleep(Duration::from_secs(1));
    tokio::pin!(second);
    loop {
        tokio::select! {
            () = &mut second => return false,
            read = stream.read(&mut bytes) => {
                if !matches!(read, Ok(1..)) {
                    return true;
                }
            }
        }
    }
}

/// Takes one whole answer; its status.
async fn answer(stream: &mut TcpStream) -> Result<u16> {
    let mut bytes = Vec::with_capacity(8192);
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    };
    let text = std::str::from_utf8(&bytes[..head]).map_err(Error::other)?.to_ascii_lowercase();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    let (Some(status), Some(length)) = (status, length) else {
        return Err(ErrorKind::InvalidData.into());
    };
    while bytes.len() < head + length {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(status)
}
