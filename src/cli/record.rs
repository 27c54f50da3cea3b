//! `mps-manager record`: what static partitions, a MIG instance or MLOPart devices answer, as a file to send, and what such a file shows here.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap_complete::engine::ArgValueCandidates;

use super::completion;
use super::confirm::ConfirmArgs;
use super::output::{CommandResult, DIFFERS, line, remark};
use super::values::device_index;
use crate::app::recording::{Recorder, Recording};
use crate::config::Config;
use crate::domain::count::counted;
use crate::domain::device_index::DeviceIndex;
use crate::host::own_directory::OwnDirectory;

/// File to write or read, and the GPU to record.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mps-manager record l40s.json --gpu 0
  mps-manager record l40s.json --check --sim l40sx1@13.1
  mps-manager record mig.json --gpu 0/mig1
  mps-manager record b300.json --mlopart")]
pub(super) struct RecordArgs {
    /// The file to write; with --check, the one to read
    file: PathBuf,
    /// The GPU, by its index, or a MIG instance, as 0/mig1; by default the first GPU that nobody uses
    #[arg(long, value_name = "INDEX", value_parser = device_index)]
    gpu: Option<DeviceIndex>,
    /// Record a server with MLOPart devices and what clients see of them, in place of static partitions
    #[arg(long)]
    mlopart: bool,
    /// Read a file instead: exit 1 if a reply in it is not understood, or with --sim, if the simulated GPU replies otherwise
    #[arg(long)]
    check: bool,
    /// Use the simulated host of this profile
    #[arg(long, value_name = "PROFILE", add = ArgValueCandidates::new(completion::profiles))]
    sim: Option<String>,
    /// The directory of NVIDIA's two programs
    #[arg(long, value_name = "DIR")]
    mps_dir: Option<PathBuf>,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

pub(super) fn run(args: &RecordArgs) -> CommandResult {
    let runtime = tokio::runtime::Runtime::new()?;
    let place = OwnDirectory::new()?;
    let config = Config { sim: args.sim.clone(), mps_dir: args.mps_dir.clone(), ..Config::default() };
    let recorder = |like| Recorder::new(config, args.gpu, args.mlopart, like, place.path());
    if args.check {
        let text =
            fs::read_to_string(&args.file).map_err(|error| format!("{}: {error}", args.file.display()))?;
        let recording =
            Recording::read(&text).map_err(|error| format!("{}: {error}", args.file.display()))?;
        let wrong = recording.not_understood();
        for (command, why) in &wrong {
            line!("{}: {why}", command.line);
        }
        let mut differs = !wrong.is_empty();
        if args.sim.is_some() {
            let differences = runtime
                .block_on(async { recorder(Some(&recording)).await?.differences(&recording).await })?;
            for (recorded, reply) in &differences {
                line!(
                    "{}\n  recorded:  {}\n  simulated: {}",
                    recorded.line,
                    indented(&recorded.reply),
                    indented(reply)
                );
            }
            line!("{} compared, {} differ", counted(recording.commands.len(), "reply"), differences.len());
            differs |= !differences.is_empty();
        } else {
            line!("{} read, {} not understood", counted(recording.commands.len(), "reply"), wrong.len());
        }
        return Ok(if differs { ExitCode::from(DIFFERS) } else { ExitCode::SUCCESS });
    }
    let recorder = runtime.block_on(recorder(None))?;
    remark(&recorder.words());
    args.confirm.ask("Record it?")?;
    // Before anything is started: nothing is asked in vain.
    let mut file =
        File::create_new(&args.file).map_err(|error| format!("{}: {error}", args.file.display()))?;
    let finished = runtime.block_on(recorder.record());
    if finished.is_err() {
        let _ = fs::remove_file(&args.file);
    }
    let recording = finished?;
    let text = serde_json::to_string_pretty(&recording)?;
    writeln!(file, "{text}").map_err(|error| format!("{}: {error}", args.file.display()))?;
    line!(
        "{}: {} of {}",
        args.file.display(),
        counted(recording.commands.len(), "reply"),
        recording.gpu.name
    );
    Ok(ExitCode::SUCCESS)
}

fn indented(text: &str) -> String {
    text.trim_end().replace('\n', "\n             ")
}
