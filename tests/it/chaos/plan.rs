//! What is struck next: decided by the seed alone, so that a seed is a whole story.

use std::collections::BTreeSet;

use fastrand::Rng;

/// The daemons with tenants, each on the GPU with its place.
pub(super) const DAEMONS: [&str; 4] = ["gpu0", "gpu1", "gpu2", ADOPTED];
/// The last of them, which another program started and the manager has adopted.
pub(super) const ADOPTED: &str = "adopted";
/// Its place.
pub(super) const ADOPTED_GPU: usize = 3;
/// The place of the one that sets its GPU's compute mode.
pub(super) const EXCLUSIVE: usize = 1;
/// The GPU that is another user's.
pub(super) const FOREIGN_GPU: usize = 4;
/// The name under which the foreign daemon is adopted for a moment.
pub(super) const BORROWED: &str = "borrowed";
/// A daemon without tenants that is deleted and created again.
pub(super) const VOLATILE: &str = "volatile";
/// Its GPU.
pub(super) const VOLATILE_GPU: usize = 5;

/// A part that may die or stand still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Manager,
    /// A control daemon, by its place in [`DAEMONS`].
    Daemon(usize),
    /// Its server.
    Server(usize),
    /// A client, by a number that is taken modulo how many there are.
    Client(usize),
}

/// One kill, with what is around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Strike {
    /// These die at once.
    Kill(Vec<Part>),
    /// The manager dies so long after a request to write was sent.
    InAWrite { after_us: u64 },
    /// The manager dies, and each successor so long after it was started.
    AtItsStart { after_us: Vec<u64> },
    /// A control daemon dies, and its successor so long after it appeared.
    Successor { daemon: usize, after_us: u64 },
    /// A control daemon dies, and the manager so long after, while it starts another.
    WhileItStarts { daemon: usize, after_us: u64 },
    /// A server dies, and the manager so long after, while it has another started and writes to it.
    WhileItServes { daemon: usize, after_us: u64 },
    /// A part stands still for a while.
    Stop { part: Part, ms: u64 },
    /// A control program dies in the middle of its session with a daemon, and what it had sent may still take effect.
    Session,
    /// A client is to be terminated in the safe order, and the manager dies so long after it has promised to.
    Terminating { client: usize, after_us: u64 },
    /// A daemon is to be restarted, and the manager dies so long after it has promised to.
    Restarting { daemon: usize, after_us: u64 },
    /// A daemon is to be drained, and the manager dies so long after it has promised to.
    Draining { daemon: usize, after_us: u64 },
    /// A GPU is to be released for maintenance and taken back, and the manager dies so long after each promise.
    Maintaining { daemon: usize, after_us: [u64; 2] },
    /// A daemon is to be deleted and is created again, and the manager dies so long after each promise.
    Deleting { after_us: [u64; 2] },
    /// The foreign daemon is to be adopted and to be released, and the manager dies so long after each request was sent.
    Borrowing { managed: bool, after_us: [u64; 2] },
    /// A client dies as its server lets it in, which hangs the server; then the daemon's other clients die.
    Admitted { daemon: usize },
    /// A server dies, and a client that waits for the next one, which hangs over it; then control daemon and manager.
    Hanging { daemon: usize },
}

impl Strike {
    /// Draws the next.
    pub(super) fn draw(rng: &mut Rng) -> Self {
        match rng.u32(..100) {
            0..16 => Self::Kill(vec![Part::Manager]),
            16..18 => {
                let after_us = [rng.u64(..250_000), rng.u64(..30_000)];
                Self::Borrowing { managed: rng.bool(), after_us }
            }
            18..26 => Self::InAWrite { after_us: rng.u64(..3_000) },
            26..28 => Self::Draining { daemon: daemon(rng), after_us: rng.u64(..300_000) },
            28..30 => {
                let after_us = [rng.u64(..1_500_000), rng.u64(..600_000)];
                Self::Maintaining { daemon: daemon(rng), after_us }
            }
            30..38 => {
                let times = rng.usize(1..4);
                Self::AtItsStart { after_us: (0..times).map(|_| rng.u64(..120_000)).collect() }
            }
            38..46 => Self::Kill(vec![Part::Daemon(daemon(rng))]),
            46..55 => Self::Kill(vec![Part::Server(daemon(rng))]),
            55..61 => Self::Kill(vec![client(rng)]),
            61..71 => Self::Kill(two(rng)),
            71..75 => Self::Successor { daemon: daemon(rng), after_us: rng.u64(..40_000) },
            75..82 => Self::WhileItStarts { daemon: daemon(rng), after_us: rng.u64(..100_000) },
            82..87 => Self::WhileItServes { daemon: daemon(rng), after_us: rng.u64(..500_000) },
            87..92 => {
                let part = part(rng);
                let longest = if part == Part::Manager { 300 } else { 1_500 };
                Self::Stop { part, ms: rng.u64(1..longest) }
            }
            92..94 => Self::Session,
            94..95 => Self::Admitted { daemon: daemon(rng) },
            95..97 => Self::Terminating { client: rng.usize(..), after_us: rng.u64(..60_000) },
            97..98 => Self::Deleting { after_us: [rng.u64(..300_000), rng.u64(..400_000)] },
            98..99 => Self::Restarting { daemon: daemon(rng), after_us: rng.u64(..600_000) },
            _ => Self::Hanging { daemon: daemon(rng) },
        }
    }

    /// The kind, for counting.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Kill(parts) => match parts.as_slice() {
                [Part::Manager] => "manager",
                [Part::Daemon(_)] => "control daemon",
                [Part::Server(_)] => "server",
                [Part::Client(_)] => "client",
                _ => "two at once",
            },
            Self::InAWrite { .. } => "manager in a write",
            Self::AtItsStart { .. } => "manager at its start",
            Self::Successor { .. } => "control daemon, and the next as it starts",
            Self::WhileItStarts { .. } => "control daemon, then manager",
            Self::WhileItServes { .. } => "server, then manager",
            Self::Stop { .. } => "SIGSTOP and SIGCONT",
            Self::Session => "control program in its session",
            Self::Terminating { .. } => "manager while it terminates a client",
            Self::Restarting { .. } => "manager while it restarts a daemon",
            Self::Draining { .. } => "manager while it drains a daemon",
            Self::Maintaining { .. } => "manager in maintenance, twice",
            Self::Deleting { .. } => "manager while it deletes and creates a daemon",
            Self::Borrowing { .. } => "manager while it adopts and releases",
            Self::Admitted { .. } => "client as it is admitted",
            Self::Hanging { .. } => "hanging server, control daemon and manager",
        }
    }

    /// The daemons whose control process dies of it.
    pub(super) fn controls(&self) -> Vec<usize> {
        match self {
            Self::Kill(parts) => {
                let controls = parts.iter().filter(|part| matches!(part, Part::Daemon(_)));
                controls.filter_map(Part::daemon).collect()
            }
            Self::WhileItServes { .. } | Self::Admitted { .. } => Vec::new(),
            other => other.servers(),
        }
    }

    /// The daemons whose server dies of it.
    pub(super) fn servers(&self) -> Vec<usize> {
        match self {
            Self::Kill(parts) => parts.iter().filter_map(Part::daemon).collect(),
            Self::Successor { daemon, .. }
            | Self::WhileItStarts { daemon, .. }
            | Self::WhileItServes { daemon, .. }
            | Self::Restarting { daemon, .. }
            | Self::Admitted { daemon }
            | Self::Hanging { daemon } => vec![*daemon],
            Self::InAWrite { .. }
            | Self::AtItsStart { .. }
            | Self::Stop { .. }
            | Self::Session
            | Self::Terminating { .. }
            | Self::Draining { .. }
            | Self::Maintaining { .. }
            | Self::Borrowing { .. }
            | Self::Deleting { .. } => Vec::new(),
        }
    }

    /// The daemons that may be replaced for it, or not.
    pub(super) fn perhaps(&self) -> Option<usize> {
        match self {
            Self::Maintaining { daemon, .. } => Some(*daemon),
            _ => None,
        }
    }

    /// The daemons whose clients may die of it.
    pub(super) fn daemons(&self) -> Vec<usize> {
        match self {
            Self::Draining { daemon, .. } | Self::Maintaining { daemon, .. } => vec![*daemon],
            other => other.servers(),
        }
    }
}

impl Part {
    fn daemon(&self) -> Option<usize> {
        match self {
            Self::Daemon(daemon) | Self::Server(daemon) => Some(*daemon),
            Self::Manager | Self::Client(_) => None,
        }
    }
}

fn daemon(rng: &mut Rng) -> usize {
    rng.usize(..DAEMONS.len())
}

fn client(rng: &mut Rng) -> Part {
    Part::Client(rng.usize(..))
}

fn part(rng: &mut Rng) -> Part {
    match rng.u32(..4) {
        0 => Part::Manager,
        1 => Part::Daemon(daemon(rng)),
        2 => Part::Server(daemon(rng)),
        _ => client(rng),
    }
}

fn two(rng: &mut Rng) -> Vec<Part> {
    let first = part(rng);
    loop {
        let second = part(rng);
        if second != first {
            return vec![first, second];
        }
    }
}

/// All kinds that are drawn.
pub(super) fn kinds() -> BTreeSet<&'static str> {
    let mut rng = Rng::with_seed(7);
    (0..1000).map(|_| Strike::draw(&mut rng).kind()).collect()
}

#[test]
fn seed_determines_the_whole_plan() {
    let story = |seed: u64| -> Vec<Strike> {
        let mut rng = Rng::with_seed(seed);
        (0..1000).map(|_| Strike::draw(&mut rng)).collect()
    };
    assert_eq!(story(7), story(7));
    assert_ne!(story(7), story(8));
    assert_eq!(kinds().len(), 20, "{:?}", kinds());
}
