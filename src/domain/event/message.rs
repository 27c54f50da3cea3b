//! The words of the payloads, of which the catalogue makes the messages.

use std::fmt::{Display, Formatter, Result};

use super::domain_event::{
    AuditDamage, ClientRefusal, ComputeModeChange, DaemonBlocker, DaemonDeath, DaemonLayout, GrantedLease,
    HostConfirmation, IncidentNotice, LostEvents, LostWork, MemoryBreach, ObservedClient, OperationFacts,
    ServerFault, SessionOwner, TokenFacts, VerificationFailure,
};
use super::{KnownFrom, Predecessor};
use crate::TenantName;
use crate::bypass::Bypass;
use crate::client::LeaseKind;
use crate::count::counted;
use crate::memory::Bytes;
use crate::rfc3339;
use crate::verification::VerifiedSetting;

/// Returns the beginning of a sentence about processes outside MPS, with its verb.
pub(super) fn who_bypasses(processes: &[Bypass], unnamed: usize, present: &[Bypass]) -> &'static str {
    let is_gone = |process: &Bypass| present.iter().all(|one| one.pid != process.pid);
    match (processes.len() + unnamed, processes.iter().all(is_gone)) {
        (1, false) => "a process uses",
        (1, true) => "a process that has ended used",
        (_, false) => "processes use",
        (_, true) => "processes that have ended used",
    }
}

/// Returns the end of a sentence about a tenant that is gone.
pub(super) fn ended(expired_at: Option<i64>) -> String {
    match expired_at {
        None => "was deleted".to_owned(),
        Some(at) => format!("expired at {} and was deleted", rfc3339::format(at)),
    }
}

impl Display for DaemonBlocker {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "daemon {}: {}", self.daemon, self.message)
    }
}

impl Display for ServerFault {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { daemon, server, .. } = self;
        match self.known_from {
            KnownFrom::Poll => write!(
                f,
                "server {server} of daemon {daemon} had a fatal GPU error: the clients it affects have lost their work, and \
                 no other is accepted until they are gone"
            ),
            KnownFrom::ServerLogAndPoll => write!(
                f,
                "server {server} of daemon {daemon} had a fatal GPU error, which was over before the next poll: the clients it \
                 affected have lost their work"
            ),
            KnownFrom::ServerLog => write!(
                f,
                "server.log reports a fatal GPU error of server {server} of daemon {daemon}, of which nothing else was seen"
            ),
        }
    }
}

impl Display for ClientRefusal {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { daemon, server, reason, .. } = self;
        let pid = self.pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
        let tenant = self.tenant.as_ref().map(|tenant| format!(" of tenant {tenant}")).unwrap_or_default();
        write!(f, "server {server} of daemon {daemon} refused a client{pid}{tenant}: {reason}")
    }
}

impl IncidentNotice {
    pub(super) fn words(&self, what: &str) -> String {
        format!("incident {} ({}) {what}: {}", self.incident, self.kind.as_str(), self.summary)
    }
}

impl VerificationFailure {
    pub(super) fn of(&self, tenant: &TenantName) -> String {
        match self {
            Self::Differs(settings) => {
                let settings: Vec<&str> = settings.iter().copied().map(VerifiedSetting::as_str).collect();
                format!(
                    "verification of tenant {tenant}: a CUDA client saw values that differ from the configuration: {}",
                    settings.join(", ")
                )
            }
            Self::NotVerified(blocker) => {
                let why = blocker.map_or("", |code| code.redacted_message());
                format!("tenant {tenant} could not be verified: {why}")
            }
        }
    }
}

impl GrantedLease {
    pub(super) fn granted(&self) -> String {
        let (pid, tenant) = (self.holder.pid, &self.tenant);
        match self.kind {
            LeaseKind::Own => format!("process {pid} took a lease of tenant {tenant}"),
            LeaseKind::Recorded => format!("process {pid} was recorded as a process of tenant {tenant}"),
        }
    }
}

impl Display for HostConfirmation {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Machine(id) => write!(f, "the database was confirmed to belong to machine {id}"),
            Self::LossAccepted => {
                f.write_str("the database was accepted as it is, without the lost rows of its audit log")
            }
        }
    }
}

impl Predecessor {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Died => {
                "; its predecessor died, and what happened in between is reconstructed as far as possible"
            }
            Self::Restored => " with a database that was restored from a backup",
            Self::Stopped | Self::None => "",
        }
    }
}

pub(super) fn joined<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Display for ComputeModeChange {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { daemon, gpu, previous, desired } = self;
        let previous = previous.map(|mode| format!("{mode:?}")).unwrap_or_default();
        match desired {
            Some(desired) => {
                write!(
                    f,
                    "the compute mode of {gpu} is set to {desired:?} for daemon {daemon}; it was {previous}"
                )
            }
            None => write!(f, "the compute mode of {gpu} was restored to {previous}"),
        }
    }
}

impl DaemonDeath {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::ForeignSession => ", while a session of another program was open",
            Self::ForeignQuit => ", since another program sent it a quit",
            // What its log says stays in the status: anybody may have written it.
            Self::Killed | Self::Unexplained => "",
        }
    }
}

impl LostWork {
    pub(super) fn counted(&self) -> String {
        match self.clients.len() {
            1 => "a client".to_owned(),
            several => format!("{several} clients"),
        }
    }

    pub(super) fn doubt(&self) -> &'static str {
        if self.is_uncertain && !self.clients.is_empty() {
            "; lines of server.log were missed, so some of the clients listed here may have left before and lost nothing"
        } else {
            ""
        }
    }
}

impl MemoryBreach {
    pub(super) fn words(&self, holds: &str) -> String {
        let Self { daemon, client, tenant, program, gpu, used, limit } = self;
        let program = program.as_ref().map(|program| format!(" ({program})")).unwrap_or_default();
        let tenant = tenant.as_ref().map(|tenant| format!(" of tenant {tenant}")).unwrap_or_default();
        let (used, limit) = (Bytes(*used), Bytes(*limit));
        format!(
            "process {}{program}{tenant}, a client of daemon {daemon}, {holds} more memory on {gpu} than its limit of {limit} allows: {used}",
            client.pid
        )
    }
}

impl ObservedClient {
    pub(super) fn who(&self) -> String {
        match &self.tenant {
            Some(tenant) => format!("PID {} ({tenant})", self.pid),
            None => format!("PID {}", self.pid),
        }
    }

    /// Where it is known from, unless a poll listed it.
    pub(super) fn source(&self) -> &'static str {
        if self.client.is_some() { "" } else { " (seen in server.log only)" }
    }
}

impl Display for DaemonLayout {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let daemon = &self.daemon;
        match (&self.layout, self.version) {
            (Some(layout), Some(version)) => {
                write!(f, "layout {layout} version {version} of daemon {daemon}")
            }
            _ => write!(f, "the layout of daemon {daemon}"),
        }
    }
}

impl Display for OperationFacts {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.daemons.as_slice() {
            [] => f.write_str(self.kind),
            daemons => write!(f, "{} on {}", self.kind, joined(daemons)),
        }
    }
}

impl Display for LostEvents {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::NotWritten { count, .. } => {
                let verb = if *count == 1 { "was" } else { "were" };
                write!(f, "{} could not be written and {verb} lost", counted(*count, "event"))
            }
            Self::LinesMissed { daemon } => write!(
                f,
                "lines of server.log of daemon {daemon} were missed, or there were too many: who came and went between two polls \
                 is not known"
            ),
            Self::Restored { kept, given } => write!(
                f,
                "a backup was restored that ends with event {kept}: what was written after it, up to event {given}, is gone"
            ),
            Self::Pruned { from, whole_from } => write!(
                f,
                "events {from} to {} were pruned before they were read, whether or not they match the filter: from event \
                 {whole_from} on nothing is missing",
                whole_from - 1
            ),
        }
    }
}

impl Display for AuditDamage {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Truncated { known, found } => {
                write!(f, "the audit ends with row {found}, and row {known} was on the disk before")
            }
            Self::RowReplaced(row) => {
                write!(f, "row {row} of the audit is another one than was on the disk before")
            }
            Self::HeadChanged(file) => {
                write!(f, "{file} in the state directory, which says where the audit ended, was changed")
            }
        }
    }
}

impl Display for TokenFacts {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "token {} ({})", self.id, self.name)
    }
}

impl Display for SessionOwner {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::AdminToken => f.write_str("the admin token"),
            Self::Token(token) => token.fmt(f),
            Self::DeletedToken(id) => write!(f, "token {id}"),
            Self::User(uid) => write!(f, "uid {uid}"),
        }
    }
}
