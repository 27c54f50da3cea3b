//! State that all handlers share.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::config::Limits;
use crate::http::authenticator::Authenticator;
use crate::http::bounds::Rates;
use crate::http::memo::ReadMemo;
use crate::metrics::Metrics;
use crate::service::Service;

/// The state shared by all handlers; cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<AppParts>);

/// Parts of an [`AppState`].
pub struct AppParts {
    /// The use cases.
    pub service: Service,
    /// Authentication of callers.
    pub auth: Authenticator,
    /// Cancelled when the manager stops; ends open streams.
    pub stop: CancellationToken,
    /// Limits on callers.
    pub limits: Limits,
    /// Pause between two signs of life of a silent stream.
    pub stream_heartbeat: Duration,
    /// Request rates of callers.
    pub rates: Arc<Rates>,
    /// Counters.
    pub metrics: Metrics,
    /// Latest answers to reads, kept for repetition.
    pub memo: ReadMemo,
}

impl AppState {
    /// Assembles the state.
    pub fn new(parts: AppParts) -> Self {
        Self(Arc::new(parts))
    }
}

impl Deref for AppState {
    type Target = AppParts;

    fn deref(&self) -> &AppParts {
        &self.0
    }
}
