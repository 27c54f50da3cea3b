//! Describes an incident in one sentence for people.

use std::collections::BTreeSet;

use super::{Incident, IncidentEnd, IncidentKind, IncidentTopic, Suspect};
use crate::TenantName;
use crate::count::{counted, enumerated};

/// Most names in a sentence; further ones are counted.
const NAMED: usize = 3;

/// The parts of an incident's sentence that vary, of which each kind uses some.
pub(super) struct SentenceWords<'w> {
    pub(super) daemon: &'w str,
    /// Time to recovery, as `after 0.9 s`; empty where there is none to measure.
    pub(super) after: String,
    /// Clients that lost their work by a GPU fault.
    pub(super) lost: String,
    /// Processes that are suspected, as a sentence behind another.
    pub(super) suspected: String,
    /// Processes that the incident is about, in the words of its kind.
    pub(super) who: String,
    /// Processes that have ended, beside those.
    pub(super) gone: String,
    /// End of a control daemon.
    pub(super) ended: &'static str,
    /// Finding, or the GPU that is missing.
    pub(super) board: &'w str,
    /// Thing that another program changed.
    pub(super) changed: &'static str,
    pub(super) times: String,
    pub(super) are: &'static str,
    pub(super) were: &'static str,
    /// Ending of a verb.
    pub(super) s: &'static str,
}

impl Incident {
    /// Describes the incident in one sentence, with the clients that lost their work and the recovery.
    pub fn summary(&self) -> String {
        let Self { kind, daemon, .. } = self;
        let until = |end: &str| format!("{daemon} {} until {daemon} was {end}", kind.past());
        let head = match self.ended_by {
            Some(IncidentEnd::Replaced)
                if *kind == IncidentKind::Drift && self.topic == IncidentTopic::Layout =>
            {
                format!(
                    "Another program changed partitions of {daemon}{}, until {daemon} got another layout or was deleted",
                    self.times()
                )
            }
            Some(IncidentEnd::Stopped) => until("stopped"),
            Some(IncidentEnd::Replaced) => until("changed, restored or deleted"),
            Some(IncidentEnd::Recovered) | None if self.is_hint => {
                format!("server.log of {daemon} reports a fatal GPU error, which nothing else confirms")
            }
            Some(IncidentEnd::Recovered) | None => self.head(),
        };
        let detail = self.detail.as_ref().filter(|_| !self.kind.loses_work());
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        // The sentence of a fault begins with what was lost.
        let is_said = self.kind == IncidentKind::GpuFault && head.contains(": ");
        let lost = if is_said { String::new() } else { self.lost_work() };
        format!("{head}{detail}{lost}")
    }

    /// Describes the fault and its end, if it has recovered.
    fn head(&self) -> String {
        let is_over = !self.is_open();
        let present: Vec<&Suspect> =
            self.suspects.iter().filter(|suspect| is_over || !suspect.has_ended).collect();
        // Of a bypass those are named that are left, and at its end all.
        let is_past = is_over || (self.kind == IncidentKind::Bypass && present.is_empty());
        let named = if is_past { self.suspects.iter().collect() } else { present };
        let (changed, is_one) = match (self.kind, &self.topic) {
            (IncidentKind::Drift, IncidentTopic::Layout) => ("partitions", false),
            (IncidentKind::Drift, IncidentTopic::Gpu { .. }) => ("a compute mode", true),
            (IncidentKind::Drift, _) => ("settings", false),
            _ => ("", named.len() == 1),
        };
        let one_of = |one, several| if is_one { one } else { several };
        let gone = match self.suspects.len() - named.len() {
            0 => String::new(),
            1 => "; 1 more has ended".to_owned(),
            more => format!("; {more} more have ended"),
        };
        let words = SentenceWords {
            daemon: self.daemon.as_str(),
            after: self.time_to_recovery_ms().map(recovery_words).unwrap_or_default(),
            lost: self.lost_work().trim_start_matches("; ").to_owned(),
            suspected: self.suspicion_words(),
            who: self.who(&named),
            gone,
            ended: if self.is_quit_by_others() { "was told to quit by another program" } else { "died" },
            board: self.detail.as_deref().unwrap_or("a GPU"),
            changed,
            times: self.times(),
            are: one_of("is", "are"),
            were: one_of("was", "were"),
            s: one_of("s", ""),
        };
        self.kind.sentence(words, is_past)
    }

    /// Describes processes that the incident is about, in the words of its kind.
    fn who(&self, processes: &[&Suspect]) -> String {
        let tenants = || processes.iter().filter_map(|process| process.tenant.as_ref());
        match self.kind {
            IncidentKind::Breach => {
                processes.first().map_or_else(|| "a client".to_owned(), |client| self.named(client))
            }
            IncidentKind::ClientRefused => self.of(tenants()),
            IncidentKind::ForeignUser => counted(processes.len(), "process"),
            IncidentKind::GpuShared => {
                let named = self.listed(tenants());
                named.map(|names| format!(", with tenant {names} in its environment")).unwrap_or_default()
            }
            _ => {
                let (who, of) = (counted(processes.len(), "process"), self.of(tenants()));
                match tenants().count() {
                    theirs if theirs == processes.len() || theirs == 0 => format!("{who}{of}"),
                    theirs => format!("{who}, {theirs} of them{of},"),
                }
            }
        }
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
            [one] => format!(". Suspected: {}", self.named(one)),
            several => format!(". Suspected: {}", counted(several.len(), "process")),
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
