//! Whether a user's programs can reach the sockets that they need.

use std::path::PathBuf;

use crate::domain::DaemonName;
use crate::mps::process::check_reachable;
use crate::supervisor::context::SupervisorContext;
use crate::supervisor::fleet::Fleet;

impl SupervisorContext {
    /// Refuses a user whose programs cannot reach a daemon's sockets: they would run outside MPS in silence.
    pub async fn check_reachable(&self, pipe: PathBuf, uid: u32) -> Result<(), String> {
        // The host's user database may be far away.
        let checked = tokio::task::spawn_blocking(move || check_reachable(&pipe, uid)).await;
        checked.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}

impl Fleet {
    /// Refuses a user whose programs cannot reach the socket of a tenant of this daemon: they would run outside MPS in silence.
    ///
    /// Without `multi_user` the server runs as that user too, and has to reach the daemon's own directory.
    pub async fn check_reachable(
        &self,
        daemon: &DaemonName,
        multi_user: bool,
        uid: u32,
    ) -> Result<(), String> {
        let context = self.context();
        context.check_reachable(context.handouts.root().to_owned(), uid).await?;
        let pipe = self.pipe_directory(daemon);
        if multi_user && pipe == context.pipe_directory(daemon) {
            return Ok(());
        }
        context.check_reachable(pipe, uid).await
    }
}
