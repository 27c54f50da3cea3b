//! Credentials in headers, at volume.

use axum::http::{HeaderMap, HeaderValue, header};

use super::{Credentials, shown};
use crate::fuzz::Inputs;
use crate::http::authenticator::{Authenticator, ServerAddress};
use crate::http::authenticator::{COOKIES, LONGEST_TOKEN};

const SECRET: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// The fields of a head that have this name; bytes that no field can have never get here.
fn fields(name: &header::HeaderName, values: &[&[u8]]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(name, HeaderValue::from_bytes(value).ok()?);
    }
    Some(headers)
}

#[test]
fn authorization_headers() {
    let whole = format!("mpsm_0123456789abcdef_{SECRET}");
    let samples =
        [format!("Bearer {whole}"), format!("bearer  {whole} "), "Basic YTpi".to_owned(), SECRET.to_owned()];
    let words = ["Bearer", " ", "mpsm_", "_", ",", "\t", "=", "Basic", SECRET];
    // A head has no longer field.
    Inputs::new(&samples, &words).at_most(128 << 10).check(|bytes| {
        let Some(headers) = fields(&header::AUTHORIZATION, &[bytes]) else { return false };
        let taken = match shown(&headers) {
            Credentials::Nothing => panic!("there is one"),
            Credentials::Token(secret) => {
                let text = std::str::from_utf8(bytes).expect("printable ASCII");
                assert!(!secret.reveal().is_empty() && secret.reveal().len() <= LONGEST_TOKEN);
                assert!(text.trim_end().ends_with(secret.reveal()), "{text:?}");
                true
            }
            // The message is ours and quotes nothing of the header.
            Credentials::Wrong(why) => {
                assert!(!why.is_empty());
                false
            }
        };
        let twice = fields(&header::AUTHORIZATION, &[bytes, bytes]).expect("as one");
        assert!(matches!(shown(&twice), Credentials::Wrong(why) if why.contains("several")));
        taken
    });
}

#[test]
fn cookie_headers() {
    let address = ([127, 0, 0, 1], 8640).into();
    let plain =
        Authenticator::new(ServerAddress { address, tls: false, hosts: Vec::new(), open_metrics: false });
    let secure =
        Authenticator::new(ServerAddress { address, tls: true, hosts: Vec::new(), open_metrics: false });
    let (one, other) =
        (format!("mps_manager_session={SECRET}"), format!("__Host-mps_manager_session={SECRET}"));
    let samples =
        [one.clone(), other.clone(), format!("a=1; {one}; b=2"), format!("{one};{one}; {other};{other}")];
    let words = ["; ", ";", "=", "mps_manager_session", "__Host-", "\"", ",", SECRET];
    Inputs::new(&samples, &words).at_most(128 << 10).check(|bytes| {
        let Some(headers) = fields(&header::COOKIE, &[bytes, bytes]) else { return false };
        let mut taken = false;
        for authenticator in [&plain, &secure] {
            let cookies: Vec<_> = authenticator.cookies(&headers).collect();
            assert!(cookies.len() <= COOKIES);
            for cookie in &cookies {
                let (secret, text) = (cookie.reveal(), String::from_utf8_lossy(bytes));
                assert!(!secret.is_empty() && secret.len() <= LONGEST_TOKEN && !secret.contains(';'));
                assert!(text.contains(&format!("{}={secret}", authenticator.cookie_name())), "{text:?}");
            }
            taken |= !cookies.is_empty();
        }
        taken
    });
}
