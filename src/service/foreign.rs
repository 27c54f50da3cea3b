//! Control daemons that are none of this manager's: listed, and judged for adoption.

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use super::clients::ClientMemory;
use super::{Service, ServiceError};
use crate::domain::access::{Actor, Right};
use crate::domain::client::{ClientFacts, ClientId};
use crate::domain::daemon::{Effective, Management, Mode};
use crate::domain::foreign::{Candidate, InForce, Reading};
use crate::domain::gpu::Gpu;
use crate::domain::{DaemonName, GpuUuid};
use crate::host::Identity;
use crate::store;
use crate::supervisor::{ForeignLook, Neighbour};

/// A control daemon that runs on this host and is none of this manager's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ForeignDaemonView {
    /// Its process ID and start time: one process for ever.
    pub id: ClientId,
    /// Its process ID.
    pub pid: u32,
    /// The user it runs as.
    pub uid: Option<u32>,
    /// What it was called with.
    pub options: Vec<String>,
    /// Whether its clients may be of several users (`-M`).
    pub multi_user: bool,
    /// Whether it serves static SM partitions (`-S`).
    pub static_partitions: bool,
    /// The GPUs it serves, in its own order; `null` where they cannot be told.
    pub gpus: Option<Vec<GpuUuid>>,
    /// The directory of its sockets, as it sees it; `null` where that may not be read.
    pub pipe_directory: Option<String>,
    /// The directory of its logs, as it sees it.
    pub log_directory: Option<String>,
    /// The token of another manager in its environment: that one may change it at any time.
    pub held_by: Option<String>,
    /// What was read from it just now, in one session; `null` where it could not be.
    pub effective: Option<Effective>,
    /// Its clients; empty where it could not be read.
    pub clients: Vec<ForeignClientView>,
    /// What could not be read of it, and why.
    pub unreadable: Option<String>,
    /// What it can be adopted as.
    pub adoption: AdoptionView,
}

/// A client of a foreign daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ForeignClientView {
    /// Its process ID and start time.
    pub id: ClientId,
    /// Its process ID.
    pub pid: u32,
    /// The server it is connected to, by process ID.
    pub server: u32,
    /// Its user.
    pub uid: Option<u32>,
    /// Its command line.
    pub command: String,
    /// When it started, in unix milliseconds.
    pub since: i64,
    /// Its memory on each GPU.
    pub memory: Vec<ClientMemory>,
}

/// What a foreign daemon can be adopted as, as of now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AdoptionView {
    /// As one that this manager keeps.
    pub managed: VerdictView,
    /// As one that it only looks at.
    pub observed: VerdictView,
}

/// Whether something can be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct VerdictView {
    /// Whether it can.
    pub possible: bool,
    /// Why not, with the remedy.
    pub reason: Option<String>,
    /// What to know of it before.
    pub notes: Vec<String>,
}

impl Service {
    /// Every foreign control daemon by process ID, each read in a session of its own.
    pub async fn foreign_daemons(&self, actor: &Actor) -> Result<Vec<ForeignDaemonView>, ServiceError> {
        actor.may(Right::View)?;
        let lookout = &self.parts.fleet.context().lookout;
        let seen = lookout.scan().await;
        let mut foreign: Vec<Neighbour> =
            seen.iter().filter(|neighbour| lookout.owner(&neighbour.daemon).is_none()).cloned().collect();
        foreign.sort_by_key(|neighbour| neighbour.daemon.identity.pid);
        let gpus = self.gpus().await?;
        let views = join_all(foreign.into_iter().map(|neighbour| self.foreign_view(neighbour, &gpus))).await;
        views.into_iter().collect()
    }

    /// One foreign control daemon by its process ID and start time.
    pub async fn foreign_daemon(&self, actor: &Actor, id: &str) -> Result<ForeignDaemonView, ServiceError> {
        actor.may(Right::View)?;
        let not_found = |reason: &str| ServiceError::NotFound {
            kind: "foreign control daemon",
            name: format!("{}: {reason}", id.chars().take(40).collect::<String>()),
        };
        let known = ClientId::parse(id).map_err(|_| {
            not_found("it is named by a process ID, a hyphen and a start time, as the list gives it")
        })?;
        let identity = Identity::from(known);
        let lookout = &self.parts.fleet.context().lookout;
        let neighbour = lookout.inspect(identity).await.map_err(|reason| not_found(&reason))?;
        if let Some(owner) = lookout.owner(&neighbour.daemon) {
            return Err(not_found(&format!("it is daemon {owner} of this manager")));
        }
        let gpus = self.gpus().await?;
        self.foreign_view(neighbour, &gpus).await
    }

    async fn foreign_view(
        &self,
        neighbour: Neighbour,
        gpus: &[Gpu],
    ) -> Result<ForeignDaemonView, ServiceError> {
        let look = Box::pin(self.parts.fleet.context().read_foreign(&neighbour)).await;
        let candidate = self.candidate(&neighbour, &look);
        let adoption = AdoptionView {
            managed: self.verdict(&candidate, Management::Managed, gpus).await?,
            observed: self.verdict(&candidate, Management::Observed, gpus).await?,
        };
        let (look, unreadable) = match look {
            Ok(look) => (Some(look), None),
            Err(reason) => (None, Some(reason)),
        };
        let (effective, clients) =
            look.map_or((None, Vec::new()), |look| (Some(look.effective), look.clients));
        let Neighbour { daemon, gpus } = neighbour;
        let around = daemon.environment.ok();
        Ok(ForeignDaemonView {
            id: ClientId { pid: daemon.identity.pid, start_time: daemon.identity.start_time },
            pid: daemon.identity.pid,
            uid: daemon.uid,
            options: daemon.options,
            multi_user: daemon.multi_user,
            static_partitions: daemon.mode == Mode::Static,
            gpus: gpus.ok(),
            pipe_directory: around.as_ref().map(|around| around.pipe_directory.display().to_string()),
            log_directory: around.as_ref().map(|around| around.log_directory.display().to_string()),
            held_by: around.and_then(|around| around.token),
            effective,
            clients: clients.into_iter().map(client_view).collect(),
            unreadable,
            adoption,
        })
    }

    async fn verdict(
        &self,
        candidate: &Candidate,
        management: Management,
        gpus: &[Gpu],
    ) -> Result<VerdictView, ServiceError> {
        let impossible =
            |reason: String| VerdictView { possible: false, reason: Some(reason), notes: Vec::new() };
        let Reading { spec, notes } = match candidate.adopt(management, self.parts.manager_uid, gpus) {
            Ok(reading) => reading,
            Err(reason) => return Ok(impossible(reason.to_string())),
        };
        if management == Management::Managed {
            let mut reader = self.parts.store.read().await?;
            for gpu in &spec.gpus {
                if let Some(holder) = store::daemons::holder(&mut reader, gpu).await? {
                    return Ok(impossible(held(gpu, &holder)));
                }
            }
        }
        Ok(VerdictView { possible: true, reason: None, notes })
    }

    /// What a verdict on adoption goes by.
    pub(super) fn candidate(&self, neighbour: &Neighbour, look: &Result<ForeignLook, String>) -> Candidate {
        let Neighbour { daemon, gpus } = neighbour;
        let around = daemon.environment.as_ref();
        let reachable = match around {
            Ok(around)
                if around.pipe_directory.to_str().is_none() || around.log_directory.to_str().is_none() =>
            {
                Err("its directories have names that are no text".to_owned())
            }
            Ok(around) => around.reachable.clone(),
            Err(reason) => Err(reason.clone()),
        };
        let in_force = gpus.clone().and_then(|gpus| {
            let look = look.as_ref().map_err(Clone::clone)?;
            Ok(InForce {
                gpus,
                mode: daemon.mode,
                multi_user: daemon.multi_user,
                effective: look.effective.clone(),
                limited_by_uuid: look.limited_by_uuid.clone(),
            })
        });
        let capability = &self.parts.fleet.context().capability;
        Candidate {
            uid: daemon.uid,
            held: around.is_ok_and(|around| around.token.is_some()),
            mode: daemon.mode,
            mode_unsupported: capability.lacks_static().filter(|_| daemon.mode == Mode::Static),
            multi_user: daemon.multi_user,
            unreachable: reachable.err(),
            gpus: gpus.clone(),
            in_force,
        }
    }
}

/// That a GPU is another daemon's of this manager.
pub(super) fn held(gpu: &GpuUuid, holder: &DaemonName) -> String {
    format!("GPU {gpu} belongs to daemon {holder}: take it from there first, or choose another GPU")
}

fn client_view(client: ClientFacts) -> ForeignClientView {
    ForeignClientView {
        id: client.id,
        pid: client.id.pid,
        server: client.server,
        uid: client.uid,
        command: client.command,
        since: client.since,
        memory: client.memory.into_iter().map(|(gpu, used_bytes)| ClientMemory { gpu, used_bytes }).collect(),
    }
}
