//! Layout documents at volume.

use super::MAX_STEPS;
use super::document::Document;
use super::text::{LayoutFormat, read, write};
use crate::fuzz_inputs::Inputs;

/// The most words of a refusal, in bytes.
const WORDS: usize = 4 << 10;

const BY_HAND: &str = "version: v1
layouts:
  web_prod:
    sku: NVIDIA H200
    note: two teams
    steps:
      - add: {gpu: 0, partition: big, chunks: 7, tenants: [web, batch]}
      - add: {gpu: 0, partition: spare, chunks: 2}
      - remove: {partition: spare}
";
const RECORDED: &str = "version: v1
layouts:
  a:
    enforcement: percentage
    steps:
      - add: {gpu: 0, partition: big, chunks: 7}
    recorded:
      ids: ['1e5', '0x1F']
      fingerprint: {simulated: true, sku: NVIDIA H200, sms: 132, chunk_sms: 8, chunk_count: 15, protocol: 2, binary_version: 13010, driver_version: '590'}
      provenance: {host: a, daemon: gpu0, layout_version: 3, author: ann, exported_at: 2, manager_version: 0.1.0}
checksum: sha256:0000000000000000000000000000000000000000000000000000000000000000
";
const WORDS_OF_DOCUMENTS: [&str; 30] = [
    "\n",
    "  ",
    ": ",
    "- ",
    "version",
    "v1",
    "layouts",
    "steps",
    "add",
    "remove",
    "gpu",
    "partition",
    "chunks",
    "tenants",
    "recorded",
    "checksum",
    "&a ",
    "*a",
    "<<: *a",
    "!!binary ",
    "|\n",
    ">-\n",
    "'",
    "\"",
    "{",
    "}",
    "[",
    "]",
    "null",
    "---\n",
];

fn hold(format: LayoutFormat, samples: &[String]) {
    Inputs::new(samples, &WORDS_OF_DOCUMENTS).check_text(|text| match read(text, format) {
        Ok(document) => {
            let steps = document.layouts.values().map(|entry| entry.layout().steps.len());
            assert!(steps.clone().all(|steps| steps <= MAX_STEPS));
            for format in [LayoutFormat::Yaml, LayoutFormat::Json] {
                let printed = write(&document, format);
                assert_eq!(read(&printed, format).as_ref(), Ok(&document), "{printed}");
            }
            true
        }
        Err(invalid) => {
            assert!(invalid.to_string().len() <= WORDS, "{} bytes of words", invalid.to_string().len());
            false
        }
    });
}

fn sealed() -> Document {
    Document::sealed(read(BY_HAND, LayoutFormat::Yaml).expect("read").layouts)
}

#[test]
fn yaml_documents() {
    hold(LayoutFormat::Yaml, &[BY_HAND.into(), RECORDED.into(), write(&sealed(), LayoutFormat::Yaml)]);
}

#[test]
fn json_documents() {
    let by_hand = read(BY_HAND, LayoutFormat::Yaml).expect("read");
    hold(LayoutFormat::Json, &[write(&by_hand, LayoutFormat::Json), write(&sealed(), LayoutFormat::Json)]);
}
