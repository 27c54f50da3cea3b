//! Identifies the process of a lease, as far as that is proven.

use serde::{Deserialize, Serialize};

use crate::domain::client::{LeaseKind, stored_command};
use crate::host::signal::never_a_client;
use crate::host::{Identity, process};
use crate::service::error::field;
use crate::service::{Result, ServiceError};

/// A process that is to become a client of a tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// `own`: the calling process, through the unix socket. `recorded`: one that an operator names.
    #[serde(default)]
    pub kind: LeaseKind,
    /// A process ID in the manager's namespace. Required to record a process; optional for the calling process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub pid: Option<u32>,
    /// When that process started, in clock ticks since boot (field 22 of `/proc/PID/stat`): refused if the ID belongs to
    /// another process by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<u64>,
    /// True if the process waits when there is no slot for it: the request is refused at once, and the process gets its turn when it
    /// repeats the request, as long as it lives and repeats it within five seconds.
    #[serde(default)]
    pub queue: bool,
}

/// Caller that requests a lease, as far as the connection proves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseCaller {
    /// A client over TCP.
    Remote,
    /// The process that connected to the unix socket; `None` if the kernel does not identify it.
    Local(Option<Identity>),
}

/// The process of a request; refused if it cannot be a client of a tenant with this user.
pub(super) fn holder_of(request: LeaseRequest, caller: LeaseCaller, uid: u32) -> Result<Identity> {
    let holder = match request.kind {
        LeaseKind::Own => peer(request, caller)?,
        LeaseKind::Recorded => named(request)?,
    };
    if let Some(start_time) = request.start_time.filter(|start_time| *start_time != holder.start_time) {
        return Err(field!(
            "/start_time",
            "process {} started at {} and not at {start_time}: the process ID was reused, so find the process again",
            holder.pid,
            holder.start_time
        ));
    }
    let refused = |why: String| Err(ServiceError::field("/pid", why));
    if let Some(role) = never_a_client(holder.pid) {
        return refused(format!(
            "process {} is {role}, which is never a client of a tenant: name the process of the application",
            holder.pid
        ));
    }
    match (process::uid(holder.pid), request.kind) {
        (Some(of), _) if of == uid => {}
        // `mps-manager run` calls as root and then becomes the tenant's user.
        (Some(0), LeaseKind::Own) => {}
        (Some(of), _) => {
            return refused(format!(
                "process {} runs as uid {of}, and the tenant's processes run as uid {uid}: run it as that user, or change \
                 the tenant's uid",
                holder.pid
            ));
        }
        (None, _) => return refused(ended(holder.pid)),
    }
    if !process::is_alive(holder) {
        return refused(ended(holder.pid));
    }
    Ok(holder)
}

fn ended(pid: u32) -> String {
    format!("there is no process {pid} on this host: it has ended, or lives where the manager cannot see it")
}

/// The peer of the unix socket.
fn peer(request: LeaseRequest, caller: LeaseCaller) -> Result<Identity> {
    let peer = match caller {
        LeaseCaller::Remote => {
            let pointer = if request.pid.is_some() { "/pid" } else { "/kind" };
            return Err(ServiceError::field(
                pointer,
                "a process takes its lease itself, through the unix socket of this host, and this request came over TCP: start \
                 the command with mps-manager run on the host, or have an operator record a process with kind recorded",
            ));
        }
        LeaseCaller::Local(None) => {
            return Err(ServiceError::field(
                "/kind",
                "the kernel does not identify the process at the other end of the socket, as for one in a PID namespace that the \
                 manager cannot see: start the command with mps-manager run on the host",
            ));
        }
        LeaseCaller::Local(Some(peer)) => peer,
    };
    match request.pid {
        Some(pid) if pid != peer.pid => Err(field!(
            "/pid",
            "process {pid} is not the caller, which is process {}: a process takes its lease itself, as mps-manager run does; \
             to name another one, record it with kind recorded, as an operator",
            peer.pid
        )),
        _ => Ok(peer),
    }
}

/// The process that an operator names.
fn named(request: LeaseRequest) -> Result<Identity> {
    let Some(pid) = request.pid else {
        return Err(ServiceError::field("/pid", "pid is missing: give the process to record"));
    };
    match process::thread_group(pid) {
        Some(group) if group != pid => {
            return Err(field!("/pid", "{pid} is a thread of process {group}: give the process ID, {group}"));
        }
        _ => {}
    }
    process::identify(pid).ok_or_else(|| ServiceError::field("/pid", ended(pid)))
}

/// The command line of a process for the store: shortened, and without tokens.
pub(super) fn command_of(pid: u32) -> String {
    stored_command(&process::command(pid).unwrap_or_default().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(result: Result<Identity, ServiceError>) -> String {
        let Err(ServiceError::Invalid(errors)) = result else { panic!("{result:?}") };
        format!("{}: {}", errors[0].pointer, errors[0].detail)
    }

    fn recorded(pid: u32) -> LeaseRequest {
        LeaseRequest { kind: LeaseKind::Recorded, pid: Some(pid), start_time: None, queue: false }
    }

    fn sleeper() -> (std::process::Child, Identity, u32) {
        let child = std::process::Command::new("sleep").arg("600").spawn().expect("sleep");
        let id = process::identify(child.id()).expect("alive");
        (child, id, rustix::process::geteuid().as_raw())
    }

    fn end(mut child: std::process::Child) {
        child.kill().expect("alive until here");
        child.wait().expect("reaped");
    }

    #[test]
    fn lease_is_taken_only_by_the_peer() {
        let (child, id, uid) = sleeper();
        let local = LeaseCaller::Local(Some(id));
        let of = |pid| LeaseRequest { pid, ..LeaseRequest::default() };
        assert_eq!(holder_of(of(None), local, uid).expect("its own"), id);
        assert_eq!(holder_of(of(Some(id.pid)), local, uid).expect("its own"), id);
        let message = detail(holder_of(of(Some(id.pid)), LeaseCaller::Remote, uid));
        assert!(message.starts_with("/pid: ") && message.contains("came over TCP"), "{message}");
        let message = detail(holder_of(of(None), LeaseCaller::Remote, uid));
        assert!(message.starts_with("/kind: ") && message.contains("mps-manager run"), "{message}");
        let message = detail(holder_of(of(Some(1)), local, uid));
        assert!(message.contains("process 1 is not the caller"), "{message}");
        let message = detail(holder_of(of(None), LeaseCaller::Local(None), uid));
        assert!(message.contains("PID namespace"), "{message}");
        end(child);
        let message = detail(holder_of(of(None), local, uid));
        assert!(message.contains("it has ended"), "{message}");
    }

    #[test]
    fn processes_that_are_no_clients_are_not_recorded() {
        let (child, id, uid) = sleeper();
        let tcp = LeaseCaller::Remote;
        assert_eq!(holder_of(recorded(id.pid), tcp, uid).expect("a process"), id);
        let reused = LeaseRequest { start_time: Some(id.start_time + 1), ..recorded(id.pid) };
        assert!(detail(holder_of(reused, tcp, uid)).contains("was reused"));
        let message = detail(holder_of(recorded(id.pid), tcp, uid + 1));
        assert!(message.contains(&format!("runs as uid {uid}")), "{message}");
        let message = detail(holder_of(recorded(std::process::id()), tcp, uid));
        assert!(message.contains("is the manager itself"), "{message}");
        assert!(detail(holder_of(recorded(1), tcp, uid)).contains("is PID 1"));
        let missing = LeaseRequest { pid: None, ..recorded(1) };
        assert!(detail(holder_of(missing, tcp, uid)).contains("pid is missing"));
        end(child);
        assert!(detail(holder_of(recorded(id.pid), tcp, uid)).contains("there is no process"));
    }

    #[test]
    fn thread_id_is_not_recorded() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_pid().unsigned_abs()).expect("the test waits");
            let _ = stopped.recv();
        });
        let tid = receiver.recv().expect("a thread");
        let message = detail(holder_of(recorded(tid), LeaseCaller::Remote, 0));
        assert!(
            message.contains(&format!("{tid} is a thread of process {}", std::process::id())),
            "{message}"
        );
        drop(stop);
        thread.join().expect("ended");
    }
}
