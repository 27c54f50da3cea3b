//! What `/metrics` says: counted where it happens, rendered here and nowhere else.
//!
//! What always holds: rendering reads memory only. No daemon, no driver, no database is asked, so that a hung one is told of
//! instead of waited for. Labels are bounded by what is configured, and series of what is deleted go away.

pub mod http;
pub mod wire;

use std::sync::Arc;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use self::http::Http;
use self::wire::Wire;

/// How every name begins.
const PREFIX: &str = "mps_manager";

/// All that is counted; cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    /// Connections.
    pub wire: Wire,
    /// Requests.
    pub http: Http,
    registry: Arc<Registry>,
}

impl Default for Metrics {
    fn default() -> Self {
        let (wire, http) = (Wire::default(), Http::default());
        let mut registry = Registry::with_prefix(PREFIX);
        wire.register(&mut registry);
        http.register(&mut registry);
        Self { wire, http, registry: Arc::new(registry) }
    }
}

impl Metrics {
    /// Everything as `OpenMetrics` text.
    pub fn render(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}
