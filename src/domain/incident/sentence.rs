//! Describes an incident in one sentence for people.

use std::collections::BTreeSet;

use super::{Incident, IncidentEnd, IncidentKind, IncidentTopic, Suspect};
use crate::TenantName;
use crate::count::{counted, enumerated};

/// Most names in a sentence; further ones are counted.
const NAMED: usize = 3;

impl Incident {
    /// Describes the incident in one sentence, with the clients that lost their work and the recovery.
    pub fn summary(&self) -> String {
        let (daemon, over) = (self.daemon.as_str(), self.over());
        let board = self.detail.as_deref().unwrap_or("a GPU");
        let head = match self.kind {
            IncidentKind::GpuFault if self.is_hint => {
                format!("server.log of {daemon} reports a fatal GPU error, which nothing else confirms")
            }
            IncidentKind::GpuFault => match over {
                Some(after) => format!(
                    "{daemon} had a fatal GPU error{} and accepted clients again {after}",
                    self.suspicion_words()
                ),
                None => format!(
                    "{daemon} has a fatal GPU error{} and accepts no new clients",
                    self.suspicion_words()
                ),
            },
            IncidentKind::ServerDied => match over {
                Some(after) => format!("{daemon}'s server died and was replaced {after}"),
                None => format!("{daemon}'s server died and is not replaced yet"),
            },
            IncidentKind::DaemonDied => self.daemon_died(over),
            IncidentKind::DaemonWedged => match over {
                Some(after) => format!("{daemon} stopped answering and recovered {after}"),
                None => format!("{daemon} does not answer"),
            },
            IncidentKind::CrashLoop => match over {
                Some(after) => {
                    format!("{daemon}'s control daemon crashed again and again, and ran again {after}")
                }
                None => format!("{daemon}'s control daemon keeps crashing"),
            },
            IncidentKind::NoServer => match over {
                Some(after) => format!("{daemon} had no server that stayed, and had one again {after}"),
                None => format!("{daemon} has no server"),
            },
            IncidentKind::Drift => self.drift(over.is_some()),
            IncidentKind::LayoutIdsDiffer => match over {
                Some(_) => format!(
                    "{daemon}'s layout gave other partition IDs than on record, and was applied later"
                ),
                None => {
                    format!("{daemon}'s layout gives other partition IDs than on record and is not in force")
                }
            },
            IncidentKind::LayoutDegraded => match over {
                Some(_) => format!("some partitions of {daemon} were not as before, and are again"),
                None => format!("some partitions of {daemon} are not as they were"),
            },
            IncidentKind::Bypass => self.bypass(over.is_some()),
            IncidentKind::SocketExposed => {
                let is = if over.is_some() { "was" } else { "is" };
                format!("{daemon}'s own directory {is} mounted in another mount namespace")
            }
            IncidentKind::ForeignUser => self.foreign_user(over.is_some()),
            IncidentKind::GpuShared => self.shared(over.is_some()),
            IncidentKind::Breach => {
                let who = self.suspects.first();
                let who = who.map_or_else(|| "a client".to_owned(), |suspect| self.named(suspect));
                match over {
                    Some(_) => format!("{who} held more memory on {daemon} than its limit allows"),
                    None => format!("{who} holds more memory on {daemon} than its limit allows"),
                }
            }
            IncidentKind::ClientRefused => {
                let times = if self.occurrences > 1 { self.times() } else { String::new() };
                format!("MPS refused a client{} of {daemon}{times}", self.of_tenants(&self.suspects))
            }
            IncidentKind::UnknownOutcome => match over {
                Some(_) => format!("a command to {daemon} was not answered; its client is gone now"),
                None => {
                    format!("a command to {daemon} was not answered, so it may or may not have taken effect")
                }
            },
            IncidentKind::GpuMissing => match over {
                Some(after) => format!("{board} of {daemon} was missing and came back {after}"),
                None => format!("{board} of {daemon} is no longer listed by the driver"),
            },
        };
        let head = match self.ended_by {
            Some(IncidentEnd::Stopped) => format!("{} until {daemon} was stopped", self.open_head()),
            Some(IncidentEnd::Replaced) => {
                format!("{} until {daemon} was changed or deleted", self.open_head())
            }
            Some(IncidentEnd::Recovered) | None => head,
        };
        let lost = self.lost_work();
        let detail = self.detail.as_ref().filter(|_| !self.kind.loses_work());
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        format!("{head}{detail}{lost}")
    }

    /// Describes a change by another program, and the present state.
    fn drift(&self, is_over: bool) -> String {
        let (what, is) = match self.topic {
            IncidentTopic::Layout => ("partitions", "are"),
            IncidentTopic::Gpu { .. } => ("a compute mode", "is"),
            _ => ("settings", "are"),
        };
        let now = if is_over { format!("which {is} restored") } else { "which still differ".to_owned() };
        format!("another program changed {what} of {}{}, {now}", self.daemon, self.times())
    }

    /// Describes the processes of users who are no tenant's at the daemon, by their number.
    fn foreign_user(&self, is_over: bool) -> String {
        let present = self.suspects.iter().filter(|suspect| is_over || !suspect.has_ended).count();
        let is = match (is_over, present) {
            (true, 1) => "was",
            (true, _) => "were",
            (false, 1) => "is",
            (false, _) => "are",
        };
        format!("{} of a user who is no tenant's {is} at {}", counted(present, "process"), self.daemon)
    }

    /// Describes another control daemon on a GPU of the daemon, with the tenants that its environment names.
    fn shared(&self, is_over: bool) -> String {
        let is = if is_over { "was" } else { "is" };
        let present = self.suspects.iter().filter(|suspect| is_over || !suspect.has_ended);
        let tenants = self.listed(present.filter_map(|suspect| suspect.tenant.as_ref()));
        let named = tenants.map(|names| format!(", with tenant {names} in its environment"));
        format!(
            "a GPU of {} {is} also served by a control daemon that is not this manager's{}",
            self.daemon,
            named.unwrap_or_default()
        )
    }

    /// Describes the processes that use a GPU outside MPS, and those that have ended.
    fn bypass(&self, is_over: bool) -> String {
        let daemon = &self.daemon;
        let present: Vec<&Suspect> = self.suspects.iter().filter(|one| !one.has_ended).collect();
        if is_over || present.is_empty() {
            let all: Vec<&Suspect> = self.suspects.iter().collect();
            return format!("{} used a GPU of {daemon} outside MPS", self.counted(&all));
        }
        let who = self.counted(&present);
        let s = if present.len() == 1 { "s" } else { "" };
        let gone = match self.suspects.len() - present.len() {
            0 => String::new(),
            1 => "; 1 more has ended".to_owned(),
            more => format!("; {more} more have ended"),
        };
        format!("{who} use{s} a GPU of {daemon} outside MPS{gone}")
    }

    /// Describes the fault in the past, without its end.
    fn open_head(&self) -> String {
        let Self { kind, daemon, .. } = self;
        let meaning = match kind {
            IncidentKind::GpuFault => "had a fatal GPU error",
            IncidentKind::ServerDied => "had no server after a crash",
            IncidentKind::DaemonDied => "was down after a crash",
            IncidentKind::DaemonWedged => "did not answer",
            IncidentKind::CrashLoop => "kept crashing",
            IncidentKind::NoServer => "had no server",
            IncidentKind::Drift => "had been changed by another program",
            IncidentKind::LayoutIdsDiffer => "had other partition IDs than on record",
            IncidentKind::LayoutDegraded => "had partitions that were not as before",
            IncidentKind::Bypass => "had processes outside MPS on its GPUs",
            IncidentKind::SocketExposed => "had its own directory mounted in another mount namespace",
            IncidentKind::ForeignUser => "had a process of a user who is no tenant's",
            IncidentKind::GpuShared => "had a GPU that another control daemon served too",
            IncidentKind::Breach => "had a client above its memory limit",
            IncidentKind::ClientRefused => "refused clients",
            IncidentKind::UnknownOutcome => "had not answered a command",
            IncidentKind::GpuMissing => "lacked a GPU",
        };
        format!("{daemon} {meaning}")
    }

    /// Returns the words for the time to recovery once the incident is over; empty where there is no time to measure.
    fn over(&self) -> Option<String> {
        (!self.is_open()).then(|| self.time_to_recovery_ms().map(recovery_words).unwrap_or_default())
    }

    /// Describes the end of a control daemon, and its return.
    fn daemon_died(&self, over: Option<String>) -> String {
        let (daemon, ended, times) = (&self.daemon, self.end_words(), self.times());
        match over {
            Some(after) => format!("{daemon}'s control daemon {ended}{times} and was restarted {after}"),
            None => format!("{daemon}'s control daemon {ended}{times} and is not back yet"),
        }
    }

    /// Returns the words for the end of a control daemon.
    fn end_words(&self) -> &'static str {
        if self.is_quit_by_others() { "was told to quit by another program" } else { "died" }
    }

    fn times(&self) -> String {
        match self.occurrences {
            0 | 1 => String::new(),
            2 => " twice".to_owned(),
            more => format!(" {more} times"),
        }
    }

    /// Names the suspect, or the number of suspects, where the evidence suffices.
    fn suspicion_words(&self) -> String {
        match self.suspected().as_slice() {
            [] => String::new(),
            [one] => format!(" (suspected: {})", self.named(one)),
            several => format!(" (suspected: {})", counted(several.len(), "process")),
        }
    }

    /// Describes the clients that lost their work and those that kept it.
    fn lost_work(&self) -> String {
        if !self.kind.loses_work() {
            return String::new();
        }
        if self.affected.is_empty() {
            return if self.awaits_clients {
                "; which clients lost their work is not known".to_owned()
            } else {
                "; no client lost its work".to_owned()
            };
        }
        let of = self.of(self.affected.iter().filter_map(|client| client.tenant.as_ref()));
        let clients = counted(self.affected.len(), "client");
        let their = if self.affected.len() == 1 { "its" } else { "their" };
        let doubt = if self.is_uncertain { ", as far as is known" } else { "" };
        let kept = match self.unaffected {
            Some(0) | None => String::new(),
            Some(1) => "; 1 other client kept its work".to_owned(),
            Some(more) => format!("; {more} other clients kept their work"),
        };
        format!("; {clients}{of} lost {their} work{doubt}{kept}")
    }

    /// Names a process with its tenant.
    fn named(&self, suspect: &Suspect) -> String {
        format!("process {}{}", suspect.pid, self.of(suspect.tenant.as_ref()))
    }

    /// Counts processes with their tenants: `2 processes of demo`, `3 processes, 1 of them of demo,`.
    fn counted(&self, processes: &[&Suspect]) -> String {
        let who = counted(processes.len(), "process");
        let of = self.of_tenants(processes.iter().copied());
        match processes.iter().filter(|process| process.tenant.is_some()).count() {
            theirs if theirs == processes.len() || theirs == 0 => format!("{who}{of}"),
            theirs => format!("{who}, {theirs} of them{of},"),
        }
    }

    fn of_tenants<'s>(&self, suspects: impl IntoIterator<Item = &'s Suspect>) -> String {
        self.of(suspects.into_iter().filter_map(|suspect| suspect.tenant.as_ref()))
    }

    /// Names the owners, as ` of demo and kube-81732caa7a79 (pod prod/web-0/app)`.
    fn of<'t>(&self, tenants: impl IntoIterator<Item = &'t TenantName>) -> String {
        self.listed(tenants).map(|names| format!(" of {names}")).unwrap_or_default()
    }

    /// Lists tenants with their workloads; `None` for no tenants.
    fn listed<'t>(&self, tenants: impl IntoIterator<Item = &'t TenantName>) -> Option<String> {
        let tenants: BTreeSet<&TenantName> = tenants.into_iter().collect();
        let shown = |tenant: &TenantName| match self.workloads.get(tenant) {
            Some(workload) => format!("{tenant} ({workload})"),
            None => tenant.to_string(),
        };
        let names: Vec<String> = tenants.into_iter().map(shown).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| listed(&names))
    }
}

/// Lists names as `demo, inference and nightly`; of many, it names the first and counts the others.
fn listed(names: &[&str]) -> String {
    // A single name says more than "1 more tenant".
    if names.len() <= NAMED + 1 {
        return enumerated(names);
    }
    let (first, others) = names.split_at(NAMED);
    format!("{} and {}", first.join(", "), counted(others.len(), "more tenant"))
}

/// Describes the time that a recovery took: `at once`, `after 0.9 s`.
pub fn recovery_words(ms: i64) -> String {
    if ms < 100 { "at once".to_owned() } else { format!("after {}", duration_words(ms)) }
}

/// Describes a duration for people: `0.9 s`, `2 min`, `3 h`, `4 days`.
pub(super) fn duration_words(ms: i64) -> String {
    let tenths = (ms + 50) / 100;
    let seconds = (ms + 500) / 1000;
    match seconds {
        _ if tenths < 100 => format!("{}.{} s", tenths / 10, tenths % 10),
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_say_them() {
        let cases = [
            (390, "0.4 s"),
            (900, "0.9 s"),
            (2_149, "2.1 s"),
            (9_960, "10 s"),
            (61_000, "61 s"),
            (200_000, "3 min"),
            (7_200_000, "2 h"),
        ];
        for (ms, words) in cases {
            assert_eq!(recovery_words(ms), format!("after {words}"));
        }
        assert_eq!(recovery_words(40), "at once");
    }

    #[test]
    fn many_tenants_are_counted_as_tenants() {
        let names = ["batch", "br", "demo", "web", "x"];
        assert_eq!(listed(&names[..4]), "batch, br, demo and web");
        assert_eq!(listed(&names), "batch, br, demo and 2 more tenants");
        assert_eq!(listed(&names[..3]), "batch, br and demo");
    }
}
