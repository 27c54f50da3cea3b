//! Handling of a daemon whose server hangs.

use serde::{Deserialize, Serialize};

use super::InvalidValue;

/// Policy for a server that hangs while clients are connected to it, which go on working until it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WedgePolicy {
    /// Wait for the clients for `wedge_grace_s`, then replace the server, which ends their work. A server on which no client works is
    /// replaced at once.
    #[default]
    Replace,
    /// Wait until the last client has ended, however long that takes, then replace the server.
    Wait,
}

/// Seconds to wait for clients of a server that hangs: 0 to 3600.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct WedgeGrace(u32);

impl WedgeGrace {
    /// The longest grace, in seconds.
    pub const LONGEST: u32 = 3600;

    /// Returns the grace in milliseconds.
    pub fn as_millis(self) -> i64 {
        i64::from(self.0) * 1000
    }
}

/// Five seconds: short enough that a daemon is ready again within ten.
impl Default for WedgeGrace {
    fn default() -> Self {
        Self(5)
    }
}

impl TryFrom<u32> for WedgeGrace {
    type Error = InvalidValue;

    fn try_from(seconds: u32) -> Result<Self, InvalidValue> {
        if seconds <= Self::LONGEST {
            return Ok(Self(seconds));
        }
        Err(InvalidValue(format!(
            "{seconds} is more than {} seconds: give a number from 0 to {0}, or set wedge_policy to wait, which has no limit",
            Self::LONGEST
        )))
    }
}

impl From<WedgeGrace> for u32 {
    fn from(grace: WedgeGrace) -> Self {
        grace.0
    }
}

impl std::fmt::Display for WedgeGrace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Settings of a daemon for a server that hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WedgeSettings {
    /// Policy: connected clients are waited for up to the grace, or without limit.
    pub policy: WedgePolicy,
    /// Grace for connected clients, where the policy has one.
    pub grace: WedgeGrace,
}

/// A server or a control daemon that was killed because it did not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplacedProcess {
    /// Time at which it was killed, in unix milliseconds.
    pub at: i64,
    /// Its process.
    pub pid: u32,
    /// True if it is the control daemon; else it is a server.
    pub is_daemon: bool,
    /// Processes that waited to become clients.
    pub waiting: Vec<u32>,
    /// Processes that lost their work; `None` if they are not known.
    pub working: Option<Vec<u32>>,
}

impl std::fmt::Display for ReplacedProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let program = if self.is_daemon { "control daemon" } else { "server" };
        write!(f, "{program} {} hung and was killed, so that new ones take clients again; ", self.pid)?;
        match self.working.as_deref() {
            None => f.write_str("which clients lost their work is not known")?,
            Some([]) => f.write_str("no client lost work")?,
            Some(pids) => write!(f, "{} lost their work", processes(pids))?,
        }
        match self.waiting.as_slice() {
            [] => Ok(()),
            pids => write!(f, "; {} waited to connect and got an error: start them again", processes(pids)),
        }
    }
}

/// The most processes that a message names.
const NAMED: usize = 8;

/// Names processes by number, the first few of them.
pub fn processes(pids: &[u32]) -> String {
    let named: Vec<String> = pids.iter().take(NAMED).map(ToString::to_string).collect();
    let more = pids.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let word = if pids.len() == 1 { "process" } else { "processes" };
    format!("{word} {}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wedge_grace_is_bounded() {
        assert_eq!(WedgeGrace::try_from(0).map(WedgeGrace::as_millis), Ok(0));
        assert_eq!(WedgeGrace::try_from(3600).map(WedgeGrace::as_millis), Ok(3_600_000));
        let error = WedgeGrace::try_from(3601).expect_err("too long").to_string();
        assert!(error.contains("3601") && error.contains("wedge_policy"), "{error}");
    }

    #[test]
    fn replacement_names_waiting_and_affected_clients() {
        let replaced =
            ReplacedProcess { at: 0, pid: 7, is_daemon: false, waiting: vec![9], working: Some(vec![8, 10]) };
        let message = replaced.to_string();
        assert!(
            message.contains("server 7 hung") && message.contains("processes 8, 10 lost their work"),
            "{message}"
        );
        assert!(message.contains("process 9 waited"), "{message}");
        let nobody = ReplacedProcess { working: Some(vec![]), waiting: vec![], ..replaced };
        assert!(nobody.to_string().ends_with("no client lost work"), "{nobody}");
    }
}
