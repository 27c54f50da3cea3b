//! A type's name says what it is without its module, so no two types have one name.

use std::collections::BTreeMap;

use super::source_tree::SourceTree;

/// The names that several structs or enums have, each with their files. The simulated host has names of its own: it imports
/// nothing of the rest and nothing imports its types, so both may use the field's word.
fn shared_names(tree: &SourceTree) -> BTreeMap<&str, Vec<&str>> {
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for module in tree.modules.values().filter(|module| !module.file.starts_with("sim/")) {
        for name in &module.types {
            files.entry(name).or_default().push(&module.file);
        }
    }
    files.retain(|_, files| files.len() > 1);
    files
}

#[test]
fn no_two_types_share_a_name() {
    let shared = shared_names(SourceTree::of_this_package());
    assert!(shared.is_empty(), "names of several types: {shared:#?}");
}

#[test]
fn types_of_one_name_are_found() {
    let files = [
        ("lib.rs", "mod a; mod sim; struct One; enum Two {}"),
        (
            "a.rs",
            "pub(crate) struct One<T>(T); fn f() { enum Two {} } #[cfg(test)] mod tests { struct Three; }",
        ),
        ("sim/mod.rs", "struct Three; struct Four; /* struct One; */ const S: &str = \"enum Four {}\";"),
    ];
    let files = files.map(|(file, text)| (file.to_owned(), text.to_owned())).into();
    let tree = SourceTree::parse(&files, &[]);
    assert_eq!(
        shared_names(&tree),
        BTreeMap::from([("One", vec!["lib.rs", "a.rs"]), ("Two", vec!["lib.rs", "a.rs"])])
    );
}
