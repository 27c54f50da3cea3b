//! What a Prometheus scrapes.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, header};

use crate::domain::access::Actor;
use crate::http::problem::{Problem, ReadProblems};
use crate::http::{AppState, accept};
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
    let format = format(&headers);
    Ok(([(header::CONTENT_TYPE, format.content_type())], app.service.metrics(&actor, format)?))
}

/// `OpenMetrics` for whoever prefers it. Whoever takes neither gets what every tool reads: a scrape that fails tells less.
fn format(headers: &HeaderMap) -> Format {
    match accept::preferred(headers, &["text/plain", OPEN_METRICS]) {
        Some(OPEN_METRICS) => Format::OpenMetrics,
        _ => Format::Prometheus,
    }
}

const OPEN_METRICS: &str = "application/openmetrics-text";

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn open_metrics_goes_to_whoever_prefers_it() {
        for (accept, expected) in [
            ("", Format::Prometheus),
            ("*/*", Format::Prometheus),
            ("text/plain;version=0.0.4;q=0.3, */*;q=0.2", Format::Prometheus),
            ("application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5", Format::OpenMetrics),
            ("application/openmetrics-text, text/plain", Format::OpenMetrics),
            ("application/openmetrics-text;q=0", Format::Prometheus),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
                Format::OpenMetrics,
            ),
            ("image/png", Format::Prometheus),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(format(&headers), expected, "{accept}");
        }
    }
}
