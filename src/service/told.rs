//! What is said to somebody who is bound to a tenant: the one place that decides it.
//!
//! Words are made for those of the host: they name processes, users, command lines and other tenants. Nothing of that goes to
//! whoever is bound to a tenant. An error says to them what it says of what they sent themselves, or what was written for
//! them ([`ServiceError::apart`], [`ServiceError::for_all`]); any other says what kind of thing is in the way. Events and
//! operations are let through by their type. So what nobody has thought of is not told.

use super::ServiceError;
use crate::domain::access::Actor;
use crate::domain::event::{Cause, Details, Event, EventType};
use crate::domain::operation::{Operation, Step};
use crate::domain::verification::{Verification, VerificationObstacle, VerificationResult};
use crate::operations::TERMINATION_OUTCOMES;

const IN_THE_WAY: &str =
    "something on the host stands in the way of this: ask the host's operator, who is told what it is";
const NOT_NOW: &str =
    "something on the host that this needs is not there at the moment: try again, or ask the host's operator";
const NO_ANSWER: &str = "something on the host did not answer in time: try again, or ask the host's operator";
const NO_WRITES: &str = "nothing is changed on this host at the moment: ask the host's operator";
const FAULT: &str = "a fault of the manager: ask the host's operator, whose log has the details";
const FAILED: &str = "it failed for a reason on the host: ask the host's operator, who is told what it is";

tokio::task_local! {
    static CALLER: Actor;
}

/// Does something for whoever calls: an error of it says to them what they may be told.
pub async fn calling<T>(actor: Actor, work: impl Future<Output = T>) -> T {
    CALLER.scope(actor, work).await
}

/// An error in the words for whoever calls.
pub fn to_caller(error: ServiceError) -> ServiceError {
    let caller = CALLER.try_with(Clone::clone);
    match caller {
        Ok(actor) => error.told_to(&actor),
        // Nobody has called, or nobody is known yet, who is asked for nothing that could name others.
        Err(_) => error.of_the_host(),
    }
}

/// Words of which those of the host are told all, and whoever is bound to a tenant only what was written for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Words {
    host: String,
    tenant: String,
}

impl Words {
    /// Two texts for the same.
    pub(super) fn apart(host: impl Into<String>, tenant: impl Into<String>) -> Self {
        Self { host: host.into(), tenant: tenant.into() }
    }

    /// One text for all.
    pub(super) fn same(text: &str) -> Self {
        Self::apart(text, text)
    }

    /// Both in the same sentence.
    pub(super) fn framed(self, frame: impl Fn(&str) -> String) -> Self {
        Self { host: frame(&self.host), tenant: frame(&self.tenant) }
    }

    /// The text for an actor.
    pub(super) fn told_to(self, actor: &Actor) -> String {
        if actor.scope().is_some() { self.tenant } else { self.host }
    }
}

/// That what is asked for does not fit what is there.
impl From<Words> for ServiceError {
    fn from(Words { host, tenant }: Words) -> Self {
        Self::apart(Self::Conflict(host), Self::Conflict(tenant))
    }
}

impl ServiceError {
    /// An error of which whoever is bound to a tenant is told something else than those of the host.
    pub(super) fn apart(host: Self, tenant: Self) -> Self {
        Self::Apart { host: Box::new(host), tenant: Box::new(tenant) }
    }

    /// An error that names nothing but what every tenant concerned may know.
    #[must_use]
    pub(super) fn for_all(self) -> Self {
        Self::apart(self.clone(), self)
    }

    /// What it is, whoever is told of it.
    pub(super) fn whole(&self) -> &Self {
        match self {
            Self::Apart { host, .. } => host,
            error => error,
        }
    }

    /// The same as those of the host are told of it.
    #[must_use]
    pub(super) fn of_the_host(self) -> Self {
        match self {
            Self::Apart { host, .. } => *host,
            error => error,
        }
    }

    /// The same as an actor may be told of it.
    #[must_use]
    pub(super) fn told_to(self, actor: &Actor) -> Self {
        if actor.scope().is_none() {
            return self.of_the_host();
        }
        match self {
            Self::Apart { tenant, .. } => *tenant,
            // Of what was sent, and of nothing else.
            error @ (Self::NotFound { .. }
            | Self::Forbidden(_)
            | Self::Invalid(_)
            | Self::PreconditionFailed(_)
            | Self::KeyReused(_)
            | Self::TooMany { .. }) => error,
            Self::Conflict(_) | Self::NotAdmitted(_) | Self::Blocked { .. } | Self::OtherHardware { .. } => {
                Self::Conflict(IN_THE_WAY.to_owned())
            }
            Self::ReadOnly(_) => Self::ReadOnly(NO_WRITES.to_owned()),
            Self::DatabaseLost(_) => Self::DatabaseLost(NO_WRITES.to_owned()),
            Self::Unavailable(_) => Self::Unavailable(NOT_NOW.to_owned()),
            Self::TimedOut(_) => Self::TimedOut(NO_ANSWER.to_owned()),
            Self::Internal(_) => Self::Internal(FAULT.to_owned()),
        }
    }
}

/// Something that is shown to whoever may see it.
pub(super) trait Shown: Sized {
    /// The same for whoever is bound to the tenant that it is about.
    fn to_tenants(self) -> Self;

    /// The same for an actor.
    fn shown_to(self, actor: &Actor) -> Self {
        if actor.scope().is_some() { self.to_tenants() } else { self }
    }
}

impl Shown for Operation {
    fn to_tenants(self) -> Self {
        let step = |step: Step| Step { outcome: step.outcome.map(outcome), ..step };
        Self {
            error: self.error.map(|_| FAILED.to_owned()),
            steps: self.steps.into_iter().map(step).collect(),
            ..self
        }
    }
}

/// What came of a step, in words that are known to name nobody.
fn outcome(outcome: String) -> String {
    if TERMINATION_OUTCOMES.contains(&outcome.as_str()) { outcome } else { FAILED.to_owned() }
}

impl Shown for Verification {
    fn to_tenants(self) -> Self {
        let told = |obstacle: VerificationObstacle| VerificationObstacle {
            message: obstacle.code.told().to_owned(),
            ..obstacle
        };
        let last = self.last.map(|last| VerificationResult { obstacle: last.obstacle.map(told), ..last });
        Self { last, ..self }
    }
}

/// Whether events of a type, where they are about a tenant, are of nothing else from the first word to the last.
fn is_own(kind: EventType) -> bool {
    matches!(
        kind,
        EventType::ClientConnected
            | EventType::ClientLeft
            | EventType::ClientTerminated
            | EventType::LeaseGranted
            | EventType::LeaseRevoked
            | EventType::TenantCreated
            | EventType::TenantChanged
            | EventType::TenantDeleted
            | EventType::TenantVerified
            | EventType::TenantVerificationFailed
            | EventType::TokenCreated
            | EventType::TokenRevoked
            | EventType::SessionOpened
            | EventType::SessionEnded
            | EventType::OperationRequested
            | EventType::OperationStarted
            | EventType::OperationCancelRequested
            | EventType::OperationFinished
            | EventType::OperationCancelled
            | EventType::EventsLost
    )
}

impl Shown for Event {
    fn to_tenants(self) -> Self {
        let (message, details) = match (self.kind, self.details) {
            (kind, details) if is_own(kind) => (self.message, details),
            (EventType::OperationStep, Some(Details::Step { step, outcome: came })) => {
                let came = outcome(came);
                (format!("{step}: {came}"), Some(Details::Step { step, outcome: came }))
            }
            (EventType::OperationFailed, Some(Details::Operation { operation, daemons, gpus, .. })) => {
                let message = format!("{operation}: {FAILED}");
                let error = Some(FAILED.to_owned());
                (message, Some(Details::Operation { operation, daemons, gpus, error }))
            }
            (kind, _) => (kind.meaning().to_owned(), None),
        };
        let cause = match self.cause {
            Cause::Outsider { .. } => Cause::Outsider { command: None },
            cause => cause,
        };
        Self { cause, message, details, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::access::{Grant, Origin, Subject};
    use crate::domain::event::{NewEvent, Subject as About};
    use crate::service::FieldError;

    /// What no tenant is told.
    const SECRET: &str = "process 7 of tenant batch: sh -c secret";

    fn actor(grant: &str) -> Actor {
        Actor {
            subject: Subject::User(7),
            grant: Grant::parse(grant).expect("a grant"),
            origin: Origin::Socket,
        }
    }

    #[test]
    fn an_error_that_nobody_has_thought_of_says_nothing_of_the_host_to_a_tenant() {
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
            ServiceError::apart(ServiceError::Conflict(text()), ServiceError::Conflict("so".to_owned())),
        ];
        for error in errors {
            assert!(format!("{error:?}").contains(SECRET));
            let told = error.clone().told_to(&actor("tenant:web"));
            assert!(!format!("{told:?}").contains("batch"), "{told:?}");
            let whole = error.clone().told_to(&actor("viewer"));
            assert_eq!(whole, error.of_the_host());
        }
        let own = ServiceError::Conflict("tenant web has 2 of at most 2 processes".to_owned());
        assert_eq!(own.clone().for_all().told_to(&actor("tenant:web")), own);
    }

    #[test]
    fn an_event_tells_a_tenant_nothing_of_the_host_whatever_its_type() {
        for kind in EventType::ALL {
            let details = [
                Details::Reason { reason: SECRET.to_owned() },
                Details::Refused { reason: SECRET.to_owned(), logged_at: None },
                Details::Step { step: "terminate".to_owned(), outcome: SECRET.to_owned() },
                Details::Operation {
                    operation: "terminate_client".to_owned(),
                    daemons: Vec::new(),
                    gpus: Vec::new(),
                    error: Some(SECRET.to_owned()),
                },
            ];
            for details in details {
                let NewEvent { kind, severity, subject, .. } = NewEvent::new(*kind, About::default(), "");
                let event = Event {
                    id: 1,
                    at: 1,
                    kind,
                    severity,
                    subject,
                    cause: Cause::Outsider { command: Some(SECRET.to_owned()) },
                    message: SECRET.to_owned(),
                    details: Some(details),
                };
                assert_eq!(event.clone().shown_to(&actor("viewer")), event);
                let told = event.shown_to(&actor("tenant:web"));
                assert_eq!(told.cause, Cause::Outsider { command: None });
                // These are made of the tenant's own things alone, where they are written.
                if !is_own(kind) {
                    assert!(!format!("{told:?}").contains("batch"), "{told:?}");
                }
            }
        }
    }
}
