use super::{Noun, TENANTS};
use crate::cli::output::{ListField, TableCell, age};
use crate::domain::rfc3339;
use crate::domain::tenant::{TenantEffective, VisibleDevices};
use crate::service::tenants::TenantView;
use crate::words::tenant as words;

type Field = ListField<TenantView>;

/// Tenants.
pub(in crate::cli) static TENANT: Noun<TenantView> = Noun {
    candidate: |tenant| Some((tenant.name.to_string(), format!("on {}", tenant.spec.daemon))),
    sort: |tenants| tenants.sort_by_cached_key(|tenant| tenant.name.natural_key()),
    conditions: |tenant| &tenant.status.conditions,
    incidents: Some(|tenant| {
        // Not those of an earlier tenant of that name.
        let since = rfc3339::format(tenant.created_at);
        vec![("tenant", Some(tenant.name.to_string())), ("since", Some(since))]
    }),
    ..Noun::new(
        ["tenant", "tenants", TENANTS],
        |tenant| tenant.name.to_string(),
        &[
            Field::column("TENANT", |tenant| {
                words::with_workload(&tenant.name, tenant.workload.as_ref()).into()
            }),
            Field::detail("Tenant", |tenant| tenant.name.as_str().into()),
            Field::both("DAEMON", "Daemon", |tenant| tenant.spec.daemon.as_str().into()).rank(3),
            Field::both("READY", "Ready", |tenant| TableCell::ready(&tenant.status.conditions)),
            Field::detail("User", |tenant| format!("uid {}", tenant.spec.uid).into()),
            Field::named("GPUs", |tenant, names| {
                TableCell::joined(tenant.status.gpus.iter().map(|gpu| names.name(gpu)))
            }),
            Field::column("MEMORY", |tenant| effective(tenant, words::memory)).rank(1),
            Field::named("Memory limit", |tenant, names| {
                effective(tenant, |effective| words::memory_by_gpu(effective, |gpu| names.name(gpu)))
            }),
            Field::both("SMS", "SMs", |tenant| TableCell::optional(words::share(tenant))).rank(2),
            Field::both("PRIORITY", "Priority", |tenant| effective(tenant, words::priority)).rank(5),
            Field::detail("GPUs are named", |tenant| {
                let is_by_ordinal = tenant.spec.visible_devices == VisibleDevices::Ordinal;
                TableCell::optional(is_by_ordinal.then_some("by ordinal"))
            }),
            Field::both("CLIENTS", "Clients", |tenant| words::clients(tenant).into()).rank(4),
            Field::detail("Waiting for the daemon", |tenant| above_zero(tenant.status.waiting.len() as u64)),
            Field::detail("Waiting for a slot", |tenant| above_zero(tenant.status.queued)),
            Field::detail("Labels", labels),
            Field::both("AGE", "Age", |tenant| age(tenant.created_at).into()).rank(6),
            Field::detail("Expires", expiry).if_known(),
            Field::rows(|tenant| {
                let effective = tenant.status.effective.as_ref();
                let limits =
                    effective.and_then(TenantEffective::other_limits).map(|words| ("Older clients", words));
                let provisioning = tenant.status.provisioning.as_ref();
                let share = provisioning.and_then(|status| status.share_of(&tenant.name));
                limits.into_iter().chain(share.map(|words| ("Share", words))).collect()
            }),
            Field::wide("WEIGHT", |tenant| tenant.spec.weight.to_string().into()),
            Field::wide("UID", |tenant| tenant.spec.uid.to_string().into()),
            Field::wide("GENERATION", |tenant| {
                format!("{}/{}", tenant.status.observed_generation, tenant.generation).into()
            }),
            Field::wide("LABELS", labels),
            Field::wide("EXPIRES", expiry),
            Field::wide("GPUS", |tenant| TableCell::joined(&tenant.status.gpus)),
        ],
    )
};

fn effective(tenant: &TenantView, words: impl Fn(&TenantEffective) -> String) -> TableCell {
    TableCell::optional(tenant.status.effective.as_ref().map(words))
}

fn above_zero(count: u64) -> TableCell {
    TableCell::optional(Some(count).filter(|count| *count > 0))
}

fn labels(tenant: &TenantView) -> TableCell {
    TableCell::joined(tenant.spec.labels.iter().map(|(key, value)| format!("{key}={value}")))
}

fn expiry(tenant: &TenantView) -> TableCell {
    TableCell::optional(tenant.spec.expires_at.map(rfc3339::format))
}
