//! No file of `src` imports a file that imports it, directly or through others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

use super::source_tree::{Module, Names, SourceTree};

/// What each file takes from which other: the names, by the two files.
type Imports = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// The modules by their address: each of some 100 000 names in the code is looked for in several.
type Modules<'tree> = HashMap<&'tree [String], &'tree Module>;

/// Follows a path to the file that defines what it names. A path to a module names nothing.
struct Resolver<'tree> {
    modules: &'tree Modules<'tree>,
    /// Imports on the way, which may go round in a circle themselves.
    open: Vec<(Names, String)>,
}

enum Found {
    Module(Names),
    Item { file: String, name: String },
}

impl Resolver<'_> {
    /// What a path names that stands in a module.
    fn resolve(&mut self, from: &[String], path: &[String]) -> Option<Found> {
        let mut here = match path[0].as_str() {
            "crate" => Found::Module(self.modules.get(from)?.root.clone()),
            "self" => Found::Module(from.to_vec()),
            "super" => Found::Module(from.split_last()?.1.to_vec()),
            name => self.member(from, name)?,
        };
        for name in &path[1..] {
            here = match here {
                Found::Module(module) if name == "super" => Found::Module(module.split_last()?.1.to_vec()),
                Found::Module(module) => self.member(&module, name)?,
                // A variant or an associated item.
                item @ Found::Item { .. } => item,
            };
        }
        Some(here)
    }

    /// What a name means in a module.
    fn member(&mut self, address: &[String], name: &str) -> Option<Found> {
        let modules = self.modules;
        let module = modules.get(address)?;
        if module.items.contains(name) {
            return Some(Found::Item { file: module.file.clone(), name: name.to_owned() });
        }
        let child: Names = address.iter().cloned().chain([name.to_owned()]).collect();
        if modules.contains_key(child.as_slice()) {
            return Some(Found::Module(child));
        }
        let step = (address.to_vec(), name.to_owned());
        if self.open.contains(&step) {
            return None;
        }
        self.open.push(step);
        let found = match module.imports.get(name) {
            Some(path) => self.resolve(address, path),
            None => module.globs.iter().find_map(|glob| match self.resolve(address, glob)? {
                Found::Module(other) => self.member(&other, name),
                Found::Item { .. } => None,
            }),
        };
        self.open.pop();
        found
    }
}

fn imports(tree: &SourceTree) -> Imports {
    let mut found = Imports::new();
    let modules: Modules<'_> =
        tree.modules.iter().map(|(address, module)| (address.as_slice(), module)).collect();
    for (address, module) in &tree.modules {
        for path in used_paths(module) {
            let mut resolver = Resolver { modules: &modules, open: Vec::new() };
            if let Some(Found::Item { file, name }) = resolver.resolve(address, path)
                && file != module.file
            {
                found.entry(module.file.clone()).or_default().entry(file).or_default().insert(name);
            }
        }
    }
    found
}

/// The paths that a module's own code uses: what it imports, what it names in full, and what a glob brings it. What it only
/// hands on is not among them.
fn used_paths(module: &Module) -> impl Iterator<Item = &Names> {
    let kept = |name: &String| !module.exports.contains(name);
    let imported = module.imports.iter().filter(move |(name, _)| kept(name)).map(|(_, path)| path);
    imported.chain(&module.paths)
}

/// Files that reach each other by their imports.
type Circle = BTreeSet<String>;

/// The files that are left when those are taken away that import none of the rest, or that none of the rest imports: each circle is among
/// them, and most often nothing is.
fn tied(imports: &Imports) -> BTreeSet<&String> {
    let mut left: BTreeSet<&String> = imports.keys().collect();
    loop {
        let imported: BTreeSet<&String> = left.iter().flat_map(|file| imports[*file].keys()).collect();
        let stays = |file: &&&String| {
            imported.contains(**file) && imports[**file].keys().any(|other| left.contains(other))
        };
        let rest: BTreeSet<&String> = left.iter().filter(stays).copied().collect();
        if rest.len() == left.len() {
            return rest;
        }
        left = rest;
    }
}

fn circles(imports: &Imports) -> BTreeSet<Circle> {
    let reached = |from: &String| {
        let (mut found, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            for other in imports.get(file).into_iter().flat_map(BTreeMap::keys) {
                if found.insert(other.clone()) {
                    next.push(other);
                }
            }
        }
        found
    };
    let reach: BTreeMap<&String, BTreeSet<String>> =
        tied(imports).into_iter().map(|file| (file, reached(file))).collect();
    let back = |other: &String, file: &String| reach.get(other).is_some_and(|found| found.contains(file));
    let circle = |(file, found): (&&String, &BTreeSet<String>)| -> Circle {
        found.iter().filter(|other| back(other, file)).cloned().collect()
    };
    reach.iter().map(circle).filter(|circle| !circle.is_empty()).collect()
}

/// A circle with the names that tie it, which is what has to move.
fn described(circle: &Circle, imports: &Imports) -> String {
    let mut text = String::new();
    for file in circle {
        for (other, names) in imports[file].iter().filter(|(other, _)| circle.contains(*other)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let _ = writeln!(text, "  {file} takes {} from {other}", names.join(", "));
        }
    }
    text
}

#[test]
fn no_files_import_each_other() {
    let imports = imports(SourceTree::of_this_package());
    assert!(imports.len() > 200, "only {} files import others", imports.len());
    let circles: Vec<String> = circles(&imports).iter().map(|circle| described(circle, &imports)).collect();
    assert!(circles.is_empty(), "{} circles:\n{}", circles.len(), circles.join("\n"));
}

/// The folder of `src/http` that a file is in, or the file itself; its root joins all of them and is left out.
fn folder_of_http(file: &str) -> Option<String> {
    let rest = file.strip_prefix("http/").filter(|rest| *rest != "mod.rs")?;
    rest.split('/').next().map(str::to_owned)
}

#[test]
fn no_folders_of_http_import_each_other() {
    let mut folders = Imports::new();
    for (file, others) in imports(SourceTree::of_this_package()) {
        for (other, names) in others {
            if let (Some(from), Some(to)) = (folder_of_http(&file), folder_of_http(&other))
                && from != to
            {
                folders.entry(from).or_default().entry(to).or_default().extend(names);
            }
        }
    }
    assert!(folders.len() > 10, "only {folders:?}");
    let circles: Vec<String> = circles(&folders).iter().map(|circle| described(circle, &folders)).collect();
    assert!(circles.is_empty(), "{} circles:\n{}", circles.len(), circles.join("\n"));
}

/// The circles of a tree of these files.
fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let files = files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
    let imports = imports(&SourceTree::parse(&files, &[]));
    circles(&imports).iter().map(|circle| described(circle, &imports)).collect()
}

#[test]
fn circles_of_two_files_are_found() {
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::{self, Two}; pub struct One(Two); fn f() { b::go() }"),
        ("b.rs", "pub enum Two {} pub fn go() -> Two { let one = super::a::One::new(); }"),
    ]);
    assert_eq!(found, ["  a.rs takes Two, go from b.rs\n  b.rs takes One from a.rs\n"]);
}

#[test]
fn handed_on_names_lead_to_their_definition() {
    let b = ("inner/b.rs", "pub struct B; use super::A;");
    let files = |shared: &'static str| {
        [
            ("lib.rs", "mod inner;"),
            ("inner/mod.rs", shared),
            ("inner/a.rs", "pub struct A; use crate::inner::B as Other;"),
            b,
        ]
    };
    let expected = ["  inner/a.rs takes B from inner/b.rs\n  inner/b.rs takes A from inner/a.rs\n"];
    assert_eq!(circles_of(&files("mod a; mod b; pub use a::A; pub use b::B;")), expected);
    assert_eq!(circles_of(&files("mod a; mod b; pub use self::{a::*, b::*};")), expected);
}

#[test]
fn calls_into_child_modules_count() {
    let child = ("inner/a.rs", "use super::Shared; pub fn run(shared: Shared) {}");
    let found = circles_of(&[
        ("lib.rs", "mod inner;"),
        ("inner/mod.rs", "mod a; pub struct Shared; fn start() { a::run(Shared) }"),
        child,
    ]);
    assert_eq!(
        found,
        ["  inner/a.rs takes Shared from inner/mod.rs\n  inner/mod.rs takes run from inner/a.rs\n"]
    );
    assert!(
        circles_of(&[("lib.rs", "mod inner;"), ("inner/mod.rs", "mod a; pub struct Shared;"), child])
            .is_empty()
    );
}

#[test]
fn captured_lifetimes_are_no_imports() {
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b;"),
        (
            "a.rs",
            "pub fn f<'s>(s: &'s str) -> impl Iterator + use<'s> { s.split(*) } pub struct One(crate::b::Two);",
        ),
        ("b.rs", "pub struct Two; use crate::a::One;"),
    ]);
    assert_eq!(found, ["  a.rs takes Two from b.rs\n  b.rs takes One from a.rs\n"]);
}

#[test]
fn packages_are_followed_by_their_own_paths() {
    let files = [
        ("lib.rs", "mod a; pub use the_package as package;"),
        ("a.rs", "use crate::package::Two; pub struct One(Two);"),
        ("package/mod.rs", "mod b; mod c; pub use b::Two;"),
        ("package/b.rs", "use crate::c::Three; pub struct Two(Three);"),
        ("package/c.rs", "pub struct Three(crate::Two);"),
    ];
    let files = files.map(|(file, text)| (file.to_owned(), text.to_owned())).into();
    let imports = imports(&SourceTree::parse(&files, &["package"]));
    assert_eq!(imports["a.rs"].keys().collect::<Vec<_>>(), ["package/b.rs"]);
    let circles: Vec<Circle> = circles(&imports).into_iter().collect();
    assert_eq!(circles, [["package/b.rs", "package/c.rs"].map(str::to_owned).into()]);
}

#[test]
fn circles_in_tests_and_comments_are_none() {
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b; #[cfg(test)] mod missing;"),
        (
            "a.rs",
            "pub struct A; #[cfg(test)] mod tests { use crate::b::B; } /* crate::b::B */ const T: &str = \"crate::b::B\";",
        ),
        ("b.rs", "pub struct B(crate::a::A); // super::b\nfn b(a: &super::a::A) { a.b() }"),
    ]);
    assert!(found.is_empty(), "{found:?}");
}
