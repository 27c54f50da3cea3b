//! The version and the help of a control program, at volume.

use super::help::{read_help, read_version};
use super::*;
use crate::fuzz::Inputs;

fn samples() -> Vec<String> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/recordings/01-h200-x1-commands-clients-fault.txt"
    );
    let text = String::from_utf8_lossy(&std::fs::read(path).expect("recording 01")).into_owned();
    let help = text.split("## command with no daemon").next().expect("its first part").to_owned();
    let version = "CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000\nCopyright (C) 2003 - 2025 NVIDIA Corporation.\n";
    vec![version.to_owned(), help]
}

const WORDS: [&str; 10] = [
    "Binary version:",
    " 13000",
    "OPTIONS:\n",
    "COMMAND:\n",
    "COMMANDS:\n",
    "\n  ",
    "-S,--static-partitioning",
    "sm_partition",
    ",",
    "\n       ",
];

#[test]
fn versions() {
    Inputs::new(samples(), &WORDS).check_text(|text| {
        let version = read_version(text);
        version.is_some_and(|version| {
            let capability = Capability {
                binary_version: version,
                commands: BTreeSet::new(),
                options: BTreeSet::new(),
                version_from: VersionSource::Program,
                program: PathBuf::new(),
            };
            assert!(text.contains(&version.to_string()) || text.contains(&format!("0{version}")));
            capability.lacks_static().is_some_and(|words| words.contains(&capability.cuda_version()))
        })
    });
}

#[test]
fn helps() {
    Inputs::new(samples(), &WORDS).check_text(|text| {
        let (options, commands) = read_help(text);
        let size: usize = options.iter().chain(&commands).map(String::len).sum();
        assert!(size <= text.len(), "{size} bytes of words in {}", text.len());
        assert!(commands.iter().all(|word| !word.starts_with('-')), "{commands:?}");
        commands.contains("get_server_list")
    });
}
