//! Layout documents as text: YAML and JSON.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::Spanned;

use super::document::{Document, DocumentLayout, KIND};
pub use super::format::LayoutFormat;
use super::yaml_words::rendered;
use super::{Invalid, InvalidValue, Layout};
use crate::{LayoutName, shortened};

/// Reads a layout document and checks it.
pub fn read(text: &str, format: LayoutFormat) -> Result<Document, Invalid> {
    let document: Document = KIND.read(text, format)?;
    document.check()?;
    Ok(document)
}

/// Writes a document.
pub fn write(document: &Document, format: LayoutFormat) -> String {
    match format {
        LayoutFormat::Yaml => serde_saphyr::to_string(document).expect("a document is plain data"),
        LayoutFormat::Json => serde_json::to_string_pretty(document).expect("a document is plain data"),
    }
}

/// Creates a document of one layout without anything recorded.
pub fn bare(name: LayoutName, layout: &Layout, note: Option<String>) -> Document {
    Document {
        version: super::document::VERSION.to_owned(),
        layouts: BTreeMap::from([(name, DocumentLayout::of(layout, note, None))]),
        checksum: None,
    }
}

/// Reads the YAML of a layout by itself, as an entry of a document; it may be invalid by [`Layout::check`]. A refusal begins with the line.
pub fn read_layout(text: &str) -> Result<Layout, InvalidValue> {
    serde_saphyr::from_str(text).map_err(|error| {
        let refusal = rendered(&error, "begin it with `steps:`", text);
        InvalidValue(shortened(refusal.lines().next().unwrap_or_default().to_owned()))
    })
}

/// Writes the YAML of a layout by itself.
pub fn write_layout(layout: &Layout) -> String {
    serde_saphyr::to_string(layout).expect("a layout is plain data")
}

/// Returns the line on which each step begins in the YAML of a layout; none if it cannot be read.
pub fn lines_of_steps(text: &str) -> Vec<u64> {
    #[derive(Default, Deserialize)]
    struct Lines {
        steps: Vec<Spanned<IgnoredAny>>,
    }
    let Lines { steps } = serde_saphyr::from_str(text).unwrap_or_default();
    steps.iter().map(|step| step.referenced.line()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Enforcement;
    use super::super::document::{Fingerprint, Provenance, Recorded};
    use super::*;
    use crate::{DaemonName, PartitionId};

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
        let mut document = read(BY_HAND, LayoutFormat::Yaml).expect("read");
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
    fn handwritten_document_needs_only_steps() {
        let document = read(BY_HAND, LayoutFormat::Yaml).expect("read");
        let layout = document.layouts.values().next().expect("one").layout();
        assert_eq!((layout.enforcement, layout.steps.len()), (Enforcement::Static, 3));
        assert_eq!(layout.partitions().count(), 1);
    }

    #[test]
    fn layout_is_written_with_one_line_a_step() {
        let layout =
            read(BY_HAND, LayoutFormat::Yaml).expect("read").layouts.values().next().expect("one").layout();
        let text = write_layout(&layout);
        assert_eq!(
            text,
            "enforcement: static\nsku: NVIDIA H200\nsteps:\n- add: {gpu: 0, partition: big, chunks: 7, tenants: [web, batch]}\n\
             - add: {gpu: 0, partition: spare, chunks: 2}\n- remove: {partition: spare}\n"
        );
        assert_eq!(read_layout(&text), Ok(layout));
        assert_eq!((lines_of_steps(&text), lines_of_steps("steps: 1")), (vec![4, 5, 6], vec![]));
        let mistyped =
            read_layout(&text.replace("chunks: 2", "chunks: two")).expect_err("no number").to_string();
        assert!(mistyped.starts_with("line 5 column ") && mistyped.contains("a whole number"), "{mistyped}");
        assert!(!mistyped.contains('\n'), "{mistyped}");
        assert_eq!(
            read_layout("# later").expect_err("nothing").to_string(),
            "it is empty: begin it with `steps:`"
        );
    }

    #[test]
    fn export_reads_back_in_yaml_and_json() {
        let document = exported();
        for format in [LayoutFormat::Yaml, LayoutFormat::Json] {
            let text = write(&document, format);
            assert_eq!(read(&text, format).expect(&text), document, "{text}");
        }
        assert_eq!(
            read(&write(&document, LayoutFormat::Json), LayoutFormat::Yaml).expect("JSON is YAML"),
            document
        );
    }

    #[test]
    fn edited_or_newer_export_is_refused() {
        let text = write(&exported(), LayoutFormat::Yaml);
        let edited = text.replace("chunks: 7", "chunks: 6");
        assert_ne!(text, edited);
        let mut long = exported();
        long.checksum = Some("x".repeat(1 << 20));
        let message = long.check().expect_err("no checksum").to_string();
        assert!(message.starts_with("the checksum xxx") && message.len() < 1000, "{} bytes", message.len());
        assert!(!message.contains(&long.digest()), "the checksum that would seal what was edited: {message}");
        let error = read(&edited, LayoutFormat::Yaml).expect_err("edited");
        assert_eq!(error.pointer, "/checksum");
        // Nor does it help to take the checksum out.
        let unsealed = |text: &str| -> String {
            text.split_inclusive('\n').filter(|line| !line.starts_with("checksum:")).collect()
        };
        for taken_out in [unsealed(&text), unsealed(&edited)] {
            let error = read(&taken_out, LayoutFormat::Yaml).expect_err("no checksum");
            assert_eq!(error.pointer, "/checksum");
            assert!(error.reason.to_string().contains("export it again"), "{error}");
        }
        let newer = text.replace("version: v1", "version: v2\nsurprise: 1");
        let error = read(&newer, LayoutFormat::Yaml).expect_err("newer");
        assert!(error.pointer == "/version" && error.reason.to_string().contains("newer manager"), "{error}");
        let error =
            read("version: v1\nlayouts: {}\ncolour: 1\n", LayoutFormat::Yaml).expect_err("unknown field");
        assert!(error.reason.to_string().contains("colour"), "{error}");
    }

    #[test]
    fn document_values_are_validated_like_requests() {
        let long = "x".repeat(1025);
        for (line, replacement, pointer) in [
            ("note: two teams", "note: \"a\\u001b[2Jb\"", "/layouts/web_prod/note"),
            ("note: two teams", &format!("note: {long}"), "/layouts/web_prod/note"),
            ("sku: NVIDIA H200", "sku: \"\"", "/layouts/web_prod/sku"),
            ("sku: NVIDIA H200", "sku: \" NVIDIA H200\"", "/layouts/web_prod/sku"),
            ("sku: NVIDIA H200", "sku: \"NVIDIA\\u0007H200\"", "/layouts/web_prod/sku"),
            ("sku: NVIDIA H200", &format!("sku: {}", &long[..97]), "/layouts/web_prod/sku"),
        ] {
            let error = read(&BY_HAND.replace(line, replacement), LayoutFormat::Yaml).expect_err(replacement);
            assert_eq!(error.pointer, pointer, "{replacement}: {error}");
            assert!(!error.to_string().contains('\u{7}'), "{error:?}");
        }
        let longest = BY_HAND.replace("sku: NVIDIA H200", &format!("sku: {}", &long[..96]));
        let longest = longest.replace("note: two teams", &format!("note: {}", &long[..1024]));
        read(&longest, LayoutFormat::Yaml).expect("as long as it may be");
    }

    #[test]
    fn refusal_shortens_long_keys() {
        let long = "x".repeat(100_000);
        let json = format!("{{\"version\": \"v1\", \"layouts\": {{}}, \"{long}\": 1}}");
        let error = read(&json, LayoutFormat::Json).expect_err("unknown field").to_string();
        assert!(error.len() < 1000 && error.contains("xxx…") && error.contains("checksum"), "{error}");
        let yaml = format!("version: v1\nlayouts: {{}}\n{long}: 1\n");
        let error = read(&yaml, LayoutFormat::Yaml).expect_err("no key is so long").to_string();
        assert!(error.len() < 1000, "{error}");
    }

    #[test]
    fn yaml_alias_expansion_is_refused() {
        let mut bomb = String::from("version: v1\nlayouts:\n  a: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let last = level - 1;
            let aliases = vec![format!("*a{last}"); 10].join(", ");
            bomb = format!("{bomb}  b{level}: &a{level} [{aliases}]\n");
        }
        assert!(read(&bomb, LayoutFormat::Yaml).is_err());
    }
}
