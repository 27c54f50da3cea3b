use crate::cli::output::{ListField, ListLayout, TableCell, age};
use crate::service::tenants::leases::HeldLease;

type Field = ListField<HeldLease>;

/// Lists of leases. Their path is below that of their tenant, so a lease is no [`super::Noun`].
pub(in crate::cli) static LEASES: ListLayout<HeldLease> = ListLayout {
    noun: "leases",
    name: |lease| lease.id.to_string(),
    fields: &[
        Field::column("LEASE", |lease| lease.id.to_string().into()),
        Field::column("KIND", |lease| lease.kind.as_str().into()).rank(4),
        Field::column("CLIENT", |lease| if lease.is_client { "yes" } else { "no" }.into()),
        Field::column("UID", |lease| TableCell::optional(lease.uid)).rank(3),
        Field::column("AGE", |lease| age(lease.granted_at).into()).rank(5),
        Field::column("COMMAND", |lease| lease.command.as_str().into()).cut().rank(1),
    ],
};
