//! `mps-manager run`: becomes a command under a tenant's limits.
//!
//! The process requests a lease for itself, takes on the tenant's user and environment, and then becomes the command by exec:
//! process ID and start time stay, so the lease is valid until the command ends, and the exit code is the command's.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Args;

use super::nouns::TENANT;
use super::output::{CommandResult, complain};
use super::server::{ServerArgs, block_on};
use super::values::user;
use super::vet::{Answerer, check_environment, check_user};
use crate::client::{Client, ClientError};
use crate::domain::TenantName;
use crate::domain::duration::parse_duration;
use crate::domain::environment::PREFIX;
use crate::host::user::become_user;
use crate::service::KEEPS_TURN;
use crate::service::tenants::leases::{LeaseRequest, LeaseView};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mps-manager run --tenant web -- python train.py
  mps-manager run --tenant web --wait 10m -- ./job
Exits with the code of the command, with 126 or 127 if that cannot be run, or with 2 if it got no lease.")]
pub(super) struct RunArgs {
    /// The tenant
    #[arg(long, add = TENANT.complete())]
    tenant: TenantName,
    /// The user that the command must run as; refused if it is not the tenant's
    #[arg(short, long, value_parser = user)]
    uid: Option<u32>,
    /// Wait for a slot if there is none, for at most this time (for example 90s, 15m or 24h), or for as long as it takes
    #[arg(long, value_name = "DURATION", num_args = 0..=1, default_missing_value = FOREVER, value_parser = parse_duration)]
    wait: Option<Duration>,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Duration of `--wait` without a value: a hundred years.
const FOREVER: &str = "36500d";
/// The pause until a waiting process asks again.
const PAUSE: Duration = Duration::from_millis(500);

/// Variables of the caller that the command must not get.
const SECRETS: [&str; 1] = ["MPS_MANAGER_TOKEN"];

/// Takes the lease, and waits for a slot if none is free and `wait` is given. A wait survives a restart of the manager or of the daemon.
async fn lease(client: &Client, path: &str, wait: Option<Duration>) -> Result<LeaseView, ClientError> {
    let began = Instant::now();
    let mut is_announced = false;
    loop {
        // The request has no process ID, as the kernel reports that to the manager: in a container it differs from the one on the host.
        let request = LeaseRequest { queue: wait.is_some(), ..LeaseRequest::default() };
        let answer = client.post(path, &request).await;
        let Err(error) = answer else { return answer };
        let Some(wait) = wait.filter(|_| error.may_pass()) else { return Err(error) };
        if began.elapsed() >= wait {
            return Err(given_up(wait, &error).into());
        }
        if !is_announced {
            complain(&format!("waiting: {error}"));
            is_announced = true;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns the message for a wait that ended without a lease.
fn given_up(wait: Duration, error: &ClientError) -> String {
    let seconds = wait.as_secs_f64();
    match error {
        ClientError::Refused(problem) if problem.is("at-capacity") => {
            let reason = problem.detail.strip_suffix(KEEPS_TURN).unwrap_or(&problem.detail);
            let reason = reason.trim_end_matches([':', ' ']);
            // A full GPU has no limit to raise.
            let raise = if reason.contains("max_clients") { " or raise max_clients" } else { "" };
            format!("gave up after {seconds} s: {reason}; wait longer (--wait){raise}")
        }
        error => format!("gave up after {seconds} s: {error}; wait longer (--wait)"),
    }
}

pub(super) fn run(args: &RunArgs) -> CommandResult {
    if let Some(url) = &args.server.url {
        return Err(format!(
            "run takes its lease through the unix socket of the manager on this host, but --url or MPS_MANAGER_URL names {url}: \
             leave it out, and give --runtime-dir if the socket is not in the usual place"
        )
        .into());
    }
    let mut client = args.server.client()?;
    // Root has every right anyway, and a token may have fewer.
    if !rustix::process::geteuid().is_root() {
        client = client.with_token(std::env::var("MPS_MANAGER_TOKEN").ok());
    }
    let path = format!("/api/v1/tenants/{}/leases", args.tenant);
    let lease = block_on(lease(&client, &path, args.wait))??;
    let answerer = client.peer().map_or(Answerer::Url, Answerer::Socket);
    let own = rustix::process::geteuid().as_raw();
    check_user(answerer, lease.uid, own, args.uid)?;
    check_environment(&lease.environment.variables, &lease.environment.unset)?;
    // The command must inherit nothing of this process: no thread, no socket.
    drop(client);
    if let Some(uid) = args.uid.filter(|uid| *uid != lease.uid) {
        return Err(format!(
            "tenant {} has uid {}, but -u asks for uid {uid}: leave -u out, or change the tenant",
            args.tenant, lease.uid
        )
        .into());
    }
    let user = become_user(lease.uid)?;
    let (program, arguments) = args.command.split_first().ok_or("no command was given")?;
    let mut command = Command::new(program);
    command.args(arguments).envs(&lease.environment.variables).envs(user);
    for name in lease.environment.unset.iter().map(String::as_str).chain(SECRETS) {
        command.env_remove(name);
    }
    // Including variables of later releases of MPS that this program does not know.
    for (name, _) in std::env::vars_os() {
        let is_ours = name.to_str().is_none_or(|name| lease.environment.variables.contains_key(name));
        if name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) && !is_ours {
            command.env_remove(name);
        }
    }
    let error = command.exec();
    // As shells do: 127 for a command that does not exist, 126 for one that cannot run.
    complain(&format!("{} cannot be run: {error}", program.to_string_lossy()));
    let missing = error.kind() == std::io::ErrorKind::NotFound;
    Ok(ExitCode::from(if missing { 127 } else { 126 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::problem::{Problem, ProblemKind};

    #[test]
    fn end_of_a_wait_is_explained() {
        let refused = |full: &str| {
            let detail = format!("{full}: {KEEPS_TURN}");
            let problem = Problem::new(ProblemKind::AtCapacity, detail);
            ClientError::Refused(Box::new(problem))
        };
        let tenant_is_full = refused("tenant web has 1 process running and max_clients is 1");
        assert_eq!(
            given_up(Duration::from_secs(2), &tenant_is_full),
            "gave up after 2 s: tenant web has 1 process running and max_clients is 1; wait longer (--wait) or raise max_clients"
        );
        assert_eq!(
            given_up(Duration::from_millis(1500), &refused("GPU 0 is full")),
            "gave up after 1.5 s: GPU 0 is full; wait longer (--wait)"
        );
    }
}
