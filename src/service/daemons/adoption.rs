//! Foreign daemons: adopted, taken over, and released.
//!
//! Nothing here starts, stops or signals a process, and adoption writes nothing to one: the spec is read back from the
//! settings in effect, so that keeping it changes nothing.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::DaemonName;
use crate::domain::access::Right;
use crate::domain::client::ClientId;
use crate::domain::condition::ConditionType;
use crate::domain::daemon::{
    CurrentDaemon, Daemon, DaemonDirectories, DaemonSpec, Incarnation, Management, Phase, check_management,
};
use crate::domain::foreign::AdoptedSpec;
use crate::domain::gpu::Gpu;
use crate::host::{self, Identity};
use crate::service::access::context::{Permit, RequestContext};
use crate::service::change::{Change, ChangeScope};
use crate::service::daemons::{DaemonView, RELEASE_TIMEOUT, refuse_with_tenants};
use crate::service::error::{Found as _, conflict, field};
use crate::service::{Backend, Result, Service, ServiceError, WriteOptions, Written, check_precondition};
use crate::store::{self, transact};
use crate::supervisor::{ForeignDaemon, token};

/// A running control daemon to adopt under a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdoptRequest {
    /// Its process ID and start time, as the list of foreign daemons gives them.
    #[schema(pattern = "^[1-9][0-9]{0,8}-(0|[1-9][0-9]{0,17})$", example = "1234-567890")]
    pub process: String,
    /// Mode of adoption: managed, or only observed.
    pub management: Management,
}

impl Service {
    /// Adopts a foreign control daemon, with a spec read back from the settings in effect.
    pub async fn adopt_daemon(
        &self,
        ctx: &RequestContext,
        name: DaemonName,
        request: AdoptRequest,
        options: WriteOptions,
    ) -> Result<Written<DaemonView>> {
        let permit = ctx.require(Right::Administer)?.adopting(name.clone());
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        backend.check_name_fits(&name)?;
        let (neighbour, identity) = backend.named_process(&request.process).await?;
        let context = backend.parts.fleet.context();
        if let Some(owner) = context.foreign_daemons.owner(&neighbour.daemon) {
            return Err(conflict!("process {} is daemon {owner} of this manager already", request.process));
        }
        let gpus = backend.gpus().await?;
        let poll = Box::pin(context.read_foreign(&neighbour)).await;
        let verdict = backend.candidate(&neighbour, &poll).await.adopt(
            request.management,
            backend.parts.manager_uid,
            &gpus,
        );
        let cannot = |reason: String| conflict!("process {} cannot be adopted: {reason}", request.process);
        let AdoptedSpec { spec, notes } = verdict.map_err(|reason| cannot(reason.to_string()))?;
        let incarnation = backend.incarnation_of(&neighbour, identity).map_err(cannot)?;
        tracing::debug!(daemon = %name, management = ?request.management, ?notes, "adopting a foreign control daemon");
        let adoption = Adoption { name, spec, incarnation, identity };
        let daemon = backend.adopt(&permit, adoption, options).await?;
        Ok(Written { value: backend.daemon_view(daemon).await?, created: true })
    }

    /// Returns true if the daemon was adopted, so that it can be released.
    pub async fn is_adopted(&self, ctx: &RequestContext, name: &DaemonName) -> Result<bool> {
        let backend = self.with(&ctx.require(Right::View)?);
        let mut reader = backend.parts.store.read().await?;
        let earlier = store::daemons::incarnation(&mut reader, name).await?;
        Ok(earlier.as_ref().is_some_and(Incarnation::is_foreign))
    }

    /// Releases an adopted daemon: deletes it here and leaves its process running.
    pub async fn release_daemon(
        &self,
        ctx: &RequestContext,
        name: DaemonName,
        options: WriteOptions,
    ) -> Result<()> {
        let permit = ctx.require(Right::Administer)?.adopting(name.clone());
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let handle = backend.parts.fleet.get(&name);
        let status = handle.as_ref().map(|handle| handle.observed().status);
        let absent = status.is_none_or(|status| status.phase == Phase::Absent);
        let (released, dry_run) = (name.clone(), options.dry_run);
        let scope = ChangeScope::Daemon(name.clone());
        let changed = transact!(backend, change(&permit, scope, dry_run), |change| {
            let daemon = change.daemon(&name)?.clone();
            check_precondition(&options, Some(daemon.revision))?;
            refuse_with_tenants(&name, &change.objects.tenants_of(&name).cloned().collect::<Vec<_>>())?;
            refuse_while_operated(&mut *change.db, &name).await?;
            let earlier = store::daemons::incarnation(&mut *change.db, &name).await?;
            // Other blockers do not matter: a foreign process is never kept because of them.
            let foreign = earlier.as_ref().is_some_and(Incarnation::is_foreign);
            let observed = daemon.spec.is_observed();
            if !(foreign || observed && absent) {
                let first = if observed { "set its management to managed, and then " } else { "" };
                return Err(conflict!(
                    "daemon {name} was started by this manager, so releasing it would leave its process unmanaged: \
                     {first}delete it, which stops it"
                ));
            }
            change.remove_daemon(&name);
            Ok(daemon.revision)
        })?;
        let revision = changed.value;
        if !dry_run {
            backend.parts.fleet.forget(&released, Some(revision));
            if let Some(handle) = handle {
                handle.ended(RELEASE_TIMEOUT).await;
            }
            // Someone may have created a daemon of that name since the commit, and published it to the driver that has
            // just ended.
            backend.publish_remembered(&released).await?;
            tracing::info!(daemon = %released, "released a daemon, and left its process running");
        }
        Ok(())
    }
}

/// A process that becomes a daemon of this manager, with the spec that holds what is in force in it.
pub(super) struct Adoption {
    pub(super) name: DaemonName,
    pub(super) spec: DaemonSpec,
    pub(super) incarnation: Incarnation,
    pub(super) identity: Identity,
}

impl Backend {
    /// Writes an adoption and hands the daemon to a driver.
    pub(super) async fn adopt(
        self: &Arc<Self>,
        permit: &Permit,
        adoption: Adoption,
        options: WriteOptions,
    ) -> Result<Daemon> {
        let Adoption { name, spec, incarnation, identity } = adoption;
        let (key, dry_run) = (name.clone(), options.dry_run);
        let mut changed =
            transact!(self, change(permit, ChangeScope::Daemon(name.clone()), dry_run), |change| {
                let current = change.objects.daemons.get(&key);
                check_precondition(&options, current.map(|daemon| daemon.revision))?;
                if current.is_some() {
                    return Err(conflict!(
                        "there is a daemon {key} already: choose another name, or delete that one first"
                    ));
                }
                if let Some(pair) = incarnation.process
                    && let Some(owner) =
                        store::daemons::with_process(&mut *change.db, &incarnation.boot_id, pair).await?
                {
                    // Another request adopted it a moment ago.
                    return Err(conflict!("process {identity} is daemon {owner} of this manager already"));
                }
                if spec.management == Management::Managed {
                    change.refuse_held(&spec.gpus, None)?;
                    // It would be stopped at once.
                    change.refuse_in_maintenance(&key, &spec)?;
                }
                if !host::process::is_alive(identity) {
                    return Err(conflict!(
                        "process {identity} ended while it was being adopted: nothing was written"
                    ));
                }
                change.refuse_namesake("daemon", key.as_str()).await?;
                change.put_daemon(&key, spec).await?;
                change.adopted = Some(incarnation);
                Ok(())
            })?;
        if !dry_run {
            tracing::info!(daemon = %name, process = %identity, "adopted a control daemon");
        }
        changed.objects.daemons.remove(&name).found("daemon", &name)
    }

    /// The control daemon named by a caller.
    async fn named_process(&self, process: &str) -> Result<(ForeignDaemon, Identity)> {
        let short: String = process.chars().take(40).collect();
        let id = ClientId::parse(process).map_err(|_| {
            field!("/process", "{short:?} is not a process: give its ID, a hyphen and its start time, as the list of foreign daemons does")
        })?;
        let identity = Identity::from(id);
        let neighbour = self.parts.fleet.context().foreign_daemons.inspect(identity).await;
        let neighbour = neighbour.map_err(|reason| ServiceError::field("/process", reason))?;
        Ok((neighbour, identity))
    }

    /// Returns the incarnation that the store keeps of an adopted process; fails if its pipe directory cannot be reached.
    fn incarnation_of(&self, neighbour: &ForeignDaemon, identity: Identity) -> Result<Incarnation, String> {
        let around = neighbour.daemon.environment.clone()?;
        let pipe_inode = around.reachable?;
        Ok(Incarnation {
            // Names the row in the store only; the process has no token of ours.
            token: token(),
            boot_id: self.parts.fleet.context().boot_id.clone(),
            process: Some((identity.pid, identity.start_time)),
            pipe_inode: Some(pipe_inode),
            // The row does not exist yet.
            applied: 0,
            home: Some(DaemonDirectories {
                pipe_directory: around.pipe_directory,
                log_directory: around.log_directory,
                foreign: true,
            }),
        })
    }

    /// Returns the reason why this manager may not manage a daemon that it only observed so far; `None` if it may.
    pub(super) async fn objection_to_manage(
        &self,
        name: &DaemonName,
        gpus: &[Gpu],
    ) -> Result<Option<String>> {
        let current = store::daemons::get(&mut *self.parts.store.read().await?, name).await?;
        if current.is_none_or(|daemon| !daemon.spec.is_observed()) {
            return Ok(None);
        }
        let context = self.parts.fleet.context();
        let scanner = &context.foreign_daemons;
        let scan = scanner.scan().await;
        let foreign = scan.iter().find(|neighbour| scanner.owner(&neighbour.daemon).as_ref() == Some(name));
        let Some(foreign) = foreign else { return Ok(None) };
        let poll = Box::pin(context.read_foreign(foreign)).await;
        let mut candidate = self.candidate(foreign, &poll).await;
        let verdict = if scanner.carries_claimed_token(name, &foreign.daemon) {
            candidate.held = false;
            candidate.take_back(self.parts.manager_uid)
        } else {
            candidate.adopt(Management::Managed, self.parts.manager_uid, gpus).map(drop)
        };
        Ok(verdict.err().map(|reason| reason.to_string()))
    }

    /// Refuses a spec that would release a daemon that cannot be released, or observe one that does not exist.
    pub(super) async fn check_management(
        &self,
        change: &mut Change<'_>,
        current: Option<&Daemon>,
        name: &DaemonName,
        spec: &DaemonSpec,
    ) -> Result<()> {
        let refused = |reason: crate::domain::InvalidValue| ServiceError::Conflict(reason.to_string());
        let Some(current) = current else { return check_management(None, spec).map_err(refused) };
        let status = self.parts.fleet.get(name).map(|handle| handle.observed().status);
        let runs_as_specified = status.is_some_and(|status| {
            status.pid.is_some()
                && !status.conditions.iter().any(|condition| condition.kind == ConditionType::RestartRequired)
        });
        let has_tenants = change.objects.tenants_of(name).next().is_some();
        let standing = CurrentDaemon { spec: &current.spec, has_tenants, runs_as_specified };
        check_management(Some(standing), spec).map_err(refused)?;
        if spec.management != current.spec.management {
            change.refuse_in_maintenance(name, spec)?;
            refuse_while_operated(&mut *change.db, name).await?;
        }
        Ok(())
    }

    /// Publishes the stored state of a daemon, if there is one.
    async fn publish_remembered(&self, name: &DaemonName) -> Result<()> {
        let gpus = self.gpus().await?;
        let mut reader = self.parts.store.read().await?;
        let earlier = self.remembered_daemon(&mut reader, name).await?;
        let desired = store::plans::desired(&mut reader, name, &gpus, self.parts.manager_uid).await?;
        if let Some(desired) = desired {
            self.parts.fleet.publish(desired, earlier);
        }
        Ok(())
    }
}

/// Refuses to change a daemon's manager or GPUs while an operation runs on it.
pub(super) async fn refuse_while_operated(db: store::Transaction<'_>, name: &DaemonName) -> Result<()> {
    match store::operations::unfinished(db, name).await? {
        None => Ok(()),
        Some(operation) => Err(conflict!(
            "operation {operation} on daemon {name} is still running: wait for it, or cancel it"
        )),
    }
}
