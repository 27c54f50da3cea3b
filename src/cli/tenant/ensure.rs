//! `mps-manager tenant ensure`: a tenant for an engine, in one call that can be repeated and always ends in time.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tokio::time::{Instant, sleep, timeout_at};

use super::super::change::{SpecAnswer, SpecFields, change};
use super::super::confirm::ConfirmArgs;
use super::super::nouns::TENANT;
use super::super::output::{DIFFERS, complain};
use super::super::server::CallArgs;
use super::super::wait::{ProgressLine, waiting};
use super::fields::TenantFieldArgs;
use crate::client::{Client, ClientError};
use crate::domain::TenantName;
use crate::domain::condition::ready;
use crate::domain::duration::parse_duration;
use crate::service::tenants::TenantView;

/// Pause before the next request to a manager that is away, or about a tenant that something keeps from being ready.
const PAUSE: Duration = Duration::from_millis(100);
/// Time that an answer may take in addition to the time for which the manager waits.
const ANSWER: Duration = Duration::from_secs(1);

/// A tenant with exactly these fields, and how long that may take.
#[derive(Debug, Args)]
pub(in crate::cli) struct TenantEnsureArgs {
    /// The tenant
    #[arg(add = TENANT.complete())]
    name: TenantName,
    #[command(flatten)]
    fields: TenantFieldArgs,
    /// Time for the tenant to become ready
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = parse_duration)]
    timeout: Duration,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    call: CallArgs,
}

pub(super) async fn ensure(args: &TenantEnsureArgs) -> Result<ExitCode, ClientError> {
    let (client, until) = (args.call.client()?, Instant::now() + args.timeout);
    let name = args.name.as_str();
    let path = TENANT.path_of(name);
    let progress = ProgressLine::new(&format!("waiting for tenant {name}"));
    let answer = written(&client, args, &path, until).await?;
    let sentence = format!("tenant {name} {}", answer.words(args.dry_run));
    let tenant: TenantView = answer.view()?;
    let format = args.call.format();
    if args.dry_run {
        drop(progress);
        format.announce(&sentence, name, &tenant);
        return Ok(ExitCode::SUCCESS);
    }
    let tenant = ready_by(&client, &path, tenant, until).await?;
    drop(progress);
    if is_ready(&tenant) {
        format.announce(&format!("{sentence}; it is ready"), name, &tenant);
        return Ok(ExitCode::SUCCESS);
    }
    format.announce(&sentence, name, &tenant);
    let why = ready(&tenant.status.conditions).map(|ready| ready.message.clone()).unwrap_or_default();
    let seconds = args.timeout.as_secs_f64();
    complain(&format!("tenant {name} is not ready after {seconds} s: {why}"));
    Ok(ExitCode::from(DIFFERS))
}

fn is_ready(tenant: &TenantView) -> bool {
    ready(&tenant.status.conditions).is_some_and(|ready| ready.status)
}

/// Writes the tenant with these fields and no others, and returns it once it is ready or the time is over.
///
/// A manager that is away is waited for.
async fn written(
    client: &Client,
    args: &TenantEnsureArgs,
    path: &str,
    until: Instant,
) -> Result<SpecAnswer, ClientError> {
    let fields = args.fields.added_to(SpecFields::exactly());
    let mut refused = None;
    loop {
        let new = async || args.fields.new_spec(client).await;
        let request = change(client, path, &fields, new, args.dry_run, left(until), args.confirm);
        match timeout_at(until + ANSWER, request).await {
            Ok(Err(error)) if error.may_pass() && Instant::now() + PAUSE < until => refused = Some(error),
            Ok(answer) => return answer,
            Err(_) => return Err(refused.unwrap_or(ClientError::TimedOut(args.timeout))),
        }
        sleep(PAUSE).await;
    }
}

/// Returns the time that is left, for which the manager may wait.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Waits until the tenant is ready, or returns it as it is when the time is over; also a lasting obstacle may pass until then.
async fn ready_by(
    client: &Client,
    path: &str,
    written: TenantView,
    until: Instant,
) -> Result<TenantView, ClientError> {
    let (mut tenant, mut away) = (written, None);
    while !is_ready(&tenant) && Instant::now() + PAUSE < until {
        match timeout_at(until + ANSWER, client.get(&waiting(path, left(until)))).await {
            Ok(Ok(now)) => (tenant, away) = (now, None),
            Ok(Err(error)) if error.may_pass() => away = Some(error),
            Ok(Err(error)) => return Err(error),
            Err(_) => {}
        }
        sleep(PAUSE).await;
    }
    match away {
        Some(error) => Err(error),
        None => Ok(tenant),
    }
}
