//! `mps-manager verify`: runs a CUDA client in a tenant's environment, and prints what it saw.

use std::process::ExitCode;
use std::time::Duration;

use super::show::table;
use super::{DIFFERS, ERROR, OutputFormat, line};
use crate::client::{Client, ClientError};
use crate::domain::TenantName;
use crate::domain::memory::Bytes;
use crate::domain::verification::{
    ComparisonVerdict, Verification, VerificationOutcome, VerificationResult, VerifiedSetting,
};
use crate::service::tenants::TenantView;

/// How often the result is polled.
const POLL: Duration = Duration::from_millis(100);

/// Runs a client and waits for its result: exit 0 if it saw the configuration, 1 if a value differs, 2 if it could not run.
pub(super) async fn run(
    client: &Client,
    tenant: &TenantName,
    output: OutputFormat,
) -> Result<ExitCode, ClientError> {
    let path = format!("/api/v1/tenants/{tenant}");
    let started: Verification = client.post(&format!("{path}/verify"), &serde_json::json!({})).await?;
    let since = started.running_since.unwrap_or(0);
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
    match output {
        OutputFormat::Json => line!("{:#}", serde_json::json!(result)),
        OutputFormat::Table => print(&result),
    }
    Ok(match result.outcome {
        VerificationOutcome::Verified => ExitCode::SUCCESS,
        VerificationOutcome::Differs => ExitCode::from(DIFFERS),
        VerificationOutcome::NotVerified => {
            let why = result.blocker.map(|blocker| blocker.message).unwrap_or_default();
            crate::cli::complain(&format!("tenant {tenant} was not verified: {why}"));
            ExitCode::from(ERROR)
        }
    })
}

fn print(result: &VerificationResult) {
    match result.outcome {
        VerificationOutcome::Verified => line!("verified"),
        VerificationOutcome::Differs => line!("differs"),
        VerificationOutcome::NotVerified => return line!("not verified"),
    }
    let mut rows = vec![["SETTING", "GPU", "CONFIGURED", "SEEN", "VERDICT"].map(str::to_owned)];
    for one in &result.comparisons {
        let shown = |text: &Option<String>| {
            let Some(text) = text else { return "-".to_owned() };
            match (one.setting, text.parse()) {
                (VerifiedSetting::DeviceMemoryLimit | VerifiedSetting::LargestAllocation, Ok(bytes)) => {
                    Bytes(bytes).to_string()
                }
                _ => text.clone(),
            }
        };
        let verdict = match one.verdict {
            ComparisonVerdict::Holds => "holds",
            ComparisonVerdict::Differs => "differs",
            ComparisonVerdict::NotSeen => "not seen",
        };
        rows.push([
            one.setting.as_str().to_owned(),
            one.gpu.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
            shown(&one.expected),
            shown(&one.seen),
            verdict.to_owned(),
        ]);
    }
    table(&rows);
    for one in result.comparisons.iter().filter(|one| one.verdict == ComparisonVerdict::Differs) {
        let words = |text: &Option<String>| text.clone().unwrap_or_default();
        line!("\n{}: {}. {}", one.setting.as_str(), words(&one.reason), words(&one.remedy));
    }
}
