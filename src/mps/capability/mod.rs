//! Capabilities of an installed control program: learnt, not assumed.
//!
//! From driver 580 on a program describes itself ([`help`]). Older ones do not (recording 22): a daemon of theirs is started in a
//! directory of its own, asked which commands it knows, and ended ([`ask`]), and their version is the driver's. Neither touches a GPU. An
//! unknown option exits 0 with no daemon started (FACTS.md, "Starting, stopping, dying"), so an option is used only where `--help` lists
//! it.

mod ask;
mod error;
mod help;
mod program_file;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use self::error::OLDEST;
pub use self::error::ProbeError;
pub use self::help::words;
use super::binaries::InstalledProgram;
use crate::domain::capability::{CapabilityName, HostCapability, RunningDriver};
use crate::domain::gpu::cuda_version;

/// The first version that refuses other users' changes of its defaults, and that has `get_server_status`: CUDA 12.4 (recording 22).
const GUARDED_SINCE: u32 = 12_040;
/// The first version known to have daemons for several users: CUDA 12.5. 12.4 has none (recorded with drivers 550 and 555).
const MULTI_USER_SINCE: u32 = 12_050;
/// The first version whose `-v` and `--help` say what it is, and that has `device_query`: CUDA 13.0 (recording 22).
const DESCRIBES_ITSELF_SINCE: u32 = 13_000;
/// The first version with static partitions, and with 60 clients a device: CUDA 13.1 (NVIDIA's documentation).
pub const STATIC_SINCE: u32 = 13_010;
/// The first version with MLOPart devices on ARM; elsewhere they came with static partitions (NVIDIA's documentation).
const MLOPART_ON_ARM_SINCE: u32 = 13_020;

/// Commands without which nothing can be managed. CUDA 11.4 lacks them all (recording 22).
const REQUIRED: [&str; 6] = [
    "ps",
    "terminate_client",
    "get_default_device_pinned_mem_limit",
    "set_default_device_pinned_mem_limit",
    "get_default_client_priority",
    "set_default_client_priority",
];

/// Capabilities of a control program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// Its version, 13000 for CUDA 13.0: as `-v` says, or else the driver's.
    pub binary_version: u32,
    /// The commands that it takes: those of `--help`, which omits `shutdown_server`, or those that a daemon of it knew.
    pub commands: BTreeSet<String>,
    /// The options that `--help` lists, with their dashes, short and long: `-d`, `--daemon`; of a program that does not describe itself,
    /// `-multiuser-server` where it takes it.
    pub options: BTreeSet<String>,
    /// Where the version is from.
    pub version_from: VersionSource,
    /// The program.
    pub program: PathBuf,
}

/// Where the version of a control program is known from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionSource {
    /// It says it, as all do from driver 580 on.
    Program,
    /// It is the driver's.
    Driver,
    /// The commands that it knows: it is that version or a later one.
    Commands,
}

/// Learns what a control program can do.
///
/// `driver` is the driver that runs, if it answers. `place` is a path that is this process's own: a daemon that has to be asked runs in
/// the directory of that name, and what it knew is kept in the file of that name with `.json`.
pub async fn probe(
    program: &InstalledProgram,
    driver: Option<&RunningDriver>,
    place: &Path,
) -> Result<Capability, ProbeError> {
    let own = help::read(program, place).await?;
    let driver_version = driver.and_then(|driver| version_number(driver.cuda.as_deref()?));
    let (version, version_from, commands, options) = match own {
        Some(own) => (own.version, VersionSource::Program, own.commands, own.options),
        None => {
            if let Some(version) = driver_version.filter(|version| *version < OLDEST) {
                return Err(too_old(program, version));
            }
            let (commands, options) = ask::commands(program, place).await?;
            // Without the driver's word, what it knows is the only hint.
            let least = match commands.contains("get_server_status") {
                _ if options.contains(ask::MULTI_USER) => MULTI_USER_SINCE,
                true => GUARDED_SINCE,
                false => OLDEST,
            };
            // Under a driver whose own program would say its version, this one is another's.
            let driver_version = driver_version.filter(|version| *version < DESCRIBES_ITSELF_SINCE);
            let (version, from) = driver_version
                .map_or((least, VersionSource::Commands), |version| (version, VersionSource::Driver));
            (version, from, commands, options)
        }
    };
    if version < OLDEST {
        return Err(too_old(program, version));
    }
    let missing: Vec<&str> = REQUIRED.into_iter().filter(|word| !commands.contains(*word)).collect();
    if !missing.is_empty() {
        let why = format!("does not know {}", missing.join(", "));
        return Err(ProbeError::TooOld { path: program.path.clone(), why });
    }
    Ok(Capability { binary_version: version, commands, options, version_from, program: program.path.clone() })
}

fn too_old(program: &InstalledProgram, version: u32) -> ProbeError {
    let why = format!(
        "is of CUDA {}, which has no memory limits for clients and no list of them",
        cuda_version(version)
    );
    ProbeError::TooOld { path: program.path.clone(), why }
}

/// Why a program is not of the driver that runs: by the driver that its file names, or since it says less about itself than any of
/// that driver's age.
fn other_driver(
    path: &Path,
    of_file: Option<&str>,
    driver: &RunningDriver,
    older_than: Option<&str>,
) -> Option<String> {
    let running = &driver.version;
    let mismatch = match (of_file, older_than) {
        (Some(named), _) if named != running => format!("of driver {named}"),
        (None, Some(version)) => format!("older than driver {version}"),
        _ => return None,
    };
    Some(format!(
        "{} is {mismatch}, and the host runs driver {running}: programs of two drivers do not work together, and the first client would wait for \
         ever; install the MPS programs of driver {running}, or name their directory with --mps-dir",
        path.display()
    ))
}

/// A version as people write it (`12.2`) as CUDA counts it (12020).
fn version_number(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once('.')?;
    Some(major.parse::<u32>().ok()? * 1000 + minor.parse::<u32>().ok()? * 10)
}

impl Capability {
    /// Nothing is known yet: the program or its driver is waited for.
    pub fn unknown(program: &InstalledProgram) -> Self {
        Self {
            binary_version: 0,
            commands: BTreeSet::new(),
            options: BTreeSet::new(),
            version_from: VersionSource::Commands,
            program: program.path.clone(),
        }
    }

    /// Returns the reason why the program cannot work with the driver that runs: it is of another one. Both may have been replaced since
    /// the program was asked, so its file is read anew.
    pub fn other_driver(&self, driver: &RunningDriver) -> Option<String> {
        let driver_version = driver.cuda.as_deref().and_then(version_number);
        let runs = |since: u32| driver_version.is_some_and(|version| version >= since);
        let older_than = match self.version_from {
            VersionSource::Program => None,
            _ if !self.server_status() && runs(GUARDED_SINCE) => Some("550"),
            _ => runs(DESCRIBES_ITSELF_SINCE).then_some("580"),
        };
        other_driver(&self.program, program_file::driver(&self.program).as_deref(), driver, older_than)
    }

    /// Returns the reason why the program that a process runs cannot work with the driver that runs: it is of another one.
    pub fn process_of_other_driver(&self, pid: u32, driver: &RunningDriver) -> Option<String> {
        let path = PathBuf::from(format!("/proc/{pid}/exe"));
        other_driver(&path, program_file::driver(&path).as_deref(), driver, None)
    }

    /// Returns true if it can divide a GPU into static partitions of SMs (13.1 and later; not recorded here).
    pub fn static_partitions(&self) -> bool {
        self.commands.contains("sm_partition") && self.options.contains("-S")
    }

    /// Why it cannot serve static partitions, with the version that can; `None` where it does.
    pub fn lacks_static(&self) -> Option<String> {
        (!self.static_partitions()).then(|| {
            format!(
                "static mode needs MPS binary version {STATIC_SINCE} (CUDA {}) or later, and the one here is {} (CUDA {}){}: \
                 install a newer driver",
                cuda_version(STATIC_SINCE),
                self.binary_version,
                self.cuda_version(),
                if self.binary_version < STATIC_SINCE { "" } else { ", whose --help lists no -S or no sm_partition" }
            )
        })
    }

    /// Why it cannot give clients MLOPart devices, with the version that can; `None` where it does. `--help` of the versions that can was never
    /// seen, so the version decides (NVIDIA's documentation).
    pub fn lacks_mlopart(&self) -> Option<String> {
        let since = if cfg!(target_arch = "aarch64") { MLOPART_ON_ARM_SINCE } else { STATIC_SINCE };
        (self.binary_version < since).then(|| {
            format!(
                "MLOPart devices need CUDA {} or later, and this is CUDA {}: install a newer driver",
                cuda_version(since),
                self.cuda_version()
            )
        })
    }

    /// The option with which a daemon takes clients of several users at once.
    pub fn multi_user_option(&self) -> Option<&'static str> {
        ["-M", ask::MULTI_USER].into_iter().find(|option| self.options.contains(*option))
    }

    /// Why its daemons take clients of one user at a time, with the version whose daemons take those of several; `None` where they do.
    pub fn lacks_multi_user(&self) -> Option<String> {
        let version = self.cuda_version();
        match self.multi_user_option() {
            None => Some(format!(
                "clients of several users at once need CUDA {} or later, and this is CUDA {version}: install a newer driver",
                cuda_version(MULTI_USER_SINCE)
            )),
            // Seen on 555 and 580: "Only root user may enable -multiuser-server!"
            Some(option) if !rustix::process::geteuid().is_root() => Some(format!(
                "clients of several users at once need a manager that root runs: MPS of CUDA {version} takes {option} from root alone"
            )),
            Some(_) => None,
        }
    }

    /// Returns true if a daemon reports the status of a server, which shows if the server takes clients (`get_server_status`).
    pub fn server_status(&self) -> bool {
        self.commands.contains("get_server_status")
    }

    /// Returns true if a daemon takes changes of its defaults from its own user and root alone. Up to CUDA 12.2 it takes them from
    /// everybody (recording 22); of 12.3 nothing is recorded.
    pub fn guarded_defaults(&self) -> bool {
        self.binary_version >= GUARDED_SINCE
    }

    /// Lists the capabilities that depend on the version, each missing one with the reason.
    ///
    /// Empty while nothing is known.
    pub fn list(&self) -> Vec<HostCapability> {
        if self.binary_version == 0 {
            return Vec::new();
        }
        let since = |version: u32, note: &str| {
            format!("since CUDA {}, and this is CUDA {}: {note}", cuda_version(version), self.cuda_version())
        };
        let capability = |name, missing: Option<String>| HostCapability {
            name,
            available: missing.is_none(),
            reason: missing,
        };
        vec![
            capability(CapabilityName::StaticPartitions, self.lacks_static()),
            capability(CapabilityName::Mlopart, self.lacks_mlopart()),
            capability(CapabilityName::MultiUser, self.lacks_multi_user()),
            capability(
                CapabilityName::ServerStatus,
                (!self.server_status())
                    .then(|| since(GUARDED_SINCE, "whether a server takes clients is read from its daemon's log")),
            ),
            capability(
                CapabilityName::DeviceQuery,
                (!self.commands.contains("device_query")).then(|| {
                    since(DESCRIBES_ITSELF_SINCE, "a daemon does not list its devices, which are taken from its environment")
                }),
            ),
            capability(
                CapabilityName::GuardedDefaults,
                (!self.guarded_defaults()).then(|| {
                    since(GUARDED_SINCE, "any user who reaches a daemon's socket may change its default limits; that is found, and restored unless the daemon's drift_policy is report")
                }),
            ),
        ]
    }

    /// The most clients of one device: 48 up to 13.0 (recording 02), 60 from 13.1 (NVIDIA's documentation).
    pub fn client_ceiling(&self) -> u32 {
        if self.binary_version >= STATIC_SINCE { 60 } else { 48 }
    }

    /// The version as CUDA writes it, `13.0`; `12.4 or later` where it is known by what the program can do alone.
    pub fn cuda_version(&self) -> String {
        let version = cuda_version(self.binary_version);
        if self.is_least() { format!("{version} or later") } else { version }
    }

    /// Returns true if the version is known only by the program's commands, so that it may be a later one.
    pub fn is_least(&self) -> bool {
        self.version_from == VersionSource::Commands && self.binary_version > 0
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
