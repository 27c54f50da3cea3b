//! Changes that a host file makes, field by field.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::export::{binding, daemon_fields, tenant_fields};
use super::{HostSpec, LayoutBinding, StoredHost};
use crate::daemon::DaemonSpec;
use crate::gpu::Gpu;
use crate::layout::Layout;
use crate::layout::active::{ActiveLayout, PartitionPolicy};
use crate::tenant::TenantSpec;

/// One change of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HostChange {
    /// Action on the object.
    pub action: HostChangeAction,
    /// Kind of the object.
    pub kind: HostObjectKind,
    /// Its name; that of the daemon for a binding.
    pub name: String,
    /// The fields that change. For a new object these are the fields without their default; for a deleted one there are none.
    pub fields: Vec<HostFieldChange>,
}

/// Action on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostChangeAction {
    /// It is created.
    Create,
    /// It is changed.
    Change,
    /// It is deleted, because pruning was requested and the file does not have it.
    Delete,
}

/// A kind of object in a host file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostObjectKind {
    /// A partition layout.
    Layout,
    /// A control daemon.
    Daemon,
    /// A tenant.
    Tenant,
    /// The layout of a daemon.
    Binding,
}

api_words!(HostObjectKind: Layout "layout", Daemon "daemon", Tenant "tenant", Binding "binding");

/// A field of an object that changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HostFieldChange {
    /// The field, as in the host file.
    pub field: String,
    /// Its value on the host as JSON; `null` where it has its default.
    pub before: Option<String>,
    /// Its value in the file as JSON; `null` where it gets its default.
    pub after: Option<String>,
}

impl std::fmt::Display for HostChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = match self.action {
            HostChangeAction::Create => '+',
            HostChangeAction::Change => '~',
            HostChangeAction::Delete => '-',
        };
        write!(f, "{sign} {}", self.object())?;
        for HostFieldChange { field, before, after } in &self.fields {
            match (before, after) {
                _ if self.kind == HostObjectKind::Layout && field == "steps" => {
                    write_steps(f, before.as_deref(), after.as_deref())?;
                }
                (None, Some(after)) if self.action == HostChangeAction::Create => {
                    write!(f, "\n    + {field}: {after}")?;
                }
                (before, after) => {
                    let shown =
                        |value: &Option<String>| value.clone().unwrap_or_else(|| "(default)".to_owned());
                    write!(f, "\n    ~ {field}: {} -> {}", shown(before), shown(after))?;
                }
            }
        }
        if self.restarts() { write!(f, "\n    ! restarts the daemon if it runs") } else { Ok(()) }
    }
}

impl HostChange {
    /// Returns the kind and the name of the object.
    pub fn object(&self) -> String {
        format!("{} {}", self.kind.as_str(), self.name)
    }

    /// Returns true if a running daemon is restarted for it.
    fn restarts(&self) -> bool {
        (self.kind, self.action) == (HostObjectKind::Daemon, HostChangeAction::Change)
            && self.fields.iter().any(|field| matches!(field.field.as_str(), "gpus" | "mode" | "multi_user"))
    }
}

/// Writes the steps of a layout that are removed and those that are added, one per line.
fn write_steps(
    f: &mut std::fmt::Formatter<'_>,
    before: Option<&str>,
    after: Option<&str>,
) -> std::fmt::Result {
    let steps = |text: Option<&str>| -> Vec<Map<String, Value>> {
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    };
    let (before, after) = (steps(before), steps(after));
    write!(f, "\n    {} steps:", if before.is_empty() { '+' } else { '~' })?;
    let gone = before.iter().filter(|step| !after.contains(step)).map(|step| ('-', step));
    let new = after.iter().filter(|step| !before.contains(step)).map(|step| ('+', step));
    for (sign, step) in gone.chain(new) {
        for (verb, fields) in step {
            let fields = fields.as_object().into_iter().flatten();
            let fields: Vec<String> = fields.map(|(name, value)| format!("{name}: {value}")).collect();
            write!(f, "\n      {sign} {verb} {}", fields.join(", "))?;
        }
    }
    if before.len() == after.len() && before.iter().all(|step| after.contains(step)) {
        write!(f, " in another order")?;
    }
    Ok(())
}

/// Returns the changes that a host file makes: to layouts, daemons, tenants and bindings, and then the deletions by pruning in the reverse
/// order.
pub fn changes(desired: &HostSpec, stored: &StoredHost, gpus: &[Gpu], prune: bool) -> Vec<HostChange> {
    let none = Map::new();
    let mut changes = Vec::new();
    for (name, (layout, _)) in &desired.layouts {
        let before = stored.layouts.get(name).map(|newest| &newest.layout);
        let (old, new) = (before.map(layout_fields), layout_fields(layout));
        changes.extend(change(HostObjectKind::Layout, name, before == Some(layout), old, &new));
    }
    for (name, spec) in &desired.daemons {
        let before = stored.daemons.get(name).map(|daemon| DaemonSpec { layout: None, ..daemon.clone() });
        let (old, new) = (before.as_ref().map(|spec| daemon_fields(spec, gpus)), daemon_fields(spec, gpus));
        changes.extend(change(HostObjectKind::Daemon, name, before.as_ref() == Some(spec), old, &new));
    }
    for (name, spec) in &desired.tenants {
        let before = stored.tenants.get(name);
        let (old, new) = (before.map(|spec| tenant_fields(spec, gpus)), tenant_fields(spec, gpus));
        changes.extend(change(HostObjectKind::Tenant, name, before == Some(spec), old, &new));
    }
    for (name, active) in &desired.bindings {
        let daemon = desired.daemons.get(name).or_else(|| stored.daemons.get(name));
        let Some(daemon) = daemon else { continue };
        let before = stored.daemons.get(name).and_then(|daemon| Some((daemon.layout.as_ref()?, daemon)));
        let shown = |active: &ActiveLayout, daemon: &DaemonSpec| {
            // A version that is not on the host yet is the layout as the file has it.
            let new = || desired.layouts.get(&active.name).map(|(layout, _)| layout);
            let content = stored.content(&active.version_ref()).or_else(new);
            binding_fields(active, &binding(active, content, daemon, stored, gpus))
        };
        let old = before.map(|(active, daemon)| shown(active, daemon));
        let is_same = before.is_some_and(|(before, _)| before == active);
        changes.extend(change(HostObjectKind::Binding, name, is_same, old, &shown(active, daemon)));
    }
    if prune {
        let deleted = |kind, name: &dyn std::fmt::Display| HostChange {
            action: HostChangeAction::Delete,
            kind,
            name: name.to_string(),
            fields: differences(&none, &none),
        };
        let unbound = stored.daemons.iter().filter(|(name, daemon)| {
            daemon.layout.is_some()
                && desired.daemons.contains_key(*name)
                && !desired.bindings.contains_key(*name)
        });
        changes.extend(unbound.map(|(name, _)| deleted(HostObjectKind::Binding, name)));
        // A tenant that expires goes by itself, and is in no file; it goes now if its daemon does.
        let stays =
            |spec: &TenantSpec| spec.expires_at.is_some() && desired.daemons.contains_key(&spec.daemon);
        let tenants = stored.tenants.iter();
        let tenants = tenants.filter(|(name, spec)| !desired.tenants.contains_key(*name) && !stays(spec));
        changes.extend(tenants.map(|(name, _)| deleted(HostObjectKind::Tenant, name)));
        let daemons = stored.daemons.keys().filter(|name| !desired.daemons.contains_key(*name));
        changes.extend(daemons.map(|name| deleted(HostObjectKind::Daemon, name)));
        let layouts = stored.layouts.keys().filter(|name| !desired.layouts.contains_key(*name));
        changes.extend(layouts.map(|name| deleted(HostObjectKind::Layout, name)));
    }
    changes
}

fn change(
    kind: HostObjectKind,
    name: &impl std::fmt::Display,
    is_same: bool,
    before: Option<Map<String, Value>>,
    after: &Map<String, Value>,
) -> Option<HostChange> {
    if is_same {
        return None;
    }
    let action = if before.is_some() { HostChangeAction::Change } else { HostChangeAction::Create };
    let fields = differences(&before.unwrap_or_default(), after);
    Some(HostChange { action, kind, name: name.to_string(), fields })
}

fn differences(before: &Map<String, Value>, after: &Map<String, Value>) -> Vec<HostFieldChange> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let text = |value: Option<&Value>| value.map(Value::to_string);
    names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name))
        .map(|name| HostFieldChange {
            field: name.clone(),
            before: text(before.get(name)),
            after: text(after.get(name)),
        })
        .collect()
}

fn layout_fields(layout: &Layout) -> Map<String, Value> {
    match serde_json::to_value(layout) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// The binding as the file has it, with the version that it comes to.
fn binding_fields(active: &ActiveLayout, binding: &LayoutBinding) -> Map<String, Value> {
    let map: BTreeMap<String, &str> =
        binding.gpu_map.iter().map(|(role, gpu)| (role.to_string(), gpu.0.as_str())).collect();
    let mut fields = Map::new();
    fields.insert("layout".to_owned(), active.version_ref().to_string().into());
    if !map.is_empty() {
        fields.insert("gpu_map".to_owned(), serde_json::json!(map));
    }
    if active.drift_policy != PartitionPolicy::default() {
        fields.insert("drift_policy".to_owned(), serde_json::json!(active.drift_policy));
    }
    fields
}
