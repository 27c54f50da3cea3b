//! What the document says of every operation alike, written once from the operation's own parts.
//!
//! A handler names its own answers, and [`ReadProblems`](crate::http::problem::ReadProblems) or
//! [`WriteProblems`](crate::http::problem::WriteProblems) for the rest: which of those an operation can really answer follows
//! from what it takes. Unions are given the shape that generators of clients digest.

mod directions;
mod names;
pub(super) mod openapi_3_0;
pub(super) mod unions;

use serde_json::{Map, Value, json};

use crate::http::problem::{KINDS, LISTED, TYPE_PREFIX};
use crate::http::repeats::{self, Repeated, repeated};

const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];
const PROBLEM: &str = "application/problem+json";

/// Completes the document that the handlers give.
pub(super) fn complete(document: &utoipa::openapi::OpenApi) -> Value {
    let mut document = serde_json::to_value(document).expect("the document holds nothing that JSON cannot");
    names::rename(&mut document);
    if let Some(schemas) = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut) {
        unions::name_variants(schemas);
    }
    integers(&mut document);
    document["servers"] = json!([{"url": "/", "description": "The manager that this document comes from"}]);
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    for (path, item) in paths.into_iter().flat_map(Map::iter_mut) {
        for method in METHODS {
            if let Some(operation) = item.get_mut(method) {
                conditional(method, operation);
                keys(operation);
                parameters(method, operation);
                problems(method, path, operation);
                headers(method, operation);
                links(operation);
            }
        }
    }
    directions::split(&mut document);
    document
}

/// A read whose answer has an entity tag may be asked whether it is another one now.
fn conditional(method: &str, operation: &mut Value) {
    if method != "get" || operation.pointer("/responses/200/headers/ETag").is_none() {
        return;
    }
    let condition = json!({
        "name": "If-None-Match",
        "in": "header",
        "required": false,
        "description": "Only if its entity tag is none of these: 304 otherwise",
    });
    match operation.get_mut("parameters").and_then(Value::as_array_mut) {
        Some(parameters) => parameters.push(condition),
        None => operation["parameters"] = json!([condition]),
    }
    operation["responses"]["304"] = json!({
        "description": "The caller has it as it is now",
        "headers": {"ETag": {"schema": {"type": "string"}}},
    });
}

/// `Idempotency-Key`, where the handler does not see to it itself.
fn keys(operation: &mut Value) {
    let description = match operation["operationId"].as_str().and_then(repeated) {
        Some(Repeated::Kept) => "A repeated request with the same key is done once",
        Some(Repeated::Harmless) => "Taken, and without effect: the request changes nothing",
        Some(Repeated::Refused) | None => return,
    };
    let key = json!({
        "name": repeats::HEADER,
        "in": "header",
        "required": false,
        "description": description,
    });
    match operation.get_mut("parameters").and_then(Value::as_array_mut) {
        Some(parameters) => parameters.push(key),
        None => operation["parameters"] = json!([key]),
    }
}

/// An unsigned integer of 32 bits is more than an `int32` holds.
fn integers(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("format").is_some_and(|format| format == "int32")
                && fields.get("minimum").and_then(Value::as_f64).is_some_and(|minimum| minimum >= 0.0)
            {
                fields.insert("format".into(), json!("int64"));
                fields.entry("maximum").or_insert(json!(u32::MAX));
            }
            fields.values_mut().for_each(integers);
        }
        Value::Array(items) => items.iter_mut().for_each(integers),
        _ => {}
    }
}

/// What the parameters that many operations have may be, as they are read.
fn parameters(method: &str, operation: &mut Value) {
    let Some(parameters) = operation.get_mut("parameters").and_then(Value::as_array_mut) else { return };
    // OpenAPI has a place of its own for what is accepted: the media types of the answers.
    parameters.retain(|parameter| parameter["name"] != "Accept");
    for parameter in parameters {
        let schema = match parameter["name"].as_str().unwrap_or_default() {
            "If-Match" => tags(),
            "If-None-Match" if method == "get" => tags(),
            "If-None-Match" => json!({"type": "string", "enum": ["*"]}),
            "Idempotency-Key" => {
                json!({"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"})
            }
            "gpu" if parameter["in"] == "path" => json!({"$ref": "#/components/schemas/GpuRef"}),
            "cursor" => json!({"type": "string", "pattern": "^[A-Za-z0-9_-]*$"}),
            _ => not_null(&parameter["schema"]),
        };
        parameter["schema"] = schema;
    }
}

/// Entity tags, or `*`.
fn tags() -> Value {
    json!({
        "type": "string",
        "minLength": 1,
        "pattern": "^(\\*|(W/)?\"[!#-+.-~-]*\"( *, *(W/)?\"[!#-+.-~-]*\")*)$",
        "examples": ["\"3\""],
    })
}

/// A value that may be missing, without `null`: a parameter, or a field that is left out.
fn not_null(schema: &Value) -> Value {
    let null = |schema: &Value| schema["type"] == "null" || *schema == "null";
    let mut schema = schema.clone();
    if let Some(types) = schema["type"].as_array().cloned() {
        let rest: Vec<Value> = types.into_iter().filter(|one| !null(one)).collect();
        schema["type"] = if let [only] = rest.as_slice() { only.clone() } else { Value::Array(rest) };
    }
    if let Some(variants) = schema["oneOf"].as_array() {
        let rest: Vec<&Value> = variants.iter().filter(|one| !null(one)).collect();
        if let [only] = rest.as_slice() {
            return (*only).clone();
        }
    }
    schema
}

/// What an operation takes, as far as it decides what it may answer.
struct Parts<'o> {
    id: &'o str,
    method: &'o str,
    path: &'o str,
    /// It takes something that can be wrong.
    fallible: bool,
    /// Headers that it takes.
    headers: Vec<&'o str>,
    body: bool,
    /// Everybody may call it.
    open: bool,
}

/// Writes that make what is not there, and reads that show each their own: nobody is told that these are forbidden.
const MAKE: [&str; 4] = ["put_daemon", "put_tenant", "put_layout", "adopt_daemon"];
const SHOW_OWN: [&str; 13] = [
    "whoami",
    "get_session",
    "list_operations",
    "get_operation",
    "list_tenants",
    "get_tenant",
    "get_tenant_environment",
    "list_tenant_clients",
    "list_clients",
    "get_client",
    "list_events",
    "get_event",
    "stream_events",
];
/// What names a thing in its body or its query.
const NAME_ELSEWHERE: [&str; 2] = ["create_replay", "end_sessions"];

/// What is about something that the request comes with.
const OF_THE_REQUEST: [&str; 2] = ["get_session", "end_session"];

impl<'o> Parts<'o> {
    fn of(method: &'o str, path: &'o str, operation: &'o Value) -> Self {
        let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
        let body = operation.get("requestBody").is_some();
        let headers = parameters.iter().filter(|parameter| parameter["in"] == "header");
        Self {
            id: operation["operationId"].as_str().unwrap_or_default(),
            method,
            path,
            fallible: body || !parameters.is_empty(),
            headers: headers.filter_map(|header| header["name"].as_str()).collect(),
            body,
            open: operation.get("security").is_some(),
        }
    }

    /// It needs no token beside the one in its body.
    fn logs_in(&self) -> bool {
        self.id == "open_session"
    }

    fn reads(&self) -> bool {
        self.method == "get"
    }

    /// Whether an operation with these parts can answer a status that every read or write lists.
    fn can_answer(&self, status: &str) -> bool {
        match status {
            "401" => !self.open || self.logs_in(),
            "403" => self.logs_in() || (!self.open && !SHOW_OWN.contains(&self.id)),
            "404" => {
                (self.path.contains('{') && !MAKE.contains(&self.id))
                    || NAME_ELSEWHERE.contains(&self.id)
                    || OF_THE_REQUEST.contains(&self.id)
            }
            // A header that is no text, a body that cannot be read, or what does not fit what is there.
            "408" | "409" | "413" | "415" => !self.reads(),
            "412" => {
                !self.reads() && self.headers.iter().any(|name| matches!(*name, "If-Match" | "If-None-Match"))
            }
            // What takes no parameter still refuses a body that it would ignore.
            "422" => self.fallible || !self.reads(),
            _ => true,
        }
    }

    /// The kinds of problem that it can answer with a status.
    fn kinds(&self, status: &str) -> Vec<String> {
        let can = |kind: &str| match kind {
            // These come where there is no operation.
            "no-such-path" | "method-not-allowed" => false,
            "malformed-json" => self.body,
            "not-json" => self.body && self.id != "import_layouts",
            "not-a-layout" => self.id == "import_layouts",
            "idempotency-key-reused" => {
                self.headers.contains(&repeats::HEADER) && repeated(self.id) != Some(Repeated::Harmless)
            }
            "idempotency-key-refused" => repeated(self.id) == Some(Repeated::Refused),
            "read-only" | "cross-site" | "unreadable-body" | "unsupported-encoding" => !self.reads(),
            "forbidden" => !self.open,
            _ => true,
        };
        let kinds = KINDS.iter().filter(|(kind, own)| own.to_string() == status && can(kind));
        kinds.map(|(kind, _)| format!("{TYPE_PREFIX}{kind}")).collect()
    }
}

/// What comes before any handler is asked, or in its place.
const ALWAYS: [(&str, &str); 6] = [
    ("400", "The request cannot be read"),
    ("421", "Not a name of this server"),
    ("429", "Too many requests; Retry-After says when to try again"),
    ("431", "The head of the request is too large"),
    ("500", "A fault of the manager"),
    ("504", "No answer in time"),
];

/// Keeps of the problems that all reads or writes list those that this operation can answer, and says of which kinds they are.
///
/// A handler that answers another one, such as 409 to a read, describes it in words of its own: those stay.
fn problems(method: &str, path: &str, operation: &mut Value) {
    let mut responses = operation["responses"].as_object().cloned().unwrap_or_default();
    let parts = Parts::of(method, path, operation);
    responses.retain(|status, response| {
        let listed = response.as_object_mut().and_then(|fields| fields.remove(LISTED)).is_some();
        !listed || parts.can_answer(status)
    });
    for (status, description) in ALWAYS {
        if !responses.contains_key(status) {
            let content = json!({PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}});
            responses.insert(status.to_owned(), json!({"description": description, "content": content}));
        }
    }
    let forms = responses.get("200").and_then(|answer| answer["content"].as_object()).map_or(0, Map::len);
    // Whoever reads metrics gets some whatever it takes.
    if forms > 1 && parts.id != "get_metrics" {
        let content = json!({PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}});
        let description = "The caller takes none of the forms of the answer";
        responses.insert("406".to_owned(), json!({"description": description, "content": content}));
    }
    for (status, response) in &mut responses {
        if response["content"].get(PROBLEM).is_some() {
            response["x-problem-types"] = json!(parts.kinds(status));
        }
    }
    operation["responses"] = Value::Object(responses);
}

/// The headers that go with a status, whichever operation answers it.
fn headers(method: &str, operation: &mut Value) {
    let rehearses =
        operation["parameters"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == "dry_run"));
    let responses = operation.get_mut("responses").and_then(Value::as_object_mut);
    for (status, response) in responses.into_iter().flat_map(Map::iter_mut) {
        if let Some(tag) = response.pointer_mut("/headers/ETag") {
            *tag = etag(method == "get", rehearses && status == "200");
        }
        let problem = response["content"].get(PROBLEM).is_some();
        let more = match status.as_str() {
            "202" => ("Location", "Where to look for what comes of it.", json!({"type": "string"})),
            "401" if problem => ("WWW-Authenticate", "How to show who calls.", json!({"type": "string"})),
            "429" | "503" if problem => {
                ("Retry-After", "Seconds after which to try again.", json!({"type": "integer", "minimum": 0}))
            }
            _ => continue,
        };
        let (name, description, schema) = more;
        response["headers"][name] = json!({"description": description, "required": true, "schema": schema});
    }
}

fn etag(of_read: bool, may_be_of_dry_run: bool) -> Value {
    let more = match (of_read, may_be_of_dry_run) {
        (true, _) => {
            " `If-None-Match` of a later read is compared with the whole of it, `If-Match` with its revision."
        }
        (false, true) => " A dry run has none.",
        (false, false) => "",
    };
    let (pattern, example) = if of_read {
        ("^\"[0-9]+-[0-9a-f]{16}\"$", "\"3-0123456789abcdef\"")
    } else {
        ("^\"[0-9]+\"$", "\"3\"")
    };
    json!({
        "description": format!("The entity tag: what `If-Match` of a later write is compared with.{more}"),
        "required": !may_be_of_dry_run,
        "schema": {"type": "string", "pattern": pattern, "examples": [example]},
    })
}

/// Where to go from an answer: from an operation that was accepted to the operation, and from a thing to what is its.
fn links(operation: &mut Value) {
    let of_name =
        |id: &str| (id.to_owned(), json!({"operationId": id, "parameters": {"name": "$request.path.name"}}));
    let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
    let things: &[&str] = match id.as_str() {
        "put_tenant" => &["get_tenant", "get_tenant_environment", "list_tenant_clients", "delete_tenant"],
        "put_daemon" | "adopt_daemon" => {
            &["get_daemon", "cordon_daemon", "uncordon_daemon", "list_partitions", "delete_daemon"]
        }
        "put_layout" => &["get_layout", "list_layout_versions", "delete_layout"],
        _ => &[],
    };
    let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else { return };
    for status in ["200", "201"] {
        if let Some(response) = responses.get_mut(status).filter(|_| !things.is_empty()) {
            let links: Map<String, Value> = things.iter().map(|id| of_name(id)).collect();
            response["links"] = Value::Object(links);
        }
    }
    if let Some(response) = responses.get_mut("202") {
        if id == "verify_tenant" {
            response["links"] = Value::Object(Map::from_iter([of_name("get_tenant")]));
            return;
        }
        let place = if id == "create_replay" { "$response.body#/operation/id" } else { "$response.body#/id" };
        response["links"] = json!({
            "get_operation": {"operationId": "get_operation", "parameters": {"id": place}},
        });
        if id == "create_replay" {
            response["links"]["get_replay"] =
                json!({"operationId": "get_replay", "parameters": {"id": "$response.body#/replay"}});
        }
    }
}
