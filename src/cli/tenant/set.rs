//! `mps-manager tenant set`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::super::change::{SpecAnswer, SpecChange, SpecFields, change};
use super::super::confirm::ConfirmArgs;
use super::super::fetch::GpuNames;
use super::super::nouns::{DAEMON, TENANT};
use super::super::output::{DIFFERS, complain, remark};
use super::super::server::CallArgs;
use super::super::spec_fields::unset_words;
use super::super::wait::{ProgressLine, WaitArgs, when_back};
use super::fields::TenantFieldArgs;
use crate::client::{Client, ClientError};
use crate::domain::TenantName;
use crate::domain::condition::{Condition, ConditionType, ready};
use crate::domain::count::{enumerated, first_few};
use crate::domain::tenant::TenantEffective;
use crate::service::daemons::DaemonView;
use crate::service::tenants::TenantView;

/// Time within which settings must be in force.
const IN_FORCE: Duration = Duration::from_secs(15);

/// A tenant, the fields to change, and options for the change.
#[derive(Debug, Args)]
pub(in crate::cli) struct TenantSetArgs {
    /// The tenant
    #[arg(add = TENANT.complete())]
    name: TenantName,
    #[command(flatten)]
    fields: TenantFieldArgs,
    /// Fields to leave out, so that their defaults hold
    #[arg(long, value_name = "FIELD", value_delimiter = ',', value_parser = unset_words(TenantFieldArgs::UNSET))]
    unset: Vec<String>,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    call: CallArgs,
}

pub(super) async fn set(args: &TenantSetArgs) -> Result<ExitCode, ClientError> {
    let client = args.call.client()?;
    let path = TENANT.path_of(&args.name);
    let fields = args.fields.added_to(SpecFields::without(&args.unset, TenantFieldArgs::UNSET));
    let new = async || args.fields.new_spec(&client).await;
    let progress = ProgressLine::new(&format!("applying the settings of tenant {}", args.name));
    let wait = if args.wait.no_wait { Duration::ZERO } else { IN_FORCE };
    let answer = change(&client, &path, &fields, new, args.dry_run, wait, ConfirmArgs::NEVER).await?;
    drop(progress);
    let (name, format) = (args.name.as_str(), args.call.format());
    let made = answer.made;
    let (sentence, tenant) = announced(&client, args, answer).await?;
    let provisioning = tenant.status.provisioning.as_ref().filter(|_| made != SpecChange::Unchanged);
    if let Some(words) = provisioning.and_then(|provisioning| provisioning.share_of(&tenant.name)) {
        remark(&words);
    }
    if args.dry_run || args.wait.no_wait {
        format.announce(&sentence, name, &tenant);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(words) = tenant.status.effective.as_ref().and_then(TenantEffective::other_limits) {
        remark(&format!("{words}."));
    }
    let state = ready(&tenant.status.conditions);
    if state.is_some_and(|ready| ready.status) {
        format.announce(&format!("{sentence}; it is ready"), name, &tenant);
        return Ok(ExitCode::SUCCESS);
    }
    format.announce(&sentence, name, &tenant);
    let why = state.map(|ready| ready.message.clone()).unwrap_or_default();
    complain(&format!("tenant {name} is not ready: {why}"));
    Ok(ExitCode::from(DIFFERS))
}

/// Returns a sentence about the change, and the tenant that the server returned.
async fn announced(
    client: &Client,
    args: &TenantSetArgs,
    answer: SpecAnswer,
) -> Result<(String, TenantView), ClientError> {
    let mut parts = vec![format!("tenant {} {}", args.name, answer.words(args.dry_run))];
    let written: TenantView = answer.view()?;
    if answer.made == SpecChange::Created && args.fields.uid.is_none() {
        parts.push(format!("its processes run as uid {}", written.spec.uid));
    }
    let above = |condition: &&Condition| condition.kind == ConditionType::ClientsAboveMaximum;
    parts.extend(written.status.conditions.iter().find(above).map(|above| above.message.clone()));
    if !written.status.weakens.is_empty() {
        let path = DAEMON.path_of(&written.spec.daemon);
        let daemon: DaemonView = when_back(async || client.get(&path).await, || {}).await?;
        let names = GpuNames::read(client).await;
        let without = written.status.gpus.iter();
        let without = without.filter(|gpu| written.spec.memory_limit(&daemon.spec, gpu).is_none());
        let without: Vec<String> = without.map(|gpu| names.name(gpu)).collect();
        let place = if without.len() == written.status.gpus.len() {
            String::new()
        } else {
            format!(" on {}", enumerated(&without))
        };
        let count = written.status.weakens.len();
        let weakened = first_few(written.status.weakens.iter().map(ToString::to_string), 0, ", ");
        parts.push(match count {
            1 => format!(
                "it has no memory limit{place}, so that of {weakened} is held by the environment alone"
            ),
            _ => format!(
                "it has no memory limit{place}, so those of {weakened} are held by their environments alone"
            ),
        });
    }
    Ok((parts.join("; "), written))
}
