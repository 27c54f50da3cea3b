//! Control daemons of others: started past the manager with NVIDIA's own program, in directories of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Client, SIMULATED, Served, command_line, eventually, processes_with, signal};

/// A foreign control daemon.
pub(crate) struct Foreign {
    home: PathBuf,
    world: PathBuf,
    /// What it was started with.
    environment: Vec<(String, String)>,
    options: Vec<String>,
}

impl Served {
    /// A control daemon over one GPU, or over those of a list.
    pub(crate) fn foreign(&self, name: &str, gpus: &str) -> Foreign {
        self.foreign_with(name, &[("CUDA_VISIBLE_DEVICES", gpus)], &[])
    }

    /// A control daemon over one GPU with its directories in this one.
    pub(crate) fn foreign_in(&self, home: &Path, gpus: &str) -> Foreign {
        self.foreign_of(home.to_owned(), &[("CUDA_VISIBLE_DEVICES", gpus)], &[])
    }

    /// A control daemon with this in its environment and these options beside `-d`.
    pub(crate) fn foreign_with(&self, name: &str, environment: &[(&str, &str)], options: &[&str]) -> Foreign {
        self.foreign_of(self.foreign_home(name), environment, options)
    }

    fn foreign_of(&self, home: PathBuf, environment: &[(&str, &str)], options: &[&str]) -> Foreign {
        let foreign = Foreign {
            home,
            world: self.runtime("sim"),
            environment: environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            options: options.iter().map(ToString::to_string).collect(),
        };
        for directory in [foreign.pipe(), foreign.log()] {
            fs::create_dir_all(directory).expect("a directory");
        }
        foreign.start();
        foreign
    }

    /// Where a foreign daemon of this name has its directories.
    pub(super) fn foreign_home(&self, name: &str) -> PathBuf {
        self.dir().join("f").join(name)
    }

    /// The foreign daemons that the manager sees.
    pub(crate) fn foreign_daemons(&self) -> Vec<Value> {
        self.api().get("/api/v1/foreign-daemons").ok()["items"].as_array().expect("items").clone()
    }

    /// How the manager names a foreign daemon.
    pub(crate) fn foreign_id(&self, foreign: &Foreign) -> String {
        let pid = foreign.pid();
        let daemons = self.foreign_daemons();
        let daemon = daemons.iter().find(|daemon| daemon["pid"] == pid);
        daemon.unwrap_or_else(|| panic!("{pid} is not among {daemons:?}"))["id"]
            .as_str()
            .expect("an ID")
            .to_owned()
    }

    /// Asks the manager to adopt a foreign daemon.
    pub(crate) fn adopt(&self, name: &str, foreign: &Foreign, management: &str) -> super::Answer {
        let body = json!({"process": self.foreign_id(foreign), "management": management});
        self.api().post(&format!("/api/v1/daemons/{name}/adopt"), &body)
    }
}

impl Foreign {
    pub(crate) fn pipe(&self) -> PathBuf {
        self.home.join("pipe")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.home.join("log")
    }

    /// Starts it, or starts it again, as its owner would.
    pub(crate) fn start(&self) {
        let started = self.program("nvidia-cuda-mps-control").arg("-d").args(&self.options).status();
        assert!(started.expect("the control program runs").success());
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.world.join("bin").join(name));
        command
            .env_clear()
            .env("MPS_SIM_WORLD", &self.world)
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipe())
            .env("CUDA_MPS_LOG_DIRECTORY", self.log())
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    pub(crate) fn pid(&self) -> u32 {
        eventually("the foreign daemon has a PID file", || {
            fs::read_to_string(self.pipe().join("nvidia-cuda-mps-control.pid")).ok()?.trim().parse().ok()
        })
    }

    /// Sends it lines until it has taken them all, and gives its reply.
    pub(crate) fn control(&self, lines: &str) -> String {
        let end = "zz-owner";
        let input = self.home.join("lines");
        fs::write(&input, format!("{lines}\n{end}\n")).expect("written");
        eventually("the foreign daemon takes its owner's lines", || {
            let input = fs::File::open(&input).expect("readable");
            let output = self.program("nvidia-cuda-mps-control").stdin(input).output().expect("it runs");
            let message = String::from_utf8_lossy(&output.stdout).into_owned();
            message.strip_suffix(&format!("Unknown command \"{end}\"\n")).map(|reply| reply.trim().to_owned())
        })
    }

    /// Has its owner quit it.
    pub(crate) fn quit(&self) {
        let pid = self.pid();
        eventually("the foreign daemon quits", || {
            let input = self.home.join("lines");
            fs::write(&input, "quit -t 1\n").expect("written");
            let input = fs::File::open(&input).expect("readable");
            let _ = self.program("nvidia-cuda-mps-control").stdin(input).output().expect("it runs");
            (!super::is_alive(pid)).then_some(())
        });
    }

    /// A CUDA program on it, connected.
    pub(crate) fn client(&self) -> Client {
        let mut command = Command::new(SIMULATED);
        command
            .args(["sim", "client", "--json", "--spin", "36000", "--alloc", "256"])
            .env_clear()
            .env("MPS_SIM_WORLD", &self.world)
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipe());
        let client = Client::start(command);
        assert_eq!(client.seen["error"], Value::Null, "{}", client.seen);
        client
    }

    /// How many callers of the control program are at work in its directory.
    pub(crate) fn sessions(&self) -> usize {
        let callers = processes_with("CUDA_MPS_PIPE_DIRECTORY", &self.pipe());
        let is_caller = |pid: &u32| {
            let words = command_line(*pid);
            words.len() == 1 && words[0].ends_with("nvidia-cuda-mps-control")
        };
        callers.into_iter().filter(is_caller).count()
    }

    /// Stands still, once it is adopted as this daemon, with the manager inside the session that writes a setting to
    /// it; gives the spec with that setting. Goes on with SIGCONT.
    pub(crate) fn hold_in_a_write(&self, host: &Served, daemon: &str) -> Value {
        signal(self.pid(), Signal::STOP);
        let mut spec = host.daemon(daemon)["spec"].clone();
        spec["defaults"]["active_thread_percentage"] = json!(50);
        assert_eq!(host.api().put(&format!("/api/v1/daemons/{daemon}"), &spec).status, 200);
        eventually("the driver writes", || (self.sessions() > 0).then_some(()));
        spec
    }

    /// How often its control.log has this text.
    pub(crate) fn logged(&self, text: &str) -> usize {
        logged(&self.log(), text)
    }

    /// How many commands that change something it was sent.
    pub(crate) fn changes(&self) -> usize {
        ["Cmd:set_", "Cmd:start_server", "Cmd:terminate_client", "Cmd:quit", "Cmd:shutdown_server"]
            .iter()
            .map(|text| self.logged(text))
            .sum()
    }
}

fn logged(log: &Path, text: &str) -> usize {
    fs::read_to_string(log.join("control.log")).unwrap_or_default().matches(text).count()
}
