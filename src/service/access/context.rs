//! Context of a request (actor, change and time), and the proof that the actor has a right, without which nothing is read or committed.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::clock::Clock;
use crate::domain::DaemonName;
use crate::domain::access::{Actor, Principal, Right};
use crate::domain::audit::{AttemptedAction, Target};
use crate::domain::event::EventCause;
use crate::domain::layout::VersionRef;
use crate::service::Result;

/// A key that identifies a repeated request, with a digest of the request.
#[derive(Debug, Clone)]
pub struct IdempotencyKey {
    /// The key's owner: equal keys of different owners are different keys, so no caller gets the answer to another's request.
    pub owner: String,
    /// The key that the caller chose.
    pub key: String,
    /// Digest of method, path and body.
    pub request_hash: String,
}

/// Context of a request, with its actor: the first argument of every use case. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// The actor.
    pub actor: Arc<Actor>,
    /// The manager's clock.
    pub clock: Clock,
    /// The change that the request attempts, for the audit log; `None` if it only reads.
    change: Option<Arc<AttemptedAction>>,
    /// The key of a request that may be repeated; the use case stores its answer under it.
    pub idempotency: Option<Arc<IdempotencyKey>>,
    /// Number of the newest event when the request was admitted: its answers reflect that event and all before it.
    pub last_event: i64,
}

impl RequestContext {
    /// Creates the context of a request. A change has the request's ID, its label in the audit log, and its target.
    pub fn new(actor: Actor, clock: Clock, change: Option<(Option<String>, String, Target)>) -> Self {
        let change =
            change.map(|(request, action, target)| AttemptedAction::of(&actor, request, action, target));
        Self { actor: Arc::new(actor), clock, change: change.map(Arc::new), idempotency: None, last_event: 0 }
    }

    /// Creates the context of a change that the manager makes by itself.
    pub fn of_manager(clock: Clock, action: &str, target: Target) -> Self {
        Self::new(Actor::manager(), clock, Some((None, action.to_owned(), target)))
    }

    /// Returns the context with the number of the newest event at its admission.
    #[must_use]
    pub fn after_event(self, last_event: i64) -> Self {
        Self { last_event, ..self }
    }

    /// Returns the context with the idempotency key of the request, or without one. A key is for one use case: a second one would get the
    /// answer of the first.
    #[must_use]
    pub fn with_idempotency(self, key: Option<IdempotencyKey>) -> Self {
        Self { idempotency: key.map(Arc::new), ..self }
    }

    /// Refuses an actor without this right.
    pub fn require(&self, right: Right<'_>) -> Result<Permit> {
        self.actor.may(right)?;
        Ok(Permit { ctx: self.clone(), target: None, adoption: false, applied: None })
    }

    /// Returns the change that the request attempts, for the audit log; `None` if it only reads.
    pub fn attempt(&self) -> Option<&AttemptedAction> {
        self.change.as_deref()
    }

    /// The cause of what the request does.
    pub(in crate::service) fn cause(&self) -> EventCause {
        match &self.actor.subject {
            Principal::Manager => EventCause::Manager,
            subject => EventCause::Actor { subject: subject.to_string() },
        }
    }
}

/// Proof that the actor of a request has a right: [`RequestContext::require`] alone makes it, and whatever a use case reads or
/// commits takes it.
#[derive(Debug, Clone)]
pub struct Permit {
    ctx: RequestContext,
    target: Option<Target>,
    adoption: bool,
    applied: Option<Value>,
}

impl Permit {
    /// For a change of this target, where the path names another or none.
    #[must_use]
    pub(in crate::service) fn on(self, target: Target) -> Self {
        Self { target: Some(target), ..self }
    }

    /// For the adoption or release of a daemon, which is not created or deleted.
    #[must_use]
    pub(in crate::service) fn adopting(self, daemon: DaemonName) -> Self {
        Self { adoption: true, ..self.on(Target::Daemon(daemon)) }
    }

    /// For the application or the replay of a version of a layout to a daemon, whose spec an operation changes later.
    #[must_use]
    pub(in crate::service) fn applying(self, layout: &VersionRef, daemon: &DaemonName) -> Self {
        let applied = json!({ "layout": layout.name, "version": layout.version, "daemon": daemon });
        Self { applied: Some(applied), ..self }
    }

    /// Returns what is to be applied, for the audit log.
    pub(in crate::service) fn applied(&self) -> Option<Value> {
        self.applied.clone()
    }

    /// The request.
    pub(in crate::service) fn ctx(&self) -> &RequestContext {
        &self.ctx
    }

    /// Returns the change to record in the audit log; `None` for a request that only reads, and so commits nothing.
    pub(in crate::service) fn attempt(&self) -> Option<AttemptedAction> {
        let attempt = AttemptedAction::clone(self.ctx.change.as_ref()?);
        let target = self.target.clone().unwrap_or_else(|| attempt.target.clone());
        Some(AttemptedAction { target, adoption: self.adoption, ..attempt })
    }
}
