//! Results of the checks of a host.

use serde::Serialize;

/// Verdict of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckVerdict {
    /// Everything is in order.
    Ok,
    /// It could not be checked, or need not be; `seen` is the reason.
    Skipped,
    /// A manager works on this host, but something is wrong.
    Warn,
    /// A manager does not start on this host, or does not do its work.
    Fail,
}

api_words!(CheckVerdict: Ok "ok", Skipped "skipped", Warn "warn", Fail "fail");

/// One of several things that a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckFinding {
    /// Observation.
    pub seen: String,
    /// Remedy, as a command where there is one.
    pub remedy: String,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name, which stays.
    pub id: &'static str,
    /// Its verdict.
    pub status: CheckVerdict,
    /// Observation, or the reason why it was skipped.
    pub seen: String,
    /// Remedy; `None` if nothing needs to be fixed.
    pub remedy: Option<String>,
    /// Parts of `seen` and `remedy`, where each finding has its own remedy.
    pub findings: Vec<CheckFinding>,
}

impl Check {
    /// Builds a check that passed.
    pub fn ok(id: &'static str, seen: impl Into<String>) -> Self {
        Self { id, status: CheckVerdict::Ok, seen: seen.into(), remedy: None, findings: Vec::new() }
    }

    /// Builds a check of `count` things that passed; with none of them it is skipped, for the reason `none`.
    pub fn ok_of(id: &'static str, count: usize, none: &str, seen: impl Into<String>) -> Self {
        if count == 0 { Self::skipped(id, none) } else { Self::ok(id, seen) }
    }

    /// Builds a check that was skipped, with the reason.
    pub fn skipped(id: &'static str, why: impl Into<String>) -> Self {
        Self { id, status: CheckVerdict::Skipped, seen: why.into(), remedy: None, findings: Vec::new() }
    }

    /// Builds a check that warns.
    pub fn warn(id: &'static str, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            id,
            status: CheckVerdict::Warn,
            seen: seen.into(),
            remedy: Some(remedy.into()),
            findings: Vec::new(),
        }
    }

    /// Builds a check that failed.
    pub fn fail(id: &'static str, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            id,
            status: CheckVerdict::Fail,
            seen: seen.into(),
            remedy: Some(remedy.into()),
            findings: Vec::new(),
        }
    }

    /// Builds a check from several findings, each with its remedy.
    pub fn each(id: &'static str, status: CheckVerdict, findings: Vec<CheckFinding>) -> Self {
        let seen: Vec<&str> = findings.iter().map(|finding| finding.seen.as_str()).collect();
        let mut remedies: Vec<&str> = findings.iter().map(|finding| finding.remedy.as_str()).collect();
        remedies.dedup();
        let (seen, remedy) = (seen.join("; "), remedies.join("; "));
        Self { id, status, seen, remedy: Some(remedy), findings }
    }
}

/// All checks of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checkup {
    /// The version of this program.
    pub manager_version: &'static str,
    /// The simulated host that was checked; `None` for the real one.
    pub sim: Option<String>,
    /// The checks, in a fixed order.
    pub checks: Vec<Check>,
}

impl Checkup {
    /// Returns the number of checks with this verdict.
    pub fn count(&self, verdict: CheckVerdict) -> usize {
        self.checks.iter().filter(|check| check.status == verdict).count()
    }

    /// Returns true if no check warns or fails.
    pub fn is_well(&self) -> bool {
        self.checks.iter().all(|check| check.status <= CheckVerdict::Skipped)
    }
}
