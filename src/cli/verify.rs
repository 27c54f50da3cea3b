//! `mps-manager verify`: runs a CUDA client in a tenant's environment, and prints what it saw.

use std::process::ExitCode;

use super::output::{DIFFERS, ERROR, ListColumn, ListLayout, OutputFormat, TableCell, complain, line};
use super::wait::{POLL, ProgressLine};
use crate::client::{Client, ClientError};
use crate::domain::TenantName;
use crate::domain::memory::Bytes;
use crate::domain::verification::{
    ComparisonVerdict, SettingComparison, Verification, VerificationOutcome, VerificationResult,
    VerifiedSetting,
};
use crate::service::tenants::TenantView;

/// Runs a client and waits for its result: exit 0 if it saw the configuration, 1 if a value differs, 2 if it could not run.
pub(super) async fn run(
    client: &Client,
    tenant: &TenantName,
    output: OutputFormat,
) -> Result<ExitCode, ClientError> {
    let path = format!("/api/v1/tenants/{tenant}");
    let started: Verification = client.post(&format!("{path}/verify"), &serde_json::json!({})).await?;
    let since = started.running_since.unwrap_or(0);
    let progress = ProgressLine::new(&format!("running a CUDA client as tenant {tenant}"));
    let result = loop {
        let view: TenantView = client.get(&path).await?;
        let verification = view.status.verification.unwrap_or_default();
        match verification.last {
            Some(last) if last.requested_at >= since => break last,
            _ if verification.running_since.is_none() => {
                let lost = "the tenant was created again meanwhile, so the result is lost: verify again";
                return Err(ClientError::Address(lost.to_owned()));
            }
            _ => tokio::time::sleep(POLL).await,
        }
    };
    drop(progress);
    if output == OutputFormat::Name {
        line!("{tenant}");
    } else if !output.print_value(&result) {
        print(&result, output);
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

const LAYOUT: ListLayout<SettingComparison> = ListLayout {
    noun: "settings",
    name: |one| one.setting.as_str().to_owned(),
    columns: &[
        ListColumn::new("SETTING", |one| one.setting.as_str().into()),
        ListColumn::new("CONFIGURED", |one| shown(one.setting, one.expected.as_deref())),
        ListColumn::new("SEEN", |one| shown(one.setting, one.seen.as_deref())),
        ListColumn::new("VERDICT", |one| {
            TableCell::state(match one.verdict {
                ComparisonVerdict::Holds => "holds",
                ComparisonVerdict::Differs => "differs",
                ComparisonVerdict::NotSeen => "not seen",
            })
        }),
        ListColumn::cut("GPU", |one| TableCell::optional(one.gpu.as_ref())),
    ],
};

fn shown(setting: VerifiedSetting, text: Option<&str>) -> TableCell {
    let bytes = text.and_then(|text| text.parse().ok()).map(Bytes);
    match (setting, bytes) {
        (VerifiedSetting::DeviceMemoryLimit | VerifiedSetting::LargestAllocation, Some(bytes)) => {
            bytes.to_string().into()
        }
        _ => TableCell::optional(text),
    }
}

fn print(result: &VerificationResult, output: OutputFormat) {
    match result.outcome {
        VerificationOutcome::Verified => line!("verified"),
        VerificationOutcome::Differs => line!("differs"),
        VerificationOutcome::NotVerified => return line!("not verified"),
    }
    LAYOUT.print_rows(&result.comparisons, output);
    for one in result.comparisons.iter().filter(|one| one.verdict == ComparisonVerdict::Differs) {
        let words = |text: &Option<String>| text.clone().unwrap_or_default();
        line!("\n{}: {}. {}", one.setting.as_str(), words(&one.reason), words(&one.remedy));
    }
}
