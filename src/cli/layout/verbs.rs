//! The commands for one server.

use std::path::Path;
use std::process::ExitCode;

use reqwest::Method;
use serde_json::{Value, json};

use super::super::confirm::ConfirmArgs;
use super::super::fetch::{all, daemon_or_only};
use super::super::output::{
    DIFFERS, DetailsTable, ListColumn, ListLayout, OutputFormat, TableCell, age, line,
};
use super::super::server::CallArgs;
use super::super::wait::{OperationWords, WaitArgs, follow};
use super::arguments::{
    DriftPolicyArgument, LayoutTargetArgs, document_format, media_type, placed, placed_refusal,
};
use crate::client::{Client, ClientError};
use crate::domain::count::counted;
use crate::domain::layout::assertion::Assertion;
use crate::domain::layout::document::{Document, DocumentLayout};
use crate::domain::layout::outlook::LayoutPlan;
use crate::domain::layout::{LayoutStep, Version, text};
use crate::domain::operation::Operation;
use crate::domain::{DaemonName, LayoutName, TenantName};
use crate::service::layouts::LayoutView;

/// Path of the layouts in the API.
pub(super) const LAYOUTS: &str = "/api/v1/layouts";

const LAYOUT: ListLayout<LayoutView> = ListLayout {
    noun: "layouts",
    name: |layout| layout.newest.name.to_string(),
    columns: &[
        ListColumn::new("LAYOUT", |layout| layout.newest.name.as_str().into()),
        ListColumn::new("VERSION", |layout| layout.newest.version.to_string().into()),
        ListColumn::ranked(
            3,
            ListColumn::new("ENFORCEMENT", |layout| layout.newest.layout.enforcement.as_str().into()),
        ),
        ListColumn::ranked(
            2,
            ListColumn::new("PARTITIONS", |layout| {
                layout.newest.layout.partitions().count().to_string().into()
            }),
        ),
        ListColumn::ranked(1, ListColumn::new("DAEMONS", |layout| TableCell::joined(&layout.daemons))),
        ListColumn::ranked(5, ListColumn::new("AGE", |layout| age(layout.newest.created_at).into())),
        ListColumn::ranked(
            4,
            ListColumn::cut("NOTE", |layout| {
                TableCell::optional(layout.newest.note.as_ref().map(|note| note.replace('\n', " ")))
            }),
        ),
        ListColumn::wide("AUTHOR", |layout| layout.newest.author.as_str().into()),
    ],
};

pub(super) async fn list(call: &CallArgs) -> Result<ExitCode, ClientError> {
    LAYOUT.print(&all(&call.client()?, LAYOUTS).await?, call.format());
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn get(
    client: &Client,
    name: &LayoutName,
    version: Option<u32>,
    format: OutputFormat,
) -> Result<ExitCode, ClientError> {
    let version: Version = match version {
        Some(version) => client.get(&format!("{LAYOUTS}/{name}/versions/{version}")).await?,
        None => client.get::<LayoutView>(&format!("{LAYOUTS}/{name}")).await?.newest,
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
        details = details.row("Step", step_words(step));
    }
    details.print(format, name.as_str(), &version);
    Ok(ExitCode::SUCCESS)
}

fn step_words(step: &LayoutStep) -> String {
    match step {
        LayoutStep::Add(add) => {
            let tenants: Vec<&str> = add.tenants.iter().map(TenantName::as_str).collect();
            let of = if tenants.is_empty() { String::new() } else { format!(" for {}", tenants.join(", ")) };
            format!("add {} on role {}: {}{of}", add.partition, add.gpu, counted(add.chunks, "chunk"))
        }
        LayoutStep::Remove(remove) => format!("remove {}", remove.partition),
    }
}

pub(super) async fn import(call: &CallArgs, text: String, path: &Path) -> Result<ExitCode, ClientError> {
    // JSON is YAML too.
    let imported = call.client()?.send_text(&format!("{LAYOUTS}/import"), "application/yaml", text).await;
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

/// Builds the body of a request about a layout on a daemon.
async fn request_body(client: &Client, target: &LayoutTargetArgs) -> Result<Value, ClientError> {
    let daemon = daemon_or_only(client, target.daemon.as_ref()).await?;
    let mut body = json!({ "daemon": daemon, "gpu_map": target.gpus.map() });
    if let Some(version) = target.layout_version {
        body["version"] = json!(version);
    }
    Ok(body)
}

/// Builds the body of a request that changes nothing, with the layout of a file if one is given.
async fn read_request(
    client: &Client,
    target: &LayoutTargetArgs,
    file: Option<String>,
) -> Result<Value, ClientError> {
    let mut body = request_body(client, target).await?;
    if let Some(file) = file {
        body["layout"] = json!(named(&file, target)?.layout());
    }
    Ok(body)
}

/// The layout of the target's name in its document.
fn named(file: &str, target: &LayoutTargetArgs) -> Result<DocumentLayout, ClientError> {
    entry(&read(file, target.file.as_deref())?, &target.name).cloned()
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

pub(super) async fn plan(target: &LayoutTargetArgs, file: Option<String>) -> Result<ExitCode, ClientError> {
    let client = target.call.client()?;
    let body = read_request(&client, target, file).await?;
    let path = format!("{LAYOUTS}/{}/plan", target.name);
    let plan: LayoutPlan = client.post(&path, &body).await?;
    if target.call.format() == OutputFormat::Name {
        line!("{}", plan.layout);
    } else if !target.call.format().print_value(&plan) {
        line!("{}", plan.text().trim_end());
    }
    // What `apply` would refuse, with and without --recreate.
    let refused = plan.refusals(true).next().is_some() || plan.needs_recreate;
    Ok(if refused { ExitCode::from(DIFFERS) } else { ExitCode::SUCCESS })
}

pub(super) async fn apply(
    target: &LayoutTargetArgs,
    file: Option<String>,
    recreate: bool,
    drift_policy: Option<DriftPolicyArgument>,
    wait: WaitArgs,
) -> Result<ExitCode, ClientError> {
    let client = target.call.client()?;
    let mut body = request_body(&client, target).await?;
    let daemon = body["daemon"].as_str().unwrap_or_default().to_owned();
    body["recreate"] = json!(recreate);
    body["drift_policy"] = json!(drift_policy.map(DriftPolicyArgument::as_str));
    let read_body = read_request(&client, target, file.clone()).await?;
    if let Some(file) = file {
        let entry = named(&file, target)?;
        body["layout"] = json!(entry.layout());
        body["note"] = json!(entry.note);
    }
    // Only for the words: if it is refused, so is the layout itself, with the better message.
    let plan = client.post::<LayoutPlan>(&format!("{LAYOUTS}/{}/plan", target.name), &read_body).await;
    let was_in_force = plan.as_ref().is_ok_and(|plan| plan.in_force);
    let operation: Operation = client.post(&format!("{LAYOUTS}/{}/apply", target.name), &body).await?;
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

pub(super) async fn compare(
    target: &LayoutTargetArgs,
    file: Option<String>,
) -> Result<ExitCode, ClientError> {
    let client = target.call.client()?;
    let body = read_request(&client, target, file).await?;
    let assertion: Assertion = client.post(&format!("{LAYOUTS}/{}/assert", target.name), &body).await?;
    let (name, daemon) = (&target.name, body["daemon"].as_str().unwrap_or_default());
    let format = target.call.format();
    if assertion.matches {
        let partitions = counted(assertion.partitions, "partition");
        let sentence = format!("{daemon} matches layout {name}: {partitions} as recorded ✓");
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
            let view: LayoutView = client.get(&format!("{LAYOUTS}/{name}")).await?;
            match view.daemons.as_slice() {
                [one] => one.clone(),
                [] => {
                    return Err(format!("no daemon has layout {name}: apply it to one first").into());
                }
                several => {
                    let names: Vec<&str> = several.iter().map(DaemonName::as_str).collect();
                    let text = format!(
                        "several daemons have layout {name}, give one with --daemon: {}",
                        names.join(", ")
                    );
                    return Err(text.into());
                }
            }
        }
    };
    let path = format!("{LAYOUTS}/{name}/export?daemon={daemon}");
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
    call.client()?.text(Method::DELETE, &format!("{LAYOUTS}/{name}"), "application/json").await?;
    let answer = json!({ "name": name, "deleted": true });
    call.format().announce(&format!("layout {name} was deleted"), name.as_str(), &answer);
    Ok(ExitCode::SUCCESS)
}
