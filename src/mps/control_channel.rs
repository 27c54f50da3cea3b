//! The seam between what is asked of a control daemon and how it gets there: by a pty session with NVIDIA's control program
//! ([`session`](super::session)), or by a script in tests.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::command::Command;
use super::session::calls::Calls;
use super::session::error::SessionError;

/// The way to the daemon of one pipe directory.
pub trait ControlChannel: fmt::Debug + Send + Sync {
    /// Opens a session; nothing runs before its first command. Everything in it ends by `deadline`.
    fn session(&self, deadline: Instant) -> Result<Box<dyn ControlSession>, SessionError>;

    /// Asks the daemon to quit: at once without clients, else after `timeout_s`, else when they are gone. Only the death of its
    /// process says that it is over.
    fn quit(&self, timeout_s: Option<u32>, deadline: Instant) -> BoxFuture<'_, Result<(), SessionError>>;

    /// Returns the channel to a daemon in another pipe directory; the cost of its commands is counted together with that of this channel.
    fn in_directory(&self, pipe_directory: PathBuf) -> Arc<dyn ControlChannel>;

    /// Returns the cost of the commands so far.
    fn calls(&self) -> &Calls;
}

/// Commands sent to one daemon in a row.
pub trait ControlSession: Send {
    /// Moves the end of the session: each command of many may have the time of a whole session.
    fn extend(&mut self, deadline: Instant);

    /// Sends a command and waits for its whole reply, which may be a refusal.
    fn send<'a>(&'a mut self, command: &'a Command) -> BoxFuture<'a, Result<Vec<u8>, SessionError>>;

    /// Sends reads in a row and waits for the reply of each.
    fn send_together<'a>(
        &'a mut self,
        commands: &'a [Command],
    ) -> BoxFuture<'a, Result<Vec<Vec<u8>>, SessionError>>;

    /// Control processes spawned so far, those that were turned away included.
    fn processes(&self) -> u32;

    /// Ends the session.
    fn close(self: Box<Self>) -> BoxFuture<'static, ()>;
}
