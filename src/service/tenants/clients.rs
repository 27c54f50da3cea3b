//! Clients: listed with their tenants, and terminated.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::domain::access::Right;
use crate::domain::attribution::{AttributedBy, Candidate, Signs, attribute};
use crate::domain::client::{ClientFacts, ClientId, ClientMemory, StoppedPolicy};
use crate::domain::operation::{Operation, OperationRequest};
use crate::domain::workload::Workload;
use crate::domain::{DaemonName, TenantName};
use crate::host;
use crate::service::access::context::RequestContext;
use crate::service::access::redaction::Redact as _;
use crate::service::error::Found as _;
use crate::service::page::{Page, Paged};
pub use crate::service::tenants::client_view::ClientView;
use crate::service::tenants::client_view::StartingLimits;
use crate::service::{Backend, Result, Service, ServiceError, WriteOptions};
use crate::store;
use crate::supervisor::TerminateError;

/// Filters for clients.
#[derive(Debug, Clone, Default)]
pub struct ClientFilter {
    /// Clients of this daemon.
    pub daemon: Option<DaemonName>,
    /// Clients of this tenant.
    pub tenant: Option<TenantName>,
}

impl Service {
    /// Clients by process ID; with `fresh`, after a poll of every daemon concerned.
    pub async fn clients(
        &self,
        ctx: &RequestContext,
        filter: &ClientFilter,
        fresh: bool,
        page: &Page,
    ) -> Result<Paged<ClientView>> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        if fresh {
            let daemons = backend.parts.fleet.all().into_iter().map(|(name, _)| name);
            let scope = backend.daemon_in_scope(ctx).await?;
            let wanted = daemons
                .filter(|name| filter.daemon.as_ref().is_none_or(|daemon| daemon == name))
                .filter(|name| scope.as_ref().is_none_or(|scope| scope.as_ref() == Some(name)));
            let polls = wanted.filter_map(|name| backend.parts.fleet.get(&name)).map(|handle| {
                let timeout = backend.parts.timeout;
                async move { handle.fresh(timeout).await }
            });
            for poll in futures_util::future::join_all(polls).await {
                poll?;
            }
        }
        let after = if page.after.is_empty() { None } else { Some(ClientId::parse(&page.after)) };
        let after = after.transpose().map_err(|error| ServiceError::field("/cursor", error.to_string()))?;
        let rows = usize::try_from(page.rows()).unwrap_or(usize::MAX);
        let all = backend.attributed().await?;
        let clients = all
            .iter()
            .filter(|client| ctx.actor.sees(client.tenant.as_ref()))
            .filter(|client| after.is_none_or(|after| client.id > after))
            .filter(|client| filter.daemon.as_ref().is_none_or(|daemon| client.daemon == *daemon))
            .filter(|client| filter.tenant.is_none() || client.tenant == filter.tenant)
            .take(rows)
            .cloned()
            .collect();
        Ok(page.cut(clients, |client: &ClientView| client.id.to_string()))
    }

    /// Lists clients for callers that see nothing else: refused while no daemon is read, since an empty list would claim that there are
    /// none.
    pub async fn known_clients(
        &self,
        ctx: &RequestContext,
        filter: &ClientFilter,
        fresh: bool,
        page: &Page,
    ) -> Result<Paged<ClientView>> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        match backend.read_only().await? {
            Some(read_only) => Err(ServiceError::Unavailable(read_only.reason)),
            None => self.clients(ctx, filter, fresh, page).await,
        }
    }

    /// One client at the last poll.
    pub async fn client(&self, ctx: &RequestContext, id: ClientId) -> Result<ClientView> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let clients = backend.attributed().await?;
        let mut visible = clients.iter().filter(|client| ctx.actor.sees(client.tenant.as_ref()));
        visible.find(|client| client.id == id).cloned().found("client", &id)
    }

    /// Returns true if a client is stopped, by a signal or a debugger, so that MPS must not terminate it.
    pub async fn is_client_stopped(&self, ctx: &RequestContext, id: ClientId) -> Result<bool> {
        ctx.require(Right::ViewOwn)?;
        self.client(ctx, id).await?;
        Ok(host::process::is_stopped(id.pid))
    }

    /// Requests the termination of a client; `stopped` is the policy for a stopped one, which is refused by default.
    pub async fn terminate(
        &self,
        ctx: &RequestContext,
        id: ClientId,
        stopped: StoppedPolicy,
        options: WriteOptions,
    ) -> Result<Operation> {
        // The client's tenant is determined below, where another's client is not found.
        let right = ctx.actor.scope().map_or(Right::Operate, Right::UseTenant);
        let permit = ctx.require(right)?;
        let backend = self.with(&permit);
        // A repeated request finds the client gone, as intended.
        if let Some(operation) = backend.answered::<Operation>(ctx).await? {
            return Ok(operation.redacted_for(&ctx.actor));
        }
        let client = match self.client(ctx, id).await {
            Ok(client) => client,
            // A client that connected in the last seconds is missing from the last poll.
            Err(ServiceError::NotFound { .. }) => {
                self.clients(ctx, &ClientFilter::default(), true, &Page::first(1)).await?;
                self.client(ctx, id).await?
            }
            Err(error) => return Err(error),
        };
        if stopped == StoppedPolicy::Refuse && host::process::is_stopped(id.pid) {
            return Err(ServiceError::Conflict(TerminateError::Stopped(id).to_string()).visible_to_tenants());
        }
        let request = OperationRequest::TerminateClient { client: id, stopped };
        backend.operate_now(&permit, client.daemon, request, options).await
    }
}

impl Backend {
    /// All clients at the last poll, each with its tenant.
    pub(in crate::service) async fn attributed(&self) -> Result<Arc<Vec<ClientView>>> {
        let version = self.version();
        if let Some(kept) = self.cache.clients.at(version) {
            return Ok(kept);
        }
        let by_daemon = self.parts.fleet.of_each(|observed| observed.clients.clone());
        if by_daemon.iter().all(|(_, clients)| clients.is_empty()) {
            return Ok(Arc::default());
        }
        let mut reader = self.parts.store.read().await?;
        let leases = store::leases::all(&mut reader, &self.parts.fleet.context().boot_id).await?;
        drop(reader);
        let tenants = self.stored_tenants().await?;
        let mut views = Vec::new();
        for (daemon, clients) in by_daemon.into_iter().filter(|(_, clients)| !clients.is_empty()) {
            let candidates = Candidate::of(&tenants, &daemon);
            for client in clients.iter() {
                let (tenant, attributed_by) = attribute(&Signs::from(client), &daemon, &leases, &candidates);
                views.push(view(client.clone(), daemon.clone(), tenant, attributed_by));
            }
        }
        let named: BTreeSet<TenantName> = views.iter().filter_map(|client| client.tenant.clone()).collect();
        let workloads: BTreeMap<&TenantName, Workload> = tenants
            .iter()
            .filter(|tenant| named.contains(&tenant.name))
            .filter_map(|one| Some((&one.name, Workload::of(&one.spec.labels)?)))
            .collect();
        for client in &mut views {
            let workload = client.tenant.as_ref().and_then(|tenant| workloads.get(tenant));
            client.workload = workload.map(ToString::to_string);
        }
        views.sort_by_key(|client| client.id);
        Ok(self.cache.clients.keep(version, views))
    }

    /// The daemon of the tenant that an actor is bound to, if that tenant exists; `None` for an actor that may see all
    /// daemons.
    async fn daemon_in_scope(&self, ctx: &RequestContext) -> Result<Option<Option<DaemonName>>> {
        let Some(tenant) = ctx.actor.scope() else { return Ok(None) };
        let tenant = store::tenants::get(&mut *self.parts.store.read().await?, tenant).await?;
        Ok(Some(tenant.map(|tenant| tenant.spec.daemon)))
    }
}

fn view(
    client: ClientFacts,
    daemon: DaemonName,
    tenant: Option<TenantName>,
    attributed_by: AttributedBy,
) -> ClientView {
    let memory =
        client.memory.into_iter().map(|(gpu, used_bytes)| ClientMemory { gpu, used_bytes }).collect();
    ClientView {
        id: client.id,
        pid: client.id.pid,
        daemon,
        server: client.server,
        tenant,
        workload: None,
        attributed_by,
        uid: client.uid,
        command: client.command,
        since: client.since,
        memory,
        orphaned: client.ancestors.is_empty()
            && client.container.is_none()
            && host::systemd::service(client.id.pid).is_none(),
        container: client.container,
        ancestors: client.ancestors,
        connections: client.connections,
        started_with: StartingLimits {
            percentage: client.active_thread_percentage,
            memory_limits: client.memory_limits,
        },
    }
}
