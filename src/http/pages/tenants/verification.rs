//! Values that a CUDA client saw in a tenant's environment, beside the configuration.

use axum::response::{IntoResponse as _, Redirect};

use crate::domain::verification::{
    SettingComparison, SettingValue, Staleness, Verification, VerificationResult, VerifiedSetting,
};
use crate::domain::{GpuUuid, TenantName};
use crate::http::extract::{Call, Path};
use crate::http::pages::format::{self, Badge, Moment, or_dash};
use crate::http::pages::gpus::name_of;
use crate::http::problem::Reply;
use crate::service::WriteOptions;

/// The verification on a page.
#[derive(Default)]
pub(super) struct Verified {
    /// Time since which a client is running.
    pub(super) running_since: Option<Moment>,
    pub(super) last: Option<LastVerification>,
}

/// The last result.
pub(super) struct LastVerification {
    pub(super) badge: Badge,
    pub(super) at: Moment,
    /// Reason for which it is outdated.
    pub(super) stale: Option<&'static str>,
    /// Reason for which no client could run.
    pub(super) blocker: Option<String>,
    pub(super) rows: Vec<VerifiedSettingRow>,
}

/// A setting in one line.
pub(super) struct VerifiedSettingRow {
    pub(super) name: String,
    pub(super) expected: String,
    pub(super) seen: String,
    pub(super) badge: Badge,
    pub(super) reason: Option<String>,
    pub(super) remedy: Option<String>,
}

impl Verified {
    /// `gpus` are the tenant's, each with its display name.
    pub(super) fn of(verification: Option<&Verification>, gpus: &[(GpuUuid, String)]) -> Self {
        let Some(verification) = verification else { return Self::default() };
        let last = verification.last.as_ref().map(|last| LastVerification::of(last, gpus));
        Self { running_since: verification.running_since.map(Moment), last }
    }
}

impl LastVerification {
    fn of(result: &VerificationResult, gpus: &[(GpuUuid, String)]) -> Self {
        Self {
            badge: format::verification(result.outcome),
            at: Moment(result.observed_at),
            stale: result.stale.map(Staleness::meaning),
            blocker: result.blocker.as_ref().map(|blocker| blocker.message.clone()),
            rows: result.comparisons.iter().map(|one| VerifiedSettingRow::of(one, gpus)).collect(),
        }
    }
}

impl VerifiedSettingRow {
    fn of(one: &SettingComparison, gpus: &[(GpuUuid, String)]) -> Self {
        let called = |uuid: &GpuUuid| name_of(gpus, uuid);
        let shown = |value: &SettingValue| value.words(one.setting, called);
        let name = match one.setting {
            VerifiedSetting::Mps => "Client of MPS",
            VerifiedSetting::Gpus => "GPUs",
            VerifiedSetting::Sms => "SMs",
            VerifiedSetting::DeviceMemoryLimit => "Memory left to it",
            VerifiedSetting::LargestAllocation => "Largest allocation",
            VerifiedSetting::Priority => "Priority",
        };
        let about = match one.setting {
            VerifiedSetting::DeviceMemoryLimit => "about ",
            VerifiedSetting::LargestAllocation => "at most ",
            _ => "",
        };
        let name = match &one.gpu {
            Some(gpu) if gpus.len() > 1 => format!("{name}, {}", called(gpu)),
            _ => name.to_owned(),
        };
        Self {
            name,
            expected: or_dash(one.expected.as_ref().map(|value| format!("{about}{}", shown(value)))),
            seen: or_dash(one.seen.as_ref().map(shown)),
            badge: format::verdict(one.verdict),
            reason: one.reason.clone(),
            remedy: one.remedy.clone(),
        }
    }
}

/// Starts a verification, and redirects to the tenant, whose page shows the result.
pub(super) async fn verify(Call { app, ctx }: Call, Path(name): Path<TenantName>) -> Reply {
    app.service.verify_tenant(&ctx, name.clone(), WriteOptions::default()).await?;
    Ok(Redirect::to(&format!("/tenants/{name}#verification")).into_response())
}
