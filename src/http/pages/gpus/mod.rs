//! GPUs: the list, and one GPU with its SM map, memory and processes.

mod replace;
mod row;

pub(super) use row::{GpuDisplayNames, GpuRow, PicturedGpu, mig_mode, unheld};

use askama::Template;
use axum::Router;
use axum::routing::get;

use super::banner::Banner;
use super::chart::{Chart, ChartLimit, SpanQuery};
use super::format;
use super::forms::Form;
use super::frame::{Frame, Section};
use super::lists::ListQuery;
use super::rendered;
use super::sharing::SharingPicture;
use super::sorting::{SortColumns, SortValue, Sorting};
use super::vitals::VitalFigure;
use crate::domain::device_index::DeviceIndex;
use crate::domain::history::Measure;
use crate::domain::incident::IncidentFilter;
use crate::domain::layout::Enforcement;
use crate::domain::layout::status::PartitionStatus;
use crate::http::AppState;
use crate::http::extract::{Call, Path, Query};
use crate::http::problem::{Answer, Problem, Reply};
use crate::service::ServiceError;
use crate::service::daemons::DaemonView;
use crate::service::history::HistoryOf;
use crate::service::host::{GpuProcessKind, GpuProcessView, GpuView};
use crate::service::page::{MAX_LIMIT, Page};
use crate::service::tenants::clients::{ClientFilter, ClientView};

pub(super) fn router() -> Router<AppState> {
    Router::new()
        .route("/gpus", get(list))
        .route("/gpus/{gpu}", get(show))
        .route("/gpus/{gpu}/history", get(history))
        .route("/gpus/{gpu}/replace", get(replace::ask).post(replace::replace))
}

/// Names the GPUs of a limit by their indices, which are shorter than UUIDs, in the field of a form.
pub(super) async fn name_gpus_by_index(
    Call { app, ctx }: &Call,
    form: &mut Form,
    field: &str,
) -> Result<(), ServiceError> {
    let text = form.text(field).to_owned();
    if !text.contains('=') {
        return Ok(());
    }
    let gpus = app.service.gpu_views(ctx).await?;
    let index = |name: &str| gpus.iter().find(|gpu| gpu.uuid.as_str() == name)?.place();
    let mut entries: Vec<(Option<DeviceIndex>, String)> = text
        .split(',')
        .map(|entry| match entry.split_once('=').and_then(|(gpu, size)| Some((index(gpu)?, size))) {
            Some((index, size)) => (Some(index), format!("{index}={size}")),
            None => (None, entry.to_owned()),
        })
        .collect();
    entries.sort();
    let entries: Vec<String> = entries.into_iter().map(|(_, entry)| entry).collect();
    form.replace(field, entries.join(","));
    Ok(())
}

/// Most tenants that the page of a GPU shows one by one.
const OF_A_PAGE: usize = 32;

#[derive(Template)]
#[template(path = "gpus.html")]
struct GpusPage {
    frame: Frame,
    gpus: Vec<PicturedGpu>,
    sorting: Sorting,
}

const COLUMNS: SortColumns<'static, PicturedGpu> = &[
    ("memory", |(row, _)| SortValue::number(row.gpu.memory_used)),
    ("limits", |(row, _)| SortValue::number(Some(row.gpu.memory_limits))),
    ("utilisation", |(row, _)| {
        SortValue::number(row.gpu.vitals.as_ref().and_then(|vitals| vitals.utilization_percent))
    }),
    ("temperature", |(row, _)| {
        SortValue::number(row.gpu.vitals.as_ref().and_then(|vitals| vitals.temperature_celsius))
    }),
];

#[derive(Template)]
#[template(path = "gpu.html")]
struct GpuPage {
    frame: Frame,
    banner: Banner,
    row: GpuRow,
    daemon: Option<DaemonView>,
    /// Picture of its sharing; `None` where no daemon has it.
    picture: Option<SharingPicture>,
    /// Partitions enforced by thread percentages, which reserve nothing.
    shares: Vec<PartitionStatus>,
    /// The processes on it, with those that are clients; `None` if the driver does not list them.
    processes: Option<Vec<(GpuProcessView, Option<ClientView>)>>,
    /// Its MIG instances, or its MLOPart devices.
    parts: Vec<GpuRow>,
    vitals: Vec<VitalFigure>,
    /// Memory and clients of tenants on it, and its vitals.
    chart: Chart,
}

async fn list(call: Call, query: ListQuery) -> Reply {
    let mut gpus = call.pictures().await?;
    query.sort(&mut gpus, COLUMNS)?;
    let frame = call.frame(Section::Gpus, "GPUs").await.live();
    Ok(rendered(&GpusPage { frame, gpus, sorting: Sorting::of(&query) }))
}

async fn show(call: Call, Path(name): Path<String>, Query(query): Query<SpanQuery>) -> Reply {
    let Call { app, ctx } = &call;
    let row = GpuRow::of(app.service.gpu(ctx, &name).await?);
    let daemon = match &row.gpu.daemon {
        Some(daemon) => Some(app.service.daemon(ctx, daemon, false).await?),
        None => None,
    };
    let (sharing, colours) = (app.service.sharing(ctx).await?, app.service.tenant_colours(ctx).await?);
    let both = daemon.as_ref().zip(sharing.get(row.key()));
    let picture = both
        .map(|(daemon, sharing)| SharingPicture::of(&row.gpu, daemon, sharing, &colours, OF_A_PAGE, None));
    let shares = daemon.as_ref().map(|daemon| shares(&row.gpu, daemon)).unwrap_or_default();
    let processes = processes(&call, &row.gpu).await?;
    let vitals = call.vitals([&row.gpu])?.remove(row.key()).unwrap_or_default();
    let chart = chart(&call, &row.gpu, query).await?;
    let frame = call.frame(Section::Gpus, &row.called()).await.live();
    let of_gpu = IncidentFilter { gpu: Some(row.key().clone()), ..IncidentFilter::default() };
    let banner = Banner::of(&call, of_gpu).await?;
    let parts = call.gpus().await?.into_iter().filter(|part| part.is_part_of(row.key())).collect();
    Ok(rendered(&GpuPage { frame, banner, row, daemon, picture, shares, processes, parts, vitals, chart }))
}

fn shares(gpu: &GpuView, daemon: &DaemonView) -> Vec<PartitionStatus> {
    let layout = daemon.status.as_ref().and_then(|status| status.layout.as_ref());
    let layout = layout.filter(|layout| layout.enforcement == Enforcement::Percentage);
    let partitions = layout.into_iter().flat_map(|layout| &layout.partitions);
    partitions.filter(|partition| partition.gpu == gpu.uuid).cloned().collect()
}

async fn processes(
    Call { app, ctx }: &Call,
    gpu: &GpuView,
) -> Result<Option<Vec<(GpuProcessView, Option<ClientView>)>>, Problem> {
    let Some(listed) = &gpu.processes else { return Ok(None) };
    let page = Page::first(MAX_LIMIT);
    let clients = app.service.clients(ctx, &ClientFilter::default(), false, &page).await?.items;
    let row = |process: &GpuProcessView| {
        (process.clone(), clients.iter().find(|client| client.pid == process.pid).cloned())
    };
    let mut rows: Vec<_> = listed.iter().map(row).collect();
    // Processes that bypass all limits need attention.
    rows.sort_by_key(|(process, _)| (process.kind != GpuProcessKind::Bypass, process.pid));
    Ok(Some(rows))
}

/// The charts of a GPU, with its limits.
async fn chart(call: &Call, gpu: &GpuView, SpanQuery { span }: SpanQuery) -> Result<Chart, ServiceError> {
    let vitals = gpu.vitals.as_ref();
    let limit = |name, value: Option<f64>| value.map(|value| ChartLimit { name, value });
    let slowdown = vitals.and_then(|vitals| vitals.slowdown_celsius).map(f64::from);
    let limits = [
        (Measure::Power, limit("limit", vitals.and_then(|vitals| vitals.power_limit_watts))),
        (Measure::Temperature, limit("slows down", slowdown)),
    ];
    let page = format!("/gpus/{}", gpu.uuid);
    let mut chart = Chart::of(call, HistoryOf::Gpu(&gpu.uuid), page, span, &limits).await?;
    // Vitals that the driver reports are there from the first poll, and others never come; tenants use what a daemon has.
    let may_come = |measure: Measure| measure.is_of_tenants() && gpu.daemon.is_some();
    chart.panels.retain(|panel| !panel.lines.is_empty() || may_come(panel.measure));
    Ok(chart)
}

/// Answers with the charts of a GPU, for the script that draws them.
async fn history(call: Call, Path(name): Path<String>, Query(query): Query<SpanQuery>) -> Answer<Chart> {
    let gpu = call.app.service.gpu(&call.ctx, &name).await?;
    Ok(axum::Json(chart(&call, &gpu, query).await?))
}
