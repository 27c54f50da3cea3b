//! Several hosts: this one and the saved ones beside each other, and the same layout on two of them.

mod replaying;

use std::collections::BTreeSet;

use askama::Template;
use axum::extract::RawQuery;
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::get;
use serde::Deserialize;

use super::format::{Badge, Tone};
use super::forms::{Field, Form, FormErrors, Shape};
use super::frame::{Frame, Section};
use super::routes::PageRoutes;
use super::{refusal, rendered};
use crate::domain::access::Right;
use crate::domain::layout::comparison::{HeldLayout, LayoutComparison};
use crate::domain::layout::replay::Replay;
use crate::domain::layout::status::LayoutState;
use crate::domain::saved_host::SavedHost;
use crate::domain::{DaemonName, HostName, LayoutName};
use crate::http::extract::{Call, Path, Query};
use crate::http::pages::layouts::replays;
use crate::http::problem::{Problem, Reply};
use crate::service::ServiceError;
use crate::service::hosts::{HostState, SavedHostRequest};

const FIELDS: [Field; 4] =
    [("name", Shape::Text), ("url", Shape::Text), ("token", Shape::Text), ("ca", Shape::Text)];

pub(super) fn router() -> PageRoutes {
    PageRoutes::default()
        .route("/hosts", get(list))
        .form_route("/hosts/-/new", "hosts", get(fill_in).post(save))
        .route("/hosts/-/compare", get(compare))
        .route("/hosts/{name}/remove", get(confirm).post(remove))
        .form_route("/layouts/{name}/replay-to", "hosts", get(replaying::choose).post(replaying::act))
}

#[derive(Template)]
#[template(path = "hosts/list.html")]
struct HostsPage {
    frame: Frame,
    hosts: Vec<ListedHost>,
    layouts: Vec<LayoutName>,
}

/// A host in the list, with the cells of the layouts.
struct ListedHost {
    row: HostState,
    /// Of each layout, the daemons that have it.
    cells: Vec<Vec<LayoutCell>>,
}

/// A layout on a daemon, compared with the first host that has it.
struct LayoutCell {
    held: HeldLayout,
    /// The comparison, and the page that shows it; `None` on the first host.
    compared: Option<(LayoutComparison, String)>,
}

impl LayoutCell {
    fn tone(&self) -> Tone {
        match &self.compared {
            Some((comparison, _)) if comparison.is_same() => Tone::Good,
            Some(_) => Tone::Bad,
            None if self.held.is_in_force() => Tone::Good,
            None => Tone::Quiet,
        }
    }

    /// The state, unless the layout is in force.
    fn state(&self) -> Option<Badge> {
        (!self.held.is_in_force()).then(|| Badge::of(self.held.state.map_or("unknown", LayoutState::as_str)))
    }
}

impl ListedHost {
    fn name(&self) -> String {
        name_of(&self.row)
    }
}

/// Returns the name that a host has here; this one has the name of its machine.
fn name_of(row: &HostState) -> String {
    match (&row.saved, &row.reading) {
        (Some(saved), _) => saved.name.to_string(),
        (None, Ok(reading)) => reading.hostname.clone(),
        (None, Err(_)) => "this host".to_owned(),
    }
}

/// The key of a host in an address; empty for this one.
fn key_of(row: &HostState) -> String {
    row.saved.as_ref().map(|saved| saved.name.to_string()).unwrap_or_default()
}

fn layouts_of(row: &HostState) -> impl Iterator<Item = &HeldLayout> {
    row.reading.iter().flat_map(|reading| &reading.layouts)
}

async fn list(call: Call) -> Reply {
    let rows = call.app.service.host_rows(&call.ctx).await?;
    let layouts: BTreeSet<LayoutName> =
        rows.iter().flat_map(layouts_of).map(|held| held.name.clone()).collect();
    let layouts: Vec<LayoutName> = layouts.into_iter().collect();
    let firsts: Vec<Option<(String, HeldLayout)>> =
        layouts.iter().map(|layout| first_with(&rows, layout)).collect();
    let listed = |row: HostState| {
        let cells = layouts.iter().zip(&firsts).map(|(layout, first)| cells(&row, layout, first.as_ref()));
        ListedHost { cells: cells.collect(), row }
    };
    let hosts = rows.into_iter().map(listed).collect();
    let frame = call.frame(Section::Hosts, Section::Hosts.label()).await.live();
    Ok(rendered(&HostsPage { frame, hosts, layouts }))
}

/// Returns the first host that has a layout, by its key, with the layout there.
fn first_with(rows: &[HostState], layout: &LayoutName) -> Option<(String, HeldLayout)> {
    let held = |row| layouts_of(row).find(|held| held.name == *layout);
    rows.iter().find_map(|row| Some((key_of(row), held(row)?.clone())))
}

fn cells(row: &HostState, layout: &LayoutName, first: Option<&(String, HeldLayout)>) -> Vec<LayoutCell> {
    let key = key_of(row);
    let cell = |held: HeldLayout| {
        let first = first.filter(|(host, one)| (host, &one.daemon) != (&key, &held.daemon));
        let compared = first.map(|(host, one)| {
            let page = format!(
                "/hosts/-/compare?layout={layout}&from={host}&from_daemon={}&to={key}&to_daemon={}",
                one.daemon, held.daemon
            );
            (LayoutComparison::of(one, &held), page)
        });
        LayoutCell { held, compared }
    };
    layouts_of(row).filter(|held| held.name == *layout).cloned().map(cell).collect()
}

#[derive(Template)]
#[template(path = "hosts/compare.html")]
struct HostComparePage {
    frame: Frame,
    layout: LayoutName,
    sides: [ComparedSide; 2],
    comparison: Option<LayoutComparison>,
    /// The replay that led here.
    replay: Option<Replay>,
}

/// A daemon of a host that is compared.
struct ComparedSide {
    host: String,
    daemon: DaemonName,
    /// The layout there; `None` after a replay that was undone.
    held: Option<HeldLayout>,
    /// The address of its page; on this host a path.
    href: String,
}

/// The layout and the two daemons are in the query; a host without a name is this one. `replay` is a replay on the second.
async fn compare(call: Call, RawQuery(query): RawQuery) -> Reply {
    let Call { app, ctx } = &call;
    ctx.require(Right::View)?;
    let form = Form::parse(query.unwrap_or_default().as_bytes());
    let layout: LayoutName = form.named("layout")?;
    let (from, to) = (form.text("from"), form.text("to"));
    let (from_daemon, to_daemon) = (form.named("from_daemon")?, form.named("to_daemon")?);
    let rows = app.service.host_rows(ctx).await?;
    let first = side(&rows, from, from_daemon, &layout)?;
    let second = side(&rows, to, to_daemon, &layout)?;
    let title = format!("Layout {layout} on {} and {}", first.host, second.host);
    let replay = match (form.text("replay").parse(), HostName::parse(to)) {
        (Ok(id), Ok(host)) => Some(app.service.remote_replay(ctx, &host, id).await?),
        _ => None,
    };
    if replay.is_none()
        && let Some(missing) = [&first, &second].into_iter().find(|side| side.held.is_none())
    {
        let ComparedSide { host, daemon, .. } = missing;
        let why = format!("daemon {daemon} of {host} does not have layout {layout} any more");
        return Err(ServiceError::Conflict(why).into());
    }
    // A replay that found a difference was undone: there is nothing to compare, but its result.
    let both = first.held.as_ref().zip(second.held.as_ref());
    let comparison = both.map(|(one, other)| LayoutComparison::of(one, other));
    let frame = call.frame(Section::Hosts, title).await;
    let is_over = replay.as_ref().is_some_and(|replay| replay.finished_at.is_some());
    let frame = if is_over { frame } else { frame.live() };
    Ok(rendered(&HostComparePage { frame, layout, sides: [first, second], comparison, replay }))
}

/// Finds a daemon with a layout on a host.
fn side(
    rows: &[HostState],
    key: &str,
    daemon: DaemonName,
    layout: &LayoutName,
) -> Result<ComparedSide, Problem> {
    let row = rows.iter().find(|row| key_of(row) == key);
    let row = row.ok_or_else(|| ServiceError::not_found("saved host", &key))?;
    if let Err(why) = &row.reading {
        return Err(ServiceError::Unavailable(format!("{key}: {why}")).into());
    }
    let host = name_of(row);
    let held = layouts_of(row).find(|held| held.daemon == daemon && held.name == *layout).cloned();
    let base = row.saved.as_ref().map(|saved| saved.url.to_string()).unwrap_or_default();
    Ok(ComparedSide { host, held, href: format!("{base}/daemons/{daemon}#layout"), daemon })
}

#[derive(Template)]
#[template(path = "hosts/new.html")]
struct NewHostPage<'a> {
    frame: Frame,
    form: &'a Form,
    refused: FormErrors,
}

/// The host to save again.
#[derive(Debug, Deserialize)]
struct SavedBefore {
    name: Option<HostName>,
}

async fn fill_in(call: Call, Query(SavedBefore { name }): Query<SavedBefore>) -> Reply {
    call.ctx.require(Right::Administer)?;
    let mut form = Form::default();
    if let Some(name) = name {
        let SavedHost { name, url, ca, .. } = call.app.service.saved_host(&call.ctx, &name).await?;
        form.set("name", name.as_str());
        form.set("url", url.as_str());
        form.set("ca", ca.unwrap_or_default());
    }
    new_page(&call, &form, FormErrors::default()).await
}

async fn new_page(call: &Call, form: &Form, refused: FormErrors) -> Reply {
    let frame = call.frame(Section::Hosts, "Save a host").await;
    Ok(refused.shown(|refused| NewHostPage { frame, form, refused }))
}

async fn save(call: Call, form: Form) -> Reply {
    let Call { app, ctx } = &call;
    let save = async {
        // The right comes first: errors in the fields are for those who may save.
        ctx.require(Right::Administer)?;
        app.service.save_host(ctx, form.read::<SavedHostRequest>(&FIELDS)?).await
    };
    match save.await {
        Ok(()) => Ok(Redirect::to("/hosts").into_response()),
        Err(error) => {
            let refused = refusal(ctx, error, &FIELDS.map(|(name, _)| name))?;
            let mut form = form;
            form.remove("token");
            new_page(&call, &form, refused).await
        }
    }
}

#[derive(Template)]
#[template(path = "hosts/remove.html")]
struct RemoveHostPage {
    frame: Frame,
    host: SavedHost,
}

async fn confirm(call: Call, Path(name): Path<HostName>) -> Reply {
    call.ctx.require(Right::Administer)?;
    let host = call.app.service.saved_host(&call.ctx, &name).await?;
    let frame = call.frame(Section::Hosts, format!("Remove host {name}")).await;
    Ok(rendered(&RemoveHostPage { frame, host }))
}

async fn remove(Call { app, ctx }: Call, Path(name): Path<HostName>) -> Reply {
    app.service.remove_host(&ctx, name).await?;
    Ok(Redirect::to("/hosts").into_response())
}
