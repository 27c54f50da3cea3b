//! Processes that use a GPU of a daemon outside MPS: no limits apply to them. Pure.
//!
//! The driver's list of processes is the evidence. The incident is open while such processes exist, whichever events are
//! written. For a minute after an event that names processes, events about further ones are quiet: they change the incident
//! and are not written. After that minute an event names the processes that appeared meanwhile, including those that are gone
//! again. Processes that come and go all the time thus make no more than two events a minute. While the daemon does not run,
//! or its clients are not known, known bypasses are followed and no other process is taken for one.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::DaemonName;
use crate::domain::GpuUuid;
use crate::domain::bypass::{Bypass, describe_bypasses};
use crate::domain::condition::{Condition, ConditionReason, ConditionType};
use crate::domain::edges::Edges;
use crate::domain::event::{DomainEvent, NewEvent};
use crate::domain::plan::Desired;
use crate::host::Identity;

/// Most processes that wait to be named; further ones are counted.
const UNNAMED: usize = 256;
/// Shortest time between two events about processes that appeared, in milliseconds.
const QUIET_MS: i64 = 60_000;

/// Processes that use the GPUs of one daemon outside MPS.
#[derive(Debug, Default)]
pub(crate) struct Bypasses {
    present: Edges<(u32, u64), Bypass>,
    /// Processes that no event has named yet; some may be gone.
    unnamed: Vec<Bypass>,
    /// Number of unnamed processes beyond those.
    further: usize,
    /// Processes that were present when an event last named some.
    reported: BTreeSet<(u32, u64)>,
    /// Time of the last event that named some.
    named_at: Option<i64>,
    /// Kind of the event by which the open incident was announced; `None` if none is open.
    announced: Option<Announcement>,
    /// True if that event came from an earlier manager and nothing was observed since.
    inherited: bool,
}

/// Kind of the event that announced an incident: written to the journal, or quiet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Announcement {
    Written,
    Quiet,
}

impl Bypasses {
    /// Creates the state of a daemon for which an earlier manager reported bypasses, or none.
    pub(crate) fn reported(announced: bool) -> Self {
        Self {
            announced: announced.then_some(Announcement::Written),
            inherited: announced,
            ..Self::default()
        }
    }

    /// Returns true if there is nothing to follow and nothing to report.
    pub(crate) fn is_empty(&self) -> bool {
        self.present.known().is_empty() && self.unnamed.is_empty()
    }

    /// Takes the driver's list while the daemon does not run or its clients are not known: only processes that are known to
    /// be outside MPS count. Returns the events to report.
    pub(crate) fn follow(
        &mut self,
        daemon: &DaemonName,
        mut now: BTreeMap<Identity, Bypass>,
        at: i64,
    ) -> Vec<NewEvent> {
        // It is not known which of them an earlier manager reported.
        if self.inherited {
            return Vec::new();
        }
        now.retain(|identity, _| self.present.known().contains_key(&(identity.pid, identity.start_time)));
        self.observe(daemon, now, at)
    }

    /// Takes the driver's list of processes outside MPS, and returns the events to report.
    pub(crate) fn observe(
        &mut self,
        daemon: &DaemonName,
        now: BTreeMap<Identity, Bypass>,
        at: i64,
    ) -> Vec<NewEvent> {
        let now: BTreeMap<(u32, u64), Bypass> =
            now.into_iter().map(|(identity, bypass)| ((identity.pid, identity.start_time), bypass)).collect();
        let changes = self.present.observe(now);
        let room = UNNAMED.saturating_sub(self.unnamed.len());
        let appeared: Vec<Bypass> = changes.appeared.into_iter().map(|(_, bypass)| bypass).collect();
        self.unnamed.extend(appeared.iter().take(room).cloned());
        self.further += appeared.len().saturating_sub(room);
        self.inherited = false;
        let quiet = self.named_at.is_some_and(|before| (before..before + QUIET_MS).contains(&at));
        let here: BTreeSet<(u32, u64)> = self.present.known().keys().copied().collect();
        let present = || self.present.known().values().cloned().collect::<Vec<_>>();
        let mut events: Vec<NewEvent> = Vec::new();
        if !self.unnamed.is_empty() && !quiet {
            let (processes, unnamed) = (std::mem::take(&mut self.unnamed), std::mem::take(&mut self.further));
            let (daemon, present) = (daemon.clone(), present());
            events.push(DomainEvent::BypassAppeared { daemon, processes, unnamed, present }.into());
            self.named_at = Some(at);
            self.reported.clone_from(&here);
            self.announced = (!here.is_empty()).then_some(Announcement::Written).or(self.announced);
        } else if !here.is_empty() && !quiet && self.reported.iter().any(|process| !here.contains(process)) {
            events.push(DomainEvent::BypassChanged { daemon: daemon.clone(), present: present() }.into());
            self.named_at = Some(at);
            self.reported.clone_from(&here);
        } else if !appeared.is_empty() {
            let (daemon, present) = (daemon.clone(), present());
            let event = DomainEvent::BypassAppeared { daemon, processes: appeared, unnamed: 0, present };
            events.push(NewEvent { is_quiet: true, ..event.into() });
            self.announced = self.announced.or(Some(Announcement::Quiet));
        } else if !here.is_empty() && !changes.ended.is_empty() {
            let event = DomainEvent::BypassChanged { daemon: daemon.clone(), present: present() };
            events.push(NewEvent { is_quiet: true, ..event.into() });
        }
        if here.is_empty()
            && let Some(announced) = self.announced.take()
        {
            self.reported.clear();
            let event = DomainEvent::BypassEnded { daemon: daemon.clone() };
            events.push(NewEvent { is_quiet: announced == Announcement::Quiet, ..event.into() });
        }
        events
    }

    /// Returns the condition for the daemon's status, if such processes are present.
    pub(crate) fn condition(&self, desired: &Desired) -> Option<Condition> {
        if self.present.known().is_empty() {
            return None;
        }
        let remedy = match desired.compute_mode {
            Some(crate::domain::gpu::ComputeMode::ExclusiveProcess) => "end them",
            // There is no other compute mode there.
            _ if desired.gpus.iter().any(GpuUuid::is_mig) => {
                "end them, and start them with `mps-manager run`"
            }
            _ if self.present.known().values().any(|process| process.missing_pipe.is_some()) => {
                "end them and start them with `mps-manager run`, or if they are in a container, hand the tenant's directory to it (`mps-manager \
                 env TENANT --format` with docker, apptainer, cdi or what starts it), as the tenant's user or one who is added (`mps-manager \
                 daemon set NAME --user UID`), or set the daemon's compute_mode to exclusive_process, \
                 which refuses processes outside MPS"
            }
            _ => {
                "end them, start them with `mps-manager run`, or set the daemon's compute_mode to \
                 exclusive_process, which refuses processes outside MPS"
            }
        };
        Some(ConditionType::Bypass.problem(
            ConditionReason::ProcessOutsideMps,
            format!("no limits apply to {}: {remedy}", describe_bypasses(self.present.known().values(), 0)),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::GpuUuid;
    use crate::domain::event::{Details, EventType};

    fn name() -> DaemonName {
        DaemonName::parse("gpu0").expect("a name")
    }

    fn listed(pids: &[u32]) -> BTreeMap<Identity, Bypass> {
        let gpu = GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid");
        let bypass =
            |pid| Bypass { uid: Some(7), program: Some("train".into()), ..Bypass::of(pid, gpu.clone()) };
        pids.iter().map(|pid| (Identity { pid: *pid, start_time: 1 }, bypass(*pid))).collect()
    }

    /// Returns the types of the events that are written.
    fn kinds(events: &[NewEvent]) -> Vec<EventType> {
        events.iter().filter(|event| !event.is_quiet).map(|event| event.event.kind()).collect()
    }

    /// Returns the types of the quiet events, which only change the incident.
    fn quiet(events: &[NewEvent]) -> Vec<EventType> {
        events.iter().filter(|event| event.is_quiet).map(|event| event.event.kind()).collect()
    }

    #[test]
    fn a_bypass_appears_once_and_ends_once() {
        let mut bypasses = Bypasses::default();
        assert!(bypasses.observe(&name(), listed(&[]), 0).is_empty());
        let events = bypasses.observe(&name(), listed(&[11, 12]), 1_000);
        assert_eq!(kinds(&events), [EventType::BypassAppeared]);
        assert!(
            events[0].event.message().contains("process 11 of uid 7 (train) on GPU-514466a0"),
            "{}",
            events[0].event.message()
        );
        assert!(bypasses.observe(&name(), listed(&[11, 12]), 2_000).is_empty(), "the same ones");
        assert_eq!(
            quiet(&bypasses.observe(&name(), listed(&[12]), 3_000)),
            [EventType::BypassChanged],
            "one is left"
        );
        assert_eq!(kinds(&bypasses.observe(&name(), listed(&[]), 4_000)), [EventType::BypassEnded]);
        assert!(bypasses.observe(&name(), listed(&[]), 5_000).is_empty());
    }

    #[test]
    fn end_of_some_bypasses_is_reported_throttled() {
        let mut bypasses = Bypasses::default();
        bypasses.observe(&name(), listed(&[11, 12]), 0);
        let within = bypasses.observe(&name(), listed(&[12]), 59_999);
        assert_eq!(
            (kinds(&within), quiet(&within)),
            (vec![], vec![EventType::BypassChanged]),
            "the quiet minute"
        );
        let events = bypasses.observe(&name(), listed(&[12]), 60_000);
        assert_eq!(kinds(&events), [EventType::BypassChanged]);
        assert!(events[0].event.message().contains("1 is left: process 12"), "{}", events[0].event.message());
        assert!(bypasses.observe(&name(), listed(&[12]), 200_000).is_empty(), "once");
        // An event about appeared processes reports the end of others as well.
        let events = bypasses.observe(&name(), listed(&[13]), 300_000);
        assert_eq!(kinds(&events), [EventType::BypassAppeared]);
        assert!(bypasses.observe(&name(), listed(&[13]), 400_000).is_empty());
    }

    #[test]
    fn bypass_of_an_earlier_manager_ends() {
        let mut bypasses = Bypasses::reported(true);
        assert!(bypasses.follow(&name(), listed(&[11]), 0).is_empty(), "its clients are not known yet");
        assert_eq!(kinds(&bypasses.observe(&name(), listed(&[]), 1_000)), [EventType::BypassEnded]);
        let mut bypasses = Bypasses::reported(true);
        assert_eq!(kinds(&bypasses.observe(&name(), listed(&[11]), 0)), [EventType::BypassAppeared]);
    }

    #[test]
    fn short_bypasses_make_no_event_storm() {
        let mut bypasses = Bypasses::default();
        let mut events = Vec::new();
        for round in 0..600_u32 {
            events.extend(bypasses.observe(&name(), listed(&[100 + round]), i64::from(round) * 1_000));
            events.extend(bypasses.observe(&name(), listed(&[]), i64::from(round) * 1_000 + 500));
        }
        assert_eq!(kinds(&events).len(), 20, "two a minute for ten minutes");
        assert_eq!(quiet(&events).len(), 2 * 590, "the incident is open for each");
        // A process that came in a quiet minute is named after it.
        let within = bypasses.observe(&name(), listed(&[9]), 599_900);
        assert_eq!((kinds(&within), quiet(&within)), (vec![], vec![EventType::BypassAppeared]));
        let late = bypasses.observe(&name(), listed(&[9]), 700_000);
        assert_eq!(kinds(&late), [EventType::BypassAppeared]);
    }

    #[test]
    fn throttled_bypass_is_reported_after_it_ended() {
        let mut bypasses = Bypasses::default();
        bypasses.observe(&name(), listed(&[11]), 0);
        bypasses.observe(&name(), listed(&[]), 1_000);
        assert_eq!(quiet(&bypasses.observe(&name(), listed(&[12]), 8_000)), [EventType::BypassAppeared]);
        assert_eq!(quiet(&bypasses.observe(&name(), listed(&[]), 16_000)), [EventType::BypassEnded]);
        assert!(!bypasses.is_empty(), "it is still to be named");
        let events = bypasses.observe(&name(), listed(&[]), 60_000);
        assert_eq!(kinds(&events), [EventType::BypassAppeared], "its end was no news");
        assert!(
            events[0].event.message().contains("that has ended used")
                && events[0].event.message().contains("process 12 of uid 7"),
            "{}",
            events[0].event.message()
        );
        let shown = Details::Process { pid: 12, uid: Some(7) };
        assert_eq!(events[0].event.details(), Some(shown));
        assert!(bypasses.is_empty());
        assert!(bypasses.observe(&name(), listed(&[]), 200_000).is_empty());
    }

    #[test]
    fn bypass_flood_is_counted_in_bounded_memory() {
        let mut bypasses = Bypasses::default();
        bypasses.observe(&name(), listed(&[1]), 0);
        for pid in 2..1_002 {
            bypasses.observe(&name(), listed(&[pid]), 1_000);
        }
        assert_eq!((bypasses.unnamed.len(), bypasses.further), (UNNAMED, 1_000 - UNNAMED));
        let events = bypasses.observe(&name(), listed(&[]), 60_000);
        assert!(events[0].event.message().ends_with("and 996 more"), "{}", events[0].event.message());
    }

    #[test]
    fn bypass_outlives_its_daemon_until_process_ends() {
        let mut bypasses = Bypasses::default();
        bypasses.observe(&name(), listed(&[11, 12]), 0);
        // 13 may be a client that the dead daemon left behind.
        assert_eq!(
            quiet(&bypasses.follow(&name(), listed(&[11, 13]), 1_000)),
            [EventType::BypassChanged],
            "12 has ended"
        );
        assert!(!bypasses.is_empty());
        let events = bypasses.follow(&name(), listed(&[13]), 2_000);
        assert_eq!(kinds(&events), [EventType::BypassEnded]);
        assert!(events[0].event.message().contains("have ended"), "{}", events[0].event.message());
        assert!(bypasses.is_empty());
    }
}
