//! Who has the device files of GPUs open.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::domain::GpuUuid;
use crate::domain::client::ClientId;
use crate::domain::maintenance::{Holder, Signs, is_ours};
use crate::gpu::{DeviceFile, Inventory, InventoryError};
use crate::host::{self, files};
use crate::supervisor::{PIPE_ENV, TOKEN_ENV};

/// Parents of a process that are looked at.
const ANCESTORS: usize = 32;

/// Who has the GPUs open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders {
    /// The processes, by process ID.
    pub processes: Vec<Holder>,
    /// Living processes that this user may not look into: other users', when the manager is not root.
    pub unexamined: u32,
    /// GPUs whose device file is not known or not there, so that whoever has it open is not found.
    pub unproven: Vec<GpuUuid>,
}

/// Looks through `/proc`; blocks. `remembered` are device files of GPUs that the driver may not list any more, and
/// `daemons` is the directory of all daemons of this manager.
pub fn search(
    inventory: &dyn Inventory,
    gpus: &[GpuUuid],
    remembered: &BTreeMap<GpuUuid, PathBuf>,
    daemons: &Path,
) -> Result<Holders, InventoryError> {
    let mut known = Vec::new();
    let mut unproven = Vec::new();
    for gpu in gpus {
        match inventory.device_files(std::slice::from_ref(gpu)) {
            Ok(files) => known.extend(files),
            // Whoever had it open when it went has it open still.
            Err(InventoryError::UnknownGpu(_)) => match remembered.get(gpu) {
                Some(path) => known.push(DeviceFile { gpu: gpu.clone(), path: path.clone() }),
                None => unproven.push(gpu.clone()),
            },
            Err(error) => return Err(error),
        }
    }
    let paths: Vec<_> = known.iter().map(|file| file.path.clone()).collect();
    let search = files::opened(&paths);
    let missing = known.iter().filter(|file| search.unknown.contains(&file.path));
    unproven.extend(missing.map(|file| file.gpu.clone()));
    let processes = search.found.into_iter().map(|opened| {
        let pid = opened.identity.pid;
        let gpus = known.iter().filter(|file| opened.files.contains(&file.path));
        Holder {
            id: ClientId { pid, start_time: opened.identity.start_time },
            pid,
            uid: host::process::uid(pid),
            command: host::process::command(pid).unwrap_or_default().join(" "),
            gpus: gpus.map(|file| file.gpu.clone()).collect(),
            ours: ours(pid, daemons),
        }
    });
    Ok(Holders { processes: processes.collect(), unexamined: search.unexamined, unproven })
}

fn ours(pid: u32, daemons: &Path) -> bool {
    let ancestors: Vec<u32> =
        std::iter::successors(host::process::parent(pid), |pid| host::process::parent(*pid))
            .take_while(|pid| *pid > 1)
            .take(ANCESTORS)
            .collect();
    let environment = host::process::environ(pid).unwrap_or_default();
    let variable = |name: &str| {
        let found = environment.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    };
    let signs = Signs {
        pid,
        ancestors: &ancestors,
        token: variable(TOKEN_ENV).is_some(),
        pipe_directory: variable(PIPE_ENV).map(Into::into),
    };
    is_ours(&signs, std::process::id(), daemons)
}
