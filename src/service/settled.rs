//! Reads that wait until the requested state is reached, or until a reason that waiting does not remove prevents it.

use std::mem::take;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::domain::access::Right;
use crate::domain::condition::{Condition, ReasonOutlook, ready};
use crate::domain::daemon::{DesiredState, Phase};
use crate::domain::operation::Operation;
use crate::domain::verification::Verification;
use crate::domain::{DaemonName, TenantName};
use crate::service::access::context::RequestContext;
use crate::service::daemons::DaemonView;
use crate::service::tenants::TenantView;
use crate::service::{Result, Service};

/// Time for which such a reason has to last before the wait ends: a layout may just be read back.
const SETTLING: Duration = Duration::from_secs(1);

/// The time since which a daemon or tenant has not been ready for a reason that waiting does not remove.
#[derive(Default)]
struct Standstill(Option<Instant>);

impl Standstill {
    /// Updates the standstill with the present condition `Ready`, and returns true if it has lasted long enough.
    fn lasts(&mut self, ready: Option<&Condition>) -> bool {
        let stays = ready.is_some_and(|ready| {
            let outlook = ready.reason.outlook();
            !ready.status && matches!(outlook, ReasonOutlook::Wanted | ReasonOutlook::NeedsAction)
        });
        self.0 = if stays { self.0.or_else(|| Some(Instant::now())) } else { None };
        self.0.is_some_and(|since| since.elapsed() >= SETTLING)
    }
}

impl Service {
    /// Returns a daemon once it is in its desired state, or after this time; with `fresh`, after a new poll of it.
    pub async fn settled_daemon(
        &self,
        ctx: &RequestContext,
        name: &DaemonName,
        mut fresh: bool,
        longest: Duration,
    ) -> Result<DaemonView> {
        let (mut changes, mut standstill) = (self.changes(longest), Standstill::default());
        loop {
            let daemon = self.daemon(ctx, name, take(&mut fresh)).await?;
            let conditions = daemon.status.as_ref().map(|status| status.conditions.as_slice());
            let is_wanted = is_as_wanted(&daemon);
            let is_settled = is_wanted || standstill.lasts(conditions.and_then(ready));
            if is_settled || !changes.next().await {
                if is_wanted {
                    self.await_files_too(ctx, longest).await?;
                }
                return Ok(daemon);
            }
        }
    }

    /// Returns a tenant once its settings are in force and its files are written, or after this time; with `fresh`, after a new poll of its
    /// daemon.
    pub async fn settled_tenant(
        &self,
        ctx: &RequestContext,
        name: &TenantName,
        mut fresh: bool,
        longest: Duration,
    ) -> Result<TenantView> {
        let permit = ctx.require(Right::ViewTenant(name))?;
        let (mut changes, mut standstill) = (self.changes(longest), Standstill::default());
        loop {
            let tenant = self.tenant(ctx, name, take(&mut fresh)).await?;
            let is_down = self.phase(&tenant.spec.daemon).is_some_and(is_down);
            let has_arrived = tenant.status.observed_generation >= tenant.generation;
            let state = ready(&tenant.status.conditions).filter(|_| has_arrived);
            let is_ready = state.is_some_and(|ready| ready.status);
            if is_ready || is_down || standstill.lasts(state) || !changes.next().await {
                if is_ready && !longest.is_zero() {
                    self.with(&permit).await_engine_files(name, tenant.generation).await;
                }
                return Ok(tenant);
            }
        }
    }

    /// Returns an operation once it has ended, or after this time.
    pub async fn settled_operation(
        &self,
        ctx: &RequestContext,
        id: Uuid,
        longest: Duration,
    ) -> Result<Operation> {
        let mut changes = self.changes(longest);
        loop {
            let operation = self.operation(ctx, id).await?;
            let is_over = operation.state.is_final();
            if is_over || !changes.next().await {
                if is_over {
                    self.await_files_too(ctx, longest).await?;
                }
                return Ok(operation);
            }
        }
    }

    /// Waits for the files of engines and systemd, which follow what is published, if the caller waits at all.
    async fn await_files_too(&self, ctx: &RequestContext, longest: Duration) -> Result<()> {
        if !longest.is_zero() {
            self.with(&ctx.require(Right::ViewOwn)?).await_present_engine_files().await;
        }
        Ok(())
    }

    /// Returns the verification of a tenant once none is running, or after this time.
    pub async fn settled_verification(
        &self,
        ctx: &RequestContext,
        name: &TenantName,
        longest: Duration,
    ) -> Result<Verification> {
        let mut changes = self.changes(longest);
        loop {
            let verification = self.tenant(ctx, name, false).await?.status.verification.unwrap_or_default();
            if verification.running_since.is_none() || !changes.next().await {
                return Ok(verification);
            }
        }
    }
}

fn is_as_wanted(daemon: &DaemonView) -> bool {
    let Some(status) = &daemon.status else { return false };
    match status.phase {
        Phase::Ready => status.observed_generation >= daemon.generation,
        Phase::Stopped => daemon.spec.desired_state == DesiredState::Stopped,
        phase => phase == Phase::Observed || is_down(phase),
    }
}

/// Returns true if a daemon serves nothing until somebody acts.
fn is_down(phase: Phase) -> bool {
    matches!(phase, Phase::Stopped | Phase::Absent | Phase::Blocked | Phase::CrashLoop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::condition::{ConditionReason, ConditionType};

    #[tokio::test(start_paused = true)]
    async fn only_what_stays_ends_the_wait() {
        for (reason, ends) in [
            (ConditionReason::PartitionNotProven, true),
            (ConditionReason::ServerExits, true),
            (ConditionReason::AwaitingReadBack, false),
            (ConditionReason::SocketNotHandedOut, false),
        ] {
            let not_ready = Condition::new(ConditionType::Ready, false, reason, String::new());
            let mut standstill = Standstill::default();
            assert!(!standstill.lasts(Some(&not_ready)), "{reason}: it may just be read back");
            tokio::time::advance(SETTLING).await;
            assert_eq!(standstill.lasts(Some(&not_ready)), ends, "{reason}");
            assert!(!standstill.lasts(None), "{reason}");
        }
    }
}
