//! What an examination of a host found.

use serde::Serialize;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckVerdict {
    /// As it should be.
    Ok,
    /// It could not be checked, or need not be; `seen` says why.
    Skipped,
    /// A manager works here, and something is not as it should be.
    Warn,
    /// A manager does not start here, or does not do its work.
    Fail,
}

impl CheckVerdict {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skipped => "skipped",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One of several things that a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckFinding {
    /// What was seen.
    pub seen: String,
    /// What to do, as a command where there is one.
    pub remedy: String,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name, which stays.
    pub id: &'static str,
    /// How it came out.
    pub status: CheckVerdict,
    /// What was seen.
    pub seen: String,
    /// What to do; `None` where there is nothing to mend.
    pub remedy: Option<String>,
    /// What `seen` and `remedy` consist of, where each thing that was found has its own remedy.
    pub findings: Vec<CheckFinding>,
}

impl Check {
    /// As it should be.
    pub fn ok(id: &'static str, seen: impl Into<String>) -> Self {
        Self { id, status: CheckVerdict::Ok, seen: seen.into(), remedy: None, findings: Vec::new() }
    }

    /// As it should be, of so many things: of none there is nothing to say, and `none` says that there are none.
    pub fn ok_of(id: &'static str, count: usize, none: &str, seen: impl Into<String>) -> Self {
        if count == 0 { Self::skipped(id, none) } else { Self::ok(id, seen) }
    }

    /// Not checked, and why.
    pub fn skipped(id: &'static str, why: impl Into<String>) -> Self {
        Self { id, status: CheckVerdict::Skipped, seen: why.into(), remedy: None, findings: Vec::new() }
    }

    /// Something to know of.
    pub fn warn(id: &'static str, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            id,
            status: CheckVerdict::Warn,
            seen: seen.into(),
            remedy: Some(remedy.into()),
            findings: Vec::new(),
        }
    }

    /// A blocker.
    pub fn fail(id: &'static str, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            id,
            status: CheckVerdict::Fail,
            seen: seen.into(),
            remedy: Some(remedy.into()),
            findings: Vec::new(),
        }
    }

    /// Several things to know of, or blockers, each with its remedy.
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
    /// How many checks came out so.
    pub fn count(&self, verdict: CheckVerdict) -> usize {
        self.checks.iter().filter(|check| check.status == verdict).count()
    }

    /// Whether nothing warns or fails.
    pub fn is_well(&self) -> bool {
        self.checks.iter().all(|check| check.status <= CheckVerdict::Skipped)
    }
}
