//! Headers that control a write, at volume.

use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Request, header};
use futures_util::FutureExt as _;

use super::{Conditions, FromRequestParts, Idempotency, MAX_KEY, Problem};
use crate::clock::Clock;
use crate::domain::access::{Actor, Grant, Origin, Principal, Role};
use crate::fuzz::Inputs;
use crate::service::access::context::RequestContext;

/// The head of a request with this field; bytes that no field can have never get here.
fn head(name: &HeaderName, value: &[u8]) -> Option<Parts> {
    let value = HeaderValue::from_bytes(value).ok()?;
    Some(Request::builder().uri("/api/v1/x").header(name, value).body(()).expect("a request").into_parts().0)
}

fn read<T: FromRequestParts<()>>(parts: &mut Parts) -> Result<T, T::Rejection> {
    T::from_request_parts(parts, &()).now_or_never().expect("it waits for nothing")
}

fn refused(problem: &Problem) -> bool {
    let text = serde_json::to_string(problem).expect("JSON");
    assert!(text.len() <= 2 << 10 && (400..500).contains(&problem.status), "{text}");
    false
}

#[test]
fn conditions() {
    let samples = ["\"3\"", "W/\"3\", \"a-b\"", "*", "\"\"", " \"3\"\t,\"4\" "];
    let words = ["\"", "W/", "*", ",", " ", "\t", "3", "\\", "\"3\""];
    // A head has no longer field.
    Inputs::new(samples, &words).at_most(128 << 10).check(|bytes| {
        let mut taken = false;
        for name in [header::IF_MATCH, header::IF_NONE_MATCH] {
            let Some(mut parts) = head(&name, bytes) else { return false };
            match read::<Conditions>(&mut parts) {
                Ok(conditions) => {
                    let options = conditions.options(false);
                    assert_eq!(options.must_be_new, name == header::IF_NONE_MATCH);
                    if options.must_be_new {
                        assert_eq!(bytes, b"*");
                    } else {
                        let tags = options.if_match.expect("what was sent");
                        assert_eq!(tags.as_bytes(), bytes);
                        assert!(tags == "*" || tags.matches('"').count() >= 2, "{tags:?}");
                    }
                    taken = true;
                }
                Err(problem) => {
                    refused(&problem);
                }
            }
        }
        taken
    });
}

#[test]
fn idempotency_keys() {
    let longest = "k".repeat(MAX_KEY);
    let samples = ["0190d5a2-7b1c-7def-8123-456789abcdef", longest.as_str(), "a-key!"];
    let name = HeaderName::from_static("idempotency-key");
    let actor =
        Actor { subject: Principal::User(7), grant: Grant::Host(Role::Operator), origin: Origin::Socket };
    let ctx = RequestContext::new(actor, Clock::system(), None);
    Inputs::new(samples, &["-", "k", " ", "\t", "\"", "0190"]).at_most(128 << 10).check(|bytes| {
        let Some(mut parts) = head(&name, bytes) else { return false };
        match read::<Idempotency>(&mut parts) {
            Ok(idempotency) => {
                let ctx = idempotency.add_to(ctx.clone(), &"body").expect("JSON");
                let key = ctx.idempotency.expect("what was sent");
                assert!(key.key.as_bytes() == bytes && (1..=MAX_KEY).contains(&bytes.len()));
                assert!(bytes.iter().all(u8::is_ascii_graphic), "{:?}", key.key);
                assert!(key.request_hash.len() == 64 && key.owner == "uid 7", "{}", key.owner);
                true
            }
            Err(problem) => refused(&problem),
        }
    });
}
