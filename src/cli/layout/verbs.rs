//! The verbs of one server.

use std::process::ExitCode;

use reqwest::Method;
use serde_json::{Value, json};

use super::super::show::{all, followed, table};
use super::super::{DIFFERS, line};
use super::{DriftPolicy, PlanOutput, Spelling, Target, daemon};
use crate::client::{Client, ClientError};
use crate::domain::layout::assertion::Assertion;
use crate::domain::layout::document::{Document, Entry};
use crate::domain::layout::outlook::LayoutPlan;
use crate::domain::layout::{Version, text};
use crate::domain::operation::Operation;
use crate::domain::{DaemonName, LayoutName};
use crate::service::layouts::LayoutView;

const LAYOUTS: &str = "/api/v1/layouts";

pub(super) async fn list(client: &Client) -> Result<ExitCode, ClientError> {
    let layouts: Vec<LayoutView> = all(client, LAYOUTS).await?;
    let mut rows =
        vec![["LAYOUT", "VERSION", "ENFORCEMENT", "PARTITIONS", "DAEMONS", "NOTE"].map(str::to_owned)];
    for LayoutView { newest, daemons } in layouts {
        let daemons: Vec<&str> = daemons.iter().map(DaemonName::as_str).collect();
        rows.push([
            newest.name.to_string(),
            newest.version.to_string(),
            newest.layout.enforcement.as_str().to_owned(),
            newest.layout.partitions().count().to_string(),
            if daemons.is_empty() { "-".to_owned() } else { daemons.join(",") },
            newest.note.unwrap_or_default().replace('\n', " "),
        ]);
    }
    table(&rows);
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn show(
    client: &Client,
    name: &LayoutName,
    version: Option<u32>,
    spelling: Spelling,
) -> Result<ExitCode, ClientError> {
    let version: Version = match version {
        Some(version) => client.get(&format!("{LAYOUTS}/{name}/versions/{version}")).await?,
        None => client.get::<LayoutView>(&format!("{LAYOUTS}/{name}")).await?.newest,
    };
    let document = text::bare(version.name, &version.layout, version.note);
    line!("{}", text::write(&document, spelling.format()).trim_end());
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn import(
    client: &Client,
    text: String,
    script: Option<&LayoutName>,
) -> Result<ExitCode, ClientError> {
    let (path, media_type) = match script {
        Some(name) => (format!("{LAYOUTS}/import?name={name}"), "text/x-shellscript"),
        // JSON is YAML too.
        None => (format!("{LAYOUTS}/import"), "application/yaml"),
    };
    let imported: crate::http::api::List<LayoutView> = client.send_text(&path, media_type, text).await?;
    for layout in imported.items {
        line!("{}", layout.newest.version_ref());
    }
    Ok(ExitCode::SUCCESS)
}

/// What the API is asked about a layout on a daemon.
async fn question(client: &Client, target: &Target) -> Result<Value, ClientError> {
    let daemon = daemon(client, target.daemon.as_ref()).await?;
    let mut question = json!({ "daemon": daemon, "gpu_map": target.gpus.map() });
    if let Some(version) = target.layout_version {
        question["version"] = json!(version);
    }
    Ok(question)
}

/// The same, which changes nothing: a layout from a file goes along with it.
async fn look(client: &Client, target: &Target, file: Option<String>) -> Result<Value, ClientError> {
    let mut question = question(client, target).await?;
    if let Some(file) = file {
        question["layout"] = json!(named(&file, &target.name)?.layout());
    }
    Ok(question)
}

/// The layout of that name in a document.
fn named(file: &str, name: &LayoutName) -> Result<Entry, ClientError> {
    entry(&read(file)?, name).cloned()
}

pub(super) fn entry<'d>(document: &'d Document, name: &LayoutName) -> Result<&'d Entry, ClientError> {
    document.layouts.get(name).ok_or_else(|| {
        let names: Vec<&str> = document.layouts.keys().map(LayoutName::as_str).collect();
        ClientError::Address(format!("the document has no layout {name}: it has {}", names.join(", ")))
    })
}

pub(super) fn read(file: &str) -> Result<Document, ClientError> {
    text::read(file, text::Format::Yaml).map_err(|invalid| {
        let place = if invalid.pointer.is_empty() { String::new() } else { format!("{}: ", invalid.pointer) };
        ClientError::Address(format!("{place}{}", invalid.reason))
    })
}

pub(super) async fn plan(
    target: &Target,
    file: Option<String>,
    output: PlanOutput,
) -> Result<ExitCode, ClientError> {
    let client = target.server.client()?;
    let question = look(&client, target, file).await?;
    let path = format!("{LAYOUTS}/{}/plan", target.name);
    let plan: LayoutPlan = client.post(&path, &question).await?;
    match output {
        PlanOutput::Json => line!("{:#}", json!(plan)),
        PlanOutput::Text => line!("{}", plan.text().trim_end()),
    }
    // What `apply` would refuse, with and without --recreate.
    let refused = plan.refusals(true).next().is_some() || plan.needs_recreate;
    Ok(if refused { ExitCode::from(DIFFERS) } else { ExitCode::SUCCESS })
}

pub(super) async fn apply(
    target: &Target,
    file: Option<String>,
    recreate: bool,
    drift_policy: Option<DriftPolicy>,
) -> Result<ExitCode, ClientError> {
    let client = target.server.client()?;
    let mut question = question(&client, target).await?;
    question["recreate"] = json!(recreate);
    question["drift_policy"] = json!(drift_policy.map(DriftPolicy::as_str));
    if let Some(file) = file {
        let entry = named(&file, &target.name)?;
        question["layout"] = json!(entry.layout());
        question["note"] = json!(entry.note);
    }
    let operation: Operation = client.post(&format!("{LAYOUTS}/{}/apply", target.name), &question).await?;
    followed(&client, operation, &format!("layout {} was not applied", target.name)).await
}

pub(super) async fn compare(target: &Target, file: Option<String>) -> Result<ExitCode, ClientError> {
    let client = target.server.client()?;
    let question = look(&client, target, file).await?;
    let assertion: Assertion = client.post(&format!("{LAYOUTS}/{}/assert", target.name), &question).await?;
    for difference in &assertion.differences {
        line!("{}", difference.message);
    }
    Ok(if assertion.matches { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
}

/// The document of a layout with what it gave on a daemon.
pub(super) async fn exported(
    client: &Client,
    name: &LayoutName,
    daemon: Option<&DaemonName>,
    spelling: Spelling,
) -> Result<String, ClientError> {
    let daemon = match daemon {
        Some(daemon) => daemon.clone(),
        None => {
            let view: LayoutView = client.get(&format!("{LAYOUTS}/{name}")).await?;
            match view.daemons.as_slice() {
                [one] => one.clone(),
                [] => {
                    return Err(ClientError::Address(format!(
                        "no daemon holds layout {name}: apply it to one first"
                    )));
                }
                several => {
                    let names: Vec<&str> = several.iter().map(DaemonName::as_str).collect();
                    let text = format!(
                        "several daemons hold layout {name}, say which --daemon is meant: {}",
                        names.join(", ")
                    );
                    return Err(ClientError::Address(text));
                }
            }
        }
    };
    let path = format!("{LAYOUTS}/{name}/export?daemon={daemon}");
    client.text(Method::GET, &path, spelling.media_type()).await
}

pub(super) async fn export(
    client: &Client,
    name: &LayoutName,
    daemon: Option<&DaemonName>,
    spelling: Spelling,
) -> Result<ExitCode, ClientError> {
    line!("{}", exported(client, name, daemon, spelling).await?.trim_end());
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn delete(client: &Client, name: &LayoutName) -> Result<ExitCode, ClientError> {
    client.text(Method::DELETE, &format!("{LAYOUTS}/{name}"), "application/json").await?;
    Ok(ExitCode::SUCCESS)
}
