//! `events`: lists events, and follows new ones.
//!
//! This list has no end, so its columns have fixed widths and events are no [`super::nouns::Noun`].

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};

use super::fetch::filtered;
use super::nouns::{DAEMON, Filter, TENANT, require_named};
use super::output::{OutputFormat, TableCell, line, print_cells, remark, terminal_width};
use super::server::CallArgs;
use super::values::time_ago;
use crate::client::{Client, ClientError};
use crate::domain::duration::parse_duration;
use crate::domain::event::{Event, EventType, Severity};
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
    /// Number of the last events to print first
    #[arg(short = 'n', long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=1000))]
    last: u32,
    /// Only events of these types, for example client.,daemon.died
    #[arg(long = "type", value_name = "TYPES", add = ArgValueCandidates::new(event_types))]
    types: Option<String>,
    /// Only events of at least this severity: info, warning, error or critical
    #[arg(long, hide_possible_values = true, value_parser = severities())]
    severity: Option<String>,
    /// Only events about this daemon
    #[arg(long, add = DAEMON.complete())]
    daemon: Option<DaemonName>,
    /// Only events about this tenant
    #[arg(long, add = TENANT.complete())]
    tenant: Option<TenantName>,
    /// Only events of this time, for example 1h
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    since: Option<Duration>,
    #[command(flatten)]
    call: CallArgs,
}

/// The severities, for arguments and completions.
fn severities() -> PossibleValuesParser {
    PossibleValuesParser::new(Severity::ALL.map(Severity::as_str))
}

/// The types of events with their meanings, for completions.
fn event_types() -> Vec<CompletionCandidate> {
    let candidate =
        |kind: &EventType| CompletionCandidate::new(kind.as_str()).help(Some(kind.meaning().into()));
    EventType::ALL.iter().map(candidate).collect()
}

impl EventsArgs {
    fn filters(&self) -> [Filter; 5] {
        [
            ("type", self.types.clone()),
            ("severity", self.severity.clone()),
            ("daemon", self.daemon.as_ref().map(ToString::to_string)),
            ("tenant", self.tenant.as_ref().map(ToString::to_string)),
            ("since", self.since.map(time_ago)),
        ]
    }
}

pub(super) async fn run(args: EventsArgs) -> Result<ExitCode, ClientError> {
    let client = args.call.client()?;
    let (filters, format) = (args.filters(), args.call.format());
    require_named(&client, &filters).await?;
    // The position is read before the list: an event in between is in one of them, and is printed once.
    let newest: List<Event> = client.get("/api/v1/events?limit=1").await?;
    let mut position = newest.items.first().map_or(0, |event| event.id);
    let table = EventTable::new(format);
    if args.last > 0 {
        let list: List<Event> =
            client.get(&filtered(&format!("/api/v1/events?limit={}", args.last), &filters)).await?;
        let is_table = format.is_table();
        if is_table && list.items.is_empty() && !args.follow {
            remark("There are no such events.");
        } else if is_table {
            table.head();
        }
        for event in list.items.iter().rev() {
            print(event, format, &table);
        }
        position = list.items.first().map_or(position, |event| event.id.max(position));
    }
    if !args.follow {
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        match follow(&client, &filters, &mut position, format, &table).await {
            // A manager that ended its streams, or is gone, may soon be back.
            Ok(()) => tokio::time::sleep(RETRY).await,
            Err(error) if error.is_away() => tokio::time::sleep(RETRY).await,
            Err(error) => return Err(error),
        }
    }
}

/// Prints events until the stream ends; `position` is that of the next stream.
async fn follow(
    client: &Client,
    filters: &[Filter],
    position: &mut i64,
    output: OutputFormat,
    table: &EventTable,
) -> Result<(), ClientError> {
    let path = filtered(&format!("/api/v1/events/stream?after={position}"), filters);
    let mut stream = client.stream(&path).await?;
    while let Some(message) = stream.next().await? {
        if let Some(data) = &message.data {
            let event: Event =
                serde_json::from_str(data).map_err(|error| ClientError::Unreadable(error.to_string()))?;
            print(&event, output, table);
        }
        *position = message.id.and_then(|id| id.parse().ok()).unwrap_or(*position);
    }
    Ok(())
}

/// One line for an event, or one document in YAML.
fn print(event: &Event, format: OutputFormat, table: &EventTable) {
    match format {
        OutputFormat::Json => {
            line!("{}", serde_json::to_string(event).expect("an event holds nothing that JSON cannot"));
        }
        OutputFormat::Yaml => {
            line!("---");
            format.print_value(event);
        }
        OutputFormat::Name => line!("{}", event.id),
        OutputFormat::Table | OutputFormat::Wide => table.row([
            format!("{:>8}", event.id).into(),
            local_time(event.at, table.is_wide).into(),
            TableCell::state(event.severity.as_str()),
            event.kind.as_str().into(),
            event.message.as_str().into(),
        ]),
    }
}

/// The columns of a list that has no end: their widths are fixed, and messages take what is left of the terminal.
#[derive(Debug)]
struct EventTable {
    is_wide: bool,
    /// Width of each column; `None` for one that there is no room for.
    widths: [Option<usize>; 5],
}

/// Smallest width for messages; another column is left out before they get less.
const MESSAGE: usize = 30;

impl EventTable {
    fn new(format: OutputFormat) -> Self {
        let is_wide = format == OutputFormat::Wide;
        Self::of(is_wide, if is_wide { None } else { terminal_width() })
    }

    /// The table for a terminal of this width.
    fn of(is_wide: bool, terminal: Option<usize>) -> Self {
        let time = if is_wide { 23 } else { 14 };
        let mut taken = time + 2;
        let mut room_for = |width: usize| {
            let has_room = terminal.is_none_or(|terminal| taken + width + 2 + MESSAGE <= terminal);
            if has_room {
                taken += width + 2;
            }
            has_room.then_some(width)
        };
        let (severity, id, kind) = (room_for(8), room_for(8), room_for(24));
        let message = terminal.map_or(usize::MAX, |terminal| terminal.saturating_sub(taken).max(1));
        Self { is_wide, widths: [id, Some(time), severity, kind, Some(message)] }
    }

    fn head(&self) {
        self.row(["   EVENT", "TIME", "SEVERITY", "TYPE", "MESSAGE"].map(TableCell::from));
    }

    fn row(&self, cells: [TableCell; 5]) {
        print_cells(&self.shown(cells));
    }

    fn shown(&self, cells: [TableCell; 5]) -> Vec<(TableCell, usize)> {
        let [.., last] = self.widths;
        let mut shown: Vec<(TableCell, usize)> =
            cells.into_iter().zip(self.widths).filter_map(|(cell, width)| Some((cell, width?))).collect();
        if let (Some((message, width)), Some(room)) = (shown.last_mut(), last) {
            // Its own width is not padded.
            (*message, *width) = (message.cut(room).into_owned().into(), 0);
        }
        shown
    }
}

fn local_time(unix_ms: i64, is_wide: bool) -> String {
    let form = if is_wide { "%Y-%m-%d %H:%M:%S%.3f" } else { "%m-%d %H:%M:%S" };
    jiff::Timestamp::from_millisecond(unix_ms).map_or_else(
        |_| unix_ms.to_string(),
        |time| time.to_zoned(jiff::tz::TimeZone::system()).strftime(form).to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_to_the_terminal() {
        let message =
            "process 19080, a client of daemon gpu0, holds more memory on GPU 0 than its limit allows";
        let cells =
            || ["       1", "11-25 13:00:00", "warning", "tenant.breach", message].map(TableCell::from);
        let shown = |terminal| EventTable::of(false, terminal).shown(cells());
        let texts =
            |terminal| shown(terminal).iter().map(|(cell, _)| cell.cut(200).into_owned()).collect::<Vec<_>>();
        assert_eq!(texts(None), cells().map(|cell| cell.cut(200).into_owned()));
        assert_eq!(texts(Some(40)), ["11-25 13:00:00", "process 19080, a client…"]);
        let at_eighty = texts(Some(80));
        assert_eq!(at_eighty[..3], ["       1", "11-25 13:00:00", "warning"]);
        assert_eq!((at_eighty.len(), at_eighty[3].chars().count()), (4, 44));
    }
}
