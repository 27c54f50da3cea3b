//! The audit log: each attempted action with its actor, origin and outcome. Its rows are chained by hashes, so that a row that is changed,
//! deleted or inserted is detected.
//!
//! `docs/audit.md` explains how a third party checks the chain; [`AuditRecord::digest`] is the same procedure in code.

mod changes;
mod grouping;
mod sentence;
mod target;
mod words;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub use changes::FieldChange;
pub use grouping::{ChangeGroup, what_changed};
pub use sentence::{Deed, actor_words};
pub use target::{Target, shown_path};

use super::access::{Actor, Grant, Origin, Principal, Role};
use super::rfc3339;

/// Hash that precedes the first row.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The action of the manager that deletes a tenant because it has expired.
pub const EXPIRE: &str = "expire";

/// The outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditOutcome {
    /// It was done: this row was written in the same transaction.
    Done,
    /// It was refused, and nothing was done.
    Refused,
    /// The manager failed to do it; anything that it had written before has rows of its own.
    Failed,
}

api_words!(AuditOutcome: Done "done", Refused "refused", Failed "failed");

/// An attempted action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptedAction {
    /// The actor.
    pub actor: String,
    /// The actor's grant.
    pub granted: String,
    /// The actor's address.
    pub origin: String,
    /// True if the actor is the manager itself.
    pub is_manager: bool,
    /// The request, by the ID that its answer has.
    pub request: Option<String>,
    /// The action, as method and route.
    pub action: String,
    /// Target of the action.
    pub target: Target,
    /// True if the action adopts or releases a daemon, which is then neither created nor deleted.
    pub adoption: bool,
}

impl AttemptedAction {
    /// Builds the attempt of an authenticated caller.
    pub fn of(actor: &Actor, request: Option<String>, action: String, target: Target) -> Self {
        Self {
            actor: actor.subject.to_string(),
            granted: actor.grant.to_string(),
            origin: actor.origin.to_string(),
            is_manager: actor.subject == Principal::Manager,
            request,
            action,
            target,
            adoption: false,
        }
    }

    /// Builds the attempt of a user of this host who works on the database's file at the command line.
    pub fn at_command_line(uid: u32, action: &str, file: &std::path::Path) -> Self {
        let path = file.to_string_lossy();
        Self {
            actor: Principal::User(uid).to_string(),
            granted: Grant::Host(Role::Admin).to_string(),
            origin: "command line".to_owned(),
            is_manager: false,
            request: None,
            action: action.to_owned(),
            target: Target::Other(path.chars().take(1024).collect()),
            adoption: false,
        }
    }

    /// Builds the attempt of a caller without valid credentials.
    pub fn of_stranger(origin: Origin, request: &str) -> Self {
        Self {
            actor: "nobody".to_owned(),
            granted: "nothing".to_owned(),
            origin: origin.to_string(),
            is_manager: false,
            request: Some(request.to_owned()),
            action: "authenticate".to_owned(),
            target: Target::Other(String::new()),
            adoption: false,
        }
    }
}

/// A row of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AuditRecord {
    /// Its number: one more than that of the row before.
    pub id: i64,
    /// Time of the attempt.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub at: i64,
    /// The actor.
    pub actor: String,
    /// The actor's grant at that time.
    pub granted: String,
    /// Origin of the attempt: an address, `socket`, `command line`, or `manager`.
    pub origin: String,
    /// The request: the `X-Request-Id` of its answer.
    pub request: Option<String>,
    /// The action: method and route, or `backup` or `restore` at the command line; with `?dry_run=true` where a dry run was refused.
    #[schema(example = "PUT /api/v1/tenants/{name}")]
    pub action: String,
    /// Target of the action.
    #[schema(example = "tenants/web")]
    pub target: String,
    /// Its outcome.
    pub outcome: AuditOutcome,
    /// The type of the problem, where it was refused or failed.
    pub problem: Option<String>,
    /// The spec before, as JSON text, where it changed.
    pub before: Option<String>,
    /// The spec after, as JSON text, where it changed; of a layout that is applied or replayed, `applied` with its version and daemon.
    pub after: Option<String>,
    /// The hash of the row before.
    pub previous: String,
    /// The hash of this one.
    pub hash: String,
}

/// Reason why a chain is broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("row {id} does not fit: {why}")]
pub struct Broken {
    /// The first row that does not fit.
    pub id: i64,
    /// Explanation of the mismatch.
    pub why: String,
}

/// Position up to which a chain was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = AuditHead)]
pub struct Head {
    /// The number of the last row; 0 if there is none.
    #[schema(minimum = 0)]
    pub id: i64,
    /// Its hash; 64 zeros if there is none.
    pub hash: String,
}

impl Head {
    /// Returns the position before the first row.
    pub fn genesis() -> Self {
        Self { id: 0, hash: GENESIS.to_owned() }
    }

    /// Checks the next row, and moves past it.
    pub fn advance(&mut self, row: &AuditRecord) -> Result<(), Broken> {
        let broken = |why: String| Err(Broken { id: row.id, why });
        if row.id != self.id + 1 {
            let missing = self.id + 1;
            return broken(format!("row {missing} should stand there: a row was deleted or put in"));
        }
        if row.previous != self.hash {
            return broken("it does not hold the hash of the row before".to_owned());
        }
        let digest = row.digest();
        if row.hash != digest {
            return broken(format!("its hash is {} and should be {digest}: it was changed", row.hash));
        }
        (self.id, self.hash) = (row.id, digest);
        Ok(())
    }
}

impl AuditRecord {
    /// Computes the hash over all other fields of the row.
    ///
    /// It is the SHA-256 of the fields in the order of this struct, `previous` included: each is written as `-` if it is absent, or
    /// else as the length of its text in bytes, a colon and the text, and a newline follows each. Numbers are decimal text, and the time is
    /// RFC 3339.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        let mut field = |text: Option<&str>| match text {
            None => hash.update(b"-\n"),
            Some(text) => {
                hash.update(text.len().to_string().as_bytes());
                hash.update(b":");
                hash.update(text.as_bytes());
                hash.update(b"\n");
            }
        };
        field(Some(&self.id.to_string()));
        field(Some(&rfc3339::format(self.at)));
        field(Some(&self.actor));
        field(Some(&self.granted));
        field(Some(&self.origin));
        field(self.request.as_deref());
        field(Some(&self.action));
        field(Some(&self.target));
        field(Some(self.outcome.as_str()));
        field(self.problem.as_deref());
        field(self.before.as_deref());
        field(self.after.as_deref());
        field(Some(&self.previous));
        hex::encode(hash.finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(head: &Head) -> AuditRecord {
        let mut row = AuditRecord {
            id: head.id + 1,
            at: 5,
            actor: "uid 0".into(),
            granted: "admin".into(),
            origin: "socket".into(),
            request: None,
            action: "PUT /api/v1/tenants/{name}".into(),
            target: "tenants/web".into(),
            outcome: AuditOutcome::Done,
            problem: None,
            before: None,
            after: Some("{}".into()),
            previous: head.hash.clone(),
            hash: String::new(),
        };
        row.hash = row.digest();
        row
    }

    fn chain(length: usize) -> Vec<AuditRecord> {
        let mut head = Head::genesis();
        (0..length)
            .map(|_| {
                let row = row(&head);
                head.advance(&row).expect("it fits");
                row
            })
            .collect()
    }

    fn broken_at(rows: &[AuditRecord]) -> Option<i64> {
        let mut head = Head::genesis();
        rows.iter().find_map(|row| head.advance(row).err()).map(|broken| broken.id)
    }

    #[test]
    fn tampered_audit_rows_are_detected() {
        let rows = chain(5);
        assert_eq!(broken_at(&rows), None);
        let changes: [fn(&mut AuditRecord); 7] = [
            |row| row.at += 1,
            |row| row.actor.push('x'),
            |row| row.outcome = AuditOutcome::Refused,
            |row| (row.before, row.after) = (row.after.take(), None),
            |row| row.request = Some(String::new()),
            |row| row.previous.replace_range(..1, "f"),
            |row| row.hash.replace_range(..1, "g"),
        ];
        for (position, change) in changes.into_iter().enumerate() {
            let mut rows = rows.clone();
            change(&mut rows[2]);
            assert_eq!(broken_at(&rows), Some(3), "change {position}");
        }
        let mut deleted = rows.clone();
        deleted.remove(1);
        assert_eq!(broken_at(&deleted), Some(3));
        // Renumbered and rehashed, it still does not hold the hash of the row before.
        let mut put_in = rows.clone();
        put_in.insert(2, row(&Head { id: 2, hash: GENESIS.to_owned() }));
        assert_eq!(broken_at(&put_in), Some(3));
    }

    #[test]
    fn documented_audit_hash_is_current() {
        let documented = include_str!("../../../docs/audit.md");
        let first = &chain(1)[0];
        assert!(documented.contains(&first.hash), "write {} into docs/audit.md", first.hash);
    }
}
