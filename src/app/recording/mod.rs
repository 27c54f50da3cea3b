//! Recordings of static partitions: the replies of MPS on a GPU that we do not have, in one file that its owner can send, and the
//! comparison of a recording with the replies here.
//!
//! A control daemon of its own runs for a few seconds in a directory of its own, on a GPU that nobody uses. It makes partitions and
//! removes them; no server is started and no CUDA runs. On a MIG instance, and with MLOPart devices, it has a server and clients instead
//! ([`server`]). UUIDs are not kept.

mod server;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::platform::{self, Platform};
use super::{StartupError, refused};
use crate::config::Config;
use crate::domain::daemon::Mode;
use crate::domain::device_index::{DeviceIndex, DevicePart};
use crate::domain::foreign::visible_gpus;
use crate::domain::gpu::{Gpu, GpuRef, instances_to_choose, lacks_mlopart};
use crate::domain::partitions::PartitionRef;
use crate::domain::{GpuUuid, PartitionId};
use crate::gpu::probe::Prober;
use crate::gpu::report::Report;
use crate::gpu::{GpuDriver, Inventory};
use crate::mps::process::foreign::running;
use crate::mps::process::{StartSpec, end_all_of, start, stop};
use crate::mps::{Command, Control, InstalledProgram, PtySession, capability, parse};

/// Format and version of the files.
const FORMAT: &str = "mps-manager recording 1";
/// UUID that replaces the GPU's own.
const NOBODYS: &str = "GPU-00000000-0000-0000-0000-000000000000";
/// Longest time for the daemon to start, and for all commands together.
const DEADLINE: Duration = Duration::from_secs(60);
/// First word of the line of a CUDA client in a recording; its variables follow.
const PROBE: &str = "cuda-probe";
/// More chunks than any GPU has.
const TOO_MANY: u32 = 1000;

/// Commands that were sent to a daemon of a GPU, and the replies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// Format and version of the file.
    pub format: String,
    /// The version of this program.
    pub made_by: String,
    /// The GPU.
    pub gpu: RecordedGpu,
    /// Output of the control program for `-v`.
    pub version: String,
    /// Output for `--help`.
    pub help: String,
    /// The commands, in order.
    pub commands: Vec<RecordedCommand>,
    /// Lines of the daemon's control.log.
    pub log: Vec<String>,
}

/// The GPU of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedGpu {
    /// Its product name.
    pub name: String,
    /// Its SMs.
    pub sms: Option<u32>,
    /// Its memory in bytes.
    pub memory_total: Option<u64>,
    /// Its compute capability.
    pub compute_capability: Option<String>,
    /// The driver.
    pub driver: Option<String>,
    /// The newest CUDA that the driver runs.
    pub cuda: Option<String>,
}

/// A command, and its complete reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedCommand {
    /// The line.
    pub line: String,
    /// The reply, byte for byte apart from UUIDs.
    pub reply: String,
}

/// A GPU that can be recorded; nothing was started yet.
pub struct Recorder {
    platform: Platform,
    gpu: Gpu,
    /// True if a server with MLOPart devices is recorded.
    mlopart: bool,
    /// Directory of the daemon, and of a simulated host.
    place: PathBuf,
}

impl Recorder {
    /// Chooses the GPU of this index, or the first unused one, of the kind of `like` if it is to be compared with that; refuses a GPU in
    /// use, and a driver without static partitions.
    ///
    /// `place` is a directory of the caller's own.
    pub async fn new(
        mut config: Config,
        index: Option<DeviceIndex>,
        mlopart: bool,
        like: Option<&Recording>,
        place: &Path,
    ) -> Result<Self, StartupError> {
        config.runtime_dir = place.to_owned();
        config.wait_for_driver = Some(false);
        let platform = platform::find(&config, None)?;
        let program = platform.binaries.installed(platform.extra_env.clone());
        let driver = platform.inventory.known_driver().ok().and_then(GpuDriver::running);
        let probed =
            capability::probe(&program, driver.as_ref(), &place.join("asked")).await.map_err(refused)?;
        let world = config.sim.as_ref().map(|_| place.join("sim"));
        let mlopart = mlopart || like.is_some_and(Recording::has_mlopart);
        let gpu = idle_gpu(platform.inventory.as_ref(), index, like, world.as_deref())?;
        let lacking =
            if mlopart { probed.lacks_mlopart() } else { probed.lacks_static().filter(|_| gpu.is_whole()) };
        let without =
            || lacks_mlopart(&gpu).filter(|_| mlopart).map(|why| format!("{why}: leave --mlopart out"));
        match lacking.or_else(without) {
            Some(why) => Err(refused(why)),
            None => Ok(Self { platform, gpu, mlopart, place: place.to_owned() }),
        }
    }

    /// Describes what the recording will do, so that the GPU's owner can agree to it.
    pub fn words(&self) -> String {
        if self.has_server() {
            return format!(
                "This starts a control daemon of its own in {} on GPU {} ({}), which nobody uses now, with a server, runs a CUDA client for a \
                 moment several times, and ends the daemon. It takes less than a minute, and touches no other daemon, no setting of the GPU and \
                 nobody's process. The file has the GPU's model, the driver's version, the commands and the replies; UUIDs and paths are \
                 replaced.",
                self.place.display(),
                self.gpu.index,
                self.gpu.name
            );
        }
        format!(
            "This starts a control daemon of its own in {} on GPU {} ({}), which nobody uses now, makes SM partitions and removes them, and ends \
             the daemon. It takes a few seconds, starts no CUDA, and touches no other daemon, no setting of the GPU and nobody's process. The file \
             has the GPU's model, the driver's version, the commands and the replies; UUIDs and paths are replaced.",
            self.place.display(),
            self.gpu.index,
            self.gpu.name
        )
    }

    /// Sends every command, and ends the daemon even when a signal ends this process.
    pub async fn record(&self) -> Result<Recording, StartupError> {
        let caught = |kind| signal(kind).map_err(refused);
        let (mut interrupt, mut terminate, mut hang_up) = (
            caught(SignalKind::interrupt())?,
            caught(SignalKind::terminate())?,
            caught(SignalKind::hangup())?,
        );
        let daemon = RecordingDaemon::start(self).await?;
        let stopped = || {
            Err(StartupError(
                "it was stopped by a signal, and the daemon of the recording was ended".to_owned(),
            ))
        };
        let asking = async {
            if self.has_server() {
                let prober = Prober::new(&self.platform.extra_env);
                daemon.with_server(self.mlopart, &prober).await
            } else {
                daemon.sequences().await
            }
        };
        let asked = tokio::select! {
            asked = asking => asked,
            _ = interrupt.recv() => stopped(),
            _ = terminate.recv() => stopped(),
            _ = hang_up.recv() => stopped(),
        };
        let log = daemon.end().await;
        let described = capability::words(&self.program(), &self.place.join("asked")).await;
        let (version, help) = described.map_err(refused)?;
        let driver = self.platform.inventory.known_driver().ok();
        let driver = driver.and_then(GpuDriver::running);
        let capability = self.gpu.compute_capability;
        Ok(Recording {
            format: FORMAT.to_owned(),
            made_by: env!("CARGO_PKG_VERSION").to_owned(),
            gpu: RecordedGpu {
                name: self.gpu.name.clone(),
                sms: self.gpu.sms,
                memory_total: self.gpu.memory_total,
                compute_capability: capability.map(|version| format!("{}.{}", version.major, version.minor)),
                driver: driver.as_ref().map(|driver| driver.version.clone()),
                cuda: driver.and_then(|driver| driver.cuda),
            },
            version,
            help,
            commands: asked?,
            log,
        })
    }

    /// Sends the commands of a recording here; returns those with another reply, each with it.
    pub async fn differences(
        &self,
        recording: &Recording,
    ) -> Result<Vec<(RecordedCommand, String)>, StartupError> {
        if self.has_server() != recording.has_server() {
            return Err(StartupError(format!(
                "GPU {} is of another kind than that of the recording: name another with --gpu, or leave it out",
                self.gpu.index
            )));
        }
        if self.has_server() {
            return Ok(RecordedCommand::differences(&recording.commands, &self.record().await?.commands));
        }
        let daemon = RecordingDaemon::start(self).await?;
        let compared = daemon.compare(&recording.commands).await;
        daemon.end().await;
        compared
    }

    /// Returns true if a server is recorded, and not static partitions, which a part of a GPU does not have.
    fn has_server(&self) -> bool {
        self.mlopart || !self.gpu.is_whole()
    }

    fn program(&self) -> InstalledProgram {
        self.platform.binaries.installed(self.platform.extra_env.clone())
    }
}

/// Finds the GPU of this index, or the first unused one, of the kind and if possible of the name of that in `like`.
fn idle_gpu(
    inventory: &dyn Inventory,
    index: Option<DeviceIndex>,
    like: Option<&Recording>,
    world: Option<&Path>,
) -> Result<Gpu, StartupError> {
    let gpus = inventory.gpus().map_err(refused)?;
    let candidates = candidates(&gpus, index, like)?;
    let daemons = running(world);
    let used = |gpu: &Gpu| -> Result<Option<String>, StartupError> {
        let processes = inventory.processes(&gpu.uuid).map_err(refused)?;
        if let Some(process) = processes.first() {
            return Ok(Some(format!("process {} uses GPU {}", process.pid, gpu.index)));
        }
        let serves = daemons.iter().find(|daemon| {
            let Ok(around) = &daemon.environment else { return true };
            visible_gpus(around.visible_devices.as_deref(), around.pci_order, &gpus)
                .map_or(true, |served| served.contains(&gpu.uuid))
        });
        Ok(serves
            .map(|daemon| format!("control daemon {} serves GPU {}, or may", daemon.identity.pid, gpu.index)))
    };
    let mut why = String::new();
    for gpu in candidates {
        match used(gpu)? {
            None => return Ok(gpu.clone()),
            Some(reason) => why = reason,
        }
    }
    Err(StartupError(format!(
        "{why}: only a GPU that nobody uses is recorded; end what uses it, or name another with --gpu"
    )))
}

/// Returns the GPUs that can be recorded, at least one, whether they are used or not; refuses one that no process can use as it is named.
fn candidates<'g>(
    gpus: &'g [Gpu],
    index: Option<DeviceIndex>,
    like: Option<&Recording>,
) -> Result<Vec<&'g Gpu>, StartupError> {
    if let Some(DeviceIndex { gpu, part: Some(DevicePart::Mlo(_)) }) = index {
        let text = format!("MLOPart devices are recorded with their GPU: --mlopart --gpu {gpu}");
        return Err(StartupError(text));
    }
    let of_instance = like.is_some_and(|recording| recording.has_server() && !recording.has_mlopart());
    let (in_mig_mode, mut candidates): (Vec<&Gpu>, Vec<&Gpu>) = match index {
        Some(index) => vec![GpuRef(index.to_string()).resolve(gpus).map_err(refused)?],
        None => gpus.iter().filter(|gpu| gpu.mig.is_some() == of_instance).collect(),
    }
    .into_iter()
    .partition(|gpu| gpu.mig_enabled);
    candidates.sort_by_key(|gpu| like.is_some_and(|recording| recording.gpu.name != gpu.name));
    match in_mig_mode.first() {
        _ if !candidates.is_empty() => Ok(candidates),
        Some(gpu) => Err(StartupError(format!(
            "GPU {} is in MIG mode, where no process can use it as a whole: {}",
            gpu.index,
            instances_to_choose(gpu, gpus)
        ))),
        None if of_instance => Err(StartupError("this host has no MIG instance".to_owned())),
        None => Err(StartupError("the driver lists no GPU".to_owned())),
    }
}

/// The daemon of a recording.
struct RecordingDaemon {
    control: Control,
    spec: StartSpec,
    identity: crate::host::Identity,
    gpu: GpuUuid,
    /// UUIDs that were replaced so far.
    known: Mutex<Vec<String>>,
}

impl RecordingDaemon {
    async fn start(recorder: &Recorder) -> Result<Self, StartupError> {
        let home = recorder.place.join("daemon");
        let spec = StartSpec {
            pipe_directory: home.join("pipe"),
            log_directory: home.join("log"),
            gpus: vec![recorder.gpu.uuid.clone()],
            mode: if recorder.has_server() { Mode::Shared } else { Mode::Static },
            multi_user: None,
            token: format!("recording in {}", home.display()),
            launcher: None,
            deadline: DEADLINE,
        };
        for directory in [&spec.pipe_directory, &spec.log_directory] {
            std::fs::create_dir_all(directory).map_err(refused)?;
        }
        let program = recorder.program();
        let started = start(&program, &spec).await;
        if started.is_err() {
            end_all_of(&spec.token).await;
        }
        let control = Control::new(&program, spec.pipe_directory.clone());
        let (identity, gpu) = (started.map_err(refused)?.identity, recorder.gpu.uuid.clone());
        let known = Mutex::new(vec![gpu.to_string()]);
        Ok(Self { control, spec, identity, gpu, known })
    }

    fn session(&self) -> Result<PtySession, StartupError> {
        self.control.session(Instant::now() + DEADLINE).map_err(refused)
    }

    /// Makes partitions of several sizes, one after the other and beside each other, each sequence from an empty GPU.
    async fn sequences(&self) -> Result<Vec<RecordedCommand>, StartupError> {
        let mut session = self.session()?;
        let mut asked = Vec::new();
        let listed = self.ask(&mut session, &Command::Lspart, &mut asked).await?;
        self.ask(&mut session, &Command::DeviceQuery { server: None }, &mut asked).await?;
        let devices = parse::lspart(&listed).map(|listed| listed.devices).unwrap_or_default();
        let chunks = devices.first().map_or(0, |device| device.free_chunks);
        let half = chunks / 2;
        let sequences: [&[u32]; 9] =
            [&[1], &[1, 1, 1], &[1, 2], &[2, 1], &[7, 5, 3], &[9, 9], &[20, 3], &[half, half], &[chunks]];
        for sizes in sequences.into_iter().filter(|sizes| (1..=chunks).contains(&sizes.iter().sum())) {
            let mut made: Vec<PartitionRef> = Vec::new();
            for chunks in sizes {
                let add = Command::SmPartitionAdd { gpu: self.gpu.clone(), chunks: *chunks };
                made.extend(parse::sm_partition_add(&self.ask(&mut session, &add, &mut asked).await?));
            }
            self.ask(&mut session, &Command::Lspart, &mut asked).await?;
            // The oldest partition is removed first: the others keep their places.
            for partition in &made {
                let remove = Command::SmPartitionRemove { partition: partition.clone() };
                self.ask(&mut session, &remove, &mut asked).await?;
            }
            self.ask(&mut session, &Command::Lspart, &mut asked).await?;
        }
        for chunks in [0, TOO_MANY] {
            self.ask(&mut session, &Command::SmPartitionAdd { gpu: self.gpu.clone(), chunks }, &mut asked)
                .await?;
        }
        let id = PartitionId::parse("AAAA").map_err(refused)?;
        let unknown = PartitionRef { gpu: self.gpu.clone(), id };
        self.ask(&mut session, &Command::SmPartitionRemove { partition: unknown }, &mut asked).await?;
        session.close().await;
        Ok(asked)
    }

    async fn ask(
        &self,
        session: &mut PtySession,
        command: &Command,
        asked: &mut Vec<RecordedCommand>,
    ) -> Result<Vec<u8>, StartupError> {
        let reply = session.send(command).await.map_err(refused)?;
        asked.push(RecordedCommand {
            line: self.nobodys(&command.line()),
            reply: self.nobodys(&String::from_utf8_lossy(&reply)),
        });
        Ok(reply)
    }

    async fn compare(
        &self,
        commands: &[RecordedCommand],
    ) -> Result<Vec<(RecordedCommand, String)>, StartupError> {
        let mut session = self.session()?;
        let mut differences = Vec::new();
        for recorded in commands {
            let command = command_of(&recorded.line, &self.gpu)
                .ok_or_else(|| StartupError(format!("{:?} is no command of a recording", recorded.line)))?;
            let reply = session.send(&command).await.map_err(refused)?;
            let reply = self.nobodys(&String::from_utf8_lossy(&reply));
            if words(&reply) != words(&recorded.reply) {
                differences.push((recorded.clone(), reply));
            }
        }
        session.close().await;
        Ok(differences)
    }

    /// Replaces the names of this GPU and of this directory in a text.
    fn nobodys(&self, text: &str) -> String {
        let home = self.spec.pipe_directory.parent().unwrap_or(Path::new("/")).display().to_string();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        without_uuids(&text.replace(&home, "DIR"), &mut known)
    }

    /// Ends the daemon; returns its log.
    async fn end(self) -> Vec<String> {
        if let Err(error) = stop(&self.control, self.identity, 0).await {
            tracing::warn!(%error, "the control daemon of the recording did not quit");
        }
        end_all_of(&self.spec.token).await;
        let log = std::fs::read_to_string(self.spec.log_directory.join("control.log")).unwrap_or_default();
        log.lines().map(|line| self.nobodys(line)).collect()
    }
}

/// Returns the lines of a reply without the padding of columns.
fn words(reply: &str) -> Vec<String> {
    reply.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Replaces each UUID by one of nobody's, the first by [`NOBODYS`], also where a table shows only its beginning; `known` are those that were
/// replaced before, and grows.
fn without_uuids(text: &str, known: &mut Vec<String>) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = [rest.find("GPU-"), rest.find("MIG-")].into_iter().flatten().min() {
        let (before, word) = rest.split_at(start);
        let end = word.find(|c: char| !(c.is_ascii_hexdigit() || "GPUMI-".contains(c))).unwrap_or(word.len());
        let (word, after) = word.split_at(end);
        replaced.push_str(before);
        if word.len() > 5 {
            let is_it =
                |uuid: &String| uuid[4..].starts_with(&word[4..]) || word[4..].starts_with(&uuid[4..]);
            let at = known.iter().position(is_it).unwrap_or_else(|| {
                known.push(word.to_owned());
                known.len() - 1
            });
            let nobodys = format!("{}{at:08x}{}", &word[..4], &NOBODYS[12..]);
            replaced.push_str(&nobodys[..word.len().min(nobodys.len())]);
        } else {
            replaced.push_str(word);
        }
        rest = after;
    }
    replaced + rest
}

/// Parses a line of a recording into a command on this GPU.
fn command_of(line: &str, gpu: &GpuUuid) -> Option<Command> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["lspart"] => Some(Command::Lspart),
        ["device_query"] => Some(Command::DeviceQuery { server: None }),
        ["sm_partition", "add", NOBODYS, chunks] => {
            Some(Command::SmPartitionAdd { gpu: gpu.clone(), chunks: chunks.parse().ok()? })
        }
        ["sm_partition", "rm", partition] => {
            let id = PartitionId::parse(partition.strip_prefix(NOBODYS)?.strip_prefix('/')?).ok()?;
            Some(Command::SmPartitionRemove { partition: PartitionRef { gpu: gpu.clone(), id } })
        }
        _ => None,
    }
}

impl Recording {
    /// Reads a file.
    pub fn read(text: &str) -> Result<Self, String> {
        let recording: Self =
            serde_json::from_str(text).map_err(|error| format!("this is no recording: {error}"))?;
        if recording.format != FORMAT {
            return Err(format!("its format is {:?}, and this program reads {FORMAT:?}", recording.format));
        }
        Ok(recording)
    }

    /// Returns true if it is of a server, and not of static partitions.
    fn has_server(&self) -> bool {
        self.commands.iter().any(|command| command.line.starts_with("start_server"))
    }

    /// Returns true if it is of a server with MLOPart devices.
    fn has_mlopart(&self) -> bool {
        self.commands.iter().any(|command| command.line.ends_with("-mlopart"))
    }

    /// Returns the replies that this program would not understand, each with the reason.
    pub fn not_understood(&self) -> Vec<(&RecordedCommand, String)> {
        let reason = |command: &RecordedCommand| {
            let reply = command.reply.as_bytes();
            let read = match command.line.split_whitespace().collect::<Vec<_>>()[..] {
                ["lspart", ..] => parse::lspart(reply).map(drop),
                ["device_query", ..] => parse::device_query(reply).map(drop),
                ["sm_partition", "add", ..] => parse::sm_partition_add(reply).map(drop),
                ["sm_partition", "rm", ..] => parse::sm_partition_remove(reply),
                ["ps", ..] => parse::clients(reply).map(drop),
                ["get_default_device_pinned_mem_limit" | "get_device_pinned_mem_limit", ..] => {
                    parse::memory_limit(reply).map(drop)
                }
                [
                    "start_server" | "set_default_device_pinned_mem_limit" | "set_device_pinned_mem_limit",
                    ..,
                ] => parse::silent(reply),
                [PROBE, ..] => {
                    return serde_json::from_slice::<Report>(reply).err().map(|error| error.to_string());
                }
                _ => return Some("this is no command of a recording".to_owned()),
            };
            match read {
                Ok(()) | Err(parse::ParseError::Refused { .. }) => None,
                Err(error) => Some(error.to_string()),
            }
        };
        self.commands.iter().filter_map(|command| Some((command, reason(command)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::mig::MigInstance;
    use crate::testing::h200;

    #[test]
    fn uuids_are_replaced_with_their_beginnings() {
        let uuid = "GPU-59ab12cd-0000-1111-2222-333344445555";
        let mut known = vec![uuid.to_owned()];
        for (text, kept) in [
            (format!("Partition {uuid}/////vm0f created"), format!("Partition {NOBODYS}/////vm0f created")),
            ("GPU-59    0   23\n".to_owned(), "GPU-00    0   23\n".to_owned()),
            ("GPU-59ab12cd - 0 8\nGPU-60 1".to_owned(), "GPU-00000000 - 0 8\nGPU-00 1".to_owned()),
            ("MIG-77ab12cd-0000".to_owned(), "MIG-00000002-0000".to_owned()),
            // CUDA calls a MIG instance so.
            ("GPU-77ab12cd-0000 GPU-".to_owned(), "GPU-00000002-0000 GPU-".to_owned()),
        ] {
            assert_eq!(without_uuids(&text, &mut known), kept);
        }
    }

    #[test]
    fn gpus_that_cannot_be_recorded_are_explained() {
        let [mut divided, whole] = [h200(0), h200(1)];
        let mig = Some(MigInstance { parent: divided.uuid.clone(), number: 0, profile: None });
        let place = |text: &str| DeviceIndex::parse(text).expect("a place");
        let uuid = GpuUuid::parse("MIG-59ab12cd-0000-1111-2222-333344445555").expect("a UUID");
        let instance = Gpu { index: place("0/mig0"), mig, uuid, ..h200(0) };
        divided.mig_enabled = true;
        let gpus = [divided.clone(), instance, whole.clone()];
        let refused = |gpus: &[Gpu], named: Option<&str>| {
            candidates(gpus, named.map(place), None).expect_err("refused").to_string()
        };
        for (named, words) in [
            (
                "0",
                "GPU 0 is in MIG mode, where no process can use it as a whole: name one of 0/mig0 (MIG-59ab",
            ),
            ("1/mlo0", "MLOPart devices are recorded with their GPU: --mlopart --gpu 1"),
            ("0/mig1", "there is no GPU 0/mig1: the GPUs of this host are 0 GPU-"),
        ] {
            assert!(refused(&gpus, Some(named)).starts_with(words), "{named}");
        }
        assert!(refused(&gpus[..2], None).contains("name one of 0/mig0"));
        assert!(refused(&[divided], None).contains("so make some"));
        assert_eq!(candidates(&gpus, None, None).expect("one"), [&whole]);
    }

    #[test]
    fn lines_of_a_recording_are_commands_again() {
        let gpu = GpuUuid::parse("GPU-59ab12cd-0000-1111-2222-333344445555").expect("a UUID");
        for line in [
            "lspart".to_owned(),
            "device_query".to_owned(),
            format!("sm_partition add {NOBODYS} 20"),
            format!("sm_partition rm {NOBODYS}/////vm0f"),
        ] {
            let command = command_of(&line, &gpu).expect("a command");
            assert_eq!(without_uuids(&command.line(), &mut vec![gpu.to_string()]), line);
        }
        for line in ["quit", "sm_partition add GPU-1 2", "sm_partition rm x", "shutdown_server 1"] {
            assert_eq!(command_of(line, &gpu), None, "{line}");
        }
    }
}
