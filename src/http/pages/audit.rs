//! The audit log: who changed what, as sentences, with each changed field before and after.

use std::collections::BTreeMap;

use axum::Router;
use axum::routing::get;
use jiff::tz::TimeZone;

use super::frame::Section;
use super::lists::{ListQuery, list_page};
use super::reads::uids_of;
use crate::domain::audit::{AuditOutcome, AuditRecord, Deed, FieldChange, Head, actor_words};
use crate::domain::moment::parse_moment;
use crate::http::AppState;
use crate::http::extract::Call;
use crate::http::problem::Reply;
use crate::service::access::audit::AuditFilter;

/// Fields of the filter.
const FILTER: [&str; 6] = ["actor", "target", "outcome", "since", "until", "routine"];

pub(super) fn router() -> Router<AppState> {
    Router::new().route("/audit", get(list))
}

list_page!(AuditPage, "audit.html", AuditRow, head: Option<Head>);

/// A row as a sentence, and what it changed.
struct AuditRow {
    /// Its actor by name.
    author: String,
    deed: Deed,
    /// The page of its target.
    page: Option<String>,
    /// Addresses of the list of its actor's rows, and of those about its target.
    same_actor: String,
    same_target: String,
    changes: Vec<FieldChange>,
    record: AuditRecord,
}

async fn list(call: Call, query: ListQuery) -> Reply {
    let service = &call.app.service;
    let entries = async {
        let moment = |name| query.parsed(name, |text| parse_moment(text, call.now(), &TimeZone::system()));
        let filter = AuditFilter {
            actor: query.text("actor").map(str::to_owned),
            target: query.text("target").map(str::to_owned),
            outcome: query.one_of("outcome", "an outcome", AuditOutcome::ALL, AuditOutcome::as_str)?,
            since: moment("since")?,
            until: moment("until")?,
            // A search for an object finds its leases.
            changes_only: query.text("routine").is_none()
                && !query.text("target").is_some_and(|target| target.contains("/leases/")),
        };
        service.audit(&call.ctx, &filter, &query.page()?).await
    };
    let page = query.list(&call, Section::Audit, &FILTER, entries).await?;
    let names = service.user_names(uids_of(page.list.rows.iter().map(|row| row.actor.as_str()))).await;
    let page = page.map(|record| AuditRow::of(record, &names, &query));
    let head = if page.list.refused.is_empty() { Some(service.audit_head(&call.ctx).await?) } else { None };
    Ok(page.answer(|page| AuditPage { page, head }))
}

impl AuditRow {
    fn of(record: AuditRecord, names: &BTreeMap<u32, String>, query: &ListQuery) -> Self {
        Self {
            author: actor_words(&record.actor, |uid| names.get(&uid).cloned()),
            deed: record.deed(),
            page: page_of(&record),
            same_actor: query.with(&[("actor", &record.actor)]),
            same_target: query.with(&[("target", &record.target)]),
            changes: record.changes(),
            record,
        }
    }
}

/// The page of a row's target, if there is one.
fn page_of(record: &AuditRecord) -> Option<String> {
    let has_page =
        ["daemons", "tenants", "layouts", "tokens", "operations", "replays", "incidents", "clients"];
    let mut parts = record.target.split('/');
    let (kind, name) = (parts.next()?, parts.next()?);
    // A resource whose creation was refused does not exist.
    let is_one = has_page.contains(&kind) && !name.is_empty() && !name.contains('{');
    (is_one && is_made(record)).then(|| format!("/{kind}/{name}"))
}

/// Returns true if the target of an attempt existed before it, or exists since.
fn is_made(record: &AuditRecord) -> bool {
    let creates = record.action.starts_with("PUT ") || record.action.starts_with("POST ");
    record.outcome == AuditOutcome::Done || record.before.is_some() || !creates
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
            page_of(&serde_json::from_value(record).expect("a row"))
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
        // What was done to an object is shown on its page.
        assert_eq!(
            row(
                "POST /api/v1/incidents/{id}/acknowledge",
                "incidents/5/acknowledge",
                AuditOutcome::Done,
                None
            ),
            Some("/incidents/5".to_owned())
        );
    }
}
