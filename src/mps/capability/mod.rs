//! What an installed control program can do, by its own help text.
//!
//! `-v` and `--help` need no daemon and touch no GPU. An unknown option exits 0 with no daemon started (FACTS.md,
//! "Starting, stopping, dying"), so an option is used only where `--help` lists it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};

use super::binaries::{Binaries, base_environment};
use crate::domain::gpu::cuda_version;
use crate::host::OwnChild;

/// The oldest binary version that is managed: CUDA 12.0.
pub const OLDEST: u32 = 12_000;
/// The first binary version with static partitions, and with 60 clients a device: CUDA 13.1 (NVIDIA's documentation).
pub const STATIC_SINCE: u32 = 13_010;
/// How long `-v` and `--help` may take together.
const DEADLINE: Duration = Duration::from_secs(10);
/// The most output that is read of either.
const MOST: u64 = 256 << 10;

/// What a control program can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// As `-v` says, 13000 for CUDA 13.0.
    pub binary_version: u32,
    /// The words that `--help` lists under `COMMAND:`. It omits `shutdown_server`, which 13.0 takes.
    pub commands: BTreeSet<String>,
    /// The options that `--help` lists, with their dashes, short and long: `-d`, `--daemon`.
    pub options: BTreeSet<String>,
}

/// Why a control program could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// It does not run.
    #[error("{} does not run: {source}", path.display())]
    Run {
        /// The program.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// It did not end in time.
    #[error("{} did not answer {option} within {} s", path.display(), DEADLINE.as_secs())]
    Slow {
        /// The program.
        path: PathBuf,
        /// The option that it was given.
        option: &'static str,
    },
    /// It answered something else.
    #[error("{} answered {option} with {output:?}, which names no version or no command: is it NVIDIA's?", path.display())]
    NotUnderstood {
        /// The program.
        path: PathBuf,
        /// The option that it was given.
        option: &'static str,
        /// The beginning of its output.
        output: String,
    },
    /// It is older than anything that was tried.
    #[error(
        "{} is version {version} (CUDA {cuda}); {OLDEST} (CUDA 12.0) is the oldest that is managed: install a newer driver",
        path.display()
    )]
    TooOld {
        /// The program.
        path: PathBuf,
        /// Its binary version.
        version: u32,
        /// The same as CUDA writes it.
        cuda: String,
    },
}

/// Asks a control program what it is.
pub async fn probe(binaries: &Binaries) -> Result<Capability, ProbeError> {
    let until = tokio::time::Instant::now() + DEADLINE;
    let version = run(binaries, "-v", until).await?;
    let help = run(binaries, "--help", until).await?;
    let refused = |option, output: &str| ProbeError::NotUnderstood {
        path: binaries.control.clone(),
        option,
        output: output.chars().take(200).collect(),
    };
    let binary_version = read_version(&version).ok_or_else(|| refused("-v", &version))?;
    if binary_version < OLDEST {
        return Err(ProbeError::TooOld {
            path: binaries.control.clone(),
            version: binary_version,
            cuda: cuda_version(binary_version),
        });
    }
    let (options, commands) = read_help(&help);
    if !commands.contains("get_server_list") {
        return Err(refused("--help", &help));
    }
    Ok(Capability { binary_version, commands, options })
}

impl Capability {
    /// Whether it can divide a GPU into static partitions of SMs (13.1 and later; not recorded).
    pub fn static_partitions(&self) -> bool {
        self.commands.contains("sm_partition") && self.options.contains("-S")
    }

    /// Why it cannot serve static partitions, with the version that can; `None` where it does.
    pub fn lacks_static(&self) -> Option<String> {
        (!self.static_partitions()).then(|| {
            format!(
                "static mode needs MPS binary version {STATIC_SINCE} (CUDA {}) or later, and the one here is {} (CUDA {}){}: \
                 install a newer driver",
                cuda_version(STATIC_SINCE),
                self.binary_version,
                self.cuda_version(),
                if self.binary_version < STATIC_SINCE { "" } else { ", whose --help lists no -S or no sm_partition" }
            )
        })
    }

    /// The most clients of one device: 48 up to 13.0 (recording 02), 60 from 13.1 (NVIDIA's documentation).
    pub fn client_ceiling(&self) -> u32 {
        if self.binary_version >= STATIC_SINCE { 60 } else { 48 }
    }

    /// The version as CUDA writes it, `13.0`.
    pub fn cuda_version(&self) -> String {
        cuda_version(self.binary_version)
    }
}

async fn run(
    binaries: &Binaries,
    option: &'static str,
    until: tokio::time::Instant,
) -> Result<String, ProbeError> {
    let failed = |source| ProbeError::Run { path: binaries.control.clone(), source };
    let mut command = tokio::process::Command::new(&binaries.control);
    command
        .arg(option)
        .env_clear()
        .envs(base_environment())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = OwnChild::spawn(&mut command).map_err(failed)?;
    let (out, err) = (child.stdout(), child.stderr());
    let all = async { tokio::join!(read(out), read(err), child.wait()) };
    let Ok((out, err, status)) = tokio::time::timeout_at(until, all).await else {
        return Err(ProbeError::Slow { path: binaries.control.clone(), option });
    };
    status.map_err(failed)?;
    // The return code says nothing: 0 for an unknown option too.
    Ok(String::from_utf8_lossy(&[out, err].concat()).into_owned())
}

async fn read(pipe: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What came before an error is still worth reading.
        drop((&mut pipe).take(MOST).read_to_end(&mut bytes).await);
        drop(tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await);
    }
    bytes
}

/// Reads `-v`:
///
/// ```text
/// CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000
/// Copyright (C) 2003 - 2025 NVIDIA Corporation.
/// ```
fn read_version(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("Binary version:")?;
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Reads `--help` into options and commands:
///
/// ```text
/// nvidia-cuda-mps-control [options] [command]
/// OPTIONS:
///   -h,--help                …
///   -d,--daemon              …
///
/// COMMAND:
///   start_server -uid <user id>
///                        …
///   quit
///                        …
/// ```
///
/// Words stand two blanks from the margin, their explanations further in.
fn read_help(text: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut options, mut commands) = (BTreeSet::new(), BTreeSet::new());
    let mut in_commands = false;
    for line in text.lines() {
        match line.trim_end() {
            "OPTIONS:" => in_commands = false,
            "COMMAND:" | "COMMANDS:" => in_commands = true,
            line => {
                let Some(entry) = line.strip_prefix("  ").filter(|entry| !entry.starts_with(' ')) else {
                    continue;
                };
                let Some(word) = entry.split_ascii_whitespace().next() else { continue };
                if word.starts_with('-') {
                    options.extend(word.split(',').map(str::to_owned));
                } else if in_commands {
                    commands.insert(word.to_owned());
                }
            }
        }
    }
    (options, commands)
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::binaries::{CONTROL, SERVER};
    use super::*;

    fn recording() -> String {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fixtures/recordings/01-h200-x1-commands-clients-fault.txt"
        );
        String::from_utf8_lossy(&fs::read(path).expect("recording 01")).into_owned()
    }

    #[test]
    fn version_13_0_capabilities_are_read() {
        let text = recording();
        let help = text.split("## command with no daemon").next().expect("its first part");
        assert_eq!(read_version(help), Some(13_000));
        let (options, commands) = read_help(help);
        let expected: BTreeSet<String> =
            ["-h", "--help", "-d", "--daemon", "-f", "--forground", "-M", "--multiuser-server", "-q"]
                .into_iter()
                .chain(["--ready-devices"])
                .map(str::to_owned)
                .collect();
        assert_eq!(options, expected);
        assert_eq!(commands.len(), 19, "{commands:?}");
        let capability = Capability { binary_version: 13_000, commands, options };
        let lacking = capability.lacks_static().expect("13.0 has none");
        assert!(
            lacking.contains("13010 (CUDA 13.1)") && lacking.contains("is 13000 (CUDA 13.0):"),
            "{lacking}"
        );
        assert_eq!((capability.client_ceiling(), capability.cuda_version().as_str()), (48, "13.0"));
        let newer = Capability { binary_version: 13_010, ..capability };
        assert_eq!((newer.client_ceiling(), newer.cuda_version().as_str()), (60, "13.1"));
    }

    /// A control program made of one shell script.
    fn program(script: &str) -> (tempfile::TempDir, Binaries) {
        let dir = tempfile::tempdir().expect("directory");
        for name in [CONTROL, SERVER] {
            let source = dir.path().join("source");
            fs::write(&source, format!("#!/bin/sh\n{script}\n")).expect("written");
            // Another process makes the copy: a file that this one, or a fork of it, still has open for writing
            // cannot be run.
            let mut install = std::process::Command::new("install");
            install.arg("-m755").arg(&source).arg(dir.path().join(name));
            assert!(install.status().expect("install").success());
        }
        let binaries = Binaries::locate(Some(dir.path())).expect("both");
        (dir, binaries)
    }

    #[tokio::test]
    async fn unsupported_control_program_is_refused() {
        let (_dir, old) = program("echo 'CUDA MPS Control. Binary version: 11040'");
        let error = probe(&old).await.expect_err("too old");
        assert!(error.to_string().contains("version 11040 (CUDA 11.4)"), "{error}");

        let (_dir, stranger) = program("echo hello");
        let error = probe(&stranger).await.expect_err("a stranger");
        assert!(error.to_string().contains("answered -v with \"hello\\n\""), "{error}");

        let (_dir, half) = program("[ $1 = -v ] && echo 'Binary version: 13000'");
        let error = probe(&half).await.expect_err("no commands");
        assert!(matches!(error, ProbeError::NotUnderstood { option: "--help", .. }), "{error}");
    }
}
