//! Layout documents and shell scripts at volume.

use super::document::Document;
use super::text::{Format, bare, read, write};
use super::{MAX_STEPS, shell};
use crate::domain::{InvalidValue, LayoutName};
use crate::fuzz::Inputs;

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

fn hold(format: Format, samples: &[String]) {
    Inputs::new(samples, &WORDS_OF_DOCUMENTS).check_text(|text| match read(text, format) {
        Ok(document) => {
            let steps = document.layouts.values().map(|entry| entry.layout().steps.len());
            assert!(steps.clone().all(|steps| steps <= MAX_STEPS));
            for format in [Format::Yaml, Format::Json] {
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
    Document::sealed(read(BY_HAND, Format::Yaml).expect("read").layouts)
}

#[test]
fn yaml_documents() {
    hold(Format::Yaml, &[BY_HAND.into(), RECORDED.into(), write(&sealed(), Format::Yaml)]);
}

#[test]
fn json_documents() {
    let by_hand = read(BY_HAND, Format::Yaml).expect("read");
    hold(Format::Json, &[write(&by_hand, Format::Json), write(&sealed(), Format::Json)]);
}

#[test]
fn shell_scripts() {
    let samples = [
        "#!/bin/sh\necho \"sm_partition add 0 7\" | nvidia-cuda-mps-control\nnvidia-cuda-mps-control <<EOF\nsm_partition add 0 4\nsm_partition add 1 15\nEOF\n",
        "printf '%s\\n' 'sm_partition add 0 7' \\\n  'sm_partition add 0 4' | nvidia-cuda-mps-control",
        "\tcat <<-'EOF' | nvidia-cuda-mps-control || exit 1\n\tsm_partition add 0 7\n\tEOF\nsm_partition add 0 4",
        "ID=$(echo sm_partition add 0 7 | nvidia-cuda-mps-control)\r\n",
        "usage() { echo 'if you want to'; }\nif [ -z \"$1\" ]; then usage; fi\ncase $1 in a|b) ;; (*) exit 1 ;; esac\nn=$((3*(1+2)))\nfor i in 1 2; do\n  last &\ndone\n",
        "sm_partition add GPU-b 1; sm_partition add GPU-a 2",
    ];
    let words = [
        "sm_partition",
        " add ",
        " rm ",
        "quit",
        "echo ",
        "printf ",
        "'",
        "\"",
        "$",
        "$(",
        "${",
        "`",
        "(",
        ")",
        "{",
        "}",
        ";",
        ";;",
        "|",
        "||",
        "&&",
        "&",
        "<<EOF\n",
        "<<-'E'\n",
        "<<<",
        "EOF",
        "\n",
        "\\",
        "#",
        ">",
        "2>&1",
        "for ",
        "do ",
        "done",
        "if ",
        "then ",
        "fi",
        "case ",
        "esac",
        "while ",
        "function ",
    ];
    Inputs::new(samples, &words).check_text(|script| match shell::read(script) {
        Ok(layout) => {
            assert_eq!(layout.check(), Ok(()));
            let document = bare(LayoutName::parse("a").expect("a name"), &layout, None);
            assert_eq!(read(&write(&document, Format::Yaml), Format::Yaml), Ok(document));
            true
        }
        Err(InvalidValue(why)) => {
            assert!(why.len() <= WORDS, "{} bytes of words", why.len());
            false
        }
    });
}
