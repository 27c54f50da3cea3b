//! The API's reference at /docs: whole without a network, and held by a strict content security policy; and the catalog that leads to it.

use std::path::{Path, PathBuf};

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
    for absent in ["<script", "<style", " style=", "href=\"//", "href=\"http", " src=\"http", " src=\"//"] {
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

#[test]
fn catalog_leads_anyone_to_the_api() {
    let host = InProcess::stopped();
    let anyone = host.api().with_token(None);
    for method in [Method::GET, Method::HEAD] {
        let answer = anyone.send(method, "/.well-known/api-catalog", &[], None);
        assert_eq!(answer.status, 200);
        let expected = "application/linkset+json; profile=\"https://www.rfc-editor.org/info/rfc9727\"";
        assert_eq!(answer.header("content-type"), Some(expected));
        assert_eq!(answer.header("link"), Some("</.well-known/api-catalog>; rel=\"api-catalog\""));
    }
    let catalog = anyone.get("/.well-known/api-catalog").json();
    let [itself, api] = catalog["linkset"].as_array().expect("a set of links").as_slice() else {
        panic!("{catalog}")
    };
    assert_eq!(itself["anchor"], "/.well-known/api-catalog");
    assert_eq!(itself["item"][0]["href"], api["anchor"]);
    for (relation, expected) in [
        ("service-desc", &["/openapi.json", "/openapi-3.0.json"][..]),
        ("service-doc", &["/docs"]),
        ("status", &["/healthz", "/readyz"]),
    ] {
        let links = api[relation].as_array().unwrap_or_else(|| panic!("{relation}: {api}"));
        let targets: Vec<&str> = links.iter().map(|link| link["href"].as_str().expect("a target")).collect();
        assert_eq!(targets, expected, "{relation}");
        for link in links {
            let answer = anyone.get(link["href"].as_str().expect("a target"));
            let served = answer.header("content-type").and_then(|mime| mime.split(';').next());
            assert_eq!((answer.status, served), (200, link["type"].as_str()), "{link}");
        }
    }
}

/// The targets of the links in Markdown, without those to other sites and to places within the page.
fn linked(markdown: &str) -> Vec<&str> {
    let targets = markdown.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.starts_with("http")).collect()
}

#[test]
fn program_serves_its_own_documentation() {
    let host = InProcess::stopped();
    let anyone = host.api().with_token(None);
    let index = anyone.get("/llms.txt");
    assert_eq!((index.status, index.header("content-type")), (200, Some("text/plain; charset=utf-8")));
    assert!(index.text.starts_with("# mps-manager\n\n> "), "{}", index.text);
    let pages = linked(&index.text);
    let of_repository = walked(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs"), "md");
    assert_eq!(pages.len(), of_repository - 1, "all but the list itself: {pages:?}");
    for page in pages {
        let answer = anyone.get(page);
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (200, Some("text/markdown; charset=utf-8"))
        );
        let base = reqwest::Url::parse(&format!("http://host{page}")).expect("a path");
        for target in linked(&answer.text) {
            let target = base.join(target).expect("a path");
            // The repository has more than docs/.
            let is_of =
                |extension: &str| Path::new(target.path()).extension().is_some_and(|own| own == extension);
            if target.path().starts_with("/docs/") && (is_of("md") || is_of("svg")) {
                assert_eq!(anyone.get(target.path()).status, 200, "{page}: {target}");
            }
        }
    }
    anyone.get("/docs/nothing.md").problem(404, "no-such-path");
}

/// Returns the number of files with this extension below a folder.
fn walked(folder: PathBuf, extension: &str) -> usize {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let count = |path: PathBuf| {
        let own = path.extension().is_some_and(|own| own == extension);
        if path.is_dir() { walked(path, extension) } else { usize::from(own) }
    };
    entries.map(count).sum()
}
