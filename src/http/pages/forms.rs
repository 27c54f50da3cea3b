//! Forms: what browsers send, read by the types of the API, with each refusal beside the field that it is about.
//!
//! A form becomes the JSON that a program would have sent, so what the API refuses is refused here in the same words, and
//! nothing is read twice. What was typed is kept as it was typed, and shown again with what is wrong with it.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::domain::access::Actor;
use crate::domain::json::missing_field;
use crate::http::extract;
use crate::http::problem::Problem;
use crate::service::{FieldError, IdempotencyKey, ServiceError};

/// The field in which a form brings back what it began with.
pub(super) const BEGAN: &str = "began";

/// The field by which a form that is sent again is known.
pub(super) const KEY: &str = "form";

/// A field that somebody else changed while somebody typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Meanwhile {
    pub(super) field: &'static str,
    /// What is there now.
    pub(super) now: String,
    /// What was typed; `None` for a field that was left as it was, and has now what is there.
    pub(super) typed: Option<String>,
}

/// Why what was rehearsed would be refused. Whoever may not do it at all, or asks for what is not there, is not asked first.
pub(super) fn in_the_way<T>(rehearsed: Result<T, ServiceError>) -> Result<Option<String>, Problem> {
    match rehearsed {
        Ok(_) => Ok(None),
        Err(error @ (ServiceError::Forbidden(_) | ServiceError::NotFound { .. })) => Err(error.into()),
        Err(error) => Ok(Some(Problem::from(error).detail)),
    }
}

/// What was typed, in the order of the form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Form(Vec<(String, String)>);

/// How the text of a field becomes JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Text; left out where it is empty.
    Text,
    /// A whole number; left out where it is empty.
    Whole,
    /// A number; left out where it is empty.
    Number,
    /// A box that is ticked or not.
    Flag,
    /// A list of what is ticked, or of several fields of that name; empty ones are left out.
    List,
    /// Lines of `key=value`.
    Pairs,
}

/// A field of a form: its name, which is that of the JSON's field with dots between levels, and its shape.
pub(super) type Field = (&'static str, Shape);

impl Form {
    /// As browsers encode it.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        Self(form_urlencoded::parse(bytes).into_owned().collect())
    }

    /// The text of a field without space around it; empty where there is none.
    pub(super) fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.trim())
    }

    /// The same as it was typed, to be shown again.
    pub(super) fn typed(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str())
    }

    /// What several fields of one name say.
    pub(super) fn all<'f>(&'f self, name: &'f str) -> impl Iterator<Item = &'f str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.trim())
    }

    /// The version of a layout that is meant; `None` for the newest.
    pub(super) fn version(&self) -> Result<Option<u32>, ServiceError> {
        match self.text("version") {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                let shown: String = text.chars().take(80).collect();
                let why = format!("{shown:?} is no version: give its number, or nothing for the newest");
                ServiceError::field("/version", why)
            }),
        }
    }

    /// As browsers would encode it.
    pub(super) fn encoded(&self) -> String {
        form_urlencoded::Serializer::new(String::new()).extend_pairs(self.pairs()).finish()
    }

    /// The key by which this form is known when it is sent again, by a reload or by somebody who went back; with something else in
    /// these fields it is another. `None` for a form that brings none.
    pub(super) fn key(&self, actor: &Actor, path: &str, fields: &[&str]) -> Option<IdempotencyKey> {
        let form = uuid::Uuid::parse_str(self.text(KEY)).ok()?;
        let mut digest = Sha256::new();
        for text in std::iter::once(path).chain(fields.iter().map(|name| self.text(name))) {
            digest.update(text.as_bytes());
            digest.update([0]);
        }
        let digest = hex::encode(digest.finalize());
        let key = format!("form {form} {digest}");
        Some(IdempotencyKey { owner: actor.subject.to_string(), key, request_hash: digest })
    }

    /// What the form began with, which it brings back with what was typed; nothing where it brings nothing.
    fn began(&self) -> Self {
        Self::parse(self.typed(BEGAN).as_bytes())
    }

    /// Takes up what somebody else made of it meanwhile: what is there now stands in each group of fields that was left as
    /// the form began with it, and what was typed stands in the others. Says which fields differ from what they were.
    pub(super) fn take_up(&mut self, now: &Self, groups: &[&[&'static str]]) -> Vec<Meanwhile> {
        let began = self.began();
        let mut told = Vec::new();
        for group in groups {
            let same = |a: &Self, b: &Self| group.iter().all(|name| a.said(name) == b.said(name));
            let was_left = !began.0.is_empty() && same(self, &began);
            if (was_left && same(now, &began)) || same(self, now) {
                continue;
            }
            let differing = group.iter().filter(|name| {
                let before = if was_left { &began } else { &*self };
                now.said(name) != before.said(name)
            });
            let rows = differing.map(|name| Meanwhile {
                field: name,
                now: now.said(name),
                typed: (!was_left).then(|| self.said(name)),
            });
            told.extend(rows.collect::<Vec<_>>());
            if was_left {
                self.0.retain(|(key, _)| !group.contains(&key.as_str()));
                self.0.extend(now.0.iter().filter(|(key, _)| group.contains(&key.as_str())).cloned());
            }
        }
        self.replace(BEGAN, now.encoded());
        told
    }

    /// What a field says in a line, however it is sent.
    fn said(&self, name: &str) -> String {
        let mut all: Vec<String> =
            self.all(name).filter(|one| !one.is_empty()).map(|one| one.replace('\r', "")).collect();
        all.sort_unstable();
        all.join(", ")
    }

    /// Everything, in the order of the form.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether a box is ticked.
    pub(super) fn ticked(&self, name: &str) -> bool {
        !self.text(name).is_empty()
    }

    /// Whether a list has a value.
    pub(super) fn has(&self, name: &str, value: &str) -> bool {
        self.all(name).any(|one| one == value)
    }

    /// What is shown before anybody has typed.
    pub(super) fn set(&mut self, name: &str, value: impl Into<String>) {
        self.0.push((name.to_owned(), value.into()));
    }

    /// The same in place of what is there.
    pub(super) fn replace(&mut self, name: &str, value: impl Into<String>) {
        self.0.retain(|(key, _)| key != name);
        self.set(name, value);
    }

    /// What the form says, as the API would be told it.
    pub(super) fn read<T: DeserializeOwned>(&self, fields: &[Field]) -> Result<T, ServiceError> {
        let json = self.json(fields)?;
        let read: Result<T, Problem> = extract::parse(json.to_string().as_bytes());
        read.map_err(|problem| {
            let errors = if problem.errors.is_empty() {
                vec![FieldError { pointer: String::new(), detail: problem.detail }]
            } else {
                problem.errors
            };
            ServiceError::Invalid(errors)
        })
    }

    fn json(&self, fields: &[Field]) -> Result<Value, ServiceError> {
        let (mut root, mut errors) = (Map::new(), Vec::new());
        for (name, shape) in fields {
            match self.value(name, *shape) {
                Ok(Some(value)) => put(&mut root, name, value),
                Ok(None) => {}
                Err(detail) => errors.push(FieldError { pointer: pointer(name), detail }),
            }
        }
        if errors.is_empty() { Ok(Value::Object(root)) } else { Err(ServiceError::Invalid(errors)) }
    }

    fn value(&self, name: &str, shape: Shape) -> Result<Option<Value>, String> {
        let text = self.text(name);
        let shown = || text.chars().take(80).collect::<String>();
        match shape {
            Shape::Flag => Ok(Some(Value::Bool(self.ticked(name)))),
            Shape::List => {
                let values = self.all(name).filter(|value| !value.is_empty());
                Ok(Some(values.map(|value| Value::String(value.to_owned())).collect()))
            }
            Shape::Pairs => pairs(text).map(Some),
            _ if text.is_empty() => Ok(None),
            Shape::Text => Ok(Some(Value::String(text.to_owned()))),
            Shape::Whole => match text.parse::<u64>() {
                Ok(number) => Ok(Some(number.into())),
                Err(_) => Err(format!("{:?} is not a whole number: give digits only, as 16", shown())),
            },
            Shape::Number => match text.parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(Some(number.into())),
                _ => Err(format!("{:?} is not a number: give one as 12.5", shown())),
            },
        }
    }
}

fn pairs(text: &str) -> Result<Value, String> {
    let mut pairs = Map::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let Some((key, value)) = line.split_once('=') else {
            let shown: String = line.chars().take(80).collect();
            return Err(format!("{shown:?} has no \"=\": write each on a line of its own, as team=search"));
        };
        if pairs.insert(key.trim().to_owned(), value.trim().into()).is_some() {
            return Err(format!("{:?} is there twice: each key once", key.trim()));
        }
    }
    Ok(Value::Object(pairs))
}

fn put(root: &mut Map<String, Value>, name: &str, value: Value) {
    match name.split_once('.') {
        None => {
            root.insert(name.to_owned(), value);
        }
        Some((outer, inner)) => {
            let below = root.entry(outer).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(below) = below {
                put(below, inner, value);
            }
        }
    }
}

fn pointer(name: &str) -> String {
    format!("/{}", name.replace('.', "/"))
}

impl<S: Send + Sync> FromRequest<S> for Form {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let mime = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if mime.is_some_and(|mime| !mime.starts_with("application/x-www-form-urlencoded")) {
            return Err(Problem::new(
                "unreadable-body",
                StatusCode::BAD_REQUEST,
                "The body cannot be read",
                "this is no form: pages take application/x-www-form-urlencoded, and programs have the API under /api/v1",
            ));
        }
        let bytes: Bytes = extract::body(request, state).await?;
        Ok(Self::parse(&bytes))
    }
}

/// What is wrong with a form: beside which field, or with all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Refused {
    by_field: BTreeMap<String, String>,
    whole: Vec<String>,
}

impl Refused {
    /// What of an error can be mended in the form that has these fields; the rest of it is said of the form.
    pub(super) fn of(error: ServiceError, fields: &[&str]) -> Self {
        let problem = Problem::from(error);
        let mut refused = Self::default();
        if problem.errors.is_empty() {
            refused.whole.push(problem.detail);
            return refused;
        }
        for FieldError { pointer, detail } in problem.errors {
            if let Some(name) = missing_field(&detail).filter(|name| fields.contains(name)) {
                refused.by_field.insert(name.to_owned(), "fill this in".to_owned());
                continue;
            }
            let inside = pointer.trim_start_matches('/').replace('/', ".");
            // The longest name that the pointer begins with: an item of a list is said of the list.
            let of = |name: &&&str| {
                inside == **name || inside.strip_prefix(**name).is_some_and(|rest| rest.starts_with('.'))
            };
            match fields.iter().filter(of).max_by_key(|name| name.len()) {
                Some(name) => {
                    let said = refused.by_field.entry((*name).to_string()).or_default();
                    if !said.is_empty() {
                        said.push_str("; ");
                    }
                    said.push_str(&detail);
                }
                None => refused.whole.push(detail),
            }
        }
        refused
    }

    /// Something that is said of the form as a whole.
    pub(super) fn whole_form(detail: &str) -> Self {
        Self { whole: vec![detail.to_owned()], ..Self::default() }
    }

    /// What is wrong with a field.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.by_field.get(name).map(String::as_str)
    }

    /// What is wrong beside the fields.
    pub(super) fn whole(&self) -> &[String] {
        &self.whole
    }

    /// Whether anything is.
    pub(super) fn is_empty(&self) -> bool {
        self.by_field.is_empty() && self.whole.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::gpu::GpuRef;
    use crate::domain::tenant::TenantSpec;

    const TENANT: [Field; 6] = [
        ("daemon", Shape::Text),
        ("device_memory_limit", Shape::Text),
        ("max_clients", Shape::Whole),
        ("active_thread_percentage", Shape::Number),
        ("gpus", Shape::List),
        ("labels", Shape::Pairs),
    ];
    const NAMES: [&str; 6] =
        ["daemon", "device_memory_limit", "max_clients", "active_thread_percentage", "gpus", "labels"];

    fn read(text: &str) -> Result<TenantSpec<GpuRef>, Refused> {
        Form::parse(text.as_bytes()).read(&TENANT).map_err(|error| Refused::of(error, &NAMES))
    }

    #[test]
    fn a_form_says_what_the_api_is_told() {
        let typed = "daemon=+gpu0+&device_memory_limit=4G&max_clients=2&active_thread_percentage=&gpus=0&gpus=&gpus=1\
                     &labels=team%3Dsearch%0D%0A%0D%0Aowner%3Da%3Db&other=ignored";
        let spec = read(typed).expect("a tenant");
        let told: TenantSpec<GpuRef> = serde_json::from_value(serde_json::json!({
            "daemon": "gpu0", "device_memory_limit": "4G", "max_clients": 2, "gpus": ["0", "1"],
            "labels": {"team": "search", "owner": "a=b"},
        }))
        .expect("the same");
        assert_eq!(spec, told);
    }

    #[test]
    fn each_refusal_stands_beside_its_field_and_what_was_typed_is_kept() {
        let refused = read("daemon=gpu0&max_clients=two&labels=team").expect_err("two fields");
        assert!(refused.field("max_clients").expect("a word").contains("\"two\""), "{refused:?}");
        assert!(refused.field("labels").expect("a word").contains("team=search"), "{refused:?}");
        let refused = read("daemon=GPU0").expect_err("a name");
        assert!(refused.field("daemon").expect("a word").contains("GPU0"), "{refused:?}");
        let refused = read("daemon=gpu0&device_memory_limit=lots").expect_err("no size");
        assert!(refused.field("device_memory_limit").is_some() && refused.whole().is_empty(), "{refused:?}");
        let refused = read("").expect_err("no daemon");
        assert_eq!(refused.field("daemon"), Some("fill this in"));
        assert_eq!(Form::parse(b"a=+x+&b").typed("a"), " x ");
    }

    #[test]
    fn an_item_is_said_of_its_list_and_what_is_of_no_field_of_the_form() {
        let errors = vec![
            FieldError { pointer: "/gpus/1".into(), detail: "no such GPU".into() },
            FieldError { pointer: "/elsewhere".into(), detail: "something".into() },
        ];
        let refused = Refused::of(ServiceError::Invalid(errors), &NAMES);
        assert_eq!(refused.field("gpus"), Some("no such GPU"));
        assert_eq!(refused.whole(), ["something"]);
        let refused = Refused::of(ServiceError::Conflict("not now".into()), &NAMES);
        assert_eq!(refused.whole(), ["not now"]);
    }

    #[test]
    fn what_was_left_as_it_was_takes_what_is_there_now() {
        let began = Form::parse(b"limit=4G&clients=1&gpus=a&gpus=b&share=sms&sms=8");
        let now = Form::parse(b"limit=5G&clients=2&gpus=b&gpus=a&share=percentage&percentage=10");
        let groups: [&[&str]; 4] = [&["limit"], &["clients"], &["gpus"], &["share", "sms", "percentage"]];
        let mut typed = Form::parse(b"limit=6G&clients=1&gpus=a&gpus=b&share=sms&sms=8&name=web");
        typed.set(BEGAN, began.encoded());
        let mut blind = Form::parse(b"limit=6G&clients=1&gpus=a&gpus=b&share=sms&sms=8");
        let told = typed.take_up(&now, &groups);
        let row = |field, now: &str, typed: Option<&str>| Meanwhile {
            field,
            now: now.to_owned(),
            typed: typed.map(ToOwned::to_owned),
        };
        assert_eq!(
            told,
            [
                row("limit", "5G", Some("6G")),
                row("clients", "2", None),
                row("share", "percentage", None),
                row("sms", "", None),
                row("percentage", "10", None),
            ]
        );
        let said = ["limit", "clients", "share", "sms", "percentage", "name"].map(|name| typed.text(name));
        assert_eq!(said, ["6G", "2", "percentage", "", "10", "web"]);
        // From now on it begins with what is there now.
        assert_eq!(typed.take_up(&now, &groups), [row("limit", "5G", Some("6G"))]);
        // A form that does not say what it began with stays as it was typed.
        blind.take_up(&now, &groups);
        assert_eq!((blind.text("clients"), blind.text("sms")), ("1", "8"));
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_typed_is_read_or_refused(bytes in proptest::collection::vec(0u8.., 0..200)) {
            let form = Form::parse(&bytes);
            let _: Result<TenantSpec<GpuRef>, ServiceError> = form.read(&TENANT);
        }
    }
}
