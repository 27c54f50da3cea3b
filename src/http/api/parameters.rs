//! Query parameters that several resources take.

use serde::Deserialize;
use utoipa::IntoParams;

use crate::service::ServiceError;
use crate::service::page::Page;

/// Which page.
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

/// Whether to poll now.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FreshQuery {
    /// Answer from a poll that begins after this request; requests at the same time share one.
    #[serde(default)]
    pub(super) fresh: bool,
}

/// Whether a write is a dry run.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WriteQuery {
    /// Check the request and answer as if it were done, but change nothing.
    #[serde(default)]
    pub(super) dry_run: bool,
}

/// Whether a stop is a dry run, and how long clients have.
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
