//! Query parameters that several resources take.

use std::time::Duration;

use serde::Deserialize;
use utoipa::IntoParams;

use crate::http::AppState;
use crate::service::page::Page;
use crate::service::{ServiceError, WriteOptions};

/// The page of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// `next_cursor` of the previous page.
    pub(super) cursor: Option<String>,
    /// The most items to return, 1 to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    pub(super) limit: Option<u32>,
}

impl PageQuery {
    pub(super) fn page(&self) -> Result<Page, ServiceError> {
        Page::parse(self.cursor.as_deref(), self.limit)
    }
}

/// Option to poll now.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FreshQuery {
    /// Answer from a poll that begins after this request; requests at the same time share one.
    #[serde(default)]
    pub(super) fresh: bool,
}

/// Option to make a write a dry run.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WriteQuery {
    /// Check the request and answer as if it were done, but change nothing.
    #[serde(default)]
    pub(super) dry_run: bool,
}

impl WriteQuery {
    pub(super) fn options(&self) -> WriteOptions {
        WriteOptions::unconditional(self.dry_run)
    }
}

/// Options to poll now, and to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReadQuery {
    /// Answer from a poll that begins after this request; requests at the same time share one.
    #[serde(default)]
    pub(super) fresh: bool,
    /// Seconds to wait until it is as its spec says, unless something that waiting does not change prevents that; after them the
    /// answer is as it is then. By default none.
    #[serde(default)]
    #[param(maximum = 60)]
    pub(super) wait_s: u32,
}

/// Options to make a write a dry run, and to wait for its effect.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EffectQuery {
    /// Check the request and answer as if it were done, but change nothing.
    #[serde(default)]
    pub(super) dry_run: bool,
    /// Seconds to wait for the effect: until a spec is in force, unless something that waiting does not change prevents that, or until a
    /// verification has ended; after them the answer is as it is then. By default none.
    #[serde(default)]
    #[param(maximum = 60)]
    pub(super) wait_s: u32,
}

/// Option to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WaitQuery {
    /// Seconds to wait until it has ended; after them the answer is as it is then. By default none.
    #[serde(default)]
    #[param(maximum = 60)]
    pub(super) wait_s: u32,
}

/// Checks `wait_s` and returns the time to wait, which ends before the timeout of the request itself.
pub(super) fn checked_wait(app: &AppState, wait_s: u32) -> Result<Duration, ServiceError> {
    if wait_s > 60 {
        return Err(ServiceError::field("/wait_s", format!("wait_s is {wait_s}: give at most 60 seconds")));
    }
    Ok(Duration::from_secs(wait_s.min(app.limits.request_timeout_s.saturating_sub(1)).into()))
}

/// Options to make a stop a dry run, and for the time that clients have.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct GraceQuery {
    /// Check the request and answer as if it were done, but change nothing.
    #[serde(default)]
    pub(super) dry_run: bool,
    /// Seconds for clients to end by themselves before their server is stopped; 10 by default.
    #[serde(default = "default_grace")]
    #[param(maximum = 3600)]
    pub(super) grace_s: u32,
}

pub(in crate::http) fn default_grace() -> u32 {
    10
}

pub(in crate::http) fn checked_grace(grace_s: u32) -> Result<u32, ServiceError> {
    if grace_s <= 3600 {
        return Ok(grace_s);
    }
    Err(ServiceError::field("/grace_s", format!("grace_s is {grace_s}: give at most 3600 seconds")))
}
