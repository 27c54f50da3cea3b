//! Renews the tenants whose places pods hold, and deletes the others: the kubelet says nothing when a pod is gone.
//!
//! Which tenants there are is read from the manager, so that those of an earlier plugin are taken over.

use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::allocation::DeviceClaim;
use super::context::{PluginContext, TrackedTenant, millis, tenant_path};
use super::usage::{DeviceUsage, device_usage};
use crate::client::ClientError;
use crate::service::tenants::TenantView;
use crate::service::tenants::clients::ClientView;

/// How many times in a row the kubelet has to leave out places before their tenant is deleted.
const UNLISTED: u32 = 2;

/// Asks the kubelet at intervals, for ever.
pub(super) async fn keep_released(context: &PluginContext) {
    let mut source = "";
    loop {
        sleep(context.options.interval).await;
        let usage = device_usage(&context.options).await;
        if usage.source != source {
            source = usage.source;
            tracing::info!("which devices pods hold is known from {source}");
        }
        // A manager that is away is reported by the one who follows it.
        if let Err(error) = settle_all(context, &usage).await {
            tracing::debug!(%error, "tenants were not renewed");
        }
    }
}

async fn settle_all(context: &PluginContext, usage: &DeviceUsage) -> Result<(), ClientError> {
    let tenants: Vec<TenantView> = context.client.list("/api/v1/tenants", usize::MAX).await?;
    let domain = format!("{}/", context.options.resource_domain);
    let claimed = |tenant: TenantView| {
        let claim = DeviceClaim::of_labels(&tenant.spec.labels)?;
        claim.resource.starts_with(&domain).then_some((tenant, claim))
    };
    let tenants: Vec<(TenantView, DeviceClaim)> = tenants.into_iter().filter_map(claimed).collect();
    context.tracked.lock().await.retain(|name, tracked| {
        tracked.is_young(context.options.min_age) || tenants.iter().any(|(tenant, _)| tenant.name == *name)
    });
    for (tenant, claim) in &tenants {
        let is_unlisted = usage.claims.as_ref().is_some_and(|claims| !claims.contains(claim));
        if let Err(error) = settle(context, tenant, is_unlisted).await {
            tracing::warn!(%error, "tenant {} could be neither renewed nor deleted", tenant.name);
        }
    }
    Ok(())
}

async fn settle(context: &PluginContext, tenant: &TenantView, is_unlisted: bool) -> Result<(), ClientError> {
    let mut all = context.tracked.lock().await;
    let tracked = all.entry(tenant.name.clone()).or_insert_with(TrackedTenant::new);
    if !is_unlisted {
        (tracked.unlisted, tracked.draining) = (0, None);
        drop(all);
        return renew(context, tenant).await;
    }
    if tracked.is_young(context.options.min_age) {
        return Ok(());
    }
    tracked.unlisted += 1;
    if tracked.unlisted < UNLISTED {
        return Ok(());
    }
    let draining = *tracked.draining.get_or_insert_with(Instant::now);
    if release(context, tenant, draining).await? {
        all.remove(&tenant.name);
        tracing::info!("tenant {} was deleted: no pod holds its places", tenant.name);
    }
    Ok(())
}

/// Moves the expiry once half of the time has passed.
async fn renew(context: &PluginContext, tenant: &TenantView) -> Result<(), ClientError> {
    let half = context.clock.unix_ms().saturating_add(millis(context.options.ttl) / 2);
    if tenant.spec.expires_at.is_none_or(|at| at > half) {
        return Ok(());
    }
    let path = tenant_path(&tenant.name);
    let Some((mut now, tag)) = context.client.get_tagged::<TenantView>(&path).await? else { return Ok(()) };
    now.spec.expires_at = Some(context.expiry());
    context.client.put::<Value>(&path, Some(&tag), &now.spec).await.map(drop)
}

/// Deletes a tenant once it has no client, and ends its clients once they were waited for; whether it is gone.
async fn release(
    context: &PluginContext,
    tenant: &TenantView,
    draining: Instant,
) -> Result<bool, ClientError> {
    let (client, path) = (&context.client, tenant_path(&tenant.name));
    let clients: Vec<ClientView> = match client.list(&format!("{path}/clients"), usize::MAX).await {
        Err(error) if error.has_status(StatusCode::NOT_FOUND) => return Ok(true),
        answer => answer?,
    };
    if clients.is_empty() {
        return match client.delete(&path).await {
            Err(error) if !error.has_status(StatusCode::NOT_FOUND) => Err(error),
            _ => Ok(true),
        };
    }
    if draining.elapsed() >= context.options.drain {
        for one in &clients {
            let terminate = format!("/api/v1/clients/{}/terminate?stopped=continue", one.id);
            match client.post::<Value>(&terminate, &json!({})).await {
                Err(error) if !error.has_status(StatusCode::NOT_FOUND) => return Err(error),
                _ => {
                    tracing::warn!("process {} of tenant {} is ended: its pod is gone", one.pid, tenant.name);
                }
            }
        }
    }
    Ok(false)
}
