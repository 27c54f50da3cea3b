//! The outlook on applying a layout to a daemon: the plan with its consequences, for programs and for people.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::blocked::Blocked;
use super::moves::{TenantMove, TenantPartition, TenantPrediction};
use super::plan::{Action, GpuTotals, Plan, PlannedStep, Reason};
use super::summary::summary;
use super::{AddStep, Enforcement, GpuMap, Layout, VersionRef};
use crate::count::counted;
use crate::tenant::Tenant;
use crate::{DaemonName, GpuUuid, LayoutName, PartitionName, TenantName};

/// The result of planning a layout on a daemon, from a poll that was taken for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LayoutPlan {
    /// The layout.
    pub layout: LayoutName,
    /// Its version.
    pub version: u32,
    /// The daemon.
    pub daemon: DaemonName,
    /// The mechanism that enforces its partitions.
    pub enforcement: Enforcement,
    /// The GPU of each role.
    #[schema(schema_with = crate::layout::roles_by_uuid)]
    pub gpu_map: GpuMap,
    /// The changes in one sentence: which partitions stay, grow, come and go, and how many clients have to stop first.
    pub summary: String,
    /// The steps, in the order in which they are done.
    pub steps: Vec<LayoutPlanStep>,
    /// Chunks and SMs of each GPU, before and after the plan.
    pub gpus: Vec<GpuTotals>,
    /// Blockers of the plan.
    pub blocked: Vec<LayoutBlocker>,
    /// True if the plan is only carried out with `recreate`.
    pub needs_recreate: bool,
    /// True if nothing has to be done.
    pub in_force: bool,
    /// True if its partitions are thread percentages, which reserve no SMs: clients of other partitions may run on them.
    pub reserves_nothing: bool,
    /// Predictions for each tenant that the layout names or the daemon serves.
    pub tenants: Vec<TenantPrediction>,
    /// The tenants that it moves to other partitions, which may take no command.
    #[serde(default)]
    pub moves: Vec<TenantMove>,
    /// Time of the poll of the daemon.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub observed_at: i64,
    /// SHA-256 of everything that would be done, in hex. Plans that do the same have the same digest, whichever clients are connected. An
    /// apply that gives a digest is refused if another plan would be carried out.
    pub digest: String,
}

/// A step of a plan and the command that does it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LayoutPlanStep {
    /// The step.
    #[serde(flatten)]
    pub step: PlannedStep,
    /// The command, as the control daemon takes it; `null` where nothing is sent, and for the removal of a partition whose ID
    /// an earlier step gives.
    pub command: Option<String>,
}

/// A blocker, with its message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LayoutBlocker {
    /// The blocker.
    #[serde(flatten)]
    pub what: Blocked,
    /// Description of the blocker, with the remedy.
    pub message: String,
}

/// Allowances of a request, which then do not block it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allowed {
    /// Partitions that stay may be recreated.
    pub recreate: bool,
    /// The clients of partitions that are removed are waited for.
    pub drain: bool,
}

/// Input of an outlook.
#[derive(Debug, Clone, Copy)]
pub struct OutlookInput<'a> {
    /// The layout's name and version.
    pub version: &'a VersionRef,
    /// The content of that version.
    pub layout: &'a Layout,
    /// The daemon.
    pub daemon: &'a DaemonName,
    /// GPUs of the daemon.
    pub offered: &'a [GpuUuid],
    /// The GPU of each role.
    pub gpu_map: &'a GpuMap,
    /// SMs of a chunk of each GPU.
    pub chunk_sms: &'a BTreeMap<GpuUuid, u32>,
    /// All existing tenants that the layout names, and all of the daemon.
    pub tenants: &'a [Tenant],
    /// Time of the poll of the daemon.
    pub observed_at: i64,
}

/// Returns the digest of everything that is done: the daemon, the GPU of each role, and each step. Clients come and go, so they are left
/// out: an apply checks blocking clients by itself.
fn digest(prospect: &OutlookInput<'_>, steps: &[LayoutPlanStep]) -> String {
    let OutlookInput { version, daemon, gpu_map, .. } = prospect;
    let step = |LayoutPlanStep { step, command }: &LayoutPlanStep| {
        let place = (step.gpu.clone(), step.partition.clone(), step.chunks, step.percentage);
        (step.action, place, step.id.clone(), step.expected.clone(), command.clone())
    };
    let steps: Vec<_> = steps.iter().map(step).collect();
    let done = (&version.name, version.version, daemon, gpu_map, steps);
    let text = serde_json::to_vec(&done).expect("names, numbers and IDs, and maps by name");
    hex::encode(Sha256::digest(text))
}

impl LayoutPlan {
    /// Creates the outlook of a plan.
    pub fn of(plan: Plan, prospect: &OutlookInput<'_>) -> Self {
        let tenants = tenants(&plan, prospect);
        let in_force = plan.is_empty() && plan.blocked.is_empty();
        let summary = summary(&plan);
        let steps: Vec<LayoutPlanStep> =
            plan.steps.into_iter().map(|step| LayoutPlanStep { command: step.command(), step }).collect();
        let needs_recreate = plan.blocked.iter().any(|blocked| matches!(blocked, Blocked::MadeAgain { .. }));
        Self {
            layout: prospect.version.name.clone(),
            version: prospect.version.version,
            daemon: prospect.daemon.clone(),
            enforcement: prospect.layout.enforcement,
            gpu_map: prospect.gpu_map.clone(),
            needs_recreate,
            summary,
            reserves_nothing: plan.reserves_nothing,
            in_force,
            tenants,
            moves: Vec::new(),
            observed_at: prospect.observed_at,
            digest: digest(prospect, &steps),
            steps,
            gpus: plan.gpus,
            blocked: plan
                .blocked
                .into_iter()
                .map(|blocked| LayoutBlocker { message: blocked.to_string(), what: blocked })
                .collect(),
        }
    }

    /// Returns the plan with these moves of tenants. They change its digest, and a plan with moves is not in force.
    #[must_use]
    pub fn moving(mut self, moves: Vec<TenantMove>) -> Self {
        if !moves.is_empty() {
            if self.in_force {
                self.summary = moves.iter().map(TenantMove::in_words).collect::<Vec<_>>().join("; ");
            }
            self.in_force = false;
            // The holders of a partition come and go, and are left out of the digest.
            let bindings: Vec<_> =
                moves.iter().map(|change| (&change.tenant, &change.gpu, &change.from, &change.to)).collect();
            let text = serde_json::to_vec(&(&self.digest, bindings)).expect("names and a digest");
            self.digest = hex::encode(Sha256::digest(text));
        }
        self.moves = moves;
        self
    }

    /// Returns the blockers that remain.
    pub fn refusals(&self, allowed: Allowed) -> impl Iterator<Item = &LayoutBlocker> {
        let remains = move |blocked: &&LayoutBlocker| match blocked.what {
            Blocked::MadeAgain { .. } => !allowed.recreate,
            Blocked::InUse { .. } => !allowed.drain,
            _ => true,
        };
        self.blocked.iter().filter(remains)
    }

    /// Describes the partitions that are there on the layout's GPUs; `None` if there are none.
    pub fn not_empty(&self) -> Option<String> {
        let existing = self
            .steps
            .iter()
            .map(|step| &step.step)
            .filter(|step| step.id.is_some() || step.enforcement == Enforcement::Percentage)
            .filter(|step| step.action == Action::Keep || step.step.is_none());
        let existing: Vec<String> = existing
            .map(|step| {
                let id = step.id.as_ref().map(|id| format!("/{id}")).unwrap_or_default();
                let name = step.partition.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
                format!("{}{id}{name}", step.gpu)
            })
            .collect();
        (!existing.is_empty()).then(|| {
            format!(
                "a replay begins with empty GPUs, and there are partitions: {}. Apply a layout without steps first, or remove \
                 them",
                existing.join(", ")
            )
        })
    }

    /// Formats the plan as text, like a diff: `-` is removed, `+` is made, `~` moves, `!` is a blocker.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "--- daemon {} as it is", self.daemon)?;
        writeln!(text, "+++ layout {} version {}", self.layout, self.version)?;
        writeln!(text, "# {}", self.summary)?;
        if self.enforcement == Enforcement::Percentage {
            writeln!(
                text,
                "# thread percentages: nothing is reserved, and partitions may run on the same SMs"
            )?;
        }
        for gpu in &self.gpus {
            let sizes = match gpu.chunk_sms {
                0 => String::new(),
                each => format!(" (of {each} SMs each); {} SMs are in no chunk", gpu.left_over_sms),
            };
            writeln!(
                text,
                "@@ {} @@ chunks used {} -> {}, free {} -> {}{sizes}",
                gpu.gpu, gpu.before.used, gpu.after.used, gpu.before.free, gpu.after.free,
            )?;
            for step in self.steps.iter().filter(|step| step.step.gpu == gpu.gpu) {
                step.write(text)?;
            }
        }
        for blocked in &self.blocked {
            writeln!(text, "! {}", blocked.message)?;
        }
        for tenant in &self.tenants {
            let names: Vec<String> = tenant.partitions.iter().map(ToString::to_string).collect();
            let names = if names.is_empty() { "no partition".to_owned() } else { names.join(", ") };
            write!(text, "# tenant {}: {names}", tenant.tenant)?;
            match &tenant.remark {
                Some(remark) => writeln!(text, " ({remark})")?,
                None => writeln!(text)?,
            }
        }
        for change in &self.moves {
            writeln!(text, "~ {change}")?;
        }
        Ok(())
    }
}

impl LayoutPlanStep {
    fn write(&self, text: &mut String) -> std::fmt::Result {
        let step = &self.step;
        let sign = match step.action {
            Action::Keep => ' ',
            Action::Add => '+',
            Action::Remove => '-',
        };
        let name = step.partition.as_ref().map_or("(not in layout)", PartitionName::as_str);
        // Where the driver does not report the compute capability, the SMs of a chunk are not known.
        let sms = if step.sms > 0 { format!(", {}", counted(step.sms, "SM")) } else { String::new() };
        write!(text, "{sign} {name}: {}{sms}", counted(step.chunks, "chunk"))?;
        if let Some(id) = step.id.as_ref().or(step.expected.as_ref()) {
            write!(text, ", {id}")?;
        }
        if let Some(percentage) = step.percentage {
            write!(text, ", {percentage} %")?;
        }
        let why = match step.reason {
            Reason::Layout => None,
            Reason::NotInLayout => Some("not in the layout"),
            Reason::MadeAgain => Some("made again in the layout's order"),
            Reason::CutShort => Some("made by steps that were cut short"),
            Reason::Unknown => Some("made by another program"),
        };
        if let Some(why) = why {
            write!(text, " ({why})")?;
        }
        if !step.clients.is_empty() && step.action == Action::Remove {
            let clients: Vec<String> = step.clients.iter().map(ToString::to_string).collect();
            write!(text, " held by {}", clients.join(", "))?;
        }
        if step.action != Action::Keep {
            write!(text, "  [used {} -> {}]", step.before.used, step.after.used)?;
        }
        writeln!(text)
    }
}

fn tenants(plan: &Plan, prospect: &OutlookInput<'_>) -> Vec<TenantPrediction> {
    let named = prospect.layout.partitions().flat_map(|add| &add.tenants);
    let served = prospect.tenants.iter().filter(|tenant| tenant.spec.daemon == *prospect.daemon);
    let all: BTreeSet<&TenantName> = named.chain(served.map(|tenant| &tenant.name)).collect();
    all.into_iter().map(|name| tenant(name, plan, prospect)).collect()
}

fn tenant(name: &TenantName, plan: &Plan, prospect: &OutlookInput<'_>) -> TenantPrediction {
    let stored = prospect.tenants.iter().find(|tenant| tenant.name == *name);
    let mine = |add: &&AddStep| add.tenants.contains(name);
    let partitions: Vec<TenantPartition> = prospect
        .layout
        .partitions()
        .filter(mine)
        .filter_map(|add| {
            let gpu = prospect.gpu_map.get(&add.gpu)?;
            let planned = plan.steps.iter().find(|step| {
                step.action != Action::Remove
                    && (&step.gpu, step.partition.as_ref()) == (gpu, Some(&add.partition))
            });
            let chunk_sms = prospect.chunk_sms.get(gpu).copied().unwrap_or(0);
            Some(TenantPartition {
                gpu: gpu.clone(),
                partition: add.partition.clone(),
                chunks: add.chunks,
                sms: planned.map_or(chunk_sms.saturating_mul(add.chunks), |step| step.sms),
                id: planned.and_then(|step| step.id.clone().or_else(|| step.expected.clone())),
            })
        })
        .collect();
    let remark = match stored {
        None => Some("there is no such tenant yet".to_owned()),
        Some(tenant) if tenant.spec.daemon != *prospect.daemon => {
            Some(format!("it is a tenant of daemon {}", tenant.spec.daemon))
        }
        // A tenant without a partition in a layout of percentages has the share that its spec states.
        Some(_) if prospect.layout.enforcement == Enforcement::Percentage && partitions.is_empty() => None,
        Some(tenant) => {
            let sees = prospect.offered.iter().filter(|gpu| tenant.spec.sees(gpu));
            let without: Vec<&str> = sees
                .filter(|gpu| partitions.iter().all(|partition| partition.gpu != **gpu))
                .map(GpuUuid::as_str)
                .collect();
            (!without.is_empty()).then(|| {
                format!("not admitted: it has no partition of {}, which it sees", without.join(", "))
            })
        }
    };
    TenantPrediction { tenant: name.clone(), known: stored.is_some(), partitions, remark }
}
