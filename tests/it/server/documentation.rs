//! The API's documentation at /docs: whole without a network, and held by a strict content security policy.

use reqwest::Method;

use crate::harness::InProcess;

#[test]
fn the_documentation_needs_nothing_from_elsewhere() {
    let host = InProcess::stopped();
    let anyone = host.api().with_token(None);
    let page = anyone.get("/docs");
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").expect("a policy").to_owned();
    let scripts = policy.split(';').find(|part| part.trim().starts_with("script-src")).expect("scripts");
    assert_eq!(scripts.trim(), "script-src 'self'");
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    for elsewhere in ["http:", "https:", "unsafe-eval", "*"] {
        assert!(!policy.contains(elsewhere), "{policy}");
    }

    // Everything that the page asks for is here, and no script or style stands in it.
    assert!(!page.text.contains("<style") && !page.text.contains(" style="), "{}", page.text);
    assert!(!page.text.contains("//"), "{}", page.text);
    let sources = page.text.split("<script").skip(1).map(|tag| tag.split('>').next().expect("a tag"));
    for tag in sources {
        assert!(tag.contains("src=\"/"), "{tag}");
    }
    let named = |attribute: &str| -> Vec<String> {
        let start = format!("{attribute}=\"/");
        let parts = page.text.split(start.as_str()).skip(1);
        parts.map(|rest| format!("/{}", rest.split('"').next().expect("an end"))).collect()
    };
    let files: Vec<String> = ["src", "href", "spec-url"].into_iter().flat_map(named).collect();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        let answer = anyone.send(Method::HEAD, &file, &[], None);
        assert_eq!(answer.status, 200, "{file}");
    }
    assert!(anyone.get("/docs/licenses.txt").text.contains("MIT License"));
}

#[test]
fn the_renderer_is_sent_as_it_is_kept() {
    let host = InProcess::stopped();
    let anyone = host.api().with_token(None);
    let packed = anyone.send(Method::HEAD, "/docs/rapidoc.js", &[("accept-encoding", "br, gzip")], None);
    assert_eq!(packed.status, 200);
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert_eq!(packed.header("vary"), Some("Accept-Encoding"));
    let length: usize = packed.header("content-length").expect("a length").parse().expect("a number");
    assert!((100_000..400_000).contains(&length), "{length}");

    let plain = anyone.send(Method::GET, "/docs/rapidoc.js", &[("accept-encoding", "identity")], None);
    plain.problem(406, "not-acceptable");
}
