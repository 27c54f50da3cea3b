//! Description of a control program by itself, without a daemon: `-v` and `--help`, from driver 580 on.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

use super::super::binaries::InstalledProgram;
use super::super::process::PIPE_ENV;
use super::error::{DEADLINE, OLDEST, ProbeError};
use crate::host::OwnChild;

/// The most output that is read of either.
const MOST: u64 = 256 << 10;
/// First words of `--help` in every version (recordings 01 and 22).
const BANNER: &str = "CUDA MPS Control for Linux/";

/// The description that a control program gives of itself.
pub(super) struct Described {
    pub(super) version: u32,
    pub(super) commands: BTreeSet<String>,
    pub(super) options: BTreeSet<String>,
}

/// Reads what a control program says about itself; `None` for one that is NVIDIA's and says nothing.
pub(super) async fn read(program: &InstalledProgram, place: &Path) -> Result<Option<Described>, ProbeError> {
    let (version, help) = words(program, place).await?;
    let refused = |option, output: &str| ProbeError::NotUnderstood {
        path: program.path.clone(),
        option,
        output: output.chars().take(200).collect(),
    };
    let Some(version) = read_version(&version) else {
        return if help.starts_with(BANNER) { Ok(None) } else { Err(refused("--help", &help)) };
    };
    let (options, commands) = read_help(&help);
    if version >= OLDEST && !commands.contains("get_server_list") {
        return Err(refused("--help", &help));
    }
    Ok(Some(Described { version, commands, options }))
}

/// Returns the output of `-v` and of `--help`, unchanged.
pub async fn words(program: &InstalledProgram, place: &Path) -> Result<(String, String), ProbeError> {
    let until = Instant::now() + DEADLINE;
    Ok((run(program, "-v", place, until).await?, run(program, "--help", place, until).await?))
}

async fn run(
    program: &InstalledProgram,
    option: &'static str,
    place: &Path,
    until: Instant,
) -> Result<String, ProbeError> {
    let failed = |source| ProbeError::Run { path: program.path.clone(), source };
    let mut command = tokio::process::Command::new(&program.path);
    command
        .arg(option)
        .env_clear()
        .envs(program.environment())
        // An old program takes `-v` for a session: with the daemon of this directory, which there is none of.
        .env(PIPE_ENV, place)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = OwnChild::spawn(&mut command).map_err(failed)?;
    let (out, err) = (child.stdout(), child.stderr());
    let all = async { tokio::join!(read_all(out), read_all(err), child.wait()) };
    let Ok((out, err, status)) = tokio::time::timeout_at(until, all).await else {
        return Err(ProbeError::Slow { path: program.path.clone(), option });
    };
    status.map_err(failed)?;
    // The return code says nothing: 0 for an unknown option too.
    Ok(String::from_utf8_lossy(&[out, err].concat()).into_owned())
}

async fn read_all(pipe: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
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
pub(super) fn read_version(text: &str) -> Option<u32> {
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
pub(super) fn read_help(text: &str) -> (BTreeSet<String>, BTreeSet<String>) {
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
