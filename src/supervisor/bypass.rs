//! Processes that use a GPU of a daemon outside MPS: no limit holds them. Pure.
//!
//! The driver's list of processes is the evidence. One event names those that appeared and one says that all are gone;
//! processes that come and go all the time make no more than two events a minute, and the condition always has all.

use std::collections::BTreeMap;

use crate::domain::daemon::Condition;
use crate::domain::event::{Cause, Details, EventType, NewEvent, Subject};
use crate::domain::plan::Desired;
use crate::domain::{DaemonName, GpuUuid};
use crate::host::Identity;

/// The most processes that a message names.
const NAMED: usize = 4;
/// The shortest time between two events about processes that appeared, in milliseconds.
const QUIET_MS: i64 = 60_000;

/// A process that uses a GPU outside MPS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bypass {
    /// The GPU.
    pub(super) gpu: GpuUuid,
    /// Its user.
    pub(super) uid: Option<u32>,
    /// Its program, without arguments.
    pub(super) program: Option<String>,
}

/// The processes that use the GPUs of one daemon outside MPS.
#[derive(Debug, Default)]
pub(super) struct Bypasses {
    present: BTreeMap<(u32, u64), Bypass>,
    /// Those that no event has named yet.
    unnamed: Vec<(u32, u64)>,
    /// When an event named some last.
    named_at: Option<i64>,
    /// Whether the last event says that there are some.
    announced: bool,
}

impl Bypasses {
    /// Takes what the driver lists now; gives what there is to say of it.
    pub(super) fn observe(
        &mut self,
        daemon: &DaemonName,
        now: BTreeMap<Identity, Bypass>,
        at: i64,
    ) -> Vec<NewEvent> {
        let now: BTreeMap<(u32, u64), Bypass> =
            now.into_iter().map(|(identity, bypass)| ((identity.pid, identity.start_time), bypass)).collect();
        self.unnamed.retain(|process| now.contains_key(process));
        self.unnamed.extend(now.keys().filter(|process| !self.present.contains_key(process)));
        self.present = now;
        let mut events = Vec::new();
        let quiet = self.named_at.is_some_and(|before| (before..before + QUIET_MS).contains(&at));
        if !self.unnamed.is_empty() && !quiet {
            let named = std::mem::take(&mut self.unnamed);
            events.push(self.appeared(daemon, &named));
            (self.named_at, self.announced) = (Some(at), true);
        }
        if self.present.is_empty() && std::mem::take(&mut self.announced) {
            let message = format!("no process uses a GPU of daemon {daemon} outside MPS any longer");
            events.push(NewEvent::new(EventType::BypassEnded, Subject::daemon(daemon), message));
        }
        events
    }

    fn appeared(&self, daemon: &DaemonName, named: &[(u32, u64)]) -> NewEvent {
        let first = named.first().and_then(|process| Some((process.0, self.present.get(process)?)));
        let message = format!(
            "{} a GPU of daemon {daemon} outside MPS: {}",
            if named.len() == 1 { "a process uses" } else { "processes use" },
            self.describe(named.iter())
        );
        let gpu = first.map(|(_, bypass)| bypass.gpu.clone());
        let subject = Subject { gpu, ..Subject::daemon(daemon) };
        let event = NewEvent::new(EventType::BypassAppeared, subject, message)
            .because(Cause::Outsider { command: None });
        match first {
            Some((pid, bypass)) => event.with(Details::Process { pid, uid: bypass.uid }),
            None => event,
        }
    }

    fn describe<'p>(&self, processes: impl ExactSizeIterator<Item = &'p (u32, u64)>) -> String {
        let more = processes.len().saturating_sub(NAMED);
        let mut named: Vec<String> = processes
            .take(NAMED)
            .filter_map(|process| {
                let Bypass { gpu, uid, program } = self.present.get(process)?;
                let uid = uid.map(|uid| format!(" of uid {uid}")).unwrap_or_default();
                let program = program.as_ref().map(|program| format!(" ({program})")).unwrap_or_default();
                Some(format!("process {}{uid}{program} on GPU {gpu}", process.0))
            })
            .collect();
        if more > 0 {
            named.push(format!("and {more} more"));
        }
        named.join(", ")
    }

    /// That there are some, for the daemon's status.
    pub(super) fn condition(&self, desired: &Desired) -> Option<Condition> {
        if self.present.is_empty() {
            return None;
        }
        let remedy = match desired.compute_mode {
            Some(crate::domain::gpu::ComputeMode::ExclusiveProcess) => "end them",
            _ => {
                "end them, start them with `mps-manager run`, or set the daemon's compute_mode to \
                 exclusive_process, which refuses processes outside MPS"
            }
        };
        Some(Condition::new(
            "Bypass",
            true,
            "ProcessOutsideMps",
            format!("no limit holds {}: {remedy}", self.describe(self.present.keys())),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> DaemonName {
        DaemonName::parse("gpu0").expect("a name")
    }

    fn listed(pids: &[u32]) -> BTreeMap<Identity, Bypass> {
        let gpu = GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid");
        let bypass = Bypass { gpu, uid: Some(7), program: Some("train".into()) };
        pids.iter().map(|pid| (Identity { pid: *pid, start_time: 1 }, bypass.clone())).collect()
    }

    fn kinds(events: &[NewEvent]) -> Vec<EventType> {
        events.iter().map(|event| event.kind).collect()
    }

    #[test]
    fn a_bypass_appears_once_and_ends_once() {
        let mut bypasses = Bypasses::default();
        assert!(bypasses.observe(&name(), listed(&[]), 0).is_empty());
        let events = bypasses.observe(&name(), listed(&[11, 12]), 1_000);
        assert_eq!(kinds(&events), [EventType::BypassAppeared]);
        assert!(
            events[0].message.contains("process 11 of uid 7 (train) on GPU GPU-514466a0"),
            "{}",
            events[0].message
        );
        assert!(bypasses.observe(&name(), listed(&[11, 12]), 2_000).is_empty(), "the same ones");
        assert!(bypasses.observe(&name(), listed(&[12]), 3_000).is_empty(), "one is left");
        assert_eq!(kinds(&bypasses.observe(&name(), listed(&[]), 4_000)), [EventType::BypassEnded]);
        assert!(bypasses.observe(&name(), listed(&[]), 5_000).is_empty());
    }

    #[test]
    fn short_bypasses_make_no_event_storm() {
        let mut bypasses = Bypasses::default();
        let mut events = Vec::new();
        for round in 0..600_u32 {
            events.extend(bypasses.observe(&name(), listed(&[100 + round]), i64::from(round) * 1_000));
            events.extend(bypasses.observe(&name(), listed(&[]), i64::from(round) * 1_000 + 500));
        }
        assert_eq!(events.len(), 20, "two a minute for ten minutes");
        // One that came in a quiet minute is named after it.
        assert!(bypasses.observe(&name(), listed(&[9]), 599_900).is_empty());
        let late = bypasses.observe(&name(), listed(&[9]), 700_000);
        assert_eq!(kinds(&late), [EventType::BypassAppeared]);
    }
}
