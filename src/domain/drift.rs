//! Drift: settings that are no longer in force because another program wrote to the daemon.

use serde::{Deserialize, Serialize};

/// Policy for settings that another program changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriftPolicy {
    /// They are restored and reported.
    #[default]
    Repair,
    /// They stay and are reported, and the daemon is not ready; the next change of its spec or its tenants writes all settings.
    Report,
}

/// One setting whose effective value changed after it had been read back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Drifted {
    /// Name of the setting.
    pub setting: String,
    /// Desired value.
    pub desired: String,
    /// Effective value.
    pub read: String,
}

/// Drift of a daemon since this manager started or adopted it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DriftStatus {
    /// Number of times that drift was found.
    pub count: u64,
    /// Time at which drift was last found.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_at: Option<i64>,
    /// Settings that were found changed then.
    pub last: Vec<Drifted>,
    /// The last command in control.log by which another program changed something: a hint, since anybody may write there.
    pub command: Option<String>,
    /// True while settings differ.
    pub present: bool,
}

impl std::fmt::Display for Drifted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_share = self.setting.contains("percentage");
        let [read, desired] = [&self.read, &self.desired].map(|value| match value.parse::<f64>() {
            Ok(share) if is_share => format!("{share} %"),
            _ => value.clone(),
        });
        write!(f, "{} is {read} instead of {desired}", self.setting)
    }
}
