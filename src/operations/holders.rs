//! Search for the processes that have the device files of GPUs open.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Engine, Result};
use crate::domain::GpuUuid;
use crate::domain::client::ClientId;
use crate::domain::maintenance::{
    DeviceHolder, OwnDaemon, OwnProcesses, OwnershipSigns, ProcessOwner, owner,
};
use crate::gpu::{DeviceFile, Inventory, InventoryError};
use crate::host::signal::{CONTROL, SERVER};
use crate::host::{self, Identity, files};
use crate::store::{self, StoreError};
use crate::supervisor::{DEFAULT_PIPE_DIRECTORY, PIPE_ENV, TOKEN_ENV, reachable};

/// The names of the driver's files that belong to no GPU, and of directories of such, begin so.
const DRIVER: &str = "nvidia";

/// Processes that have the GPUs open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders {
    /// The processes, by process ID.
    pub processes: Vec<DeviceHolder>,
    /// Living processes that this user may not inspect: other users', when the manager is not root.
    pub unexamined: u32,
    /// GPUs whose device file is not known or not there, so that processes that have it open are not found.
    pub unproven: Vec<GpuUuid>,
}

impl Engine {
    /// Returns the processes that have these GPUs open now, or any file of the driver if these are all GPUs of the host.
    pub async fn holders(&self, gpus: &[GpuUuid]) -> Result<Holders> {
        let ours = self.ours().await?;
        let remembered = self.device_files().await?;
        let (inventory, gpus) = (Arc::clone(&self.inventory), gpus.to_vec());
        let holders =
            tokio::task::spawn_blocking(move || search(&*inventory, &gpus, &remembered, &ours)).await?;
        Ok(holders?)
    }

    async fn device_files(&self) -> Result<BTreeMap<GpuUuid, PathBuf>, StoreError> {
        store::gpus::device_files(&mut *self.store.read().await?).await
    }

    /// Returns the control processes, tokens and directories of this manager's daemons, adopted ones included. Daemons that are only
    /// observed are not its own.
    async fn ours(&self) -> Result<OwnProcesses, StoreError> {
        let context = self.fleet.context();
        let mut ours = OwnProcesses {
            manager: std::process::id(),
            directory: context.daemons_directory(),
            ..OwnProcesses::default()
        };
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
            // A process ID that is another program's by now is no sign.
            let lives = |(pid, start_time)| host::process::is_alive(Identity { pid, start_time });
            ours.daemons.push(OwnDaemon {
                name: daemon.name,
                control: incarnation.process.filter(|process| lives(*process)).map(|(pid, _)| pid),
                token: incarnation.token,
                pipe_directory: incarnation.home.map(|home| home.pipe_directory),
            });
        }
        Ok(ours)
    }
}

/// Searches `/proc`; blocks. `remembered` are device files of GPUs that the driver may no longer list.
fn search(
    inventory: &dyn Inventory,
    gpus: &[GpuUuid],
    remembered: &BTreeMap<GpuUuid, PathBuf>,
    known_ours: &OwnProcesses,
) -> Result<Holders, InventoryError> {
    let mut device_files = Vec::new();
    let mut unproven = Vec::new();
    for gpu in gpus {
        match inventory.device_files(std::slice::from_ref(gpu)) {
            Ok(files) => device_files.extend(files),
            // A process that had it open when it went has it open still, unless the file is that of another GPU since a reboot.
            Err(InventoryError::UnknownGpu(_)) => {
                let present = inventory.gpus()?;
                // A MIG instance has the device file of its GPU.
                let others = |path: &PathBuf| {
                    !gpu.is_mig() && present.iter().any(|other| other.device_file.as_ref() == Some(path))
                };
                match remembered.get(gpu).filter(|path| !others(path)) {
                    Some(path) => device_files.push(DeviceFile { gpu: gpu.clone(), path: path.clone() }),
                    None => unproven.push(gpu.clone()),
                }
            }
            Err(InventoryError::NotReported { .. }) => unproven.push(gpu.clone()),
            Err(error) => return Err(error),
        }
    }
    let mut paths: Vec<_> = device_files.iter().map(|file| file.path.clone()).collect();
    if inventory.known_gpus().is_ok_and(|all| all.iter().all(|gpu| gpus.contains(&gpu.uuid))) {
        paths.extend(driver_files(&device_files));
    }
    let search = files::opened(&paths);
    let missing = device_files.iter().filter(|file| search.unknown.contains(&file.path));
    unproven.extend(missing.map(|file| file.gpu.clone()));
    let processes = search.found.into_iter().map(|opened| {
        let pid = opened.identity.pid;
        let gpus = device_files.iter().filter(|file| opened.files.contains(&file.path));
        let signs = signs_of(pid);
        let owner = owner(&signs, known_ours);
        DeviceHolder {
            id: ClientId { pid, start_time: opened.identity.start_time },
            pid,
            uid: host::process::uid(pid),
            command: host::process::command(pid).unwrap_or_default().join(" "),
            gpus: gpus.map(|file| file.gpu.clone()).collect(),
            files: opened.files.iter().map(|path| path.display().to_string()).collect(),
            unit: host::systemd::service(pid),
            ours: owner.is_some(),
            is_manager: owner == Some(ProcessOwner::Manager),
            daemon: match owner {
                Some(ProcessOwner::Daemon(name)) => Some(name.clone()),
                _ => None,
            },
        }
    });
    Ok(Holders { processes: processes.collect(), unexamined: search.unexamined, unproven })
}

/// The driver's files beside those of these GPUs: its control file, unified memory, mode setting, capabilities, and what its
/// display part offers.
fn driver_files(device_files: &[DeviceFile]) -> Vec<PathBuf> {
    let is_of_a_gpu = |name: &str| name[DRIVER.len()..].parse::<u32>().is_ok();
    let mut paths = Vec::new();
    let directories: BTreeSet<&Path> = device_files.iter().filter_map(|file| file.path.parent()).collect();
    for directory in directories {
        let named = listed(directory).into_iter().filter(|path| {
            let name = path.file_name().unwrap_or_default().to_str().unwrap_or_default();
            name.starts_with(DRIVER) && !is_of_a_gpu(name)
        });
        for path in named {
            if path.is_dir() { paths.extend(listed(&path)) } else { paths.push(path) }
        }
        // A file of the display part is known by the driver of its device.
        let drawn = listed(&directory.join("dri")).into_iter().filter(|path| {
            let device = Path::new("/sys/class/drm").join(path.file_name().unwrap_or_default());
            device.join("device/driver").read_link().is_ok_and(|driver| driver.ends_with(DRIVER))
        });
        paths.extend(drawn);
    }
    paths
}

fn listed(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Reads the signs that show which owner a process has.
fn signs_of(pid: u32) -> OwnershipSigns {
    let environment = host::process::environ(pid).unwrap_or_default();
    let variable = |name: &str| {
        let variable = environment.iter().find(|(key, _)| key == name);
        variable.map(|(_, value)| value.clone())
    };
    let ancestors: Vec<u32> = host::process::ancestors(pid).collect();
    let runs = |pid: u32, wanted: &str| {
        let program = host::process::command(pid).and_then(|words| words.into_iter().next());
        program.is_some_and(|program| program.rsplit('/').next() == Some(wanted))
    };
    let is_followed = ancestors.first().is_some_and(|parent| runs(*parent, CONTROL));
    let named = variable(PIPE_ENV).filter(|path| !path.is_empty());
    let pipe_directory = named.map_or_else(|| PathBuf::from(DEFAULT_PIPE_DIRECTORY), PathBuf::from);
    OwnershipSigns {
        pid,
        ancestors,
        token: variable(TOKEN_ENV).and_then(|token| token.into_string().ok()),
        pipe_directory: is_here(pid, &pipe_directory).then_some(pipe_directory),
        stranded_server: runs(pid, SERVER) && !is_followed,
    }
}

/// Returns true if a pipe directory of a process is the one at the same path here; a container has its own. A path that no longer exists
/// counts as the same.
fn is_here(pid: u32, path: &Path) -> bool {
    !path.exists() || reachable(pid, path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::gpu::{ComputeMode, Gpu, GpuProcess};
    use crate::gpu::GpuDriver;
    use crate::testing::h200;

    /// A host of one GPU, whose device file is this.
    struct One(PathBuf);

    impl Inventory for One {
        fn driver(&self) -> Result<GpuDriver, InventoryError> {
            Ok(GpuDriver { driver_version: "1".into(), cuda_version: None, simulated: true, profile: None })
        }

        fn gpus(&self) -> Result<Vec<Gpu>, InventoryError> {
            Ok(vec![Gpu { device_file: Some(self.0.clone()), ..h200(0) }])
        }

        fn processes(&self, _: &GpuUuid) -> Result<Vec<GpuProcess>, InventoryError> {
            Ok(Vec::new())
        }

        fn set_compute_mode(&self, _: &GpuUuid, _: ComputeMode) -> Result<(), InventoryError> {
            Ok(())
        }

        fn device_files(&self, gpus: &[GpuUuid]) -> Result<Vec<DeviceFile>, InventoryError> {
            gpus.iter()
                .map(|gpu| {
                    if *gpu != h200(0).uuid {
                        return Err(InventoryError::UnknownGpu(gpu.clone()));
                    }
                    Ok(DeviceFile { gpu: gpu.clone(), path: self.0.clone() })
                })
                .collect()
        }
    }

    #[test]
    fn reassigned_device_file_proves_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, "").expect("a file");
            path
        };
        let (here, its_own) = (path("nvidia0"), path("nvidia1"));
        let missing = h200(1).uuid;
        let opened = std::fs::File::open(&its_own).expect("a file");
        for (remembered, unproven, found) in [(&here, 1, 0), (&its_own, 0, 1)] {
            let remembered = BTreeMap::from([(missing.clone(), remembered.clone())]);
            let gpus = std::slice::from_ref(&missing);
            let holders =
                search(&One(here.clone()), gpus, &remembered, &OwnProcesses::default()).expect("found");
            let this = holders.processes.iter().filter(|holder| holder.pid == std::process::id()).count();
            assert_eq!((holders.unproven.len(), this), (unproven, found), "{holders:?}");
        }
        drop(opened);
    }
}
