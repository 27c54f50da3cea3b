//! A control daemon of somebody else's on a GPU of its own, with a client: nothing of it may ever change.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::harness::{Client, Host, MANAGER, eventually, is_alive};

pub(super) struct Foreign {
    home: PathBuf,
    world: PathBuf,
    pid: u32,
    settings: String,
    changes: usize,
    client: Client,
}

const GETTERS: &str = "get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0\nget_server_list\nzz-foreign\n";

impl Foreign {
    /// On the GPU with this index, which no daemon of the manager's has.
    pub(super) fn start(host: &Host, gpu: usize) -> Self {
        let gpus = host.api().get("/api/v1/gpus").ok();
        let uuid = gpus["items"][gpu]["uuid"].as_str().expect("a UUID").to_owned();
        let (home, world) = (host.dir().join("foreign"), host.runtime("sim"));
        for directory in ["pipe", "log"] {
            fs::create_dir_all(home.join(directory)).expect("made");
        }
        let control = |home: &PathBuf| {
            let mut command = Command::new(world.join("bin/nvidia-cuda-mps-control"));
            command
                .env_clear()
                .env("MPS_SIM_WORLD", &world)
                .env("CUDA_MPS_PIPE_DIRECTORY", home.join("pipe"))
                .env("CUDA_MPS_LOG_DIRECTORY", home.join("log"));
            command
        };
        let started = control(&home).arg("-d").env("CUDA_VISIBLE_DEVICES", uuid).status().expect("it runs");
        assert!(started.success());
        let pid_file = home.join("pipe/nvidia-cuda-mps-control.pid");
        let pid =
            eventually("the foreign daemon runs", || fs::read_to_string(&pid_file).ok()?.trim().parse().ok());
        let lines = home.join("lines");
        fs::write(
            &lines,
            "set_default_device_pinned_mem_limit 0 6G\nset_default_active_thread_percentage 70\n",
        )
        .expect("written");
        control(&home).stdin(fs::File::open(&lines).expect("there")).output().expect("it runs");
        fs::write(&lines, GETTERS).expect("written");
        let mut program = Command::new(MANAGER);
        program
            .args(["sim", "client", "--json", "--spin", "36000", "--alloc", "512"])
            .env_clear()
            .env("MPS_SIM_WORLD", &world)
            .env("CUDA_MPS_PIPE_DIRECTORY", home.join("pipe"));
        let client = Client::start(program);
        assert_eq!(client.seen["devices"][0]["sms"], 92, "{}", client.seen);
        let mut foreign = Self { home, world, pid, settings: String::new(), changes: 0, client };
        foreign.settings = foreign.settings();
        foreign.changes = foreign.changes();
        assert!(foreign.settings.starts_with("70.0\n6G\n"), "{}", foreign.settings);
        foreign
    }

    /// Nothing of it was touched.
    pub(super) fn check(&mut self) {
        assert!(is_alive(self.pid), "the foreign daemon is gone");
        assert!(self.client.is_running(), "the foreign daemon's client is gone");
        assert_eq!(self.changes(), self.changes, "something was written to the foreign daemon");
        assert_eq!(self.settings(), self.settings, "the foreign daemon's settings or its server");
    }

    fn settings(&self) -> String {
        eventually("the foreign daemon answers", || {
            let output = Command::new(self.world.join("bin/nvidia-cuda-mps-control"))
                .env_clear()
                .env("MPS_SIM_WORLD", &self.world)
                .env("CUDA_MPS_PIPE_DIRECTORY", self.home.join("pipe"))
                .env("CUDA_MPS_LOG_DIRECTORY", self.home.join("log"))
                .stdin(fs::File::open(self.home.join("lines")).expect("there"))
                .stderr(Stdio::null())
                .output()
                .expect("it runs");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            Some(said.strip_suffix("Unknown command \"zz-foreign\"\n")?.to_owned())
        })
    }

    fn changes(&self) -> usize {
        let log = fs::read_to_string(self.home.join("log/control.log")).unwrap_or_default();
        ["set_", "start_server", "terminate_client", "quit", "shutdown_server"]
            .iter()
            .map(|word| log.matches(word).count())
            .sum()
    }
}
