//! Control daemons outside this manager: listed, and checked for adoption.

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use crate::domain::access::Right;
use crate::domain::client::{ClientFacts, ClientId, ClientMemory};
use crate::domain::daemon::{Effective, Management, Mode};
use crate::domain::foreign::{AdoptedSpec, AdoptionCandidate, InForce};
use crate::domain::foreign_owner::ForeignOwner;
use crate::domain::gpu::Gpu;
use crate::domain::{DaemonName, GpuUuid};
use crate::gpu::{GpuDriver, Inventory};
use crate::host::Identity;
use crate::service::access::context::RequestContext;
use crate::service::change::held_by;
use crate::service::{Backend, Result, Service, ServiceError};
use crate::store;
use crate::supervisor::{ForeignDaemon, ForeignPoll};

/// A control daemon on this host that is not this manager's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ForeignDaemonView {
    /// Its process ID and start time, which identify the process.
    pub id: ClientId,
    /// Its process ID.
    pub pid: u32,
    /// The user it runs as.
    pub uid: Option<u32>,
    /// Its command line.
    pub options: Vec<String>,
    /// True if it takes clients of several users (`-M`).
    pub multi_user: bool,
    /// True if it serves static SM partitions (`-S`).
    pub static_partitions: bool,
    /// The GPUs it serves, in its own order; `null` if unknown.
    pub gpus: Option<Vec<GpuUuid>>,
    /// Its pipe directory, as it sees it; `null` if that cannot be read.
    pub pipe_directory: Option<String>,
    /// Its log directory, as it sees it.
    pub log_directory: Option<String>,
    /// The token of another manager in its environment, which may change it at any time.
    pub held_by: Option<String>,
    /// True if this manager started it and its database has lost it: `POST /foreign-daemons/adopt-lost` adopts it again.
    #[serde(default)]
    pub lost: bool,
    /// Owner, as far as it is known: its tenant, service, container or process.
    pub owner: ForeignOwner,
    /// Steps to end it for good, or to make it this manager's.
    pub remedy: String,
    /// Its settings, read in one session; `null` if they could not be read.
    pub effective: Option<Effective>,
    /// Its clients; empty if they could not be read.
    pub clients: Vec<ForeignClientView>,
    /// Parts that could not be read, and the reason; `null` if all could be read.
    pub unreadable: Option<String>,
    /// Result of the present check for its adoption, in either mode.
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
    /// When it started.
    #[serde(with = "crate::domain::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub since: i64,
    /// Its memory on each GPU.
    pub memory: Vec<ClientMemory>,
}

/// Result of the present check for the adoption of a foreign daemon, in either mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AdoptionView {
    /// Result for adoption as a managed daemon.
    pub managed: VerdictView,
    /// Result for adoption as a daemon that is only observed.
    pub observed: VerdictView,
}

/// Result of the check for an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct VerdictView {
    /// True if the action is possible.
    pub possible: bool,
    /// Reason why it is not possible, with the remedy; `null` if it is possible.
    pub reason: Option<String>,
    /// Remarks to read before the action.
    pub notes: Vec<String>,
}

impl Service {
    /// Every foreign control daemon by process ID, each read in its own session.
    pub async fn foreign_daemons(&self, ctx: &RequestContext) -> Result<Vec<ForeignDaemonView>> {
        let backend = self.with(&ctx.require(Right::View)?);
        let scanner = &backend.parts.fleet.context().foreign_daemons;
        let scan = scanner.scan().await;
        let mut foreign: Vec<ForeignDaemon> =
            scan.iter().filter(|neighbour| scanner.owner(&neighbour.daemon).is_none()).cloned().collect();
        foreign.sort_by_key(|neighbour| neighbour.daemon.identity.pid);
        let gpus = backend.gpus().await?;
        let views =
            join_all(foreign.into_iter().map(|neighbour| backend.foreign_view(neighbour, &gpus))).await;
        views.into_iter().collect()
    }

    /// One foreign control daemon by its process ID and start time.
    pub async fn foreign_daemon(&self, ctx: &RequestContext, id: &str) -> Result<ForeignDaemonView> {
        let backend = self.with(&ctx.require(Right::View)?);
        let not_found = |reason: &str| ServiceError::NotFound {
            kind: "foreign control daemon",
            name: format!("{}: {reason}", id.chars().take(40).collect::<String>()),
        };
        let process = ClientId::parse(id)
            .map_err(|_| not_found("give its process ID, a hyphen and its start time, as in the list"))?;
        let identity = Identity::from(process);
        let scanner = &backend.parts.fleet.context().foreign_daemons;
        let neighbour = scanner.inspect(identity).await.map_err(|reason| not_found(&reason))?;
        if let Some(owner) = scanner.owner(&neighbour.daemon) {
            return Err(not_found(&format!("it is daemon {owner} of this manager")));
        }
        let gpus = backend.gpus().await?;
        backend.foreign_view(neighbour, &gpus).await
    }
}

impl Backend {
    async fn foreign_view(&self, neighbour: ForeignDaemon, gpus: &[Gpu]) -> Result<ForeignDaemonView> {
        let poll = Box::pin(self.parts.fleet.context().read_foreign(&neighbour)).await;
        let candidate = self.candidate(&neighbour, &poll).await;
        let adoption = AdoptionView {
            managed: self.verdict(&candidate, Management::Managed, gpus).await?,
            observed: self.verdict(&candidate, Management::Observed, gpus).await?,
        };
        let (poll, unreadable) = match poll {
            Ok(poll) => (Some(poll), None),
            Err(reason) => (None, Some(reason)),
        };
        let (effective, clients) =
            poll.map_or((None, Vec::new()), |poll| (Some(poll.effective), poll.clients));
        let ForeignDaemon { daemon, gpus } = neighbour;
        let around = daemon.environment.ok();
        let path = around.as_ref().map(|around| around.pipe_directory.display().to_string());
        let id = ClientId::from(daemon.identity);
        let mut remedy = if candidate.lost {
            "take it back with `mps-manager daemon adopt --all-ours`".to_owned()
        } else {
            daemon.owner.remedy(path.as_deref())
        };
        if adoption.managed.possible && !candidate.lost && !daemon.owner.is_supervised() {
            remedy = format!("{remedy}, or adopt it (`mps-manager daemon adopt NAME --process {id}`)");
        }
        Ok(ForeignDaemonView {
            id,
            pid: daemon.identity.pid,
            uid: daemon.uid,
            options: daemon.options,
            multi_user: daemon.multi_user,
            static_partitions: daemon.mode == Mode::Static,
            gpus: gpus.ok(),
            pipe_directory: path,
            log_directory: around.as_ref().map(|around| around.log_directory.display().to_string()),
            held_by: around.and_then(|around| around.token),
            lost: candidate.lost,
            owner: daemon.owner,
            remedy,
            effective,
            clients: clients.into_iter().map(client_view).collect(),
            unreadable,
            adoption,
        })
    }

    async fn verdict(
        &self,
        candidate: &AdoptionCandidate,
        management: Management,
        gpus: &[Gpu],
    ) -> Result<VerdictView> {
        let impossible =
            |reason: String| VerdictView { possible: false, reason: Some(reason), notes: Vec::new() };
        let AdoptedSpec { spec, notes } = match candidate.adopt(management, self.parts.manager_uid, gpus) {
            Ok(reading) => reading,
            Err(reason) => return Ok(impossible(reason.to_string())),
        };
        if management == Management::Managed {
            let mut reader = self.parts.store.read().await?;
            if let Some(reason) = held(&mut reader, &spec.gpus, None, gpus).await? {
                return Ok(impossible(reason));
            }
        }
        Ok(VerdictView { possible: true, reason: None, notes })
    }

    /// Collects the facts that the check for adoption needs.
    pub(super) async fn candidate(
        &self,
        neighbour: &ForeignDaemon,
        poll: &Result<ForeignPoll, String>,
    ) -> AdoptionCandidate {
        let ForeignDaemon { daemon, gpus } = neighbour;
        let around = daemon.environment.as_ref();
        let reachable = match around {
            Ok(around)
                if around.pipe_directory.to_str().is_none() || around.log_directory.to_str().is_none() =>
            {
                Err("the names of its directories are not valid UTF-8".to_owned())
            }
            Ok(around) => around.reachable.clone(),
            Err(reason) => Err(reason.clone()),
        };
        let in_force = gpus.clone().and_then(|gpus| {
            let poll = poll.as_ref().map_err(Clone::clone)?;
            Ok(InForce {
                gpus,
                mode: daemon.mode,
                multi_user: daemon.multi_user,
                effective: poll.effective.clone(),
                limited_by_uuid: poll.limited_by_uuid.clone(),
            })
        });
        let capability = &self.parts.fleet.context().capability;
        let driver = self.query_inventory(Inventory::known_driver).await.ok();
        let driver = driver.and_then(Result::ok).and_then(GpuDriver::running);
        AdoptionCandidate {
            uid: daemon.uid,
            held: around.is_ok_and(|around| around.token.is_some()),
            lost: self.lost_name(neighbour).is_some(),
            other_driver: driver
                .and_then(|driver| capability.process_of_other_driver(daemon.identity.pid, &driver)),
            mode: daemon.mode,
            mode_unsupported: capability.lacks_static().filter(|_| daemon.mode == Mode::Static),
            multi_user: daemon.multi_user,
            owner: daemon.owner.clone(),
            unreachable: reachable.err(),
            gpus: gpus.clone(),
            in_force,
        }
    }
}

/// Returns the reason why these GPUs cannot be used: a daemon of this manager other than `name` has one of them.
async fn held(
    db: store::Transaction<'_>,
    gpus: &[GpuUuid],
    name: Option<&DaemonName>,
    all_gpus: &[Gpu],
) -> Result<Option<String>> {
    for gpu in gpus {
        if let Some(holder) = store::daemons::holder(&mut *db, gpu).await?
            && Some(&holder) != name
        {
            return Ok(Some(held_by(gpu, &holder, all_gpus)));
        }
    }
    Ok(None)
}

/// Refuses the GPUs if a daemon of this manager other than `name` has one of them.
pub(super) async fn refuse_held(
    db: store::Transaction<'_>,
    gpus: &[GpuUuid],
    name: Option<&DaemonName>,
    all_gpus: &[Gpu],
) -> Result<()> {
    held(db, gpus, name, all_gpus).await?.map_or(Ok(()), |reason| Err(ServiceError::Conflict(reason)))
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
