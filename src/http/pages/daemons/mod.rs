//! Daemons: the list, one daemon, and actions on it.

mod actions;
mod foreign;
mod form;
mod logs;
mod rows;
mod settings;

use askama::Template;
use axum::Router;
use axum::routing::{get, post};

pub(super) use self::rows::{DaemonSummary, daemon_names, daemon_rows};

use self::rows::clients;
use self::settings::DaemonSettingRow;
use super::banner::Banner;
use super::format::{self, Amount, Moment, Tone};
use super::frame::{Frame, Section};
use super::gpus::{GpuRow, called, name_of, named};
use super::lists::ROWS;
use super::operations::{OperationSummary, under_way};
use super::rendered;
use super::spec_form;
use super::tenants::TenantSummary;
use crate::domain::condition::ConditionType;
use crate::domain::daemon::{DaemonSpec, DesiredState, Management, Mode, Phase};
use crate::domain::drift::DriftPolicy;
use crate::domain::event::{Event, EventFilter};
use crate::domain::gpu::GpuRef;
use crate::domain::incident::IncidentFilter;
use crate::domain::layout::Enforcement;
use crate::domain::layout::active::PartitionPolicy;
use crate::domain::layout::record::PartitionDrift;
use crate::domain::layout::status::{LayoutState, LayoutStatus};
use crate::domain::operation::OperationRequest;
use crate::domain::provisioning::ProvisioningStatus;
use crate::domain::wedge::WedgePolicy;
use crate::domain::{DaemonName, GpuUuid};
use crate::http::AppState;
use crate::http::extract::{Call, Path};
use crate::http::problem::Reply;
use crate::service::daemons::foreign::ForeignDaemonView;
use crate::service::events::Order;
use crate::service::page::{MAX_LIMIT, Page};
use crate::service::tenants::TenantFilter;
use crate::service::tenants::clients::ClientView;

/// Events shown for a daemon.
const EVENTS: u32 = 10;

type Spec = DaemonSpec<GpuRef>;

pub(super) fn router() -> Router<AppState> {
    Router::new()
        .route("/daemons", get(list))
        .route("/daemons/-/new", get(form::new).post(spec_form::create::<Spec>))
        .route("/daemons/{name}", get(show))
        .route("/daemons/{name}/edit", get(spec_form::edit::<Spec>).post(spec_form::change::<Spec>))
        .route("/daemons/{name}/logs", get(logs::show))
        .route("/foreign-daemons/{id}", get(foreign::show))
        .route("/foreign-daemons/{id}/adopt", post(foreign::adopt))
        .merge(actions::router())
}

#[derive(Template)]
#[template(path = "daemons/list.html")]
struct DaemonsPage {
    frame: Frame,
    rows: Vec<DaemonListRow>,
    unheld: Vec<GpuRow>,
    /// Foreign control daemons, with the display names of their GPUs.
    foreign: Vec<(ForeignDaemonView, Vec<(GpuUuid, String)>)>,
}

/// A daemon in the list.
struct DaemonListRow {
    row: DaemonSummary,
    tenants: u64,
    /// Sum of its tenants' memory limits on all its GPUs.
    limits: Amount,
}

#[derive(Template)]
#[template(path = "daemons/daemon.html")]
struct DaemonPage {
    frame: Frame,
    banner: Banner,
    row: DaemonSummary,
    settings: Vec<DaemonSettingRow>,
    clients: Vec<ClientView>,
    tenants: Vec<TenantSummary>,
    has_more_tenants: bool,
    events: Vec<Event>,
    is_adopted: bool,
    /// Its operations that have not ended.
    under_way: Vec<OperationSummary>,
}

impl DaemonPage {
    fn is_wanted(&self) -> bool {
        self.row.daemon.spec.desired_state == DesiredState::Running
    }

    fn is_observed(&self) -> bool {
        self.row.daemon.spec.management == Management::Observed
    }

    fn is_stopped(&self) -> bool {
        let phase = self.row.daemon.status.as_ref().map(|status| status.phase);
        phase == Some(Phase::Stopped) || !self.is_wanted()
    }

    /// Returns true if it was cordoned by an operation that is still running, which uncordoning would undermine.
    fn is_drained(&self) -> bool {
        self.under_way.iter().any(|row| {
            matches!(
                row.operation.request,
                OperationRequest::DrainDaemon { .. } | OperationRequest::BeginMaintenance { .. }
            )
        })
    }

    /// Returns the shares that its strategy gives its tenants.
    fn provisioning(&self) -> Option<&ProvisioningStatus> {
        self.row.daemon.status.as_ref()?.provisioning.as_ref()
    }

    fn mode(&self) -> &'static str {
        mode(self.row.daemon.spec.mode)
    }

    fn drifts(&self) -> bool {
        self.settings.iter().any(DaemonSettingRow::differs)
    }

    fn called(&self, uuid: &GpuUuid) -> String {
        name_of(&self.row.gpus, uuid)
    }

    fn has_no_server(&self) -> bool {
        let effective = self.row.daemon.status.as_ref().and_then(|status| status.effective.as_ref());
        effective.is_none_or(|effective| effective.servers.is_empty())
    }

    /// A drifted partition in words, with the display name of its GPU.
    fn drifted(&self, drift: &PartitionDrift) -> String {
        drift.to_string().replace(drift.gpu.as_str(), &self.called(&drift.gpu))
    }

    /// The number of clients of a server.
    fn clients_of(&self, server: u32) -> usize {
        self.clients.iter().filter(|client| client.server == server).count()
    }
}

/// Returns the number of partitions of the layout that exist, out of all of them, as `2 of 3 created`.
fn made(layout: &LayoutStatus) -> String {
    let of = layout.partitions.len();
    let made = layout.partitions.iter().filter(|one| one.id.is_some()).count();
    format!("{made} of {of} created")
}

/// A mode in words.
pub(super) fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Shared => "shared: all clients share all SMs",
        Mode::Static => "static: each client has the SMs of its partition",
    }
}

async fn list(Call { app, ctx }: Call) -> Reply {
    let service = &app.service;
    let gpus = GpuRow::all(&app, &ctx).await?;
    let counts = service.tenant_counts(&ctx).await?;
    let mut rows = Vec::new();
    for row in daemon_rows(&app, &ctx, &gpus, &Page::first(MAX_LIMIT)).await? {
        let tenants = counts.get(&row.daemon.name).copied().unwrap_or(0);
        let own = |gpu: &&GpuRow| row.daemon.spec.gpus.contains(&gpu.gpu.uuid);
        let limits = Amount(gpus.iter().filter(own).map(|gpu| gpu.gpu.memory_limits).sum());
        rows.push(DaemonListRow { row, tenants, limits });
    }
    let foreign = service.foreign_daemons(&ctx).await?;
    let with_gpus = |daemon: ForeignDaemonView| {
        let gpus = named(&gpus, daemon.gpus.iter().flatten());
        (daemon, gpus)
    };
    let foreign = foreign.into_iter().map(with_gpus).collect();
    let free = |row: &GpuRow| row.gpu.daemon.is_none() && row.gpu.mig_enabled != Some(true);
    let unheld = gpus.into_iter().filter(free).collect();
    let frame = Frame::of(service, &ctx, Section::Daemons, "Daemons").await.live();
    Ok(rendered(&DaemonsPage { frame, rows, unheld, foreign }))
}

async fn show(Call { app, ctx }: Call, Path(name): Path<DaemonName>) -> Reply {
    let service = &app.service;
    let daemon = service.daemon(&ctx, &name, false).await?;
    let gpus = GpuRow::all(&app, &ctx).await?;
    let desired = service.daemon_desired(&ctx, &name)?;
    let clients = clients(&app, &ctx, &name).await?;
    let tenants = service.tenants(&ctx, &TenantFilter::of(&name), &Page::first(ROWS)).await?;
    let has_more_tenants = tenants.next_cursor.is_some();
    let tenants = tenants.items.into_iter().map(TenantSummary::of).collect();
    let from = service.first_event_of_daemon(&ctx, &name).await?;
    let of_daemon =
        IncidentFilter { daemon: Some(name.clone()), from_event: from, ..IncidentFilter::default() };
    let banner = Banner::of(&app, &ctx, of_daemon).await?;
    let about = EventFilter { daemon: Some(name.clone()), from, ..EventFilter::default() };
    let newest = Page::first(EVENTS);
    let events = service.events(&ctx, about, Order::NewestFirst, &newest).await?.items;
    let is_adopted = service.is_adopted(&ctx, &name).await?;
    let row = DaemonSummary::of(daemon, &gpus, clients.len());
    let effective = row.daemon.status.as_ref().and_then(|status| status.effective.as_ref());
    let settings = settings::of(desired.as_ref(), effective, |uuid| called(&gpus, uuid));
    let under_way = under_way(&app, &ctx, Some(&name)).await?;
    let frame = Frame::of(service, &ctx, Section::Daemons, format!("Daemon {name}")).await.live();
    Ok(rendered(&DaemonPage {
        frame,
        banner,
        row,
        settings,
        clients,
        tenants,
        has_more_tenants,
        events,
        is_adopted,
        under_way,
    }))
}
