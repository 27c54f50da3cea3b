//! Responses that several resources give.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::operation::Operation;
use crate::http::conditional::shown;
use crate::service::Written;
use crate::service::page::Paged;

/// One page of a list.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct List<T> {
    /// The items.
    pub items: Vec<T>,
    /// The `cursor` of the next page; `null` on the last one.
    pub next_cursor: Option<String>,
}

impl<T> From<Paged<T>> for List<T> {
    fn from(page: Paged<T>) -> Self {
        Self { items: page.items, next_cursor: page.next_cursor }
    }
}

/// Answers with a resource that was written and its entity tag; without the tag after a dry run, since the next write gets it.
pub(super) fn written<T: Serialize>(written: &Written<T>, revision: i64, dry_run: bool) -> Response {
    if dry_run {
        return (StatusCode::OK, axum::Json(&written.value)).into_response();
    }
    let status = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    match shown(revision, &written.value) {
        Ok(answer) => (status, answer).into_response(),
        Err(problem) => problem.into_response(),
    }
}

/// Answers with an operation that was accepted, and the location at which it can be followed.
pub(super) fn accepted(operation: &Operation, dry_run: bool) -> Response {
    accepted_as(operation, operation, dry_run)
}

/// Answers as [`accepted`] does, but with another body.
pub(super) fn accepted_as(operation: &Operation, body: &impl Serialize, dry_run: bool) -> Response {
    if dry_run {
        return (StatusCode::OK, axum::Json(body)).into_response();
    }
    let location = format!("/api/v1/operations/{}", operation.id);
    (StatusCode::ACCEPTED, [(header::LOCATION, location)], axum::Json(body)).into_response()
}
