//! systemd, where it runs this host: scopes of their own for processes that must outlive their starter's unit.
//!
//! A unit's limits, its out-of-memory handling and its stop reach every process in its cgroup, whatever session it is
//! in. `systemd-run --scope` makes a cgroup beside the unit, moves itself there and executes the command in its place,
//! with the caller's environment and mount namespace. It speaks to systemd over its private socket, so no D-Bus daemon
//! is needed; a D-Bus library would make the same one call, and then have to fork, move and wait by itself.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use procfs::{FromRead as _, ProcessCGroups};

/// The first version in which a scope has a policy for processes that are killed for lack of memory; by default it ends all others in the
/// scope, too.
const OOM_POLICY_SINCE: u32 = 253;

/// Availability of scopes for processes on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scopes {
    /// Processes can get a scope of their own.
    Available {
        /// `systemd-run`.
        program: PathBuf,
        /// systemd's version.
        version: u32,
    },
    /// They cannot, with the reason.
    Unavailable(String),
}

impl Scopes {
    /// Searches for systemd and its tool; `uid` is the user that will call it.
    pub fn detect(uid: u32) -> Self {
        let unavailable = |reason: &str| Self::Unavailable(reason.to_owned());
        if !Path::new("/run/systemd/system").is_dir() || !is_systemd(1) {
            return unavailable("systemd does not run this host, or this is a container");
        }
        if uid != 0 {
            return unavailable(
                "the manager does not run as root, and systemd makes system scopes for root only",
            );
        }
        let Some(program) = in_path("systemd-run") else {
            return unavailable("systemd runs this host, and systemd-run is not in PATH: install it");
        };
        match version(&program) {
            Ok(version) => Self::Available { program, version },
            Err(error) => Self::Unavailable(format!("{} --version: {error}", program.display())),
        }
    }

    /// Returns the program and the arguments before a command that is to run in a scope of that name; `None` if scopes are unavailable.
    pub fn launcher(&self, unit: &str, description: &str) -> Option<(PathBuf, Vec<OsString>)> {
        let Self::Available { program, version } = self else { return None };
        let mut arguments: Vec<OsString> =
            ["--scope", "--quiet", "--collect", "--slice=system.slice"].map(Into::into).into();
        arguments.push(format!("--unit={unit}").into());
        arguments.push(format!("--description={description}").into());
        // A server has threads for each of its clients, and the default is a share of the host's limit.
        arguments.push("--property=TasksMax=infinity".into());
        if *version >= OOM_POLICY_SINCE {
            arguments.push("--property=OOMPolicy=continue".into());
        }
        arguments.push("--".into());
        Some((program.clone(), arguments))
    }
}

/// Returns true if a process, `self` or a PID, sees other mounts than process 1; `None` if that may not be read.
pub fn has_mounts_of_its_own(process: &str) -> Option<bool> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt"));
    Some(namespace(process).ok()? != namespace("1").ok()?)
}

/// Returns the cgroup by which systemd knows a process, as `/system.slice/ssh.service`; the only cgroup where there is one hierarchy.
pub fn cgroup(pid: u32) -> Option<String> {
    cgroup_in(fs::File::open(format!("/proc/{pid}/cgroup")).ok()?)
}

/// Reads `/proc/PID/cgroup`: one line for each hierarchy. That of systemd is named so; the unified one has number 0.
///
/// ```text
/// 9:name=systemd:/system.slice/mps-manager.service
/// 4:memory:/system.slice/mps-manager.service
/// 0::/system.slice/mps-manager.service
/// ```
fn cgroup_in(file: impl io::Read) -> Option<String> {
    let ProcessCGroups(groups) = ProcessCGroups::from_read(file).ok()?;
    let of = |controllers: &[&str]| {
        groups.iter().find(|group| group.controllers == controllers).map(|group| group.pathname.clone())
    };
    // A container may list both although systemd uses only one: in the other, every process is at the root.
    let (named, unified) = (of(&["name=systemd"]), of(&[]));
    named.clone().filter(|path| path != "/").or(unified).or(named)
}

/// Returns the systemd service that a process belongs to, as `ssh.service`; `None` if it belongs to none.
pub fn service(pid: u32) -> Option<String> {
    service_in(&cgroup(pid)?)
}

/// Returns the last service in a cgroup's path: the service of a user's manager has the user's services below it.
fn service_in(cgroup: &str) -> Option<String> {
    cgroup.rsplit('/').find(|part| part.ends_with(".service")).map(str::to_owned)
}

/// The directories of units below a root, those that take precedence first.
const UNIT_DIRECTORIES: [&str; 5] = [
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];

/// Returns the names of the services below a root that start a program at boot.
pub fn services_that_start(root: &Path, program: &str) -> Vec<String> {
    let mut services = std::collections::BTreeMap::new();
    for directory in UNIT_DIRECTORIES.map(|directory| root.join(directory)) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let text =
                name.ends_with(".service").then(|| fs::read_to_string(entry.path()).unwrap_or_default());
            let starts = |line: &str| line.trim_start().starts_with("ExecStart=") && line.contains(program);
            // A masked unit is a link to /dev/null, and hides the ones that follow.
            services.entry(name).or_insert(text.is_some_and(|text| text.lines().any(starts)));
        }
    }
    let named = services.into_iter().filter(|(_, starts)| *starts).map(|(name, _)| name);
    named.filter(|name| is_enabled(root, name)).collect()
}

/// Returns true if a link's name is that of a unit, or of an instance of a template.
fn is_of(link: &str, unit: &str) -> bool {
    let instance = || {
        let (template, kind) = unit.split_once("@.")?;
        let (of, instance) = link.split_once('@')?;
        Some(of == template && instance.ends_with(&format!(".{kind}")))
    };
    link == unit || instance().unwrap_or_default()
}

/// Returns true if another unit wants or requires this unit.
fn is_enabled(root: &Path, unit: &str) -> bool {
    let links = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
    UNIT_DIRECTORIES.iter().flat_map(|directory| links(&root.join(directory))).any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_list = name.ends_with(".wants") || name.ends_with(".requires");
        is_list && links(&entry.path()).any(|link| is_of(&link.file_name().to_string_lossy(), unit))
    })
}

fn is_systemd(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "systemd")
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file())
}

/// The number in `systemd 252 (252.38-1~deb12u1)`.
fn version(program: &Path) -> io::Result<u32> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output()?;
    version_in(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it says no version"))
}

/// The number that begins the second word.
pub(super) fn version_in(output: &str) -> Option<u32> {
    let word = output.split_ascii_whitespace().nth(1)?;
    let digits: String = word.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_that_start_a_program_are_found() {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        };
        let starts = "[Service]\nExecStart=/usr/bin/nvidia-cuda-mps-control -f\n";
        let started = || services_that_start(root.path(), "nvidia-cuda-mps-control");
        write("usr/lib/systemd/system/nvidia-mps.service", starts);
        write(
            "usr/lib/systemd/system/other.service",
            "[Service]\nExecStart=/usr/bin/other\n# nvidia-cuda-mps-control\n",
        );
        write("etc/systemd/system/multi-user.target.wants/other.service", "");
        assert_eq!(started(), [] as [&str; 0], "nothing wants it");
        write("etc/systemd/system/multi-user.target.wants/nvidia-mps.service", "");
        assert_eq!(started(), ["nvidia-mps.service"]);
        write(
            "etc/systemd/system/nvidia-mps.service",
            "[Service]\nExecStop=/usr/bin/nvidia-cuda-mps-control\n",
        );
        assert_eq!(started(), [] as [&str; 0], "masked, or another one");
        write("usr/lib/systemd/system/mps@.service", starts);
        assert_eq!(started(), [] as [&str; 0]);
        write("etc/systemd/system/multi-user.target.wants/mps@0.service", "");
        assert_eq!(started(), ["mps@.service"]);
    }

    #[test]
    fn service_is_the_innermost_one() {
        for (cgroup, service) in [
            ("/system.slice/nvidia-mps.service", Some("nvidia-mps.service")),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/mps.service", Some("mps.service")),
            ("/system.slice/docker.service/payload", Some("docker.service")),
            ("/user.slice/user-1000.slice/session-3.scope", None),
            ("/", None),
        ] {
            assert_eq!(service_in(cgroup).as_deref(), service, "{cgroup}");
        }
    }

    #[test]
    fn cgroup_is_systemds_or_the_unified_one() {
        let hybrid = "9:name=systemd:/a.scope\n4:memory:/b\n0::/c\n";
        assert_eq!(cgroup_in(hybrid.as_bytes()).as_deref(), Some("/a.scope"));
        assert_eq!(
            cgroup_in(&b"0::/system.slice/x:y.service\n"[..]).as_deref(),
            Some("/system.slice/x:y.service")
        );
        assert_eq!(cgroup_in(&b"9:name=systemd:/\n0::/c\n"[..]).as_deref(), Some("/c"));
        assert_eq!(cgroup_in(&b"9:name=systemd:/\n"[..]).as_deref(), Some("/"));
        assert_eq!(cgroup_in(&b"4:memory:/b\n"[..]), None);
        assert!(cgroup(std::process::id()).is_some_and(|path| path.starts_with('/')));
    }

    #[test]
    fn older_systemd_gets_only_supported_options() {
        let words = |version: u32| {
            let scopes = Scopes::Available { program: "/bin/systemd-run".into(), version };
            let (_, arguments) = scopes.launcher("a.scope", "A daemon").expect("available");
            arguments.into_iter().map(|word| word.into_string().expect("text")).collect::<Vec<_>>()
        };
        assert_eq!(
            words(252),
            [
                "--scope",
                "--quiet",
                "--collect",
                "--slice=system.slice",
                "--unit=a.scope",
                "--description=A daemon",
                "--property=TasksMax=infinity",
                "--",
            ]
        );
        assert!(words(253).contains(&"--property=OOMPolicy=continue".to_owned()));
        assert_eq!(Scopes::Unavailable(String::new()).launcher("a.scope", ""), None);
    }
}
