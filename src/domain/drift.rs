//! Drift: settings that were in force and no longer are, since another program wrote to the daemon.

use serde::{Deserialize, Serialize};

/// What to do about settings that another program changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriftPolicy {
    /// They are restored and reported.
    #[default]
    Repair,
    /// They stay, the daemon is not ready, and they are reported; the next change of its spec or its tenants writes them all.
    Report,
}

/// One setting that was read otherwise than it had been read back before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Drifted {
    /// Which setting.
    pub setting: String,
    /// What it should be.
    pub desired: String,
    /// What was read.
    pub read: String,
}

/// Drift of a daemon since this manager took it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DriftStatus {
    /// How many times settings were found changed.
    pub count: u64,
    /// When that was last.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_at: Option<i64>,
    /// What was found then.
    pub last: Vec<Drifted>,
    /// The last command of another program that changes something, by control.log: a hint, since anybody may write there.
    pub command: Option<String>,
    /// Whether it is so at the moment.
    pub present: bool,
}

impl std::fmt::Display for Drifted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is {} instead of {}", self.setting, self.read, self.desired)
    }
}
