//! The form of a daemon, a tenant or a layout: one to create it, one to edit it.
//!
//! A form is written only over the revision that it was opened on. When that has changed, nothing is written: the page answers
//! 412, keeps what was typed, and shows your value beside the stored one for each field in which they differ.

use std::fmt::Display;
use std::str::FromStr;

use askama::Template;
use axum::response::{IntoResponse as _, Redirect};
use serde::de::DeserializeOwned;

use super::format::Moment;
use super::forms::{FieldDifference, Form, FormErrors, SpecField, add_new, field_of, without_errors};
use super::reads::uids_of;
use super::{rendered, with_status};
use crate::domain::access::Right;
use crate::domain::audit::{AuditRecord, actor_words};
use crate::http::extract::{Call, Path};
use crate::http::problem::{Problem, Reply};
use crate::service::{FieldError, ServiceError, WriteOptions, etag};

/// The field that holds the revision on which a form was opened.
pub(super) const REVISION: &str = "revision";

/// A spec that has a form.
pub(super) trait FormSpec: DeserializeOwned {
    /// The name of the resource that has such a spec.
    type Name: Clone + Display + FromStr<Err: Display> + DeserializeOwned + Send + Sync;
    /// Noun for the resource, as `tenant`.
    const NOUN: &'static str;
    const FIELDS: &'static [SpecField];
    /// The right that writing it takes.
    const RIGHT: Right<'static> = Right::Administer;

    /// Looks up what was typed for something else, such as the name of a user for its number.
    async fn prepared(_call: &Call, form: Form) -> Form {
        form
    }

    /// Removes values that the choices of the form make unused, and converts durations from now on into times.
    fn used(form: &Form, _now: i64) -> Form {
        form.clone()
    }

    /// Returns the error of a field that the form knows better than its shape, such as an empty one that another choice requires.
    fn unfilled(_: &Form) -> Option<FieldError> {
        None
    }

    /// Creates the form that shows the stored spec, with its revision.
    async fn stored(call: &Call, name: &Self::Name) -> Result<Form, ServiceError>;

    async fn write(self, call: &Call, name: Self::Name, options: WriteOptions) -> Result<(), ServiceError>;

    /// The page with its form.
    async fn page(call: &Call, draft: SpecDraft<Self::Name>) -> Result<impl Template, Problem>;
}

/// A form while it is filled in.
pub(super) struct SpecDraft<N> {
    /// The resource that is edited; `None` for a new one.
    pub(super) edited: Option<N>,
    pub(super) form: Form,
    pub(super) refused: FormErrors,
    /// Differences between the user's values and the stored ones, if these changed after the form was opened.
    pub(super) conflict: Option<Vec<FieldDifference>>,
}

impl<N> SpecDraft<N> {
    pub(super) fn new(edited: Option<N>, form: Form) -> Self {
        Self { edited, form, refused: FormErrors::default(), conflict: None }
    }
}

/// Reads the spec from the fields that a form uses, or returns all errors in them.
pub(super) fn read<S: FormSpec>(form: &Form, now: i64) -> Result<S, ServiceError> {
    without_errors(read_rest(form, now))
}

fn read_rest<S: FormSpec>(form: &Form, now: i64) -> (Option<S>, Vec<FieldError>) {
    let fields: Vec<_> = S::FIELDS.iter().map(|(name, shape, _)| (*name, *shape)).collect();
    // What a form knows of a field says more than its shape.
    let mut errors: Vec<FieldError> = S::unfilled(form).into_iter().collect();
    let (spec, others) = S::used(form, now).read_rest(&fields);
    add_new(&mut errors, others);
    (spec, errors)
}

/// The label of a field, where it is not its name.
pub(super) fn label<S: FormSpec>(field: &str) -> Option<&'static str> {
    S::FIELDS.iter().find(|(name, _, _)| *name == field).map(|(_, _, label)| *label)
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

pub(super) async fn create<S: FormSpec>(call: Call, form: Form) -> Reply {
    save::<S>(&call, None, form).await
}

pub(super) async fn change<S: FormSpec>(call: Call, Path(name): Path<S::Name>, form: Form) -> Reply {
    save::<S>(&call, Some(name), form).await
}

/// Creates a resource, or changes the one that was edited.
async fn save<S: FormSpec>(call: &Call, edited: Option<S::Name>, form: Form) -> Reply {
    call.ctx.require(S::RIGHT)?;
    let form = S::prepared(call, form).await;
    if form.ticked("check") {
        return Ok(rendered(&S::page(call, SpecDraft::new(edited, form)).await?));
    }
    let revision = edited.as_ref().map(|_| form.text(REVISION).parse().unwrap_or_default());
    let if_match = revision.map(etag);
    let options = WriteOptions { must_be_new: edited.is_none(), if_match, ..WriteOptions::default() };
    let write = async {
        let name = edited.clone().map_or_else(|| name::<S>(&form), Ok)?;
        write_spec(call, name.clone(), read::<S>(&form, call.now())?, options).await.map(|()| name)
    };
    match (write.await, edited) {
        (Ok(name), None) if form.ticked("another") => {
            let next = format!("/{}s/-/new?daemon={}&after={name}", S::NOUN, form.text("daemon"));
            Ok(Redirect::to(&next).into_response())
        }
        (Ok(name), _) => Ok(Redirect::to(&format!("/{}s/{name}", S::NOUN)).into_response()),
        (Err(error @ (ServiceError::PreconditionFailed(_) | ServiceError::NotFound { .. })), Some(name)) => {
            outdated::<S>(call, name, form, error).await
        }
        (Err(error), edited) => refused::<S>(call, SpecDraft::new(edited, form), error).await,
    }
}

/// Writes a spec; if the resource must be new but exists, its name is the wrong field.
async fn write_spec<S: FormSpec>(
    call: &Call,
    name: S::Name,
    spec: S,
    options: WriteOptions,
) -> Result<(), ServiceError> {
    let must_be_new = options.must_be_new;
    match spec.write(call, name.clone(), options).await {
        Err(ServiceError::PreconditionFailed(_)) if must_be_new => {
            let stored = S::stored(call, &name).await.unwrap_or_default();
            let daemon = Some(stored.text("daemon")).filter(|daemon| !daemon.is_empty());
            let on = daemon.map(|daemon| format!(", on daemon {daemon}")).unwrap_or_default();
            let why = format!("there is a {} {name} already{on}: choose another name", S::NOUN);
            Err(ServiceError::field("/name", why))
        }
        written => written,
    }
}

pub(super) async fn edit<S: FormSpec>(call: Call, Path(name): Path<S::Name>) -> Reply {
    call.ctx.require(S::RIGHT)?;
    let form = S::stored(&call, &name).await?;
    Ok(rendered(&S::page(&call, SpecDraft::new(Some(name), form)).await?))
}

/// The form again, when the resource was changed or deleted after it was opened.
async fn outdated<S: FormSpec>(call: &Call, name: S::Name, mut form: Form, error: ServiceError) -> Reply {
    let Call { ctx, .. } = call;
    let noun = S::NOUN;
    let draft = match S::stored(call, &name).await {
        Ok(stored) => {
            let why = if form.text(REVISION).is_empty() {
                format!(
                    "The form came without the revision of the {noun} on which it was opened, so that it may be older than the {noun}. Your \
                     values are kept: overwrite the stored ones with them, or discard them.",
                )
            } else {
                format!(
                    "{}, after you opened the form. Your values are kept: overwrite the stored ones with them, or discard them.",
                    last_change::<S>(call, &name, "changed").await?
                )
            };
            form.replace(REVISION, stored.text(REVISION));
            let conflict = S::used(&form, call.now()).differences(&stored, S::FIELDS);
            SpecDraft {
                refused: FormErrors::whole_form(why),
                conflict: Some(conflict),
                ..SpecDraft::new(Some(name), form)
            }
        }
        Err(ServiceError::NotFound { .. }) => {
            form.replace("name", name.to_string());
            form.remove(REVISION);
            let why = format!(
                "{}, after you opened the form. Your values are kept: saving them creates a new {noun}.",
                last_change::<S>(call, &name, "deleted").await?
            );
            SpecDraft { refused: FormErrors::whole_form(why), ..SpecDraft::new(None, form) }
        }
        Err(error) => return Err(error.into()),
    };
    let error = match error {
        ServiceError::NotFound { .. } => ServiceError::PreconditionFailed(error.to_string()),
        error => error,
    };
    Ok(with_status(&S::page(call, draft).await?, Some(Problem::of(error, &ctx.actor))))
}

/// Names who changed or deleted a resource, and when, by the audit log.
async fn last_change<S: FormSpec>(call: &Call, name: &S::Name, verb: &str) -> Result<String, ServiceError> {
    let Call { app, ctx } = call;
    let (what, target) = (format!("{verb} {} {name}", S::NOUN), format!("{}s/{name}", S::NOUN));
    let is_meant = |row: &AuditRecord| match verb {
        "deleted" => row.deed().verb == verb,
        _ => row.after.is_some() && row.changed_spec(),
    };
    let Some(row) = app.service.last_change(ctx, target, is_meant).await? else {
        return Ok(format!("Someone else {what}"));
    };
    let names = app.service.user_names(uids_of([row.actor.as_str()])).await;
    let who = match actor_words(&row.actor, |uid| names.get(&uid).cloned()) {
        _ if row.actor == ctx.actor.subject.to_string() => "Your own login".to_owned(),
        who => who.replace("the manager", "The manager"),
    };
    let deed = row.deed();
    let how = if verb == "changed" && !deed.rest.is_empty() { format!(" ({deed})") } else { String::new() };
    Ok(format!("{who} {what} at {}{how}", Moment(row.at)))
}

/// The form again, with everything that is wrong in it.
async fn refused<S: FormSpec>(call: &Call, draft: SpecDraft<S::Name>, error: ServiceError) -> Reply {
    let Call { ctx, .. } = call;
    let names: Vec<&str> = ["name"].into_iter().chain(S::FIELDS.iter().map(|(name, _, _)| *name)).collect();
    let mut problem = Problem::of(error, &ctx.actor);
    if !problem.errors.is_empty() {
        add_other_errors::<S>(call, &draft, &names, &mut problem.errors).await;
    }
    let refused = FormErrors::of(problem.clone(), &names).labelled(label::<S>);
    let draft = SpecDraft { refused, ..draft };
    Ok(with_status(&S::page(call, draft).await?, Some(problem)))
}

/// Adds the other errors of a form. A write stops at the first error, so the rest is rehearsed without the wrong fields.
async fn add_other_errors<S: FormSpec>(
    call: &Call,
    draft: &SpecDraft<S::Name>,
    names: &[&str],
    errors: &mut Vec<FieldError>,
) {
    let Call { ctx, .. } = call;
    let mut form = draft.form.clone();
    loop {
        let count = errors.len();
        for error in errors.iter() {
            form.remove(field_of(&error.pointer, names).unwrap_or_default());
        }
        let typed = draft.edited.clone().or_else(|| name::<S>(&form).ok());
        let Some(name) = typed.or_else(|| "unnamed".parse().ok()) else { return };
        let options = WriteOptions { must_be_new: draft.edited.is_none(), ..WriteOptions::rehearsal() };
        let (spec, wrong) = read_rest::<S>(&form, call.now());
        add_new(errors, wrong);
        let Some(spec) = spec else { return };
        if let Err(error) = write_spec(call, name, spec, options).await {
            add_new(errors, Problem::of(error, &ctx.actor).errors);
        }
        if errors.len() == count {
            return;
        }
    }
}
