//! The host around a manager: limits, environment, other daemons, systemd, the address, the clock.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use rustix::process::{Resource, geteuid, getrlimit};

use super::{Examination, Manager};
use crate::app::certificates;
use crate::clock::Clock;
use crate::domain::checkup::{Check, CheckFinding, CheckVerdict};
use crate::domain::client::ClientId;
use crate::domain::count::counted;
use crate::domain::environment::is_managed;
use crate::domain::foreign::visible_gpus;
use crate::domain::listening::RENEWAL_MS;
use crate::host::systemd::{Scopes, cgroup, has_mounts_of_its_own};
use crate::host::{boot_id, process, sockets};
use crate::http::server::check_address;
use crate::mps::process::foreign::{Running, running};
use crate::service::host::HostIsolation;

/// Open files that NVIDIA asks for, for daemon and servers (FACTS.md, "Starting, stopping, dying").
const OPEN_FILES: u64 = 16_384;
/// Seconds of a day.
const DAY: i64 = 24 * 3600;
/// Threads and processes below which even a few tenants exceed the limit: a server has threads for each of its clients.
const TASKS: u64 = 4096;

impl Examination {
    /// Checks the limits that daemons inherit: those of the manager that serves, or else those of this process.
    pub(super) fn limits(&mut self) {
        let manager = self.manager.pid();
        let whose =
            manager.map_or_else(|| "here".to_owned(), |pid| format!("for the manager, process {pid}"));
        let limit = match manager {
            Some(pid) => process::open_files(pid).map(|(_, limit)| limit),
            // The manager raises its own limit as far as it may.
            None => Some(getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)),
        };
        self.add(match limit {
            None => Check::skipped("open_files", format!("the limit {whose} may not be read")),
            Some(limit) if limit < OPEN_FILES => Check::warn(
                "open_files",
                format!("{limit} open files {whose}; NVIDIA asks for {OPEN_FILES} at least"),
                "LimitNOFILE=65536 in the unit, or ulimit -Hn before the start",
            ),
            Some(limit) => Check::ok("open_files", format!("{limit} open files {whose}")),
        });
        self.add(match tasks(manager.unwrap_or_else(std::process::id)) {
            None => Check::ok("tasks", format!("no limit on threads and processes {whose} that can be seen")),
            Some((limit, file)) if limit < TASKS => Check::warn(
                "tasks",
                format!(
                    "{limit} threads and processes {whose}, by {file}; a server has threads for each client"
                ),
                "TasksMax=infinity in the unit, or a larger limit of the container",
            ),
            Some((limit, _)) => Check::ok("tasks", format!("{limit} threads and processes {whose}")),
        });
    }

    pub(super) fn environment(&mut self) {
        let mut found: Vec<String> = std::env::vars_os()
            .filter_map(|(name, _)| name.into_string().ok())
            .filter(|name| is_managed(name))
            .collect();
        found.sort();
        self.add(if found.is_empty() {
            Check::ok("environment", "no variable here changes what a CUDA program sees")
        } else {
            Check::warn(
                "environment",
                format!(
                    "set here: {}; a manager passes none of them on, and `mps-manager run` and `env` unset them, but what else is \
                     started from here has them",
                    found.join(", ")
                ),
                format!("unset {}", found.join(" ")),
            )
        });
    }

    pub(super) fn foreign_daemons(&mut self) {
        let ours = |daemon: &Running| {
            let Some(contents) = &self.contents else { return false };
            let identity = (daemon.identity.pid, daemon.identity.start_time);
            let token = daemon.environment.as_ref().ok().and_then(|seen| seen.token.as_ref());
            token.is_some_and(|token| contents.tokens.contains(token))
                || contents.processes.contains(&identity)
        };
        // A manager started it in this runtime directory, but the database does not know it.
        let is_lost = |daemon: &Running| {
            let seen = daemon.environment.as_ref().ok();
            seen.is_some_and(|seen| {
                seen.token.is_some() && seen.pipe_directory.starts_with(&self.config.runtime_dir)
            })
        };
        let running = running(self.world.as_deref());
        let foreign = running.iter().filter(|daemon| !ours(daemon)).map(|daemon| CheckFinding {
            seen: self.described(daemon),
            remedy: if is_lost(daemon) {
                "mps-manager daemon adopt --all-ours".to_owned()
            } else {
                self.foreign_remedy(daemon)
            },
        });
        let foreign: Vec<CheckFinding> = foreign.collect();
        self.add(if foreign.is_empty() {
            Check::ok("foreign_daemons", "no MPS control daemon runs that is not this manager's")
        } else {
            Check::each("foreign_daemons", CheckVerdict::Warn, foreign)
        });
    }

    /// Returns the command that shows a remedy for a daemon, or, where no manager serves, the command that ends the daemon.
    fn foreign_remedy(&self, daemon: &Running) -> String {
        let process = ClientId::from(daemon.identity);
        let owner = &daemon.owner;
        if owner.is_supervised() || owner.tenant.is_some() || owner.container.is_some() {
            let path = daemon.environment.as_ref().ok().map(|seen| seen.pipe_directory.display().to_string());
            return owner.remedy(path.as_deref());
        }
        match (self.manager, &daemon.environment) {
            (Manager::None, Ok(seen)) => format!(
                "echo quit | CUDA_MPS_PIPE_DIRECTORY={} nvidia-cuda-mps-control",
                seen.pipe_directory.display()
            ),
            (Manager::None, Err(_)) => format!("kill {}", process.pid),
            (Manager::Process(_) | Manager::Unseen, _) => {
                format!("mps-manager foreign get {process}")
            }
        }
    }

    fn described(&self, daemon: &Running) -> String {
        let whose = daemon.uid.map_or_else(String::new, |uid| format!(" of uid {uid}"));
        let mut words = vec![format!("control daemon {}{whose}", daemon.identity.pid)];
        match &daemon.environment {
            Err(why) => words.push(format!("({why})")),
            Ok(seen) => {
                words.push(format!("at {}", seen.pipe_directory.display()));
                let visible = visible_gpus(seen.visible_devices.as_deref(), seen.pci_order, &self.gpus);
                let visible = visible.unwrap_or_default();
                let indices = self.gpus.iter().filter(|gpu| visible.contains(&gpu.uuid));
                let indices: Vec<String> = indices.map(|gpu| gpu.index.to_string()).collect();
                if !indices.is_empty() {
                    words.push(format!("serves GPU {}", indices.join(", ")));
                }
                let owner = daemon.owner.words();
                if seen.token.is_some() {
                    words.push(
                        "(started by another manager, or by this one before its database was lost)"
                            .to_owned(),
                    );
                } else if !owner.is_empty() {
                    words.push(format!("({owner})"));
                }
            }
        }
        words.join(" ")
    }

    /// Scopes and mounts, as `GET /host` reports them.
    pub(super) fn isolation(&mut self) {
        let scopes = Scopes::detect(geteuid().as_raw());
        let process = self.manager.pid().map_or_else(|| "self".to_owned(), |pid| pid.to_string());
        let mounts = has_mounts_of_its_own(&process);
        let seen = HostIsolation::of(&scopes, mounts);
        self.add(match (&scopes, mounts) {
            (_, Some(true)) => Check::warn(
                "isolation",
                seen.remarks.join(" "),
                "leave PrivateTmp=, ProtectSystem= and what else makes a mount namespace out of the unit, as deploy/ does",
            ),
            (Scopes::Available { version, .. }, _) => {
                Check::ok("isolation", format!("daemons get systemd scopes of their own (systemd {version})"))
            }
            (Scopes::Unavailable(why), _) => {
                Check::ok("isolation", format!("daemons get sessions of their own, and no scopes: {why}"))
            }
        });
    }

    pub(super) async fn listen(&mut self) {
        let (address, tls) = (self.config.listen, self.config.tls.is_some());
        let check = if let Err(error) = check_address(address, tls, self.config.insecure_listen) {
            Check::fail(
                "listen",
                error.to_string(),
                "listen on 127.0.0.1 or [::1], or give a certificate in [tls]",
            )
        } else {
            match tokio::net::TcpListener::bind(address).await {
                Ok(_) if !tls && !address.ip().is_loopback() => Check::warn(
                    "listen",
                    format!("{address} is reached from other hosts, without TLS, as insecure_listen says"),
                    "give a certificate in [tls]: everybody on the way can read and change what is sent, tokens included",
                ),
                Ok(_) => Check::ok("listen", format!("{address} is free")),
                Err(error) => self.in_use(address, &error),
            }
        };
        self.add(check);
    }

    /// Checks an address that cannot be listened on: the manager's own, or another program's.
    fn in_use(&self, address: SocketAddr, error: &std::io::Error) -> Check {
        let in_use = |what: String| {
            Check::fail("listen", what, "stop what uses the port, or give another address with --listen")
        };
        match self.manager {
            Manager::None => in_use(format!("{address}: {error}")),
            Manager::Unseen => Check::skipped(
                "listen",
                format!("{address} is in use; this user may not see whether the manager uses it"),
            ),
            Manager::Process(pid) => match sockets::listens(pid, address.port()) {
                Some(true) => {
                    Check::ok("listen", format!("{address} is in use by the manager, process {pid}"))
                }
                Some(false) => in_use(format!(
                    "{address} is in use by another program, and the manager, process {pid}, listens elsewhere"
                )),
                None => Check::skipped(
                    "listen",
                    format!(
                        "{address} is in use; this user may not see whether the manager, process {pid}, uses it"
                    ),
                ),
            },
        }
    }

    pub(super) fn certificate(&mut self) {
        let renew = "put a new pair in place of the files: a manager that serves reads them by itself";
        let check = match certificates::load(self.config.tls.as_ref()) {
            Ok(None) => Check::skipped("certificate", "the API is served without TLS"),
            Err(error) => Check::fail("certificate", error.to_string(), "fix the files, or remove [tls]"),
            Ok(Some(pair)) => {
                // Both are in seconds.
                let left = pair.not_after() - Clock::system().unix_ms() / 1000;
                if left < 0 {
                    Check::fail(
                        "certificate",
                        format!("it expired {} ago", counted(-left / DAY, "day")),
                        renew,
                    )
                } else if left < RENEWAL_MS / 1000 {
                    Check::warn("certificate", format!("it expires in {}", counted(left / DAY, "day")), renew)
                } else {
                    Check::ok(
                        "certificate",
                        format!(
                            "the certificate matches its key and expires in {}",
                            counted(left / DAY, "day")
                        ),
                    )
                }
            }
        };
        self.add(check);
    }

    pub(super) fn clock(&mut self) {
        let now = Clock::system().unix_ms();
        let written =
            self.contents.iter().flat_map(|contents| &contents.daemons).map(|daemon| daemon.updated_at);
        let check = match boot_id() {
            Err(error) => Check::fail(
                "clock",
                format!("the ID of this boot cannot be read: {error}"),
                "mount /proc: without that ID, processes from before a reboot cannot be distinguished from new ones",
            ),
            _ if written.max().is_some_and(|written| written > now) => Check::warn(
                "clock",
                "the clock is earlier than the last write to the database",
                "set the clock: times in the journals are wrong",
            ),
            Ok(boot) => Check::ok("clock", format!("boot {boot}")),
        };
        self.add(check);
    }
}

/// Returns the lowest limit on threads and processes of a process's cgroup and those above it, and the file that sets it; `None` where
/// there is none, or where it may not be read.
fn tasks(pid: u32) -> Option<(u64, String)> {
    let path = cgroup(pid)?;
    let relative = Path::new(path.trim_start_matches('/'));
    let limits =
        ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids"].into_iter().flat_map(|root| {
            relative.ancestors().filter_map(move |directory| {
                let file = Path::new(root).join(directory).join("pids.max");
                let limit: u64 = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
                Some((limit, file.display().to_string()))
            })
        });
    limits.min_by_key(|(limit, _)| *limit)
}
