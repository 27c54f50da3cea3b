//! `events`: lists events, and follows new ones.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::{OutputFormat, ServerArgs, line};
use crate::client::{Client, ClientError};
use crate::domain::event::Event;
use crate::domain::printable::printable;
use crate::domain::{DaemonName, TenantName};
use crate::http::api::List;

/// Pause before reconnecting to a manager that is gone.
const RETRY: Duration = Duration::from_secs(1);

/// The arguments of `events`.
#[derive(Debug, Args)]
pub(super) struct EventsArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Follow new events, also over restarts of the manager
    #[arg(short, long)]
    follow: bool,
    /// How many of the last events to print first
    #[arg(short = 'n', long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=1000))]
    last: u32,
    /// Only events of these types, as client.,daemon.died
    #[arg(long = "type", value_name = "TYPES")]
    types: Option<String>,
    /// Only events of at least this severity: info, warning, error or critical
    #[arg(long)]
    severity: Option<String>,
    /// Only events about this daemon
    #[arg(long)]
    daemon: Option<DaemonName>,
    /// Only events about this tenant
    #[arg(long)]
    tenant: Option<TenantName>,
    /// Output format; JSON is one object per line
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
}

impl EventsArgs {
    fn query(&self) -> String {
        let mut query = reqwest::Url::parse("http://localhost/").expect("a constant URL");
        let pairs = [
            ("type", self.types.clone()),
            ("severity", self.severity.clone()),
            ("daemon", self.daemon.as_ref().map(ToString::to_string)),
            ("tenant", self.tenant.as_ref().map(ToString::to_string)),
        ];
        for (name, value) in pairs {
            if let Some(value) = value {
                query.query_pairs_mut().append_pair(name, &value);
            }
        }
        query.query().map(|query| format!("&{query}")).unwrap_or_default()
    }
}

pub(super) async fn run(args: EventsArgs) -> Result<ExitCode, ClientError> {
    let client = args.server.client()?;
    let query = args.query();
    // The position is read before the list: an event in between is in one of them, and is printed once.
    let newest: List<Event> = client.get("/api/v1/events?limit=1").await?;
    let mut at = newest.items.first().map_or(0, |event| event.id);
    if args.last > 0 {
        let list: List<Event> = client.get(&format!("/api/v1/events?limit={}{query}", args.last)).await?;
        for event in list.items.iter().rev() {
            print(event, args.output);
        }
        at = list.items.first().map_or(at, |event| event.id.max(at));
    }
    if !args.follow {
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        match follow(&client, &query, &mut at, args.output).await {
            // A manager that ended its streams, or is gone, may soon be back.
            Ok(()) | Err(ClientError::Unreachable { .. }) => tokio::time::sleep(RETRY).await,
            Err(error) => return Err(error),
        }
    }
}

/// Prints events until the stream ends; `at` is the position of the next stream.
async fn follow(client: &Client, query: &str, at: &mut i64, output: OutputFormat) -> Result<(), ClientError> {
    let mut stream = client.stream(&format!("/api/v1/events/stream?after={at}{query}")).await?;
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

fn print(event: &Event, output: OutputFormat) {
    match output {
        OutputFormat::Json => {
            line!("{}", serde_json::to_string(event).expect("an event holds nothing that JSON cannot"));
        }
        OutputFormat::Table => {
            let at = jiff::Timestamp::from_millisecond(event.at).map_or_else(
                |_| event.at.to_string(),
                |at| at.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S%.3f").to_string(),
            );
            line!(
                "{:>8}  {at}  {:<8}  {:<24}  {}",
                event.id,
                event.severity.as_str(),
                event.kind.as_str(),
                printable(&event.message)
            );
        }
    }
}
