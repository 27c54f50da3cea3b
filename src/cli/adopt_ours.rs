//! `daemon adopt --all-ours`: takes back the daemons of a lost database, after a question.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;

use super::output::{DIFFERS, complain, line};
use crate::client::{Client, ClientError};
use crate::domain::count::counted;
use crate::service::daemons::lost::{LostDaemonAdoption, LostDaemonView};

const PATH: &str = "/api/v1/foreign-daemons/adopt-lost";

/// Exit 0: all were adopted, or there was none. 1: some were not, or the answer was no.
pub(super) async fn run(client: &Client, yes: bool) -> Result<ExitCode, ClientError> {
    if !yes {
        let found: LostDaemonAdoption =
            client.post(&format!("{PATH}?dry_run=true"), &serde_json::json!({})).await?;
        if found.daemons.is_empty() {
            line!("No daemon of this manager runs that its database does not know.");
            return Ok(ExitCode::SUCCESS);
        }
        for daemon in &found.daemons {
            line!("{}", described(daemon));
        }
        if !found.daemons.iter().any(|daemon| daemon.adopted) {
            complain("none of these daemons can be adopted");
            return Ok(ExitCode::from(DIFFERS));
        }
        if !confirmed()? {
            complain("nothing was adopted");
            return Ok(ExitCode::from(DIFFERS));
        }
    }
    let done: LostDaemonAdoption = client.post(PATH, &serde_json::json!({})).await?;
    if done.daemons.is_empty() {
        line!("No daemon of this manager runs that its database does not know.");
    }
    for daemon in &done.daemons {
        let what = if daemon.adopted { "adopted" } else { "NOT adopted" };
        line!("{what}: {}", described(daemon));
        for note in &daemon.notes {
            line!("  note: {note}");
        }
    }
    if done.daemons.iter().any(|daemon| daemon.adopted) {
        line!(
            "Their clients run on. The tenants are not known any more: define them again, or restore a backup of the database. Until \
             then the daemons keep the limits that are in force as their defaults."
        );
    }
    let all = done.daemons.iter().all(|daemon| daemon.adopted);
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
}

fn described(daemon: &LostDaemonView) -> String {
    let clients =
        daemon.clients.map_or_else(|| "clients unknown".to_owned(), |count| counted(count, "client"));
    let gpus = daemon.gpus.as_ref().map_or_else(
        || "GPUs unknown".to_owned(),
        |gpus| gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    );
    let reason = daemon.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{} (process {}, {gpus}, {clients}){reason}", daemon.name, daemon.process.pid)
}

/// Asks on the terminal; without one, `--yes` is the answer that was not given.
fn confirmed() -> Result<bool, ClientError> {
    if !std::io::stdin().is_terminal() {
        return Err(ClientError::Address(
            "the question cannot be asked, as standard input is no terminal: add --yes to adopt these daemons".to_owned(),
        ));
    }
    eprint!("Adopt these daemons with their clients? Tenants have to be defined again. [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    Ok(read.is_ok() && ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}
