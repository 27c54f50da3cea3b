//! Export of a host's state as a short host file: without default values, and with GPUs named as people do.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{LayoutBinding, StoredHost, VERSION};
use crate::daemon::DaemonSpec;
use crate::gpu::{Gpu, GpuRef};
use crate::layout::active::ActiveLayout;
use crate::layout::document::DocumentLayout;
use crate::layout::{GpuMap, Layout, map_roles};
use crate::memory::MIB;
use crate::tenant::TenantSpec;
use crate::{DaemonName, GpuUuid, LayoutName, TenantName};

/// A host file as it is exported: the sections of [`super::HostFile`] that are not empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ExportedHost {
    version: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    layouts: BTreeMap<LayoutName, DocumentLayout>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    daemons: BTreeMap<DaemonName, Map<String, Value>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tenants: BTreeMap<TenantName, Map<String, Value>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    bindings: BTreeMap<DaemonName, LayoutBinding>,
}

/// Writes the state of a host as a file that changes nothing on it.
pub fn export(stored: &StoredHost, gpus: &[Gpu]) -> ExportedHost {
    let layout = |newest: &super::StoredLayout| DocumentLayout::of(&newest.layout, newest.note.clone(), None);
    let bindings = stored.daemons.iter().filter_map(|(name, daemon)| {
        let active = daemon.layout.as_ref()?;
        let content = stored.content(&active.version_ref());
        Some((name.clone(), binding(active, content, daemon, stored, gpus)))
    });
    ExportedHost {
        version: VERSION,
        layouts: stored.layouts.iter().map(|(name, newest)| (name.clone(), layout(newest))).collect(),
        daemons: stored
            .daemons
            .iter()
            .map(|(name, spec)| (name.clone(), daemon_fields(spec, gpus)))
            .collect(),
        // A tenant that expires is not part of the permanent desired state; once it has expired, the file would be refused.
        tenants: stored
            .tenants
            .iter()
            .filter(|(_, spec)| spec.expires_at.is_none())
            .map(|(name, spec)| (name.clone(), tenant_fields(spec, gpus)))
            .collect(),
        bindings: bindings.collect(),
    }
}

/// An object of a host.
#[derive(Debug, Clone, Copy)]
pub enum HostObject<'o> {
    /// A daemon; its layout becomes a binding.
    Daemon(&'o DaemonName, &'o DaemonSpec),
    /// A tenant.
    Tenant(&'o TenantName, &'o TenantSpec),
    /// A layout, with its note.
    Layout(&'o LayoutName, &'o Layout, Option<&'o str>),
}

impl HostObject<'_> {
    /// Returns a host file that has this object alone.
    pub fn alone(self, gpus: &[Gpu]) -> ExportedHost {
        let mut file = ExportedHost { version: VERSION, ..ExportedHost::default() };
        match self {
            Self::Daemon(name, spec) => {
                file.daemons.insert(name.clone(), daemon_fields(spec, gpus));
                let bound = spec.layout.iter();
                let bound = bound.map(|active| binding(active, None, spec, &StoredHost::default(), gpus));
                file.bindings.extend(bound.map(|binding| (name.clone(), binding)));
            }
            Self::Tenant(name, spec) => {
                file.tenants.insert(name.clone(), tenant_fields(spec, gpus));
            }
            Self::Layout(name, layout, note) => {
                let layout = DocumentLayout::of(layout, note.map(str::to_owned), None);
                file.layouts.insert(name.clone(), layout);
            }
        }
        file
    }
}

/// Returns the name that people use for a GPU: its index, or its UUID if it is missing and has no index.
fn gpu_name(uuid: &GpuUuid, gpus: &[Gpu]) -> GpuRef {
    let gpu = gpus.iter().find(|gpu| gpu.uuid == *uuid && gpu.present);
    GpuRef(gpu.map_or_else(|| uuid.to_string(), |gpu| gpu.index.to_string()))
}

/// Returns the binding of a daemon's layout. It names GPUs only if the layout's content does not imply them.
pub(super) fn binding(
    active: &ActiveLayout,
    content: Option<&Layout>,
    daemon: &DaemonSpec,
    stored: &StoredHost,
    gpus: &[Gpu],
) -> LayoutBinding {
    let is_newest = stored.layouts.get(&active.name).is_some_and(|newest| newest.version == active.version);
    let by_default = content.and_then(|layout| map_roles(layout, &GpuMap::new(), &daemon.gpus, gpus).ok());
    let named = by_default.as_ref() != Some(&active.gpu_map);
    let map = active.gpu_map.iter().filter(|_| named);
    LayoutBinding {
        layout: active.name.clone(),
        version: (!is_newest).then_some(active.version),
        gpu_map: map.map(|(role, uuid)| (*role, gpu_name(uuid, gpus))).collect(),
        drift_policy: active.drift_policy,
    }
}

/// Returns the fields of a daemon's spec that differ from the defaults, without its layout.
pub(super) fn daemon_fields(spec: &DaemonSpec, gpus: &[Gpu]) -> Map<String, Value> {
    let bare = DaemonSpec { layout: None, ..spec.clone() };
    fields(&bare, &DaemonSpec::<GpuUuid>::of(Vec::new()), &["gpus"], gpus)
}

/// Returns the fields of a tenant's spec that differ from the defaults.
pub(super) fn tenant_fields(spec: &TenantSpec, gpus: &[Gpu]) -> Map<String, Value> {
    let plain: TenantSpec =
        serde_json::from_value(serde_json::json!({ "daemon": spec.daemon, "uid": spec.uid }))
            .expect("a tenant needs no more");
    fields(spec, &plain, &["daemon", "uid"], gpus)
}

/// Returns the fields in which a spec differs from a plain one, and those that are always written.
fn fields(
    spec: &impl Serialize,
    plain: &impl Serialize,
    always: &[&str],
    gpus: &[Gpu],
) -> Map<String, Value> {
    let object = |spec: Value| match spec {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let json = |spec: serde_json::Result<Value>| object(spec.expect("a spec is plain data"));
    let plain = json(serde_json::to_value(plain));
    let mut fields = json(serde_json::to_value(spec));
    fields.retain(|name, value| always.contains(&name.as_str()) || plain.get(name) != Some(value));
    for (name, value) in &mut fields {
        written(name, value, gpus);
    }
    fields
}

/// Rewrites values as people write them: GPUs by index, and sizes with a unit.
fn written(name: &str, value: &mut Value, gpus: &[Gpu]) {
    match value {
        Value::String(text) if name == "gpus" => {
            if let Ok(uuid) = GpuUuid::parse(text) {
                *text = gpu_name(&uuid, gpus).0;
            }
        }
        Value::Number(number) if name == "device_memory_limit" => {
            let Some(bytes) = number.as_u64().filter(|bytes| bytes % MIB == 0 && *bytes > 0) else { return };
            let (gib, mib) = (bytes / (1024 * MIB), bytes / MIB);
            let text = if bytes % (1024 * MIB) == 0 { format!("{gib}G") } else { format!("{mib}M") };
            *value = Value::String(text);
        }
        Value::Array(items) => items.iter_mut().for_each(|item| written(name, item, gpus)),
        // A limit for each GPU has the GPU for its name.
        Value::Object(limits) if name == "device_memory_limit" => {
            let named = std::mem::take(limits).into_iter().map(|(gpu, mut limit)| {
                written(name, &mut limit, gpus);
                (GpuUuid::parse(&gpu).map_or(gpu, |uuid| gpu_name(&uuid, gpus).0), limit)
            });
            *limits = named.collect();
        }
        Value::Object(inner) => inner.iter_mut().for_each(|(field, value)| written(field, value, gpus)),
        _ => {}
    }
}
