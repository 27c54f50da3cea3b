//! Host files as text: YAML and JSON.

use super::{HostFile, VERSION};
use crate::InvalidValue;
use crate::layout::Invalid;
use crate::layout::format::DocumentKind;
use crate::layout::text::LayoutFormat;

/// Host files.
const KIND: DocumentKind = DocumentKind {
    noun: "host file",
    version: VERSION,
    // Room for the lines around the place, and twice the expectation there.
    longest_refusal: 1600,
};

/// Reads a host file; fails with the place of each error that does not depend on the host.
pub fn read(text: &str, format: LayoutFormat) -> Result<HostFile, Vec<Invalid>> {
    let file: HostFile = KIND.read(text, format).map_err(|error| {
        let Invalid { pointer, reason } = without_layout(error);
        let reason = match other_format(text) {
            Some(hint) => InvalidValue(format!("{hint}. {reason}")),
            None => reason,
        };
        vec![Invalid { pointer, reason }]
    })?;
    let wrong = file.check();
    if wrong.is_empty() { Ok(file) } else { Err(wrong) }
}

/// Recognizes a file of another program in a text that could not be read as a host file, and returns a hint for the refusal.
fn other_format(text: &str) -> Option<&'static str> {
    let has = |line: &str| text.lines().any(|written| written.trim() == line);
    if has("kind: ConfigMap") {
        return Some("this is a ConfigMap of Kubernetes: give the file that its data holds");
    }
    (has("sharing:") && has("mps:")).then_some(
        "this is a configuration of NVIDIA's device plugin: its `replicas: N` under `sharing.mps` is the `clients_per_gpu: N` of a template \
         here (docs/host-file.md)",
    )
}

/// Removes `layout` from a refusal that lists the fields of a daemon: a host file has it under `bindings`.
fn without_layout(Invalid { pointer, reason }: Invalid) -> Invalid {
    const FIELDS: &str = "this takes gpus, ";
    let reason = match reason.0.split_once(FIELDS) {
        Some((before, fields)) => {
            InvalidValue(format!("{before}{FIELDS}{}", fields.replacen("layout, ", "", 1)))
        }
        None => reason,
    };
    Invalid { pointer, reason }
}

/// Writes an exported host file.
pub fn write(exported: &super::ExportedHost, format: LayoutFormat) -> String {
    match format {
        LayoutFormat::Yaml => {
            let text = serde_saphyr::to_string(exported).expect("a host file is plain data");
            format!("{MODELINE}\n{text}")
        }
        LayoutFormat::Json => serde_json::to_string_pretty(exported).expect("a host file is plain data"),
    }
}

/// The first line of a host file: editors find the schema by it.
const MODELINE: &str = "# yaml-language-server: $schema=host-v1.schema.json";
