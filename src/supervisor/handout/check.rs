//! The check of directories in which nothing changed: another program may have changed them.

use super::directory::{self, Inode};
use super::{Handout, HandoutState, Handouts, SPARES, TenantEntry};
use crate::domain::DaemonName;
use crate::mps::process::SOCKET;

impl Handouts {
    /// Applies its handout again to each directory of a daemon that is not as it was left.
    ///
    /// Readers do not wait meanwhile: looking at directories takes a while, and needs no lock. Of thousands, `at_once` are looked at each
    /// time, after those of the time before, and all that have a problem.
    pub(super) fn check_tenants(&self, daemon: &DaemonName, at_once: usize) {
        let is_rooted = directory::ensure_root(&self.root, &self.unplaced()).is_ok();
        let mut inner = self.inner();
        let HandoutState { daemons, entries } = &mut *inner;
        let Some(held) = daemons.get_mut(daemon) else { return };
        let socket = match &held.handout {
            Handout::Open(control) => directory::inode(&control.pipe.join(SOCKET)),
            _ => None,
        };
        let after = held.checked_to.take();
        let (mut due, mut left) = (Vec::new(), at_once);
        for (name, entry) in entries.iter().filter(|(_, entry)| entry.daemon.as_ref() == Some(daemon)) {
            let is_next = after.as_ref().is_none_or(|after| name > after);
            if is_next && left > 0 {
                left -= 1;
                held.checked_to = Some(name.clone()).filter(|_| left == 0);
            } else if entry.problem.is_none() {
                continue;
            }
            due.push((name.clone(), entry.access.clone(), self.left(entry, socket)));
        }
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

    /// Returns true if the last check of a daemon's directories left some to the next.
    pub(in crate::supervisor) fn has_unchecked(&self, daemon: &DaemonName) -> bool {
        self.inner().daemons.get(daemon).is_some_and(|held| held.checked_to.is_some())
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
