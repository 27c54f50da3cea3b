//! `Accept` at volume.

use axum::http::{HeaderMap, HeaderValue, header};

use super::{names, preferred};
use crate::fuzz::Inputs;

#[test]
fn accept_headers() {
    let offered = ["application/json", "text/plain"];
    let samples = [
        "application/json, text/plain, */*",
        "text/*;q=0.5, application/json;q=0",
        "a/b+c;d=\"e,f\";q=1",
        "",
    ];
    let words =
        ["*/*", "text/", "plain", "application/json", ";", "q=", "0.", "1", ",", "\"", "\\", "=", " ", "+"];
    Inputs::new(samples, &words).at_most(16 << 10).check(|bytes| {
        let Ok(value) = HeaderValue::from_bytes(bytes) else { return false };
        let headers = HeaderMap::from_iter([(header::ACCEPT, value)]);
        let chosen = preferred(&headers, &offered);
        assert!(chosen.is_none_or(|chosen| offered.contains(&chosen)));
        for format in offered {
            // A format that is named explicitly is accepted when it is the only one offered.
            assert!(!names(&headers, format) || preferred(&headers, &[format]) == Some(format));
        }
        chosen.is_some()
    });
}
