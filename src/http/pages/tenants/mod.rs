//! Tenants: the list, one tenant, and its creation, change and deletion.

mod environment;
mod form;
mod leases;
mod prediction;
mod verification;

use askama::Template;
use axum::Router;
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::{get, post};

use self::environment::Environment;
use self::prediction::places;
use self::verification::VerifiedSettingRow;
use super::banner::Banner;
use super::chart::Chart;
use super::format::{self, Amount, Amounts, Badge, Moment, Tone, or_dash};
use super::forms::rehearsal_refusal;
use super::frame::{Frame, Section};
use super::gpus::{GpuRow, called, named};
use super::lists::{ListQuery, list_page};
use super::{rendered, spec_form};
use crate::domain::access::{Right, Role};
use crate::domain::attribution::AttributedBy;
use crate::domain::client::LeaseKind;
use crate::domain::condition::ConditionType;
use crate::domain::count::counted;
use crate::domain::daemon::Mode;
use crate::domain::event::{Event, EventFilter};
use crate::domain::gpu::GpuRef;
use crate::domain::incident::IncidentFilter;
use crate::domain::layout::status::PartitionStatus;
use crate::domain::provisioning::ProvisioningStrategy;
use crate::domain::resolution::context_bytes;
use crate::domain::tenant::{EffectiveMemory, TenantSpec};
use crate::domain::verification::Verification;
use crate::domain::{DaemonName, DeviceMemoryLimit, GpuUuid, MemoryLimit, TenantName};
use crate::http::AppState;
use crate::http::extract::{Call, Path};
use crate::http::problem::{Answer, Reply};
use crate::service::daemons::DaemonView;
use crate::service::events::Order;
use crate::service::page::{MAX_LIMIT, Page};
use crate::service::tenants::clients::{ClientFilter, ClientView};
use crate::service::tenants::leases::HeldLease;
use crate::service::tenants::{TenantFilter, TenantView};
use crate::service::{WriteOptions, etag};
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
        .route("/tenants/{name}/verify", post(verification::verify))
}

/// Events shown for a tenant.
const EVENTS: u32 = 10;

list_page!(TenantsPage, "tenants.html", TenantSummary);

/// A tenant in one line.
pub(super) struct TenantSummary {
    pub(super) tenant: TenantView,
    pub(super) badge: Badge,
}

impl TenantSummary {
    pub(super) fn of(tenant: TenantView) -> Self {
        Self { badge: format::ready(&tenant.status.conditions), tenant }
    }

    pub(super) fn limit(&self) -> Option<Amounts> {
        self.tenant.spec.device_memory_limit.as_ref().map(Amounts::of)
    }

    fn share(&self) -> String {
        let threads = self.tenant.status.effective.as_ref().map(|effective| &effective.threads);
        let partitions = threads.map(|threads| threads.partitions.as_slice()).unwrap_or_default();
        match partitions {
            [] => share(&self.tenant),
            partitions => {
                let names: Vec<&str> = partitions.iter().map(|one| one.partition.as_str()).collect();
                format!("partition {}", names.join(", "))
            }
        }
    }

    fn effective(&self) -> String {
        let Some(effective) = &self.tenant.status.effective else { return "–".to_owned() };
        let mut amounts: Vec<String> = effective
            .device_memory_limits
            .iter()
            .map(|limit| limit.bytes.map_or("whole GPU".to_owned(), |bytes| Amount(bytes).to_string()))
            .collect();
        amounts.dedup();
        let memory = amounts.join(" / ");
        match effective.threads.sms() {
            Some(sms) => format!("{memory}, {}", counted(sms, "SM")),
            None => memory,
        }
    }
}

/// The share of the SMs in the spec.
fn share(tenant: &TenantView) -> String {
    match (tenant.spec.sms, tenant.spec.active_thread_percentage) {
        (Some(sms), _) => format!("{sms} SMs"),
        (None, Some(percentage)) => format!("{percentage} %"),
        (None, None) => {
            let mut shares = tenant.status.provisioning.iter().flat_map(|provisioning| &provisioning.shares);
            let own = shares.find(|share| share.tenant == tenant.name);
            or_dash(own.map(|share| format!("{} %", share.active_thread_percentage)))
        }
    }
}

async fn all(Call { app, ctx }: Call, query: ListQuery) -> Reply {
    let found = async {
        let daemon = query.parsed("daemon", DaemonName::parse)?;
        let text = query.text("q").map(str::to_lowercase);
        let filter = TenantFilter { daemon, text, ..TenantFilter::default() };
        let mut tenants = app.service.tenants(&ctx, &filter, &query.page()?).await?;
        tenants.items.sort_by_cached_key(|tenant| tenant.name.natural_key());
        Ok(tenants)
    };
    let found = found.await;
    let page = query.into_page(&app, &ctx, Section::Tenants, &["q", "daemon"], found).await?;
    Ok(page.map(TenantSummary::of).with_daemons(&app, &ctx).await?.answer(|page| TenantsPage { page }))
}

#[derive(Template)]
#[template(path = "tenant.html")]
struct TenantPage {
    frame: Frame,
    banner: Banner,
    tenant: TenantView,
    badge: Badge,
    /// True if the user may see the host's daemons and GPUs.
    of_host: bool,
    gpus: Vec<(GpuUuid, String)>,
    settings: Vec<TenantSettingRow>,
    verification: Verification,
    /// The settings that the last verification compared.
    compared: Vec<VerifiedSettingRow>,
    places: Vec<PartitionStatus>,
    clients: Vec<ClientView>,
    leases: Vec<HeldLease>,
    chart: Chart,
    /// Start of the known history of its clients.
    history_since: Moment,
    environment: Environment,
    events: Vec<Event>,
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
}

async fn show(Call { app, ctx }: Call, Path(name): Path<TenantName>) -> Reply {
    let service = &app.service;
    let tenant = service.tenant(&ctx, &name, false).await?;
    let frame = Frame::of(service, &ctx, Section::Tenants, name.as_str()).await.live();
    let of_host = frame.may(Role::Viewer);
    let daemon = match service.daemon(&ctx, &tenant.spec.daemon, false).await {
        Ok(daemon) if of_host => Some(daemon),
        _ => None,
    };
    let known = if of_host { GpuRow::all(&app, &ctx).await? } else { Vec::new() };
    let gpus = named(&known, &tenant.status.gpus);
    let everything = Page::first(MAX_LIMIT);
    let filter = ClientFilter { tenant: Some(name.clone()), daemon: None };
    let clients = service.clients(&ctx, &filter, false, &everything).await?.items;
    let leases = service.leases(&ctx, &name, &everything).await?.items;
    let from = service.first_event_of_tenant(&ctx, &name).await?;
    let filter = EventFilter { tenant: Some(name.clone()), from, ..EventFilter::default() };
    let events = service.events(&ctx, filter, Order::NewestFirst, &Page::first(EVENTS)).await?.items;
    // With partitions this polls the daemon each time, since the copied environment must be valid.
    let environment = Environment::of(&ctx, service.tenant_environment(&ctx, &name).await, &name);
    let chart = Chart::of_tenant(service.clock().unix_ms(), &name, service.tenant_history(&ctx, &name)?);
    let places = places(&name, daemon.as_ref());
    let verification = tenant.status.verification.clone().unwrap_or_default();
    let of_tenant =
        IncidentFilter { tenant: Some(name.clone()), from_event: from, ..IncidentFilter::default() };
    let banner = Banner::of(&app, &ctx, of_tenant).await?;
    Ok(rendered(&TenantPage {
        badge: format::ready(&tenant.status.conditions),
        settings: settings(&tenant, daemon.as_ref(), &places, |uuid| called(&known, uuid)),
        compared: verification::rows(&verification, &gpus),
        verification,
        places,
        frame,
        banner,
        of_host,
        gpus,
        clients,
        leases,
        chart,
        history_since: Moment(service.tenant_history_since(&ctx, &name)?),
        environment,
        events,
        tenant,
    }))
}

/// Desired values beside effective ones.
fn settings(
    tenant: &TenantView,
    daemon: Option<&DaemonView>,
    places: &[PartitionStatus],
    called: impl Fn(&GpuUuid) -> String,
) -> Vec<TenantSettingRow> {
    let left = |default: Option<String>, or: &str| match (daemon, default) {
        (None, _) => "daemon's default".to_owned(),
        (Some(_), Some(default)) => format!("daemon's default: {default}"),
        (Some(_), None) => format!("daemon's default: {or}"),
    };
    let (spec, defaults) = (&tenant.spec, daemon.map(|daemon| &daemon.spec.defaults));
    let effective = tenant.status.effective.as_ref();
    let limit =
        |bytes: Option<u64>| bytes.map_or("the whole GPU".to_owned(), |bytes| Amount(bytes).to_string());
    let memory_of = |gpus: &[GpuUuid], name: String| {
        let on =
            |limit: &DeviceMemoryLimit| gpus.first().and_then(|gpu| limit.on(gpu)).map(MemoryLimit::bytes);
        let default = defaults.and_then(|defaults| defaults.device_memory_limit.as_ref()).and_then(on);
        let effective = gpus
            .first()
            .and_then(|gpu| effective?.device_memory_limits.iter().find(|limit| limit.gpu == *gpu));
        TenantSettingRow {
            name,
            configured: match spec.device_memory_limit.as_ref().and_then(on) {
                Some(own) => limit(Some(own)),
                None => left(default.map(|default| limit(Some(default))), "the whole GPU"),
            },
            effective: or_dash(effective.map(|effective| limit(effective.bytes))),
            exactly: effective.and_then(|effective| usable(tenant, effective)).unwrap_or_default(),
            enforced: format::enforced_by(effective.map(|effective| effective.enforced_by)),
        }
    };
    let limits = effective.map(|effective| effective.device_memory_limits.as_slice()).unwrap_or_default();
    let alike = limits
        .windows(2)
        .all(|pair| (pair[0].bytes, pair[0].enforced_by) == (pair[1].bytes, pair[1].enforced_by));
    let gpus = &tenant.status.gpus;
    let mut rows: Vec<TenantSettingRow> = if alike {
        vec![memory_of(gpus, "Memory of each process, on each GPU".to_owned())]
    } else {
        let of = |gpu: &GpuUuid| {
            memory_of(std::slice::from_ref(gpu), format!("Memory of each process on {}", called(gpu)))
        };
        gpus.iter().map(of).collect()
    };
    let default = defaults.and_then(|defaults| defaults.active_thread_percentage);
    let partitioned = daemon.is_some_and(|daemon| daemon.spec.mode == Mode::Static);
    let threads = TenantSettingRow {
        name: "Share of the SMs".to_owned(),
        configured: match (spec.sms, spec.active_thread_percentage) {
            (None, None) if partitioned && places.is_empty() => {
                "not bound to a partition by any layout".to_owned()
            }
            (None, None) if partitioned => {
                let names: Vec<&str> = places.iter().map(|place| place.partition.as_str()).collect();
                format!("partition {}, by the layout", names.join(", "))
            }
            (None, None) if tenant.status.provisioning.is_some() => by_strategy(tenant),
            (None, None) => left(default.map(|default| format!("{default} %")), "all SMs"),
            _ => share(tenant),
        },
        effective: match effective.map(|effective| &effective.threads) {
            None => "–".to_owned(),
            Some(_) if partitioned => sms_of(places),
            Some(threads) => match threads.predicted_sms {
                Some(sms) => format!("{sms} SMs ({} %)", threads.active_thread_percentage),
                None => format!("{} %", threads.active_thread_percentage),
            },
        },
        exactly: match effective.map(|effective| &effective.threads) {
            Some(threads) if threads.predicted_sms.is_some() && threads.measured_on_this_gpu => {
                "as measured on this kind of GPU".to_owned()
            }
            Some(threads) if threads.predicted_sms.is_some() => {
                "predicted: not measured on this GPU".to_owned()
            }
            _ => String::new(),
        },
        enforced: match effective {
            Some(_) if partitioned && !places.is_empty() => Badge { word: "its partition", tone: Tone::Good },
            Some(_) if partitioned => Badge { word: "no partition yet", tone: Tone::Warn },
            effective => format::enforced_by(effective.map(|effective| effective.threads.enforced_by)),
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
    rows.extend([threads, priority]);
    rows
}

/// The SMs of a tenant's partitions that exist.
fn sms_of(places: &[PartitionStatus]) -> String {
    let made: Vec<String> = places.iter().filter_map(|place| Some(format!("{} SMs", place.sms?))).collect();
    if made.is_empty() { "none".to_owned() } else { made.join(", ") }
}

/// The memory left to a process within its limit.
fn usable(tenant: &TenantView, limit: &EffectiveMemory) -> Option<String> {
    let (limit, sms) = (limit.bytes?, tenant.status.effective.as_ref()?.threads.sms()?);
    let left = limit.saturating_sub(context_bytes(sms));
    Some(format!("about {} of it usable, after its context", Amount(left)))
}

/// Describes how the daemon's strategy determines the share of a tenant; empty without a strategy.
fn by_strategy(tenant: &TenantView) -> String {
    let Some(provisioning) = &tenant.status.provisioning else { return String::new() };
    let own = provisioning.shares.iter().find(|share| share.tenant == tenant.name);
    let weight = own.filter(|_| provisioning.strategy == ProvisioningStrategy::Weighted);
    let weight = weight.map(|share| format!(", weight {}", share.weight)).unwrap_or_default();
    let clients = counted(provisioning.clients, "client");
    format!("daemon's strategy: {} over {clients}{weight}", provisioning.strategy.as_str())
}

/// Returns the evidence that a client belongs to its tenant, in a few words.
pub(super) fn attributed(by: AttributedBy) -> &'static str {
    match by {
        AttributedBy::Lease => "started by mps-manager run",
        AttributedBy::Container => "by its container, which has this tenant's directory mounted",
        AttributedBy::Uid => "by its user, which only this tenant has",
        AttributedBy::Environment => "by its environment, a hint that can be forged",
        AttributedBy::Unattributed => "unknown",
    }
}

#[derive(Template)]
#[template(path = "tenant_delete.html")]
struct DeletePage {
    frame: Frame,
    tenant: TenantView,
    /// Reason for which the deletion would be refused.
    refused: Option<String>,
}

async fn confirm_delete(Call { app, ctx }: Call, Path(name): Path<TenantName>) -> Reply {
    ctx.require(Right::Administer)?;
    let tenant = app.service.tenant(&ctx, &name, false).await?;
    let rehearsed = app.service.delete_tenant(&ctx, name.clone(), false, WriteOptions::rehearsal()).await;
    let refused = rehearsal_refusal(&ctx, rehearsed)?;
    let frame = Frame::of(&app.service, &ctx, Section::Tenants, format!("Delete {name}")).await;
    Ok(rendered(&DeletePage { frame, tenant, refused }))
}

async fn delete(Call { app, ctx }: Call, Path(name): Path<TenantName>, form: super::forms::Form) -> Reply {
    let revision = form.text("revision").parse().ok();
    let options = WriteOptions { if_match: revision.map(etag), ..WriteOptions::default() };
    app.service.delete_tenant(&ctx, name, false, options).await?;
    Ok(Redirect::to("/tenants").into_response())
}

/// Answers with the chart of a tenant for the last hour, for the script that draws it.
async fn history(Call { app, ctx }: Call, Path(name): Path<TenantName>) -> Answer<Chart> {
    let points = app.service.tenant_history(&ctx, &name)?;
    Ok(axum::Json(Chart::of_tenant(app.service.clock().unix_ms(), &name, points)))
}
