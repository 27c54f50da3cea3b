//! Checks that a user's programs can reach the sockets that they need.

use std::path::PathBuf;

use crate::domain::DaemonName;
use crate::mps::process::check_reachable;
use crate::supervisor::context::SupervisorContext;
use crate::supervisor::fleet::Fleet;

impl SupervisorContext {
    /// Refuses a user whose programs cannot reach a daemon's sockets: they would run outside MPS in silence.
    pub async fn check_reachable(&self, pipe: PathBuf, uid: u32) -> Result<(), String> {
        // The lookup in the host's user database may take long.
        let checked = tokio::task::spawn_blocking(move || check_reachable(&pipe, uid)).await;
        checked.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}

impl Fleet {
    /// Refuses a user whose programs cannot reach the socket of a tenant of this daemon: they would run outside MPS in silence.
    ///
    /// A daemon that root does not run serves its own user alone. Without `multi_user` the server runs as the given user too,
    /// and has to reach the daemon's own directory.
    pub async fn check_reachable(
        &self,
        daemon: &DaemonName,
        multi_user: bool,
        uid: u32,
    ) -> Result<(), String> {
        let running = self.get(daemon).and_then(|handle| handle.status().uid);
        serves(running.unwrap_or_else(|| rustix::process::geteuid().as_raw()), uid)?;
        let context = self.context();
        context.check_reachable(context.handouts.root().to_owned(), uid).await?;
        let pipe = self.pipe_directory(daemon);
        // The daemon's own directory is opened to the users of its tenants.
        if pipe != context.pipe_directory(daemon) {
            return context.check_reachable(pipe, uid).await;
        }
        match pipe.parent().filter(|_| !multi_user) {
            Some(home) => context.check_reachable(home.to_owned(), uid).await,
            None => Ok(()),
        }
    }
}

/// Refuses a user for whom a control daemon of this owner starts no server: 580 refuses an owner's `start_server -uid` for another user.
fn serves(owner: u32, uid: u32) -> Result<(), String> {
    if owner == 0 || owner == uid {
        return Ok(());
    }
    Err(format!(
        "uid {uid} is not served here: the control daemon is run by uid {owner}, and MPS starts servers for other users only where root runs \
         it; give uid {owner}, or use a manager that root runs"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_daemons_of_root_serve_other_users() {
        for (owner, uid, is_served) in
            [(0, 0, true), (0, 1000, true), (1000, 1000, true), (1000, 0, false), (1000, 1001, false)]
        {
            let answer = serves(owner, uid);
            assert_eq!(answer.is_ok(), is_served, "{owner} {uid}");
            assert!(answer.err().is_none_or(|text| text.contains(&format!("give uid {owner}"))));
        }
    }
}
