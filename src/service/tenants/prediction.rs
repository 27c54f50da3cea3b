//! Prediction of a tenant's settings before anything is written.

use crate::domain::access::Right;
use crate::domain::admission::AdmissionError;
use crate::domain::daemon::Management;
use crate::domain::gpu::GpuRef;
use crate::domain::prediction::{Prediction, predict};
use crate::domain::tenant::TenantSpec;
use crate::domain::{InvalidValue, TenantName};
use crate::service::access::context::RequestContext;
use crate::service::error::field;
use crate::service::tenants::percentage_layout::refuse_own_share;
use crate::service::{Result, Service, ServiceError, refuse_namesake};

impl Service {
    /// Predicts the settings that a tenant would get from its daemon, and everything that would refuse it now.
    ///
    /// `name` is that of an existing tenant to change, or of a new one if it has a name yet. Nothing is written and no daemon
    /// is queried. It fails only if no prediction is possible: without the daemon, or with unknown GPUs.
    pub async fn predict_tenant(
        &self,
        ctx: &RequestContext,
        name: Option<&TenantName>,
        is_new: bool,
        spec: TenantSpec<GpuRef>,
    ) -> Result<Prediction> {
        let backend = self.with(&ctx.require(Right::View)?);
        let gpus = backend.gpus().await?;
        let spec = spec.resolve_gpus(&gpus).map_err(ServiceError::invalid)?;
        let daemon = backend.stored_daemon(&spec.daemon).await?;
        let daemon = daemon.ok_or_else(|| field!("/daemon", "there is no daemon {}", spec.daemon))?;
        let tenants = backend.stored_tenants().await?;
        let mut reader = backend.parts.store.read().await?;
        let others = tenants.iter().filter(|one| one.spec.daemon == spec.daemon && Some(&one.name) != name);
        let others: Vec<_> = others.map(|other| (&other.name, &other.spec)).collect();
        let mut refusals = Vec::new();
        if let Some(name) = name {
            if let Some(stored) = tenants.iter().find(|one| one.name == *name).filter(|_| is_new) {
                let on = &stored.spec.daemon;
                let detail = format!("there is a tenant {name} already, on daemon {on}: choose another name");
                refusals.push(AdmissionError { field: "name", detail });
            }
            match refuse_namesake(&mut reader, "tenant", name.as_str()).await {
                Err(ServiceError::Conflict(detail)) => {
                    refusals.push(AdmissionError { field: "name", detail });
                }
                other => other?,
            }
            let check = refuse_own_share(&mut reader, &daemon, name, &spec).await;
            refusals
                .extend(check.err().map(|error| AdmissionError { field: "sms", detail: error.to_string() }));
        }
        drop(reader);
        if daemon.spec.management == Management::Observed {
            let detail = format!(
                "daemon {} is only observed, so a tenant's limits are not enforced on it",
                daemon.name
            );
            refusals.push(AdmissionError { field: "daemon", detail });
        }
        if let Some(name) = name.filter(|_| !is_new) {
            let moved = backend.refuse_move_with_clients(name, &spec.daemon).await;
            refusals.extend(
                moved.err().map(|error| AdmissionError { field: "daemon", detail: error.to_string() }),
            );
        }
        let context = backend.parts.fleet.context();
        let multi_user = daemon.spec.multi_user;
        let reachable = backend.parts.fleet.check_reachable(&spec.daemon, multi_user, spec.uid).await;
        refusals.extend(reachable.err().map(|detail| AdmissionError { field: "uid", detail }));
        let expired = spec.check_expiry(ctx.clock.unix_ms()).err();
        refusals.extend(expired.map(|(field, reason)| AdmissionError { field, detail: reason.to_string() }));
        let unnamed =
            TenantName::parse("new_tenant").map_err(|InvalidValue(error)| ServiceError::Internal(error))?;
        let ceiling = context.capability.client_ceiling();
        let predicted =
            predict((&daemon.name, &daemon.spec), (name.unwrap_or(&unnamed), &spec), &others, &gpus, ceiling);
        refusals.extend(predicted.refusals);
        Ok(Prediction { refusals, ..predicted })
    }
}
