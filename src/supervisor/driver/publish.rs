//! What a driver publishes of its daemon, and what it tells of what has changed in that.

use super::super::chronicle::Seen;
use super::super::isolation;
use super::super::journal::{Entry, Note};
use super::super::status::{Counts, status};
use super::{Driver, layout};
use crate::clock::unix_ms;
use crate::domain::FilePlace;
use crate::domain::daemon::{Phase, SessionCounts};
use crate::domain::plan::Desired;

impl Driver {
    pub(super) fn publish(&mut self, desired: &Desired) {
        let (pipe, log) = (&self.pipe_directory, &self.log_directory);
        let now = unix_ms();
        let counts = Counts {
            incarnations: self.incarnations,
            deaths: self.deaths,
            sessions: SessionCounts {
                looks: self.looks,
                failed: self.failed_looks,
                control_processes: self.control.processes(),
                retried: self.control.turned_away(),
            },
        };
        let mut status = status(&self.state, desired, &counts, pipe, log, now);
        self.modes.show(&mut status);
        status.conditions.extend(self.neighbourhood(desired));
        if let Some(isolation) = self.isolation.as_ref().filter(|_| self.state.process.is_some()) {
            status.conditions.extend(isolation::condition(&self.context.scopes, isolation));
            status.isolation = Some(isolation.clone());
        }
        // Of one that does not run, nobody can be a client.
        status.conditions.extend(self.bypasses.condition(desired).filter(|_| self.state.process.is_some()));
        let idle = matches!(
            status.phase,
            Phase::Stopped | Phase::BackOff | Phase::CrashLoop | Phase::Blocked | Phase::Absent
        );
        let unreadable = self.state.process.is_none() && idle;
        let asked = *self.fresh.borrow();
        let (obstacle, tried) = (self.state.in_the_way(desired, status.phase), self.tried);
        let read = self.read.take();
        let looked = read.as_ref().is_some_and(|(_, failed)| failed.is_none());
        let seen = Seen {
            desired,
            status: &status,
            clients: &self.clients,
            trouble: self.state.trouble.as_ref(),
            looked,
        };
        let mut notes = self.chronicle.tell(&seen, self.logs.news());
        self.note_place(&mut notes);
        // Before anybody hears that it is ready, or that it is not.
        self.hand_out(desired, status.phase);
        // Together with what was read, since a waiter may look at any moment.
        self.observed.send_modify(|observed| {
            if let Some((served, failed)) = read {
                (observed.served, observed.failed) = (served, failed);
            }
            if unreadable && observed.served < asked {
                // No process can be looked at: what is published is all there is to know, unless there may be one.
                observed.served = asked;
                observed.failed = self.state.doubt();
            }
            layout::tell(&desired.name, observed.status.layout.as_ref(), status.layout.as_ref());
            observed.status = status;
            observed.clients.clone_from(&self.clients);
            (observed.obstacle, observed.tried) = (obstacle, tried);
        });
        // After it is shown: whoever hears of a client finds it in the list.
        self.context.journal.tell(Entry { daemon: desired.name.clone(), at: now, notes });
    }

    /// Adds how far server.log was read, with what it told of, or where it began anew.
    fn note_place(&mut self, notes: &mut Vec<Note>) {
        let Some(place) = self.logs.told_to() else { return };
        let emptied = |before: FilePlace| before.inode != place.inode || before.offset > place.offset;
        let due = !notes.is_empty() || self.told_to.is_none_or(emptied);
        if due && self.told_to != Some(place) {
            notes.push(Note::ReadTo(place));
            self.told_to = Some(place);
        }
    }
}
