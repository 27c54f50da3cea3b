//! The commands for one server.

use std::path::Path;
use std::process::ExitCode;

use reqwest::Method;
use serde_json::{Value, json};

use super::super::confirm::ConfirmArgs;
use super::super::fetch::{daemon_or_only, only_one};
use super::super::nouns::LAYOUT;
use super::super::output::{DIFFERS, DetailsTable, OutputFormat, TableCell, age, line};
use super::super::server::CallArgs;
use super::super::wait::{OperationWords, WaitArgs, follow};
use super::arguments::{
    LayoutTargetArgs, document_format, media_type, placed, placed_refusal, read as read_file,
};
use crate::client::{Client, ClientError};
use crate::domain::count::counted;
use crate::domain::layout::assertion::Assertion;
use crate::domain::layout::document::{Document, DocumentLayout};
use crate::domain::layout::outlook::{Allowed, LayoutPlan};
use crate::domain::layout::{Version, text};
use crate::domain::operation::Operation;
use crate::domain::{DaemonName, LayoutName};
use crate::service::layouts::LayoutView;

pub(super) async fn get(
    client: &Client,
    name: &LayoutName,
    version: Option<u32>,
    format: OutputFormat,
) -> Result<ExitCode, ClientError> {
    let version: Version = match version {
        Some(version) => client.get(&format!("{}/versions/{version}", LAYOUT.path_of(name))).await?,
        None => client.get::<LayoutView>(&LAYOUT.path_of(name)).await?.newest,
    };
    if matches!(format, OutputFormat::Json | OutputFormat::Yaml) {
        let document = text::bare(version.name, &version.layout, version.note);
        line!("{}", text::write(&document, document_format(format)).trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let mut details = DetailsTable::default()
        .row("Layout", version.name.as_str())
        .row("Version", version.version.to_string())
        .row("Enforcement", version.layout.enforcement.as_str())
        .row("GPU model", TableCell::optional(version.layout.sku.as_deref()))
        .row("Author", version.author.as_str())
        .row("Note", TableCell::optional(version.note.as_deref()))
        .row("Age", age(version.created_at));
    for step in &version.layout.steps {
        details = details.row("Step", step.to_string());
    }
    details.print(format, name.as_str(), &version);
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn import(call: &CallArgs, path: &Path) -> Result<ExitCode, ClientError> {
    let text = read_file(path).map_err(ClientError::Caller)?;
    // JSON is YAML too.
    let imported = call.client()?.send_text(&LAYOUT.path_of("import"), "application/yaml", text).await;
    let imported: crate::http::api::List<LayoutView> =
        imported.map_err(|error| placed_refusal(error, path))?;
    if call.format().print_value(&imported.items) {
        return Ok(ExitCode::SUCCESS);
    }
    for layout in imported.items {
        match call.format() {
            OutputFormat::Name => line!("{}", layout.newest.name),
            _ => line!("{}", layout.newest.version_ref()),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the body of a request about a layout on a daemon, with the layout of a document if one is given.
async fn request_body(
    client: &Client,
    target: &LayoutTargetArgs,
    named: Option<&DocumentLayout>,
) -> Result<Value, ClientError> {
    let daemon = daemon_or_only(client, target.daemon.as_ref()).await?;
    let mut body = json!({ "daemon": daemon, "gpu_map": target.gpus.map() });
    if let Some(version) = target.layout_version {
        body["version"] = json!(version);
    }
    if let Some(named) = named {
        body["layout"] = json!(named.layout());
    }
    Ok(body)
}

/// Returns the layout of the target's name in its document, if it has one.
fn named(target: &LayoutTargetArgs) -> Result<Option<DocumentLayout>, ClientError> {
    let Some(path) = target.file.as_deref() else { return Ok(None) };
    let text = read_file(path).map_err(ClientError::Caller)?;
    entry(&read(&text, Some(path))?, &target.name).cloned().map(Some)
}

pub(super) fn entry<'d>(
    document: &'d Document,
    name: &LayoutName,
) -> Result<&'d DocumentLayout, ClientError> {
    document.layouts.get(name).ok_or_else(|| {
        let names: Vec<&str> = document.layouts.keys().map(LayoutName::as_str).collect();
        ClientError::Caller(format!("the document has no layout {name}: it has {}", names.join(", ")))
    })
}

/// Reads a document; `path` is the file that it comes from.
pub(super) fn read(file: &str, path: Option<&Path>) -> Result<Document, ClientError> {
    text::read(file, text::LayoutFormat::Yaml).map_err(|invalid| {
        let place = if invalid.pointer.is_empty() { String::new() } else { format!("{}: ", invalid.pointer) };
        let words = format!("{place}{}", invalid.reason);
        ClientError::Caller(path.map_or_else(|| words.clone(), |path| placed(&words, path)))
    })
}

pub(super) async fn plan(target: &LayoutTargetArgs) -> Result<ExitCode, ClientError> {
    let (named, client) = (named(target)?, target.call.client()?);
    let body = request_body(&client, target, named.as_ref()).await?;
    let path = format!("{}/plan", LAYOUT.path_of(&target.name));
    let plan: LayoutPlan = client.post(&path, &body).await?;
    if target.call.format() == OutputFormat::Name {
        line!("{}", plan.layout);
    } else if !target.call.format().print_value(&plan) {
        line!("{}", plan.text().trim_end());
    }
    // What `apply` would refuse, with and without --recreate.
    let refused =
        plan.refusals(Allowed { recreate: true, drain: false }).next().is_some() || plan.needs_recreate;
    Ok(if refused { ExitCode::from(DIFFERS) } else { ExitCode::SUCCESS })
}

pub(super) async fn apply(
    target: &LayoutTargetArgs,
    allowed: Value,
    confirm: Option<ConfirmArgs>,
    wait: WaitArgs,
) -> Result<ExitCode, ClientError> {
    let (named, client) = (named(target)?, target.call.client()?);
    let read_body = request_body(&client, target, named.as_ref()).await?;
    let mut body = read_body.clone();
    let daemon = body["daemon"].as_str().unwrap_or_default().to_owned();
    for (name, value) in allowed.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    if let Some(named) = &named {
        body["note"] = json!(named.note);
    }
    // Only for the words and the question: if it is refused, so is the layout itself, with the better message.
    let plan = client.post::<LayoutPlan>(&format!("{}/plan", LAYOUT.path_of(&target.name)), &read_body).await;
    let was_in_force = plan.as_ref().is_ok_and(|plan| plan.in_force);
    if let (Some(confirm), Ok(plan)) = (confirm, &plan)
        && !plan.blocked.is_empty()
    {
        confirm.ask(&format!("{}. Terminate those that are left when the time is over?", plan.summary))?;
    }
    let operation: Operation = client.post(&format!("{}/apply", LAYOUT.path_of(&target.name)), &body).await?;
    let name = &target.name;
    let done = if was_in_force {
        format!("layout {name} is already applied to {daemon}")
    } else {
        format!("layout {name} is applied to {daemon}")
    };
    let words = OperationWords {
        doing: &format!("applying layout {name} to {daemon}"),
        done: &done,
        failed: &format!("layout {name} was not applied"),
    };
    follow(&client, operation, wait, target.call.format(), words).await
}

pub(super) async fn compare(target: &LayoutTargetArgs) -> Result<ExitCode, ClientError> {
    let (named, client) = (named(target)?, target.call.client()?);
    let body = request_body(&client, target, named.as_ref()).await?;
    let assertion: Assertion =
        client.post(&format!("{}/assert", LAYOUT.path_of(&target.name)), &body).await?;
    let (name, daemon) = (&target.name, body["daemon"].as_str().unwrap_or_default());
    let format = target.call.format();
    if assertion.matches {
        let partitions = counted(assertion.partitions, "partition");
        let sentence = match assertion.partitions {
            0 => format!("{daemon} has no partitions, like layout {name} ✓"),
            _ => format!("{daemon} matches layout {name}: {partitions} as recorded ✓"),
        };
        format.announce(&sentence, name.as_str(), &assertion);
        return Ok(ExitCode::SUCCESS);
    }
    match format {
        OutputFormat::Table | OutputFormat::Wide => {
            for difference in &assertion.differences {
                line!("{}", difference.message);
            }
        }
        _ => format.announce("", name.as_str(), &assertion),
    }
    Ok(ExitCode::from(DIFFERS))
}

/// A layout document with the results of its steps on a daemon.
pub(super) async fn exported(
    client: &Client,
    name: &LayoutName,
    daemon: Option<&DaemonName>,
    format: text::LayoutFormat,
) -> Result<String, ClientError> {
    let daemon = match daemon {
        Some(daemon) => daemon.clone(),
        None => {
            let view: LayoutView = client.get(&LAYOUT.path_of(name)).await?;
            let none = format!("no daemon has layout {name}: apply it to one first");
            let several = format!("several daemons have layout {name}, give one with --daemon: {{}}");
            only_one(&view.daemons, &none, &several)?.clone()
        }
    };
    let path = format!("{}/export?daemon={daemon}", LAYOUT.path_of(name));
    client.text(Method::GET, &path, media_type(format)).await
}

pub(super) async fn export(
    client: &Client,
    name: &LayoutName,
    daemon: Option<&DaemonName>,
    format: OutputFormat,
) -> Result<ExitCode, ClientError> {
    let text = exported(client, name, daemon, document_format(format)).await?;
    match format {
        OutputFormat::Name => line!("{name}"),
        _ => line!("{}", text.trim_end()),
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn delete(
    call: &CallArgs,
    name: &LayoutName,
    confirm: ConfirmArgs,
) -> Result<ExitCode, ClientError> {
    confirm.ask(&format!("Layout {name} would be deleted with all its versions. Delete it?"))?;
    call.client()?.text(Method::DELETE, &LAYOUT.path_of(name), "application/json").await?;
    let answer = json!({ "name": name, "deleted": true });
    call.format().announce(&format!("layout {name} was deleted"), name.as_str(), &answer);
    Ok(ExitCode::SUCCESS)
}
