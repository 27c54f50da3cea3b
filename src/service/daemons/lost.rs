//! Daemons of this manager that its database has lost: found in the runtime directory, and adopted again.
//!
//! Such a daemon has the token of a manager in its environment, runs as this manager's user, and its pipe directory is the one
//! that this manager gives to a daemon of that name. Nobody else can be managing it: one manager serves from a runtime directory.
//! As with any adoption no process is started, stopped or signalled, and nothing is written to a daemon.

use serde::{Deserialize, Serialize};

use crate::domain::access::Right;
use crate::domain::client::ClientId;
use crate::domain::daemon::{Incarnation, Management};
use crate::domain::foreign::AdoptedSpec;
use crate::domain::gpu::Gpu;
use crate::domain::{DaemonName, GpuUuid};
use crate::service::access::context::RequestContext;
use crate::service::daemons::adoption::Adoption;
use crate::service::{Backend, Result, Service, ServiceError, WriteOptions};
use crate::supervisor::ForeignDaemon;

/// Result of the adoption of lost daemons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LostDaemonAdoption {
    /// Every daemon of this manager that its database did not know, by name.
    pub daemons: Vec<LostDaemonView>,
}

/// A running daemon of this manager that its database did not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LostDaemonView {
    /// Its name, by its pipe directory.
    pub name: DaemonName,
    /// Its process ID and start time.
    pub process: ClientId,
    /// The GPUs it serves; `null` if unknown.
    pub gpus: Option<Vec<GpuUuid>>,
    /// Number of clients connected to it; `null` if that could not be read.
    pub clients: Option<u32>,
    /// True if it was adopted, or in a dry run would be.
    pub adopted: bool,
    /// Reason why it was not adopted, with the remedy; `null` if it was.
    pub reason: Option<String>,
    /// Remarks on its settings.
    pub notes: Vec<String>,
}

impl Service {
    /// Adopts every running daemon of this manager that its database does not know, each under its name.
    ///
    /// A daemon that cannot be adopted is reported, and the others are adopted nevertheless.
    pub async fn adopt_lost_daemons(
        &self,
        ctx: &RequestContext,
        options: WriteOptions,
    ) -> Result<LostDaemonAdoption> {
        let permit = ctx.require(Right::Administer)?;
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let gpus = backend.gpus().await?;
        let scanner = &backend.parts.fleet.context().foreign_daemons;
        let scan = scanner.scan().await;
        let mut lost_daemons: Vec<(DaemonName, &ForeignDaemon)> = scan
            .iter()
            .filter(|foreign| scanner.owner(&foreign.daemon).is_none())
            .filter_map(|foreign| Some((backend.lost_name(foreign)?, foreign)))
            .collect();
        lost_daemons.sort_by(|one, other| one.0.cmp(&other.0));
        let mut daemons = Vec::new();
        for (name, lost) in lost_daemons {
            let (adoption, mut view) = backend.prepare(&name, lost, &gpus).await;
            let permit = permit.clone().adopting(name);
            let adopted = match adoption {
                Ok(adoption) => backend.adopt(&permit, adoption, options.clone()).await,
                Err(reason) => Err(ServiceError::Conflict(reason)),
            };
            match adopted {
                Ok(_) => view.adopted = true,
                Err(error @ (ServiceError::Conflict(_) | ServiceError::Invalid(_))) => {
                    view.reason = Some(error.to_string());
                }
                Err(error) => return Err(error),
            }
            daemons.push(view);
        }
        Ok(LostDaemonAdoption { daemons })
    }
}

impl Backend {
    /// Returns true if daemons of this manager are running that its database does not know.
    pub async fn has_lost_daemons(&self) -> bool {
        let scanner = &self.parts.fleet.context().foreign_daemons;
        let scan = scanner.scan().await;
        scan.iter().any(|lost| scanner.owner(&lost.daemon).is_none() && self.lost_name(lost).is_some())
    }

    /// The name of a daemon that a manager of this runtime directory started; `None` for every other.
    pub(super) fn lost_name(&self, foreign: &ForeignDaemon) -> Option<DaemonName> {
        self.parts.fleet.context().own_name(&foreign.daemon, self.parts.manager_uid)
    }

    /// Returns the adoption to write for a lost daemon, or the reason why it cannot be adopted; with the daemon's view.
    async fn prepare(
        &self,
        name: &DaemonName,
        lost: &ForeignDaemon,
        gpus: &[Gpu],
    ) -> (Result<Adoption, String>, LostDaemonView) {
        let context = self.parts.fleet.context();
        let identity = lost.daemon.identity;
        let poll = Box::pin(context.read_foreign(lost)).await;
        let mut view = LostDaemonView {
            name: name.clone(),
            process: identity.into(),
            gpus: lost.gpus.clone().ok(),
            clients: poll.as_ref().ok().and_then(|poll| u32::try_from(poll.clients.len()).ok()),
            adopted: false,
            reason: None,
            notes: Vec::new(),
        };
        let mut candidate = self.candidate(lost, &poll).await;
        candidate.held = false;
        let adoption = candidate
            .adopt(Management::Managed, self.parts.manager_uid, gpus)
            .map_err(|reason| reason.to_string())
            .and_then(|AdoptedSpec { spec, notes }| {
                view.notes = notes;
                let around = lost.daemon.environment.clone()?;
                let incarnation = Incarnation {
                    token: around.token.ok_or("it has no token any more")?,
                    boot_id: context.boot_id.clone(),
                    process: Some((identity.pid, identity.start_time)),
                    pipe_inode: Some(around.reachable?),
                    // The row does not exist yet.
                    applied: 0,
                    home: None,
                };
                Ok(Adoption { name: name.clone(), spec, incarnation, identity })
            });
        (adoption, view)
    }
}
