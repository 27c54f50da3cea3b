//! A layout as a file: with the IDs that its steps gave on a daemon, or without.

use axum::http::header;
use axum::response::IntoResponse as _;
use serde::Deserialize;

use crate::domain::layout::VersionRef;
use crate::domain::layout::text::{self, LayoutFormat};
use crate::domain::{DaemonName, LayoutName};
use crate::http::extract::{Call, Path, Query};
use crate::http::problem::Reply;

/// The options of an export.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExportPageQuery {
    /// The daemon whose IDs are included; by default none.
    daemon: Option<DaemonName>,
    /// The version, if there is no daemon; by default the newest.
    version: Option<u32>,
    #[serde(default)]
    format: LayoutFormat,
}

pub(super) async fn download(
    Call { app, ctx }: Call,
    Path(name): Path<LayoutName>,
    Query(wanted): Query<ExportPageQuery>,
) -> Reply {
    let (document, called) = match (&wanted.daemon, wanted.version) {
        (Some(daemon), _) => {
            (app.service.export_layout(&ctx, &name, daemon).await?, format!("{name}.recorded"))
        }
        (None, Some(version)) => {
            let version =
                app.service.layout_version(&ctx, &VersionRef { name: name.clone(), version }).await?;
            let called = format!("{name}.{}", version.version);
            (text::bare(name, &version.layout, version.note), called)
        }
        (None, None) => {
            let newest = app.service.layout(&ctx, &name).await?.newest;
            (text::bare(name.clone(), &newest.layout, newest.note), name.to_string())
        }
    };
    let format = wanted.format.as_str();
    let disposition = format!("attachment; filename=\"{called}.{format}\"");
    let headers =
        [(header::CONTENT_TYPE, format!("application/{format}")), (header::CONTENT_DISPOSITION, disposition)];
    Ok((headers, text::write(&document, wanted.format)).into_response())
}
