//! The commands for one server.

use std::process::ExitCode;

use reqwest::Method;
use serde_json::{Value, json};

use super::super::show::{all, followed, table};
use super::super::{DIFFERS, line};
use super::{DocumentFormat, DriftPolicyArgument, LayoutTargetArgs, PlanOutput};
use crate::client::{Client, ClientError};
use crate::domain::layout::assertion::Assertion;
use crate::domain::layout::document::{Document, DocumentLayout};
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
    spelling: DocumentFormat,
) -> Result<ExitCode, ClientError> {
    let version: Version = match version {
        Some(version) => client.get(&format!("{LAYOUTS}/{name}/versions/{version}")).await?,
        None => client.get::<LayoutView>(&format!("{LAYOUTS}/{name}")).await?.newest,
    };
    let document = text::bare(version.name, &version.layout, version.note);
    line!("{}", text::write(&document, spelling.format()).trim_end());
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn import(client: &Client, text: String) -> Result<ExitCode, ClientError> {
    // JSON is YAML too.
    let imported: crate::http::api::List<LayoutView> =
        client.send_text(&format!("{LAYOUTS}/import"), "application/yaml", text).await?;
    for layout in imported.items {
        line!("{}", layout.newest.version_ref());
    }
    Ok(ExitCode::SUCCESS)
}

/// The request about a layout on a daemon.
async fn request_body(client: &Client, target: &LayoutTargetArgs) -> Result<Value, ClientError> {
    let daemon = daemon(client, target.daemon.as_ref()).await?;
    let mut body = json!({ "daemon": daemon, "gpu_map": target.gpus.map() });
    if let Some(version) = target.layout_version {
        body["version"] = json!(version);
    }
    Ok(body)
}

/// The same for requests that change nothing, with the layout of a file.
async fn read_request(
    client: &Client,
    target: &LayoutTargetArgs,
    file: Option<String>,
) -> Result<Value, ClientError> {
    let mut body = request_body(client, target).await?;
    if let Some(file) = file {
        body["layout"] = json!(named(&file, &target.name)?.layout());
    }
    Ok(body)
}

/// The layout of that name in a document.
fn named(file: &str, name: &LayoutName) -> Result<DocumentLayout, ClientError> {
    entry(&read(file)?, name).cloned()
}

pub(super) fn entry<'d>(
    document: &'d Document,
    name: &LayoutName,
) -> Result<&'d DocumentLayout, ClientError> {
    document.layouts.get(name).ok_or_else(|| {
        let names: Vec<&str> = document.layouts.keys().map(LayoutName::as_str).collect();
        ClientError::Address(format!("the document has no layout {name}: it has {}", names.join(", ")))
    })
}

pub(super) fn read(file: &str) -> Result<Document, ClientError> {
    text::read(file, text::LayoutFormat::Yaml).map_err(|invalid| {
        let place = if invalid.pointer.is_empty() { String::new() } else { format!("{}: ", invalid.pointer) };
        ClientError::Address(format!("{place}{}", invalid.reason))
    })
}

pub(super) async fn plan(
    target: &LayoutTargetArgs,
    file: Option<String>,
    output: PlanOutput,
) -> Result<ExitCode, ClientError> {
    let client = target.server.client()?;
    let body = read_request(&client, target, file).await?;
    let path = format!("{LAYOUTS}/{}/plan", target.name);
    let plan: LayoutPlan = client.post(&path, &body).await?;
    match output {
        PlanOutput::Json => line!("{:#}", json!(plan)),
        PlanOutput::Text => line!("{}", plan.text().trim_end()),
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
) -> Result<ExitCode, ClientError> {
    let client = target.server.client()?;
    let mut body = request_body(&client, target).await?;
    body["recreate"] = json!(recreate);
    body["drift_policy"] = json!(drift_policy.map(DriftPolicyArgument::as_str));
    if let Some(file) = file {
        let entry = named(&file, &target.name)?;
        body["layout"] = json!(entry.layout());
        body["note"] = json!(entry.note);
    }
    let operation: Operation = client.post(&format!("{LAYOUTS}/{}/apply", target.name), &body).await?;
    followed(&client, operation, &format!("layout {} was not applied", target.name)).await
}

pub(super) async fn compare(
    target: &LayoutTargetArgs,
    file: Option<String>,
) -> Result<ExitCode, ClientError> {
    let client = target.server.client()?;
    let body = read_request(&client, target, file).await?;
    let assertion: Assertion = client.post(&format!("{LAYOUTS}/{}/assert", target.name), &body).await?;
    for difference in &assertion.differences {
        line!("{}", difference.message);
    }
    Ok(if assertion.matches { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
}

/// A layout document with the results of its steps on a daemon.
pub(super) async fn exported(
    client: &Client,
    name: &LayoutName,
    daemon: Option<&DaemonName>,
    spelling: DocumentFormat,
) -> Result<String, ClientError> {
    let daemon = match daemon {
        Some(daemon) => daemon.clone(),
        None => {
            let view: LayoutView = client.get(&format!("{LAYOUTS}/{name}")).await?;
            match view.daemons.as_slice() {
                [one] => one.clone(),
                [] => {
                    return Err(ClientError::Address(format!(
                        "no daemon has layout {name}: apply it to one first"
                    )));
                }
                several => {
                    let names: Vec<&str> = several.iter().map(DaemonName::as_str).collect();
                    let text = format!(
                        "several daemons have layout {name}, give one with --daemon: {}",
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
    spelling: DocumentFormat,
) -> Result<ExitCode, ClientError> {
    line!("{}", exported(client, name, daemon, spelling).await?.trim_end());
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn delete(client: &Client, name: &LayoutName) -> Result<ExitCode, ClientError> {
    client.text(Method::DELETE, &format!("{LAYOUTS}/{name}"), "application/json").await?;
    Ok(ExitCode::SUCCESS)
}

/// The named daemon, or the only one of the host.
async fn daemon(client: &Client, named: Option<&DaemonName>) -> Result<DaemonName, ClientError> {
    if let Some(named) = named {
        return Ok(named.clone());
    }
    let daemons: Vec<crate::service::daemons::DaemonView> = all(client, "/api/v1/daemons").await?;
    match daemons.as_slice() {
        [one] => Ok(one.name.clone()),
        [] => Err(ClientError::Address("this host has no daemon: create one first".into())),
        several => {
            let all: Vec<&str> = several.iter().map(|daemon| daemon.name.as_str()).collect();
            Err(ClientError::Address(format!("give one with --daemon: {}", all.join(", "))))
        }
    }
}
