//! Which tenants are idle, and since when, by the events of their clients.

use crate::http::extract::Call;
use crate::http::pages::sorting::SortValue;
use crate::service::ServiceError;
use crate::service::tenants::TenantView;

/// When a tenant last had a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastUse {
    Now,
    /// Its last one left then.
    At(i64),
    /// None since it was created.
    Never,
    /// None since the first event that is still kept; earlier ones are not known.
    Before(i64),
}

impl LastUse {
    fn of(tenant: &TenantView, last: Option<i64>, events_begin: i64) -> Self {
        match last.filter(|at| *at >= tenant.created_at) {
            _ if tenant.status.clients > 0 => Self::Now,
            Some(at) => Self::At(at),
            None if tenant.created_at >= events_begin => Self::Never,
            None => Self::Before(events_begin),
        }
    }

    pub(super) fn sort_value(self) -> SortValue {
        match self {
            Self::Now => SortValue::Number(i64::MAX),
            Self::At(at) => SortValue::Number(at),
            Self::Before(_) => SortValue::Number(0),
            Self::Never => SortValue::Missing,
        }
    }
}

/// Tenants, each with when it last had a client.
pub(super) async fn with_last_use(
    call: &Call,
    tenants: Vec<TenantView>,
) -> Result<Vec<(TenantView, LastUse)>, ServiceError> {
    let idle: Vec<_> =
        tenants.iter().filter(|tenant| tenant.status.clients == 0).map(|tenant| &tenant.name).collect();
    let (last, begin) = call.app.service.last_clients(&call.ctx, &idle).await?;
    let row = |tenant: TenantView| {
        let used = LastUse::of(&tenant, last.get(&tenant.name).copied(), begin);
        (tenant, used)
    };
    Ok(tenants.into_iter().map(row).collect())
}
