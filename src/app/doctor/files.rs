//! Checks of the configuration, the directories, the database in one of them, and the manager that has it open.

use std::path::Path;

use super::facts::{DirectoryFacts, DirectoryPlace, HostFacts, ManagerFacts, NoDatabase};
use crate::app::DATABASE;
use crate::domain::checkup::{Judgement, fail, ok, skipped, warn};
use crate::domain::condition::{ConditionReason, ConditionType};
use crate::domain::count::{counted, joined};
use crate::domain::memory::Bytes;
use crate::mps::process::DEFAULT_PIPE_DIRECTORY;
use crate::store::schema::{self, Schema};

/// Free bytes below which a manager may fail any moment: a write-ahead log and a copy before a migration have no room.
const NO_ROOM: u64 = 16 << 20;
/// Free bytes below which some should be freed soon.
const LITTLE_ROOM: u64 = 256 << 20;

pub(super) fn configuration(host: &HostFacts) -> Judgement {
    let (state, runtime) = (host.config.state_dir.display(), host.config.runtime_dir.display());
    match &host.config_fault {
        Some(why) => fail(why, "fix the file, then run `mps-manager config check`"),
        None => ok(format!("state in {state}, runtime in {runtime}")),
    }
}

pub(super) fn manager(host: &HostFacts) -> Judgement {
    let (pid, health) = match &host.manager {
        ManagerFacts::NeverServed => return ok("none has ever served from this state directory"),
        ManagerFacts::Unknown(why) => return skipped(why),
        ManagerFacts::Stopped => return ok("none serves from this state directory"),
        ManagerFacts::Serves { pid, health } => (pid, health),
    };
    let words = pid
        .map_or_else(|| "one whose process this user may not see".to_owned(), |pid| format!("process {pid}"));
    let socket = host.config.socket();
    let mut reported = host.report.iter().flatten().flat_map(|report| &report.host);
    if let Some(held_back) = reported.find(|condition| condition.kind == ConditionType::HostFileNotApplied) {
        let remedy = match held_back.reason {
            ConditionReason::GpuMissing => {
                "make the MIG instances (mig-parted apply, or nvidia-smi mig -cgi): the file is then applied by itself"
            }
            _ => "fix the file, then run mps-manager apply -f FILE",
        };
        return warn(&held_back.message, remedy);
    }
    match health {
        Ok(()) => ok(format!("{words} serves at {}", socket.display())),
        Err(why) => warn(
            format!("{words} has the state directory, and {} {why}", socket.display()),
            "it may be starting or ending, or be stopped; else give the --runtime-dir that it has, or see its log",
        ),
    }
}

pub(super) fn state_directory(host: &HostFacts) -> Judgement {
    directory(&host.config.state_dir, &host.state_directory, "--state-dir")
}

pub(super) fn runtime_directory(host: &HostFacts) -> Judgement {
    directory(&host.config.runtime_dir, &host.runtime_directory, "--runtime-dir")
}

fn directory(path: &Path, facts: &DirectoryFacts, option: &str) -> Judgement {
    let shown = path.display();
    let place = facts.place.as_ref().or_else(|why| {
        fail(
            why,
            format!(
                "run this as the manager's user, give that user the directory, or name another with {option}"
            ),
        )
    })?;
    if let Some(kind) = facts.network {
        return fail(
            format!("{shown} is on {kind}, a file system over a network"),
            format!(
                "SQLite's log is shared memory of one host: name a directory on a local disk with {option}"
            ),
        );
    }
    let (uid, mode) = match place {
        DirectoryPlace::There { uid, mode } => (uid, mode),
        DirectoryPlace::CanBeMade(parent) => {
            return ok(format!("{shown} is not there yet, and can be made in {}", parent.display()));
        }
    };
    if let Some(untrusted) = &facts.untrusted {
        return fail(format!("{} {}", untrusted.path.display(), untrusted.problem), &untrusted.remedy);
    }
    if !facts.open.is_empty() {
        let exposure = format!("others than its owner reach {}", facts.open.join(", "));
        return warn(exposure, "chmod 700 the directory and 600 the files");
    }
    ok(format!("{shown} of uid {uid}, mode {mode:o}"))
}

pub(super) fn database(host: &HostFacts) -> Judgement {
    let state_dir = host.config.state_dir.display();
    let restore = format!("restore a backup (`mps-manager restore FILE --state-dir {state_dir}`)");
    let path = host.config.state_dir.join(DATABASE);
    let path = path.display();
    let inspection = match &host.database {
        Err(NoDatabase::NotMade) => return skipped("there is none yet: the first start makes it"),
        Err(NoDatabase::Lost(problem)) => {
            return fail(problem, format!("{restore}, or begin with an empty one (`serve --new-database`)"));
        }
        Err(NoDatabase::Unreadable(error)) => return fail(format!("{path}: {error}"), restore),
        Ok(inspection) => inspection,
    };
    if let Some(damage) = &inspection.damage {
        return fail(format!("{path} is damaged: {damage}"), restore);
    }
    let (schema, newest) = (inspection.schema, schema::newest());
    match schema {
        Schema::Version(version) if version == newest => ok(format!("{path}, {schema}, intact")),
        Schema::Version(version) if version < newest => {
            ok(format!("{path}, {schema}: the next start makes a copy and brings it up to {newest}"))
        }
        Schema::Version(_) => fail(
            format!("{path}, {schema}, and this mps-manager knows {newest}"),
            "start the newer mps-manager that wrote it, or restore an older backup",
        ),
        Schema::PreRelease => fail(
            format!("{path} was made by a pre-release of mps-manager"),
            "move the state directory away and start again: control daemons that run can be adopted",
        ),
        Schema::None => fail(
            format!("{path} is not a database of mps-manager"),
            "move it away, or name another --state-dir",
        ),
    }
}

pub(super) fn machine(host: &HostFacts) -> Judgement {
    if matches!(host.database, Err(NoDatabase::NotMade | NoDatabase::Lost(_))) {
        return skipped("there is no database yet");
    }
    let this = &host.machine_id;
    match host.contents().map(|contents| &contents.machine_id) {
        None => skipped("the database does not say"),
        Some(None) => ok(format!("{this}: the next start writes it down")),
        Some(Some(stored)) if stored == this => ok(stored),
        Some(Some(stored)) => warn(
            format!(
                "the database belongs to machine {stored}, and this is {this}: it is served read-only. Confirm it if it was moved here for \
                 good; else give this host a state directory of its own"
            ),
            "mps-manager host confirm",
        ),
    }
}

pub(super) fn disk_space(host: &HostFacts) -> Judgement {
    let free = host.free.as_ref().or_else(skipped)?;
    let summary =
        joined(free.iter().map(|(free, path)| format!("{} free at {}", Bytes(*free), path.display())), ", ");
    let least = free.iter().map(|(bytes, _)| *bytes).min().unwrap_or_default();
    let remedy = "free space: without any, nothing can be changed and daemons that die are not written down";
    match least {
        ..NO_ROOM => fail(summary, remedy),
        NO_ROOM..LITTLE_ROOM => warn(summary, remedy),
        _ => ok(summary),
    }
}

pub(super) fn pipe_directories(host: &HostFacts) -> Judgement {
    match &host.pipes {
        Ok(pipe) => ok(format!("as {}", pipe.display())),
        Err(error) => fail(error, "name a short runtime directory of the manager's own with --runtime-dir"),
    }
}

pub(super) fn default_pipe_directory(host: &HostFacts) -> Judgement {
    if !host.has_default_pipes {
        return ok(format!("{DEFAULT_PIPE_DIRECTORY} is not there"));
    }
    warn(
        format!(
            "{DEFAULT_PIPE_DIRECTORY} is there: the NVIDIA container runtime mounts it into every GPU container"
        ),
        "quit the daemon that made it, if one runs, and remove it",
    )
}

/// Checks that the users of tenants reach the sockets in their directories.
pub(super) fn tenants(host: &HostFacts) -> Judgement {
    let Some(contents) = host.contents() else {
        return skipped("tenants cannot be read from this database");
    };
    if !host.unreachable.is_empty() {
        let remedy = "let these users pass through the directories that are named";
        return fail(host.unreachable.join("; "), remedy);
    }
    if contents.tenants.is_empty() {
        return skipped("there is no tenant");
    }
    let tenants = counted(contents.tenants.len(), "tenant");
    ok(format!("the users of {tenants} reach the sockets of their daemons"))
}
