//! `mps-manager verify`: runs a CUDA client in a tenant's environment, and prints what it saw.

use std::process::ExitCode;

use serde_json::json;

use super::fetch::whole;
use super::output::{DIFFERS, ERROR, ListField, ListLayout, OutputFormat, TableCell, complain, line};
use super::wait::ProgressLine;
use crate::client::{Client, ClientError};
use crate::domain::memory::Bytes;
use crate::domain::tenant::EffectiveMemory;
use crate::domain::verification::{
    ComparisonVerdict, SettingComparison, SettingValue, Verification, VerificationOutcome,
    VerificationResult, VerifiedSetting,
};
use crate::domain::{GpuUuid, TenantName};
use crate::service::host::GpuView;
use crate::service::tenants::TenantView;

/// Runs a client and waits for its result: exit 0 if it saw the configuration, 1 if a value differs, 2 if it could not run.
pub(super) async fn run(
    client: &Client,
    tenant: &TenantName,
    output: OutputFormat,
) -> Result<ExitCode, ClientError> {
    let path = format!("/api/v1/tenants/{tenant}");
    let progress = ProgressLine::new(&format!("running a CUDA client as tenant {tenant}"));
    let mut verification: Verification = client.post(&format!("{path}/verify?wait_s=60"), &json!({})).await?;
    while verification.running_since.is_some() {
        verification = client.post(&format!("{path}/verify?wait_s=60"), &json!({})).await?;
    }
    let view: TenantView = client.get(&path).await?;
    let (Some(result), effective) = (verification.last, view.status.effective) else {
        let lost = "the tenant was created again meanwhile, so the result is lost: verify again";
        return Err(lost.into());
    };
    drop(progress);
    if output == OutputFormat::Name {
        line!("{tenant}");
    } else if !output.print_value(&result) {
        // A caller who may not see the GPUs is shown UUIDs.
        let gpus: Vec<GpuView> = whole(client, "/api/v1/gpus").await.unwrap_or_default();
        let limits = effective.map(|effective| effective.device_memory_limits).unwrap_or_default();
        let rows: Vec<VerifiedRow> =
            result.comparisons.iter().map(|comparison| row(comparison, &gpus, &limits)).collect();
        print(&result, &rows, output);
    }
    Ok(match result.outcome {
        VerificationOutcome::Verified => ExitCode::SUCCESS,
        VerificationOutcome::Differs => ExitCode::from(DIFFERS),
        VerificationOutcome::NotVerified => {
            let why = result.blocker.map(|blocker| blocker.message).unwrap_or_default();
            complain(&format!("tenant {tenant} was not verified: {why}"));
            ExitCode::from(ERROR)
        }
    })
}

/// A setting as it is shown: GPUs by index where that is known, sizes in words.
#[derive(Debug)]
struct VerifiedRow {
    setting: VerifiedSetting,
    configured: Option<String>,
    seen: Option<String>,
    verdict: ComparisonVerdict,
    gpu: Option<String>,
    uuid: Option<GpuUuid>,
}

type Field = ListField<VerifiedRow>;

static LAYOUT: ListLayout<VerifiedRow> = ListLayout {
    noun: "settings",
    name: |row| row.setting.as_str().to_owned(),
    fields: &[
        Field::column("SETTING", |row| row.setting.as_str().into()),
        Field::column("CONFIGURED", |row| TableCell::optional(row.configured.as_deref())).rank(2),
        Field::column("SEEN", |row| TableCell::optional(row.seen.as_deref())).rank(1),
        Field::column("VERDICT", |row| {
            TableCell::state(match row.verdict {
                ComparisonVerdict::Holds => "holds",
                ComparisonVerdict::Differs => "differs",
                ComparisonVerdict::NotSeen => "not seen",
            })
        }),
        Field::column("GPU", |row| TableCell::optional(row.gpu.as_deref())).rank(3),
        Field::wide("UUID", |row| TableCell::optional(row.uuid.as_ref())),
    ],
};

/// A comparison in words. What is free is less than the limit, since the client's context is paid from it: shown is the limit.
fn row(comparison: &SettingComparison, gpus: &[GpuView], limits: &[EffectiveMemory]) -> VerifiedRow {
    let &SettingComparison { setting, verdict, .. } = comparison;
    let name = |uuid: &GpuUuid| {
        let index = gpus.iter().find(|gpu| gpu.uuid == *uuid).and_then(GpuView::place);
        index.map_or_else(|| uuid.to_string(), |index| index.to_string())
    };
    let words = |value: &SettingValue| value.words(setting, name);
    let (mut configured, mut seen) =
        (comparison.expected.as_ref().map(words), comparison.seen.as_ref().map(words));
    if matches!(setting, VerifiedSetting::DeviceMemoryLimit | VerifiedSetting::LargestAllocation) {
        let limit = limits.iter().find(|limit| Some(&limit.gpu) == comparison.gpu.as_ref());
        configured = match limit.map(|limit| limit.bytes) {
            Some(Some(bytes)) => Some(Bytes(bytes).to_string()),
            Some(None) => Some("whole GPU".to_owned()),
            None => configured.map(|size| format!("{size} free")),
        };
    }
    if setting == VerifiedSetting::DeviceMemoryLimit {
        seen = seen.map(|size| format!("{size} free"));
    }
    let gpu = comparison.gpu.as_ref().map(name);
    VerifiedRow { setting, configured, seen, verdict, gpu, uuid: comparison.gpu.clone() }
}

fn print(result: &VerificationResult, rows: &[VerifiedRow], output: OutputFormat) {
    match result.outcome {
        VerificationOutcome::Verified => line!("verified"),
        VerificationOutcome::Differs => line!("differs"),
        VerificationOutcome::NotVerified => return line!("not verified"),
    }
    LAYOUT.print_rows(rows, output);
    for comparison in &result.comparisons {
        let words = |text: &Option<String>| text.clone().unwrap_or_default();
        let (setting, reason) = (comparison.setting.as_str(), words(&comparison.reason));
        match comparison.verdict {
            ComparisonVerdict::Holds => {}
            ComparisonVerdict::Differs => line!("\n{setting}: {reason}. {}", words(&comparison.remedy)),
            ComparisonVerdict::NotSeen => line!("{setting} was not seen: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_memory_is_the_limit() {
        let uuid = "GPU-74d43ed3-7d54-4a7b-8a3d-4a3b5f0f1d11";
        let read = |setting: &str, expected: u64, seen: u64| -> SettingComparison {
            let comparison = json!({
                "setting": setting, "gpu": uuid, "expected": expected, "seen": seen,
                "verdict": "holds", "reason": null, "remedy": null,
            });
            serde_json::from_value(comparison).expect("a comparison")
        };
        let limit = json!({"gpu": uuid, "bytes": 4_u64 << 30, "enforced_by": "server"});
        let limits: [EffectiveMemory; 1] = [serde_json::from_value(limit).expect("a limit")];
        let shown = row(&read("device_memory_limit", 4_142_000_000, 4_142_000_000), &[], &limits);
        assert_eq!(
            (shown.configured.as_deref(), shown.seen.as_deref()),
            (Some("4 GiB"), Some("3.9 GiB free"))
        );
        assert_eq!(shown.gpu.as_deref(), Some(uuid), "its index is not known");
    }
}
