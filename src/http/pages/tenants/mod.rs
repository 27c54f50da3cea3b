//! Tenants: the list, one tenant, and its creation, change and deletion.

mod environment;
mod form;
mod last_use;
mod leases;
mod prediction;

use askama::Template;
use axum::Router;
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::{get, post};

use self::last_use::{LastUse, with_last_use};
use self::prediction::places;
use super::banner::Banner;
use super::chart::{Chart, ChartLimit, SpanQuery};
use super::format::{self, Amount, Amounts, Badge, Tone, or, or_dash};
use super::forms::rehearsal_refusal;
use super::frame::{Frame, Section};
use super::gpus::{GpuDisplayNames, GpuRow};
use super::lists::{Facet, ListQuery, list_page};
use super::sharing::SharingPicture;
use super::sorting::{SortColumns, SortValue, Sorting};
use super::{rendered, spec_form};
use crate::domain::access::{Right, Role};
use crate::domain::client::LeaseKind;
use crate::domain::condition::ConditionType;
use crate::domain::count::{counted, joined};
use crate::domain::daemon::Mode;
use crate::domain::event::{Event, EventFilter};
use crate::domain::gpu::GpuRef;
use crate::domain::history::Measure;
use crate::domain::host_file::HostObject;
use crate::domain::incident::IncidentFilter;
use crate::domain::layout::status::PartitionStatus;
use crate::domain::provisioning::{ProvisioningStatus, ProvisioningStrategy};
use crate::domain::resolution::context_bytes;
use crate::domain::tenant::{EffectiveMemory, TenantSpec};
use crate::domain::verification::{SettingComparison, SettingValue, Verification, VerifiedSetting};
use crate::domain::{DaemonName, DeviceMemoryLimit, GpuUuid, MemoryLimit, TenantName};
use crate::http::AppState;
use crate::http::extract::{Call, Path, Query};
use crate::http::problem::{Answer, Problem, Reply};
use crate::service::daemons::DaemonView;
use crate::service::history::HistoryOf;
use crate::service::page::{MAX_LIMIT, Page, Paged};
use crate::service::tenants::clients::{ClientFilter, ClientView};
use crate::service::tenants::deletion::TenantDeletion;
use crate::service::tenants::leases::HeldLease;
use crate::service::tenants::{EnvironmentView, TenantFilter, TenantView};
use crate::service::{ServiceError, WriteOptions, etag};
use crate::words::priority;

type Spec = TenantSpec<GpuRef>;

pub(super) fn router() -> Router<AppState> {
    Router::new()
        .route("/tenants", get(all).post(spec_form::create::<Spec>))
        .route("/tenants/-/new", get(form::new))
        .route("/tenants/-/predict", post(form::predict))
        .route("/tenants/{name}", get(show))
        .route("/tenants/{name}/edit", get(spec_form::edit::<Spec>).post(spec_form::change::<Spec>))
        .route("/tenants/{name}/delete", get(confirm_delete).post(delete))
        .route("/tenants/{name}/history", get(history))
        .route("/tenants/{name}/leases/{id}/revoke", get(leases::confirm_revoke).post(leases::revoke))
        .route("/tenants/{name}/verify", post(verify))
}

/// Events shown for a tenant.
const EVENTS: u32 = 10;

type TenantRow = (TenantView, LastUse);

list_page!(TenantsPage, "tenants.html", TenantRow, facets: Vec<Facet>, sorting: Sorting);

const COLUMNS: SortColumns<'static, TenantRow> = &[
    ("name", |(tenant, _)| SortValue::Text(tenant.name.natural_key())),
    ("state", |(tenant, _)| SortValue::Text(format::ready(&tenant.status.conditions).word.to_owned())),
    ("daemon", |(tenant, _)| SortValue::Text(tenant.spec.daemon.natural_key())),
    ("memory", |(tenant, _)| {
        let limit = tenant.spec.device_memory_limit.as_ref();
        SortValue::number(limit.and_then(|limit| limit.sizes().map(MemoryLimit::bytes).max()))
    }),
    ("share", |(tenant, _)| {
        let effective = tenant.status.effective.as_ref();
        SortValue::number(effective.and_then(|effective| effective.threads.sms()))
    }),
    ("clients", |(tenant, _)| SortValue::number(Some(tenant.status.clients))),
    ("used", |(_, used)| used.sort_value()),
];

/// Values of the facet of use.
const USES: [(&str, &str); 2] = [("now", "In use"), ("idle", "Idle")];

/// The share of the SMs in a list: its partitions, or that of the spec.
fn listed_share(tenant: &TenantView) -> String {
    let partitions = tenant.status.effective.iter().flat_map(|effective| &effective.threads.partitions);
    match joined(partitions.map(|share| &share.partition), ", ") {
        none if none.is_empty() => share(tenant),
        names => format!("partition {names}"),
    }
}

/// The memory and SMs in force.
fn in_force(tenant: &TenantView) -> String {
    let Some(effective) = &tenant.status.effective else { return "–".to_owned() };
    let limits = effective.device_memory_limits.iter();
    let mut amounts: Vec<String> = limits.map(|limit| or("whole GPU", limit.bytes.map(Amount))).collect();
    amounts.dedup();
    let sms = effective.threads.sms().map(|sms| format!(", {}", counted(sms, "SM")));
    amounts.join(" / ") + &sms.unwrap_or_default()
}

/// The share of the SMs in the spec.
fn share(tenant: &TenantView) -> String {
    match (tenant.spec.sms, tenant.spec.active_thread_percentage) {
        (Some(sms), _) => format!("{sms} SMs"),
        (None, Some(percentage)) => format!("{percentage} %"),
        (None, None) => {
            let mut shares = tenant.status.provisioning.iter().flat_map(|provisioning| &provisioning.shares);
            let share = shares.find(|share| share.tenant == tenant.name);
            or_dash(share.map(|share| format!("{} %", share.active_thread_percentage)))
        }
    }
}

async fn all(call: Call, query: ListQuery) -> Reply {
    let tenants = async {
        let daemon = query.parsed("daemon", DaemonName::parse)?;
        let text = query.text("q").map(str::to_lowercase);
        let filter = TenantFilter { daemon, text, ..TenantFilter::default() };
        let in_use = query.one_of("use", "a use", USES, |(name, _)| name)?.map(|(name, _)| name == "now");
        let is_whole = query.is_sorted() || in_use.is_some();
        let page = if is_whole { Page::whole() } else { query.page()? };
        let mut tenants = call.app.service.tenants(&call.ctx, &filter, &page).await?;
        tenants.items.retain(|tenant| in_use.is_none_or(|in_use| in_use == (tenant.status.clients > 0)));
        tenants.items.sort_by_cached_key(|tenant| tenant.name.natural_key());
        let rows = with_last_use(&call, tenants.items).await?;
        if is_whole {
            return query.sorted_page(rows, COLUMNS);
        }
        Ok(Paged { items: rows, next_cursor: tenants.next_cursor })
    };
    let page = query.list(&call, Section::Tenants, &["q", "daemon", "use"], tenants).await?;
    let facets = Facet::of(&query, "use", [("", "All")].into_iter().chain(USES));
    let sorting = Sorting::of(&query);
    Ok(page.with_daemons(&call).await?.answer(|page| TenantsPage { page, facets, sorting }))
}

#[derive(Template)]
#[template(path = "tenant.html")]
struct TenantPage {
    frame: Frame,
    banner: Banner,
    tenant: TenantView,
    /// True if the user may see the host's daemons and GPUs.
    of_host: bool,
    gpus: GpuDisplayNames,
    /// Pictures of its GPUs, for users of the host.
    pictures: Vec<(GpuRow, SharingPicture)>,
    settings: Vec<TenantSettingRow>,
    verification: Verification,
    places: Vec<PartitionStatus>,
    clients: Vec<ClientView>,
    leases: Vec<HeldLease>,
    chart: Chart,
    /// The environment, or the reason for which there is none.
    environment: Result<EnvironmentView, String>,
    events: Vec<Event>,
    /// Its part of a host file, for users of the host.
    yaml: Option<String>,
}

/// A desired value beside the effective one.
struct TenantSettingRow {
    name: String,
    configured: String,
    effective: String,
    exactly: String,
    enforced: Badge,
}

impl TenantPage {
    /// Returns true if the user may revoke a lease: recorded ones need an operator.
    fn revokes(&self, lease: &HeldLease) -> bool {
        self.frame.operates() || (lease.kind == LeaseKind::Own && self.frame.terminates())
    }

    /// A value that a CUDA client saw, or that was configured.
    fn words(&self, compared: &SettingComparison, value: &SettingValue) -> String {
        value.words(compared.setting, |gpu| self.gpus.name(gpu))
    }
}

async fn show(call: Call, Path(name): Path<TenantName>, Query(query): Query<SpanQuery>) -> Reply {
    let Call { app, ctx } = &call;
    let service = &app.service;
    let tenant = service.tenant(ctx, &name, false).await?;
    let frame = call.frame(Section::Tenants, name.as_str()).await.live();
    let of_host = frame.may(Role::Viewer);
    let daemon = match service.daemon(ctx, &tenant.spec.daemon, false).await {
        Ok(daemon) if of_host => Some(daemon),
        _ => None,
    };
    let gpus = if of_host { call.gpu_names().await } else { GpuDisplayNames::default() };
    let of_tenant = || Some(name.clone());
    let from = service.first_event_of_tenant(ctx, &name).await?;
    let events = EventFilter { tenant: of_tenant(), from, ..EventFilter::default() };
    let incidents = IncidentFilter { tenant: of_tenant(), from_event: from, ..IncidentFilter::default() };
    let places = places(&name, daemon.as_ref());
    let pictures = match &daemon {
        Some(daemon) => call.pictures_of(daemon, &tenant.status.gpus, Some(&name)).await?,
        None => Vec::new(),
    };
    let verification = tenant.status.verification.clone().unwrap_or_default();
    Ok(rendered(&TenantPage {
        frame,
        banner: Banner::of(&call, incidents).await?,
        of_host,
        settings: settings(&tenant, daemon.as_ref(), &places, &gpus),
        verification,
        places,
        pictures,
        gpus,
        clients: call.clients(ClientFilter { tenant: of_tenant(), daemon: None }).await?,
        leases: service.leases(ctx, &name, &Page::first(MAX_LIMIT)).await?.items,
        chart: chart(&call, &tenant, query).await?,
        // With partitions this polls the daemon each time, since the copied environment must be valid.
        environment: service
            .tenant_environment(ctx, &name)
            .await
            .map_err(|error| Problem::of(error, &ctx.actor).detail),
        events: call.newest_events(events, EVENTS).await?,
        yaml: service.host_object(ctx, HostObject::Tenant(&name, &tenant.spec)).await.ok(),
        tenant,
    }))
}

/// Desired values beside effective ones.
fn settings(
    tenant: &TenantView,
    daemon: Option<&DaemonView>,
    places: &[PartitionStatus],
    names: &GpuDisplayNames,
) -> Vec<TenantSettingRow> {
    let left = |default: Option<String>, otherwise: &str| match daemon {
        None => "daemon's default".to_owned(),
        Some(_) => format!("daemon's default: {}", or(otherwise, default)),
    };
    let (spec, defaults) = (&tenant.spec, daemon.map(|daemon| &daemon.spec.defaults));
    let effective = tenant.status.effective.as_ref();
    let limit = |bytes: Option<u64>| or("the whole GPU", bytes.map(Amount));
    let limits = effective.map(|effective| effective.device_memory_limits.as_slice()).unwrap_or_default();
    let memory_of = |gpu: Option<&GpuUuid>, name: String| {
        let on = |limit: &DeviceMemoryLimit| gpu.and_then(|gpu| limit.on(gpu)).map(MemoryLimit::bytes);
        let default = defaults.and_then(|defaults| defaults.device_memory_limit.as_ref()).and_then(on);
        let effective = limits.iter().find(|limit| Some(&limit.gpu) == gpu);
        TenantSettingRow {
            name,
            configured: match spec.device_memory_limit.as_ref().and_then(on) {
                Some(own) => limit(Some(own)),
                None => left(default.map(|bytes| Amount(bytes).to_string()), "the whole GPU"),
            },
            effective: or_dash(effective.map(|effective| limit(effective.bytes))),
            exactly: effective.and_then(|effective| usable(tenant, effective)).unwrap_or_default(),
            enforced: format::enforced_by(effective.map(|effective| effective.enforced_by)),
        }
    };
    let alike = limits
        .windows(2)
        .all(|pair| (pair[0].bytes, pair[0].enforced_by) == (pair[1].bytes, pair[1].enforced_by));
    let gpus = &tenant.status.gpus;
    let mut rows: Vec<TenantSettingRow> = if alike {
        vec![memory_of(gpus.first(), "Memory of each process, on each GPU".to_owned())]
    } else {
        let name = |gpu: &GpuUuid| format!("Memory of each process on {}", names.name(gpu));
        gpus.iter().map(|gpu| memory_of(Some(gpu), name(gpu))).collect()
    };
    let default = defaults.and_then(|defaults| defaults.active_thread_percentage);
    let partitioned = daemon.is_some_and(|daemon| daemon.spec.mode == Mode::Static);
    let threads = effective.map(|effective| &effective.threads);
    let share = TenantSettingRow {
        name: "Share of the SMs".to_owned(),
        configured: match (spec.sms, spec.active_thread_percentage) {
            (None, None) if partitioned && places.is_empty() => {
                "not bound to a partition by any layout".to_owned()
            }
            (None, None) if partitioned => {
                let names = joined(places.iter().map(|place| &place.partition), ", ");
                format!("partition {names}, by the layout")
            }
            (None, None) => match &tenant.status.provisioning {
                Some(provisioning) => by_strategy(provisioning, &tenant.name),
                None => left(default.map(|default| format!("{default} %")), "all SMs"),
            },
            _ => self::share(tenant),
        },
        effective: match threads {
            None => "–".to_owned(),
            Some(_) if partitioned => sms_of(places),
            Some(threads) => match threads.predicted_sms {
                Some(sms) => format!("{sms} SMs ({} %)", threads.active_thread_percentage),
                None => format!("{} %", threads.active_thread_percentage),
            },
        },
        exactly: match threads.filter(|threads| threads.predicted_sms.is_some()) {
            Some(threads) if threads.measured_on_this_gpu => "as measured on this kind of GPU".to_owned(),
            Some(_) => "predicted: not measured on this GPU".to_owned(),
            None => String::new(),
        },
        enforced: match threads {
            Some(_) if partitioned && !places.is_empty() => Badge::new("its partition", Tone::Good),
            Some(_) if partitioned => Badge::new("no partition yet", Tone::Warn),
            threads => format::enforced_by(threads.map(|threads| threads.enforced_by)),
        },
    };
    let default = defaults.and_then(|defaults| defaults.priority);
    let priority = TenantSettingRow {
        name: "Priority".to_owned(),
        configured: match spec.priority {
            Some(own) => priority(own).to_owned(),
            None => left(default.map(|default| priority(default).to_owned()), "normal"),
        },
        effective: or_dash(effective.map(|effective| priority(effective.priority.priority))),
        exactly: "a hint to the GPU".to_owned(),
        enforced: format::enforced_by(effective.map(|effective| effective.priority.enforced_by)),
    };
    rows.extend([share, priority]);
    rows
}

/// The SMs of a tenant's partitions that exist.
fn sms_of(places: &[PartitionStatus]) -> String {
    let made = joined(places.iter().filter_map(|place| Some(format!("{} SMs", place.sms?))), ", ");
    if made.is_empty() { "none".to_owned() } else { made }
}

/// The memory left to a process within its limit.
fn usable(tenant: &TenantView, limit: &EffectiveMemory) -> Option<String> {
    let (limit, sms) = (limit.bytes?, tenant.status.effective.as_ref()?.threads.sms()?);
    let left = limit.saturating_sub(context_bytes(sms));
    Some(format!("about {} of it usable, after its context", Amount(left)))
}

/// Describes how the daemon's strategy determines the share of a tenant.
fn by_strategy(provisioning: &ProvisioningStatus, tenant: &TenantName) -> String {
    let share = provisioning.shares.iter().find(|share| share.tenant == *tenant);
    let weight = share.filter(|_| provisioning.strategy == ProvisioningStrategy::Weighted);
    let weight = weight.map(|share| format!(", weight {}", share.weight)).unwrap_or_default();
    let clients = counted(provisioning.clients, "client");
    format!("daemon's strategy: {} over {clients}{weight}", provisioning.strategy.as_str())
}

#[derive(Template)]
#[template(path = "tenant_delete.html")]
struct DeletePage {
    frame: Frame,
    tenant: TenantView,
    /// Reason for which the deletion would be refused.
    refused: Option<String>,
}

async fn confirm_delete(call: Call, Path(name): Path<TenantName>) -> Reply {
    let Call { app, ctx } = &call;
    ctx.require(Right::Administer)?;
    let tenant = app.service.tenant(ctx, &name, false).await?;
    let rehearsed = app
        .service
        .delete_tenant(ctx, name.clone(), TenantDeletion::default(), WriteOptions::rehearsal())
        .await;
    let refused = rehearsal_refusal(ctx, rehearsed)?;
    let frame = call.frame(Section::Tenants, format!("Delete {name}")).await;
    Ok(rendered(&DeletePage { frame, tenant, refused }))
}

async fn delete(Call { app, ctx }: Call, Path(name): Path<TenantName>, form: super::forms::Form) -> Reply {
    let revision = form.text("revision").parse().ok();
    let options = WriteOptions { if_match: revision.map(etag), ..WriteOptions::default() };
    app.service.delete_tenant(&ctx, name, TenantDeletion::default(), options).await?;
    Ok(Redirect::to("/tenants").into_response())
}

/// The charts of a tenant, with its memory limit.
async fn chart(
    call: &Call,
    tenant: &TenantView,
    SpanQuery { span }: SpanQuery,
) -> Result<Chart, ServiceError> {
    let page = format!("/tenants/{}", tenant.name);
    let limits = [(Measure::Memory, memory_limit(tenant))];
    Chart::of(call, HistoryOf::Tenant(&tenant.name), page, span, &limits).await
}

/// Memory that the limits leave to all clients of a tenant, or to each if their number has no limit; `None` if a GPU has no limit.
#[allow(clippy::cast_precision_loss, reason = "bytes of one host are exact")]
fn memory_limit(tenant: &TenantView) -> Option<ChartLimit> {
    let limits = &tenant.status.effective.as_ref()?.device_memory_limits;
    let each: u64 = limits.iter().map(|limit| limit.bytes).sum::<Option<u64>>()?;
    let (name, clients) = match tenant.spec.max_clients {
        Some(clients) => ("limit", clients),
        None => ("limit of each client", 1),
    };
    (each > 0).then(|| ChartLimit { name, value: each as f64 * f64::from(clients) })
}

/// Answers with the charts of a tenant, for the script that draws them.
async fn history(call: Call, Path(name): Path<TenantName>, Query(query): Query<SpanQuery>) -> Answer<Chart> {
    let tenant = call.app.service.tenant(&call.ctx, &name, false).await?;
    Ok(axum::Json(chart(&call, &tenant, query).await?))
}

/// Starts a verification, and redirects to the tenant, whose page shows the result.
async fn verify(Call { app, ctx }: Call, Path(name): Path<TenantName>) -> Reply {
    app.service.verify_tenant(&ctx, name.clone(), WriteOptions::default()).await?;
    Ok(Redirect::to(&format!("/tenants/{name}#verification")).into_response())
}
