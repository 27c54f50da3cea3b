//! Redaction for users bound to a tenant: the one place that decides what they see.
//!
//! Full texts are for host users: they name processes, users, command lines and other tenants. A tenant user sees an error
//! about its own request, an error marked as visible ([`ServiceError::visible_to_tenants`]), or the text written for it
//! ([`ServiceError::for_audience`]); any other error becomes a generic one. Events and operations are let through by type. So
//! the default is redacted.

use crate::domain::access::Actor;
use crate::domain::condition::ConditionReason;
use crate::domain::event::{AffectedClient, Details, Event, EventCause, EventVisibility};
use crate::domain::incident::{Acknowledgement, Incident, IncidentKind};
use crate::domain::occupancy::Lacking;
use crate::domain::operation::{Operation, Step};
use crate::domain::verification::{Verification, VerificationBlocker, VerificationResult};
use crate::domain::{DaemonName, TenantName};
use crate::operations::TERMINATION_OUTCOMES;
use crate::service::{KEEPS_TURN, ServiceError};
use crate::supervisor::FreshError;

const BLOCKED: &str =
    "a condition on the host prevents this: ask the host's operator, who can see the details";
const UNAVAILABLE: &str =
    "something this needs on the host is unavailable: try again, or ask the host's operator";
const TIMED_OUT: &str = "something on the host did not answer in time: try again, or ask the host's operator";
const READ_ONLY: &str = "the host is read-only at the moment: ask the host's operator";
const FAULT: &str = "an internal error of the manager: ask the host's operator, whose log has the details";
const FAILED: &str =
    "it failed because of a condition on the host: ask the host's operator, who can see the details";

/// Two texts of the same message: the full one, and one for users bound to a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::service) struct AudienceText {
    host: String,
    tenant: String,
}

/// Text for users bound to a tenant in place of one that names others or the host, by its reason.
#[derive(Debug, thiserror::Error)]
pub(in crate::service) enum Redacted<'a> {
    #[error("for something else")]
    AdmittedBefore,
    #[error("the tenant's GPU takes no more clients at the moment")]
    GpuFull,
    #[error("its layout is not in force: ask the host's operator")]
    LayoutNotInForce,
    #[error(
        "another tenant of the daemon has no memory limit, so the server has none, and {0}; ask the host's operator"
    )]
    NeighbourWithoutLimit(&'a str),
    #[error("tenant {0} cannot be given its socket ({1}): ask the host's operator")]
    NoSocket(&'a TenantName, ConditionReason),
    #[error("daemon {0} {1} ({text}): try again, or ask the host's operator", text = .2.text_for_tenants())]
    NotApplied(&'a DaemonName, &'a str, ConditionReason),
    #[error("daemon {0} is not ready ({text}): ask the host's operator", text = .1.text_for_tenants())]
    NotReady(&'a DaemonName, ConditionReason),
    #[error("a process of another tenant is in it. Ask the host's operator")]
    PartitionTaken,
    #[error("its socket cannot be handed out ({0}): ask the host's operator")]
    SocketNotHandedOut(ConditionReason),
    #[error("the daemon could not be read{word}: try again, or ask the host's operator", word = in_brackets(*.0))]
    DaemonUnread(Option<ConditionReason>),
    #[error("they cannot be read now{word}: try again, or ask the host's operator", word = in_brackets(*.0))]
    PartitionsUnread(Option<ConditionReason>),
}

fn in_brackets(reason: Option<ConditionReason>) -> String {
    reason.map(|reason| format!(" ({reason})")).unwrap_or_default()
}

impl AudienceText {
    /// A text for each audience.
    pub(in crate::service) fn new(host: impl Into<String>, tenant: &Redacted<'_>) -> Self {
        Self { host: host.into(), tenant: tenant.to_string() }
    }

    /// One text for both.
    pub(in crate::service) fn same(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { host: text.clone(), tenant: text }
    }

    /// An error of this kind with both texts.
    pub(in crate::service) fn error(self, kind: fn(String) -> ServiceError) -> ServiceError {
        ServiceError::for_audience(kind(self.host), kind(self.tenant))
    }

    /// Changes both texts alike.
    pub(in crate::service) fn map(self, frame: impl Fn(&str) -> String) -> Self {
        Self { host: frame(&self.host), tenant: frame(&self.tenant) }
    }

    /// The text for an actor.
    pub(in crate::service) fn text_for(self, actor: &Actor) -> String {
        if actor.scope().is_some() { self.tenant } else { self.host }
    }
}

impl From<FreshError> for ServiceError {
    fn from(error: FreshError) -> Self {
        // The full reason may name processes or users of the host; the reason code never does.
        let redacted = Redacted::DaemonUnread(error.reason());
        let kind = match error {
            FreshError::Late { .. } => Self::TimedOut,
            FreshError::Failed(..) | FreshError::Gone(_) => Self::Unavailable,
        };
        AudienceText::new(error.to_string(), &redacted).error(kind)
    }
}

/// A conflict with the present state.
impl From<AudienceText> for ServiceError {
    fn from(text: AudienceText) -> Self {
        text.error(Self::Conflict)
    }
}

impl ServiceError {
    /// An error with a different text for users bound to a tenant.
    pub(in crate::service) fn for_audience(host: Self, tenant: Self) -> Self {
        Self::ForAudience { host: Box::new(host), tenant: Box::new(tenant) }
    }

    /// An error whose full text may be seen by every tenant concerned.
    #[must_use]
    pub(in crate::service) fn visible_to_tenants(self) -> Self {
        Self::for_audience(self.clone(), self)
    }

    /// Returns the kind of slot that a refused process lacks; `None` for other errors.
    pub(in crate::service) fn lacking(&self) -> Option<Lacking> {
        match self.host_error() {
            Self::AtCapacity { lacking, .. } => Some(*lacking),
            _ => None,
        }
    }

    /// Converts a refusal for lack of a slot to that of a process that waits and keeps its turn; other errors stay unchanged.
    pub(in crate::service) fn keeping_turn(self) -> Self {
        match self {
            Self::AtCapacity { full, lacking, .. } => {
                Self::AtCapacity { full, remedy: KEEPS_TURN, lacking, keeps_turn: true }
            }
            Self::ForAudience { host, tenant } => {
                Self::for_audience(host.keeping_turn(), tenant.keeping_turn())
            }
            other => other,
        }
    }

    /// The full error.
    pub(in crate::service) fn host_error(&self) -> &Self {
        match self {
            Self::ForAudience { host, .. } => host,
            error => error,
        }
    }

    /// The full error, as host users see it.
    #[must_use]
    pub fn into_host_error(self) -> Self {
        match self {
            Self::ForAudience { host, .. } => *host,
            error => error,
        }
    }

    /// The error as an actor may see it.
    #[must_use]
    pub(in crate::service) fn for_actor(self, actor: &Actor) -> Self {
        if actor.scope().is_none() { self.into_host_error() } else { self.into_tenant_error() }
    }

    /// The error as users bound to a tenant see it.
    #[must_use]
    pub fn into_tenant_error(self) -> Self {
        match self {
            Self::ForAudience { tenant, .. } => *tenant,
            // These are about the request itself.
            error @ (Self::NotFound { .. }
            | Self::Forbidden(_)
            | Self::Invalid(_)
            | Self::PreconditionFailed(_)
            | Self::KeyReused(_)
            | Self::AtCapacity { .. }
            | Self::TooMany { .. }) => error,
            Self::Conflict(_)
            | Self::NotAdmitted(_)
            | Self::Blocked { .. }
            | Self::HostFileRefused { .. }
            | Self::OtherHardware { .. } => Self::Conflict(BLOCKED.to_owned()),
            Self::ReadOnly(_) => Self::ReadOnly(READ_ONLY.to_owned()),
            Self::DatabaseLost(_) => Self::DatabaseLost(READ_ONLY.to_owned()),
            Self::Unavailable(_) => Self::Unavailable(UNAVAILABLE.to_owned()),
            Self::TimedOut(_) => Self::TimedOut(TIMED_OUT.to_owned()),
            Self::Internal(_) => Self::Internal(FAULT.to_owned()),
        }
    }
}

/// Something with details that not every reader may see.
pub(in crate::service) trait Redact: Sized {
    /// Removes the details that users bound to its tenant may not see.
    fn redact(self) -> Self;

    /// Removes the details that this actor may not see.
    fn redacted_for(self, actor: &Actor) -> Self {
        if actor.scope().is_some() { self.redact() } else { self }
    }
}

impl Redact for Operation {
    fn redact(self) -> Self {
        let step = |step: Step| Step { outcome: step.outcome.map(outcome), ..step };
        Self {
            error: self.error.map(|_| FAILED.to_owned()),
            steps: self.steps.into_iter().map(step).collect(),
            ..self
        }
    }
}

/// The outcome of a step, if it is known to name no one else.
fn outcome(outcome: String) -> String {
    if TERMINATION_OUTCOMES.contains(&outcome.as_str()) { outcome } else { FAILED.to_owned() }
}

impl Redact for Verification {
    fn redact(self) -> Self {
        let redacted = |blocker: VerificationBlocker| VerificationBlocker {
            message: blocker.code.redacted_message().to_owned(),
            ..blocker
        };
        let last = self.last.map(|last| VerificationResult { blocker: last.blocker.map(redacted), ..last });
        Self { last, ..self }
    }
}

impl Redact for Event {
    fn redact(self) -> Self {
        let (message, details) = match (self.kind.visibility(), self.details) {
            (EventVisibility::Full, details) => (self.message, details),
            (EventVisibility::FullWithoutDaemon, details) if self.subject.daemon.is_none() => {
                (self.message, details)
            }
            (EventVisibility::StepOutcome, Some(Details::Step { step, outcome: came })) => {
                let came = outcome(came);
                (format!("{step}: {came}"), Some(Details::Step { step, outcome: came }))
            }
            (EventVisibility::Failure, Some(Details::Operation { operation, daemons, gpus, .. })) => {
                let message = format!("{operation}: {FAILED}");
                let error = Some(FAILED.to_owned());
                (message, Some(Details::Operation { operation, daemons, gpus, error }))
            }
            (EventVisibility::Incident, Some(Details::Incident { incident, incident_kind, .. })) => {
                let details = Details::Incident { incident, incident_kind, tenants: Vec::new() };
                (self.kind.meaning().to_owned(), Some(details))
            }
            (
                EventVisibility::FullWithoutDaemon
                | EventVisibility::StepOutcome
                | EventVisibility::Failure
                | EventVisibility::Incident
                | EventVisibility::TypeOnly,
                _,
            ) => (self.kind.meaning().to_owned(), None),
        };
        let cause = match self.cause {
            EventCause::Outsider { .. } => EventCause::Outsider { command: None },
            // Who acknowledged an incident is none of a tenant's business.
            EventCause::Actor { .. } if self.kind.visibility() == EventVisibility::Incident => {
                EventCause::Manager
            }
            cause @ (EventCause::Actor { .. }
            | EventCause::Event { .. }
            | EventCause::Mps
            | EventCause::Client
            | EventCause::Manager
            | EventCause::Host) => cause,
        };
        Self { cause, message, details, ..self }
    }
}

/// Removes the parts of an incident that users bound to a tenant hit by it may not see: those about other tenants, about processes of
/// others, and about the users who caused or acknowledged it.
pub(in crate::service) fn redact_incident(incident: Incident, tenant: &TenantName) -> Incident {
    let is_own = |owner: Option<&TenantName>| owner == Some(tenant);
    let names_own = incident.suspects.iter().any(|suspect| is_own(suspect.tenant.as_ref()));
    let names_others = incident.suspects.iter().any(|suspect| !is_own(suspect.tenant.as_ref()));
    let shows_detail = names_own
        && !names_others
        && matches!(
            incident.kind,
            IncidentKind::Breach
                | IncidentKind::ClientRefused
                | IncidentKind::UnknownOutcome
                | IncidentKind::GpuShared
        );
    let loses_work = incident.kind.loses_work();
    // Others' processes are counted in it, and are in its events.
    let own_count = incident.suspects.iter().filter(|suspect| is_own(suspect.tenant.as_ref())).count();
    let own_count = u32::try_from(own_count).unwrap_or(u32::MAX);
    let is_shared =
        matches!(incident.kind, IncidentKind::Bypass | IncidentKind::ClientRefused | IncidentKind::GpuShared)
            && (names_others || incident.occurrences > own_count);
    let (occurrences, events) =
        if is_shared { (own_count.max(1), Vec::new()) } else { (incident.occurrences, incident.events) };
    let affected = incident.affected.into_iter().filter(|client| is_own(client.tenant.as_ref()));
    let affected =
        affected.map(|client| AffectedClient { worker_in_reset: false, ended_with_it: false, ..client });
    // A tenant that lost work does not learn who is suspected, not even that it is one of its own.
    let suspects =
        incident.suspects.into_iter().filter(|suspect| !loses_work && is_own(suspect.tenant.as_ref()));
    let acknowledged = incident.acknowledged.map(|full| Acknowledgement { by: None, note: None, ..full });
    Incident {
        affected: affected.collect(),
        suspects: suspects.collect(),
        fault: None,
        detail: incident.detail.filter(|_| shows_detail),
        unaffected: None,
        acknowledged,
        occurrences,
        events,
        workloads: incident.workloads.into_iter().filter(|(owner, _)| is_own(Some(owner))).collect(),
        ..incident
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::DaemonName;
    use crate::domain::access::{Grant, Origin, Principal};
    use crate::domain::event::EventSubject;
    use crate::domain::event::EventType;
    use std::collections::BTreeMap;

    use crate::domain::incident::{IncidentTopic, Suspect};
    use crate::domain::workload::Workload;
    use crate::service::FieldError;

    /// A text that no tenant may see.
    const SECRET: &str = "process 7 of tenant batch: sh -c secret";

    fn actor(grant: &str) -> Actor {
        Actor {
            subject: Principal::User(7),
            grant: Grant::parse(grant).expect("a grant"),
            origin: Origin::Socket,
        }
    }

    #[test]
    fn errors_are_redacted_for_tenants_by_default() {
        let text = || SECRET.to_owned();
        let errors = || vec![FieldError { pointer: "/x".to_owned(), detail: text() }];
        let errors = [
            ServiceError::Conflict(text()),
            ServiceError::NotAdmitted(errors().remove(0)),
            ServiceError::Blocked { detail: text(), errors: errors() },
            ServiceError::OtherHardware { detail: text(), errors: errors() },
            ServiceError::ReadOnly(text()),
            ServiceError::Unavailable(text()),
            ServiceError::TimedOut(text()),
            ServiceError::Internal(text()),
            ServiceError::for_audience(
                ServiceError::Conflict(text()),
                ServiceError::Conflict("so".to_owned()),
            ),
        ];
        for error in errors {
            assert!(format!("{error:?}").contains(SECRET));
            let redacted = error.clone().for_actor(&actor("tenant:web"));
            assert!(!format!("{redacted:?}").contains("batch"), "{redacted:?}");
            let whole = error.clone().for_actor(&actor("viewer"));
            assert_eq!(whole, error.into_host_error());
        }
        let own = ServiceError::Conflict("tenant web has 2 of at most 2 processes".to_owned());
        assert_eq!(own.clone().visible_to_tenants().for_actor(&actor("tenant:web")), own);
    }

    #[test]
    fn refusals_of_others_are_not_counted() {
        let suspect = |pid, owner: &str| Suspect {
            pid,
            client: None,
            tenant: TenantName::parse(owner).ok(),
            program: None,
            has_ended: false,
        };
        let job = || Workload::Job { id: "7".into(), user: None };
        let refusals = |suspects: Vec<Suspect>| Incident {
            kind: IncidentKind::ClientRefused,
            daemon: DaemonName::parse("gpu0").expect("a name"),
            gpus: Vec::new(),
            topic: IncidentTopic::Processes,
            is_hint: false,
            opened_at: 1,
            reopened_at: None,
            recovered_at: Some(1),
            ended_by: None,
            acknowledged: None,
            occurrences: u32::try_from(suspects.len()).expect("few"),
            suspects,
            fault: None,
            affected: Vec::new(),
            is_uncertain: false,
            awaits_clients: false,
            unaffected: None,
            detail: None,
            events: vec![4, 5, 6],
            workloads: ["web", "batch"].map(|name| (TenantName::parse(name).expect("a name"), job())).into(),
        };
        let web = TenantName::parse("web").expect("a name");
        let shared = refusals(vec![suspect(7, "web"), suspect(8, "batch"), suspect(9, "batch")]);
        let seen = redact_incident(shared, &web);
        assert_eq!((seen.occurrences, seen.suspects.len(), seen.events), (1, 1, Vec::new()));
        assert_eq!(seen.workloads, BTreeMap::from([(web.clone(), job())]));
        let seen = redact_incident(refusals(vec![suspect(7, "web"), suspect(8, "web")]), &web);
        assert_eq!((seen.occurrences, seen.events), (2, vec![4, 5, 6]));
    }

    #[test]
    fn events_are_redacted_for_tenants_whatever_their_type() {
        for kind in EventType::ALL {
            let details = [
                Details::Reason { reason: SECRET.to_owned() },
                Details::Refused { reason: SECRET.to_owned(), pid: None, logged_at: None },
                Details::Step { step: "terminate".to_owned(), outcome: SECRET.to_owned() },
                Details::Operation {
                    operation: "terminate_client".to_owned(),
                    daemons: Vec::new(),
                    gpus: Vec::new(),
                    error: Some(SECRET.to_owned()),
                },
            ];
            for details in details {
                let event = Event {
                    id: 1,
                    at: 1,
                    kind: *kind,
                    severity: kind.severity(),
                    subject: EventSubject::default(),
                    cause: EventCause::Outsider { command: Some(SECRET.to_owned()) },
                    message: SECRET.to_owned(),
                    details: Some(details),
                };
                assert_eq!(event.clone().redacted_for(&actor("viewer")), event);
                let redacted = event.redacted_for(&actor("tenant:web"));
                assert_eq!(redacted.cause, EventCause::Outsider { command: None });
                // These concern only the tenant, by how they are written.
                if !matches!(kind.visibility(), EventVisibility::Full | EventVisibility::FullWithoutDaemon) {
                    assert!(!format!("{redacted:?}").contains("batch"), "{redacted:?}");
                }
            }
        }
    }
}
