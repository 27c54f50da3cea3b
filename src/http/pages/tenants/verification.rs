//! Values that a CUDA client saw in a tenant's environment, beside the configuration.

use axum::response::{IntoResponse as _, Redirect};

use crate::domain::verification::{SettingComparison, SettingValue, Verification, VerifiedSetting};
use crate::domain::{GpuUuid, TenantName};
use crate::http::extract::{Call, Path};
use crate::http::pages::format::{self, Badge, or_dash};
use crate::http::pages::gpus::name_of;
use crate::http::problem::Reply;
use crate::service::WriteOptions;

/// A setting in one line.
pub(super) struct VerifiedSettingRow {
    pub(super) name: String,
    pub(super) expected: String,
    pub(super) seen: String,
    pub(super) badge: Badge,
    pub(super) reason: Option<String>,
    pub(super) remedy: Option<String>,
}

/// Returns the compared settings; `gpus` are the tenant's, each with its display name.
pub(super) fn rows(verification: &Verification, gpus: &[(GpuUuid, String)]) -> Vec<VerifiedSettingRow> {
    let comparisons = verification.last.iter().flat_map(|last| &last.comparisons);
    comparisons.map(|one| VerifiedSettingRow::of(one, gpus)).collect()
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
