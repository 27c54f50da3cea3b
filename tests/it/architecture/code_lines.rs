//! How much code there is, and how much there may be.
//!
//! A line of code is one of `src` outside tests that is neither blank, nor comment or doc, nor part of a `use`. The simulator is counted
//! apart: it is what the program is tried on, and no part of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::{part, sources};

/// The file that says how far the program may grow.
const CEILINGS: &str = ".ci/ceilings.toml";
/// The simulator's folder.
const SIMULATOR: &str = "sim";

/// Returns how a line's braces move the depth, with those in strings, characters and comments left out, whether one opens, and whether the code
/// of the line ends with a semicolon.
fn braces(line: &str) -> (i32, bool, bool) {
    let (mut depth, mut opened) = (0, false);
    let mut rest = line;
    while let Some(letter) = rest.chars().next() {
        let mut length = letter.len_utf8();
        match letter {
            '{' => {
                depth += 1;
                opened = true;
            }
            '}' => depth -= 1,
            '/' if rest.starts_with("//") => break,
            '"' | '\'' => length = quoted(rest, letter).unwrap_or(length),
            _ => {}
        }
        rest = &rest[length..];
    }
    let code = line[..line.len() - rest.len()].trim_end();
    (depth, opened, code.ends_with(';'))
}

/// The length of a string or a character at the beginning of a text; `None` for a quote that is none, as a lifetime's.
fn quoted(text: &str, quote: char) -> Option<usize> {
    let mut letters = text.char_indices().skip(1);
    let mut inside = 0;
    while let Some((at, letter)) = letters.next() {
        if letter == quote {
            return (quote == '"' || inside == 1).then_some(at + 1);
        }
        if letter == '\\' {
            letters.next();
        }
        inside += 1;
        if quote == '\'' && inside > 1 {
            return None;
        }
    }
    None
}

/// The lines without the items that are compiled for tests only.
fn product_lines(text: &str) -> Vec<&str> {
    let mut kept = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let attribute = line.trim_start();
        if !attribute.starts_with("#[cfg(test") && !attribute.starts_with("#[cfg(all(test") {
            kept.push(line);
            continue;
        }
        let is_prefix =
            |line: &&str| line.trim_start().starts_with("#[") || line.trim_start().starts_with("//");
        while lines.next_if(is_prefix).is_some() {}
        let (mut depth, mut opened) = (0, false);
        for line in lines.by_ref() {
            let (change, opens, ends) = braces(line);
            depth += change;
            opened |= opens;
            let ended = if opened { depth <= 0 } else { ends };
            if ended {
                break;
            }
        }
    }
    kept
}

/// Returns whether a trimmed line begins a `use`, with any visibility.
fn begins_use(line: &str) -> bool {
    let item = match line.strip_prefix("pub") {
        Some(rest) => {
            rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest)
        }
        None => line,
    };
    item.trim_start().starts_with("use ")
}

/// The lines of code in the text of a file.
fn code_lines(text: &str) -> usize {
    let (mut count, mut in_use, mut in_comment) = (0, false, false);
    for line in product_lines(text).into_iter().map(str::trim) {
        if in_comment || line.starts_with("/*") {
            in_comment = !line.contains("*/");
        } else if in_use || begins_use(line) {
            in_use = !line.ends_with(';');
        } else if !line.is_empty() && !line.starts_with("//") {
            count += 1;
        }
    }
    count
}

/// Returns whether a file of `src` holds nothing but tests.
fn is_of_tests(inside: &Path) -> bool {
    let folders = inside.parent().expect("a folder");
    inside.ends_with("tests.rs")
        || inside.ends_with("fuzz.rs")
        || folders.iter().any(|folder| folder == "tests")
}

/// The lines of code of each folder of `src`; files beside the folders count as one.
fn by_folder() -> BTreeMap<String, usize> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut folders = BTreeMap::new();
    for file in files {
        let inside: PathBuf = file.strip_prefix(&root).expect("a file of src").into();
        if is_of_tests(&inside) {
            continue;
        }
        let folder = if inside.iter().count() > 1 { part(&file) } else { "(files)".to_owned() };
        *folders.entry(folder).or_default() += code_lines(&fs::read_to_string(&file).expect("text"));
    }
    folders
}

#[test]
fn program_stays_below_its_ceiling() {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(CEILINGS)).expect("the ceilings");
    let ceilings: toml::Table = text.parse().expect("TOML");
    let ceiling = ceilings["code_lines"].as_integer().and_then(|lines| usize::try_from(lines).ok());
    let ceiling = ceiling.expect("a number of lines");

    let mut folders = by_folder();
    let simulator = folders.remove(SIMULATOR).expect("the simulator");
    let program: usize = folders.values().sum();
    let mut table = String::new();
    let mut rows: Vec<_> = folders.into_iter().collect();
    rows.sort_by_key(|(_, lines)| std::cmp::Reverse(*lines));
    for (folder, lines) in rows {
        let _ = writeln!(table, "{lines:7} {folder}");
    }
    println!("{table}{program:7} lines of code, and at most {ceiling} (the simulator apart: {simulator})");
    assert!(simulator > 1000 && program > 10_000, "hardly anything was counted");
    assert!(
        program <= ceiling,
        "{program} lines of code are more than the {ceiling} of {CEILINGS}: look for what the change makes unnecessary"
    );
}

#[test]
fn only_code_outside_tests_counts() {
    assert_eq!(
        code_lines(
            "//! Doc.\n\nuse a::{\n    b,\n};\npub(in crate::x) use c;\npub fn f() {\n    // Why.\n    g();\n}\n"
        ),
        3
    );
    assert_eq!(code_lines("/* One.\n two */\nstruct S;\n/* Three. */\n"), 1);
    assert_eq!(code_lines("#[cfg(test)]\nmod tests;\nstruct S;\n"), 1);
    assert_eq!(
        code_lines(
            "#[cfg(test)]\n#[allow(x)]\nmod tests {\n    const B: &str = \"}\";\n    fn f() {}\n}\nstruct S;\n"
        ),
        1
    );
    assert_eq!(
        code_lines(
            "#[cfg(all(test, unix))]\nfn f<'a>(x: &'a str, c: char) {\n    c == '}' // }\n}\nstruct S;\n"
        ),
        1
    );
    assert_eq!(code_lines("#[cfg(test)]\nmod tests; // Why.\nstruct S;\n"), 1);
    // An attribute of another kind stays.
    assert_eq!(code_lines("#[cfg(unix)]\nmod unix;\n"), 2);
}

#[test]
fn files_of_tests_are_left_out() {
    for file in ["fuzz.rs", "domain/tests.rs", "supervisor/tests/script.rs", "domain/layout/fuzz.rs"] {
        assert!(is_of_tests(Path::new(file)), "{file}");
    }
    for file in ["lib.rs", "domain/tests_of.rs", "supervisor/driver/mod.rs"] {
        assert!(!is_of_tests(Path::new(file)), "{file}");
    }
}
