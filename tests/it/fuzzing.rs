//! `docs/fuzzing.md` names every test that feeds a parser at volume, and no other.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::architecture::sources;

/// The tests in each file `fuzz.rs` beside a parser, with their paths.
fn tests() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut found = BTreeSet::new();
    for file in files.iter().filter(|file| file.ends_with("fuzz.rs") && file.parent() != Some(&root)) {
        let inside = file.strip_prefix(&root).expect("a file of src").with_extension("");
        let module = inside.to_string_lossy().replace('/', "::");
        let text = fs::read_to_string(file).expect("text");
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if line == "#[test]" {
                let name = lines.next().and_then(|line| line.strip_prefix("fn ")?.split_once('('));
                found.insert(format!("{module}::{}", name.expect("a function").0));
            }
        }
    }
    found
}

#[test]
fn documented_parsers_match_fuzz_tests() {
    let documented: BTreeSet<String> = include_str!("../../docs/fuzzing.md")
        .lines()
        .filter(|line| line.starts_with('|'))
        .flat_map(|line| line.split('`'))
        .filter(|word| word.contains("::fuzz::"))
        .map(str::to_owned)
        .collect();
    let tests = tests();
    assert!(tests.len() > 50, "{tests:?}");
    assert_eq!(documented, tests);
}
