//! Host files at volume.

use super::HostFile;
use super::text::read;
use crate::fuzz_inputs::Inputs;
use crate::layout::text::LayoutFormat;

/// The most words of one refusal, in bytes.
const WORDS: usize = 4 << 10;

const FILE: &str = "version: v1
layouts:
  prod: {sku: NVIDIA H200, note: two teams, steps: [{add: {gpu: 0, partition: big, chunks: 7, tenants: [web]}}]}
daemons:
  gpu0: {gpus: [0], mode: static, defaults: {device_memory_limit: 4G}, memory_overcommit: 1.5}
tenants:
  web: {daemon: gpu0, uid: 7, gpus: ['0'], device_memory_limit: 1.5G, sms: 8, labels: {team: a}}
bindings:
  gpu0: {layout: prod, version: 2, gpu_map: {0: 1}, drift_policy: repair}
";
const GRAMMAR: [&str; 24] = [
    "\n", "  ", ": ", "- ", "version", "v1", "layouts", "daemons", "tenants", "bindings", "gpus", "daemon",
    "layout", "gpu_map", "steps", "&a ", "*a", "<<: *a", "'", "\"", "{", "}", "[", "]",
];

fn hold(format: LayoutFormat, sample: &str) {
    Inputs::new([sample], &GRAMMAR).check_text(|text| match read(text, format) {
        Ok(file) => {
            let printed = serde_json::to_string(&file).expect("a host file is plain data");
            let again: HostFile = read(&printed, LayoutFormat::Json).expect(&printed);
            assert_eq!(again, file, "{printed}");
            true
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            for error in errors {
                assert!(error.to_string().len() <= WORDS, "{} bytes of words", error.to_string().len());
            }
            false
        }
    });
}

#[test]
fn yaml_host_files() {
    hold(LayoutFormat::Yaml, FILE);
}

#[test]
fn json_host_files() {
    let file = read(FILE, LayoutFormat::Yaml).expect("a host file");
    hold(LayoutFormat::Json, &serde_json::to_string(&file).expect("plain data"));
}
