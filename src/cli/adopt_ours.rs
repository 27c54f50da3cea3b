//! `daemon adopt --all-ours`: takes back the daemons of a lost database, after a question.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::confirm::is_confirmed;
use super::output::{DIFFERS, OutputFormat, complain, line};
use super::wait::{ProgressLine, waiting};
use crate::client::{Client, ClientError};
use crate::domain::count::counted;
use crate::domain::daemon::{DaemonStatus, Phase};
use crate::service::daemons::DaemonView;
use crate::service::daemons::lost::{LostDaemonAdoption, LostDaemonView};

const PATH: &str = "/api/v1/foreign-daemons/adopt-lost";
/// Time within which all adopted daemons must be ready.
const READY: Duration = Duration::from_secs(60);
const NONE: &str = "No daemon of this manager runs that its database does not know.";

/// Adopts the lost daemons. Exit 0: all were adopted and are ready, or there was none. 1: some were not, or the answer was no.
pub(super) async fn run(client: &Client, yes: bool, format: OutputFormat) -> Result<ExitCode, ClientError> {
    let is_table = format.is_table();
    if !yes {
        let rehearsal: LostDaemonAdoption =
            client.post(&format!("{PATH}?dry_run=true"), &serde_json::json!({})).await?;
        if rehearsal.daemons.is_empty() {
            print(&rehearsal, format);
            return Ok(ExitCode::SUCCESS);
        }
        // Beside the question, which other formats do not show.
        for daemon in rehearsal.daemons.iter().filter(|_| is_table) {
            line!("{}", described(daemon));
        }
        if !rehearsal.daemons.iter().any(|daemon| daemon.adopted) {
            complain("none of these daemons can be adopted");
            return Ok(ExitCode::from(DIFFERS));
        }
        if !confirmed()? {
            complain("nothing was adopted");
            return Ok(ExitCode::from(DIFFERS));
        }
    }
    let done: LostDaemonAdoption = client.post(PATH, &serde_json::json!({})).await?;
    print(&done, format);
    let mut is_well = done.daemons.iter().all(|daemon| daemon.adopted);
    let until = Instant::now() + READY;
    for daemon in done.daemons.iter().filter(|daemon| daemon.adopted) {
        if let Err(why) = ready(client, daemon, until).await? {
            complain(&format!("daemon {} is not ready: {why}", daemon.name));
            is_well = false;
        }
    }
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
}

fn print(done: &LostDaemonAdoption, format: OutputFormat) {
    if format == OutputFormat::Name {
        for daemon in done.daemons.iter().filter(|daemon| daemon.adopted) {
            line!("{}", daemon.name);
        }
        return;
    }
    if format.print_value(done) {
        return;
    }
    if done.daemons.is_empty() {
        line!("{NONE}");
    }
    for daemon in &done.daemons {
        let verdict = if daemon.adopted { "adopted" } else { "NOT adopted" };
        line!("{verdict}: {}", described(daemon));
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
}

/// Waits until a daemon is ready; returns the reason if it is not ready in time, or if something blocks it.
async fn ready(
    client: &Client,
    adopted: &LostDaemonView,
    until: Instant,
) -> Result<Result<(), String>, ClientError> {
    let _progress = ProgressLine::new(&format!("waiting for daemon {}", adopted.name));
    let left = until.saturating_duration_since(Instant::now());
    let daemon: DaemonView = client.get(&waiting(&format!("/api/v1/daemons/{}", adopted.name), left)).await?;
    let phase = daemon.status.as_ref().map_or(Phase::Unknown, |status| status.phase);
    let why = |status: DaemonStatus| {
        crate::domain::condition::ready(&status.conditions).map(|ready| ready.message.clone())
    };
    Ok(match phase {
        Phase::Ready => Ok(()),
        _ => Err(daemon.status.and_then(why).unwrap_or_else(|| "it was not polled yet".to_owned())),
    })
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

/// Asks on the terminal; without a terminal this is an error that asks for `--yes`.
fn confirmed() -> Result<bool, ClientError> {
    if !std::io::stdin().is_terminal() {
        return Err("the question cannot be asked, as standard input is not a terminal: add --yes to adopt these daemons".into());
    }
    Ok(is_confirmed("Adopt these daemons with their clients? Tenants have to be defined again."))
}
