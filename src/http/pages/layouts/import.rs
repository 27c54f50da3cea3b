//! Importing layouts from a document.
//!
//! The text is typed or pasted into one field, and a script puts a file's text there: the user sees what is sent, errors are
//! shown with the text they refer to, and no file upload has to be parsed.

use std::collections::BTreeMap;

use askama::Template;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};

use crate::domain::LayoutName;
use crate::domain::access::Right;
use crate::domain::layout::document::Document;
use crate::domain::layout::text::{self, LayoutFormat};
use crate::http::AppState;
use crate::http::extract::Call;
use crate::http::pages::forms::{Form, FormErrors};
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::page;
use crate::http::problem::Problem;
use crate::service::access::context::RequestContext;
use crate::service::{ServiceError, WriteOptions};

#[derive(Template)]
#[template(path = "layouts/import.html")]
struct ImportPage<'a> {
    frame: Frame,
    form: &'a Form,
    refused: FormErrors,
}

pub(super) async fn show(Call { app, ctx }: Call) -> Result<Response, Problem> {
    ctx.require(Right::Operate)?;
    Ok(import_page(&app, &ctx, &Form::default(), FormErrors::default(), StatusCode::OK).await)
}

async fn import_page(
    app: &AppState,
    ctx: &RequestContext,
    form: &Form,
    refused: FormErrors,
    status: StatusCode,
) -> Response {
    let frame = Frame::of(&app.service, ctx, Section::Layouts, "Import layouts").await;
    page(status, &ImportPage { frame, form, refused })
}

pub(super) async fn import(Call { app, ctx }: Call, form: Form) -> Result<Response, Problem> {
    let imported = match read(&form) {
        Ok((text, format)) => app.service.import_layouts(&ctx, text, format, WriteOptions::default()).await,
        Err(error) => Err(error),
    };
    match imported.as_deref() {
        Ok([one]) => Ok(Redirect::to(&format!("/layouts/{}", one.newest.name)).into_response()),
        Ok(_) => Ok(Redirect::to("/layouts").into_response()),
        Err(error @ (ServiceError::Invalid(_) | ServiceError::Conflict(_))) => {
            let refused =
                FormErrors::of(Problem::of(in_its_place(error.clone()), &ctx.actor), &["text", "name"]);
            Ok(import_page(&app, &ctx, &form, refused, StatusCode::UNPROCESSABLE_ENTITY).await)
        }
        Err(other) => Err(other.clone().into()),
    }
}

/// The document to import, with its layout renamed if requested.
fn read(form: &Form) -> Result<(String, LayoutFormat), ServiceError> {
    let text = form.typed("text").replace("\r\n", "\n");
    if text.trim().is_empty() {
        return Err(ServiceError::field(
            "/text",
            "there is nothing to import: paste a document, or choose a file",
        ));
    }
    let name = Some(form.text("name")).filter(|name| !name.is_empty()).map(LayoutName::parse).transpose();
    let name = name.map_err(|error| ServiceError::field("/name", error.to_string()))?;
    match name {
        // JSON is YAML.
        None => Ok((text, LayoutFormat::Yaml)),
        Some(name) => Ok((renamed(&text, name)?, LayoutFormat::Json)),
    }
}

/// Renames the only layout of a document and returns it as JSON; a valid checksum is computed again.
fn renamed(text: &str, name: LayoutName) -> Result<String, ServiceError> {
    let read = text::read(text, LayoutFormat::Yaml)
        .map_err(|error| ServiceError::field(&error.pointer, error.reason.to_string()))?;
    let sealed = read.checksum.is_some();
    let several = read.layouts.len();
    let mut entries = read.layouts.into_values();
    let (Some(entry), None) = (entries.next(), entries.next()) else {
        let why = format!("the document has {several} layouts, which keep their names: leave this empty");
        return Err(ServiceError::field("/name", why));
    };
    let layouts = BTreeMap::from([(name, entry)]);
    let document = if sealed {
        Document::sealed(layouts)
    } else {
        Document { version: read.version, layouts, checksum: None }
    };
    Ok(text::write(&document, LayoutFormat::Json))
}

/// Moves an error to the text field, with the pointer as part of its message.
fn in_its_place(error: ServiceError) -> ServiceError {
    let ServiceError::Invalid(errors) = error else { return error };
    let of_text = |mut error: crate::service::FieldError| {
        if error.pointer != "/name" && error.pointer != "/text" {
            if !error.pointer.is_empty() {
                error.detail = format!("{}: {}", error.pointer, error.detail);
            }
            "/text".clone_into(&mut error.pointer);
        }
        error
    };
    ServiceError::Invalid(errors.into_iter().map(of_text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "version: v1\nlayouts: {web: {steps: []}}\n";

    fn form(fields: &[(&str, &str)]) -> Form {
        let mut form = Form::default();
        for (name, value) in fields {
            form.set(name, *value);
        }
        form
    }

    #[test]
    fn single_layout_can_be_renamed() {
        let (text, format) = read(&form(&[("text", DOCUMENT), ("name", "other")])).expect("one");
        let read = text::read(&text, format).expect("a document");
        assert_eq!(read.layouts.keys().map(LayoutName::as_str).collect::<Vec<_>>(), ["other"]);
        let two = DOCUMENT.replace("web:", "a: {steps: []}, b:");
        let refused = super::read(&form(&[("text", &two), ("name", "other")])).expect_err("two");
        assert!(format!("{refused:?}").contains("2 layouts"), "{refused:?}");
    }

    #[test]
    fn errors_name_the_position_in_the_text() {
        let errors =
            vec![crate::service::FieldError { pointer: "/layouts/web/sku".into(), detail: "no".into() }];
        let refused = FormErrors::of(in_its_place(ServiceError::Invalid(errors)), &["text", "name"]);
        assert_eq!(refused.field("text"), Some("/layouts/web/sku: no"));
        let name = read(&form(&[("text", "x"), ("name", "NOT A NAME")])).expect_err("no name");
        assert_eq!(FormErrors::of(in_its_place(name), &["text", "name"]).field("text"), None);
    }
}
