//! Evidence about the clients of a GPU fault: each piece with its worth.
//!
//! For a memory fault MPS and the kernel name the client that connected first, or seldom the second, whoever faulted (88 and 6 of 94 on
//! H200s). So such a name accuses nobody here. The rest is circumstance, with two exceptions: a server writes of some culprits that their
//! worker is in reset, and has not been seen to write it of anybody else; and where only one client was on the GPU, no other can have
//! faulted.

use serde::{Deserialize, Serialize};

use super::sentence::duration_words;
use super::{Incident, IncidentKind, Suspect};
use crate::count::counted;
use crate::event::AffectedClient;

/// Worth of a piece of evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceWorth {
    /// It does not show which client faulted.
    Nothing,
    /// It fits this client, and others too.
    Hint,
    /// It has not been seen of a client that did not fault.
    Suspected,
}

/// The kinds of evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceKind {
    /// The server wrote that its worker is in reset as it exited.
    WorkerInReset,
    /// No other client shared the GPU.
    OnlyClient,
    /// Its context ended at the very moment of the fault.
    EndedWithIt,
    /// Presence of the tenant's clients in the last faults of the GPU, and at times without a fault.
    Presence,
    /// It connected after all others.
    ConnectedLast,
    /// server.log names it.
    NamedByMps,
}

/// A piece of evidence about a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Evidence {
    /// Its kind.
    pub kind: EvidenceKind,
    /// Worth of the evidence.
    pub worth: EvidenceWorth,
    /// The evidence in words.
    #[schema(example = "connected last, 1.2 s before the fault")]
    pub words: String,
}

impl std::fmt::Display for Evidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let worth = match self.worth {
            EvidenceWorth::Suspected => "suspected",
            EvidenceWorth::Hint => "hint",
            EvidenceWorth::Nothing => "no evidence",
        };
        write!(f, "{worth}: {}", self.words)
    }
}

/// Presence of a tenant's clients on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantPresence {
    /// Number of the examined faults in which a client of the tenant was there.
    pub faults: u32,
    /// Number of faults that were examined.
    pub of_faults: u32,
    /// Number of the examined moments before the fault at which a client of the tenant was there.
    pub moments: u32,
    /// Number of moments that were examined.
    pub of_moments: u32,
}

/// Fewest moments without a fault that are evidence: a minute of those that are recorded.
const FEWEST_MOMENTS: u32 = 12;

impl TenantPresence {
    fn share_without_fault(self) -> Option<f64> {
        (self.of_moments >= FEWEST_MOMENTS).then(|| f64::from(self.moments) / f64::from(self.of_moments))
    }

    /// Returns the share of faults minus the share of moments without a fault at which the tenant was there.
    fn weight(self) -> f64 {
        let at_faults =
            if self.of_faults < 2 { 0.0 } else { f64::from(self.faults) / f64::from(self.of_faults) };
        at_faults - self.share_without_fault().unwrap_or(0.0)
    }

    fn evidence(self) -> Option<Evidence> {
        if self.of_faults < 2 {
            return None;
        }
        let at_faults = format!(
            "its tenant was there in {} of this GPU's last {}",
            self.faults,
            counted(self.of_faults, "fault")
        );
        let words = match self.share_without_fault() {
            Some(share) => format!("{at_faults}, and {:.0} % of the time before", 100.0 * share),
            None => at_faults,
        };
        Some(Evidence { kind: EvidenceKind::Presence, worth: EvidenceWorth::Hint, words })
    }
}

/// A client that lost its work, with the evidence about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RankedClient {
    /// The client.
    #[serde(flatten)]
    pub client: AffectedClient,
    /// The evidence that it caused the incident, the weightiest first; empty for incidents that are no GPU faults.
    pub evidence: Vec<Evidence>,
}

impl RankedClient {
    /// Returns the client's age when it lost its work, where it is known, as words.
    pub fn age_at(&self, loss: i64) -> Option<String> {
        self.client.started_at.map(|at| duration_words((loss - at).max(0)))
    }
}

impl Incident {
    /// Returns the clients that lost their work. In a GPU fault each comes with its evidence, and those with the weightiest evidence come
    /// first.
    pub fn ranked(&self, presence: impl Fn(&AffectedClient) -> Option<TenantPresence>) -> Vec<RankedClient> {
        let mut ranked: Vec<(f64, RankedClient)> = self
            .affected
            .iter()
            .map(|client| {
                let presence = presence(client);
                let evidence = self.evidence(client, presence);
                (
                    presence.map_or(0.0, TenantPresence::weight),
                    RankedClient { client: client.clone(), evidence },
                )
            })
            .collect();
        if self.kind == IncidentKind::GpuFault {
            let worth = |ranked: &RankedClient| ranked.evidence.first().map(|evidence| evidence.worth);
            let has = |ranked: &RankedClient, kind| ranked.evidence.iter().any(|one| one.kind == kind);
            let ended = |ranked: &RankedClient| has(ranked, EvidenceKind::EndedWithIt);
            let is_last = |ranked: &RankedClient| has(ranked, EvidenceKind::ConnectedLast);
            ranked.sort_by(|(one_weight, one), (other_weight, other)| {
                let suspected = |ranked| worth(ranked) == Some(EvidenceWorth::Suspected);
                (suspected(other).cmp(&suspected(one)))
                    .then(ended(other).cmp(&ended(one)))
                    .then(other_weight.total_cmp(one_weight))
                    .then(is_last(other).cmp(&is_last(one)))
            });
        }
        ranked.into_iter().map(|(_, ranked)| ranked).collect()
    }

    /// Returns the processes suspected of having caused a GPU fault, or those that another incident is about.
    pub fn suspected(&self) -> Vec<Suspect> {
        if self.kind != IncidentKind::GpuFault {
            return self.suspects.clone();
        }
        let suspected = self.affected.iter().filter(|client| self.suspicion(client).is_some());
        let suspect = |client: &AffectedClient| Suspect {
            pid: client.pid,
            client: client.client,
            tenant: client.tenant.clone(),
            program: client.program.clone(),
            has_ended: false,
        };
        suspected.map(suspect).collect()
    }

    /// Returns the evidence by which a client is suspected, if there is any.
    fn suspicion(&self, client: &AffectedClient) -> Option<Evidence> {
        let report = self.fault.as_ref()?;
        let suspected =
            |kind, words: &str| Evidence { kind, worth: EvidenceWorth::Suspected, words: words.to_owned() };
        if client.worker_in_reset {
            let words = "its worker was in reset as it exited, which has not been seen of a client that did not fault";
            return Some(suspected(EvidenceKind::WorkerInReset, words));
        }
        let is_alone =
            self.affected.len() == 1 && !self.is_uncertain && !self.awaits_clients && !self.is_hint;
        let is_of_hardware = report.gpu_errors.iter().any(crate::fault::GpuError::is_hardware);
        (is_alone && !is_of_hardware)
            .then(|| suspected(EvidenceKind::OnlyClient, "no other client shared the GPU with it"))
    }

    fn evidence(&self, client: &AffectedClient, presence: Option<TenantPresence>) -> Vec<Evidence> {
        let Some(report) = self.fault.as_ref().filter(|_| self.kind == IncidentKind::GpuFault) else {
            return Vec::new();
        };
        let last = || {
            let connected: Option<Vec<i64>> = self.affected.iter().map(|one| one.connected_at).collect();
            let latest = connected?.into_iter().max()?;
            let at = client.connected_at.filter(|at| *at == latest && self.affected.len() > 1)?;
            #[allow(clippy::cast_precision_loss, reason = "seconds for people")]
            let before = (self.opened_at - at).max(0) as f64 / 1000.0;
            let words = format!("connected last, {before:.1} s before the fault");
            Some(Evidence { kind: EvidenceKind::ConnectedLast, worth: EvidenceWorth::Hint, words })
        };
        let named = report.named_by_mps.contains(&client.pid).then(|| Evidence {
            kind: EvidenceKind::NamedByMps,
            worth: EvidenceWorth::Nothing,
            words: "server.log names it, as it names one of the first two to connect, whoever faulted"
                .to_owned(),
        });
        let ended = client.ended_with_it.then(|| Evidence {
            kind: EvidenceKind::EndedWithIt,
            worth: EvidenceWorth::Hint,
            words: "its context ended in the moment of the fault, as that of the culprit of a misaligned access does".to_owned(),
        });
        let pieces =
            [self.suspicion(client), ended, presence.and_then(TenantPresence::evidence), last(), named];
        pieces.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::daemon;
    use super::super::tests::faults::fault_incident;
    use super::*;
    use crate::fault::{GpuError, GpuFaultReport};

    fn pids(ranked: &[RankedClient]) -> Vec<u32> {
        ranked.iter().map(|ranked| ranked.client.pid).collect()
    }

    fn kinds(ranked: &RankedClient) -> Vec<EvidenceKind> {
        ranked.evidence.iter().map(|evidence| evidence.kind).collect()
    }

    #[test]
    fn mark_suspects_and_a_name_does_not() {
        let mut incident = fault_incident(&[(2, Some(1_000)), (3, Some(2_000)), (4, Some(3_000))]);
        incident.fault = Some(GpuFaultReport { named_by_mps: vec![2], ..GpuFaultReport::default() });
        let ranked = incident.ranked(|_| None);
        assert_eq!(pids(&ranked), [4, 2, 3]);
        assert_eq!(
            (kinds(&ranked[0]), kinds(&ranked[1])),
            (vec![EvidenceKind::ConnectedLast], vec![EvidenceKind::NamedByMps])
        );
        assert_eq!(ranked[0].evidence[0].words, "connected last, 7.0 s before the fault");
        assert!(incident.suspected().is_empty() && !incident.summary().contains("Suspected"));
        incident.affected[1].worker_in_reset = true;
        let ranked = incident.ranked(|_| None);
        assert_eq!(pids(&ranked), [3, 4, 2]);
        assert_eq!(incident.suspected().iter().map(|one| one.pid).collect::<Vec<_>>(), [3]);
        let summary = incident.summary();
        assert!(
            summary.ends_with(". Suspected: process 3 of web. No new client is accepted yet"),
            "{summary}"
        );
        assert_eq!(incident.daemon, daemon("gpu0"));
    }

    #[test]
    fn presence_outweighs_who_connected_last() {
        let incident = fault_incident(&[(2, Some(1_000)), (3, Some(2_000))]);
        let presence = |client: &AffectedClient| {
            let (faults, moments) = if client.pid == 2 { (4, 6) } else { (4, 60) };
            Some(TenantPresence { faults, of_faults: 4, moments, of_moments: 60 })
        };
        let ranked = incident.ranked(presence);
        assert_eq!(pids(&ranked), [2, 3]);
        let words = |ranked: &RankedClient| ranked.evidence[0].words.clone();
        assert_eq!(
            words(&ranked[0]),
            "its tenant was there in 4 of this GPU's last 4 faults, and 10 % of the time before"
        );
        let first =
            |_: &AffectedClient| Some(TenantPresence { faults: 1, of_faults: 1, moments: 1, of_moments: 2 });
        assert_eq!(
            kinds(&incident.ranked(first)[0]),
            [EvidenceKind::ConnectedLast],
            "one fault says nothing"
        );
    }

    #[test]
    fn only_client_is_suspected_unless_hardware_failed() {
        let mut incident = fault_incident(&[(2, None)]);
        assert_eq!(kinds(&incident.ranked(|_| None)[0]), [EvidenceKind::OnlyClient]);
        incident.is_uncertain = true;
        assert_eq!(incident.suspected(), []);
        incident.is_uncertain = false;
        let error = GpuError::parse("95, Uncontained ECC error").expect("an error");
        incident.fault = Some(GpuFaultReport { gpu_errors: vec![error], ..GpuFaultReport::default() });
        assert_eq!(incident.suspected(), []);
    }
}
