//! The configuration: a TOML file, and what the command line says instead.
//!
//! Every key is documented in `docs/configuration.md`; a test compares the two.

mod access;
mod client;
mod error;
mod limits;
mod tls;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::access::AccessConfig;
pub use self::client::{CLIENT_CONFIG, trusted_managers};
pub use self::error::ConfigError;
pub use self::limits::Limits;
pub use self::tls::{Tls, check_key};

use self::error::range;
use crate::domain::access::UserMap;
use crate::domain::environment::cdi::{self, CdiDirectory};
use crate::domain::timings::Timings;
use crate::host::trust::{Content, Trust};

/// The configuration, complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The address of the API; beyond loopback with `tls` only, or with `insecure_listen`.
    pub listen: SocketAddr,
    /// Listen beyond loopback without TLS: anyone on the network can read and change what is sent, tokens included.
    pub insecure_listen: bool,
    /// Where the database and the admin token are.
    pub state_dir: PathBuf,
    /// Where sockets, pipe directories and logs of daemons are.
    pub runtime_dir: PathBuf,
    /// Directory of the tenants' CDI specification for container engines; `off` or empty for none. If unset, [`Self::cdi_directory`]
    /// chooses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cdi_dir: Option<PathBuf>,
    /// The simulated host to run on, as `h200x2`; without it, the real one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sim: Option<String>,
    /// The directory of `nvidia-cuda-mps-control` and `-server`; without it, `PATH`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps_dir: Option<PathBuf>,
    /// True if a start waits for a driver or MPS programs that are missing. If unset, a manager that runs as a systemd service waits,
    /// and one that was started in another way ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_for_driver: Option<bool>,
    /// Format of log lines.
    pub log_format: LogFormat,
    /// Filter of log lines, as `info` or `mps_manager=debug,info`.
    pub log_filter: String,
    /// Seconds between two sessions with an idle daemon whose logs show nothing.
    pub poll_interval_s: u32,
    /// Longest time for one session with a daemon, in seconds.
    pub control_deadline_s: u32,
    /// Default grace period for clients when a daemon is stopped, in seconds.
    pub stop_grace_s: u32,
    /// Longest time a request waits for a fresh poll, in seconds.
    pub fresh_timeout_s: u32,
    /// Longest time a CUDA process of a tenant waits for its daemon to be back, in seconds; 0 refuses it at once.
    pub client_wait_s: u32,
    /// Access to the API, and sessions of browsers.
    pub access: AccessConfig,
    /// The journal of events.
    pub events: EventsConfig,
    /// The certificate of the API; without it, it is served without TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// Limits of connections and requests.
    pub limits: Limits,
    /// Pauses and deadlines of a simulated host.
    pub timings: Timings,
}

/// Settings of the journal of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EventsConfig {
    /// Days for which events are kept.
    pub keep_days: u32,
    /// Most events that are kept.
    pub keep_count: u32,
    /// Streams that may be read at the same time.
    pub streams: u32,
}

impl Default for EventsConfig {
    fn default() -> Self {
        Self { keep_days: 30, keep_count: 200_000, streams: 64 }
    }
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        let root = rustix::process::geteuid().is_root();
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8640)),
            insecure_listen: false,
            state_dir: if root { "/var/lib/mps-manager".into() } else { state_home().join("mps-manager") },
            runtime_dir: default_runtime_dir(),
            cdi_dir: None,
            sim: None,
            mps_dir: None,
            wait_for_driver: None,
            log_format: LogFormat::Text,
            log_filter: "info".into(),
            poll_interval_s: 60,
            control_deadline_s: 5,
            stop_grace_s: 10,
            fresh_timeout_s: 10,
            client_wait_s: 30,
            access: AccessConfig::default(),
            events: EventsConfig::default(),
            tls: None,
            limits: Limits::default(),
            timings: Timings::default(),
        }
    }
}

/// The default directory of the manager's socket, where commands expect it.
pub fn default_runtime_dir() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return "/run/mps-manager".into();
    }
    // Under /tmp when a session has no runtime directory: pipe paths must be short.
    std::env::var_os("XDG_RUNTIME_DIR").map_or_else(
        || PathBuf::from(format!("/tmp/mps-manager-{}", rustix::process::geteuid().as_raw())),
        |base| PathBuf::from(base).join("mps-manager"),
    )
}

fn state_home() -> PathBuf {
    std::env::var_os("XDG_STATE_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/".into())).join(".local/state"),
        PathBuf::from,
    )
}

impl Config {
    /// Reads a file; every key has a default, and a key that is not known is refused.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Trust::own().check(path, Content::File).map_err(ConfigError::Untrusted)?;
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|detail| ConfigError::Refused { path: path.to_owned(), detail })
    }

    /// Returns the pause between two readings of processes and GPUs while nothing happens; they open no session with a daemon.
    pub fn refresh_interval(&self) -> Duration {
        Timings::duration(self.timings.refresh_ms).min(Duration::from_secs(self.poll_interval_s.into()))
    }

    /// Reads the text of a file; the error says which key, and why.
    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// Refuses values that make no sense together or alone.
    ///
    /// Directories come out absolute: they go into environments that are used elsewhere.
    pub fn check(mut self) -> Result<Self, ConfigError> {
        let certificate = self.tls.iter_mut().flat_map(|tls| [&mut tls.certificate, &mut tls.key]);
        let cdi = self.cdi_dir.iter_mut().filter(|directory| !is_off(directory));
        let own = [&mut self.state_dir, &mut self.runtime_dir];
        for directory in own.into_iter().chain(certificate).chain(cdi) {
            if let Ok(absolute) = std::path::absolute(&*directory) {
                *directory = absolute;
            }
        }
        range("poll_interval_s", self.poll_interval_s, 1, 3600, "1 to 3600 seconds")?;
        range("control_deadline_s", self.control_deadline_s, 1, 600, "1 to 600 seconds")?;
        range("stop_grace_s", self.stop_grace_s, 0, 3600, "0 to 3600 seconds")?;
        range("fresh_timeout_s", self.fresh_timeout_s, 1, 600, "1 to 600 seconds")?;
        range("client_wait_s", self.client_wait_s, 0, 3600, "0 to 3600 seconds")?;
        let AccessConfig { session_idle_s, session_max_s, .. } = self.access;
        range("access.session_idle_s", session_idle_s, 60, 604_800, "60 to 604800 seconds")?;
        range("access.session_max_s", session_max_s, 60, 2_592_000, "60 to 2592000 seconds")?;
        self.users()?;
        range("events.keep_days", self.events.keep_days, 1, 3650, "1 to 3650 days")?;
        range("events.keep_count", self.events.keep_count, 1_000, 10_000_000, "1000 to 10000000 events")?;
        range("events.streams", self.events.streams, 1, 1_000, "1 to 1000 streams")?;
        self.limits.check()?;
        if self.sim.is_none() && !is_default(&self.timings) {
            return Err(ConfigError::SimulatedOnly { key: "timings" });
        }
        Ok(self)
    }

    /// Returns the grants of the users of this host; refused if the file names a user or group that the host does not know.
    pub fn users(&self) -> Result<UserMap, ConfigError> {
        self.access.resolved().map_err(|(key, detail)| ConfigError::Unknown { key, detail })
    }

    /// Returns true if a start waits for a driver that is missing.
    pub fn waits_for_driver(&self) -> bool {
        self.wait_for_driver.unwrap_or_else(|| std::env::var_os("NOTIFY_SOCKET").is_some())
    }

    /// Returns the directory of the CDI specification: the configured one; for a simulated host a directory of its own; for root the one in
    /// which engines look; `None` otherwise.
    pub fn cdi_directory(&self) -> Option<CdiDirectory> {
        let by_default = |path| Some(CdiDirectory { path, is_default: true });
        match &self.cdi_dir {
            Some(directory) if is_off(directory) => None,
            Some(directory) => Some(CdiDirectory { path: directory.clone(), is_default: false }),
            None if self.sim.is_some() => by_default(self.runtime_dir.join("sim/cdi")),
            None if rustix::process::geteuid().is_root() => by_default(cdi::DIRECTORY.into()),
            // Engines read no directory that another user can write.
            None => None,
        }
    }

    /// The unix socket of the API.
    pub fn socket(&self) -> PathBuf {
        socket_in(&self.runtime_dir)
    }
}

/// Returns true if this directory stands for no directory at all.
fn is_off(directory: &Path) -> bool {
    directory.as_os_str().is_empty() || directory == Path::new("off")
}

fn is_default(timings: &Timings) -> bool {
    *timings == Timings::default()
}

/// The unix socket of the API in a runtime directory.
pub fn socket_in(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("api.sock")
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_key_is_refused_by_name() {
        let file = tempfile::NamedTempFile::new().expect("file");
        std::fs::write(file.path(), "lisen = \"127.0.0.1:1\"\n").expect("written");
        let error = Config::read(file.path()).expect_err("misspelt").to_string();
        assert!(error.contains("lisen"), "{error}");
    }

    #[test]
    fn packaged_configuration_has_the_defaults() {
        let text = include_str!("../../deploy/config.toml");
        assert_eq!(toml::from_str::<Config>(text).expect("valid"), Config::default());
        // A line whose `#` is removed has the default that it shows.
        let lines = text.lines().filter_map(|line| line.strip_prefix('#'));
        let offered = lines.filter(|line| !line.starts_with(' ')).collect::<Vec<_>>().join("\n");
        let config = toml::from_str::<Config>(&offered).expect("valid without its `#`s");
        assert!(config.tls.is_some() && config.listen == Config::default().listen, "{offered}");
    }

    #[test]
    fn config_keys_match_their_documentation() {
        let documented = include_str!("../../docs/configuration.md");
        let config = Config {
            sim: Some("h200x2".into()),
            mps_dir: Some("/usr/bin".into()),
            cdi_dir: Some("/var/run/cdi".into()),
            wait_for_driver: Some(true),
            tls: Some(Tls { certificate: "/c.pem".into(), key: "/k.pem".into() }),
            ..Config::default()
        };
        let keys = keys("", &toml::Table::try_from(config).expect("a table"));
        for key in &keys {
            assert!(documented.contains(&format!("| `{key}` |")), "{key} is not documented");
        }
        for line in documented.lines().filter_map(|line| line.strip_prefix("| `")) {
            let key = line.split('`').next().unwrap_or_default();
            assert!(keys.iter().any(|existing| existing == key), "{key} is documented and does not exist");
        }
    }

    /// The keys of a table and of those in it, as `limits.streams`; an empty one is a key whose own keys are chosen freely.
    fn keys(of: &str, table: &toml::Table) -> Vec<String> {
        let mut names = Vec::new();
        for (key, value) in table {
            match value {
                toml::Value::Table(inner) if !inner.is_empty() => {
                    names.extend(keys(&format!("{of}{key}."), inner));
                }
                _ => names.push(format!("{of}{key}")),
            }
        }
        names
    }

    #[test]
    fn cdi_directory_is_named_default_or_off() {
        let with = |cdi_dir: Option<&str>, sim: Option<&str>| {
            let config = Config {
                cdi_dir: cdi_dir.map(PathBuf::from),
                sim: sim.map(str::to_owned),
                runtime_dir: "/run/x".into(),
                ..Config::default()
            };
            config.check().expect("valid").cdi_directory()
        };
        let directory = |path: &str, is_default| Some(CdiDirectory { path: path.into(), is_default });
        assert_eq!(with(Some("/etc/cdi"), None), directory("/etc/cdi", false));
        assert_eq!(with(None, Some("h200x2")), directory("/run/x/sim/cdi", true));
        for off in ["", "off"] {
            assert_eq!(with(Some(off), Some("h200x2")), None, "{off:?}");
        }
        let root = rustix::process::geteuid().is_root();
        assert_eq!(with(None, None), if root { directory("/var/run/cdi", true) } else { None });
        assert!(with(Some("cdi"), None).is_some_and(|named| named.path.is_absolute()));
    }

    #[test]
    fn out_of_range_value_names_key_and_range() {
        let error =
            Config { control_deadline_s: 0, ..Config::default() }.check().expect_err("zero").to_string();
        assert!(error.contains("control_deadline_s") && error.contains("1 to 600"), "{error}");
        let limits = Limits { headers: 1, ..Limits::default() };
        let error = Config { limits, ..Config::default() }.check().expect_err("one").to_string();
        assert!(error.contains("limits.headers is 1") && error.contains("16 to 1000"), "{error}");
        let limits = Limits { connections: 10, connections_per_address: 11, ..Limits::default() };
        let error = Config { limits, ..Config::default() }.check().expect_err("more").to_string();
        assert!(error.contains("at most limits.connections"), "{error}");
    }
}
