//! The API's reference at /docs: whole without a network, and held by a strict content security policy.

use reqwest::Method;

use crate::harness::InProcess;

#[test]
fn reference_needs_nothing_from_elsewhere() {
    let host = InProcess::stopped();
    let anyone = host.api().with_token(None);
    let page = anyone.get("/docs");
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").expect("a policy").to_owned();
    assert!(policy.starts_with("default-src 'none'; style-src 'self'"), "{policy}");
    for elsewhere in ["http:", "https:", "unsafe", "*", "script-src"] {
        assert!(!policy.contains(elsewhere), "{policy}");
    }
    // No script, style or source of anywhere else stands in it, and its files are here.
    for absent in ["<script", "<style", " style=", "href=\"//", "href=\"http", " src="] {
        assert!(!page.text.contains(absent), "{absent}");
    }
    let links = page.text.split("href=\"/").skip(1);
    let files: Vec<String> =
        links.map(|rest| format!("/{}", rest.split('"').next().expect("an end"))).collect();
    assert!(files.len() >= 3, "{files:?}");
    for file in files.iter().filter(|file| *file != "/") {
        let answer = anyone.send(Method::HEAD, file, &[], None);
        assert_eq!(answer.status, 200, "{file}");
    }
}

#[test]
fn reference_is_small_on_the_wire() {
    let host = InProcess::stopped();
    let packed = host.api().with_token(None).send(Method::GET, "/docs", &[("accept-encoding", "gzip")], None);
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
}
