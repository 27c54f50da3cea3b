//! The host file: the desired state of a host, in one document.
//!
//! A file names GPUs as people do, and a layout by its name. [`resolve`] reads it for one host and finds all errors in it;
//! [`changes`] compares the result with the stored state of the host; [`export()`] writes that state as a file that changes nothing on it.
//! All of it is pure: the service loads [`StoredHost`] in the transaction that commits the changes.

mod check;
mod diff;
mod export;
#[cfg(test)]
mod fuzz;
mod template;
#[cfg(test)]
mod tests;
pub mod text;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize};

use super::daemon::DaemonSpec;
use super::gpu::GpuRef;
use super::layout::active::{ActiveLayout, PartitionPolicy};
use super::layout::document::DocumentLayout;
use super::layout::{Invalid, Layout, Role, VersionRef};
use super::tenant::TenantSpec;
use super::{DaemonName, LayoutName, TemplateName, TenantName};

pub use check::{FileErrors, fits, resolve};
pub use diff::{HostChange, HostChangeAction, HostFieldChange, HostObjectKind, changes};
pub use export::{ExportedHost, HostObject, export};
pub use template::{DaemonTemplate, TemplateOverride};

/// The version of a host file's shape.
pub const VERSION: &str = "v1";

/// The desired state of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostFile {
    /// The version of this shape.
    #[schema(pattern = "^v1$", example = "v1")]
    pub version: String,
    /// Partition layouts, by name. One that differs from the newest version on the host becomes a new version.
    #[serde(default, deserialize_with = "section", skip_serializing_if = "BTreeMap::is_empty")]
    pub layouts: BTreeMap<LayoutName, DocumentLayout>,
    /// Templates for dividing the GPUs of daemons, by name. A template becomes the daemons' `provisioning` and default memory limit.
    #[serde(default, deserialize_with = "section", skip_serializing_if = "BTreeMap::is_empty")]
    pub templates: BTreeMap<TemplateName, DaemonTemplate>,
    /// Control daemons, by name. Their layouts stand in `bindings`.
    #[serde(default, deserialize_with = "section", skip_serializing_if = "BTreeMap::is_empty")]
    pub daemons: BTreeMap<DaemonName, DaemonSpec<GpuRef>>,
    /// Tenants, by name.
    #[serde(default, deserialize_with = "section", skip_serializing_if = "BTreeMap::is_empty")]
    pub tenants: BTreeMap<TenantName, TenantSpec<GpuRef>>,
    /// The layout of each daemon that has one, by the daemon's name.
    #[serde(default, deserialize_with = "section", skip_serializing_if = "BTreeMap::is_empty")]
    pub bindings: BTreeMap<DaemonName, LayoutBinding>,
}

/// Reads a section. A section without content, as when all of it is commented out, is empty.
fn section<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// The layout of a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LayoutBinding {
    /// The layout.
    pub layout: LayoutName,
    /// A version that the host has already. If it is left out, the layout of the file is used, or else the newest version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub version: Option<u32>,
    /// The GPU of each role of the layout. A role that is left out gets the host's GPU of that index among those of the layout's SKU.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(schema_with = crate::layout::roles_by_any_name)]
    pub gpu_map: BTreeMap<Role, GpuRef>,
    /// Policy for partitions that another program makes or removes.
    #[serde(default)]
    pub drift_policy: PartitionPolicy,
}

/// A host file read for one host: every name resolved, and every part checked.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HostSpec {
    /// The content and the note of each layout.
    pub layouts: BTreeMap<LayoutName, (Layout, Option<String>)>,
    /// The daemons, without their layouts.
    pub daemons: BTreeMap<DaemonName, DaemonSpec>,
    /// The tenants.
    pub tenants: BTreeMap<TenantName, TenantSpec>,
    /// The layout of each daemon.
    pub bindings: BTreeMap<DaemonName, ActiveLayout>,
    /// Possible mistakes in the file, for which it is not refused.
    pub warnings: Vec<Invalid>,
}

/// Stored state of a host.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StoredHost {
    /// The newest version of each layout, with its note.
    pub layouts: BTreeMap<LayoutName, StoredLayout>,
    /// The number that the next version of a layout gets, for each layout of the file.
    pub next_versions: BTreeMap<LayoutName, u32>,
    /// Older versions that a daemon has or the file names.
    pub versions: BTreeMap<VersionRef, Layout>,
    /// The daemons, with their layouts.
    pub daemons: BTreeMap<DaemonName, DaemonSpec>,
    /// The tenants.
    pub tenants: BTreeMap<TenantName, TenantSpec>,
    /// The tenants that are being drained.
    pub draining: BTreeSet<TenantName>,
}

/// The newest version of a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLayout {
    /// Its number.
    pub version: u32,
    /// Its content.
    pub layout: Layout,
    /// Note on why it was written.
    pub note: Option<String>,
}

impl StoredHost {
    /// Returns the content of a version.
    pub fn content(&self, wanted: &VersionRef) -> Option<&Layout> {
        let newest = self.layouts.get(&wanted.name).filter(|newest| newest.version == wanted.version);
        newest.map(|newest| &newest.layout).or_else(|| self.versions.get(wanted))
    }
}
