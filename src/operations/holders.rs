//! Who has the device files of GPUs open.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Engine, Failure};
use crate::domain::GpuUuid;
use crate::domain::client::ClientId;
use crate::domain::maintenance::{Holder, Ours, Signs, is_ours};
use crate::gpu::{DeviceFile, Inventory, InventoryError};
use crate::host::{self, files};
use crate::store::{self, StoreError};
use crate::supervisor::{DEFAULT_PIPE_DIRECTORY, PIPE_ENV, TOKEN_ENV, reachable};

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

impl Engine {
    /// Who has these GPUs open now.
    pub async fn holders(&self, gpus: &[GpuUuid]) -> Result<Holders, Failure> {
        let ours = self.ours().await.map_err(|error| error.to_string())?;
        let remembered = self.device_files().await.map_err(|error| error.to_string())?;
        let (inventory, gpus) = (Arc::clone(&self.inventory), gpus.to_vec());
        let found = tokio::task::spawn_blocking(move || search(&*inventory, &gpus, &remembered, &ours)).await;
        found.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }

    async fn device_files(&self) -> Result<BTreeMap<GpuUuid, PathBuf>, StoreError> {
        store::gpus::device_files(&mut *self.store.read().await?).await
    }

    /// What is known of this manager's daemons, adopted ones included; those that are only looked at are not its.
    async fn ours(&self) -> Result<Ours, StoreError> {
        let context = self.fleet.context();
        let mut ours =
            Ours { manager: std::process::id(), daemons: context.daemons_directory(), ..Ours::default() };
        let mut reader = self.store.read().await?;
        for daemon in store::daemons::all(&mut reader).await? {
            let Some(incarnation) = store::daemons::incarnation(&mut reader, &daemon.name).await? else {
                continue;
            };
            if incarnation.boot_id != context.boot_id {
                continue;
            }
            if daemon.spec.is_observed() {
                ours.left_alone.push(incarnation.token);
                continue;
            }
            ours.controls.extend(incarnation.process.map(|(pid, start_time)| ClientId { pid, start_time }));
            ours.tokens.push(incarnation.token);
            ours.pipe_directories.extend(incarnation.home.map(|home| home.pipe_directory));
        }
        Ok(ours)
    }
}

/// Looks through `/proc`; blocks. `remembered` are device files of GPUs that the driver may not list any more.
fn search(
    inventory: &dyn Inventory,
    gpus: &[GpuUuid],
    remembered: &BTreeMap<GpuUuid, PathBuf>,
    known_ours: &Ours,
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
            ours: ours(ClientId { pid, start_time: opened.identity.start_time }, known_ours),
        }
    });
    Ok(Holders { processes: processes.collect(), unexamined: search.unexamined, unproven })
}

fn ours(id: ClientId, known: &Ours) -> bool {
    let pid = id.pid;
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
    // A process ID that is somebody else's by now is no sign.
    let controls = known.controls.iter().filter(|control| {
        host::process::identify(control.pid).is_some_and(|now| now.start_time == control.start_time)
    });
    let controls: Vec<u32> = controls.map(|control| control.pid).collect();
    let program = host::process::command(pid).and_then(|words| words.into_iter().next());
    let named = variable(PIPE_ENV).filter(|path| !path.is_empty());
    let pipe_directory = named.map_or_else(|| PathBuf::from(DEFAULT_PIPE_DIRECTORY), PathBuf::from);
    let signs = Signs {
        pid,
        ancestors: &ancestors,
        controls: &controls,
        token: variable(TOKEN_ENV).and_then(|token| token.into_string().ok()),
        pipe_directory: is_here(pid, &pipe_directory).then_some(pipe_directory),
        program: program.as_deref().and_then(|program| program.rsplit('/').next()),
    };
    is_ours(&signs, known)
}

/// Whether a pipe directory is the one of that name here: a container has its own. One that is gone may have been.
fn is_here(pid: u32, path: &Path) -> bool {
    !path.exists() || reachable(pid, path).is_ok()
}
