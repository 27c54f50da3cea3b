//! A file that is pasted, chosen or dropped: a host file is compared and applied, other files lead to where they are used.
//!
//! The text travels in the form, as for [an import](super::layouts): the user sees what is sent.

use askama::Template;
use axum::routing::{get, post};

use super::format::Moment;
use super::forms::{Form, FormErrors};
use super::frame::{Frame, Section};
use super::layouts::document;
use super::reads::ChangeLine;
use super::routes::PageRoutes;
use super::{followed, rendered};
use crate::domain::access::Right;
use crate::domain::count::counted;
use crate::domain::given_file::{GivenFile, RecordHead};
use crate::domain::host_file::{HostChange, HostChangeAction, text};
use crate::domain::layout::document::Document;
use crate::domain::layout::text::LayoutFormat;
use crate::http::extract::Call;
use crate::http::problem::{Problem, Reply};
use crate::service::host_file::{AppliedHostFile, HostFileOptions, refused_file};
use crate::service::{ServiceError, WriteOptions};

/// Longest list of changes by others.
const OTHERS: usize = 5;
/// The error of an outdated comparison.
const CHANGED: &str = "The file would change something else than what was shown, because the host, the text or a box was changed since. \
                       This is the difference now.";

pub(super) fn router() -> PageRoutes {
    PageRoutes::default().route("/file", get(show).post(compare)).form_route(
        "/host/spec",
        "host/spec",
        post(apply),
    )
}

#[derive(Template)]
#[template(path = "file.html")]
struct FilePage<'a> {
    frame: Frame,
    form: &'a Form,
    refused: FormErrors,
    content: FileContent,
    /// Changes of the host since the comparison that is outdated.
    others: Vec<ChangeLine>,
    now: i64,
}

/// Content of a file, or the changes that it would make here.
#[derive(Default)]
enum FileContent {
    #[default]
    Unknown,
    Host(Box<AppliedHostFile>),
    Layouts(Document),
    Record(RecordHead),
}

async fn show(call: Call) -> Reply {
    call.ctx.require(Right::Operate)?;
    Ok(rendered(&FilePage::of(&call, &Form::default(), FileContent::default()).await))
}

/// Says what a file is, and what a host file would change. That is no write, even if the write would be refused.
async fn compare(call: Call, form: Form) -> Reply {
    call.ctx.require(Right::Operate)?;
    let (content, refused) = match content(&call, &form).await {
        Ok(content) => (content, FormErrors::default()),
        Err(error) => (FileContent::Unknown, errors_in_file(&call, error)?),
    };
    Ok(rendered(&FilePage { refused, ..FilePage::of(&call, &form, content).await }))
}

async fn content(call: &Call, form: &Form) -> Result<FileContent, ServiceError> {
    let typed = form.typed("text");
    if typed.trim().is_empty() {
        return Err(ServiceError::field(
            "/text",
            "there is nothing in it: paste a file, choose one, or drop one here",
        ));
    }
    match GivenFile::of(typed) {
        GivenFile::Host => Ok(FileContent::Host(Box::new(put(call, form, WriteOptions::rehearsal()).await?))),
        GivenFile::Layouts => document(form).map(FileContent::Layouts),
        GivenFile::Record(head) => Ok(FileContent::Record(head)),
        GivenFile::Other(why) => Err(ServiceError::field("/text", why)),
    }
}

async fn put(call: &Call, form: &Form, options: WriteOptions) -> Result<AppliedHostFile, ServiceError> {
    let Call { app, ctx } = call;
    // JSON is YAML.
    let file = text::read(form.typed("text"), LayoutFormat::Yaml).map_err(refused_file)?;
    let file_options = HostFileOptions { prune: form.ticked("prune"), recreate: form.ticked("recreate") };
    app.service.put_host_spec(ctx, file, file_options, options).await
}

/// Applies a host file, if it still changes what was shown.
async fn apply(call: Call, form: Form) -> Reply {
    call.ctx.require(Right::Administer)?;
    let if_match = Some(form.text("tag").to_owned());
    match put(&call, &form, WriteOptions { if_match, ..WriteOptions::default() }).await {
        Ok(AppliedHostFile { operation: Some(operation), .. }) => Ok(followed(operation.id)),
        Ok(nothing) => Ok(rendered(&FilePage::of(&call, &form, FileContent::Host(Box::new(nothing))).await)),
        Err(error @ ServiceError::PreconditionFailed(_)) => outdated(&call, &form, error).await,
        Err(error) => {
            let (refused, page) =
                (errors_in_file(&call, error)?, FilePage::of(&call, &form, FileContent::Unknown).await);
            Ok(refused.shown(|refused| FilePage { refused, ..page }))
        }
    }
}

/// The present difference, and who changed the host since the one that was shown.
async fn outdated(call: &Call, form: &Form, error: ServiceError) -> Reply {
    let mut problem = Problem::of(error, &call.ctx.actor);
    let since = form.text("compared_at").parse().unwrap_or_else(|_| call.now());
    let others = call.what_changed(since, None, OTHERS).await?;
    let content = match content(call, form).await {
        Ok(content) => content,
        Err(error) => {
            problem = Problem::of(error, &call.ctx.actor);
            FileContent::Unknown
        }
    };
    if !matches!(content, FileContent::Unknown) {
        CHANGED.clone_into(&mut problem.detail);
    }
    let page = FilePage { others, ..FilePage::of(call, form, content).await };
    Ok(FormErrors::of(problem, &[]).shown(|refused| FilePage { refused, ..page }))
}

/// The errors of a file, each with its place; a missing right has a page of its own.
fn errors_in_file(call: &Call, error: ServiceError) -> Result<FormErrors, Problem> {
    if matches!(error, ServiceError::Forbidden(_)) {
        return Err(error.into());
    }
    let mut problem = Problem::of(error, &call.ctx.actor);
    for error in problem.errors.iter_mut().filter(|error| !matches!(error.pointer.as_str(), "" | "/text")) {
        error.detail = format!("{}: {}", error.pointer, error.detail);
    }
    Ok(FormErrors::of(problem, &["text"]))
}

impl<'a> FilePage<'a> {
    async fn of(call: &Call, form: &'a Form, content: FileContent) -> Self {
        let frame = call.frame(Section::Settings, "Open a file").await;
        Self { frame, form, refused: FormErrors::default(), content, others: Vec::new(), now: call.now() }
    }

    fn is_unknown(&self) -> bool {
        matches!(self.content, FileContent::Unknown)
    }

    /// The number of objects that are deleted.
    fn deleted(changes: &[HostChange]) -> usize {
        changes.iter().filter(|change| change.action == HostChangeAction::Delete).count()
    }

    /// The words of the button that applies changes.
    fn apply_words(changes: &[HostChange]) -> String {
        let what = counted(changes.len(), "change");
        match Self::deleted(changes) {
            0 => format!("Apply {what}"),
            deleted => format!("Apply {what}, and delete {}", counted(deleted, "object")),
        }
    }

    /// An object with what happens to it, and each further line of the difference with its class.
    fn lines(change: &HostChange) -> (String, Vec<(&'static str, String)>) {
        let (verb, class) = match change.action {
            HostChangeAction::Create => ("Create", "new"),
            HostChangeAction::Change => ("Change", "same"),
            HostChangeAction::Delete => ("Delete", "gone"),
        };
        let text = change.to_string();
        // Steps have lines of their own, and a warning has no field.
        let others =
            text.lines().skip(1).map(str::trim_start).filter_map(|line| match line.split_at_checked(2)? {
                ("+ ", step) if step.starts_with("add ") || step.starts_with("remove ") => {
                    Some(("new", line))
                }
                ("- ", _) => Some(("gone", line)),
                ("! ", warning) => Some(("warn", warning)),
                _ => None,
            });
        let fields = change.fields.iter().filter(|field| field.field != "steps").map(|field| {
            let value = |value: &Option<String>| {
                value.as_deref().map_or("the default", |value| value.trim_matches('"')).to_owned()
            };
            let after = value(&field.after);
            let instead = match &field.before {
                None if class == "new" => String::new(),
                before => format!(" instead of {}", value(before)),
            };
            (class, format!("{}: {after}{instead}", field.field))
        });
        let others = others.map(|(class, line)| (class, line.to_owned()));
        (format!("{verb} {}", change.object()), fields.chain(others).collect())
    }
}
