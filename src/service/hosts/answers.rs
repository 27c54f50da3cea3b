//! Answers of other hosts: what is read of them, in which another version may have added fields and values.

use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use crate::domain::daemon::{Mode, Phase};
use crate::domain::layout::comparison::{HeldLayout, HeldPartition};
use crate::domain::{DaemonName, GpuUuid, LayoutName};

/// The host itself.
#[derive(Debug, Deserialize)]
pub(super) struct RemoteHostFacts {
    pub(super) hostname: String,
    pub(super) simulated: bool,
    pub(super) manager_version: String,
    pub(super) gpus: usize,
}

/// A daemon.
#[derive(Debug, Deserialize)]
pub(super) struct RemoteDaemon {
    pub(super) name: DaemonName,
    pub(super) spec: RemoteDaemonSpec,
    status: Option<RemoteDaemonStatus>,
}

/// Its desired state.
#[derive(Debug, Deserialize)]
pub(super) struct RemoteDaemonSpec {
    pub(super) gpus: Vec<GpuUuid>,
    pub(super) layout: Option<serde::de::IgnoredAny>,
    mode: String,
    management: String,
}

#[derive(Debug, Deserialize)]
struct RemoteDaemonStatus {
    phase: String,
    layout: Option<RemoteLayout>,
}

#[derive(Debug, Deserialize)]
struct RemoteLayout {
    name: Option<LayoutName>,
    state: Value,
    partitions: Vec<HeldPartition>,
}

impl RemoteDaemon {
    pub(super) fn is_ready(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.phase == Phase::Ready.as_str())
    }

    pub(super) fn is_managed(&self) -> bool {
        self.spec.management == "managed"
    }

    /// The layout that it has.
    pub(super) fn layout(&self) -> Option<HeldLayout> {
        let layout = self.status.as_ref()?.layout.as_ref()?;
        Some(HeldLayout {
            daemon: self.name.clone(),
            name: layout.name.clone()?,
            state: serde_json::from_value(layout.state.clone()).ok(),
            partitions: layout.partitions.clone(),
        })
    }
}

impl RemoteDaemonSpec {
    pub(super) fn is_in(&self, mode: Mode) -> bool {
        self.mode == mode.as_str()
    }
}

/// A GPU.
#[derive(Debug, Deserialize)]
pub(super) struct RemoteGpu {
    pub(super) uuid: GpuUuid,
    pub(super) present: bool,
    pub(super) name: Option<String>,
    pub(super) daemon: Option<DaemonName>,
}

/// A replay that was accepted.
#[derive(Debug, Deserialize)]
pub(super) struct RemoteReplayAccepted {
    pub(super) replay: Uuid,
    pub(super) operation: RemoteOperation,
}

/// The operation that runs it.
#[derive(Debug, Deserialize)]
pub(super) struct RemoteOperation {
    pub(super) id: Uuid,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn daemon_of_a_later_version_is_read() {
        let gpu = "GPU-514466a0-8e68-f857-9f73-e438010e48cb";
        let daemon: RemoteDaemon = serde_json::from_value(json!({
            "name": "gpu0",
            "spec": {"gpus": [gpu], "mode": "time_sliced", "management": "managed", "layout": {"name": "prod"}, "a_new": 1},
            "status": {
                "phase": "a_new_one",
                "conditions": [{"type": "ANewOne", "reason": "Unknown"}],
                "layout": {
                    "name": "prod", "state": "a_new_one", "enforcement": "of_another_kind",
                    "partitions": [{"partition": "web", "gpu": gpu, "id": null, "chunks": 2, "a_new": true}],
                },
            },
        }))
        .expect("read");
        assert!(!daemon.is_ready() && daemon.is_managed() && !daemon.spec.is_in(Mode::Static));
        let layout = daemon.layout().expect("a layout");
        assert!(!layout.is_in_force(), "a state that is not known is not that of a layout in force");
        assert_eq!((layout.state, layout.partitions.len()), (None, 1));
    }
}
