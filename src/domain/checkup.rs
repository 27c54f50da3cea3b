//! Results of the checks of a host.

use serde::Serialize;

use super::count::joined;

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

/// Outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckOutcome {
    /// Its verdict.
    pub status: CheckVerdict,
    /// Observation, or the reason why it was skipped.
    pub seen: String,
    /// Remedy; `None` if nothing needs to be fixed.
    pub remedy: Option<String>,
    /// Parts of `seen` and `remedy`, where each finding has its own remedy.
    pub findings: Vec<CheckFinding>,
}

/// Observation of a check that passed, or any other outcome, so that a check ends at the first one by `?`.
pub type Judgement = Result<String, CheckOutcome>;

impl From<Judgement> for CheckOutcome {
    fn from(judgement: Judgement) -> Self {
        match judgement {
            Ok(text) => Self { status: CheckVerdict::Ok, seen: text, remedy: None, findings: Vec::new() },
            Err(outcome) => outcome,
        }
    }
}

/// Returns the observation of a check that passed.
pub fn ok(text: impl Into<String>) -> Judgement {
    Ok(text.into())
}

/// Skips a check, with the reason.
pub fn skipped<T>(why: impl Into<String>) -> Result<T, CheckOutcome> {
    outcome(CheckVerdict::Skipped, why, None)
}

/// Ends a check with a warning.
pub fn warn<T>(text: impl Into<String>, remedy: impl Into<String>) -> Result<T, CheckOutcome> {
    outcome(CheckVerdict::Warn, text, Some(remedy.into()))
}

/// Ends a check as failed.
pub fn fail<T>(text: impl Into<String>, remedy: impl Into<String>) -> Result<T, CheckOutcome> {
    outcome(CheckVerdict::Fail, text, Some(remedy.into()))
}

/// Ends a check with this verdict if there is any finding.
pub fn each(
    status: CheckVerdict,
    findings: impl IntoIterator<Item = CheckFinding>,
) -> Result<(), CheckOutcome> {
    let findings: Vec<CheckFinding> = findings.into_iter().collect();
    if findings.is_empty() {
        return Ok(());
    }
    let mut remedies: Vec<&str> = findings.iter().map(|finding| finding.remedy.as_str()).collect();
    remedies.dedup();
    let seen = joined(findings.iter().map(|finding| &finding.seen), "; ");
    let remedy = Some(remedies.join("; "));
    Err(CheckOutcome { status, seen, remedy, findings })
}

fn outcome<T>(
    status: CheckVerdict,
    text: impl Into<String>,
    remedy: Option<String>,
) -> Result<T, CheckOutcome> {
    Err(CheckOutcome { status, seen: text.into(), remedy, findings: Vec::new() })
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name, which stays.
    pub id: &'static str,
    /// Its outcome.
    #[serde(flatten)]
    pub outcome: CheckOutcome,
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
        self.checks.iter().filter(|check| check.outcome.status == verdict).count()
    }

    /// Returns true if no check warns or fails.
    pub fn is_well(&self) -> bool {
        self.checks.iter().all(|check| check.outcome.status <= CheckVerdict::Skipped)
    }
}
