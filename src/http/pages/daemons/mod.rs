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

pub(super) use self::rows::{DaemonSummary, daemon_rows};

use self::settings::DaemonSettingRow;
use super::banner::Banner;
use super::format::{self, Amount, Amounts, Moment, Tone};
use super::frame::{Frame, Section};
use super::gpus::{GpuDisplayNames, GpuRow};
use super::lists::{ListQuery, ROWS};
use super::operations::{OperationSummary, under_way};
use super::rendered;
use super::sharing::SharingPicture;
use super::sorting::{SortColumns, SortValue, Sorting};
use super::spec_form;
use crate::domain::DaemonName;
use crate::domain::GpuUuid;
use crate::domain::condition::ConditionType;
use crate::domain::daemon::{DaemonSpec, DesiredState, Management, Mode, Phase};
use crate::domain::drift::DriftPolicy;
use crate::domain::event::{Event, EventFilter};
use crate::domain::gpu::GpuRef;
use crate::domain::host_file::HostObject;
use crate::domain::incident::IncidentFilter;
use crate::domain::layout::Enforcement;
use crate::domain::layout::active::PartitionPolicy;
use crate::domain::layout::status::LayoutState;
use crate::domain::mlopart::MlopartDevice;
use crate::domain::operation::OperationRequest;
use crate::domain::wedge::WedgePolicy;
use crate::http::AppState;
use crate::http::extract::{Call, Path};
use crate::http::problem::Reply;
use crate::service::daemons::foreign::ForeignDaemonView;
use crate::service::page::Page;
use crate::service::tenants::clients::{ClientFilter, ClientView};
use crate::service::tenants::{TenantFilter, TenantView};

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

/// A daemon in the list, with the number of its tenants and the sum of their memory limits on all its GPUs.
type DaemonRow = (DaemonSummary, u64, Amount);

#[derive(Template)]
#[template(path = "daemons/list.html")]
struct DaemonsPage {
    frame: Frame,
    rows: Vec<DaemonRow>,
    sorting: Sorting,
    gpus: Vec<GpuRow>,
    names: GpuDisplayNames,
    foreign: Vec<ForeignDaemonView>,
}

const COLUMNS: SortColumns<'static, DaemonRow> = &[
    ("name", |(row, ..)| SortValue::Text(row.daemon.name.natural_key())),
    ("state", |(row, ..)| SortValue::Text(row.badge.words())),
    ("mode", |(row, ..)| SortValue::Text(row.daemon.spec.mode.as_str().to_owned())),
    ("clients", |(row, ..)| SortValue::number(Some(row.clients))),
    ("tenants", |(_, tenants, _)| SortValue::number(Some(*tenants))),
    ("limits", |(.., limits)| SortValue::number(Some(limits.0))),
];

#[derive(Template)]
#[template(path = "daemons/daemon.html")]
struct DaemonPage {
    frame: Frame,
    banner: Banner,
    row: DaemonSummary,
    gpus: GpuDisplayNames,
    /// Pictures of its GPUs.
    pictures: Vec<(GpuRow, SharingPicture)>,
    settings: Vec<DaemonSettingRow>,
    clients: Vec<ClientView>,
    tenants: Vec<TenantView>,
    has_more_tenants: bool,
    events: Vec<Event>,
    is_adopted: bool,
    /// Its operations that have not ended.
    under_way: Vec<OperationSummary>,
    /// Its part of a host file.
    yaml: String,
}

impl DaemonPage {
    fn mlopart_devices(&self) -> Vec<GpuUuid> {
        let effective = self.row.daemon.status.as_ref().and_then(|status| status.effective.as_ref());
        effective.iter().flat_map(|effective| effective.mlopart_devices()).map(MlopartDevice::name).collect()
    }

    fn is_wanted(&self) -> bool {
        self.row.daemon.spec.desired_state == DesiredState::Running
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

    fn drifts(&self) -> bool {
        self.settings.iter().any(DaemonSettingRow::differs)
    }

    fn has_no_server(&self) -> bool {
        let effective = self.row.daemon.status.as_ref().and_then(|status| status.effective.as_ref());
        effective.is_none_or(|effective| effective.servers.is_empty())
    }

    /// The number of clients of a server.
    fn clients_of(&self, server: u32) -> usize {
        self.clients.iter().filter(|client| client.server == server).count()
    }
}

async fn list(call: Call, query: ListQuery) -> Reply {
    let Call { app, ctx } = &call;
    let gpus = call.gpus().await?;
    let tenants = app.service.tenant_counts(ctx).await?;
    let row = |row: DaemonSummary| {
        let gpus = gpus.iter().filter(|gpu| row.daemon.spec.gpus.contains(&gpu.gpu.uuid));
        let limits = Amount(gpus.map(|gpu| gpu.gpu.memory_limits).sum());
        let tenants = tenants.get(&row.daemon.name).copied().unwrap_or_default();
        (row, tenants, limits)
    };
    let mut rows: Vec<DaemonRow> = daemon_rows(&call).await?.into_iter().map(row).collect();
    query.sort(&mut rows, COLUMNS)?;
    let foreign = app.service.foreign_daemons(ctx).await?;
    let frame = call.frame(Section::Daemons, "Daemons").await.live();
    let names = GpuDisplayNames::of(&gpus);
    let sorting = Sorting::of(&query);
    Ok(rendered(&DaemonsPage { frame, rows, sorting, gpus, names, foreign }))
}

async fn show(call: Call, Path(name): Path<DaemonName>) -> Reply {
    let Call { app, ctx } = &call;
    let service = &app.service;
    let daemon = service.daemon(ctx, &name, false).await?;
    let gpus = GpuDisplayNames::of(&call.gpus().await?);
    let desired = service.daemon_desired(ctx, &name)?;
    let clients = call.clients(ClientFilter { daemon: Some(name.clone()), tenant: None }).await?;
    let tenants = service.tenants(ctx, &TenantFilter::of(&name), &Page::first(ROWS)).await?;
    let from = service.first_event_of_daemon(ctx, &name).await?;
    let of_daemon =
        IncidentFilter { daemon: Some(name.clone()), from_event: from, ..IncidentFilter::default() };
    let about = EventFilter { daemon: Some(name.clone()), from, ..EventFilter::default() };
    let row = DaemonSummary::of(daemon, clients.len());
    let effective = row.daemon.status.as_ref().and_then(|status| status.effective.as_ref());
    Ok(rendered(&DaemonPage {
        frame: call.frame(Section::Daemons, format!("Daemon {name}")).await.live(),
        banner: Banner::of(&call, of_daemon).await?,
        settings: settings::of(desired.as_ref(), effective, &gpus),
        events: call.newest_events(about, EVENTS).await?,
        pictures: call.pictures_of(&row.daemon, &row.daemon.spec.gpus, None).await?,
        is_adopted: service.is_adopted(ctx, &name).await?,
        under_way: under_way(&call, Some(&name)).await?,
        has_more_tenants: tenants.next_cursor.is_some(),
        tenants: tenants.items,
        yaml: service.host_object(ctx, HostObject::Daemon(&name, &row.daemon.spec)).await?,
        row,
        gpus,
        clients,
    }))
}
