//! Foreign control daemons: one that is left alone, of which nothing may ever change, and one that is adopted.

use serde_json::{Value, json};

use super::plan::ADOPTED;
use crate::harness::{Client, Foreign, Host, is_alive};

/// One on a GPU of its own, with a client. It may be adopted for a moment, which changes nothing of it either.
pub(super) struct Untouched {
    pub(super) daemon: Foreign,
    pid: u32,
    settings: String,
    changes: usize,
    client: Client,
}

const GETTERS: &str =
    "get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0\nget_server_list";

impl Untouched {
    /// On the GPU with this index, which no daemon of the manager's has.
    pub(super) fn start(host: &Host, gpu: usize) -> Self {
        let daemon = host.foreign("untouched", &uuid(host, gpu));
        daemon.control("set_default_device_pinned_mem_limit 0 6G\nset_default_active_thread_percentage 70");
        let client = daemon.client();
        assert_eq!(client.seen["devices"][0]["sms"], 92, "{}", client.seen);
        let (pid, settings, changes) = (daemon.pid(), daemon.control(GETTERS), daemon.changes());
        assert!(settings.starts_with("70.0\n6G\n"), "{settings}");
        Self { daemon, pid, settings, changes, client }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Nothing of it was touched.
    pub(super) fn check(&mut self) {
        assert!(is_alive(self.pid), "the foreign daemon is gone");
        assert!(self.client.is_running(), "the foreign daemon's client is gone");
        assert_eq!(self.daemon.changes(), self.changes, "something was written to the foreign daemon");
        assert_eq!(
            self.daemon.control(GETTERS),
            self.settings,
            "the foreign daemon's settings or its server"
        );
    }
}

/// The settings of the adopted daemon before it was adopted, as a spec says it.
pub(super) fn defaults() -> Value {
    json!({"device_memory_limit": 3_u64 << 30, "active_thread_percentage": 60.0, "priority": "below_normal"})
}

/// Starts a foreign daemon on the GPU with this index, and has it adopted as it is.
pub(super) fn adopt(host: &Host, gpu: usize) {
    let daemon = host.foreign(ADOPTED, &uuid(host, gpu));
    daemon.control(
        "set_default_device_pinned_mem_limit 0 3G\nset_default_active_thread_percentage 60\nset_default_client_priority 1",
    );
    // Its server logs the limit to the byte, without which it would not be taken over.
    drop(daemon.client());
    let adopted = host.adopt(ADOPTED, &daemon, "managed");
    assert_eq!(adopted.status, 201, "{}", adopted.text);
    assert_eq!(adopted.json()["spec"]["defaults"], defaults());
}

fn uuid(host: &Host, gpu: usize) -> String {
    let gpus = host.api().get("/api/v1/gpus").ok();
    gpus["items"][gpu]["uuid"].as_str().expect("a UUID").to_owned()
}
