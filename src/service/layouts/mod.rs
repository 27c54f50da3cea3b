//! Layouts: created, read, deleted; planned, applied and asserted on a daemon.

mod change;
mod documents;
mod partitions;
pub mod replays;

use serde::{Deserialize, Serialize};

pub use change::{ApplyRequest, LayoutTarget};
pub(super) use change::{Projected, may_change, refuse_blocked};
pub(super) use documents::take;
pub use partitions::PartitionView;

use crate::domain::access::Right;
use crate::domain::audit::Target;
use crate::domain::layout::{self, Invalid, Layout, Version, VersionRef};
use crate::domain::{DaemonName, LayoutName};
use crate::service::access::context::RequestContext;
use crate::service::error::{Found as _, conflict};
use crate::service::page::{Page, Paged};
use crate::service::{
    FieldError, Result, Service, ServiceError, WriteOptions, Written, check_precondition, refuse_namesake,
    transaction_end,
};
use crate::store::layouts::NewVersion;
use crate::store::{self, Transaction, transact};

/// A layout to be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LayoutRequest {
    /// Its content.
    pub layout: Layout,
    /// Why it is written.
    #[serde(default)]
    #[schema(
        max_length = 1024,
        pattern = "^[^\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u2800\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb]*$"
    )]
    pub note: Option<String>,
}

/// The newest version of a layout, and its daemons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LayoutView {
    /// Its newest version.
    pub newest: Version,
    /// The daemons that have one of its versions, or will.
    pub daemons: Vec<DaemonName>,
}

impl Service {
    /// Writes a layout, as a new version if it differs, and returns the newest version.
    pub async fn put_layout(
        &self,
        ctx: &RequestContext,
        name: LayoutName,
        request: LayoutRequest,
        options: WriteOptions,
    ) -> Result<Written<LayoutView>> {
        let permit = ctx.require(Right::Operate)?.on(Target::Layout(name.clone()));
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let LayoutRequest { layout, note } = request;
        layout.check().map_err(|error| invalid("/layout", error))?;
        check_note(note.as_deref())?;
        let (author, clock) = (ctx.actor.subject.to_string(), ctx.clock);
        transact!(backend, write(&permit), |db| {
            let before = store::layouts::newest(&mut *db, &name).await?;
            let tag = before.as_ref().map(|version| i64::from(version.version));
            check_precondition(&options, tag)?;
            let new =
                NewVersion { layout: &layout, author: &author, note: note.as_deref(), provenance: None };
            let newest = put_if_new(&mut *db, &name, before.as_ref(), &new, clock.unix_ms()).await?;
            let view = view(db, newest).await?;
            Ok((Written { value: view, created: before.is_none() }, transaction_end(&options)))
        })
    }

    /// The newest version of a layout.
    pub async fn layout(&self, ctx: &RequestContext, name: &LayoutName) -> Result<LayoutView> {
        let backend = self.with(&ctx.require(Right::View)?);
        let mut reader = backend.parts.store.read().await?;
        let newest = store::layouts::newest(&mut reader, name).await?;
        view(&mut reader, newest.found("layout", name)?).await
    }

    /// Layouts by name.
    pub async fn layouts(&self, ctx: &RequestContext, page: &Page) -> Result<Paged<LayoutView>> {
        let backend = self.with(&ctx.require(Right::View)?);
        page.key::<LayoutName>()?;
        let mut reader = backend.parts.store.read().await?;
        let listed = store::layouts::page(&mut reader, &page.after, page.rows()).await?;
        let paged = page.cut(listed, |version| version.name.to_string());
        let mut items = Vec::with_capacity(paged.items.len());
        for newest in paged.items {
            items.push(view(&mut reader, newest).await?);
        }
        Ok(Paged { items, next_cursor: paged.next_cursor })
    }

    /// One version of a layout.
    pub async fn layout_version(&self, ctx: &RequestContext, wanted: &VersionRef) -> Result<Version> {
        let backend = self.with(&ctx.require(Right::View)?);
        let stored = store::layouts::version(&mut *backend.parts.store.read().await?, wanted).await?;
        stored.ok_or_else(|| no_version(wanted))
    }

    /// The versions of a layout, newest first.
    pub async fn layout_versions(
        &self,
        ctx: &RequestContext,
        name: &LayoutName,
        page: &Page,
    ) -> Result<Paged<Version>> {
        let backend = self.with(&ctx.require(Right::View)?);
        let before = page.key::<u32>()?;
        let mut reader = backend.parts.store.read().await?;
        if store::layouts::newest(&mut reader, name).await?.is_none() {
            return Err(ServiceError::not_found("layout", name));
        }
        let versions = store::layouts::versions(&mut reader, name, before, page.rows()).await?;
        Ok(page.cut(versions, |version| version.version.to_string()))
    }

    /// Deletes a layout with all its versions; refused while a daemon has it or an operation uses it.
    pub async fn delete_layout(
        &self,
        ctx: &RequestContext,
        name: LayoutName,
        options: WriteOptions,
    ) -> Result<()> {
        let permit = ctx.require(Right::Operate)?;
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        transact!(backend, write(&permit), |db| {
            let newest = store::layouts::newest(&mut *db, &name).await?;
            let newest = newest.found("layout", &name)?;
            check_precondition(&options, Some(i64::from(newest.version)))?;
            let holders = store::daemons::with_layout(&mut *db, &name).await?;
            if !holders.is_empty() {
                let holders: Vec<&str> = holders.iter().map(DaemonName::as_str).collect();
                return Err(conflict!(
                    "layout {name} is in use by the daemons {}: apply another to them first",
                    holders.join(", ")
                ));
            }
            if let Some(operation) = store::operations::with_layout(&mut *db, &name).await? {
                return Err(conflict!(
                    "operation {operation} applies layout {name} to a daemon, or may have to roll back to it: wait for it, or \
                     cancel it"
                ));
            }
            store::layouts::delete(db, &name).await?;
            Ok(((), transaction_end(&options)))
        })
    }
}

/// Writes a version if it differs, and returns the newest.
pub(super) async fn put_if_new(
    db: Transaction<'_>,
    name: &LayoutName,
    before: Option<&Version>,
    new: &NewVersion<'_>,
    now: i64,
) -> Result<Version> {
    if let Some(same) = before.filter(|before| before.layout == *new.layout) {
        return Ok(same.clone());
    }
    check_free(name)?;
    refuse_namesake(&mut *db, "layout", name.as_str()).await?;
    store::layouts::put(&mut *db, name, new, now).await?;
    let newest = store::layouts::newest(db, name).await?;
    newest.ok_or_else(|| ServiceError::Internal("the layout just written is gone".into()))
}

/// Refuses a reserved name.
fn check_free(name: &LayoutName) -> Result<()> {
    if name.is_free() {
        return Ok(());
    }
    let detail =
        format!("no layout can be called {name}, since that is a path of the API: choose another name");
    Err(ServiceError::field(&format!("/layouts/{name}"), detail))
}

async fn view(db: &mut sqlx::SqliteConnection, newest: Version) -> Result<LayoutView> {
    let daemons = store::daemons::with_layout(db, &newest.name).await?;
    Ok(LayoutView { newest, daemons })
}

/// Refuses a note that is too long or has control characters or invisible ones.
pub(super) fn check_note(note: Option<&str>) -> Result<()> {
    layout::check_note(note).map_err(|error| ServiceError::field("/note", error.to_string()))
}

/// A validation error of a layout that is in a request under this pointer.
pub(super) fn invalid(within: &str, Invalid { pointer, reason }: Invalid) -> ServiceError {
    let pointer = format!("{within}{pointer}");
    ServiceError::Invalid(vec![FieldError { pointer, detail: reason.to_string() }])
}

fn no_version(wanted: &VersionRef) -> ServiceError {
    ServiceError::NotFound { kind: "layout", name: wanted.to_string() }
}
