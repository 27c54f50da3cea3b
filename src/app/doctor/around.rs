//! Checks of what surrounds a manager: limits, environment, systemd, the address, the clock.

use super::facts::{HostFacts, ManagerFacts};
use crate::domain::checkup::{Judgement, fail, ok, skipped, warn};
use crate::domain::count::counted;
use crate::domain::listening::RENEWAL_MS;
use crate::host::systemd::Scopes;
use crate::http::server::check_address;
use crate::service::host::HostIsolation;

/// Open files that NVIDIA asks for, for daemon and servers (FACTS.md, "Starting, stopping, dying").
const OPEN_FILES: u64 = 16_384;
/// Seconds of a day.
const DAY: i64 = 24 * 3600;
/// Threads and processes below which even a few tenants exceed the limit: a server has threads for each of its clients.
const TASKS: u64 = 4096;

/// Names the process whose limits were read: the manager that serves, or else this one.
fn whose(host: &HostFacts) -> String {
    host.manager.pid().map_or_else(|| "here".to_owned(), |pid| format!("for the manager, process {pid}"))
}

pub(super) fn open_files(host: &HostFacts) -> Judgement {
    let whose = whose(host);
    match host.open_files {
        None => skipped(format!("the limit {whose} may not be read")),
        Some(limit) if limit < OPEN_FILES => warn(
            format!("{limit} open files {whose}; NVIDIA asks for {OPEN_FILES} at least"),
            "LimitNOFILE=65536 in the unit, or ulimit -Hn before the start",
        ),
        Some(limit) => ok(format!("{limit} open files {whose}")),
    }
}

pub(super) fn tasks(host: &HostFacts) -> Judgement {
    let whose = whose(host);
    match &host.tasks {
        None => ok(format!("no task limit found {whose}")),
        Some((limit, file)) if *limit < TASKS => warn(
            format!("{limit} threads and processes {whose}, by {file}; a server has threads for each client"),
            "TasksMax=infinity in the unit, or a larger limit of the container",
        ),
        Some((limit, _)) => ok(format!("{limit} threads and processes {whose}")),
    }
}

pub(super) fn environment(host: &HostFacts) -> Judgement {
    if host.variables.is_empty() {
        return ok("no variable here changes what a CUDA program sees");
    }
    warn(
        format!(
            "set here: {}; a manager passes none of them on, and `mps-manager run` and `env` unset them, but what else is \
             started from here has them",
            host.variables.join(", ")
        ),
        format!("unset {}", host.variables.join(" ")),
    )
}

/// Checks scopes and mounts, as `GET /host` reports them.
pub(super) fn isolation(host: &HostFacts) -> Judgement {
    let isolation = HostIsolation::of(&host.scopes, host.private_mounts);
    if isolation.private_mounts == Some(true) {
        let remedy = "leave PrivateTmp=, ProtectSystem= and what else makes a mount namespace out of the unit, as deploy/ does";
        return warn(isolation.remarks.join(" "), remedy);
    }
    ok(match &host.scopes {
        Scopes::Available { version, .. } => {
            format!("daemons get systemd scopes of their own (systemd {version})")
        }
        Scopes::Unavailable(why) => format!("daemons get sessions of their own, and no scopes: {why}"),
    })
}

pub(super) fn listen(host: &HostFacts) -> Judgement {
    let (address, tls) = (host.config.listen, host.config.tls.is_some());
    check_address(address, tls, host.config.insecure_listen).or_else(|error| {
        fail(error.to_string(), "listen on 127.0.0.1 or [::1], or give a certificate in [tls]")
    })?;
    let Err(error) = &host.bound else {
        if tls || address.ip().is_loopback() {
            return ok(format!("{address} is free"));
        }
        return warn(
            format!("{address} is reached from other hosts, without TLS, as insecure_listen says"),
            "give a certificate in [tls]: everybody on the way can read and change what is sent, tokens included",
        );
    };
    // The address is the manager's own, or another program's.
    let problem = match (&host.manager, host.listens) {
        (ManagerFacts::Serves { pid: None, .. }, _) => {
            return skipped(format!(
                "{address} is in use; this user may not see whether the manager uses it"
            ));
        }
        (ManagerFacts::Serves { pid: Some(pid), .. }, None) => {
            return skipped(format!(
                "{address} is in use; this user may not see whether the manager, process {pid}, uses it"
            ));
        }
        (ManagerFacts::Serves { pid: Some(pid), .. }, Some(true)) => {
            return ok(format!("{address} is in use by the manager, process {pid}"));
        }
        (ManagerFacts::Serves { pid: Some(pid), .. }, Some(false)) => format!(
            "{address} is in use by another program, and the manager, process {pid}, listens elsewhere"
        ),
        _ => format!("{address}: {error}"),
    };
    fail(problem, "stop what uses the port, or give another address with --listen")
}

pub(super) fn certificate(host: &HostFacts) -> Judgement {
    let renew = "put a new pair in place of the files: a manager that serves reads them by itself";
    let not_after = match &host.certificate {
        Ok(None) => return skipped("the API is served without TLS"),
        Err(error) => return fail(error, "fix the files, or remove [tls]"),
        Ok(Some(not_after)) => *not_after,
    };
    let left = not_after - host.now_ms / 1000;
    let days = counted(left.abs() / DAY, "day");
    if left < 0 {
        fail(format!("it expired {days} ago"), renew)
    } else if left < RENEWAL_MS / 1000 {
        warn(format!("it expires in {days}"), renew)
    } else {
        ok(format!("the certificate matches its key and expires in {days}"))
    }
}

pub(super) fn clock(host: &HostFacts) -> Judgement {
    let boot = host.boot_id.as_ref().or_else(|error| {
        fail(
            format!("the ID of this boot cannot be read: {error}"),
            "mount /proc: without that ID, processes from before a reboot cannot be distinguished from new ones",
        )
    })?;
    let daemons = host.contents().into_iter().flat_map(|contents| &contents.daemons);
    if daemons.map(|daemon| daemon.updated_at).max().is_some_and(|written| written > host.now_ms) {
        return warn(
            "the clock is earlier than the last write to the database",
            "set the clock: times in the journals are wrong",
        );
    }
    ok(format!("boot {boot}"))
}
