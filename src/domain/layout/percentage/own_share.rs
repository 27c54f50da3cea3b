//! Tenants whose share of SMs is stated twice: by their spec and by their partition.

use crate::TenantName;
use crate::layout::Layout;
use crate::layout::blocked::OwnShare;
use crate::tenant::TenantSpec;

/// Returns the tenants that state a share of their own although they are bound to a partition.
pub fn own_shares<'t>(
    layout: &Layout,
    tenants: impl IntoIterator<Item = (&'t TenantName, &'t TenantSpec)>,
) -> impl Iterator<Item = OwnShare> {
    tenants.into_iter().filter_map(|(tenant, spec)| {
        let field = match (spec.sms, spec.active_thread_percentage) {
            (Some(_), _) => "sms",
            (None, Some(_)) => "active_thread_percentage",
            (None, None) => return None,
        };
        let add = layout.partitions().find(|add| add.tenants.contains(tenant))?;
        Some(OwnShare { tenant: tenant.clone(), field: field.to_owned(), partition: add.partition.clone() })
    })
}
