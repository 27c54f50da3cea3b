//! The two text formats: `OpenMetrics` as it is encoded, and the older one of Prometheus made of it.

/// Which text is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsFormat {
    /// `OpenMetrics` 1.0.
    OpenMetrics,
    /// Prometheus 0.0.4, which every tool reads.
    Prometheus,
}

impl MetricsFormat {
    /// The `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Rewrites `OpenMetrics` text as Prometheus text: a counter is named as its samples are, and there are neither units nor an end.
pub(super) fn prometheus(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    let mut help: Option<(&str, &str)> = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = rest.split_once(' ') else { continue };
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            if let Some((_, words)) = help.take().filter(|(of, _)| *of == name) {
                out.extend(["# HELP ", name, suffix, " ", words, "\n"]);
            }
            out.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
        } else if !line.starts_with('#') {
            out.extend([line, "\n"]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_named_as_its_samples_are() {
        let open = "# HELP a_b Things.\n# TYPE a_b counter\na_b_total{x=\"# TYPE\"} 1\n# HELP t_seconds Time.\n# TYPE t_seconds histogram\n\
                    # UNIT t_seconds seconds\nt_seconds_sum 0.0\n# EOF\n";
        let text = "# HELP a_b_total Things.\n# TYPE a_b_total counter\na_b_total{x=\"# TYPE\"} 1\n# HELP t_seconds Time.\n\
                    # TYPE t_seconds histogram\nt_seconds_sum 0.0\n";
        assert_eq!(prometheus(open), text);
    }
}
