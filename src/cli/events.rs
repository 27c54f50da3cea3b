//! `events`: lists events, and follows new ones.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap_complete::engine::ArgValueCandidates;

use super::completion;
use super::fetch::{filtered, require_daemon, require_tenant};
use super::output::{OutputFormat, TableCell, line, print_cells};
use super::server::CallArgs;
use crate::client::{Client, ClientError};
use crate::domain::event::Event;
use crate::domain::{DaemonName, TenantName};
use crate::http::api::List;

/// Pause before reconnecting to a manager that is gone.
const RETRY: Duration = Duration::from_secs(1);

/// The arguments of `events`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mps-manager events -f
  mps-manager events --severity warning --tenant web
  mps-manager events --type client.,daemon.died -o json")]
pub(super) struct EventsArgs {
    /// Follow new events, also over restarts of the manager
    #[arg(short, long)]
    follow: bool,
    /// How many of the last events to print first
    #[arg(short = 'n', long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=1000))]
    last: u32,
    /// Only events of these types, for example client.,daemon.died
    #[arg(long = "type", value_name = "TYPES")]
    types: Option<String>,
    /// Only events of at least this severity: info, warning, error or critical
    #[arg(long)]
    severity: Option<String>,
    /// Only events about this daemon
    #[arg(long, add = ArgValueCandidates::new(completion::daemons))]
    daemon: Option<DaemonName>,
    /// Only events about this tenant
    #[arg(long, add = ArgValueCandidates::new(completion::tenants))]
    tenant: Option<TenantName>,
    #[command(flatten)]
    call: CallArgs,
}

impl EventsArgs {
    fn filters(&self) -> [(&'static str, Option<String>); 4] {
        [
            ("type", self.types.clone()),
            ("severity", self.severity.clone()),
            ("daemon", self.daemon.as_ref().map(ToString::to_string)),
            ("tenant", self.tenant.as_ref().map(ToString::to_string)),
        ]
    }
}

pub(super) async fn run(args: EventsArgs) -> Result<ExitCode, ClientError> {
    let client = args.call.client()?;
    require_daemon(&client, args.daemon.as_ref()).await?;
    require_tenant(&client, args.tenant.as_ref()).await?;
    let (filters, format) = (args.filters(), args.call.format());
    // The position is read before the list: an event in between is in one of them, and is printed once.
    let newest: List<Event> = client.get("/api/v1/events?limit=1").await?;
    let mut at = newest.items.first().map_or(0, |event| event.id);
    if args.last > 0 {
        let list: List<Event> =
            client.get(&filtered(&format!("/api/v1/events?limit={}", args.last), &filters)).await?;
        for event in list.items.iter().rev() {
            print(event, format);
        }
        at = list.items.first().map_or(at, |event| event.id.max(at));
    }
    if !args.follow {
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        match follow(&client, &filters, &mut at, format).await {
            // A manager that ended its streams, or is gone, may soon be back.
            Ok(()) | Err(ClientError::Unreachable { .. }) => tokio::time::sleep(RETRY).await,
            Err(error) => return Err(error),
        }
    }
}

/// Prints events until the stream ends; `at` is the position of the next stream.
async fn follow(
    client: &Client,
    filters: &[(&'static str, Option<String>)],
    at: &mut i64,
    output: OutputFormat,
) -> Result<(), ClientError> {
    let path = filtered(&format!("/api/v1/events/stream?after={at}"), filters);
    let mut stream = client.stream(&path).await?;
    while let Some(message) = stream.next().await? {
        if let Some(data) = &message.data {
            let event: Event =
                serde_json::from_str(data).map_err(|error| ClientError::Unreadable(error.to_string()))?;
            print(&event, output);
        }
        *at = message.id.and_then(|id| id.parse().ok()).unwrap_or(*at);
    }
    Ok(())
}

/// One line for an event, or one document in YAML.
fn print(event: &Event, format: OutputFormat) {
    match format {
        OutputFormat::Json => {
            line!("{}", serde_json::to_string(event).expect("an event holds nothing that JSON cannot"));
        }
        OutputFormat::Yaml => {
            line!("---");
            format.print_value(event);
        }
        OutputFormat::Name => line!("{}", event.id),
        OutputFormat::Table | OutputFormat::Wide => print_cells(&[
            (format!("{:>8}", event.id).into(), 8),
            (local_time(event.at).into(), 23),
            (TableCell::state(event.severity.as_str()), 8),
            (event.kind.as_str().into(), 24),
            (event.message.as_str().into(), 0),
        ]),
    }
}

fn local_time(at: i64) -> String {
    jiff::Timestamp::from_millisecond(at).map_or_else(
        |_| at.to_string(),
        |at| at.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S%.3f").to_string(),
    )
}
