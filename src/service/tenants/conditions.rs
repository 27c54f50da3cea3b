//! Conditions and texts about a tenant, for people and programs.

use crate::domain::condition::{Condition, ConditionReason, ConditionType};
use crate::domain::count::enumerated;
use crate::domain::daemon::Daemon;
use crate::domain::gpu::Gpu;
use crate::domain::neighbours::LimitsByGpu;
use crate::domain::percentage::FEWEST_SMS;
use crate::domain::provisioning::{ClientCountSource, ProvisioningStatus, TenantShare};
use crate::domain::resolution::{Resolved, below_context, context_bytes};
use crate::domain::tenant::Tenant;
use crate::domain::{DaemonName, GpuUuid, TenantName, rfc3339};
use crate::service::access::context::RequestContext;
use crate::service::access::redaction::{AudienceText, Redacted};
use crate::service::{Result, ServiceError};
use crate::supervisor::Blocker;

/// Returns the reason why a tenant's limits are not in force, by the condition `Ready` of its daemon.
pub(super) fn not_applied(
    ctx: &RequestContext,
    daemon: &DaemonName,
    ready: Option<&Condition>,
) -> (ConditionReason, String) {
    let Some(Condition { status, reason, message, .. }) = ready else {
        return (ConditionReason::DaemonNotReady, format!("daemon {daemon} is not ready"));
    };
    if *status {
        let message = format!("daemon {daemon} is applying its limits");
        return (ConditionReason::AwaitingReadBack, message);
    }
    let redacted = Redacted::NotReady(daemon, *reason);
    let message = AudienceText::new(format!("daemon {daemon}: {message}"), &redacted).text_for(&ctx.actor);
    let reason = match reason {
        ConditionReason::ServerFault | ConditionReason::ServerExits => *reason,
        _ => ConditionReason::DaemonNotReady,
    };
    (reason, message)
}

/// Refuses new processes of a tenant that has expired, or whose partition is being emptied.
pub(super) fn refuse_closed(tenant: &Tenant, now: i64) -> Result<()> {
    if tenant.held && !tenant.has_expired(now) {
        let text = format!(
            "tenant {} admits no processes while its partition is emptied for another layout: try again when that operation has ended",
            tenant.name
        );
        return Err(ServiceError::Conflict(text).visible_to_tenants());
    }
    let Some(at) = tenant.spec.expires_at.filter(|_| tenant.has_expired(now)) else { return Ok(()) };
    let (name, at) = (&tenant.name, rfc3339::format(at));
    let why = if tenant.draining { "is drained".to_owned() } else { format!("expired at {at}") };
    let text = format!(
        "tenant {name} {why}: it admits no processes, and is deleted once it has none; to keep it, give it a later expiry \
         (mps-manager tenant set {name} --ttl 24h) or none (--unset ttl)"
    );
    Err(ServiceError::Conflict(text).visible_to_tenants())
}

/// Returns the reason why a closed tenant is not ready, with the refusal of its processes; `None` if it admits them.
pub(super) fn closed_refusal(tenant: &Tenant, now: i64) -> Option<(ConditionReason, ServiceError)> {
    let reason =
        if tenant.has_expired(now) { ConditionReason::Expired } else { ConditionReason::PartitionDrained };
    refuse_closed(tenant, now).err().map(|error| (reason, error))
}

/// Returns the text saying why the socket cannot be given to a tenant's processes.
pub(super) fn socket_problem(problem: &Blocker) -> AudienceText {
    AudienceText::new(problem.message.clone(), &Redacted::SocketNotHandedOut(problem.reason))
}

/// Returns the condition of a tenant whose socket cannot be handed out.
pub(super) fn socket_condition(ctx: &RequestContext, problem: &Blocker) -> Condition {
    let message = socket_problem(problem).text_for(&ctx.actor);
    Condition::new(ConditionType::ClientSocket, false, problem.reason, message)
}

/// A condition for a limit that leaves no room for the context that every client pays from it.
pub(super) fn too_small_for_a_context(resolved: &Resolved, gpus: &[Gpu]) -> Option<Condition> {
    let message = gpus.iter().find_map(|gpu| {
        let limit = *resolved.memory.get(&gpu.uuid)?;
        below_context(limit, context_bytes(resolved.predicted_sms(gpu.sms?)?))
    })?;
    Some(Condition::new(
        ConditionType::LimitBelowContext,
        true,
        ConditionReason::ContextPaidFromLimit,
        message,
    ))
}

/// A condition for more clients than there may be, after their number was lowered.
pub(super) fn above_maximum(tenant: &Tenant, clients: u32) -> Option<Condition> {
    let most = tenant.spec.max_clients.filter(|most| clients > *most)?;
    let message = format!(
        "{} connected, and max_clients is {most}: they keep running, and no other is admitted until fewer than {most} are connected",
        if clients == 1 { "1 client is".to_owned() } else { format!("{clients} clients are") }
    );
    Some(Condition::new(ConditionType::ClientsAboveMaximum, true, ConditionReason::MaximumLowered, message))
}

/// A condition for a share that is below what MPS gives every client.
pub(super) fn share_below_minimum(
    share: &TenantShare,
    provisioning: &ProvisioningStatus,
) -> Option<Condition> {
    share.gpus.iter().find(|share| share.below_minimum)?;
    let remedy = match provisioning.clients_from {
        _ if share.stated => "raise it",
        ClientCountSource::ExpectedClients => "lower expected_clients on the daemon",
        ClientCountSource::MaxClients => {
            "lower max_clients of its tenants, or give the daemon expected_clients"
        }
        ClientCountSource::Tenants => {
            "spread the tenants over more daemons, or give the daemon expected_clients"
        }
    };
    let message = format!(
        "its share is {} %, and MPS gives no client fewer than {FEWEST_SMS} SMs, which is more: the shares of all tenants may come to more than \
         the GPU. To change that, {remedy}",
        share.active_thread_percentage,
    );
    Some(Condition::new(ConditionType::ShareBelowMinimum, true, ConditionReason::FewestSmsOfMps, message))
}

/// A condition for a limit that only the environment holds, because of neighbours without one.
pub(super) fn weakened(
    ctx: &RequestContext,
    tenant: &Tenant,
    daemon: &Daemon,
    limits: &LimitsByGpu<'_>,
    gpus: &[Gpu],
) -> Option<Condition> {
    let names = limits.weakening(tenant, daemon);
    let listed = enumerated(&names.iter().map(TenantName::as_str).collect::<Vec<_>>());
    let (who, them) = match names.len() {
        0 => return None,
        1 => (format!("tenant {listed} has"), "it"),
        _ => (format!("tenants {listed} have"), "them"),
    };
    let consequence = "the limits of others are held by their environments only: a process that changes its environment escapes its limit";
    let name = &daemon.name;
    let whole = if daemon.spec.gpus.len() == 1 {
        format!(
            "{who} no memory limit, so the server has none, and {consequence}; give {them} a limit, or set a default limit on daemon {name}"
        )
    } else {
        let weakened = limits.weakened_gpus(tenant, daemon);
        let called = |uuid: &&GpuUuid| {
            let present = gpus.iter().find(|gpu| gpu.uuid == **uuid && gpu.present);
            present.map_or_else(|| uuid.to_string(), |gpu| format!("GPU {}", gpu.index))
        };
        let place = enumerated(&weakened.iter().map(called).collect::<Vec<_>>());
        format!(
            "{who} no memory limit on {place}, so the server has none there, and {consequence}; give {them} a limit there, or set a default \
             limit on daemon {name}"
        )
    };
    let text = AudienceText::new(whole, &Redacted::NeighbourWithoutLimit(consequence));
    Some(Condition::new(
        ConditionType::LimitWeakened,
        true,
        ConditionReason::NeighbourWithoutLimit,
        text.text_for(&ctx.actor),
    ))
}
