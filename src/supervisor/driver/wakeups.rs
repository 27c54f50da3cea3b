//! Events that wake a driver: the death of a process, and changes in its logs.

use std::path::Path;

use crate::domain::GpuUuid;
use crate::domain::Inode;
use crate::host::Identity;
use crate::host::process::death;
use crate::supervisor::observe::evidence::Pipes;
use crate::supervisor::observe::gather;
use crate::supervisor::observe::log_tail::Logs;

/// Completes when the logs report something that is worth a poll, or when the pipe directory is lost.
pub(super) async fn logs_changed(
    logs: &mut Logs,
    gpus: &[GpuUuid],
    pipe_directory: &Path,
    pipe_inode: Option<Inode>,
) {
    loop {
        logs.changed().await;
        logs.read(gpus);
        if logs.woken || gather::pipes(pipe_directory, pipe_inode) != Pipes::Whole {
            return;
        }
    }
}

/// Completes when the first of these processes dies; never completes for an empty list.
pub(super) async fn dies(processes: Vec<Identity>) {
    if processes.is_empty() {
        return std::future::pending().await;
    }
    let deaths: Vec<_> = processes.into_iter().map(|identity| Box::pin(death(identity))).collect();
    futures_util::future::select_all(deaths).await;
}
