//! The form of a daemon's spec.

use askama::Template;
use serde::Deserialize;

use crate::domain::DaemonName;
use crate::domain::access::Right;
use crate::domain::daemon::DaemonSpec;
use crate::domain::gpu::GpuRef;
use crate::http::extract::{Call, Query};
use crate::http::pages::forms::{FieldDifference, Form, FormErrors, Shape, SpecField};
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::gpus::{GpuRow, name_gpus_by_index};
use crate::http::pages::rendered;
use crate::http::pages::spec_form::{FormSpec, REVISION, SpecDraft};
use crate::http::problem::{Problem, Reply};
use crate::service::daemons::DaemonView;
use crate::service::host::DocumentedOnly;
use crate::service::{ServiceError, WriteOptions};

#[derive(Template)]
#[template(path = "daemons/form.html")]
struct DaemonFormPage {
    frame: Frame,
    /// The daemon that is edited; `None` for a new one.
    daemon: Option<DaemonView>,
    gpus: Vec<DaemonGpuChoice>,
    /// True if a GPU and the control program may have MLOPart devices, or the form has them.
    offers_mlopart: bool,
    form: Form,
    /// The form of a daemon with nothing but defaults.
    plain: Form,
    refused: FormErrors,
    conflict: Option<Vec<FieldDifference>>,
}

/// Fields that most daemons leave as they are, and that are folded away.
#[derive(PartialEq, Eq)]
enum FoldedFields {
    /// Defaults and shares of its tenants.
    Defaults,
    /// Its operation.
    Operation,
}

impl FoldedFields {
    /// Returns the part in which a field is folded away; `None` for one that is always shown.
    fn of(field: &str) -> Option<Self> {
        match field.split('.').next() {
            Some("gpus" | "mode" | "mlopart") => None,
            Some("defaults" | "provisioning") => Some(Self::Defaults),
            _ => Some(Self::Operation),
        }
    }
}

impl DaemonFormPage {
    /// Returns true if a field of this part is wrong or not as most daemons have it.
    fn opens(&self, part: FoldedFields) -> bool {
        let part = Some(part);
        let fields = DaemonSpec::<GpuRef>::FIELDS.iter().map(|(name, ..)| *name);
        fields
            .filter(|name| FoldedFields::of(name) == part)
            .any(|name| self.form.text(name) != self.plain.text(name) || self.refused.field(name).is_some())
    }
}

/// A selectable GPU.
struct DaemonGpuChoice {
    row: GpuRow,
    is_chosen: bool,
    /// Reason for which it cannot be selected, as far as known beforehand.
    not: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewQuery {
    gpu: Option<String>,
}

pub(super) async fn new(call: Call, Query(query): Query<NewQuery>) -> Reply {
    call.ctx.require(Right::Administer)?;
    let gpus = call.gpus().await?;
    let free: Vec<&GpuRow> = gpus.iter().filter(|row| row.is_free()).collect();
    let wanted = |row: &&&GpuRow| {
        let index = row.gpu.place().map(|index| index.to_string());
        query.gpu.as_deref().is_some_and(|gpu| row.gpu.uuid.as_str() == gpu || index.as_deref() == Some(gpu))
    };
    // The only choice is preselected.
    let chosen = free.iter().find(wanted).or_else(|| free.first().filter(|_| free.len() == 1));
    let gpus = chosen.iter().map(|row| row.gpu.uuid.clone()).collect();
    let mut form = Form::of(&DaemonSpec::of(gpus), DaemonSpec::FIELDS)?;
    if let Some(index) = chosen.and_then(|row| row.gpu.place()) {
        form.set("name", index.daemon_name());
    }
    Ok(rendered(&DaemonSpec::page(&call, SpecDraft::new(None, form)).await?))
}

impl FormSpec for DaemonSpec<GpuRef> {
    type Name = DaemonName;
    const NOUN: &'static str = "daemon";
    const FIELDS: &'static [SpecField] = &[
        ("gpus", Shape::List, "GPUs"),
        ("mode", Shape::Text, "Mode"),
        ("mlopart", Shape::Flag, "MLOPart devices"),
        ("multi_user", Shape::Flag, "Clients of several users"),
        ("management", Shape::Text, "Management"),
        ("share_gpus", Shape::Flag, "Start beside another control daemon"),
        ("compute_mode", Shape::Text, "Compute mode"),
        ("defaults.device_memory_limit", Shape::Memory, "Device memory limit"),
        ("defaults.active_thread_percentage", Shape::Number, "Active thread percentage"),
        ("defaults.priority", Shape::Text, "Priority"),
        ("provisioning.strategy", Shape::Text, "Strategy of shares"),
        ("provisioning.expected_clients", Shape::Whole, "Clients to divide among"),
        ("admission", Shape::Text, "Admission"),
        ("memory_overcommit", Shape::Number, "Memory over-commit"),
        ("drift_policy", Shape::Text, "Drift policy"),
        ("wedge_policy", Shape::Text, "If a server hangs"),
        ("wedge_grace_s", Shape::Whole, "Seconds until it is replaced"),
    ];

    async fn stored(call: &Call, name: &DaemonName) -> Result<Form, ServiceError> {
        let Call { app, ctx } = call;
        let daemon = app.service.daemon(ctx, name, false).await?;
        let mut form = Form::of(&daemon.spec, Self::FIELDS)?;
        name_gpus_by_index(call, &mut form, "defaults.device_memory_limit").await?;
        form.set(REVISION, daemon.revision.to_string());
        Ok(form)
    }

    async fn write(
        self,
        Call { app, ctx }: &Call,
        name: DaemonName,
        options: WriteOptions,
    ) -> Result<(), ServiceError> {
        let spec = match &options.if_match {
            None => self,
            Some(_) => {
                // Fields that the form lacks stay as they are; the revision ensures that they are those that were read.
                let stored = app.service.daemon(ctx, &name, false).await?.spec;
                let (layout, desired_state) = (stored.layout.clone(), stored.desired_state);
                let DaemonSpec { users, any_user, foreign_user_policy, schedulable, .. } = stored;
                Self { layout, desired_state, schedulable, users, any_user, foreign_user_policy, ..self }
            }
        };
        app.service.put_daemon(ctx, name, spec, options).await.map(drop)
    }

    async fn page(call: &Call, draft: SpecDraft<DaemonName>) -> Result<impl Template, Problem> {
        let Call { app, ctx } = call;
        let SpecDraft { edited, form, refused, conflict } = draft;
        let daemon = match &edited {
            Some(name) => Some(app.service.daemon(ctx, name, false).await?),
            None => None,
        };
        let choice = |row: GpuRow| {
            let holder = row.gpu.daemon.as_ref().filter(|holder| Some(*holder) != edited.as_ref());
            let mig = (row.gpu.mig_enabled == Some(true))
                .then(|| "in MIG mode: choose one of its instances".to_owned());
            let not = holder.map(|holder| format!("daemon {holder} has it")).or(mig);
            DaemonGpuChoice { is_chosen: form.has("gpus", row.gpu.uuid.as_str()), not, row }
        };
        let offers_mlopart = form.ticked("mlopart")
            || refused.field("mlopart").is_some()
            || app.service.host(ctx).await?.documented_only.contains(&DocumentedOnly::MlopartDevices);
        let gpus =
            call.gpus().await?.into_iter().filter(|row| row.gpu.mlopart.is_none()).map(choice).collect();
        let title = match &edited {
            Some(name) => format!("Edit daemon {name}"),
            None => "Set up a daemon".to_owned(),
        };
        let frame = call.frame(Section::Daemons, &title).await;
        let plain = Form::of(&DaemonSpec::<GpuRef>::of(Vec::new()), Self::FIELDS)?;
        Ok(DaemonFormPage { frame, daemon, gpus, offers_mlopart, form, plain, refused, conflict })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form_holds_the_whole_spec() {
        let specs = [
            serde_json::json!({"gpus": ["GPU-514466a0-8e68-f857-9f73-e438010e48cb"]}),
            serde_json::json!({
                "gpus": ["GPU-514466a0-8e68-f857-9f73-e438010e48cb"], "mode": "static", "multi_user": true,
                "share_gpus": true, "compute_mode": "exclusive_process", "management": "observed",
                "drift_policy": "report", "admission": "reserved", "memory_overcommit": 1.5, "wedge_policy": "wait", "wedge_grace_s": 60,
                "defaults": {
                    "device_memory_limit": "1536M", "active_thread_percentage": 12.5, "priority": "below_normal",
                },
            }),
            serde_json::json!({
                "gpus": ["0", "1"], "defaults": {"device_memory_limit": {"0": "1G", "1": "1536M"}},
                "provisioning": {"strategy": "weighted", "expected_clients": 8},
            }),
        ];
        for spec in specs {
            let spec: DaemonSpec<GpuRef> = serde_json::from_value(spec).expect("a spec");
            let form = Form::of(&spec, DaemonSpec::FIELDS).expect("a form");
            assert_eq!(
                crate::http::pages::spec_form::read::<DaemonSpec<GpuRef>>(&form, 0).expect("the same"),
                spec
            );
        }
    }
}
