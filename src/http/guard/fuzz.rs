//! `Host` and `Origin` headers, at volume.

use std::convert::Infallible;
use std::net::IpAddr;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use axum::response::Response;
use futures_util::FutureExt as _;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_http::csrf::CsrfLayer;

use super::{cross_site, is_called};
use crate::fuzz::Inputs;
use crate::http::auth::same_site;
use crate::http::authenticator::{Authenticator, ServerAddress};

fn server() -> Authenticator {
    let address = ([127, 0, 0, 1], 8640).into();
    Authenticator::new(ServerAddress {
        address,
        tls: false,
        hosts: vec!["gpu7.example".to_owned()],
        open_metrics: false,
    })
}

#[test]
fn host_headers() {
    let server = server();
    let samples =
        ["localhost:8640", "127.0.0.1:8640", "[::1]:8640", "gpu7.example", "evil.example", "LOCALHOST"];
    let words =
        [":", ".", "@", "[", "]", "%", "/", ",", "localhost", "127.0.0.1", "evil.example", "::1", "\t"];
    Inputs::new(samples, &words).at_most(128 << 10).check(|bytes| {
        let Ok(host) = HeaderValue::from_bytes(bytes) else { return false };
        let target = Uri::from_static("/");
        let mut headers = HeaderMap::from_iter([(header::HOST, host.clone())]);
        let taken = is_called(&server, &target, &headers);
        if taken {
            let text = std::str::from_utf8(bytes).expect("printable ASCII").to_ascii_lowercase();
            let name = text.rsplit('@').next().expect("a part");
            let end = if name.starts_with('[') { name.find(']').map(|at| at + 1) } else { name.find(':') };
            let name = &name[..end.unwrap_or(name.len())];
            let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
            assert!(address.is_ok() || ["localhost", "gpu7.example"].contains(&name), "{text:?}");
        }
        // A proxy in between might use a second one.
        headers.append(header::HOST, host);
        assert!(!is_called(&server, &target, &headers));
        taken
    });
}

#[test]
fn origin_headers() {
    let samples = [
        "http://localhost:8640",
        "https://localhost:8640",
        "null",
        "http://evil.example",
        "http://localhost",
    ];
    let words = ["http", "://", ":", "@", "/", "null", "localhost:8640", "evil.example", ",", " ", "#", "?"];
    Inputs::new(samples, &words).at_most(16 << 10).check(|bytes| {
        let Ok(origin) = HeaderValue::from_bytes(bytes) else { return false };
        let done = service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
        let guarded = CsrfLayer::new().with_rejection_response(cross_site).layer(done);
        let request = Request::builder().method(Method::POST).header(header::HOST, "localhost:8640");
        let request = request.header(header::ORIGIN, origin).body(Body::empty()).expect("a request");
        let says = same_site(request.headers()).is_ok();
        let answer =
            guarded.oneshot(request).now_or_never().expect("nothing to wait for").expect("infallible");
        // Both headers are checked for what a session would change.
        let taken = answer.status() == StatusCode::OK && says;
        if taken {
            // Anything may follow the authority, including invalid UTF-8.
            let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
            let (_, authority) = text.split_once("://").expect("an origin");
            let authority = authority.split(['/', '?', '#']).next();
            assert_eq!(authority, Some("localhost:8640"), "{text:?}");
        } else {
            assert!(answer.status() == StatusCode::FORBIDDEN || bytes.is_empty(), "{}", answer.status());
        }
        taken
    });
}
