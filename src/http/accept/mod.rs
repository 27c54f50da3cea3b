//! Content negotiation by the `Accept` header (RFC 9110, 12.5.1).

#[cfg(test)]
mod fuzz;

use axum::http::{HeaderMap, header};
use headers_accept::Accept;
use mediatype::{MediaType, ReadParams as _, WriteParams as _, names};

use super::problem::{Problem, ProblemKind};

/// Returns the format that a request prefers among those offered; the server's default comes first.
///
/// Without the header it is the default. Among equally preferred formats the first one named by the request wins, or the
/// default if none is named explicitly. A request that accepts none of them is refused.
pub(super) fn negotiated(headers: &HeaderMap, offered: &[&'static str]) -> Result<&'static str, Problem> {
    preferred(headers, offered).ok_or_else(|| {
        Problem::new(
            ProblemKind::NotAcceptable,
            format!(
                "the Accept header allows none of {}: name one of them, or leave it out",
                offered.join(", ")
            ),
        )
    })
}

/// Returns the preferred format as [`negotiated`] does, but `None` if the request accepts none of those offered, or its header is invalid.
pub(super) fn preferred(headers: &HeaderMap, offered: &[&'static str]) -> Option<&'static str> {
    let Some(accept) = accepted(headers).ok()? else { return offered.first().copied() };
    let types: Vec<MediaType<'static>> =
        offered.iter().filter_map(|offer| MediaType::parse(offer).ok()).collect();
    let chosen = accept.negotiate(&types)?;
    let at = types.iter().position(|media_type| media_type == chosen)?;
    offered.get(at).copied()
}

/// Returns true if a request accepts a format by its name and not only by a wildcard; with `q=0` it refuses the format.
pub(super) fn names(headers: &HeaderMap, format: &'static str) -> bool {
    let (Ok(Some(accept)), Ok(format)) = (accepted(headers), MediaType::parse(format)) else {
        return false;
    };
    let named = accept.media_types().any(|range| range.ty() == format.ty && range.subty() == format.subty);
    named && accept.negotiate(&[format]).is_some()
}

/// The `Accept` header cannot be parsed.
struct NotAHeader;

/// Parses the formats that a request accepts: `None` without the header, or else ranges reduced to a type and a weight.
fn accepted(headers: &HeaderMap) -> Result<Option<Accept>, NotAHeader> {
    let values = headers.get_all(header::ACCEPT).iter().map(|value| value.to_str());
    let text = values.collect::<Result<Vec<_>, _>>().map_err(|_| NotAHeader)?.join(",");
    if text.trim_matches([' ', '\t', ',']).is_empty() {
        return Ok(None);
    }
    let accept: Accept = text.parse().map_err(|_| NotAHeader)?;
    // There is one form of each type here, so `charset` and `version` select nothing.
    let plain = accept.media_types().map(|range| {
        let mut plain = MediaType::new(range.ty(), range.subty());
        plain.suffix = range.suffix();
        if let Some(weight) = range.get_param(names::Q) {
            plain.set_param(names::Q, weight);
        }
        plain
    });
    Ok(Some(plain.collect()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use axum::http::StatusCode;

    const OFFERED: [&str; 2] = ["application/json", "text/plain"];

    fn headers(values: &[&'static str]) -> HeaderMap {
        values.iter().map(|value| (header::ACCEPT, HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn the_preferred_format_is_given() {
        let (json, text) = (Some(OFFERED[0]), Some(OFFERED[1]));
        for (values, expected) in [
            (&[][..], json),
            (&[""], json),
            (&["*/*"], json),
            // What axios and generated clients for Java send.
            (&["application/json, text/plain, */*"], json),
            (&["application/json, text/plain;q=0"], json),
            (&["text/plain"], text),
            (&["text/plain; charset=utf-8"], text),
            (&["text/plain;q=0.5, application/json;q=0.4"], text),
            (&["text/plain;q=0.4, application/json;q=0.5"], json),
            (&["text/*, application/json;q=0.1"], text),
            (&["text/plain, application/*;q=0.9"], text),
            // A more specific range takes precedence.
            (&["text/*;q=1, text/plain;q=0, */*;q=0.1"], json),
            (&["*/*, application/json;q=0"], text),
            (&["TEXT/PLAIN"], text),
            (&["text/plain;Q=0.1, application/json; q=0.2"], json),
            (&["text/html", "text/plain"], text),
            (&["text/html"], None),
            (&["application/json;q=0"], None),
            (&["*/*;q=0"], None),
            (&["this is no header"], None),
        ] {
            assert_eq!(preferred(&headers(values), &OFFERED), expected, "{values:?}");
        }
    }

    #[test]
    fn no_acceptable_format_is_refused() {
        let problem = negotiated(&headers(&["image/png"]), &OFFERED).expect_err("refused");
        assert_eq!(problem.status(), StatusCode::NOT_ACCEPTABLE);
        assert!(problem.detail.contains("application/json, text/plain"), "{}", problem.detail);
    }

    #[test]
    fn wildcards_do_not_name_a_format() {
        for (value, named) in [
            ("text/html,application/xhtml+xml,*/*;q=0.8", true),
            ("application/json, text/html;q=0.1", true),
            ("text/html;q=0, */*", false),
            ("*/*", false),
            ("text/*", false),
            ("application/json;profile=\"text/html\"", false),
        ] {
            assert_eq!(names(&headers(&[value]), "text/html"), named, "{value}");
        }
        assert!(!names(&HeaderMap::new(), "text/html"));
    }
}
