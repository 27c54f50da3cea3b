//! The form of a tenant's spec, beside a prediction of what the tenant would get.

use std::collections::BTreeSet;

use askama::Template;

use super::super::forms::{FieldDifference, Form, FormErrors, Shape, SpecField};
use super::super::frame::{Frame, Section};
use super::super::gpus::{GpuRow, name_gpus_by_index};
use super::super::rendered;
use super::super::spec_form::{self, FormSpec, REVISION, SpecDraft};
use super::prediction::{self, PredictionView, places};
use crate::domain::access::Right;
use crate::domain::daemon::Mode;
use crate::domain::duration::parse_duration;
use crate::domain::gpu::GpuRef;
use crate::domain::json::missing_field;
use crate::domain::prediction::Prediction;
use crate::domain::tenant::TenantSpec;
use crate::domain::{DaemonName, TenantName, rfc3339};
use crate::http::extract::{Call, Query};
use crate::http::problem::{Problem, Reply};
use crate::service::daemons::DaemonView;
use crate::service::{FieldError, ServiceError, WriteOptions};

/// The ways to state a share of the SMs.
const SHARES: [(&str, &str); 2] = [("sms", "sms"), ("percentage", "active_thread_percentage")];

/// The field that holds why a typed user is not known.
const UNKNOWN_USER: &str = "unknown-user";

#[derive(Template)]
#[template(path = "tenant_form.html")]
struct TenantFormPage {
    frame: Frame,
    /// The tenant that is edited; `None` for a new one.
    edited: Option<TenantName>,
    form: Form,
    refused: FormErrors,
    conflict: Option<Vec<FieldDifference>>,
    daemons: Vec<DaemonView>,
    gpus: Vec<GpuRow>,
    /// An example of an expiry.
    in_two_days: String,
    outcome: PredictionView,
    /// The tenant that was created before this one.
    after: Option<TenantName>,
}

impl TenantFormPage {
    /// The most GiB of a GPU, and the most SMs, for sliders.
    fn most(&self) -> (u64, u32) {
        let bytes = self.gpus.iter().filter_map(|row| row.gpu.memory_total).max();
        (bytes.unwrap_or(0) >> 30, self.gpus.iter().filter_map(|row| row.gpu.sms).max().unwrap_or(0))
    }

    /// Returns true if a folded field is filled in or wrong.
    fn has_expert_fields(&self) -> bool {
        let is_used = |name: &&str| !self.form.text(name).is_empty() || self.refused.field(name).is_some();
        ["priority", "visible_devices", "labels"].iter().any(is_used)
    }
}

/// The prediction beside the form, by itself.
#[derive(Template)]
#[template(path = "tenant_prediction.html")]
struct PredictionPart {
    outcome: PredictionView,
}

/// Preselected values from a link.
#[derive(Debug, Default, serde::Deserialize)]
pub(super) struct NewTenantQuery {
    #[serde(default)]
    daemon: String,
    /// The tenant that was created before.
    #[serde(default)]
    after: String,
}

pub(super) async fn new(call: Call, Query(chosen): Query<NewTenantQuery>) -> Reply {
    call.ctx.require(Right::Administer)?;
    let mut form = Form::default();
    let users = match DaemonName::parse(&chosen.daemon) {
        Ok(daemon) => call.app.service.users_of(&call.ctx, &daemon).await?,
        Err(_) => BTreeSet::new(),
    };
    // Most daemons serve one user; a user who is not known yet is never guessed to be root.
    if let [only] = users.into_iter().collect::<Vec<_>>().as_slice() {
        form.set("uid", only.to_string());
    }
    form.set("daemon", chosen.daemon);
    let mut page = form_page(&call, SpecDraft::new(None, form)).await?;
    page.outcome.is_untouched = true;
    page.after = TenantName::parse(&chosen.after).ok();
    Ok(rendered(&page))
}

/// The prediction beside the form, for a script that requests it as its user types.
pub(super) async fn predict(call: Call, form: Form) -> Reply {
    call.ctx.require(Right::Administer)?;
    let form = TenantSpec::<GpuRef>::prepared(&call, form).await;
    let outcome = outcome(&call, &form, form.text(REVISION).is_empty()).await?;
    Ok(rendered(&PredictionPart { outcome }))
}

async fn form_page(
    call: &Call,
    SpecDraft { edited, mut form, refused, conflict }: SpecDraft<TenantName>,
) -> Result<TenantFormPage, Problem> {
    let title = match &edited {
        Some(name) => format!("Edit {name}"),
        None => "New tenant".to_owned(),
    };
    let frame = call.frame(Section::Tenants, &title).await;
    let daemons = call.daemons().await?;
    if form.text("daemon").is_empty()
        && let Some(first) = daemons.first()
    {
        form.replace("daemon", first.name.as_str());
    }
    let held = |row: &GpuRow| row.gpu.daemon.is_some();
    let gpus = call.gpus().await?.into_iter().filter(held).collect();
    let outcome = outcome(call, &form, edited.is_none()).await?;
    let in_two_days = rfc3339::format(call.now() / 60_000 * 60_000 + 172_800_000).replace(".000", "");
    let after = None;
    Ok(TenantFormPage { frame, edited, form, refused, conflict, daemons, gpus, in_two_days, outcome, after })
}

/// The prediction for a form, or its errors.
async fn outcome(call: &Call, form: &Form, is_new: bool) -> Result<PredictionView, Problem> {
    let Call { app, ctx } = call;
    let name = spec_form::name::<TenantSpec<GpuRef>>(form).ok();
    let mut expires_at = None;
    let predicted = match spec_form::read::<TenantSpec<GpuRef>>(form, call.now()) {
        Ok(spec) => {
            expires_at = spec.expires_at;
            app.service.predict_tenant(ctx, name.as_ref(), is_new, spec).await
        }
        Err(error) => Err(error),
    };
    match predicted {
        Ok(prediction) => {
            let refusals = prediction.refusals.iter();
            let refusals = refusals.map(|refusal| (label(refusal.field).to_owned(), refusal.detail.clone()));
            Ok(PredictionView {
                refusals: refusals.collect(),
                unplaced: unplaced(call, form, name.as_ref(), &prediction).await,
                prediction: Some(prediction),
                is_untouched: false,
                sharing: Some(app.service.sharing(ctx).await?),
                name: name.filter(|_| !is_new),
                expires_at,
            })
        }
        Err(ServiceError::Invalid(errors)) => {
            let refusals = errors.into_iter().map(|FieldError { pointer, detail }| {
                if let Some(missing) = missing_field(&detail) {
                    return (label(missing).to_owned(), "fill this in".to_owned());
                }
                let field = pointer.trim_start_matches('/').split('/').next().unwrap_or_default().to_owned();
                (label(&field).to_owned(), detail)
            });
            Ok(PredictionView { refusals: refusals.collect(), ..PredictionView::default() })
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the reason for which no process of the tenant could start in static mode: a GPU on which no partition is bound to it.
async fn unplaced(
    Call { app, ctx }: &Call,
    form: &Form,
    name: Option<&TenantName>,
    prediction: &Prediction,
) -> Option<String> {
    let daemon = DaemonName::parse(form.text("daemon")).ok().filter(|_| prediction.mode == Mode::Static)?;
    let daemon = app.service.daemon(ctx, &daemon, false).await.ok()?;
    let places = name.map(|name| places(name, Some(&daemon))).unwrap_or_default();
    let without = prediction.gpus.iter().find(|gpu| places.iter().all(|place| place.gpu != gpu.gpu))?;
    Some(format!(
        "daemon {} is static, and no layout on it binds this tenant to a partition of GPU {}: no process can start until one does",
        daemon.name, without.index
    ))
}

/// The label of a field of the spec.
fn label(field: &str) -> &str {
    spec_form::label::<TenantSpec<GpuRef>>(field).unwrap_or(if field == "name" { "Name" } else { field })
}

impl FormSpec for TenantSpec<GpuRef> {
    type Name = TenantName;
    const NOUN: &'static str = "tenant";
    const FIELDS: &'static [SpecField] = &[
        ("daemon", Shape::Text, "Daemon"),
        ("uid", Shape::Whole, "User"),
        ("gpus", Shape::List, "GPUs"),
        ("device_memory_limit", Shape::Memory, "Memory limit"),
        ("max_clients", Shape::Whole, "Max clients"),
        ("sms", Shape::Whole, "SMs"),
        ("active_thread_percentage", Shape::Number, "Percentage"),
        ("weight", Shape::Whole, "Weight"),
        ("priority", Shape::Text, "Priority"),
        ("visible_devices", Shape::Text, "GPU names"),
        ("labels", Shape::Pairs, "Labels"),
        ("expires_at", Shape::Time, "Expiry"),
    ];

    async fn prepared(call: &Call, mut form: Form) -> Form {
        form.remove(UNKNOWN_USER);
        let typed = form.text("uid").to_owned();
        if typed.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') {
            match call.app.service.user_number(typed).await {
                Ok(uid) => form.replace("uid", uid.to_string()),
                Err(why) => form.set(UNKNOWN_USER, why),
            }
        }
        form
    }

    fn used(form: &Form, now: i64) -> Form {
        let mut form = form.clone();
        if let Ok(ttl) = parse_duration(form.text("expires_at").trim_start_matches("in ")) {
            let ttl = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
            form.replace("expires_at", rfc3339::format(now.saturating_add(ttl)));
        }
        for (share, field) in SHARES {
            if form.text("share") != share {
                form.remove(field);
            }
        }
        form
    }

    fn unfilled(form: &Form) -> Option<FieldError> {
        if !form.text(UNKNOWN_USER).is_empty() {
            let (pointer, detail) = ("/uid".to_owned(), form.text(UNKNOWN_USER).to_owned());
            return Some(FieldError { pointer, detail });
        }
        let chosen = SHARES.iter().find(|(share, _)| form.text("share") == *share);
        let (_, field) = chosen.filter(|(_, field)| form.text(field).is_empty())?;
        let detail = "fill this in, or choose another share".to_owned();
        Some(FieldError { pointer: format!("/{field}"), detail })
    }

    async fn stored(call: &Call, name: &TenantName) -> Result<Form, ServiceError> {
        let Call { app, ctx } = call;
        let tenant = app.service.tenant(ctx, name, false).await?;
        let mut form = Form::of(&tenant.spec, Self::FIELDS)?;
        name_gpus_by_index(call, &mut form, "device_memory_limit").await?;
        let share = SHARES.iter().find(|(_, field)| form.ticked(field)).map_or("default", |(share, _)| share);
        form.set("share", share);
        form.set("name", name.as_str());
        form.set(REVISION, tenant.generation.to_string());
        Ok(form)
    }

    async fn write(
        self,
        Call { app, ctx }: &Call,
        name: TenantName,
        options: WriteOptions,
    ) -> Result<(), ServiceError> {
        app.service.put_tenant(ctx, name, self, options).await.map(drop)
    }

    async fn page(call: &Call, draft: SpecDraft<TenantName>) -> Result<impl Template, Problem> {
        form_page(call, draft).await
    }
}
