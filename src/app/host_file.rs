//! The host file that a manager applies when it starts.

use std::time::Duration;

use super::{App, StartupError, refused};
use crate::domain::audit::Target;
use crate::domain::daemon::Phase;
use crate::domain::host_file::HostFile;
use crate::service::access::context::RequestContext;
use crate::service::host_file::{AppliedHostFile, HostFileOptions};
use crate::service::{FieldError, ServiceError, WriteOptions};

/// Longest wait for the first poll of a daemon: one that does not answer is judged as it is.
const FIRST_POLL: Duration = Duration::from_secs(30);

impl App {
    /// Applies a host file once each daemon was polled, as a request would; what follows is done in the background.
    pub(super) async fn apply_host_file(&self, file: HostFile) -> Result<(), StartupError> {
        let (service, fleet) = (self.service(), self.fleet());
        for (_, handle) in fleet.all() {
            handle.wait_for(FIRST_POLL, |observed| observed.status.phase != Phase::Unknown).await;
        }
        let ctx = RequestContext::of_manager(
            service.clock(),
            "serve --apply",
            Target::Other("host/spec".to_owned()),
        );
        let file_options = HostFileOptions::default();
        let applied = service.put_host_spec(&ctx, file, file_options, WriteOptions::default()).await;
        let AppliedHostFile { changes, warnings, operation, .. } = applied.map_err(described)?;
        for FieldError { pointer, detail } in warnings {
            tracing::warn!("the host file may be wrong at {pointer}: {detail}");
        }
        match operation {
            Some(operation) => {
                tracing::info!(changes = changes.len(), operation = %operation.id, "the host file is being applied");
            }
            None => tracing::info!("the host is what the host file says"),
        }
        Ok(())
    }
}

/// A refusal with each of its faults.
fn described(error: ServiceError) -> StartupError {
    let errors = match &error {
        ServiceError::Invalid(errors) | ServiceError::HostFileRefused { errors, .. } => errors.clone(),
        _ => return refused(error),
    };
    let lines: Vec<String> =
        errors.into_iter().map(|error| format!("\n  {}: {}", error.pointer, error.detail)).collect();
    StartupError(format!("the host file is refused, and nothing of it was applied:{}", lines.concat()))
}
