//! Forms: submitted fields, parsed by the types of the API, with errors beside their fields.
//!
//! A form is converted to the JSON that a program would send, so the same validation applies with the same messages. What was
//! typed is kept, and shown again with the errors.

use std::str::FromStr;

use askama::Template;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use axum::response::Response;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::with_status;
use crate::domain::InvalidValue;
use crate::domain::count::joined;
use crate::domain::duration::parse_seconds;
use crate::domain::json::missing_field;
use crate::domain::rfc3339;
use crate::http::extract;
use crate::http::problem::{Problem, ProblemKind};
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

/// Returns the reason for which a rehearsed write would be refused. A missing right or resource is a problem at once.
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

/// The errors of a refused form; a missing right or resource has a page of its own.
pub(super) fn refusal(
    ctx: &RequestContext,
    error: ServiceError,
    fields: &[&str],
) -> Result<FormErrors, Problem> {
    if matches!(error, ServiceError::Forbidden(_) | ServiceError::NotFound { .. }) {
        return Err(error.into());
    }
    Ok(FormErrors::of(Problem::of(error, &ctx.actor), fields))
}

/// The submitted fields, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Form(Vec<(String, String)>);

/// Rule by which the text of a field becomes JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Text; omitted if empty.
    Text,
    /// Text whose blanks count, as in YAML; omitted if it has nothing else.
    Document,
    /// Memory in whole MiB, as `4G`, or of several GPUs, as `0=1G,1=2G`; omitted if empty.
    Memory,
    /// An integer; omitted if empty.
    Whole,
    /// A number; omitted if empty.
    Number,
    /// A time; omitted if empty. A duration from now on may be typed for it.
    Time,
    /// A duration, in seconds for the API.
    Seconds,
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
    /// Parses a form as browsers encode it, which end each line of a text with CR LF.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let fields = form_urlencoded::parse(bytes).into_owned();
        Self(fields.map(|(name, value)| (name, value.replace("\r\n", "\n"))).collect())
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

    /// The name in a field.
    pub(super) fn named<T: FromStr<Err = InvalidValue>>(&self, field: &str) -> Result<T, ServiceError> {
        self.text(field).parse().map_err(|error| ServiceError::invalid((field, error)))
    }

    /// The selected version of a layout; `None` for the newest.
    pub(super) fn version(&self) -> Result<Option<u32>, ServiceError> {
        match self.text("version") {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                let why = format!(
                    "{:?} is not a version: give its number, or leave it empty for the newest",
                    shortened(text)
                );
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
        let mut all: Vec<&str> = self.all(name).filter(|value| !value.is_empty()).collect();
        all.sort_unstable();
        all.join(", ")
    }

    /// All fields, in order.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns true if a checkbox is checked.
    pub(super) fn ticked(&self, name: &str) -> bool {
        !self.text(name).is_empty()
    }

    /// Returns true if a list contains a value.
    pub(super) fn has(&self, name: &str, value: &str) -> bool {
        self.all(name).any(|sent| sent == value)
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

    /// The form's value as an API type, or everything that is wrong in it.
    pub(super) fn read<T: DeserializeOwned>(&self, fields: &[Field]) -> Result<T, ServiceError> {
        without_errors(self.read_rest(fields))
    }

    /// Reads the form without its wrong fields, if the value is complete without them, and returns the errors of these.
    pub(super) fn read_rest<T: DeserializeOwned>(&self, fields: &[Field]) -> (Option<T>, Vec<FieldError>) {
        let (mut root, mut errors) = (Map::new(), Vec::new());
        for (name, shape) in fields {
            match self.value(name, *shape) {
                Ok(Some(value)) => put(&mut root, name, value),
                Ok(None) => {}
                Err(detail) => errors.push(FieldError { pointer: pointer(name), detail }),
            }
        }
        let mut root = Value::Object(root);
        loop {
            // Reading stops at the first error: it is repeated without that field.
            let problem = match extract::parse::<T>(root.to_string().as_bytes()) {
                Ok(value) => return (Some(value), errors),
                Err(problem) => problem,
            };
            let wrong = if problem.errors.is_empty() {
                vec![FieldError { pointer: String::new(), detail: problem.detail }]
            } else {
                problem.errors
            };
            let is_removed = wrong.iter().any(|error| removed(&mut root, &error.pointer));
            add_new(&mut errors, wrong);
            if !is_removed {
                return (None, errors);
            }
        }
    }

    fn value(&self, name: &str, shape: Shape) -> Result<Option<Value>, String> {
        let text = self.text(name);
        let is_not = |expected: &str| format!("{:?} is not {expected}", shortened(text));
        match shape {
            Shape::Flag => Ok(Some(Value::Bool(self.ticked(name)))),
            Shape::List => {
                let values = self.all(name).filter(|value| !value.is_empty());
                Ok(Some(values.map(|value| Value::String(value.to_owned())).collect()))
            }
            Shape::Pairs => pairs(text).map(Some),
            _ if text.is_empty() => Ok(None),
            Shape::Text | Shape::Memory => Ok(Some(Value::String(text.to_owned()))),
            Shape::Document => Ok(Some(Value::String(self.typed(name).to_owned()))),
            Shape::Whole => {
                let number = text.parse::<u64>().map(|number| Some(number.into()));
                number.map_err(|_| is_not("a whole number: give digits only, for example 16"))
            }
            Shape::Time => match rfc3339::parse(text) {
                Ok(_) => Ok(Some(Value::String(text.to_owned()))),
                Err(_) => Err(is_not(
                    "a time: give a duration from now on, for example 2d or 36h, or a time as YYYY-MM-DDThh:mm:ssZ",
                )),
            },
            Shape::Seconds => match parse_seconds::<u64>(text) {
                Ok(seconds) => Ok(Some(seconds.into())),
                Err(error) => Err(error.to_string()),
            },
            Shape::Number => match text.parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(Some(number.into())),
                _ => Err(is_not("a number: give one, for example 12.5")),
            },
        }
    }
}

/// A text as an error shows it.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

fn pairs(text: &str) -> Result<Value, String> {
    let mut pairs = Map::new();
    for line in text.lines().map(|line| line.trim_matches(' ')).filter(|line| !line.is_empty()) {
        let Some((key, value)) = line.split_once('=') else {
            return Err(format!(
                "{:?} has no \"=\": write each on a separate line, for example team=search",
                shortened(line)
            ));
        };
        let (key, value) = (key.trim_end_matches(' '), value.trim_start_matches(' '));
        if pairs.insert(key.to_owned(), value.into()).is_some() {
            return Err(format!("{key:?} occurs twice: give each key once"));
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
        // Limits of several GPUs as MPS writes them, or labels.
        Value::Object(pairs) => {
            let between = if shape == Shape::Memory { "," } else { "\n" };
            joined(pairs.iter().map(|(key, value)| format!("{key}={}", plain(value, shape))), between)
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

/// A value that was read without errors.
pub(super) fn without_errors<T>(read: (Option<T>, Vec<FieldError>)) -> Result<T, ServiceError> {
    match read {
        (Some(value), errors) if errors.is_empty() => Ok(value),
        (_, errors) => Err(ServiceError::Invalid(errors)),
    }
}

/// Adds errors of fields that have none yet: a field that is missing since its value was wrong has one.
pub(super) fn add_new(errors: &mut Vec<FieldError>, more: Vec<FieldError>) {
    let pointers: Vec<String> = errors.iter().map(|error| error.pointer.clone()).collect();
    errors.extend(more.into_iter().filter(|error| !pointers.contains(&error.pointer)));
}

/// The field of a form that an error belongs to: that with the longest matching name, since an item's error belongs to its list.
pub(super) fn field_of<'f>(pointer: &str, fields: &[&'f str]) -> Option<&'f str> {
    let inside = pointer.trim_start_matches('/').replace('/', ".");
    let of =
        |name: &&str| inside.strip_prefix(*name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    fields.iter().copied().filter(of).max_by_key(|name| name.len())
}

/// Removes the field of an error, or the list or map that it is in; false if there is none.
fn removed(root: &mut Value, pointer: &str) -> bool {
    let Some((outer, field)) = pointer.rsplit_once('/') else { return false };
    let fields = root.pointer_mut(outer).and_then(Value::as_object_mut);
    fields.and_then(|fields| fields.remove(field)).is_some() || removed(root, outer)
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
                ProblemKind::UnreadableBody,
                "this is not a form: pages accept application/x-www-form-urlencoded; programs use the API under /api/v1",
            ));
        }
        let bytes: Bytes = extract::body(request, state).await?;
        Ok(Self::parse(&bytes))
    }
}

/// A field's name as its label.
fn in_words(name: &str) -> String {
    name.trim_end_matches("_s").replace('_', " ").replace("gpu", "GPU")
}

/// Errors of a form: by field, or as a whole.
#[derive(Debug, Clone, Default)]
pub(super) struct FormErrors {
    /// The wrong fields, in the order of the form.
    pub(super) by_field: Vec<WrongField>,
    pub(super) whole: Vec<String>,
    /// The problem that the response has; `None` if there are no errors.
    problem: Option<Box<Problem>>,
}

/// A wrong field: the ID of its element, which is its name, its label, and the error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrongField {
    pub(super) id: String,
    pub(super) label: String,
    pub(super) why: String,
}

impl FormErrors {
    /// Splits an error by the fields of the form; the rest applies to the form as a whole.
    pub(super) fn of(problem: impl Into<Problem>, fields: &[&str]) -> Self {
        let problem = problem.into();
        let mut refused = Self { problem: Some(Box::new(problem.clone())), ..Self::default() };
        if problem.errors.is_empty() {
            refused.whole.push(problem.detail);
            return refused;
        }
        for FieldError { pointer, detail } in problem.errors {
            if let Some(name) = missing_field(&detail).filter(|name| fields.contains(name)) {
                refused.add(name, &in_words(name), "fill this in");
                continue;
            }
            match field_of(&pointer, fields) {
                Some(name) => refused.add(name, &in_words(name), &detail),
                None => refused.whole.push(detail),
            }
        }
        refused.by_field.sort_by_key(|wrong| fields.iter().position(|name| *name == wrong.id));
        refused
    }

    /// Adds an error of a field.
    pub(super) fn add(&mut self, id: &str, label: &str, why: &str) {
        match self.by_field.iter_mut().find(|wrong| wrong.id == id) {
            Some(wrong) => {
                wrong.why.push_str("; ");
                wrong.why.push_str(why);
            }
            None => {
                let (id, label, why) = (id.to_owned(), label.to_owned(), why.to_owned());
                self.by_field.push(WrongField { id, label, why });
            }
        }
    }

    /// The page that shows the form with its errors; it has the status of the problem, and is recorded as refused.
    pub(super) fn shown<P: Template>(mut self, page: impl FnOnce(Self) -> P) -> Response {
        let problem = self.problem.take();
        with_status(&page(self), problem.map(|problem| *problem))
    }

    /// Errors with the labels of the form's fields, where these are not their names.
    #[must_use]
    pub(super) fn labelled(mut self, label: impl Fn(&str) -> Option<&'static str>) -> Self {
        for wrong in &mut self.by_field {
            wrong.label = label(&wrong.id).map_or_else(|| std::mem::take(&mut wrong.label), str::to_owned);
        }
        self
    }

    /// An error of the form as a whole.
    pub(super) fn whole_form(detail: String) -> Self {
        Self { whole: vec![detail], ..Self::default() }
    }

    /// The error of a field.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.by_field.iter().find(|wrong| wrong.id == name).map(|wrong| wrong.why.as_str())
    }

    /// Returns true if there are no errors.
    pub(super) fn is_empty(&self) -> bool {
        self.by_field.is_empty() && self.whole.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::gpu::GpuRef;
    use crate::domain::tenant::TenantSpec;

    const TENANT: [Field; 7] = [
        ("daemon", Shape::Text),
        ("uid", Shape::Whole),
        ("device_memory_limit", Shape::Memory),
        ("max_clients", Shape::Whole),
        ("active_thread_percentage", Shape::Number),
        ("gpus", Shape::List),
        ("labels", Shape::Pairs),
    ];
    const NAMES: [&str; 7] =
        ["daemon", "uid", "device_memory_limit", "max_clients", "active_thread_percentage", "gpus", "labels"];

    fn read(text: &str) -> Result<TenantSpec<GpuRef>, FormErrors> {
        Form::parse(text.as_bytes()).read(&TENANT).map_err(|error| FormErrors::of(error, &NAMES))
    }

    #[test]
    fn form_parses_like_json() {
        let typed = "daemon=+gpu0+&uid=0&device_memory_limit=4G&max_clients=2&active_thread_percentage=&gpus=0&gpus=&gpus=1\
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
        let refused = read("daemon=gpu0&uid=0&max_clients=two&labels=team").expect_err("two fields");
        assert!(refused.field("max_clients").expect("a word").contains("\"two\""), "{refused:?}");
        assert!(refused.field("labels").expect("a word").contains("team=search"), "{refused:?}");
        let refused = read("daemon=GPU0&uid=0").expect_err("a name");
        assert!(refused.field("daemon").expect("a word").contains("GPU0"), "{refused:?}");
        let refused = read("daemon=gpu0&device_memory_limit=lots").expect_err("no size, and no user");
        assert!(refused.field("device_memory_limit").is_some() && refused.whole.is_empty(), "{refused:?}");
        assert_eq!(refused.field("uid"), Some("fill this in"));
        let refused = read("").expect_err("nothing");
        assert_eq!(refused.field("daemon"), Some("fill this in"));
        assert_eq!(Form::parse(b"a=+x+&b").typed("a"), " x ");
    }

    #[test]
    fn all_wrong_fields_are_named_in_order() {
        let refused = read(
            "daemon=GPU0&uid=root&device_memory_limit=lots&max_clients=none&active_thread_percentage=500&labels=team",
        )
        .expect_err("all are wrong");
        let named: Vec<&str> = refused.by_field.iter().map(|wrong| wrong.id.as_str()).collect();
        assert_eq!(
            named,
            ["daemon", "uid", "device_memory_limit", "max_clients", "active_thread_percentage", "labels"]
        );
        let labels: Vec<&str> = refused.by_field.iter().map(|wrong| wrong.label.as_str()).collect();
        assert_eq!(labels[2], "device memory limit");
        assert!(refused.whole.is_empty(), "{refused:?}");
        let (spec, errors) = Form::parse(b"daemon=gpu0&uid=0&max_clients=two&device_memory_limit=4G")
            .read_rest::<TenantSpec<GpuRef>>(&TENANT);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(spec.expect("the rest").device_memory_limit.is_some());
    }

    #[test]
    fn item_errors_belong_to_their_list() {
        let errors = vec![
            FieldError { pointer: "/gpus/1".into(), detail: "no such GPU".into() },
            FieldError { pointer: "/elsewhere".into(), detail: "something".into() },
        ];
        let refused = FormErrors::of(ServiceError::Invalid(errors), &NAMES);
        assert_eq!(refused.field("gpus"), Some("no such GPU"));
        assert_eq!(refused.whole, ["something"]);
        let problem = Problem::from(ServiceError::Conflict("not now".into())).unredacted();
        assert_eq!(FormErrors::of(problem, &NAMES).whole, ["not now"]);
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
