//! One function per use case: authorise, validate, write, then notify the supervisor or the operations engine.
//!
//! Nothing here knows of HTTP. Each use case begins with the right that it requires ([`access::context`]); what it reads and commits
//! takes the permit ([`Service::with`]). A request that changes something is run by [`Service::run_to_completion`].

pub mod access;
mod backend;
mod cache;
mod change;
mod change_feed;
pub mod daemons;
mod error;
pub mod events;
pub mod history;
pub mod host;
pub mod host_file;
pub mod hosts;
pub mod incidents;
pub mod layouts;
pub mod limits;
mod metrics;
pub mod page;
pub mod readings;
mod recent_history;
mod settled;
pub mod tenants;

pub use access::context::IdempotencyKey;
pub use backend::{Backend, Parts, Service};
pub use error::{FieldError, KEEPS_TURN, Result, ServiceError};

use backend::unavailable;
use error::conflict;

use crate::domain::access::Right;
use crate::service::access::context::RequestContext;
use crate::store::{self, TransactionEnd};

/// Conditions of a write, and the choice of a dry run.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    /// Validate everything and keep nothing.
    pub dry_run: bool,
    /// Write only if this is the entity tag now; `*` is "if it exists".
    pub if_match: Option<String>,
    /// Write only if it does not exist (`If-None-Match: *`).
    pub must_be_new: bool,
}

impl WriteOptions {
    /// Options of a write without conditions.
    pub fn unconditional(dry_run: bool) -> Self {
        Self { dry_run, ..Self::default() }
    }

    /// Options of a dry run, which finds out whether the write would be refused.
    pub fn rehearsal() -> Self {
        Self::unconditional(true)
    }
}

/// A written resource, and whether it is new.
#[derive(Debug, Clone)]
pub struct Written<T> {
    /// The resource as it is now.
    pub value: T,
    /// True if the resource did not exist before.
    pub created: bool,
}

impl Service {
    /// A tenant, a daemon or a layout whose name is nearly this one, for host users.
    pub async fn similar_name(&self, ctx: &RequestContext, kind: &str, name: &str) -> Option<String> {
        let backend = self.with(&ctx.require(Right::View).ok()?);
        let names: Vec<String> = match kind {
            "tenant" => backend.stored_tenants().await.ok()?.iter().map(|one| one.name.to_string()).collect(),
            "daemon" => backend.stored_daemons().await.ok()?.iter().map(|one| one.name.to_string()).collect(),
            "layout" => {
                let mut reader = backend.parts.store.read().await.ok()?;
                let layouts = store::layouts::page(&mut reader, "", 500).await.ok()?;
                layouts.into_iter().map(|one| one.name.to_string()).collect()
            }
            _ => return None,
        };
        let nearest =
            names.into_iter().map(|stored| (strsim::damerau_levenshtein(&stored, name), stored)).min()?;
        (nearest.0 <= (name.chars().count() / 3).clamp(1, 3)).then_some(nearest.1)
    }
}

/// The fields of a spec that had a value and have none now, as `defaults.priority`.
fn removed(before: &impl serde::Serialize, after: &impl serde::Serialize) -> Vec<String> {
    use serde_json::Value;
    fn collect(path: &str, before: &Value, after: &Value, paths: &mut Vec<String>) {
        let is_none = |value: &Value| match value {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        };
        match (before, after) {
            (Value::Object(old), Value::Object(_)) => {
                for (name, value) in old {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    collect(&path, value, &after[name.as_str()], paths);
                }
            }
            _ if !is_none(before) && is_none(after) => paths.push(path.to_owned()),
            _ => {}
        }
    }
    let spec = |spec: Result<Value, serde_json::Error>| spec.expect("a spec has string keys only");
    let mut paths = Vec::new();
    collect("", &spec(serde_json::to_value(before)), &spec(serde_json::to_value(after)), &mut paths);
    paths
}

/// Refuses a write whose entity tag is not the present one.
fn check_precondition(options: &WriteOptions, current: Option<i64>) -> Result<()> {
    let failed = |detail: String| Err(ServiceError::PreconditionFailed(detail));
    if options.must_be_new && current.is_some() {
        return failed("it exists already, and If-None-Match: * was given".into());
    }
    let Some(wanted) = &options.if_match else { return Ok(()) };
    match current {
        None => failed("it does not exist, and If-Match was given".into()),
        Some(_) if wanted == "*" => Ok(()),
        Some(now) if wanted.split(',').any(|tag| revision_of(tag.trim()) == etag(now)) => Ok(()),
        Some(now) => failed(format!(
            "it was changed since: If-Match is {wanted} and the entity tag is now {}; read it again and repeat the change",
            etag(now)
        )),
    }
}

/// The entity tag of a revision.
pub fn etag(revision: i64) -> String {
    format!("\"{revision}\"")
}

/// The entity tag of the revision alone, from a tag that a read gave: `"3"` of `"3-0a1b"`.
fn revision_of(tag: &str) -> std::borrow::Cow<'_, str> {
    match tag.split_once('-') {
        Some((revision, _)) => format!("{revision}\"").into(),
        None => tag.into(),
    }
}

/// Commit, or roll back for a dry run.
fn transaction_end(options: &WriteOptions) -> TransactionEnd {
    if options.dry_run { TransactionEnd::RollBack } else { TransactionEnd::Commit }
}

/// Refuses a new name that differs from one that is there only in hyphens and underscores.
async fn refuse_namesake(db: &mut sqlx::SqliteConnection, kind: &str, name: &str) -> Result<()> {
    let taken = store::namesakes::namesake(db, kind, name).await?;
    taken.map_or(Ok(()), |taken| Err(namesake_refusal(kind, &taken, name)))
}

fn namesake_refusal(kind: &str, taken: &str, name: &str) -> ServiceError {
    conflict!(
        "there is a {kind} {taken} already, and a name that differs from it only in hyphens and underscores is taken for the same by \
         newer versions of MPS: choose another name than {name}"
    )
}
