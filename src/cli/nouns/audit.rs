use super::Noun;
use crate::cli::output::{ListField, TableCell};
use crate::domain::audit::AuditRecord;
use crate::domain::rfc3339;

type Field = ListField<AuditRecord>;

/// Rows of the audit log.
pub(in crate::cli) static AUDIT: Noun<AuditRecord> = Noun::new(
    ["audit", "rows", "/api/v1/audit"],
    |row| row.id.to_string(),
    &[
        Field::column("ROW", |row| row.id.to_string().into()),
        Field::column("TIME", |row| rfc3339::format(row.at).into()).rank(2),
        Field::column("ACTOR", |row| row.actor.as_str().into()).rank(3),
        Field::column("OUTCOME", |row| TableCell::state(row.outcome.as_str())).rank(4),
        Field::column("CHANGE", |row| row.deed().to_string().into()).cut(),
        Field::wide("TARGET", |row| row.target.as_str().into()),
        Field::wide("REQUEST", |row| row.request.as_deref().unwrap_or("-").into()),
        Field::wide("ORIGIN", |row| row.origin.as_str().into()),
        Field::wide("GRANT", |row| row.granted.as_str().into()),
        Field::wide("HASH", |row| row.hash.as_str().into()),
    ],
);
