//! The files that pages load: embedded in the program, compressed on request, and addressed by their content.
//!
//! The address of a file changes with its content, so browsers cache it forever and never combine an old file with a new
//! page.

use std::sync::LazyLock;

use axum::Router;
use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use sha2::{Digest as _, Sha256};

use crate::http::AppState;
use crate::http::extract::Path;
use crate::http::problem::{Problem, ProblemKind, Reply};

/// An embedded file.
struct Asset {
    name: &'static str,
    mime: &'static str,
    bytes: &'static [u8],
}

macro_rules! asset {
    ($name:literal, $mime:literal, $file:literal) => {
        Asset {
            name: $name,
            mime: $mime,
            bytes: include_bytes!(concat!("../../../web/assets/console/", $file)),
        }
    };
}

static ASSETS: [Asset; 9] = [
    asset!("console.css", "text/css; charset=utf-8", "console.css"),
    asset!("console.js", "text/javascript; charset=utf-8", "console.js"),
    asset!("chart.js", "text/javascript; charset=utf-8", "chart.js"),
    asset!("htmx.js", "text/javascript; charset=utf-8", "htmx-4.0.1.min.js"),
    asset!("uplot.js", "text/javascript; charset=utf-8", "uplot-1.6.32.iife.min.js"),
    asset!("uplot.css", "text/css; charset=utf-8", "uplot-1.6.32.min.css"),
    asset!("icon.svg", "image/svg+xml", "icon.svg"),
    asset!("icons.svg", "image/svg+xml", "icons.svg"),
    asset!("licenses.txt", "text/plain; charset=utf-8", "licenses.txt"),
];

/// A digest over all files, so that their addresses change together.
static DIGEST: LazyLock<String> = LazyLock::new(|| {
    let mut digest = Sha256::new();
    for asset in &ASSETS {
        digest.update(asset.bytes);
    }
    hex::encode(&digest.finalize()[..8])
});

/// Gives templates the addresses of files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Assets;

impl Assets {
    /// The address of a file.
    #[allow(clippy::unused_self, reason = "called on a value in templates")]
    pub(super) fn at(self, name: &str) -> String {
        debug_assert!(ASSETS.iter().any(|asset| asset.name == name), "{name}");
        format!("/assets/{}/{name}", *DIGEST)
    }
}

pub(super) fn router() -> Router<AppState> {
    Router::new().route("/assets/{digest}/{name}", get(serve)).route("/favicon.ico", get(icon))
}

async fn serve(Path((digest, name)): Path<(String, String)>) -> Reply {
    let asset = ASSETS.iter().find(|asset| asset.name == name).filter(|_| digest == *DIGEST);
    asset.map(|asset| answer(asset, "public, max-age=31536000, immutable")).ok_or_else(|| {
        Problem::new(ProblemKind::NoSuchPath, "there is no such file in this version: load the page again")
    })
}

/// Browsers request it by this name for responses that are not pages.
async fn icon() -> Response {
    let asset = ASSETS.iter().find(|asset| asset.name == "icon.svg");
    asset
        .map_or_else(|| StatusCode::NOT_FOUND.into_response(), |asset| answer(asset, "public, max-age=86400"))
}

fn answer(asset: &Asset, keep: &'static str) -> Response {
    let headers = [(header::CONTENT_TYPE, asset.mime), (header::CACHE_CONTROL, keep)];
    (headers, Bytes::from_static(asset.bytes)).into_response()
}
