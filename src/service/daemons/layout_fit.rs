//! The layout in a daemon's spec.
//!
//! Applying a layout is what changes partitions: it plans, compares and rolls back. So a spec may name another layout only if
//! there are no partitions to change: for a new daemon, or one without a control process.

use crate::domain::daemon::{Daemon, DaemonSpec, Mode};
use crate::domain::gpu::Gpu;
use crate::domain::layout::active::ActiveLayout;
use crate::domain::layout::blocked::Blocked;
use crate::domain::layout::percentage::own_share::own_shares;
use crate::domain::layout::percentage::plan::plan;
use crate::domain::layout::percentage::{PlannedShare, shares};
use crate::domain::layout::{Enforcement, Layout, map_roles};
use crate::domain::tenant::{Tenant, TenantSpec};
use crate::domain::{DaemonName, TenantName};
use crate::service::change::Change;
use crate::service::error::{conflict, field};
use crate::service::{FieldError, Result, ServiceError};
use crate::store;

/// A daemon's spec that is to be written.
pub(in crate::service) struct DesiredDaemon<'a> {
    pub(in crate::service) name: &'a DaemonName,
    pub(in crate::service) spec: &'a DaemonSpec,
    /// True if the daemon has a control process.
    pub(in crate::service) runs: bool,
    /// True if the spec comes from a host file, where a layout stands under `bindings`.
    pub(in crate::service) in_host_file: bool,
}

/// Refuses a layout that the daemon cannot hold, or that must be applied instead; returns it with the GPU of each role.
pub(in crate::service) async fn fit_layout(
    change: &mut Change<'_>,
    current: Option<&Daemon>,
    desired: &DesiredDaemon<'_>,
) -> Result<Option<ActiveLayout>> {
    let (db, gpus) = (&mut *change.db, &change.gpus);
    let DesiredDaemon { name, spec, runs, in_host_file } = *desired;
    let before = current.and_then(|daemon| daemon.spec.layout.as_ref());
    let other_mode = current.is_some_and(|daemon| daemon.spec.mode != spec.mode);
    let stays = |before: &&ActiveLayout| {
        spec.layout.as_ref().is_some_and(|layout| layout.version_ref() == before.version_ref())
    };
    if other_mode && let Some(kept) = before.filter(stays) {
        refuse_mode_change(&mut *db, desired, kept).await?;
    }
    let resolved = resolve(&mut *db, name, spec, gpus).await?;
    // A changed drift policy changes no partition.
    let whole = |layout: &ActiveLayout| (layout.version_ref(), layout.gpu_map.clone());
    let other = resolved.as_ref().map(|(layout, _)| whole(layout)) != before.map(whole);
    let other_gpus = current.is_some_and(|daemon| daemon.spec.gpus != spec.gpus);
    let divides = |spec: &DaemonSpec| spec.provisioning.is_active();
    let begins_to_divide = divides(spec) && !current.is_some_and(|daemon| divides(&daemon.spec));
    if (other || other_mode || other_gpus || begins_to_divide)
        && let Some(operation) = store::operations::changing_layout(&mut *db, name).await?
    {
        return Err(conflict!(
            "operation {operation} changes the layout of daemon {name}: wait for it, or cancel it, before you change layout, mode, gpus \
             or provisioning"
        ));
    }
    if other {
        // Percentages reserve nothing, so nothing would be taken from running clients.
        let leaves = spec.layout.is_none() && (other_mode || is_percentage(&mut *db, before).await?);
        if runs && !leaves {
            if let Some(before) = before.filter(|_| in_host_file) {
                return Err(conflict!(
                    "daemon {name} keeps layout {} while it runs: to remove the binding, stop the daemon first (`mps-manager daemon \
                     stop {name}`), or keep `bindings.{name}` in the file",
                    before.version_ref()
                ));
            }
            return Err(conflict!(
                "daemon {name} is running, so its layout must be changed by applying another (`mps-manager layout apply NAME --daemon {name}`): leave \
                 layout as it is ({}), or stop the daemon first",
                before.map_or_else(|| "none".to_owned(), |layout| layout.version_ref().to_string())
            ));
        }
    }
    let Some((active, layout)) = resolved else { return Ok(None) };
    refuse_strategy(name, spec)?;
    if spec.is_observed() && before.is_none() {
        return Err(conflict!(
            "daemon {name} is only observed, so no layout is applied to it: leave layout out, or set its management to managed"
        ));
    }
    if layout.enforcement == Enforcement::Percentage {
        let shares = shares(&layout, &active.gpu_map, gpus)
            .map_err(|error| ServiceError::field("/layout/version", error.to_string()))?;
        fit_percentages(db, &layout, &shares, &change.objects.tenants_of(name).collect::<Vec<_>>()).await?;
    }
    Ok(Some(active))
}

/// Refuses a change of mode that leaves the daemon with a layout of the other mode.
async fn refuse_mode_change(
    db: store::Transaction<'_>,
    DesiredDaemon { name, spec, in_host_file, .. }: &DesiredDaemon<'_>,
    kept: &ActiveLayout,
) -> Result<()> {
    let enforcement = store::layouts::content(db, kept).await?.enforcement;
    let (needed, other) = match (enforcement, spec.mode) {
        (Enforcement::Static, Mode::Shared) => ("static", "shared"),
        (Enforcement::Percentage, Mode::Static) => ("shared", "static"),
        (Enforcement::Static, Mode::Static) | (Enforcement::Percentage, Mode::Shared) => return Ok(()),
    };
    let remedy = if *in_host_file {
        format!("leave `bindings.{name}` out of the file and apply it with --prune")
    } else {
        format!("remove the layout too (`mps-manager daemon set {name} --mode {other} --unset layout`)")
    };
    Err(conflict!("layout {} of daemon {name} needs mode {needed}: {remedy}, or keep the mode", kept.name))
}

/// The layout that a spec names, with the GPU of each role.
async fn resolve(
    db: store::Transaction<'_>,
    name: &DaemonName,
    spec: &DaemonSpec,
    gpus: &[Gpu],
) -> Result<Option<(ActiveLayout, Layout)>> {
    let Some(active) = &spec.layout else { return Ok(None) };
    let desired = active.version_ref();
    let stored = store::layouts::version(db, &desired).await?;
    let stored =
        stored.ok_or_else(|| field!("/layout/version", "there is no layout {desired}: write it first"))?;
    refuse_mode(name, spec.mode, stored.layout.enforcement, None)?;
    let gpu_map = map_roles(&stored.layout, &active.gpu_map, &spec.gpus, gpus)
        .map_err(|error| ServiceError::Invalid(vec![field(&error.to_string())]))?;
    Ok(Some((ActiveLayout { gpu_map, ..active.clone() }, stored.layout)))
}

async fn is_percentage(db: store::Transaction<'_>, layout: Option<&ActiveLayout>) -> Result<bool> {
    let Some(layout) = layout else { return Ok(false) };
    Ok(store::layouts::content(db, layout).await?.enforcement == Enforcement::Percentage)
}

fn field(detail: &str) -> FieldError {
    FieldError { pointer: "/layout/gpu_map".to_owned(), detail: detail.to_owned() }
}

/// Refuses percentages that no GPU gives, more chunks than were counted, and tenants that set their own share.
async fn fit_percentages(
    db: store::Transaction<'_>,
    layout: &Layout,
    desired: &[PlannedShare],
    tenants: &[&Tenant],
) -> Result<()> {
    let specs: Vec<(&TenantName, &TenantSpec)> =
        tenants.iter().map(|tenant| (&tenant.name, &tenant.spec)).collect();
    let share = own_shares(layout, specs).next();
    if let Some(share) = share {
        return Err(ServiceError::Conflict(share.to_string()));
    }
    let counted = store::probe_results::chunks(db).await?;
    let plan = plan(desired, &[], &counted);
    // While a GPU's chunks are not counted, no number is known to be too large.
    let too_many = plan.blocked.iter().find(|blocked| matches!(blocked, Blocked::TooManyChunks { .. }));
    too_many.map_or(Ok(()), |blocked| Err(ServiceError::field("/layout/version", blocked.to_string())))
}

/// Refuses a layout for a daemon whose strategy gives its tenants their SMs already, or whose clients do not get whole GPUs.
pub(in crate::service) fn refuse_strategy(name: &DaemonName, spec: &DaemonSpec) -> Result<()> {
    if spec.mlopart {
        return Err(conflict!(
            "the clients of daemon {name} get MLOPart devices, and a layout gives SMs of whole GPUs: set its mlopart to false first"
        ));
    }
    let provisioning = spec.provisioning;
    if !provisioning.is_active() {
        return Ok(());
    }
    Err(conflict!(
        "daemon {name} gives its tenants their shares by strategy {}, and a layout would give them others: set its provisioning to none first",
        provisioning.strategy.as_str()
    ))
}

/// Refuses a layout that the daemon's mode cannot hold; `lacks_static` is why the control program has no static mode.
pub(in crate::service) fn refuse_mode(
    name: &DaemonName,
    mode: Mode,
    enforcement: Enforcement,
    lacks_static: Option<&str>,
) -> Result<()> {
    let (is, needs) = match (mode, enforcement) {
        (Mode::Static, Enforcement::Static) | (Mode::Shared, Enforcement::Percentage) => return Ok(()),
        (Mode::Shared, Enforcement::Static) => ("shared", "static partitions"),
        (Mode::Static, Enforcement::Percentage) => ("static", "thread percentages, which MPS ignores there"),
    };
    let remedy = match (enforcement, lacks_static) {
        (Enforcement::Static, Some(why)) => {
            format!(
                "static mode is not available here, since {why}; or set the layout's enforcement to percentage"
            )
        }
        (Enforcement::Static, None) => {
            "set the daemon's mode to static, or the layout's enforcement to percentage".to_owned()
        }
        (Enforcement::Percentage, _) => {
            "set the daemon's mode to shared, or the layout's enforcement to static".to_owned()
        }
    };
    Err(conflict!("daemon {name} is in {is} mode, and the layout needs {needs}: {remedy}"))
}
