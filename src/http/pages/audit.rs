//! The audit log: who did what, with the spec before and after each change.

use std::collections::BTreeSet;

use axum::Router;
use axum::routing::get;
use serde_json::Value;

use super::frame::Section;
use super::lists::{ListQuery, list_page};
use crate::domain::audit::{AuditOutcome, AuditRecord, Head};
use crate::http::AppState;
use crate::http::extract::Call;
use crate::http::problem::Reply;
use crate::service::access::audit::AuditFilter;

/// Fields of the filter.
const FILTER: [&str; 3] = ["actor", "target", "outcome"];

pub(super) fn router() -> Router<AppState> {
    Router::new().route("/audit", get(list))
}

list_page!(AuditPage, "audit.html", AuditRow, head: Option<Head>);

/// A row, and what it changed.
struct AuditRow {
    record: AuditRecord,
    /// Link to its target.
    subject: Option<String>,
    changes: Vec<FieldChange>,
}

/// A changed field.
#[derive(Debug, PartialEq, Eq)]
struct FieldChange {
    field: String,
    before: Option<String>,
    after: Option<String>,
}

async fn list(call: Call, query: ListQuery) -> Reply {
    let service = &call.app.service;
    let entries = async {
        let filter = AuditFilter {
            actor: query.text("actor").map(str::to_owned),
            target: query.text("target").map(str::to_owned),
            outcome: query.one_of("outcome", "an outcome", AuditOutcome::ALL, AuditOutcome::as_str)?,
            since: None,
            until: None,
        };
        service.audit(&call.ctx, &filter, &query.page()?).await
    };
    let page = query.list(&call, Section::Audit, &FILTER, entries).await?.map(AuditRow::of);
    let head = if page.list.refused.is_empty() { Some(service.audit_head(&call.ctx).await?) } else { None };
    Ok(page.answer(|page| AuditPage { page, head }))
}

impl AuditRow {
    fn of(record: AuditRecord) -> Self {
        let has_page = ["daemons/", "tenants/", "layouts/", "tokens/", "operations/", "replays/"];
        let is_one = |target: &str| {
            let names = has_page.iter().find_map(|kind| target.strip_prefix(kind));
            names.is_some_and(|name| !name.is_empty() && !name.contains(['{', '/']))
        };
        Self {
            // A resource whose creation was refused does not exist.
            subject: (is_one(&record.target) && is_made(&record)).then(|| format!("/{}", record.target)),
            changes: changes(record.before.as_deref(), record.after.as_deref()),
            record,
        }
    }
}

/// Returns true if the target of an attempt existed before it, or exists since.
fn is_made(record: &AuditRecord) -> bool {
    let creates = record.action.starts_with("PUT ") || record.action.starts_with("POST ");
    record.outcome == AuditOutcome::Done || record.before.is_some() || !creates
}

/// The changed fields.
fn changes(before: Option<&str>, after: Option<&str>) -> Vec<FieldChange> {
    let read = |text: Option<&str>| match text.map(serde_json::from_str::<Value>) {
        Some(Ok(Value::Object(fields))) => fields,
        _ => serde_json::Map::new(),
    };
    let (before, after) = (read(before), read(after));
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let text = |value: Option<&Value>| {
        value.filter(|value| !value.is_null()).map(|value| match value {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        })
    };
    names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name))
        .map(|name| FieldChange {
            field: name.clone(),
            before: text(before.get(name)),
            after: text(after.get(name)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_creation_has_no_link() {
        let row = |action: &str, target: &str, outcome: AuditOutcome, before: Option<&str>| {
            let record = serde_json::json!({
                "id": 1, "at": "2026-11-25T05:03:49.123Z", "actor": "root", "granted": "admin", "origin": "socket", "previous": "", "hash": "",
                "action": action, "target": target, "outcome": outcome, "before": before,
            });
            AuditRow::of(serde_json::from_value(record).expect("a row")).subject
        };
        let put = "PUT /api/v1/layouts/{name}";
        let link = Some("/layouts/prod".to_owned());
        assert_eq!(row(put, "layouts/prod", AuditOutcome::Refused, None), None);
        assert_eq!(row(put, "layouts/prod", AuditOutcome::Failed, None), None);
        assert_eq!(row(put, "layouts/prod", AuditOutcome::Done, None), link);
        assert_eq!(row(put, "layouts/prod", AuditOutcome::Refused, Some("{}")), link);
        // A target that is only deleted or read existed.
        assert_eq!(row("DELETE /api/v1/layouts/{name}", "layouts/prod", AuditOutcome::Refused, None), link);
        assert_eq!(row(put, "layouts/{name}", AuditOutcome::Done, None), None);
        assert_eq!(row("POST /api/v1/layouts/import", "layouts", AuditOutcome::Done, None), None);
    }

    #[test]
    fn only_changed_fields_are_shown() {
        let changed = changes(
            Some(r#"{"daemon":"gpu0", "uid": 0,"sms":32,"labels":{}}"#),
            Some(r#"{"daemon":"gpu0", "uid": 0,"labels":{"a":"b"}}"#),
        );
        let change = |field: &str, before: Option<&str>, after: Option<&str>| FieldChange {
            field: field.into(),
            before: before.map(Into::into),
            after: after.map(Into::into),
        };
        assert_eq!(
            changed,
            [change("labels", Some("{}"), Some(r#"{"a":"b"}"#)), change("sms", Some("32"), None)]
        );
        assert_eq!(changes(None, Some(r#"{"daemon":"gpu0"}"#)), [change("daemon", None, Some("gpu0"))]);
        assert!(changes(None, None).is_empty() && changes(Some("no JSON"), None).is_empty());
    }
}
