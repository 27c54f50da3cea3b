//! Search over pages, actions and objects: a page of its own, whose results the search field shows as one types.

use askama::Template;

use super::frame::{Frame, Section, menu};
use super::lists::ListQuery;
use super::rendered;
use crate::domain::access::Role;
use crate::http::extract::Call;
use crate::http::problem::{Problem, Reply};
use crate::service::page::{MAX_LIMIT, Page};
use crate::service::tenants::TenantFilter;
use crate::service::tenants::clients::ClientFilter;

/// Results of each kind.
const OF_A_KIND: usize = 8;

/// Actions: their words, their address, and the least role on the host that may do them.
const ACTIONS: [(&str, &str, Role); 9] = [
    ("New tenant", "/tenants/-/new", Role::Admin),
    ("Set up a daemon", "/daemons/-/new", Role::Admin),
    ("New layout", "/layouts/-/new", Role::Operator),
    ("Import a layout", "/layouts/-/import", Role::Operator),
    ("Replay a layout", "/replays/new", Role::Operator),
    ("Open a file: a host file, a layout document or a record", "/file", Role::Operator),
    ("New token", "/tokens/new", Role::Admin),
    ("Begin maintenance", "/settings/maintenance", Role::Admin),
    ("Host file", "/settings#host-file", Role::Viewer),
];

/// A result.
struct Hit {
    kind: &'static str,
    label: String,
    href: String,
    detail: String,
}

#[derive(Template)]
#[template(path = "search.html")]
struct SearchPage {
    frame: Frame,
    text: String,
    hits: Vec<Hit>,
}

pub(super) async fn show(call: Call, query: ListQuery) -> Reply {
    let text = query.text("q").unwrap_or_default().trim().chars().take(100).collect::<String>();
    let frame = call.frame(Section::Elsewhere, "Search").await;
    let hits = if text.is_empty() { Vec::new() } else { hits(&call, &frame, &text).await? };
    Ok(rendered(&SearchPage { frame, text, hits }))
}

/// The results of a text, pages and actions first.
async fn hits(call: &Call, frame: &Frame, text: &str) -> Result<Vec<Hit>, Problem> {
    let wanted = text.to_lowercase();
    let pages = menu(&frame.grant, Section::Elsewhere).into_iter().flat_map(|group| group.links);
    let mut all: Vec<Hit> = found(
        "Page",
        &wanted,
        pages.map(|link| (link.label.to_owned(), link.href.to_owned(), String::new())),
    );
    let actions = ACTIONS.iter().filter(|(.., least)| frame.may(*least));
    let action =
        |(label, href, _): &(&str, &str, Role)| ((*label).to_owned(), (*href).to_owned(), String::new());
    all.extend(found("Action", &wanted, actions.map(action)));
    if let Ok(id) = wanted.trim_start_matches("incident").trim().parse::<i64>()
        && call.app.service.incident(&call.ctx, id).await.is_ok()
    {
        all.push(Hit {
            kind: "Incident",
            label: format!("Incident {id}"),
            href: format!("/incidents/{id}"),
            detail: String::new(),
        });
    }
    if frame.may(Role::Viewer) {
        all.extend(of_host(call, &wanted).await?);
    }
    let tenants = TenantFilter { text: Some(wanted.clone()), ..TenantFilter::default() };
    let most = Page::first(u32::try_from(OF_A_KIND).unwrap_or(1));
    let tenants = call.app.service.tenants(&call.ctx, &tenants, &most).await?.items.into_iter();
    all.extend(found(
        "Tenant",
        "",
        tenants.map(|tenant| {
            (
                tenant.name.to_string(),
                format!("/tenants/{}", tenant.name),
                format!("on {}", tenant.spec.daemon),
            )
        }),
    ));
    let clients = call.clients(ClientFilter::default()).await?.into_iter().map(|client| {
        let of = client.tenant.map_or_else(String::new, |tenant| format!(" of {tenant}"));
        (format!("PID {}{of}", client.pid), format!("/clients/{}", client.id), client.command)
    });
    all.extend(found("Client", &wanted, clients));
    Ok(all)
}

/// The GPUs, daemons and layouts.
async fn of_host(call: &Call, wanted: &str) -> Result<Vec<Hit>, Problem> {
    let gpus = call.gpus().await?.into_iter().map(|row| {
        let href = format!("/gpus/{}", row.key());
        (row.called(), href, format!("{} {}", row.product(), row.key()))
    });
    let daemons = call.daemons().await?.into_iter().map(|daemon| {
        (daemon.name.to_string(), format!("/daemons/{}", daemon.name), daemon.spec.mode.as_str().to_owned())
    });
    let layouts = call.app.service.layouts(&call.ctx, &Page::first(MAX_LIMIT)).await?.items.into_iter();
    let layouts = layouts.map(|layout| {
        let name = layout.newest.name;
        (name.to_string(), format!("/layouts/{name}"), format!("version {}", layout.newest.version))
    });
    let mut all = found("GPU", wanted, gpus);
    all.extend(found("Daemon", wanted, daemons));
    all.extend(found("Layout", wanted, layouts));
    Ok(all)
}

/// The first results that contain the text in their label or their detail.
fn found(kind: &'static str, wanted: &str, all: impl Iterator<Item = (String, String, String)>) -> Vec<Hit> {
    let has = |text: &str| text.to_lowercase().contains(wanted);
    let matching = all.filter(|(label, _, detail)| has(label) || has(detail));
    matching.take(OF_A_KIND).map(|(label, href, detail)| Hit { kind, label, href, detail }).collect()
}
