//! Problems as pages: what happened, what to do, and the way back.
//!
//! One layer for every response outside the API that a browser may get, whichever layer or handler refused: the response
//! keeps its status and headers, and becomes a page instead of a problem document.

use askama::Template;
use axum::extract::Request;
use axum::http::{HeaderMap, Uri, header};
use axum::response::Response;

use super::frame::{Frame, Outside, PageLink, Section};
use super::page;
use crate::http::AppState;
use crate::http::accept;
use crate::http::auth;
use crate::http::extract::Call;
use crate::http::peer::Peer;
use crate::http::problem::{Detail, FieldErrors, ProblemKind, Title};
use crate::service::FieldError;
use crate::service::access::context::RequestContext;

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage<'a> {
    frame: Frame,
    status: u16,
    what: &'a str,
    detail: &'a str,
    fields: &'a [FieldError],
    /// The page that the refused request was about.
    back: Option<PageLink>,
}

/// The page of what a path is about, or the list that it would be in.
fn way_back(path: &str, status: u16, frame: &Frame) -> Option<PageLink> {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let list = frame.menu.iter().flat_map(|group| &group.links);
    let list =
        list.into_iter().find(|link| parts.len() > 1 && link.href.strip_prefix('/') == Some(parts[0]))?;
    Some(match parts[..] {
        [_, name, _, ..] if name != "-" && status != 404 => {
            PageLink::new(format!("{}/{name}", list.href), name)
        }
        _ => PageLink::new(list.href, list.label),
    })
}

#[derive(Template)]
#[template(path = "problem_outside.html")]
struct OutsidePage<'a> {
    outside: Outside,
    status: u16,
    what: &'a str,
    detail: &'a str,
}

/// A person who reads the response, as far as the request shows.
pub(in crate::http) struct PageReader {
    path: String,
    headers: HeaderMap,
}

/// The reader of a response, if it is a person.
pub(in crate::http) fn reader(request: &Request) -> Option<PageReader> {
    let (uri, headers) = (request.uri(), request.headers());
    is_for_a_person(uri, headers)
        .then(|| PageReader { path: uri.path().to_owned(), headers: headers.clone() })
}

/// Renders a refusal as a page.
pub(in crate::http) async fn shown(
    app: &AppState,
    peer: Peer,
    PageReader { path, headers }: PageReader,
    response: Response,
) -> Response {
    if response.extensions().get::<Detail>().is_none() || is_page(&response) {
        return response;
    }
    as_page(app, peer, &path, &headers, response).await
}

/// A pointer in words: `/spec/memory_overcommit` is "memory overcommit".
fn in_words(pointer: &str) -> String {
    let place = pointer.trim_start_matches('/');
    place.strip_prefix("spec/").unwrap_or(place).replace(['/', '_'], " ")
}

/// Returns true if a person reads the response: programs request other formats, or accept any.
fn is_for_a_person(uri: &Uri, headers: &HeaderMap) -> bool {
    !uri.path().starts_with("/api/") && accept::names(headers, "text/html")
}

fn is_page(response: &Response) -> bool {
    let mime = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    mime.is_some_and(|mime| mime.starts_with("text/html"))
}

async fn as_page(
    app: &AppState,
    peer: Peer,
    path: &str,
    headers: &HeaderMap,
    response: Response,
) -> Response {
    let (mut parts, _) = response.into_parts();
    let extensions = &parts.extensions;
    let what = extensions.get::<Title>().map_or("Not possible", |title| title.0.as_str());
    let detail = extensions.get::<Detail>().map_or("", |detail| detail.0.as_str());
    // The detail in the document is for programs, which request paths.
    let nowhere = format!("There is no page at {}.", path.chars().take(200).collect::<String>());
    let (what, detail) = if what == ProblemKind::NoSuchPath.row().2 {
        ("No such page", nowhere.as_str())
    } else {
        (what, detail)
    };
    let fields = extensions.get::<FieldErrors>().map_or(&[][..], |fields| &fields.0);
    let status = parts.status.as_u16();
    let page = match auth::session(app, peer, headers) {
        Some((admission, _)) => {
            let ctx = RequestContext::new(admission.actor, app.service.clock(), None);
            let call = Call { app: app.clone(), ctx };
            let frame = call.frame(Section::Elsewhere, what).await;
            let back = way_back(path, status, &frame);
            page(parts.status, &ProblemPage { frame, status, what, detail, fields, back })
        }
        None => {
            let outside = Outside::of(&app.service).await;
            page(parts.status, &OutsidePage { outside, status, what, detail })
        }
    };
    let (page, body) = page.into_parts();
    // These headers describe the document and not the page.
    for name in [header::CONTENT_LENGTH, header::CONTENT_ENCODING] {
        parts.headers.remove(name);
    }
    parts.headers.extend(page.headers);
    Response::from_parts(parts, body)
}
