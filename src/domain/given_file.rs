//! Recognition of a file that an operator gives to the console: a host file, a layout document, or a record of a GPU.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The sections that only a host file has.
const OF_A_HOST: [&str; 4] = ["daemons", "tenants", "bindings", "templates"];
/// Kinds of files, in words.
const EXPECTED: &str = "expected is a host file (of `mps-manager export`), a layout document (of Export on a layout's page), or a record \
                        (of `mps-manager record`)";

/// A kind of file.
#[derive(Debug, Clone, PartialEq)]
pub enum GivenFile {
    /// The desired state of a host.
    Host,
    /// Layouts, perhaps with recorded IDs.
    Layouts,
    /// Replies of MPS to static partitions on a GPU.
    Record(RecordHead),
    /// None of them: the reason, with what was expected.
    Other(String),
}

/// The head of a record.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RecordHead {
    format: String,
    /// The version of the program that wrote it.
    pub made_by: String,
    /// Its GPU.
    pub gpu: RecordedProduct,
    commands: Vec<IgnoredAny>,
}

/// The GPU of a record.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RecordedProduct {
    /// The product name.
    pub name: String,
    /// The driver's version.
    pub driver: Option<String>,
}

impl RecordHead {
    /// Returns the number of recorded replies.
    pub fn replies(&self) -> usize {
        self.commands.len()
    }
}

impl GivenFile {
    /// Recognizes a text by its outermost fields; a text that cannot be read is recognized by the words in it.
    #[allow(
        clippy::zero_sized_map_values,
        reason = "the parser reads fields, and their values do not matter"
    )]
    pub fn of(text: &str) -> Self {
        let fields = serde_saphyr::from_str::<BTreeMap<String, IgnoredAny>>(text);
        let has = |name: &str| match &fields {
            Ok(fields) => fields.contains_key(name),
            Err(_) => text.contains(&format!("{name}:")) || text.contains(&format!("\"{name}\"")),
        };
        if has("format") && has("commands") {
            return match serde_json::from_str::<RecordHead>(text) {
                Ok(head) if head.format.starts_with("mps-manager recording ") => Self::Record(head),
                Ok(head) => {
                    Self::Other(format!("its format is {:?}: {EXPECTED}", crate::shortened(head.format)))
                }
                Err(error) => Self::Other(format!("a record that cannot be read: {error}; {EXPECTED}")),
            };
        }
        match &fields {
            _ if OF_A_HOST.iter().any(|section| has(section)) => Self::Host,
            _ if has("layouts") => Self::Layouts,
            // The smallest host file.
            Ok(fields) if fields.keys().eq(["version"]) => Self::Host,
            Ok(fields) if !fields.is_empty() => {
                let names: Vec<String> = fields.keys().take(5).map(|name| format!("`{name}`")).collect();
                Self::Other(format!("its fields are {}: {EXPECTED}", crate::shortened(names.join(", "))))
            }
            _ => Self::Other(format!("it is no YAML or JSON with named fields: {EXPECTED}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_recognized_by_their_fields() {
        for (text, expected) in [
            ("version: v1\ndaemons: {gpu0: {gpus: [0]}}\nlayouts: {}", GivenFile::Host),
            ("{\"version\": \"v1\", \"tenants\": {}}", GivenFile::Host),
            ("version: v1", GivenFile::Host),
            ("version: v1\ntenants:\n  web: {daemon: gpu0\n", GivenFile::Host),
            ("version: v1\nlayouts: {web: {steps: []}}", GivenFile::Layouts),
            ("{\"layouts\": {\"web\": }", GivenFile::Layouts),
        ] {
            assert_eq!(GivenFile::of(text), expected, "{text}");
        }
    }

    #[test]
    fn record_tells_its_gpu_and_its_replies() {
        let record = r#"{"format": "mps-manager recording 1", "made_by": "0.1.0", "version": "", "help": "", "log": [],
            "gpu": {"name": "NVIDIA L40S", "driver": "590.44", "sms": 142}, "commands": [{"line": "lspart", "reply": ""}]}"#;
        let GivenFile::Record(head) = GivenFile::of(record) else { panic!("no record") };
        assert_eq!((head.gpu.name.as_str(), head.replies()), ("NVIDIA L40S", 1));
        for wrong in [
            record.replace("recording 1", "tape 1").replace("mps-manager", "x"),
            record.replace("made_by", "by"),
        ] {
            assert!(matches!(GivenFile::of(&wrong), GivenFile::Other(_)), "{wrong}");
        }
    }

    #[test]
    fn other_files_are_refused_with_what_was_expected() {
        for (text, part) in [
            ("kind: Pod\nmetadata: {}", "`kind`, `metadata`"),
            ("\u{7f}ELF\u{1}", "no YAML or JSON"),
            ("", "no YAML or JSON"),
            ("- 1\n- 2", "no YAML or JSON"),
        ] {
            let GivenFile::Other(why) = GivenFile::of(text) else { panic!("{text:?}") };
            assert!(why.contains(part), "{why}");
            assert!(
                ["mps-manager export", "layout document", "mps-manager record"]
                    .iter()
                    .all(|one| why.contains(one)),
                "{why}"
            );
        }
    }
}
