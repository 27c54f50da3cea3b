//! Metrics for Prometheus.

use axum::http::{HeaderMap, HeaderName, header};

use crate::http::accept;
use crate::http::endpoint::RequiredRight;
use crate::http::extract::Call;
use crate::http::problem::Problem;
use crate::metrics::MetricsFormat;

/// Get the metrics
///
/// `OpenMetrics` text where `Accept` prefers it, and Prometheus text otherwise. The answer comes from memory, so it comes while a daemon
/// hangs, too. `docs/metrics.md` lists the metrics.
#[utoipa::path(get, path = "/metrics", operation_id = "get_metrics", tag = "metrics",
    extensions(("x-right" = json!(RequiredRight::View))),
    params(("Accept" = Option<String>, Header, description = "`application/openmetrics-text` for that format.")),
    responses((status = 200, description = "The metrics.", content(
        (String = "text/plain", example = "# HELP mps_manager_daemon_up 1 while the control daemon has a process\n# TYPE mps_manager_daemon_up gauge\nmps_manager_daemon_up{daemon=\"gpu0\"} 1.0\n"),
        (String = "application/openmetrics-text"),
    ))))]
pub(super) async fn get(
    Call { app, ctx }: Call,
    headers: HeaderMap,
) -> Result<([(HeaderName, &'static str); 1], String), Problem> {
    let format = format(&headers);
    Ok(([(header::CONTENT_TYPE, format.content_type())], app.service.metrics(&ctx, format)?))
}

/// `OpenMetrics` where it is preferred. A client that accepts neither form gets Prometheus text: a failed scrape would be of less use.
fn format(headers: &HeaderMap) -> MetricsFormat {
    match accept::preferred(headers, &["text/plain", OPEN_METRICS]) {
        Some(OPEN_METRICS) => MetricsFormat::OpenMetrics,
        _ => MetricsFormat::Prometheus,
    }
}

const OPEN_METRICS: &str = "application/openmetrics-text";

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn open_metrics_needs_an_accept_header() {
        for (accept, expected) in [
            ("", MetricsFormat::Prometheus),
            ("*/*", MetricsFormat::Prometheus),
            ("text/plain;version=0.0.4;q=0.3, */*;q=0.2", MetricsFormat::Prometheus),
            ("application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5", MetricsFormat::OpenMetrics),
            ("application/openmetrics-text, text/plain", MetricsFormat::OpenMetrics),
            ("application/openmetrics-text;q=0", MetricsFormat::Prometheus),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
                MetricsFormat::OpenMetrics,
            ),
            ("image/png", MetricsFormat::Prometheus),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(format(&headers), expected, "{accept}");
        }
    }
}
