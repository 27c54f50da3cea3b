//! Importing layouts from a document.
//!
//! The text is typed or pasted into one field, and a script puts a file's text there: the user sees what is sent, errors are
//! shown with the text they refer to, and no file upload has to be parsed.

use askama::Template;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};

use crate::domain::LayoutName;
use crate::domain::access::Right;
use crate::domain::layout::Invalid;
use crate::domain::layout::document::Document;
use crate::domain::layout::text::{self, LayoutFormat};
use crate::http::extract::Call;
use crate::http::pages::forms::{Form, FormErrors};
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::{page, rendered};
use crate::http::problem::Problem;
use crate::service::{ServiceError, WriteOptions};

const TITLE: &str = "Import layouts";

#[derive(Template)]
#[template(path = "layouts/import.html")]
struct ImportPage<'a> {
    frame: Frame,
    form: &'a Form,
    refused: FormErrors,
}

pub(super) async fn show(call: Call) -> Result<Response, Problem> {
    call.ctx.require(Right::Operate)?;
    let frame = call.frame(Section::Layouts, TITLE).await;
    Ok(rendered(&ImportPage { frame, form: &Form::default(), refused: FormErrors::default() }))
}

pub(super) async fn import(call: Call, form: Form) -> Result<Response, Problem> {
    let Call { app, ctx } = &call;
    if form.text("do") == "fill" {
        ctx.require(Right::Operate)?;
        let frame = call.frame(Section::Layouts, TITLE).await;
        return Ok(rendered(&ImportPage { frame, form: &form, refused: FormErrors::default() }));
    }
    let import = async {
        let text = text::write(&renamed(&form)?, LayoutFormat::Json);
        app.service.import_layouts(ctx, text, LayoutFormat::Json, WriteOptions::default()).await
    };
    match import.await {
        Ok(imported) => Ok(Redirect::to(&match imported.as_slice() {
            [layout] => format!("/layouts/{}", layout.newest.name),
            _ => "/layouts".to_owned(),
        })
        .into_response()),
        Err(error @ (ServiceError::Invalid(_) | ServiceError::Conflict(_))) => {
            let refused = FormErrors::of(Problem::of(error, &ctx.actor), &["text", "name"]);
            let frame = call.frame(Section::Layouts, TITLE).await;
            Ok(page(StatusCode::UNPROCESSABLE_ENTITY, &ImportPage { frame, form: &form, refused }))
        }
        Err(other) => Err(other.into()),
    }
}

/// Reads the document in a form; an error in it names the place.
pub(in crate::http::pages) fn document(form: &Form) -> Result<Document, ServiceError> {
    let typed = form.typed("text");
    if typed.trim().is_empty() {
        return Err(ServiceError::field(
            "/text",
            "there is nothing in it: paste a document, or choose a file",
        ));
    }
    // JSON is YAML.
    text::read(typed, LayoutFormat::Yaml).map_err(|Invalid { pointer, reason }| {
        let place = if pointer.is_empty() { String::new() } else { format!("{pointer}: ") };
        ServiceError::field("/text", format!("{place}{reason}"))
    })
}

/// Reads the document to import, and renames its only layout if requested; a valid checksum is computed again.
fn renamed(form: &Form) -> Result<Document, ServiceError> {
    let document = document(form)?;
    if form.text("name").is_empty() {
        return Ok(document);
    }
    let name = LayoutName::parse(form.text("name"))
        .map_err(|error| ServiceError::field("/name", error.to_string()))?;
    let Document { version, layouts, checksum } = document;
    if layouts.len() != 1 {
        let why =
            format!("the document has {} layouts, which keep their names: leave this empty", layouts.len());
        return Err(ServiceError::field("/name", why));
    }
    let layouts = layouts.into_values().map(|layout| (name.clone(), layout)).collect();
    Ok(match checksum {
        Some(_) => Document::sealed(layouts),
        None => Document { version, layouts, checksum },
    })
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
        let document = renamed(&form(&[("text", DOCUMENT), ("name", "other")])).expect("one");
        assert_eq!(document.layouts.keys().map(LayoutName::as_str).collect::<Vec<_>>(), ["other"]);
        let two = DOCUMENT.replace("web:", "a: {steps: []}, b:");
        let refused = renamed(&form(&[("text", &two), ("name", "other")])).expect_err("two");
        assert!(format!("{refused:?}").contains("2 layouts"), "{refused:?}");
    }

    #[test]
    fn errors_name_the_position_in_the_text() {
        let wrong = DOCUMENT.replace("steps", "sku: \"\", steps");
        let error = document(&form(&[("text", &wrong)])).expect_err("no product");
        let refused = FormErrors::of(error, &["text", "name"]);
        assert!(refused.field("text").expect("a word").starts_with("/layouts/web/sku: "), "{refused:?}");
        let name = renamed(&form(&[("text", DOCUMENT), ("name", "NOT A NAME")])).expect_err("no name");
        assert_eq!(FormErrors::of(name, &["text", "name"]).field("text"), None);
    }
}
