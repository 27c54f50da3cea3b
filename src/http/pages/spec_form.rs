//! The form of a daemon's or a tenant's spec: one to create it, one to edit it.
//!
//! A form is written only over the revision that it was opened on. When that has changed, nothing is written: the page answers
//! 412, keeps what was typed, and shows your value beside the stored one for each field in which they differ.

use std::fmt::Display;
use std::str::FromStr;

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse as _, Redirect, Response};
use serde::de::DeserializeOwned;

use super::forms::{FieldDifference, Form, FormErrors, SpecField};
use super::{refused_with, rendered};
use crate::domain::access::Right;
use crate::http::AppState;
use crate::http::extract::Path;
use crate::http::problem::Problem;
use crate::service::access::context::RequestContext;
use crate::service::{ServiceError, WriteOptions, etag};

/// The field that holds the revision on which a form was opened.
pub(super) const REVISION: &str = "revision";

/// A spec that has a form.
pub(super) trait FormSpec: DeserializeOwned {
    /// The name of the resource that has such a spec.
    type Name: Clone + Display + FromStr<Err: Display> + DeserializeOwned + Send + Sync;
    /// What the resource is called, as `tenant`.
    const NOUN: &'static str;
    const FIELDS: &'static [SpecField];

    /// The form without what its user has typed and does not use.
    fn used(form: &Form) -> Form {
        form.clone()
    }

    /// The spec of a form, or what is wrong in it.
    fn read(form: &Form) -> Result<Self, ServiceError> {
        parsed(form)
    }

    /// The form that shows what is stored, with its revision.
    async fn stored(app: &AppState, ctx: &RequestContext, name: &Self::Name) -> Result<Form, ServiceError>;

    async fn write(
        self,
        app: &AppState,
        ctx: &RequestContext,
        name: Self::Name,
        options: WriteOptions,
    ) -> Result<(), ServiceError>;

    /// The page with its form.
    async fn page(
        app: &AppState,
        ctx: &RequestContext,
        draft: SpecDraft<Self::Name>,
    ) -> Result<impl Template, Problem>;
}

/// A form while it is filled in.
pub(super) struct SpecDraft<N> {
    /// The resource that is edited; `None` for a new one.
    pub(super) edited: Option<N>,
    pub(super) form: Form,
    pub(super) refused: FormErrors,
    /// Where your values differ from the stored ones, when these changed after the form was opened.
    pub(super) conflict: Option<Vec<FieldDifference>>,
}

impl<N> SpecDraft<N> {
    pub(super) fn new(edited: Option<N>, form: Form) -> Self {
        Self { edited, form, refused: FormErrors::default(), conflict: None }
    }
}

/// The spec of the fields that a form uses.
pub(super) fn parsed<S: FormSpec>(form: &Form) -> Result<S, ServiceError> {
    let fields: Vec<_> = S::FIELDS.iter().map(|(name, shape, _)| (*name, *shape)).collect();
    S::used(form).read(&fields)
}

/// The label of a field.
pub(super) fn label<S: FormSpec>(field: &str) -> &str {
    match S::FIELDS.iter().find(|(name, _, _)| *name == field) {
        Some((_, _, label)) => label,
        None if field == "name" => "Name",
        None => field,
    }
}

/// The name that a form gives to a new resource.
pub(super) fn name<S: FormSpec>(form: &Form) -> Result<S::Name, ServiceError> {
    match form.text("name") {
        "" => Err(ServiceError::field("/name", "fill this in")),
        text => text
            .parse()
            .map_err(|error: <S::Name as FromStr>::Err| ServiceError::field("/name", error.to_string())),
    }
}

pub(super) async fn create<S: FormSpec>(
    State(app): State<AppState>,
    ctx: RequestContext,
    form: Form,
) -> Result<Response, Problem> {
    ctx.require(Right::Administer)?;
    if form.ticked("check") {
        return Ok(rendered(&S::page(&app, &ctx, SpecDraft::new(None, form)).await?));
    }
    let options = WriteOptions { must_be_new: true, ..WriteOptions::default() };
    let error = match both(name::<S>(&form), S::read(&form)) {
        Ok((name, spec)) => match spec.write(&app, &ctx, name.clone(), options).await {
            Ok(()) => return Ok(written::<S>(&name)),
            Err(ServiceError::PreconditionFailed(_)) => {
                let why = format!("there is a {} {name} already: choose another name", S::NOUN);
                ServiceError::field("/name", why)
            }
            Err(error) => error,
        },
        Err(error) => error,
    };
    refused::<S>(&app, &ctx, SpecDraft::new(None, form), error).await
}

pub(super) async fn edit<S: FormSpec>(
    State(app): State<AppState>,
    ctx: RequestContext,
    Path(name): Path<S::Name>,
) -> Result<Response, Problem> {
    ctx.require(Right::Administer)?;
    let form = S::stored(&app, &ctx, &name).await?;
    Ok(rendered(&S::page(&app, &ctx, SpecDraft::new(Some(name), form)).await?))
}

pub(super) async fn change<S: FormSpec>(
    State(app): State<AppState>,
    ctx: RequestContext,
    Path(name): Path<S::Name>,
    form: Form,
) -> Result<Response, Problem> {
    ctx.require(Right::Administer)?;
    if form.ticked("check") {
        return Ok(rendered(&S::page(&app, &ctx, SpecDraft::new(Some(name), form)).await?));
    }
    let revision = form.text(REVISION).parse().unwrap_or_default();
    let options = WriteOptions { if_match: Some(etag(revision)), ..WriteOptions::default() };
    let error = match S::read(&form) {
        Ok(spec) => match spec.write(&app, &ctx, name.clone(), options).await {
            Ok(()) => return Ok(written::<S>(&name)),
            Err(error) => error,
        },
        Err(error) => error,
    };
    match error {
        ServiceError::PreconditionFailed(_) | ServiceError::NotFound { .. } => {
            outdated::<S>(&app, &ctx, name, form, error).await
        }
        error => refused::<S>(&app, &ctx, SpecDraft::new(Some(name), form), error).await,
    }
}

/// The form again, when the resource was changed or deleted after it was opened.
async fn outdated<S: FormSpec>(
    app: &AppState,
    ctx: &RequestContext,
    name: S::Name,
    mut form: Form,
    error: ServiceError,
) -> Result<Response, Problem> {
    let noun = S::NOUN;
    let draft = match S::stored(app, ctx, &name).await {
        Ok(stored) => {
            form.replace(REVISION, stored.text(REVISION));
            let conflict = S::used(&form).differences(&stored, S::FIELDS);
            let why = format!(
                "Someone else changed this {noun} after you opened the form. Your values are kept: overwrite the stored ones with \
                 them, or discard them.",
            );
            SpecDraft {
                refused: FormErrors::whole_form(&why),
                conflict: Some(conflict),
                ..SpecDraft::new(Some(name), form)
            }
        }
        Err(ServiceError::NotFound { .. }) => {
            form.replace("name", name.to_string());
            form.remove(REVISION);
            let why = format!(
                "Someone else deleted {noun} {name} after you opened the form. Your values are kept: saving them creates a new {noun}.",
            );
            SpecDraft { refused: FormErrors::whole_form(&why), ..SpecDraft::new(None, form) }
        }
        Err(error) => return Err(error.into()),
    };
    let error = match error {
        ServiceError::NotFound { .. } => ServiceError::PreconditionFailed(error.to_string()),
        error => error,
    };
    Ok(refused_with(&S::page(app, ctx, draft).await?, Problem::of(error, &ctx.actor)))
}

/// The form again, with what is wrong in it.
async fn refused<S: FormSpec>(
    app: &AppState,
    ctx: &RequestContext,
    draft: SpecDraft<S::Name>,
    error: ServiceError,
) -> Result<Response, Problem> {
    let names: Vec<&str> = ["name"].into_iter().chain(S::FIELDS.iter().map(|(name, _, _)| *name)).collect();
    let draft =
        SpecDraft { refused: FormErrors::of(Problem::of(error.clone(), &ctx.actor), &names), ..draft };
    Ok(refused_with(&S::page(app, ctx, draft).await?, Problem::of(error, &ctx.actor)))
}

fn written<S: FormSpec>(name: &S::Name) -> Response {
    Redirect::to(&format!("/{}s/{name}", S::NOUN)).into_response()
}

/// What is wrong with either, together.
fn both<A, B>(a: Result<A, ServiceError>, b: Result<B, ServiceError>) -> Result<(A, B), ServiceError> {
    match (a, b) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        (Err(ServiceError::Invalid(mut all)), Err(ServiceError::Invalid(more))) => {
            all.extend(more);
            Err(ServiceError::Invalid(all))
        }
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}
