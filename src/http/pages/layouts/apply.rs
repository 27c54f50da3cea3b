//! Applying a layout to a daemon: the plan as a diff, then the request. Also asserting it.

use std::time::Duration;

use askama::Template;

use super::plan_picture::PlanPicture;
use super::target::{Places, RoleChoice, gpu_map};
use crate::domain::client::ClientId;
use crate::domain::count::{counted, enumerated};
use crate::domain::duration::parse_seconds;
use crate::domain::layout::active::PartitionPolicy;
use crate::domain::layout::assertion::Assertion;
use crate::domain::layout::blocked::Blocked;
use crate::domain::layout::outlook::{Allowed, LayoutPlan, LayoutPlanStep};
use crate::domain::layout::plan::Action;
use crate::domain::layout::{Version, VersionRef};
use crate::domain::maintenance::{DrainLimit, OnTimeout};
use crate::domain::{GpuUuid, LayoutName};
use crate::http::extract::{Call, Path};
use crate::http::pages::format::Moment;
use crate::http::pages::forms::{Form, FormErrors, shortened};
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::lists::ListQuery;
use crate::http::pages::{followed, rendered, with_status};
use crate::http::problem::{Problem, Reply};
use crate::service::daemons::DaemonView;
use crate::service::layouts::ApplyRequest;
use crate::service::page::{MAX_LIMIT, Page};
use crate::service::tenants::clients::{ClientFilter, ClientView};
use crate::service::{ServiceError, WriteOptions};

/// The label of the box that allows partitions to be recreated.
const RECREATE: &str = "Recreate these partitions";

#[derive(Template)]
#[template(path = "layouts/apply.html")]
struct ApplyPage<'a> {
    frame: Frame,
    version: Version,
    numbers: Vec<u32>,
    places: Places,
    daemon: Option<DaemonView>,
    roles: Vec<RoleChoice>,
    plan: Option<LayoutPlan>,
    picture: PlanPicture,
    /// The connected clients of the daemon.
    clients: Vec<ClientView>,
    form: &'a Form,
    refused: FormErrors,
}

#[derive(Template)]
#[template(path = "layouts/assert.html")]
struct AssertPage {
    frame: Frame,
    version: Version,
    daemon: DaemonView,
    places: Places,
    assertion: Assertion,
}

pub(super) async fn plan(call: Call, Path(name): Path<LayoutName>, query: ListQuery) -> Reply {
    planned(&call, name, query.form(), None).await
}

pub(super) async fn apply(call: Call, Path(name): Path<LayoutName>, form: Form) -> Reply {
    let Call { app, ctx } = &call;
    let version = match version_of(&call, &name, &form).await {
        Err(error @ ServiceError::Invalid(_)) => return planned(&call, name, &form, Some(error)).await,
        version => version?,
    };
    let places = Places::of(&call).await?;
    let Some(daemon) = places.daemon(form.text("daemon"), version.layout.enforcement) else {
        return planned(&call, name, &form, None).await;
    };
    let note = form.text("note").to_owned();
    let drain = match drain_of(&form) {
        Ok(drain) => drain,
        Err(error) => return planned(&call, name, &form, Some(error)).await,
    };
    let request = ApplyRequest {
        daemon: daemon.name.clone(),
        version: Some(version.version),
        layout: None,
        gpu_map: gpu_map(&places.roles(&name, &version.layout, daemon, &form)),
        recreate: form.ticked("recreate"),
        drain,
        drift_policy: match form.text("drift_policy") {
            "report" => Some(PartitionPolicy::Report),
            "repair" => Some(PartitionPolicy::Repair),
            _ => None,
        },
        plan: Some(form.text("plan").to_owned()).filter(|digest| !digest.is_empty()),
        note: Some(note).filter(|note| !note.is_empty()),
    };
    match app.service.apply_layout(ctx, name.clone(), request, WriteOptions::default()).await {
        Ok(operation) => Ok(followed(operation.id)),
        Err(error @ ServiceError::Forbidden(_)) => Err(error.into()),
        Err(error) => planned(&call, name, &form, Some(error)).await,
    }
}

/// The wait for clients that a form asks for.
fn drain_of(form: &Form) -> Result<Option<DrainLimit>, ServiceError> {
    let typed = form.text("drain");
    if typed.is_empty() {
        return Ok(None);
    }
    let timeout_s = parse_seconds(typed).map_err(|error| ServiceError::field("/drain", error.to_string()))?;
    let is_to_end = form.text("on_timeout") == "terminate";
    let on_timeout = if is_to_end { OnTimeout::Terminate } else { OnTimeout::Fail };
    Ok(Some(DrainLimit { timeout_s, on_timeout }))
}

/// The version that a form selects; by default the newest.
pub(super) async fn version_of(
    Call { app, ctx }: &Call,
    name: &LayoutName,
    form: &Form,
) -> Result<Version, ServiceError> {
    match form.version()? {
        Some(version) => app.service.layout_version(ctx, &VersionRef { name: name.clone(), version }).await,
        None => Ok(app.service.layout(ctx, name).await?.newest),
    }
}

/// The plan, and the error of a refused request.
async fn planned(call: &Call, name: LayoutName, form: &Form, error: Option<ServiceError>) -> Reply {
    let Call { app, ctx } = call;
    let (version, mistyped) = match version_of(call, &name, form).await {
        // Without a daemon, the page offers the choice.
        Err(error @ ServiceError::Invalid(_)) => (app.service.layout(ctx, &name).await?.newest, Some(error)),
        version => (version?, None),
    };
    let versions = app.service.layout_versions(ctx, &name, &Page::first(MAX_LIMIT)).await?.items;
    let numbers = versions.into_iter().map(|version| version.version).collect();
    let places = Places::of(call).await?;
    let daemon = places.daemon(form.text("daemon"), version.layout.enforcement).cloned();
    let (mut roles, mut plan, mut refusal) = (Vec::new(), None, mistyped);
    if refusal.is_some() {
        // A version is only planned on request.
    } else if let Some(daemon) = &daemon {
        roles = places.roles(&name, &version.layout, daemon, form);
        match app
            .service
            .plan_layout(ctx, &name, &places.target(&version, daemon, form), Duration::ZERO)
            .await
        {
            Ok(planned) => plan = Some(planned),
            Err(error) => refusal = Some(error),
        }
    } else if !form.text("daemon").is_empty() {
        let kind = "daemon";
        refusal = Some(ServiceError::NotFound { kind, name: shortened(form.text("daemon")) });
    }
    let error = error.or(refusal);
    let problem = error.clone().map(|error| Problem::of(error, &ctx.actor));
    let refused = match (&plan, error) {
        (Some(plan), Some(ServiceError::Blocked { .. })) if !plan.blocked.is_empty() => {
            refused_by(plan, form)
        }
        (_, Some(error)) => FormErrors::of(Problem::of(error, &ctx.actor), &["version", "note", "drain"]),
        (_, None) => FormErrors::default(),
    };
    let clients = match &plan {
        Some(plan) => {
            call.clients(ClientFilter { daemon: Some(plan.daemon.clone()), ..ClientFilter::default() })
                .await?
        }
        None => Vec::new(),
    };
    let picture = match plan.as_ref().zip(daemon.as_ref()) {
        Some((plan, daemon)) => PlanPicture::of(call, plan, daemon, &clients).await?,
        None => PlanPicture::default(),
    };
    let frame = call.frame(Section::Layouts, format!("Plan layout {name}")).await;
    let template =
        ApplyPage { frame, version, numbers, places, daemon, roles, plan, picture, clients, form, refused };
    Ok(with_status(&template, problem))
}

/// The blockers of a refused request; that partitions must be recreated is the error of its box.
fn refused_by(plan: &LayoutPlan, form: &Form) -> FormErrors {
    let mut refused = FormErrors::default();
    let allowed = Allowed { recreate: form.ticked("recreate"), drain: !form.text("drain").is_empty() };
    let (again, others): (Vec<_>, Vec<_>) =
        plan.refusals(allowed).partition(|blocker| matches!(blocker.what, Blocked::MadeAgain { .. }));
    for blocker in others {
        refused.whole.push(blocker.message.clone());
    }
    if !again.is_empty() {
        let why = format!("tick this: {} must be recreated", counted(again.len(), "partition"));
        refused.add("recreate", RECREATE, &why);
    }
    refused
}

impl ApplyPage<'_> {
    fn is_on(&self, daemon: &DaemonView) -> bool {
        self.daemon.as_ref().is_some_and(|chosen| chosen.name == daemon.name)
    }

    /// The steps for a GPU, in order.
    fn steps<'p>(plan: &'p LayoutPlan, gpu: &GpuUuid) -> Vec<&'p LayoutPlanStep> {
        plan.steps.iter().filter(|step| step.step.gpu == *gpu).collect()
    }

    /// The processes that block a plan, with their clients if they are connected.
    fn holders(&self, blocked: &Blocked) -> Vec<(ClientId, Option<&ClientView>)> {
        let Blocked::InUse { clients, .. } = blocked else { return Vec::new() };
        let view = |id: &ClientId| (*id, self.clients.iter().find(|client| client.id == *id));
        clients.iter().map(view).collect()
    }

    /// Returns true if the plan can be applied once everything that can be allowed is allowed.
    fn is_possible(plan: &LayoutPlan) -> bool {
        plan.refusals(Allowed { recreate: true, drain: true }).next().is_none()
    }

    /// Names the partitions whose clients have to stop first.
    fn occupied(plan: &LayoutPlan) -> Option<String> {
        let occupied = plan.blocked.iter().filter_map(|blocker| match &blocker.what {
            Blocked::InUse { partition: Some(partition), .. } => Some(partition.to_string()),
            Blocked::InUse { id, .. } => Some(id.to_string()),
            _ => None,
        });
        let occupied: Vec<String> = occupied.collect();
        (!occupied.is_empty()).then(|| enumerated(&occupied))
    }

    /// Describes a blocker.
    fn in_brief(&self, blocked: &Blocked) -> String {
        blocked.in_brief(|gpu| self.places.names.name(gpu))
    }

    /// The commands that the plan sends.
    fn commands(plan: &LayoutPlan) -> usize {
        plan.steps.iter().filter(|step| step.step.action != Action::Keep).count()
    }
}

/// Compares a daemon with a layout now.
pub(super) async fn assert(call: Call, Path(name): Path<LayoutName>, query: ListQuery) -> Reply {
    let Call { app, ctx } = &call;
    let form = query.form();
    let version = version_of(&call, &name, form).await?;
    let places = Places::of(&call).await?;
    let daemon = places.daemon(form.text("daemon"), version.layout.enforcement).cloned();
    let daemon = daemon
        .ok_or_else(|| ServiceError::NotFound { kind: "daemon", name: shortened(form.text("daemon")) })?;
    let target = places.target(&version, &daemon, form);
    let assertion = app.service.assert_layout(ctx, &name, &target).await?;
    let title = format!("Layout {name} on {}", daemon.name);
    let frame = call.frame(Section::Layouts, &title).await;
    Ok(rendered(&AssertPage { frame, version, daemon, places, assertion }))
}
