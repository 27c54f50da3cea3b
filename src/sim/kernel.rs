//! State of the driver: the processes that use a GPU, and their memory.
//!
//! A process's file is locked before it appears and for as long as the process lives, so a file that can be
//! locked belongs to a dead process, whatever killed it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::profile::{Gpu, Part};
use super::world::World;

/// One mebibyte.
pub(crate) const MIB: u64 = 1 << 20;
/// Memory that the driver keeps for itself on every GPU (recorded: total less all processes less free).
const RESERVED: u64 = 9 * MIB;
/// Room for a process's JSON object: constant, so that one write replaces it whole.
const RECORD: usize = 512;
/// Time until the driver has cleared a killed process off its GPUs (recorded: 60 to 130 ms). Until then the kernel does not report the
/// process's end to its parent.
pub(crate) const RELEASE: Duration = Duration::from_millis(90);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    pid: u32,
    kind: String,
    used_memory: u64,
    name: String,
}

/// The presence of this process on one GPU, until it is dropped or the process dies.
#[derive(Debug)]
pub(crate) struct Presence {
    gpu: PathBuf,
    total: u64,
    path: PathBuf,
    file: File,
    record: Record,
    /// Open for life, as a process on a GPU keeps its device file.
    _device: File,
}

/// Kind of a process in NVML's lists.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// A compute process with a context of its own.
    Compute,
    /// A client of MPS.
    MpsClient,
}

impl Presence {
    /// Registers this process on a GPU with no memory yet; `pid` is its PID on the host.
    pub(crate) fn enter(world: &World, gpu: &Gpu, kind: Kind, pid: u32, name: &str) -> io::Result<Self> {
        let device = File::open(world.device_file(gpu))?;
        let dir = world.gpu_dir(gpu);
        if is_lost(world, gpu) || gpu.part.is_none() && dir.join("mig").exists() {
            return Err(io::ErrorKind::NotFound.into());
        }
        // A process on both MLOPart devices of a GPU has a file for each.
        let (part, total) = match &gpu.part {
            Some(Part::Mlo { number: number @ 1.., .. }) => (format!("{pid}-{number}"), gpu.memory_total * 2),
            Some(Part::Mlo { .. }) => (pid.to_string(), gpu.memory_total * 2),
            _ => (pid.to_string(), gpu.memory_total),
        };
        let draft = dir.join(format!("new-{part}"));
        let _ = fs::remove_file(&draft);
        let file = File::create_new(&draft)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let kind = match kind {
            Kind::Compute => "C",
            Kind::MpsClient => "M+C",
        };
        let mut name = name.to_owned();
        name.truncate(name.floor_char_boundary(256));
        let record = Record { pid, kind: kind.to_owned(), used_memory: 0, name };
        let path = dir.join("processes").join(part);
        let presence = Self { gpu: dir, total, path, file, record, _device: device };
        presence.write()?;
        fs::rename(&draft, &presence.path)?;
        Ok(presence)
    }

    /// Takes memory; returns false if the GPU has less than that left.
    pub(crate) fn take(&mut self, bytes: u64) -> io::Result<bool> {
        let lock = File::open(self.gpu.join("memory.lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        if bytes > self.free() {
            return Ok(false);
        }
        self.record.used_memory += bytes;
        self.write()?;
        Ok(true)
    }

    /// Gives memory back.
    pub(crate) fn give_back(&mut self, bytes: u64) -> io::Result<()> {
        self.record.used_memory = self.record.used_memory.saturating_sub(bytes);
        self.write()
    }

    /// Returns the memory that this process has taken.
    pub(crate) fn used(&self) -> u64 {
        self.record.used_memory
    }

    /// Returns the memory that is left on the GPU.
    pub(crate) fn free(&self) -> u64 {
        self.total.saturating_sub(RESERVED).saturating_sub(used(&self.gpu))
    }

    fn write(&self) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(&self.record).expect("a record has string keys only");
        bytes.resize(RECORD.max(bytes.len() + 1), b'\n');
        self.file.write_all_at(&bytes, 0)
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns true if the compute mode admits another process: none if it is prohibited, only the first if it is exclusive.
pub(crate) fn admits(world: &World, gpu: &Gpu) -> bool {
    let dir = world.gpu_dir(gpu);
    let mode = fs::read_to_string(dir.join("compute_mode")).unwrap_or_default();
    match mode.trim() {
        "prohibited" => false,
        "exclusive_process" => living(&dir).is_empty(),
        _ => true,
    }
}

/// Returns true if a test has taken the GPU out, or the MIG instance: it is no longer listed, and programs on it have stopped.
pub(crate) fn is_lost(world: &World, gpu: &Gpu) -> bool {
    let Some(Part::Mig { parent, .. }) = &gpu.part else {
        return world.gpu_dir(gpu).join("lost").exists();
    };
    let parent = world.host().gpus.iter().find(|listed| listed.uuid == *parent);
    parent.is_none_or(|parent| {
        let instances = world.instances(parent).unwrap_or_default();
        is_lost(world, parent) || !instances.iter().any(|instance| instance.uuid == gpu.uuid)
    })
}

fn used(gpu: &Path) -> u64 {
    living(gpu).iter().map(|record| record.used_memory).sum()
}

fn living(gpu: &Path) -> Vec<Record> {
    let Ok(entries) = fs::read_dir(gpu.join("processes")) else { return Vec::new() };
    entries.flatten().filter_map(|entry| record(&entry.path())).collect()
}

fn record(path: &Path) -> Option<Record> {
    let file = File::open(path).ok()?;
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        // Dead. A new process with the same PID may have taken the name meanwhile, but its file is another one: removal by name could hit
        // that file, so a file is removed only if it is still this one.
        if same(&file, path) {
            let _ = fs::remove_file(path);
        }
        return None;
    }
    serde_json::from_str(fs::read_to_string(path).ok()?.trim()).ok()
}

fn same(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(a), Ok(b)) => a.ino() == b.ino(),
        _ => false,
    }
}
