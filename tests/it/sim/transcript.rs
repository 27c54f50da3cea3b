//! Reading the recordings.

use std::path::Path;

/// One thing in a recording, with its line number.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) line: usize,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// `## …`
    Heading(String),
    /// `$ command`, its output and `[rc N]`.
    Command { nobody: bool, text: String, reply: String, rc: i32 },
    /// `# NAME=VALUE …` and the client's lines below it.
    Client { env: Vec<(String, String)>, lines: Vec<String> },
    /// Anything else.
    Line(String),
}

pub(super) fn text(name: &str) -> String {
    fixture("recordings", name)
}

/// A recording that was made on hardware for this crate.
pub(super) fn hardware(name: &str) -> String {
    fixture("hardware", name)
}

fn fixture(dir: &str, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(dir).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(super) fn read(name: &str) -> Vec<Item> {
    let text = text(name);
    let mut lines = text.lines().enumerate().peekable();
    let mut items = Vec::new();
    while let Some((index, line)) = lines.next() {
        let command = line.strip_prefix("$ ").or_else(|| line.strip_prefix("nobody$ "));
        let what = if let Some(command) = command {
            let mut reply = String::new();
            let rc = loop {
                let (_, line) = lines.next().expect("a command ends with its rc");
                match line.strip_prefix("[rc ").and_then(|rest| rest.strip_suffix(']')) {
                    Some(rc) => break rc.parse().unwrap(),
                    None => reply.extend([line, "\n"]),
                }
            };
            What::Command { nobody: line.starts_with("nobody"), text: command.to_owned(), reply, rc }
        } else if let Some(heading) = line.strip_prefix("## ") {
            What::Heading(heading.to_owned())
        } else if let Some(env) = line.strip_prefix("# ").and_then(environment) {
            let mut seen = Vec::new();
            while let Some((_, line)) = lines.next_if(|(_, line)| line.starts_with("  ")) {
                seen.push(line.trim().to_owned());
            }
            What::Client { env, lines: seen }
        } else {
            What::Line(line.to_owned())
        };
        items.push(Item { line: index + 1, what });
    }
    items
}

/// `A=1 B=0=1G, 1=2G`: a space before a name with `=` separates, others belong to the value.
fn environment(text: &str) -> Option<Vec<(String, String)>> {
    let mut variables: Vec<(String, String)> = Vec::new();
    for word in text.split(' ') {
        match word.split_once('=') {
            Some((name, value)) if name.starts_with(|c: char| c.is_ascii_uppercase()) => {
                variables.push((name.to_owned(), value.to_owned()));
            }
            _ => {
                let (_, value) = variables.last_mut()?;
                value.push(' ');
                value.push_str(word);
            }
        }
    }
    Some(variables)
}
