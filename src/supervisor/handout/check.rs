//! The check of directories in which nothing changed: another program may have changed them.

use std::ops::Bound;

use super::directory::{self, Inode};
use super::{Handout, HandoutState, Handouts, SPARES, TenantEntry};
use crate::domain::DaemonName;
use crate::mps::process::SOCKET;

/// Most directories that are looked at in one check, which takes some 15 µs for each.
const CHECKED_AT_ONCE: usize = 1000;

impl Handouts {
    /// Applies its handout again to each directory of a daemon that is not as it was left.
    ///
    /// Readers do not wait meanwhile: looking at directories takes a while, and needs no lock. Of thousands, a part is looked at each time,
    /// after those of the time before.
    pub(super) fn check_tenants(&self, daemon: &DaemonName) {
        let is_rooted = directory::ensure_root(&self.root, &self.unplaced()).is_ok();
        let mut inner = self.inner();
        let HandoutState { daemons, entries } = &mut *inner;
        let Some(held) = daemons.get_mut(daemon) else { return };
        let socket = match &held.handout {
            Handout::Open(control) => directory::inode(&control.pipe.join(SOCKET)),
            _ => None,
        };
        let after = held.checked_to.take().map_or(Bound::Unbounded, Bound::Excluded);
        let of_daemon = entries.range((after, Bound::Unbounded));
        let of_daemon = of_daemon.filter(|(_, entry)| entry.daemon.as_ref() == Some(daemon));
        let due: Vec<_> = of_daemon
            .take(CHECKED_AT_ONCE)
            .map(|(name, entry)| (name.clone(), entry.access.clone(), self.left(entry, socket)))
            .collect();
        let last = due.last().filter(|_| due.len() == CHECKED_AT_ONCE);
        held.checked_to = last.map(|(name, ..)| name.clone());
        drop(inner);
        for (name, access, control) in due {
            let path = self.root.join(name.as_str());
            if is_rooted && control.is_some_and(|it| directory::is_as_made(&path, access.as_ref(), it)) {
                continue;
            }
            let HandoutState { daemons, entries } = &mut *self.inner();
            let entry = entries.get_mut(&name).filter(|entry| entry.daemon.as_ref() == Some(daemon));
            if let Some((held, entry)) = daemons.get(daemon).zip(entry) {
                self.apply(&name, entry, held.of_tenant(&name));
            }
        }
    }

    /// Returns the file that was left as `control` of a directory, if nothing about the directory is to be done.
    fn left(&self, entry: &TenantEntry, socket: Option<Inode>) -> Option<Inode> {
        match entry.shown {
            _ if entry.problem.is_some() => None,
            Handout::Open(_) if self.wants_spare(entry) => None,
            Handout::Open(_) => socket,
            _ => entry.placed.as_ref().map(|placed| placed.inode),
        }
    }

    pub(super) fn wants_spare(&self, entry: &TenantEntry) -> bool {
        entry.spare.is_none() && self.greeting.receiver_count() < 3 * SPARES
    }
}
