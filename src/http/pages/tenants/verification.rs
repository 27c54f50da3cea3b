//! Values that a CUDA client saw in a tenant's environment, beside the configuration.

use axum::response::{IntoResponse as _, Redirect};

use crate::domain::TenantName;
use crate::domain::verification::{SettingComparison, SettingValue, Verification, VerifiedSetting};
use crate::http::extract::{Call, Path};
use crate::http::pages::format::{Badge, or_dash};
use crate::http::pages::gpus::GpuNames;
use crate::http::problem::Reply;
use crate::service::WriteOptions;
use crate::service::tenants::TenantView;

/// A setting in one line.
pub(super) struct VerifiedSettingRow {
    pub(super) name: String,
    pub(super) expected: String,
    pub(super) seen: String,
    pub(super) badge: Badge,
    pub(super) reason: Option<String>,
    pub(super) remedy: Option<String>,
}

/// Returns the compared settings, with the GPU where the tenant has several.
pub(super) fn rows(
    verification: &Verification,
    tenant: &TenantView,
    gpus: &GpuNames,
) -> Vec<VerifiedSettingRow> {
    let comparisons = verification.last.iter().flat_map(|last| &last.comparisons);
    let has_several = tenant.status.gpus.len() > 1;
    comparisons.map(|one| VerifiedSettingRow::of(one, has_several, gpus)).collect()
}

impl VerifiedSettingRow {
    fn of(one: &SettingComparison, has_several: bool, gpus: &GpuNames) -> Self {
        let shown = |value: &SettingValue| value.words(one.setting, |gpu| gpus.name(gpu));
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
            Some(gpu) if has_several => format!("{name}, {}", gpus.name(gpu)),
            _ => name.to_owned(),
        };
        Self {
            name,
            expected: or_dash(one.expected.as_ref().map(|value| format!("{about}{}", shown(value)))),
            seen: or_dash(one.seen.as_ref().map(shown)),
            badge: Badge::of(one.verdict.as_str()),
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
