//! What a Prometheus scrapes.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, header};

use crate::domain::access::Actor;
use crate::http::AppState;
use crate::http::problem::{Problem, ReadProblems};
use crate::metrics::Format;

/// The metrics
///
/// `OpenMetrics` text for whoever accepts it, and Prometheus text otherwise. Answered from memory, whatever hangs. `docs/metrics.md`
/// is the catalogue.
#[utoipa::path(get, path = "/metrics", operation_id = "get_metrics", tag = "metrics",
    params(("Accept" = Option<String>, Header, description = "`application/openmetrics-text` for that format")),
    responses((status = 200, description = "The metrics", content(
        (String = "text/plain", example = "# HELP mps_manager_daemon_up 1 while the control daemon has a process\n# TYPE mps_manager_daemon_up gauge\nmps_manager_daemon_up{daemon=\"gpu0\"} 1.0\n"),
        (String = "application/openmetrics-text"),
    )), ReadProblems))]
pub(super) async fn get(
    State(app): State<AppState>,
    actor: Actor,
    headers: HeaderMap,
) -> Result<([(HeaderName, &'static str); 1], String), Problem> {
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::accepted(&accept.collect::<Vec<_>>().join(","));
    Ok(([(header::CONTENT_TYPE, format.content_type())], app.service.metrics(&actor, format)?))
}
