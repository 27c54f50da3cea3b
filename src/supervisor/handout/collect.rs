//! What becomes of the directories of tenants that are gone.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{Door, Handout, Handouts};
use crate::domain::{TenantDirectory, TenantName};
use crate::host::mounts;
use crate::host::process::having;
use crate::mps::process::{PIPE_ENV, SOCKET};

impl Handouts {
    /// Closes directories of tenants that are gone, and removes those that nobody holds any more; blocks. `known` are the
    /// directories of the tenants that there are.
    pub fn collect(&self, known: &BTreeSet<TenantDirectory>) {
        let mut orphans = Vec::new();
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().and_then(|name| TenantDirectory::parse(name).ok()) else {
                continue;
            };
            let mut inner = self.inner();
            let is_owned = inner.doors.get(&name).is_some_and(|door| door.daemon.is_some());
            if known.contains(&name) || is_owned {
                continue;
            }
            if !inner.doors.contains_key(&name) {
                let Ok(nobody) = TenantName::parse("deleted") else { continue };
                inner.doors.insert(name.clone(), self.orphan(nobody));
            }
            if let Some(door) = inner.doors.get_mut(&name) {
                self.apply(&name, door, &Handout::Refuse);
            }
            orphans.push(name);
        }
        if orphans.is_empty() {
            return;
        }
        let (environments, mounted) = (having(PIPE_ENV), mounts::roots());
        let is_of = |path: &Path, name: &TenantDirectory| path.iter().any(|part| part == name.as_str());
        for name in orphans {
            let held = environments.iter().any(|(_, value)| is_of(Path::new(value), &name))
                || mounted.iter().any(|path| is_of(path, &name));
            let mut inner = self.inner();
            let Some(door) = inner.doors.get_mut(&name) else { continue };
            if held || door.daemon.is_some() || !door.queue.waiting().is_empty() {
                continue;
            }
            let directory = self.root.join(name.as_str());
            match self.remove(&name, door) {
                Ok(()) => {
                    tracing::info!(directory = %directory.display(), "removed the directory of a tenant that is gone");
                    let _ = fs::remove_file(self.spare(&name));
                    inner.doors.remove(&name);
                }
                Err(why) if door.stays.as_ref() == Some(&why) => {}
                Err(why) => {
                    tracing::warn!(directory = %directory.display(), why, "the directory of a tenant that is gone stays");
                    door.stays = Some(why);
                }
            }
        }
    }

    /// Removes a directory with `control` alone in it; why not, where it stays, with a placeholder in it.
    fn remove(&self, name: &TenantDirectory, door: &mut Door) -> Result<(), String> {
        if let Some(problem) = &door.problem {
            return Err(problem.message.clone());
        }
        let path = self.root.join(name.as_str());
        let entries = fs::read_dir(&path).map_err(|error| error.to_string())?;
        let mut names = entries.flatten().map(|entry| entry.file_name());
        if let Some(other) = names.find(|name| name != SOCKET) {
            return Err(format!("it holds {}: remove that", other.display()));
        }
        fs::remove_file(path.join(SOCKET)).and_then(|()| fs::remove_dir(&path)).map_err(|error| {
            // Whoever has the directory would find no socket in it, and run outside MPS.
            self.apply(name, door, &Handout::Refuse);
            error.to_string()
        })
    }
}
