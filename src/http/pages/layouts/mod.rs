//! Layouts: the list, one with its versions and daemons, comparison of two versions, and deletion.

mod apply;
mod diff;
mod editor;
mod export;
mod gpu_kind;
mod import;
mod plan_picture;
mod replaying;
pub(super) mod replays;
mod target;

use askama::Template;
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::{get, post};
use serde::Deserialize;

use self::editor::EditedLayout;
use self::gpu_kind::LayoutPreview;
pub(super) use self::import::document;
use self::target::Places;
use super::format::{Badge, Moment};
use super::forms::{Form, FormErrors};
use super::frame::{Frame, Section};
use super::lists::{ListQuery, PageLinks, list_page};
use super::routes::PageRoutes;
use super::{refusal, rendered, spec_form};
use crate::domain::host_file::HostObject;
use crate::domain::layout::status::LayoutStatus;
use crate::domain::layout::{Version, VersionRef};
use crate::domain::{DaemonName, LayoutName};
use crate::http::extract::{Call, Path, Query};
use crate::http::problem::Reply;
use crate::service::daemons::DaemonView;
use crate::service::layouts::LayoutView;
use crate::service::page::{MAX_LIMIT, Page};
use crate::service::{WriteOptions, etag};

pub(super) fn router() -> PageRoutes {
    PageRoutes::default()
        .route("/layouts", get(list))
        .route("/layouts/-/new", get(editor::new).post(spec_form::create::<EditedLayout>))
        .route("/layouts/-/check", post(editor::check))
        .form_route("/layouts/-/import", "layouts/import", get(import::show).post(import::import))
        .route("/layouts/{name}", get(show))
        .route("/layouts/{name}/edit", get(editor::edit).post(spec_form::change::<EditedLayout>))
        .route("/layouts/{name}/versions/{version}", get(version))
        .route("/layouts/{name}/compare", get(compare))
        .route("/layouts/{name}/export", get(export::download))
        .route("/layouts/{name}/apply", get(apply::plan).post(apply::apply))
        .route("/layouts/{name}/assert", get(apply::assert))
        .route("/replays", get(replays::list))
        .form_route("/replays/new", "replays", get(replaying::ask).post(replaying::begin))
        .route("/replays/{id}", get(replays::show))
        .route("/layouts/{name}/delete", get(confirm).post(delete))
}

list_page!(LayoutsPage, "layouts/list.html", LayoutView, all_daemons: Vec<DaemonView>);

/// A daemon that has a version of a layout, or will.
struct LayoutDaemon {
    daemon: DaemonView,
    version: u32,
    badge: Badge,
}

impl LayoutDaemon {
    fn all(daemons: &[DaemonView], name: &LayoutName) -> Vec<Self> {
        daemons.iter().filter_map(|daemon| Self::of(daemon.clone(), name)).collect()
    }

    fn of(daemon: DaemonView, name: &LayoutName) -> Option<Self> {
        let active = daemon.spec.layout.as_ref().filter(|active| active.name == *name)?;
        let version = active.version;
        let status = daemon.status.as_ref().and_then(|status| status.layout.as_ref());
        let of_this = status.filter(|status| status.name.as_ref() == Some(name));
        let badge = Badge::of(of_this.map_or("not_polled_yet", |status| status.state.as_str()));
        Some(Self { daemon, version, badge })
    }

    fn status(&self) -> Option<&LayoutStatus> {
        self.daemon.status.as_ref()?.layout.as_ref()
    }
}

async fn list(call: Call, query: ListQuery) -> Reply {
    let layouts = async { call.app.service.layouts(&call.ctx, &query.page()?).await };
    let page = query.list(&call, Section::Layouts, &[], layouts).await?;
    let all_daemons = call.daemons().await?;
    Ok(page.answer(|page| LayoutsPage { page, all_daemons }))
}

#[derive(Template)]
#[template(path = "layouts/layout.html")]
struct LayoutPage {
    frame: Frame,
    version: Version,
    /// The number of the newest version, to tell if this is the newest.
    newest: u32,
    preview: LayoutPreview,
    holders: Vec<LayoutDaemon>,
    places: Places,
    versions: Vec<Version>,
    page_links: PageLinks,
    /// Its part of a host file.
    yaml: String,
}

impl LayoutPage {
    fn is_newest(&self) -> bool {
        self.version.version == self.newest
    }
}

async fn show(call: Call, Path(name): Path<LayoutName>, paging: ListQuery) -> Reply {
    let Call { app, ctx } = &call;
    let view = app.service.layout(ctx, &name).await?;
    layout_page(&call, view, None, &paging).await
}

async fn version(call: Call, Path((name, version)): Path<(LayoutName, u32)>, paging: ListQuery) -> Reply {
    let Call { app, ctx } = &call;
    let view = app.service.layout(ctx, &name).await?;
    let version = app.service.layout_version(ctx, &VersionRef { name, version }).await?;
    layout_page(&call, view, Some(version), &paging).await
}

async fn layout_page(call: &Call, view: LayoutView, version: Option<Version>, paging: &ListQuery) -> Reply {
    let Call { app, ctx } = call;
    let newest = view.newest;
    let name = newest.name.clone();
    let paged = app.service.layout_versions(ctx, &name, &paging.page()?).await?;
    let places = Places::of(call).await?;
    let holders = LayoutDaemon::all(&places.daemons, &name);
    let number = newest.version;
    let version = version.unwrap_or(newest);
    let on = holders.first().map_or("", |holder| holder.daemon.name.as_str());
    let preview = LayoutPreview::of(&version.layout, on, &gpu_kind::all(call).await?);
    let frame = call.frame(Section::Layouts, format!("Layout {name}")).await.live();
    let page_links = paging.page_links(paged.next_cursor.as_deref());
    let versions = paged.items;
    let object = HostObject::Layout(&name, &version.layout, version.note.as_deref());
    let yaml = app.service.host_object(ctx, object).await?;
    Ok(rendered(&LayoutPage {
        frame,
        version,
        newest: number,
        preview,
        holders,
        places,
        versions,
        page_links,
        yaml,
    }))
}

#[derive(Template)]
#[template(path = "layouts/compare.html")]
struct ComparePage {
    frame: Frame,
    left: Version,
    right: Version,
    /// The lines of both, each with its class.
    lines: Vec<(&'static str, String)>,
    /// The versions to choose from, newest first.
    numbers: Vec<u32>,
    /// The preview of each.
    previews: [LayoutPreview; 2],
}

/// The versions to compare; by default the newest with the one before it.
#[derive(Debug, Deserialize)]
pub(super) struct ComparedVersions {
    from: Option<u32>,
    to: Option<u32>,
}

async fn compare(
    call: Call,
    Path(name): Path<LayoutName>,
    Query(compared): Query<ComparedVersions>,
) -> Reply {
    let Call { app, ctx } = &call;
    let versions = app.service.layout_versions(ctx, &name, &Page::first(MAX_LIMIT)).await?.items;
    let numbers: Vec<u32> = versions.iter().map(|version| version.version).collect();
    let to = compared.to.or_else(|| numbers.first().copied()).unwrap_or(1);
    let before = || numbers.iter().copied().find(|number| *number < to).unwrap_or(to);
    let from = compared.from.unwrap_or_else(before);
    let version = |version| VersionRef { name: name.clone(), version };
    let left = app.service.layout_version(ctx, &version(from)).await?;
    let right = app.service.layout_version(ctx, &version(to)).await?;
    let lines = diff::lines(&left.layout, &right.layout);
    let gpu_kinds = gpu_kind::all(&call).await?;
    let previews = [&left, &right].map(|version| LayoutPreview::of(&version.layout, "", &gpu_kinds));
    let title = format!("Layout {name}: versions {from} and {to}");
    let frame = call.frame(Section::Layouts, &title).await;
    Ok(rendered(&ComparePage { frame, left, right, lines, numbers, previews }))
}

#[derive(Template)]
#[template(path = "layouts/delete.html")]
struct LayoutDeletePage {
    frame: Frame,
    newest: Version,
    daemons: Vec<DaemonName>,
    refused: FormErrors,
}

/// Shows the layout that would be deleted, with the reason if it cannot be.
async fn confirm(call: Call, Path(name): Path<LayoutName>) -> Reply {
    let Call { app, ctx } = &call;
    let tried = app.service.delete_layout(ctx, name.clone(), WriteOptions::rehearsal()).await;
    let refused = tried.err().map(|error| refusal(ctx, error, &[])).transpose()?;
    delete_page(&call, &name, refused.unwrap_or_default()).await
}

async fn delete_page(call: &Call, name: &LayoutName, refused: FormErrors) -> Reply {
    let LayoutView { newest, daemons } = call.app.service.layout(&call.ctx, name).await?;
    let frame = call.frame(Section::Layouts, format!("Delete layout {name}")).await;
    Ok(refused.shown(|refused| LayoutDeletePage { frame, newest, daemons, refused }))
}

async fn delete(call: Call, Path(name): Path<LayoutName>, form: Form) -> Reply {
    let Call { app, ctx } = &call;
    let version = form.text("version").parse::<i64>().ok();
    let options = WriteOptions { if_match: version.map(etag), ..WriteOptions::default() };
    match app.service.delete_layout(ctx, name.clone(), options).await {
        Ok(()) => Ok(Redirect::to("/layouts").into_response()),
        Err(error) => delete_page(&call, &name, refusal(ctx, error, &[])?).await,
    }
}
