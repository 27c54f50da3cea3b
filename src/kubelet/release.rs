//! Renews the tenants whose places pods hold, and deletes the others: the kubelet says nothing when a pod is gone.
//!
//! Tenants are read from the manager, so that those of an earlier plugin are taken over. No process is ever ended: a pod that is gone has
//! none, and a tenant with processes stays.
//!
//! A kubelet that was started without its checkpoint has forgotten what its pods hold, and answers like one whose pods are gone. So all
//! tenants of that time are doubtful until the kubelet lists their places again.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use reqwest::StatusCode;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::allocation::DeviceClaim;
use super::context::{PluginContext, TrackedTenant, answered, deletion, millis, tenant_path};
use super::usage::{ClaimUse, DeviceUsage, device_usage, is_checkpoint_missing};
use crate::client::ClientError;
use crate::domain::count::counted;
use crate::domain::workload::Workload;
use crate::service::tenants::TenantView;
use crate::service::tenants::clients::ClientView;

/// Number of times in a row that places have to be free before their tenant is deleted.
const UNLISTED: u32 = 2;

/// Asks the kubelet at intervals until shutdown.
pub(super) async fn keep_released(context: &PluginContext) {
    let mut source = "";
    let mut relisted = Instant::now();
    let mut forgotten = BTreeSet::new();
    loop {
        sleep(context.options.interval).await;
        let usage = device_usage(&context.options).await;
        if usage.source != source {
            source = usage.source;
            tracing::info!("which devices pods hold is known from {source}");
        }
        match renew_or_release_all(context, &usage, &mut forgotten).await {
            // The kubelet writes its checkpoint when devices are listed to it, and leaves out the pods that are gone.
            Ok(true) if relisted.elapsed() >= context.options.min_age => {
                relisted = Instant::now();
                context.relist.send_replace(());
            }
            Ok(_) => {}
            // `follow` reports a manager that does not answer.
            Err(error) => tracing::debug!(%error, "tenants were not renewed"),
        }
    }
}

/// Renews or deletes each tenant; returns true if it is doubtful for one of them which is right.
async fn renew_or_release_all(
    context: &PluginContext,
    usage: &DeviceUsage,
    forgotten: &mut BTreeSet<DeviceClaim>,
) -> Result<bool, ClientError> {
    let tenants: Vec<TenantView> = answered(context.client.list("/api/v1/tenants", usize::MAX)).await?;
    let domain = format!("{}/", context.options.resource_domain);
    let claimed = |tenant: TenantView| {
        let claim = DeviceClaim::of_labels(&tenant.spec.labels)?;
        claim.resource.starts_with(&domain).then_some((tenant, claim))
    };
    let tenants: Vec<(TenantView, DeviceClaim)> = tenants.into_iter().filter_map(claimed).collect();
    context.tracked.lock().await.retain(|name, tracked| {
        tracked.is_young(context.options.min_age) || tenants.iter().any(|(tenant, _)| tenant.name == *name)
    });
    let was_lost = context.is_checkpoint_lost.swap(false, Ordering::Relaxed);
    let is_lost = was_lost || is_checkpoint_missing(&context.options.plugin_dir);
    note_forgotten(forgotten, usage, &tenants.iter().map(|(_, claim)| claim).collect(), is_lost);
    let mut is_doubtful = false;
    for (tenant, claim) in &tenants {
        let used = match usage.of_claim(claim) {
            ClaimUse::Free if forgotten.contains(claim) => ClaimUse::Doubtful,
            used => used,
        };
        is_doubtful |= used == ClaimUse::Doubtful;
        let holder = usage.holder(claim);
        if let Err(error) = renew_or_release(context, tenant, used, holder).await {
            tracing::warn!(%error, "tenant {} could be neither renewed nor deleted", tenant.name);
        }
    }
    Ok(is_doubtful)
}

/// Keeps the claims that a kubelet may have forgotten: all present ones when it has lost its checkpoint, each until the kubelet lists its
/// places again. While neither its API nor a checkpoint can be read, all of them stay.
fn note_forgotten(
    forgotten: &mut BTreeSet<DeviceClaim>,
    usage: &DeviceUsage,
    claims: &BTreeSet<&DeviceClaim>,
    is_lost: bool,
) {
    forgotten.retain(|claim| claims.contains(claim) && !usage.has(claim));
    if is_lost {
        forgotten.extend(claims.iter().map(|claim| (*claim).clone()));
    }
}

async fn renew_or_release(
    context: &PluginContext,
    tenant: &TenantView,
    used: ClaimUse,
    holder: Option<&Workload>,
) -> Result<(), ClientError> {
    let mut all = context.tracked.lock().await;
    let tracked = all.entry(tenant.name.clone()).or_insert_with(TrackedTenant::new);
    if used != ClaimUse::Free {
        tracked.unlisted = 0;
        drop(all);
        // A tenant that stays doubtful is not renewed, so it expires.
        return if used == ClaimUse::Held { answered(renew(context, tenant, holder)).await } else { Ok(()) };
    }
    if tracked.is_young(context.options.min_age) {
        return Ok(());
    }
    tracked.unlisted = tracked.unlisted.saturating_add(1);
    if tracked.unlisted < UNLISTED {
        return Ok(());
    }
    let is_first = tracked.unlisted == UNLISTED;
    match answered(release(context, tenant)).await? {
        0 => {
            all.remove(&tenant.name);
            tracing::info!("tenant {} was deleted: no pod holds its places", tenant.name);
        }
        left if is_first => tracing::warn!(
            "no pod holds the places of tenant {}, which has {}: it stays until they end",
            tenant.name,
            counted(left, "client")
        ),
        _ => {}
    }
    Ok(())
}

/// Labels the tenant with the container that holds its places, and moves the expiry once half of the time has passed. The expiry of a
/// drained tenant stays, since a later one would take the drain back.
async fn renew(
    context: &PluginContext,
    tenant: &TenantView,
    holder: Option<&Workload>,
) -> Result<(), ClientError> {
    let half = context.clock.unix_ms().saturating_add(millis(context.options.ttl) / 2);
    // `Allocate` does not say to which pod the places go.
    let is_named = holder.is_none_or(|holder| Workload::of(&tenant.spec.labels).as_ref() == Some(holder));
    if tenant.status.draining || is_named && tenant.spec.expires_at.is_none_or(|expiry| expiry > half) {
        return Ok(());
    }
    let path = tenant_path(&tenant.name);
    let Some((mut now, tag)) = context.client.get_tagged::<TenantView>(&path).await? else { return Ok(()) };
    // The tenant may have been drained since it was listed.
    if now.status.draining {
        return Ok(());
    }
    now.spec.labels.extend(holder.map(Workload::labels).unwrap_or_default());
    now.spec.expires_at = Some(context.expiry());
    context.client.put::<Value>(&path, Some(&tag), &now.spec).await.map(drop)
}

/// Deletes a tenant without clients; returns the number of its clients.
async fn release(context: &PluginContext, tenant: &TenantView) -> Result<usize, ClientError> {
    let path = format!("{}/clients", tenant_path(&tenant.name));
    let clients: Vec<ClientView> = match context.client.list(&path, usize::MAX).await {
        Err(error) if error.has_status(StatusCode::NOT_FOUND) => return Ok(0),
        answer => answer?,
    };
    if !clients.is_empty() {
        return Ok(clients.len());
    }
    match context.client.delete(&deletion(&tenant.name)).await {
        Err(error) if !error.has_status(StatusCode::NOT_FOUND) => Err(error),
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn forgotten_claims_are_kept_until_held_again() {
        let claim = |id: &str| DeviceClaim { resource: "x/y".to_owned(), ids: [id.to_owned()].into() };
        let (a, b) = (claim("a"), claim("b"));
        let noted = |claims: &[&DeviceClaim]| Some(claims.iter().map(|claim| (*claim).clone()).collect());
        let mut forgotten = BTreeSet::new();
        let mut forgotten_after = |listed: bool, noted: Option<BTreeSet<DeviceClaim>>, is_lost: bool| {
            let usage = DeviceUsage::of(listed.then(BTreeMap::new), noted);
            note_forgotten(&mut forgotten, &usage, &BTreeSet::from([&a, &b]), is_lost);
            forgotten.iter().map(|claim| claim.ids.first().expect("an ID").clone()).collect::<String>()
        };
        assert_eq!(forgotten_after(true, noted(&[]), false), "");
        assert_eq!(forgotten_after(true, None, true), "ab");
        // It was read before the kubelet wrote an empty one, and then the kubelet does not answer either.
        assert_eq!(forgotten_after(true, None, false), "ab");
        assert_eq!(forgotten_after(false, None, false), "ab");
        assert_eq!(forgotten_after(true, noted(&[]), false), "ab");
        assert_eq!(forgotten_after(true, noted(&[&a]), false), "b");
        assert_eq!(forgotten_after(false, noted(&[]), false), "b");
    }
}
