//! Layout documents as text: YAML, JSON, and the shell scripts by which partitions are made by hand.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::document::{Document, Entry, check_version};
use super::{AddStep, Enforcement, Invalid, Layout, Role, Step};
use crate::domain::{InvalidValue, LayoutName, PartitionName};

/// How a document is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// YAML, and therefore JSON too.
    Yaml,
    /// JSON.
    Json,
}

#[derive(Deserialize)]
struct Versioned {
    version: String,
}

/// Reads a document and checks it.
///
/// The version is read first, since a newer one may have fields that this one refuses.
pub fn read(text: &str, format: Format) -> Result<Document, Invalid> {
    let unreadable = |error: &dyn std::fmt::Display| Invalid {
        pointer: String::new(),
        reason: InvalidValue(format!("the document cannot be read: {error}")),
    };
    let (versioned, document): (Result<Versioned, _>, Result<Document, _>) = match format {
        Format::Yaml => (
            serde_saphyr::from_str(text).map_err(|error| unreadable(&error)),
            serde_saphyr::from_str(text).map_err(|error| unreadable(&error)),
        ),
        Format::Json => (
            serde_json::from_str(text).map_err(|error| unreadable(&error)),
            serde_json::from_str(text).map_err(|error| unreadable(&error)),
        ),
    };
    if let Ok(Versioned { version }) = versioned {
        check_version(&version).map_err(|reason| Invalid { pointer: "/version".into(), reason })?;
    }
    let document = document?;
    document.check()?;
    Ok(document)
}

/// Writes a document.
pub fn write(document: &Document, format: Format) -> String {
    match format {
        Format::Yaml => serde_saphyr::to_string(document).expect("a document is plain data"),
        Format::Json => serde_json::to_string_pretty(document).expect("a document is plain data"),
    }
}

/// Makes a layout of the `sm_partition add` lines of a shell script, in whatever way it hands them to the control program.
///
/// A device by number is the role of that number; devices by UUID are roles in the order in which they appear. Partitions are
/// called `part_1`, `part_2` and so on, as a script has no names for them. A line that cannot be understood, such as one with
/// a shell variable, is refused with its number, and so is a removal, whose ID would be one of that machine.
pub fn from_shell(script: &str) -> Result<Layout, InvalidValue> {
    let mut roles: BTreeMap<String, Role> = BTreeMap::new();
    let mut steps: Vec<Step> = Vec::new();
    for (number, line) in (1..).zip(script.lines()) {
        let code = without_comment(line);
        for (at, _) in code.match_indices("sm_partition") {
            let mut words = code[at..].split(|c: char| c.is_whitespace() || "\"'|;&<>()".contains(c)).skip(1);
            let refused = |why: &str| InvalidValue(format!("line {number}: {why}: {}", line.trim()));
            match words.next() {
                Some("add") => {}
                Some("rm") => {
                    return Err(refused(
                        "a removal names an ID of that machine: write the layout with steps of its own instead",
                    ));
                }
                _ => return Err(refused("only `sm_partition add GPU CHUNKS` is understood")),
            }
            let device = words.next().unwrap_or_default();
            let chunks = words.next().unwrap_or_default();
            let chunks: u32 = chunks.parse().map_err(|_| refused("the number of chunks is no number"))?;
            let gpu = role(&mut roles, device).map_err(refused)?;
            let partition = PartitionName::parse(&format!("part_{}", steps.len() + 1))?;
            steps.push(Step::Add(AddStep { gpu, partition, chunks, tenants: Vec::new() }));
        }
    }
    if steps.is_empty() {
        return Err(InvalidValue("there is no line with `sm_partition add GPU CHUNKS` in the script".into()));
    }
    let layout = Layout { enforcement: Enforcement::Static, sku: None, steps };
    layout.check().map_err(|invalid| invalid.reason)?;
    Ok(layout)
}

/// A document of one layout without anything recorded.
pub fn bare(name: LayoutName, layout: &Layout, note: Option<String>) -> Document {
    Document {
        version: super::document::VERSION.to_owned(),
        layouts: BTreeMap::from([(name, Entry::of(layout, note, None))]),
        checksum: None,
    }
}

fn role(roles: &mut BTreeMap<String, Role>, device: &str) -> Result<Role, &'static str> {
    let by_uuid = device.starts_with("GPU-");
    if roles.keys().any(|known| known.starts_with("GPU-") != by_uuid) {
        return Err("devices are named by number and by UUID: use one of the two throughout");
    }
    let next = Role::try_from(roles.len()).unwrap_or(Role::MAX);
    let role = if by_uuid {
        *roles.get(device).unwrap_or(&next)
    } else {
        device.parse().map_err(|_| "the device is neither a number nor a UUID")?
    };
    roles.insert(device.to_owned(), role);
    Ok(role)
}

/// The line up to a `#` that begins a word outside quotes.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (at, letter) in line.char_indices() {
        match (quote, letter) {
            (None, '#') if before.is_whitespace() => return &line[..at],
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            _ => {}
        }
        before = letter;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::super::document::{Fingerprint, Provenance, Recorded};
    use super::*;
    use crate::domain::{DaemonName, PartitionId};

    const BY_HAND: &str = "
version: v1
layouts:
  web_prod:
    sku: NVIDIA H200
    note: two teams
    steps:
      - add: {gpu: 0, partition: big, chunks: 7, tenants: [web, batch]}
      - add: {gpu: 0, partition: spare, chunks: 2}
      - remove: {partition: spare}
";

    fn exported() -> Document {
        let mut document = read(BY_HAND, Format::Yaml).expect("read");
        let id = |text: &str| PartitionId::parse(text).expect("an ID");
        for entry in document.layouts.values_mut() {
            entry.recorded = Some(Recorded {
                // All of these would be read as something else by a careless writer of YAML.
                ids: vec![id("1e5"), id("0x1F"), id("null")],
                shares: Vec::new(),
                fingerprint: Fingerprint {
                    simulated: true,
                    sku: "NVIDIA H200".into(),
                    sms: 132,
                    chunk_sms: 8,
                    chunk_count: 15,
                    protocol: 2,
                    binary_version: 13_010,
                    driver_version: "590.44.01".into(),
                },
                provenance: Provenance {
                    host: "host-a".into(),
                    daemon: DaemonName::parse("gpu0").expect("name"),
                    layout_version: 3,
                    author: "ann: \"the first\"".into(),
                    exported_at: 2,
                    manager_version: "0.1.0".into(),
                },
            });
        }
        Document::sealed(document.layouts)
    }

    #[test]
    fn what_is_written_by_hand_needs_no_more_than_steps() {
        let document = read(BY_HAND, Format::Yaml).expect("read");
        let layout = document.layouts.values().next().expect("one").layout();
        assert_eq!((layout.enforcement, layout.steps.len()), (Enforcement::Static, 3));
        assert_eq!(layout.partitions().count(), 1);
    }

    #[test]
    fn an_export_reads_as_it_was_written_in_both_spellings() {
        let document = exported();
        for format in [Format::Yaml, Format::Json] {
            let text = write(&document, format);
            assert_eq!(read(&text, format).expect(&text), document, "{text}");
        }
        assert_eq!(read(&write(&document, Format::Json), Format::Yaml).expect("JSON is YAML"), document);
    }

    #[test]
    fn an_edited_export_is_refused_and_one_of_a_newer_shape_too() {
        let text = write(&exported(), Format::Yaml);
        let edited = text.replace("chunks: 7", "chunks: 6");
        assert_ne!(text, edited);
        let error = read(&edited, Format::Yaml).expect_err("edited");
        assert_eq!(error.pointer, "/checksum");
        let newer = text.replace("version: v1", "version: v2\nsurprise: 1");
        let error = read(&newer, Format::Yaml).expect_err("newer");
        assert!(error.pointer == "/version" && error.reason.to_string().contains("newer manager"), "{error}");
        let error = read("version: v1\nlayouts: {}\ncolour: 1\n", Format::Yaml).expect_err("unknown field");
        assert!(error.reason.to_string().contains("colour"), "{error}");
    }

    #[test]
    fn a_document_cannot_unfold_to_more_than_it_is() {
        let mut bomb = String::from("version: v1\nlayouts:\n  a: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let last = level - 1;
            let aliases = vec![format!("*a{last}"); 10].join(", ");
            bomb = format!("{bomb}  b{level}: &a{level} [{aliases}]\n");
        }
        assert!(read(&bomb, Format::Yaml).is_err());
    }

    #[test]
    fn a_script_becomes_a_layout() {
        let script = "#!/bin/sh\n# sm_partition add 9 9\necho \"sm_partition add 0 7\" | nvidia-cuda-mps-control\n\
                      nvidia-cuda-mps-control <<EOF\nsm_partition add 0 4\nsm_partition add 1 15\nEOF\n";
        let layout = from_shell(script).expect("understood");
        let adds: Vec<_> =
            layout.adds().map(|add| (add.gpu, add.partition.as_str().to_owned(), add.chunks)).collect();
        assert_eq!(adds, [(0, "part_1".into(), 7), (0, "part_2".into(), 4), (1, "part_3".into(), 15)]);
        let by_uuid =
            from_shell("sm_partition add GPU-b 1; sm_partition add GPU-a 2; sm_partition add GPU-b 3")
                .expect("read");
        assert_eq!(by_uuid.adds().map(|add| add.gpu).collect::<Vec<_>>(), [0, 1, 0]);
        for (bad, said) in [
            ("sm_partition add $GPU 7", "neither a number nor a UUID"),
            ("sm_partition add 0 $N", "no number"),
            ("echo\nsm_partition rm GPU-a/Dx4A", "line 2"),
            ("sm_partition add GPU-a 1\nsm_partition add 0 1", "throughout"),
            ("lspart", "no line"),
            ("sm_partition add 0 0", "0 chunks"),
        ] {
            let error = from_shell(bad).expect_err(bad).to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
