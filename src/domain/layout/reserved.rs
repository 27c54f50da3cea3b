//! Words that a later version of the format will have.
//!
//! CUDA 13.5 documents partitions that take what is left of a GPU, that grow up to a size, and that several may share. None of it can be
//! asked of the control daemons that this manager speaks to. Each word is refused by its name, so that no document means more than it does.

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny};

/// The value of a word that has no meaning yet.
pub(super) struct ReservedWord;

impl<'de> Deserialize<'de> for ReservedWord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer)?;
        Err(D::Error::custom(
            "remainder, max_chunks and shareable are reserved for partitions as CUDA 13.5 documents them, which version v1 of the format does \
             not have: leave them out, and give the partition a fixed number of chunks",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::KIND;
    use super::super::format::LayoutFormat;
    use super::super::{Invalid, Layout, text};
    use crate::json::{self, Unreadable};

    #[test]
    fn reserved_words_are_refused_by_name() {
        for (word, value) in [("remainder", "true"), ("max_chunks", "7"), ("shareable", "false")] {
            let step =
                format!(r#"{{"add": {{"gpu": 0, "partition": "web", "chunks": 2, "{word}": {value}}}}}"#);
            let json = format!(r#"{{"steps": [{step}]}}"#);
            let Err(Unreadable::Refused(refused)) = json::read::<Layout>(json.as_bytes()) else {
                panic!("{word} was accepted")
            };
            assert_eq!(refused.pointer, format!("/steps/0/add/{word}"));
            assert!(refused.detail.contains("reserved"), "{}", refused.detail);
            let yaml = format!("steps:\n  - add: {{gpu: 0, partition: web, chunks: 2, {word}: {value}}}\n");
            let refused = text::read_layout(&yaml).expect_err("reserved").to_string();
            assert!(refused.contains("reserved") && refused.contains(word), "{refused}");
        }
    }

    #[test]
    fn newer_document_is_refused_before_its_words() {
        let yaml = "version: v2\nlayouts:\n  web:\n    steps:\n      - add: {gpu: 0, partition: web, remainder: true}\n";
        let read = KIND.read::<super::super::document::Document>(yaml, LayoutFormat::Yaml);
        let Invalid { pointer, reason } = read.expect_err("newer");
        assert_eq!(pointer, "/version");
        assert!(reason.to_string().contains("use a newer manager"), "{reason}");
    }
}
