//! Asking the server to make way: for another user's server, or for the daemon's end.
//!
//! A server with clients stays, and is asked again after 200 ms, then twice that, and so on. Nothing hastens it: a
//! server that became idle right after an attempt stays until the next (recordings 10 and 12).

use std::time::Instant;

use super::attempts::{Attempts, Quit, ServerReplacement};
use super::daemon::Daemon;
use super::server_process::Server;

impl Daemon {
    /// Makes way for a server of this user, now or as soon as nobody uses the present one.
    pub(super) fn change_to(&mut self, uid: u32, mlopart: bool) {
        self.change = Some(ServerReplacement { uid, mlopart, attempts: Attempts::new() });
        self.try_change();
    }

    /// Makes progress with a change: starts the wanted server when there is room.
    pub(super) fn try_change(&mut self) {
        if self.server.as_ref().is_some_and(|server| !server.serves()) {
            return;
        }
        let Some(mut change) = self.change.take_if(|change| change.attempts.due()) else { return };
        if self.attempt(&mut change.attempts) {
            self.start_server(change.uid, change.mlopart);
        } else {
            self.change = Some(change);
        }
    }

    /// Makes progress with `quit`; true when the daemon is to exit now.
    pub(super) fn try_quit(&mut self) -> bool {
        let Some(&Quit { force_at, mut attempts }) = self.quit.as_ref() else { return false };
        let Some(pid) = self.server.as_ref().map(Server::pid) else { return true };
        if force_at.is_some_and(|at| at <= Instant::now()) {
            self.say_log(&format!("Force shutting down server {pid}"));
            return self.stop_server(true);
        }
        let stopped = attempts.due() && self.attempt(&mut attempts);
        if let Some(quit) = &mut self.quit {
            quit.attempts = attempts;
        }
        stopped
    }

    /// Asks the server once; true when it is gone.
    fn attempt(&mut self, attempts: &mut Attempts) -> bool {
        let Some(pid) = self.server.as_ref().map(Server::pid) else { return true };
        self.say_log(&format!("Try shutting down server {pid}, backoff is {}", attempts.backoff()));
        let stopped = self.stop_server(false);
        if !stopped {
            let pause = attempts.failed(&self.world).as_millis();
            self.say_log(&format!("Control will try shutting down server {pid} again in at most {pause}ms"));
        }
        stopped
    }
}
