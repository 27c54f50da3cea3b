//! Who has the device files of GPUs open.

use std::sync::Arc;

use super::{Engine, Failure};
use crate::domain::GpuUuid;
use crate::domain::client::ClientId;
use crate::domain::maintenance::{Holder, Ours, Signs, is_ours};
use crate::gpu::{Inventory, InventoryError};
use crate::host::{self, files};
use crate::store::{self, StoreError};
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
}

impl Engine {
    /// Who has these GPUs open now.
    pub async fn holders(&self, gpus: &[GpuUuid]) -> Result<Holders, Failure> {
        let ours = self.ours().await.map_err(|error| error.to_string())?;
        let (inventory, gpus) = (Arc::clone(&self.inventory), gpus.to_vec());
        let found = tokio::task::spawn_blocking(move || search(&*inventory, &gpus, &ours)).await;
        found.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }

    /// What is known of this manager's daemons, adopted ones included and observed ones not.
    async fn ours(&self) -> Result<Ours, StoreError> {
        let context = self.fleet.context();
        let mut ours =
            Ours { manager: std::process::id(), daemons: context.daemons_directory(), ..Ours::default() };
        let mut reader = self.store.read().await?;
        for daemon in store::daemons::all(&mut reader).await? {
            if daemon.spec.is_observed() {
                continue;
            }
            let Some(incarnation) = store::daemons::incarnation(&mut reader, &daemon.name).await? else {
                continue;
            };
            if incarnation.boot_id != context.boot_id {
                continue;
            }
            ours.controls.extend(incarnation.process.map(|(pid, start_time)| ClientId { pid, start_time }));
            ours.tokens.push(incarnation.token);
            ours.pipe_directories.extend(incarnation.home.map(|home| home.pipe_directory));
        }
        Ok(ours)
    }
}

/// Looks through `/proc`; blocks.
fn search(inventory: &dyn Inventory, gpus: &[GpuUuid], known_ours: &Ours) -> Result<Holders, InventoryError> {
    let mut known = Vec::new();
    for gpu in gpus {
        match inventory.device_files(std::slice::from_ref(gpu)) {
            Ok(files) => known.extend(files),
            // A GPU that is not there is open nowhere.
            Err(InventoryError::UnknownGpu(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let paths: Vec<_> = known.iter().map(|file| file.path.clone()).collect();
    let search = files::opened(&paths);
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
    Ok(Holders { processes: processes.collect(), unexamined: search.unexamined })
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
    let signs = Signs {
        pid,
        ancestors: &ancestors,
        controls: &controls,
        token: variable(TOKEN_ENV).and_then(|token| token.into_string().ok()),
        pipe_directory: variable(PIPE_ENV).map(Into::into),
        program: program.as_deref().and_then(|program| program.rsplit('/').next()),
    };
    is_ours(&signs, known)
}
