//! Picture of a plan: each GPU before and after it, with the clients in their partitions, and what becomes of each tenant.

use std::collections::BTreeMap;

use crate::domain::client::ClientId;
use crate::domain::layout::moves::{TenantMove, TenantPrediction};
use crate::domain::layout::outlook::LayoutPlan;
use crate::domain::layout::plan::{Action, GpuTotals, PlannedStep};
use crate::domain::layout::status::PartitionStatus;
use crate::domain::{GpuUuid, PartitionName, TenantName};
use crate::http::extract::Call;
use crate::http::pages::strip::{SmStrip, StripPart};
use crate::service::ServiceError;
use crate::service::daemons::DaemonView;
use crate::service::tenants::TenantColours;
use crate::service::tenants::clients::ClientView;

/// Picture of a plan.
#[derive(Default)]
pub(super) struct PlanPicture {
    pub(super) gpus: Vec<GpuChange>,
    pub(super) tenants: Vec<TenantChange>,
}

impl PlanPicture {
    pub(super) async fn of(
        call: &Call,
        plan: &LayoutPlan,
        daemon: &DaemonView,
        clients: &[ClientView],
    ) -> Result<Self, ServiceError> {
        let layout = daemon.status.as_ref().and_then(|status| status.layout.as_ref());
        let present = layout.map(|layout| layout.partitions.as_slice()).unwrap_or_default();
        let colours = call.app.service.tenant_colours(&call.ctx).await?;
        let owners = clients.iter().filter_map(|client| Some((client.id, client.tenant.clone()?))).collect();
        let gpus = plan.gpus.iter().map(|totals| gpu_change(plan, totals, present, &colours)).collect();
        Ok(Self { gpus, tenants: tenant_changes(plan, present, &owners) })
    }

    /// Returns true if some cell is made or removed.
    pub(super) fn has_changes(&self) -> bool {
        self.gpus.iter().flat_map(|gpu| [&gpu.before, &gpu.after]).any(SmStrip::is_changed)
    }
}

/// A GPU before and after a plan.
pub(super) struct GpuChange {
    pub(super) gpu: GpuUuid,
    pub(super) before: SmStrip,
    pub(super) after: SmStrip,
}

/// SMs of a tenant on a GPU before and after a plan.
pub(super) struct TenantChange {
    pub(super) tenant: TenantName,
    pub(super) gpu: GpuUuid,
    pub(super) known: bool,
    /// Its partitions before and after.
    pub(super) from: Option<PartitionName>,
    pub(super) to: Option<PartitionName>,
    pub(super) before: Option<u32>,
    pub(super) after: Option<u32>,
    /// Clients in a partition that stays, and in one that goes.
    pub(super) stay: usize,
    pub(super) stop: usize,
    /// Reasons for which it would start no process.
    pub(super) remark: String,
}

impl TenantChange {
    /// Its partitions before and after, in words.
    pub(super) fn partitions(&self) -> String {
        let name = |name: &Option<PartitionName>| {
            name.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)
        };
        if self.from == self.to {
            name(&self.to)
        } else {
            format!("{} → {}", name(&self.from), name(&self.to))
        }
    }

    /// Its clients, and what becomes of them.
    pub(super) fn clients(&self) -> String {
        match (self.stay, self.stop) {
            (0, 0) => "–".to_owned(),
            (stay, 0) => format!("{stay} keep running"),
            (0, stop) => format!("{stop} must stop"),
            (stay, stop) => format!("{stop} must stop, {stay} keep running"),
        }
    }
}

fn gpu_change(
    plan: &LayoutPlan,
    totals: &GpuTotals,
    present: &[PartitionStatus],
    colours: &TenantColours,
) -> GpuChange {
    let steps: Vec<&PlannedStep> =
        plan.steps.iter().map(|step| &step.step).filter(|step| step.gpu == totals.gpu).collect();
    let bound_now = |name: &Option<PartitionName>| {
        let of = present.iter().find(|one| one.gpu == totals.gpu && Some(&one.partition) == name.as_ref());
        of.map(|partition| partition.tenants.clone()).unwrap_or_default()
    };
    let bound_then = |name: &Option<PartitionName>| {
        let is_bound = |tenant: &&TenantPrediction| {
            let mut partitions = tenant.partitions.iter();
            partitions.any(|one| one.gpu == totals.gpu && Some(&one.partition) == name.as_ref())
        };
        plan.tenants.iter().filter(is_bound).map(|tenant| tenant.tenant.clone()).collect()
    };
    let part = |step: &PlannedStep, tenants: Vec<TenantName>, is_changed: bool, clients: usize| StripPart {
        name: step.partition.as_ref().map_or_else(|| "not in layout".to_owned(), ToString::to_string),
        chunks: step.chunks,
        sms: step.sms,
        tenants,
        clients,
        is_changed,
    };
    let (mut before, mut going, mut after) = (Vec::new(), Vec::new(), Vec::<(&PlannedStep, bool)>::new());
    for step in &steps {
        match step.action {
            Action::Keep => {
                after.push((step, false));
                let is_removed = removes(&steps, step);
                before.push(part(step, bound_now(&step.partition), is_removed, step.clients.len()));
            }
            Action::Add => after.push((step, true)),
            Action::Remove => match after.iter().position(|(made, _)| made.partition == step.partition) {
                Some(made) if step.partition.is_some() => drop(after.remove(made)),
                _ => going.push(part(step, bound_now(&step.partition), true, step.clients.len())),
            },
        }
    }
    // The newest is removed first.
    before.extend(going.into_iter().rev());
    let after = after.into_iter().map(|(step, is_new)| {
        part(step, bound_then(&step.partition), is_new, if is_new { 0 } else { step.clients.len() })
    });
    let strip =
        |parts: Vec<StripPart>, free| SmStrip::of_parts(parts, totals.sms, totals.chunk_sms, free, colours);
    GpuChange {
        gpu: totals.gpu.clone(),
        before: strip(before, totals.before.free),
        after: strip(after.collect(), totals.after.free),
    }
}

/// Returns true if a later step removes a partition that is kept at first.
fn removes(steps: &[&PlannedStep], kept: &PlannedStep) -> bool {
    steps.iter().any(|step| step.action == Action::Remove && step.partition == kept.partition)
}

/// Returns what becomes of each tenant on each GPU.
fn tenant_changes(
    plan: &LayoutPlan,
    present: &[PartitionStatus],
    clients: &BTreeMap<ClientId, TenantName>,
) -> Vec<TenantChange> {
    let mut changes = Vec::new();
    let of = |plan: &LayoutPlan, tenant: &TenantName, gpu: &GpuUuid, goes: bool| {
        let steps = plan.steps.iter().map(|step| &step.step).filter(|step| step.gpu == *gpu);
        let steps = steps.filter(|step| (step.action == Action::Remove) == goes);
        steps.flat_map(|step| &step.clients).filter(|client| clients.get(client) == Some(tenant)).count()
    };
    for tenant in &plan.tenants {
        for gpu in plan.gpus.iter().map(|totals| &totals.gpu) {
            let held = present.iter().find(|one| one.gpu == *gpu && one.tenants.contains(&tenant.tenant));
            let given = tenant.partitions.iter().find(|one| one.gpu == *gpu);
            if held.is_none() && given.is_none() {
                continue;
            }
            changes.push(TenantChange {
                tenant: tenant.tenant.clone(),
                gpu: gpu.clone(),
                known: tenant.known,
                from: held.map(|held| held.partition.clone()),
                to: given.map(|given| given.partition.clone()),
                before: held.and_then(|held| held.sms),
                after: given.map(|given| given.sms),
                stay: of(plan, &tenant.tenant, gpu, false),
                stop: of(plan, &tenant.tenant, gpu, true),
                remark: remark(plan, tenant, gpu),
            });
        }
    }
    changes
}

/// Returns the reasons for which a tenant would start no process: its own, and who occupies its new partition.
fn remark(plan: &LayoutPlan, tenant: &TenantPrediction, gpu: &GpuUuid) -> String {
    let is_this = |one: &&TenantMove| one.tenant == tenant.tenant && one.gpu == *gpu;
    let holders = plan.moves.iter().filter(is_this).flat_map(|one| &one.held_by);
    let holders: Vec<String> = holders.map(ToString::to_string).collect();
    let without = tenant.partitions.iter().all(|partition| partition.gpu != *gpu);
    let own = match &tenant.remark {
        Some(_) if without && tenant.known => Some("starts no process without a partition".to_owned()),
        own => own.clone(),
    };
    let held = (!holders.is_empty()).then(|| format!("occupied by {}", holders.join(", ")));
    own.into_iter().chain(held).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::layout::plan::Chunks;

    const GPU: &str = "GPU-514466a0-8e68-f857-9f73-e438010e48cb";

    fn plan(steps: &[(&str, &str, u32)]) -> LayoutPlan {
        let chunks = serde_json::json!({"free": 3, "used": 12});
        let steps: Vec<serde_json::Value> = steps
            .iter()
            .map(|(action, partition, count)| {
                serde_json::json!({
                    "action": action, "reason": "layout", "step": 0, "gpu": GPU, "partition": partition, "chunks": count,
                    "sms": count * 8, "id": null, "expected": null, "before": chunks, "after": chunks,
                    "clients": if *action == "add" { vec![] } else { vec!["7-1"] }, "command": null,
                })
            })
            .collect();
        serde_json::from_value(serde_json::json!({
            "layout": "prod", "version": 2, "daemon": "gpu1", "enforcement": "static", "gpu_map": {"0": GPU}, "summary": "",
            "steps": steps, "gpus": [], "blocked": [], "needs_recreate": false, "in_force": false, "reserves_nothing": false,
            "tenants": [{"tenant": "web", "known": true, "remark": null, "partitions": [
                {"gpu": GPU, "partition": "web", "chunks": 8, "sms": 64, "id": null}]}],
            "observed_at": "2026-11-25T05:03:49.123Z", "digest": "",
        }))
        .expect("a plan")
    }

    fn totals() -> GpuTotals {
        let gpu = GpuUuid::parse(GPU).expect("a UUID");
        let before = Chunks { free: 3, used: 12 };
        let after = Chunks { free: 2, used: 13 };
        GpuTotals { gpu, chunk_sms: 8, sms: 132, before, after, left_over_sms: 12 }
    }

    fn seen(strip: &SmStrip) -> Vec<(String, u32, usize, bool)> {
        strip.cells.iter().map(|cell| (cell.name.clone(), cell.sms, cell.clients, cell.is_changed)).collect()
    }

    #[test]
    fn what_comes_and_goes_is_marked() {
        let steps = [
            ("keep", "batch", 5),
            ("remove", "old", 1),
            ("remove", "web", 6),
            ("add", "gap", 1),
            ("add", "web", 8),
            ("remove", "gap", 1),
        ];
        let change = gpu_change(&plan(&steps), &totals(), &[], &TenantColours::default());
        let cell = |name: &str, sms, clients, is_changed| (name.to_owned(), sms, clients, is_changed);
        assert_eq!(
            seen(&change.before),
            [
                cell("batch", 40, 1, false),
                cell("web", 48, 1, true),
                cell("old", 8, 1, true),
                cell("free", 24, 0, false),
                cell("unused remainder", 12, 0, false)
            ]
        );
        assert_eq!(
            seen(&change.after),
            [
                cell("batch", 40, 1, false),
                cell("web", 64, 0, true),
                cell("free", 16, 0, false),
                cell("unused remainder", 12, 0, false)
            ]
        );
    }
}
