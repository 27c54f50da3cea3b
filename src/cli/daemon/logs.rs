//! `mps-manager daemon logs`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::super::fetch::filtered;
use super::super::nouns::DAEMON;
use super::super::output::{OutputFormat, line, remark};
use super::super::server::CallArgs;
use super::arguments::NamedDaemon;
use crate::client::ClientError;
use crate::domain::count::counted;
use crate::domain::printable::printable;
use crate::http::api::logs::DaemonLog;

/// Interval at which a followed log is read.
const POLL: Duration = Duration::from_secs(1);

/// The log to print, and the lines of it.
#[derive(Debug, Args)]
pub(in crate::cli) struct DaemonLogArgs {
    #[command(flatten)]
    daemon: NamedDaemon,
    /// The log: what its servers write, or what the control daemon does
    #[arg(value_parser = ["server", "control"], default_value = "server")]
    log: String,
    /// Follow what is written
    #[arg(short, long)]
    follow: bool,
    /// Number of the last lines to print first
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    last: usize,
    /// Only lines that contain this text, in whatever case
    #[arg(long, value_name = "TEXT")]
    contains: Option<String>,
    /// Also lines of the manager's own sessions
    #[arg(long)]
    own: bool,
    #[command(flatten)]
    call: CallArgs,
}

pub(super) async fn logs(args: &DaemonLogArgs) -> Result<ExitCode, ClientError> {
    let client = args.call.client()?;
    let own = args.own.then(|| "true".to_owned());
    let path = |from: Option<u64>| {
        let from = from.map(|from| from.to_string());
        let filters = [
            ("file", Some(args.log.clone())),
            ("contains", args.contains.clone()),
            ("own", own.clone()),
            ("from", from),
        ];
        filtered(&format!("{}/logs", DAEMON.path_of(&args.daemon.name)), &filters)
    };
    let mut log: DaemonLog = client.get(&path(None)).await?;
    let skipped = log.lines.len().saturating_sub(args.last);
    log.lines.drain(..skipped);
    if args.call.format() == OutputFormat::Name {
        line!("{}", log.path);
    } else if !args.call.format().print_value(&log) {
        print(&log);
        if log.hidden > 0 && !args.follow {
            remark(&format!(
                "{} of the manager's own sessions left out: --own shows them",
                counted(log.hidden, "line")
            ));
        }
    }
    if !args.follow {
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        tokio::time::sleep(POLL).await;
        log = client.get(&path(Some(log.to))).await?;
        print(&log);
    }
}

fn print(log: &DaemonLog) {
    for text in &log.lines {
        line!("{}", printable(text));
    }
}
