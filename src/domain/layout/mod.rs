//! Partition layouts: named, versioned, ordered lists of the steps that divide GPUs among tenants.
//!
//! A layout names no GPU of any machine: its steps name *roles*, and the caller that applies it assigns a GPU to each ([`GpuMap`]). The
//! order of its steps is part of it, removals included, since the IDs that a daemon gives depend on what was reserved before (FACTS.md,
//! "Static SM partitions"). So a version means one sequence from empty GPUs, and every plan ends in the state, IDs included, that this
//! sequence gives.

pub mod active;
pub mod assertion;
pub mod blocked;
pub mod comparison;
pub mod document;
pub mod execution;
pub mod format;
#[cfg(test)]
mod fuzz;
pub mod handout;
pub mod moves;
pub mod outlook;
pub mod percentage;
pub mod plan;
pub mod record;
pub mod replay;
mod reserved;
pub mod roles;
pub mod sizes;
pub mod status;
pub mod summary;
pub mod text;
mod yaml_words;

use crate::count::counted;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use self::reserved::ReservedWord;
use super::gpu::{Gpu, full_name, instances_to_choose};
use super::printable::is_shown;
use super::{GpuUuid, InvalidValue, LayoutName, PartitionName, TenantName};

/// A role of a GPU: its index among the host's GPUs of the layout's SKU, in PCI order.
pub type Role = u32;

/// The GPU of each role on one daemon.
pub type GpuMap = BTreeMap<Role, GpuUuid>;

/// Returns the schema of a map from roles to GPUs named in any way.
pub fn roles_by_any_name() -> utoipa::openapi::schema::Object {
    roles(utoipa::openapi::Ref::from_schema_name("GpuRef"))
}

/// Returns the schema of a map from roles to GPUs named by UUID.
pub fn roles_by_uuid() -> utoipa::openapi::schema::Object {
    roles(utoipa::openapi::Ref::from_schema_name("GpuUuid"))
}

/// Returns the schema of a map from roles to GPUs. The keys of a JSON object are strings, so a role is its number in decimal.
fn roles(gpu: utoipa::openapi::Ref) -> utoipa::openapi::schema::Object {
    use utoipa::openapi::schema::{ObjectBuilder, Type};
    let role = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^(0|[1-9][0-9]{0,8})$"));
    ObjectBuilder::new().property_names(Some(role)).additional_properties(Some(gpu)).build()
}

/// Most steps of a layout; a GPU has a few dozen chunks.
pub const MAX_STEPS: usize = 512;
/// Most roles of a layout.
pub const MAX_ROLES: usize = 16;
/// Longest product name, in bytes: the size of NVML's buffer for a GPU's name.
pub const MAX_SKU: usize = 96;
/// Longest note, in characters.
pub const MAX_NOTE: usize = 1024;

/// The content of one version of a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// The mechanism that enforces the partitions.
    #[serde(default)]
    pub enforcement: Enforcement,
    /// The product name of its GPUs, as `NVIDIA H200`. If it is left out, that of the daemon's first GPU is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        pattern = "^[^\\s\\x00-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u2800\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb]([^\\x00-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u2800\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb]{0,94}[^\\s\\x00-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u2800\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb])?$",
        example = "NVIDIA H200"
    )]
    pub sku: Option<String>,
    /// Steps in their order, beginning with empty GPUs.
    #[schema(max_items = 512)]
    pub steps: Vec<LayoutStep>,
}

/// The mechanism that enforces a layout's partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// Static SM partitions of the daemon (`-S`, CUDA 13.1 and later): SMs are reserved, and each partition has an ID.
    #[default]
    Static,
    /// A thread percentage that gives as many SMs: works on older drivers, reserves nothing, and has no IDs.
    Percentage,
}

api_words!(Enforcement: Static "static", Percentage "percentage");

/// One step of a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LayoutStep {
    /// Makes a partition.
    Add(#[serde(serialize_with = "one_line")] AddStep),
    /// Removes a partition that an earlier step made.
    Remove(#[serde(serialize_with = "one_line")] RemoveStep),
}

/// Writes a step on one line of YAML; in JSON this makes no difference.
fn one_line<T: Serialize, S: serde::Serializer>(step: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serde_saphyr::FlowMap(step).serialize(serializer)
}

impl std::fmt::Display for LayoutStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Add(AddStep { gpu, partition, chunks, tenants }) => {
                write!(f, "add {partition} on GPU {gpu}: {}", counted(*chunks, "chunk"))?;
                let tenants: Vec<&str> = tenants.iter().map(TenantName::as_str).collect();
                if tenants.is_empty() { Ok(()) } else { write!(f, " for {}", tenants.join(", ")) }
            }
            Self::Remove(RemoveStep { partition }) => write!(f, "remove {partition}"),
        }
    }
}

/// A partition to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, from = "WrittenAddStep")]
pub struct AddStep {
    /// Role of the GPU that it is on.
    pub gpu: Role,
    /// Its name, used once in a layout.
    pub partition: PartitionName,
    /// Its chunks: 8 SMs each from Hopper on, 4 before (NVIDIA's documentation).
    #[schema(minimum = 1)]
    pub chunks: u32,
    /// Tenants that work in it; several may share one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<TenantName>,
}

/// A partition to be made as a document writes it, with words that have no meaning yet.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAddStep {
    gpu: Role,
    partition: PartitionName,
    chunks: u32,
    #[serde(default)]
    tenants: Vec<TenantName>,
    #[serde(default, rename = "remainder")]
    _remainder: Option<ReservedWord>,
    #[serde(default, rename = "max_chunks")]
    _max_chunks: Option<ReservedWord>,
    #[serde(default, rename = "shareable")]
    _shareable: Option<ReservedWord>,
}

impl From<WrittenAddStep> for AddStep {
    fn from(WrittenAddStep { gpu, partition, chunks, tenants, .. }: WrittenAddStep) -> Self {
        Self { gpu, partition, chunks, tenants }
    }
}

/// A partition to be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveStep {
    /// Its name.
    pub partition: PartitionName,
}

/// Name and version of a layout.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
pub struct VersionRef {
    /// The layout.
    pub name: LayoutName,
    /// Its version, counted from 1.
    pub version: u32,
}

impl std::fmt::Display for VersionRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} version {}", self.name, self.version)
    }
}

/// A layout that is invalid by itself: the place, as a JSON pointer into it, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Invalid {
    /// The place, as `/steps/2/add/partition`.
    pub pointer: String,
    /// The error and its correction.
    pub reason: InvalidValue,
}

impl Layout {
    /// Refuses a layout that is invalid whatever its GPUs are. Limits of a particular GPU are checked by the plan.
    pub fn check(&self) -> Result<(), Invalid> {
        if let Some(sku) = self.sku.as_deref().filter(|sku| !is_product_name(sku)) {
            let shown: String = sku.chars().take(MAX_SKU).collect();
            let reason = format!(
                "{shown:?} is not a product name: give it as the GPU has it, as NVIDIA H200 (at most {MAX_SKU} characters, no control \
                 characters, no blanks around it), or leave sku out"
            );
            return Err(invalid("/sku".into(), reason));
        }
        if self.steps.len() > MAX_STEPS {
            return Err(invalid(
                "/steps".into(),
                format!("{}: give at most {MAX_STEPS}", counted(self.steps.len(), "step")),
            ));
        }
        let mut made: BTreeMap<&PartitionName, &AddStep> = BTreeMap::new();
        let mut folded: BTreeMap<String, &PartitionName> = BTreeMap::new();
        let mut removed = BTreeSet::new();
        for (number, step) in self.steps.iter().enumerate() {
            match step {
                LayoutStep::Add(add) => {
                    Self::check_add(number, add)?;
                    if made.insert(&add.partition, add).is_some() {
                        return Err(invalid(
                            format!("/steps/{number}/add/partition"),
                            format!(
                                "partition {} is made twice: give each its own name, also after a removal",
                                add.partition
                            ),
                        ));
                    }
                    if let Some(other) = folded.insert(add.partition.folded(), &add.partition) {
                        return Err(invalid(
                            format!("/steps/{number}/add/partition"),
                            format!(
                                "partitions {other} and {} differ only in hyphens and underscores, which newer versions of MPS take \
                                 for the same name: choose another",
                                add.partition
                            ),
                        ));
                    }
                }
                LayoutStep::Remove(RemoveStep { partition }) => {
                    let pointer = format!("/steps/{number}/remove/partition");
                    if self.enforcement == Enforcement::Percentage {
                        let reason = "a percentage reserves nothing, so there is nothing to remove: leave the partition out";
                        return Err(invalid(pointer, reason.into()));
                    }
                    if !made.contains_key(partition) || !removed.insert(partition) {
                        let reason = format!(
                            "there is no partition {partition} at this step: remove one that an earlier step made"
                        );
                        return Err(invalid(pointer, reason));
                    }
                }
            }
        }
        let roles: BTreeSet<Role> = self.roles();
        if roles.len() > MAX_ROLES {
            return Err(invalid(
                "/steps".into(),
                format!("{}: give at most {MAX_ROLES}", counted(roles.len(), "GPU")),
            ));
        }
        self.check_tenants(&removed)
    }

    fn check_add(number: usize, add: &AddStep) -> Result<(), Invalid> {
        if add.chunks == 0 {
            return Err(invalid(format!("/steps/{number}/add/chunks"), "0 chunks: give at least 1".into()));
        }
        let twice =
            add.tenants.iter().enumerate().find(|(index, tenant)| add.tenants[..*index].contains(tenant));
        if let Some((index, tenant)) = twice {
            let pointer = format!("/steps/{number}/add/tenants/{index}");
            return Err(invalid(pointer, format!("tenant {tenant} is named twice: name it once")));
        }
        Ok(())
    }

    fn check_tenants(&self, removed: &BTreeSet<&PartitionName>) -> Result<(), Invalid> {
        let mut bound: BTreeMap<(&TenantName, Role), &AddStep> = BTreeMap::new();
        for (number, step) in self.steps.iter().enumerate() {
            let LayoutStep::Add(add) = step else { continue };
            for (index, tenant) in add.tenants.iter().enumerate() {
                let pointer = format!("/steps/{number}/add/tenants/{index}");
                if removed.contains(&add.partition) {
                    let reason = format!(
                        "partition {} is removed by a later step: bind {tenant} to one that stays",
                        add.partition
                    );
                    return Err(invalid(pointer, reason));
                }
                if let Some(other) = bound.insert((tenant, add.gpu), add) {
                    let reason = format!(
                        "tenant {tenant} is in partitions {} and {} of GPU {}: a client has one partition a GPU, so name the \
                         tenant in one of them",
                        other.partition, add.partition, add.gpu
                    );
                    return Err(invalid(pointer, reason));
                }
            }
        }
        if self.enforcement == Enforcement::Percentage {
            return self.check_one_percentage();
        }
        Ok(())
    }

    /// Checks that each tenant has partitions of one size, since a process has one percentage for all its GPUs.
    fn check_one_percentage(&self) -> Result<(), Invalid> {
        let mut chunks: BTreeMap<&TenantName, &AddStep> = BTreeMap::new();
        for (number, step) in self.steps.iter().enumerate() {
            let LayoutStep::Add(add) = step else { continue };
            for (index, tenant) in add.tenants.iter().enumerate() {
                let first = chunks.entry(tenant).or_insert(add);
                if first.chunks != add.chunks {
                    let reason = format!(
                        "tenant {tenant} has {} in {} and {} in {}: a process has one thread percentage for all its \
                         GPUs, so give it partitions of one size",
                        counted(first.chunks, "chunk"),
                        first.partition,
                        add.chunks,
                        add.partition
                    );
                    return Err(invalid(format!("/steps/{number}/add/tenants/{index}"), reason));
                }
            }
        }
        Ok(())
    }

    /// Returns the roles that the layout has steps for.
    pub fn roles(&self) -> BTreeSet<Role> {
        self.adds().map(|add| add.gpu).collect()
    }

    /// Returns the partitions that the layout makes, including those that it removes again.
    pub fn adds(&self) -> impl Iterator<Item = &AddStep> {
        self.steps.iter().filter_map(|step| match step {
            LayoutStep::Add(add) => Some(add),
            LayoutStep::Remove(_) => None,
        })
    }

    /// Returns the partitions that are there at its end, in the order in which they are made.
    pub fn partitions(&self) -> impl Iterator<Item = &AddStep> {
        let removed: BTreeSet<&PartitionName> = self
            .steps
            .iter()
            .filter_map(|step| match step {
                LayoutStep::Remove(remove) => Some(&remove.partition),
                LayoutStep::Add(_) => None,
            })
            .collect();
        self.adds().filter(move |add| !removed.contains(&add.partition))
    }

    /// Returns its steps on the GPUs of a host. Fails if a role has no GPU.
    pub fn resolve(&self, map: &GpuMap) -> Result<Vec<ResolvedStep>, InvalidValue> {
        let mut gpu_of: BTreeMap<&PartitionName, (&GpuUuid, u32)> = BTreeMap::new();
        let mut resolved = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            match step {
                LayoutStep::Add(add) => {
                    let gpu = map.get(&add.gpu).ok_or_else(|| unmapped(add.gpu))?;
                    gpu_of.insert(&add.partition, (gpu, add.chunks));
                    let (gpu, partition) = (gpu.clone(), add.partition.clone());
                    resolved.push(ResolvedStep {
                        gpu,
                        partition,
                        chunks: add.chunks,
                        change: PartitionChange::Add,
                    });
                }
                LayoutStep::Remove(RemoveStep { partition }) => {
                    let added = gpu_of.get(partition);
                    let (gpu, chunks) =
                        added.ok_or_else(|| InvalidValue(format!("there is no partition {partition}")))?;
                    let (gpu, chunks) = ((*gpu).clone(), *chunks);
                    resolved.push(ResolvedStep {
                        gpu,
                        partition: partition.clone(),
                        chunks,
                        change: PartitionChange::Remove,
                    });
                }
            }
        }
        Ok(resolved)
    }
}

/// A step on a GPU of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedStep {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The partition.
    pub partition: PartitionName,
    /// Its chunks.
    pub chunks: u32,
    /// The change of the partition.
    pub change: PartitionChange,
}

/// Returns the steps whose partitions are there after all steps, each with its number.
pub fn final_steps(steps: &[ResolvedStep]) -> impl Iterator<Item = (usize, &ResolvedStep)> {
    steps.iter().enumerate().filter(|(number, step)| {
        let removes = |later: &ResolvedStep| {
            later.change == PartitionChange::Remove && later.partition == step.partition
        };
        !steps[*number..].iter().any(removes)
    })
}

/// A change of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartitionChange {
    /// The partition is made.
    Add,
    /// The partition is removed.
    Remove,
}

/// Assigns a GPU to each role. Roles that `given` leaves out are assigned by index, and those that it has are checked.
///
/// `offered` are the daemon's GPUs and `host` all GPUs of the host, in PCI order.
pub fn map_roles(
    layout: &Layout,
    given: &GpuMap,
    offered: &[GpuUuid],
    host: &[Gpu],
) -> Result<GpuMap, InvalidValue> {
    let sku = match &layout.sku {
        Some(sku) => sku.as_str(),
        None => {
            host.iter().find(|gpu| offered.first() == Some(&gpu.uuid)).map_or("", |gpu| gpu.name.as_str())
        }
    };
    let roles = layout.roles();
    if let Some(stray) = given.keys().find(|role| !roles.contains(role)) {
        return Err(InvalidValue(format!(
            "the layout has no steps for GPU {stray}: leave it out of the map"
        )));
    }
    let alike: Vec<&Gpu> = host.iter().filter(|gpu| gpu.name == sku).collect();
    let mut map = GpuMap::new();
    for role in roles {
        let by_index = || alike.get(usize::try_from(role).unwrap_or(usize::MAX)).map(|gpu| gpu.uuid.clone());
        let Some(uuid) = given.get(&role).cloned().or_else(by_index) else {
            return Err(InvalidValue(format!(
                "GPU {role} of the layout is this host's {sku} number {role} counted from 0, and it has {}: say which GPU is \
                 meant in gpu_map (--gpu {role}=GPU)",
                alike.len()
            )));
        };
        if !offered.contains(&uuid) {
            let offered: Vec<&str> = offered.iter().map(GpuUuid::as_str).collect();
            return Err(InvalidValue(format!(
                "GPU {role} of the layout would be {uuid}, which the daemon does not offer: say in gpu_map (--gpu {role}=GPU) \
                 which of its GPUs is meant ({})",
                offered.join(", ")
            )));
        }
        let gpu = host.iter().find(|gpu| gpu.uuid == uuid);
        if let Some(gpu) = gpu.filter(|gpu| gpu.name != sku) {
            return Err(InvalidValue(format!(
                "{} is of the model {}, and the layout is for {sku}",
                full_name(&uuid, host),
                gpu.name
            )));
        }
        if let Some(gpu) = gpu.filter(|gpu| gpu.mig_enabled) {
            return Err(InvalidValue(format!(
                "GPU {} ({uuid}) is in MIG mode, where MPS serves its instances: {}, or switch MIG mode off (nvidia-smi -i {} -mig 0)",
                gpu.index,
                instances_to_choose(gpu, host),
                gpu.index
            )));
        }
        if let Some((other, _)) = map.iter().find(|(_, taken)| **taken == uuid) {
            return Err(InvalidValue(format!(
                "GPUs {other} and {role} of the layout would both be {uuid}: map each to its own"
            )));
        }
        map.insert(role, uuid);
    }
    Ok(map)
}

/// Refuses a note that is too long, or that has control or invisible characters.
pub fn check_note(note: Option<&str>) -> Result<(), InvalidValue> {
    if note.is_none_or(|note| is_shown(&note.replace('\n', " "), MAX_NOTE)) {
        return Ok(());
    }
    Err(InvalidValue(format!(
        "the note has control characters, invisible ones, or more than {MAX_NOTE} characters: give a short text"
    )))
}

fn is_product_name(text: &str) -> bool {
    !text.is_empty() && text.trim() == text && is_shown(text, MAX_SKU)
}

fn unmapped(role: Role) -> InvalidValue {
    InvalidValue(format!("no GPU plays role {role}: name one in gpu_map"))
}

fn invalid(pointer: String, reason: String) -> Invalid {
    Invalid { pointer, reason: InvalidValue(reason) }
}

/// One version of a layout, which is never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Version {
    /// The layout.
    pub name: LayoutName,
    /// Its version, counted from 1.
    pub version: u32,
    /// The content.
    pub layout: Layout,
    /// Author of the version, as in the audit log.
    pub author: String,
    /// Note by the author.
    pub note: Option<String>,
    /// Time at which the version was written.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: i64,
}

impl Version {
    /// Returns the layout's name and version.
    pub fn version_ref(&self) -> VersionRef {
        VersionRef { name: self.name.clone(), version: self.version }
    }
}
