//! Programs that were written for the last release's API work with this one: `openapi/released` against the code.
//!
//! The newest file there is what is compared with. It is replaced in one way only: a release adds
//! `openapi/released/<version>.json`, a copy of `openapi/v1.json` as it is then.

mod mutations;
mod rules;
mod schemas;

use std::path::Path;

use serde_json::Value;

use crate::harness::Host;

/// The document of the last release, with its version.
fn released() -> (String, Value) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi/released");
    let number = |version: &str| -> Option<Vec<u32>> {
        version.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>()
    };
    let newest = std::fs::read_dir(&folder)
        .expect("openapi/released")
        .map(|entry| entry.expect("an entry").path())
        .max_by_key(|path| {
            let version = path.file_stem().expect("a name").to_string_lossy().into_owned();
            number(&version).unwrap_or_else(|| panic!("{} is not named after a version", path.display()))
        })
        .expect("the document of a release");
    let version = newest.file_stem().expect("a name").to_string_lossy().into_owned();
    let text = std::fs::read_to_string(&newest).expect("text");
    (version, serde_json::from_str(&text).expect("JSON"))
}

fn current() -> Value {
    serde_json::from_slice(&Host::new("").cli(&["openapi"]).stdout).expect("JSON")
}

#[test]
fn nothing_that_the_last_release_promised_is_broken() {
    let (version, released) = released();
    let broken = rules::broken(&released, &current());
    assert!(
        broken.is_empty(),
        "programs written for {version} would break:\n{}\nKeep what was there and add the new beside it.",
        broken.join("\n")
    );
}
