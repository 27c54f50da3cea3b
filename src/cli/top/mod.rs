//! `mps-manager top`: the host, live in the terminal.
//!
//! `state` decides, `draw` makes lines of it, `screen` owns the terminal. None of them knows the others' work, so that the picture is
//! tested without a terminal.

mod draw;
mod screen;
mod state;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tokio::sync::mpsc;

use self::screen::{Screen, ScreenEvent};
use self::state::{TopData, TopState};
use super::nouns::CLIENT;
use super::output::{OutputFormat, remark};
use super::server::ServerArgs;
use super::status::{self, HostSnapshot};
use crate::client::{Client, ClientError};
use crate::domain::duration::parse_duration;

/// The arguments of `top`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mps-manager top
  mps-manager top --interval 10s

Keys:
  q, Esc, Ctrl-C  quit
  s               sort clients by memory, age, tenant or PID
  ↑ ↓ PgUp PgDn   scroll
  ?               help

In a pipe or a file it prints `status` once.")]
pub(super) struct TopArgs {
    /// Time between two readings
    #[arg(short, long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    interval: Duration,
    #[command(flatten)]
    server: ServerArgs,
}

/// The shortest time between two readings.
const SHORTEST: Duration = Duration::from_millis(200);

pub(super) async fn run(args: TopArgs) -> Result<ExitCode, ClientError> {
    let client = args.server.client()?;
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        remark("`top` needs a terminal; this is one snapshot of `status`:");
        return status::print_once(&client, OutputFormat::Table).await;
    }
    // Its errors are printed on the ordinary screen.
    let first = read(&client).await?;
    watch(client, first, args.interval.max(SHORTEST)).await
}

async fn read(client: &Client) -> Result<TopData, ClientError> {
    let host = HostSnapshot::read(client).await?;
    let clients = CLIENT.read(client, &[], 0).await?;
    Ok(TopData { host, clients })
}

async fn watch(client: Client, first: TopData, interval: Duration) -> Result<ExitCode, ClientError> {
    let failed = |error: std::io::Error| ClientError::Caller(format!("the terminal cannot be used: {error}"));
    let mut screen = Screen::open().map_err(failed)?;
    let mut state = TopState::new(first);
    let (results, mut readings) = mpsc::channel(1);
    let reader = tokio::spawn(async move {
        loop {
            tokio::time::sleep(interval).await;
            if results.send(read(&client).await).await.is_err() {
                return;
            }
        }
    });
    while !state.is_over() {
        screen.draw(|size| draw::lines(&state, size.0, size.1)).map_err(failed)?;
        tokio::select! {
            Some(reading) = readings.recv() => state.read(reading.map_err(|error| error.to_string())),
            event = screen.next() => match event {
                ScreenEvent::Key(key) => state.press(key),
                ScreenEvent::Resized => {}
                ScreenEvent::Ended => break,
            },
        }
    }
    reader.abort();
    drop(screen);
    Ok(ExitCode::SUCCESS)
}
