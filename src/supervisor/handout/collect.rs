//! Removal of the directories of deleted tenants.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::{Handout, Handouts, TenantEntry, by_name, directory};
use crate::domain::{TenantDirectory, TenantName};
use crate::host::mounts;
use crate::host::process::having;
use crate::mps::process::{PIPE_ENV, SOCKET, daemon_of_pid_file, is_listened_at};

/// Least time that the directory of a deleted tenant is kept. A shell that has its path, a file of variables or a job that
/// has not started yet would bypass MPS without it, and shows in no process. An engine that deletes a tenant can declare that
/// no such use is left.
const KEPT: Duration = Duration::from_hours(24);
/// Number of directories of deleted tenants beyond which the oldest are removed earlier: each has an open socket.
const MOST: usize = 128;

impl Handouts {
    /// Closes the directories of deleted tenants, and removes those that have been closed for long and that no process holds;
    /// blocks. `known` are the directories of the existing tenants.
    pub fn collect(&self, known: &BTreeSet<TenantDirectory>) {
        self.collect_after(known, KEPT);
    }

    pub(super) fn collect_after(&self, known: &BTreeSet<TenantDirectory>, kept: Duration) {
        let is_owned = |name: &TenantDirectory| {
            self.inner().entries.get(name).is_some_and(|entry| entry.daemon.is_some())
        };
        by_name::prune(&self.root, |name| known.contains(name) || is_owned(name));
        let mut orphans = Vec::new();
        for name in self.directories() {
            let mut inner = self.inner();
            let is_owned = inner.entries.get(&name).is_some_and(|entry| entry.daemon.is_some());
            if known.contains(&name) || is_owned {
                continue;
            }
            if !inner.entries.contains_key(&name) {
                let Ok(nobody) = TenantName::parse("deleted") else { continue };
                inner.entries.insert(name.clone(), self.orphan(nobody));
            }
            if let Some(entry) = inner.entries.get_mut(&name) {
                self.apply(&name, entry, &Handout::Refuse);
                let closed = *entry.closed.get_or_insert_with(Instant::now);
                orphans.push((closed, name, entry.is_finished));
            }
        }
        orphans.sort_unstable();
        let mut beyond = orphans.len().saturating_sub(MOST);
        orphans.retain(|(closed, _, is_finished)| {
            let is_beyond = beyond > 0;
            beyond = beyond.saturating_sub(1);
            is_beyond || *is_finished || closed.elapsed() >= kept
        });
        if orphans.is_empty() {
            return;
        }
        let (environments, mounted) = (having(PIPE_ENV), mounts::roots());
        let is_of = |path: &Path, name: &TenantDirectory| path.iter().any(|part| part == name.as_str());
        for (_, name, _) in orphans {
            let held = environments.iter().any(|(_, value)| is_of(Path::new(value), &name))
                || mounted.iter().any(|path| is_of(path, &name));
            let mut inner = self.inner();
            let Some(entry) = inner.entries.get_mut(&name) else { continue };
            if held || entry.daemon.is_some() || !entry.queue.waiting().is_empty() {
                continue;
            }
            let directory = self.root.join(name.as_str());
            match self.remove(&name, entry) {
                Ok(()) => {
                    tracing::info!(directory = %directory.display(), "removed the directory of a tenant that is gone");
                    let _ = fs::remove_file(self.spare(&name));
                    inner.entries.remove(&name);
                }
                Err(why) if entry.stays.as_ref() == Some(&why) => {}
                Err(why) => {
                    tracing::warn!(directory = %directory.display(), why, "the directory of a tenant that is gone stays");
                    entry.stays = Some(why);
                }
            }
        }
    }

    /// Declares that no process will be started with this directory any more. It is removed once its tenant is gone and no
    /// process or mount has it.
    pub fn finish(&self, name: &TenantDirectory) {
        if let Some(entry) = self.inner().entries.get_mut(name) {
            entry.is_finished = true;
        }
    }

    /// Puts a placeholder that refuses clients in each directory whose socket nobody listens at, for a manager that drives no
    /// daemon yet. Placeholders of an earlier manager and sockets of dead daemons lead outside MPS. `daemons` contains the
    /// homes of this manager's daemons.
    pub fn close_dead(&self, daemons: &Path) {
        let homes = fs::read_dir(daemons).into_iter().flatten().flatten();
        let pipes = homes.map(|home| home.path().join("pipe"));
        let live: Vec<PathBuf> = pipes.filter(|pipe| daemon_of_pid_file(pipe).is_some()).collect();
        for name in self.directories() {
            let directory = self.root.join(name.as_str());
            let mut inner = self.inner();
            let is_ours = |entry: &TenantEntry| entry.daemon.is_some() || entry.placed.is_some();
            let is_linked = live.iter().any(|pipe| directory::is_linked(&pipe.join(SOCKET), &directory));
            // A socket that somebody listens at elsewhere is that of an adopted daemon.
            if inner.entries.get(&name).is_some_and(is_ours)
                || is_linked
                || is_listened_at(&directory.join(SOCKET))
            {
                continue;
            }
            let Ok(nobody) = TenantName::parse("unknown") else { continue };
            let entry = inner.entries.entry(name.clone()).or_insert_with(|| self.orphan(nobody));
            tracing::warn!(directory = %directory.display(), "nobody listens at a tenant's socket: its clients are refused");
            self.apply(&name, entry, &Handout::Refuse);
        }
    }

    /// Returns the existing directories of tenants.
    fn directories(&self) -> impl Iterator<Item = TenantDirectory> + use<> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        entries.filter_map(|entry| TenantDirectory::parse(entry.file_name().to_str()?).ok())
    }

    /// Removes a directory that contains only `control`. Otherwise returns the reason why it stays; a placeholder stays in it.
    fn remove(&self, name: &TenantDirectory, entry: &mut TenantEntry) -> Result<(), String> {
        if let Some(problem) = &entry.problem {
            return Err(problem.message.clone());
        }
        let path = self.root.join(name.as_str());
        let entries = fs::read_dir(&path).map_err(|error| error.to_string())?;
        let mut names = entries.flatten().map(|entry| entry.file_name());
        if let Some(other) = names.find(|name| name != SOCKET) {
            return Err(format!("it holds {}: remove that", other.display()));
        }
        fs::remove_file(path.join(SOCKET)).and_then(|()| fs::remove_dir(&path)).map_err(|error| {
            // Processes with this directory would find no socket in it, and run outside MPS.
            self.apply(name, entry, &Handout::Refuse);
            error.to_string()
        })
    }
}
