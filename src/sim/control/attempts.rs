//! What the server is asked to make way for, and when it is asked next.

use std::time::{Duration, Instant};

use crate::world::World;

const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// When the server is asked next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempts {
    pub(super) next: Instant,
    /// What follows when the next one fails.
    pause: Duration,
}

/// A server of another user, or of another kind, is to come.
pub(super) struct ServerReplacement {
    pub(super) uid: u32,
    pub(super) attempts: Attempts,
}

/// The daemon is to end.
pub(super) struct Quit {
    /// When the server's clients no longer count.
    pub(super) force_at: Option<Instant>,
    pub(super) attempts: Attempts,
}

impl ServerReplacement {
    /// Whose server is to come.
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

    /// The attempt failed; returns the pause until the next one, as the log gives it.
    pub(super) fn failed(&mut self, world: &World) -> Duration {
        let pause = self.pause;
        self.next = Instant::now() + world.scaled(pause);
        self.pause = pause * 2;
        pause
    }
}
