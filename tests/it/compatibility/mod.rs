//! Programs that were written for the last release's API work with this one: `openapi/released` against the code.
//!
//! The newest file there is what is compared with; before the first release there is none, and nothing is promised. It is replaced in
//! one way only: a release adds
//! `openapi/released/<version>.json`, a copy of `openapi/v1.json` as it is then, and its line in `SHA256SUMS`. Neither is ever
//! written again: a promise that moves with the code would hold nothing.

mod mutations;
mod rules;
mod schemas;

use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::harness::Host;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi/released")
}

/// The documents of all releases.
fn documents() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder()) else { return Vec::new() };
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.file_name().is_some_and(|name| name != "SHA256SUMS")).collect()
}

/// The document of the last release, with its version; `None` before the first one.
fn released() -> Option<(String, Value)> {
    let number = |version: &str| -> Option<Vec<u32>> {
        version.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>()
    };
    let newest = documents().into_iter().max_by_key(|path| {
        let version = path.file_stem().expect("a name").to_string_lossy().into_owned();
        number(&version).unwrap_or_else(|| panic!("{} is not named after a version", path.display()))
    })?;
    let version = newest.file_stem().expect("a name").to_string_lossy().into_owned();
    let text = std::fs::read_to_string(&newest).expect("text");
    Some((version, serde_json::from_str(&text).expect("JSON")))
}

fn current() -> Value {
    serde_json::from_slice(&Host::new("").cli(&["openapi"]).stdout).expect("JSON")
}

#[test]
fn nothing_that_the_last_release_promised_is_broken() {
    let Some((version, released)) = released() else { return };
    let broken = rules::broken(&released, &current());
    assert!(
        broken.is_empty(),
        "programs written for {version} would break:\n{}\nKeep what was there and add the new beside it.",
        broken.join("\n")
    );
}

#[test]
fn what_was_released_is_never_written_again() {
    // Of no document there are no sums either.
    let sums = std::fs::read_to_string(folder().join("SHA256SUMS")).unwrap_or_default();
    let mut told: Vec<(String, String)> = sums
        .lines()
        .map(|line| line.split_once("  ").expect("a digest, two spaces and a name"))
        .map(|(digest, name)| (name.to_owned(), digest.to_owned()))
        .collect();
    let mut found: Vec<(String, String)> = documents()
        .into_iter()
        .map(|path| {
            let digest = hex::encode(Sha256::digest(std::fs::read(&path).expect("a document")));
            (path.file_name().expect("a name").to_string_lossy().into_owned(), digest)
        })
        .collect();
    told.sort();
    found.sort();
    assert_eq!(
        found, told,
        "a released document was changed, or one has no line: put openapi/released back as it was, and add what is new beside \
         what was there"
    );
}
