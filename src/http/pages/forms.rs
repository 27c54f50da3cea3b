//! Forms: submitted fields, parsed by the types of the API, with errors beside their fields.
//!
//! A form is converted to the JSON that a program would send, so the same validation applies with the same messages. What was
//! typed is kept, and shown again with the errors.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::domain::json::missing_field;
use crate::http::extract;
use crate::http::problem::Problem;
use crate::service::access::context::RequestContext;
use crate::service::{FieldError, IdempotencyKey, ServiceError};

/// The field that identifies a form when it is submitted again.
pub(super) const KEY: &str = "form";

/// A field whose value in a form differs from the stored one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldDifference {
    pub(super) label: &'static str,
    pub(super) stored: String,
    pub(super) yours: String,
}

/// Why a rehearsed write would be refused. A missing right or resource is a problem at once.
pub(super) fn rehearsal_refusal<T>(
    ctx: &RequestContext,
    rehearsed: Result<T, ServiceError>,
) -> Result<Option<String>, Problem> {
    match rehearsed {
        Ok(_) => Ok(None),
        Err(error @ (ServiceError::Forbidden(_) | ServiceError::NotFound { .. })) => Err(error.into()),
        Err(error) => Ok(Some(Problem::of(error, &ctx.actor).detail)),
    }
}

/// The submitted fields, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Form(Vec<(String, String)>);

/// How the text of a field becomes JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Text; omitted if empty.
    Text,
    /// Memory in whole MiB, as `4G`, or of several GPUs, as `0=1G,1=2G`; omitted if empty.
    Memory,
    /// An integer; omitted if empty.
    Whole,
    /// A number; omitted if empty.
    Number,
    /// A checkbox.
    Flag,
    /// The checked values, or the values of several fields of that name, without empty ones.
    List,
    /// Lines of `key=value`.
    Pairs,
}

/// A form field: its name, which is the path of the JSON field with dots, and its shape.
pub(super) type Field = (&'static str, Shape);

/// A field of a spec, with its label in the form.
pub(super) type SpecField = (&'static str, Shape, &'static str);

impl Form {
    /// As browsers encode it.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        Self(form_urlencoded::parse(bytes).into_owned().collect())
    }

    /// The trimmed text of a field; empty if it is missing.
    pub(super) fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.trim())
    }

    /// The text as typed, to be shown again.
    pub(super) fn typed(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str())
    }

    /// The values of all fields of a name.
    pub(super) fn all<'f>(&'f self, name: &'f str) -> impl Iterator<Item = &'f str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.trim())
    }

    /// The selected version of a layout; `None` for the newest.
    pub(super) fn version(&self) -> Result<Option<u32>, ServiceError> {
        match self.text("version") {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                let shown: String = text.chars().take(80).collect();
                let why =
                    format!("{shown:?} is not a version: give its number, or leave it empty for the newest");
                ServiceError::field("/version", why)
            }),
        }
    }

    /// The idempotency key of this form, for a reload or a return to it; other values in these fields make another key.
    /// `None` for a form without one.
    pub(super) fn key(&self, ctx: &RequestContext, path: &str, fields: &[&str]) -> Option<IdempotencyKey> {
        let form = uuid::Uuid::parse_str(self.text(KEY)).ok()?;
        let mut digest = Sha256::new();
        for text in std::iter::once(path).chain(fields.iter().map(|name| self.text(name))) {
            digest.update(text.as_bytes());
            digest.update([0]);
        }
        let digest = hex::encode(digest.finalize());
        let key = format!("form {form} {digest}");
        Some(IdempotencyKey { owner: ctx.actor.subject.to_string(), key, request_hash: digest })
    }

    /// The fields in which this form differs from the stored one.
    pub(super) fn differences(&self, stored: &Self, fields: &[SpecField]) -> Vec<FieldDifference> {
        let difference = |(name, _, label): &SpecField| {
            let (stored, yours) = (stored.line(name), self.line(name));
            (stored != yours).then_some(FieldDifference { label, stored, yours })
        };
        fields.iter().filter_map(difference).collect()
    }

    /// The values of a field in one line, in canonical order.
    fn line(&self, name: &str) -> String {
        let mut all: Vec<String> =
            self.all(name).filter(|one| !one.is_empty()).map(|one| one.replace('\r', "")).collect();
        all.sort_unstable();
        all.join(", ")
    }

    /// All fields, in order.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether a checkbox is checked.
    pub(super) fn ticked(&self, name: &str) -> bool {
        !self.text(name).is_empty()
    }

    /// Whether a list contains a value.
    pub(super) fn has(&self, name: &str, value: &str) -> bool {
        self.all(name).any(|one| one == value)
    }

    /// Sets an initial value.
    pub(super) fn set(&mut self, name: &str, value: impl Into<String>) {
        self.0.push((name.to_owned(), value.into()));
    }

    /// Replaces a value.
    pub(super) fn replace(&mut self, name: &str, value: impl Into<String>) {
        self.remove(name);
        self.set(name, value);
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.retain(|(key, _)| key != name);
    }

    /// The form that shows a value of the API: the reverse of [`Form::read`].
    pub(super) fn of(value: &impl Serialize, fields: &[SpecField]) -> Result<Self, ServiceError> {
        let json = serde_json::to_value(value).map_err(|error| ServiceError::Internal(error.to_string()))?;
        let mut form = Self::default();
        for (name, shape, _) in fields {
            match json.pointer(&pointer(name)).unwrap_or(&Value::Null) {
                Value::Array(items) => items.iter().for_each(|item| form.set(name, plain(item, *shape))),
                value => form.set(name, plain(value, *shape)),
            }
        }
        Ok(form)
    }

    /// The form's value as an API type.
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
            Shape::Text | Shape::Memory => Ok(Some(Value::String(text.to_owned()))),
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
            return Err(format!("{shown:?} has no \"=\": write each on a separate line, as team=search"));
        };
        if pairs.insert(key.trim().to_owned(), value.trim().into()).is_some() {
            return Err(format!("{:?} occurs twice: give each key once", key.trim()));
        }
    }
    Ok(Value::Object(pairs))
}

/// A value of the API as a field shows it.
fn plain(value: &Value, shape: Shape) -> String {
    match value {
        Value::Bool(true) => "yes".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(bytes) if shape == Shape::Memory => size(bytes.as_u64().unwrap_or_default()),
        Value::Number(number) => number.as_f64().unwrap_or_default().to_string(),
        // As MPS writes the limits of several GPUs.
        Value::Object(limits) if shape == Shape::Memory => {
            let limit = |(gpu, bytes): (&String, &Value)| {
                format!("{gpu}={}", size(bytes.as_u64().unwrap_or_default()))
            };
            limits.iter().map(limit).collect::<Vec<_>>().join(",")
        }
        Value::Object(pairs) => {
            let lines: Vec<String> = pairs
                .iter()
                .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
                .collect();
            lines.join("\n")
        }
        Value::Null | Value::Bool(false) | Value::Array(_) => String::new(),
    }
}

/// A size as people type it.
fn size(bytes: u64) -> String {
    match bytes >> 20 {
        mib if mib.is_multiple_of(1024) => format!("{}G", mib / 1024),
        mib => format!("{mib}M"),
    }
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
                "this is not a form: pages accept application/x-www-form-urlencoded; programs use the API under /api/v1",
            ));
        }
        let bytes: Bytes = extract::body(request, state).await?;
        Ok(Self::parse(&bytes))
    }
}

/// What is wrong with a form: by field, or as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FormErrors {
    by_field: BTreeMap<String, String>,
    whole: Vec<String>,
}

impl FormErrors {
    /// Splits an error by the fields of the form; the rest applies to the form as a whole.
    pub(super) fn of(problem: impl Into<Problem>, fields: &[&str]) -> Self {
        let problem = problem.into();
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
            // The longest matching name: the error of an item belongs to its list.
            let of = |name: &&&str| {
                inside == **name || inside.strip_prefix(**name).is_some_and(|rest| rest.starts_with('.'))
            };
            match fields.iter().filter(of).max_by_key(|name| name.len()) {
                Some(name) => {
                    let message = refused.by_field.entry((*name).to_string()).or_default();
                    if !message.is_empty() {
                        message.push_str("; ");
                    }
                    message.push_str(&detail);
                }
                None => refused.whole.push(detail),
            }
        }
        refused
    }

    /// An error of the form as a whole.
    pub(super) fn whole_form(detail: &str) -> Self {
        Self { whole: vec![detail.to_owned()], ..Self::default() }
    }

    /// The error of a field.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.by_field.get(name).map(String::as_str)
    }

    /// The errors of the form as a whole.
    pub(super) fn whole(&self) -> &[String] {
        &self.whole
    }

    /// Whether there are no errors.
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
        ("device_memory_limit", Shape::Memory),
        ("max_clients", Shape::Whole),
        ("active_thread_percentage", Shape::Number),
        ("gpus", Shape::List),
        ("labels", Shape::Pairs),
    ];
    const NAMES: [&str; 6] =
        ["daemon", "device_memory_limit", "max_clients", "active_thread_percentage", "gpus", "labels"];

    fn read(text: &str) -> Result<TenantSpec<GpuRef>, FormErrors> {
        Form::parse(text.as_bytes()).read(&TENANT).map_err(|error| FormErrors::of(error, &NAMES))
    }

    #[test]
    fn form_parses_like_json() {
        let typed = "daemon=+gpu0+&device_memory_limit=4G&max_clients=2&active_thread_percentage=&gpus=0&gpus=&gpus=1\
                     &labels=team%3Dsearch%0D%0A%0D%0Aowner%3Da%3Db&other=ignored";
        let spec = read(typed).expect("a tenant");
        let sent: TenantSpec<GpuRef> = serde_json::from_value(serde_json::json!({
            "daemon": "gpu0", "uid": 0, "device_memory_limit": "4G", "max_clients": 2, "gpus": ["0", "1"],
            "labels": {"team": "search", "owner": "a=b"},
        }))
        .expect("the same");
        assert_eq!(spec, sent);
    }

    #[test]
    fn errors_are_assigned_to_fields() {
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
    fn item_errors_belong_to_their_list() {
        let errors = vec![
            FieldError { pointer: "/gpus/1".into(), detail: "no such GPU".into() },
            FieldError { pointer: "/elsewhere".into(), detail: "something".into() },
        ];
        let refused = FormErrors::of(ServiceError::Invalid(errors), &NAMES);
        assert_eq!(refused.field("gpus"), Some("no such GPU"));
        assert_eq!(refused.whole(), ["something"]);
        let problem = Problem::from(ServiceError::Conflict("not now".into())).unredacted();
        assert_eq!(FormErrors::of(problem, &NAMES).whole(), ["not now"]);
    }

    #[test]
    fn form_of_a_spec_reads_as_that_spec() {
        let json = serde_json::json!({
            "daemon": "gpu0", "uid": 0, "device_memory_limit": "1536M", "max_clients": 2, "active_thread_percentage": 12.5,
            "gpus": ["0", "1"], "labels": {"owner": "a=b", "team": "search"},
        });
        let spec: TenantSpec<GpuRef> = serde_json::from_value(json).expect("a spec");
        let fields = TENANT.map(|(name, shape)| (name, shape, name));
        let form = Form::of(&spec, &fields).expect("a form");
        assert_eq!((form.text("device_memory_limit"), form.text("max_clients")), ("1536M", "2"));
        assert_eq!(form.read::<TenantSpec<GpuRef>>(&TENANT).expect("the same"), spec);
    }

    #[test]
    fn differences_name_both_values_of_a_field() {
        let stored = Form::parse(b"max_clients=2&gpus=a&gpus=b&labels=a%3Db");
        let typed = Form::parse(b"max_clients=1&gpus=b&gpus=+a+&labels=");
        let row = |label, stored: &str, yours: &str| FieldDifference {
            label,
            stored: stored.to_owned(),
            yours: yours.to_owned(),
        };
        let fields = TENANT.map(|(name, shape)| (name, shape, name));
        let differences = typed.differences(&stored, &fields);
        assert_eq!(differences, [row("max_clients", "2", "1"), row("labels", "a=b", "")]);
    }

    proptest::proptest! {
        #[test]
        fn any_input_is_parsed_or_refused(bytes in proptest::collection::vec(0u8.., 0..200)) {
            let form = Form::parse(&bytes);
            let _: Result<TenantSpec<GpuRef>, ServiceError> = form.read(&TENANT);
        }
    }
}
