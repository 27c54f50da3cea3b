//! The tenants' directories of processes in containers, according to their mounts.

use std::collections::BTreeMap;

use super::Handouts;
use crate::domain::TenantDirectory;
use crate::domain::client::MountedDirectories;
use crate::host::mounts::{LocalMounts, MountSource, lives_elsewhere};

impl Handouts {
    /// Returns the tenants' directories that processes in other mount namespaces have mounted, by process; blocks. A process
    /// that could have mounted one itself, without being root here, gets none.
    pub fn mounted_in(&self, processes: impl IntoIterator<Item = u32>) -> BTreeMap<u32, MountedDirectories> {
        let elsewhere: Vec<u32> = processes.into_iter().filter(|pid| lives_elsewhere(*pid)).collect();
        if elsewhere.is_empty() {
            return BTreeMap::new();
        }
        let (Ok(tenants), Ok(local)) = (MountSource::of(&self.root), LocalMounts::read()) else {
            return BTreeMap::new();
        };
        let mounted = elsewhere.into_iter().map(|pid| {
            let Some(names) = local.entries_in(pid, &tenants) else {
                return (pid, MountedDirectories::Hidden);
            };
            let directories =
                names.into_iter().filter_map(|name| TenantDirectory::parse(name.to_str()?).ok());
            (pid, MountedDirectories::Seen(directories.collect()))
        });
        mounted.collect()
    }
}
