//! Attempts to end the server: the reasons for them, and their times.

use std::time::{Duration, Instant};

use crate::world::World;

const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Time of the next attempt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempts {
    pub(super) next: Instant,
    /// Pause after the next attempt if it fails.
    pause: Duration,
}

/// A request for a server of another user, or of another kind.
pub(super) struct ServerReplacement {
    pub(super) uid: u32,
    /// True if its clients are to get MLOPart devices.
    pub(super) mlopart: bool,
    pub(super) attempts: Attempts,
}

/// A request to end the daemon.
pub(super) struct Quit {
    /// Time from which the server's clients no longer count.
    pub(super) force_at: Option<Instant>,
    pub(super) attempts: Attempts,
}

impl ServerReplacement {
    /// Returns the user whose server is to come.
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }
}

impl Attempts {
    pub(super) fn new() -> Self {
        Self { next: Instant::now(), pause: FIRST_PAUSE }
    }

    pub(super) fn due(&self) -> bool {
        self.next <= Instant::now()
    }

    pub(super) fn backoff(&self) -> &'static str {
        if self.pause == FIRST_PAUSE { "disabled" } else { "enabled" }
    }

    /// Notes a failed attempt; returns the pause until the next one, as the log gives it.
    pub(super) fn failed(&mut self, world: &World) -> Duration {
        let pause = self.pause;
        self.next = Instant::now() + world.scaled(pause);
        self.pause = pause * 2;
        pause
    }
}
