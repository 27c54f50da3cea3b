//! Actions on a daemon.

use std::process::ExitCode;

use serde_json::json;

use super::super::adopt_ours;
use super::super::confirm::ConfirmArgs;
use super::super::fetch::filtered;
use super::super::nouns::{DAEMON, FOREIGN};
use super::super::output::remark;
use super::super::values::choice;
use super::super::wait::{OperationWords, follow};
use super::arguments::{ActionArgs, AdoptArgs, DaemonCallArgs, EndingArgs, TimeoutAction, is_process};
use crate::client::{Client, ClientError};
use crate::domain::DaemonName;
use crate::domain::operation::Operation;
use crate::service::daemons::DaemonView;

/// The path of an action with its grace period.
fn path(args: &EndingArgs, action: &str) -> String {
    let grace = args.grace.map(|grace| grace.as_secs().to_string());
    filtered(&format!("{}{action}", DAEMON.path_of(&args.action.daemon.name)), &[("grace_s", grace)])
}

async fn post(client: &Client, path: &str) -> Result<Operation, ClientError> {
    client.post(path, &json!({})).await
}

async fn followed(
    client: &Client,
    args: &ActionArgs,
    operation: Operation,
    [doing, done, failed]: [&str; 3],
) -> Result<ExitCode, ClientError> {
    let name = &args.daemon.name;
    let words = OperationWords {
        doing: &format!("{doing} daemon {name}"),
        done: &format!("daemon {name} {done}"),
        failed: &format!("daemon {name} {failed}"),
    };
    follow(client, operation, args.wait, args.call.format(), words).await
}

/// The rest of a sentence about a daemon that is ready: whether it admits no clients.
async fn still_cordoned(client: &Client, name: &DaemonName) -> Result<String, ClientError> {
    let daemon: DaemonView = client.get(&DAEMON.path_of(name)).await?;
    Ok(if daemon.spec.schedulable {
        String::new()
    } else {
        format!(", and still cordoned: `mps-manager daemon uncordon {name}` admits clients again")
    })
}

pub(super) async fn start(args: &ActionArgs) -> Result<ExitCode, ClientError> {
    let client = args.call.client()?;
    let done = format!("is ready{}", still_cordoned(&client, &args.daemon.name).await?);
    let operation = post(&client, &format!("{}/start", DAEMON.path_of(&args.daemon.name))).await?;
    followed(&client, args, operation, ["starting", done.as_str(), "was not started"]).await
}

pub(super) async fn stop(args: &EndingArgs) -> Result<ExitCode, ClientError> {
    let client = args.action.call.client()?;
    let name = args.action.daemon.name.as_str();
    args.confirm.ask_for_clients(&client, name, &format!("Stop daemon {name}")).await?;
    let operation = post(&client, &path(args, "/stop")).await?;
    followed(&client, &args.action, operation, ["stopping", "is stopped", "was not stopped"]).await
}

pub(super) async fn restart(args: &EndingArgs) -> Result<ExitCode, ClientError> {
    let client = args.action.call.client()?;
    let name = args.action.daemon.name.as_str();
    args.confirm.ask_for_clients(&client, name, &format!("Restart daemon {name}")).await?;
    let cordoned = still_cordoned(&client, &args.action.daemon.name).await?;
    let operation = post(&client, &path(args, "/restart")).await?;
    let done = format!("was restarted and is ready{cordoned}");
    let words = ["restarting", done.as_str(), "was not restarted"];
    followed(&client, &args.action, operation, words).await
}

pub(super) async fn delete(args: &EndingArgs) -> Result<ExitCode, ClientError> {
    let client = args.action.call.client()?;
    let name = args.action.daemon.name.as_str();
    args.confirm.ask(&format!("Stop and delete daemon {name}?"))?;
    let operation: Operation = client.delete_with_answer(&path(args, "")).await?;
    followed(&client, &args.action, operation, ["deleting", "was deleted", "was not deleted"]).await
}

pub(super) async fn drain(
    args: &ActionArgs,
    timeout_s: u32,
    on_timeout: TimeoutAction,
    confirm: ConfirmArgs,
) -> Result<ExitCode, ClientError> {
    let client = args.call.client()?;
    let name = args.daemon.name.as_str();
    if on_timeout == TimeoutAction::Terminate {
        confirm
            .ask_for_clients(&client, name, &format!("Drain daemon {name}, and terminate who is left"))
            .await?;
    }
    let drain = format!("drain?timeout_s={timeout_s}&on_timeout={}", choice(&on_timeout));
    let path = format!("{}/{drain}", DAEMON.path_of(name));
    let operation = post(&client, &path).await?;
    let words = ["draining", "has no clients and is cordoned", "was not drained"];
    followed(&client, args, operation, words).await
}

pub(super) async fn cordon(args: &DaemonCallArgs, is_cordoned: bool) -> Result<ExitCode, ClientError> {
    let (name, call) = (&args.daemon.name, &args.call);
    let (verb, sentence) = if is_cordoned {
        ("cordon", "is cordoned: it admits no new clients")
    } else {
        ("uncordon", "admits clients")
    };
    let daemon: DaemonView =
        call.client()?.post(&format!("{}/{verb}", DAEMON.path_of(name)), &json!({})).await?;
    call.format().announce(&format!("daemon {name} {sentence}"), name.as_str(), &daemon);
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn adopt(args: AdoptArgs) -> Result<ExitCode, ClientError> {
    let AdoptArgs { name, process, observe, yes, call, .. } = args;
    let client = call.client()?;
    let (Some(name), Some(process)) = (name, process) else {
        return adopt_ours::run(&client, yes, call.format()).await;
    };
    let foreign = FOREIGN.read(&client, &[], 0).await?;
    let foreign_daemon = foreign.iter().find(|daemon| is_process(&daemon.id, &process));
    let process = foreign_daemon.map_or(process, |daemon| daemon.id.to_string());
    let management = if observe { "observed" } else { "managed" };
    let request = json!({ "process": process, "management": management });
    let daemon: DaemonView = client.post(&format!("{}/adopt", DAEMON.path_of(&name)), &request).await?;
    let sentence = format!("daemon {name} was adopted and is {management}");
    for note in foreign_daemon.filter(|_| !observe).iter().flat_map(|daemon| &daemon.adoption.managed.notes) {
        remark(note);
    }
    call.format().announce(&sentence, name.as_str(), &daemon);
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn release(args: &DaemonCallArgs) -> Result<ExitCode, ClientError> {
    let (name, call) = (&args.daemon.name, &args.call);
    let client = call.client()?;
    client.post_empty(&format!("{}/release", DAEMON.path_of(name))).await?;
    let answer = json!({ "name": name, "released": true });
    call.format().announce(
        &format!("daemon {name} was released; its process keeps running"),
        name.as_str(),
        &answer,
    );
    Ok(ExitCode::SUCCESS)
}
