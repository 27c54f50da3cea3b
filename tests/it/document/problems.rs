//! The problems that each operation can answer, by reference to the document's components.
//!
//! They follow from what an operation takes and requires. Those that do not are named by the handler, as in `responses(NotFound)`.

use mps_manager::http::endpoint::{KEY_POLICY, KeyPolicy, RIGHT, RequiredRight};
use mps_manager::http::problem::TYPE_PREFIX;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

const MEDIA_TYPE: &str = "application/problem+json";

/// A response with a problem: its name among the components, its status, and the kinds of problem that it holds.
struct ProblemResponse(&'static str, u16, &'static str, &'static [&'static str]);

#[rustfmt::skip]
const RESPONSES: [ProblemResponse; 26] = [
    ProblemResponse("BadRequest", 400, "The request cannot be read.", &["no-host"]),
    ProblemResponse("BadRequestOrBody", 400, "The request or its body cannot be read.", &["unreadable-body", "no-host"]),
    ProblemResponse("BadRequestOrJson", 400, "The request or its body cannot be read, or the body is not valid JSON.", &["malformed-json", "unreadable-body", "no-host"]),
    ProblemResponse("Unauthorized", 401, "The request has no valid token.", &["unauthorized"]),
    ProblemResponse("Forbidden", 403, "The caller does not have the right; `detail` names it.", &["forbidden"]),
    ProblemResponse("ForbiddenOrCrossSite", 403, "The caller does not have the right, or a page of another site sent the request.", &["cross-site", "forbidden"]),
    ProblemResponse("CrossSite", 403, "A page of another site sent the request.", &["cross-site"]),
    ProblemResponse("NotFound", 404, "What the request names does not exist, or the caller may not see it.", &["not-found"]),
    ProblemResponse("NotAcceptable", 406, "`Accept` allows none of the forms that the answer has.", &["not-acceptable"]),
    ProblemResponse("BodyTooSlow", 408, "The body arrived too slowly.", &["body-too-slow"]),
    ProblemResponse("Conflict", 409, "The request conflicts with the current state of the host; `detail` and `errors` say with what.", &["conflict", "not-admitted", "layout-blocked", "host-file-refused", "fingerprint-differs", "read-only"]),
    ProblemResponse("PreconditionFailed", 412, "The resource was changed, created or deleted since it was read.", &["precondition-failed"]),
    ProblemResponse("BodyTooLarge", 413, "The body is too large.", &["body-too-large"]),
    ProblemResponse("UnsupportedEncoding", 415, "The request has a `Content-Encoding`.", &["unsupported-encoding"]),
    ProblemResponse("NotJson", 415, "The body is not JSON, or has a `Content-Encoding`.", &["not-json", "unsupported-encoding"]),
    ProblemResponse("NotADocument", 415, "The body has none of the media types that a document can have, or has a `Content-Encoding`.", &["not-a-document", "unsupported-encoding"]),
    ProblemResponse("WrongHost", 421, "The `Host` header does not name this server.", &["wrong-host"]),
    ProblemResponse("InvalidRequest", 422, "A value is refused; `errors` says which, and why.", &["invalid-request"]),
    ProblemResponse("InvalidRequestOrKeyReused", 422, "A value is refused, or the `Idempotency-Key` was used for another request.", &["invalid-request", "idempotency-key-reused"]),
    ProblemResponse("InvalidRequestOrKeyRefused", 422, "A value is refused, or the request has an `Idempotency-Key`, which it cannot have.", &["invalid-request", "idempotency-key-refused"]),
    ProblemResponse("TooManyRequests", 429, "Too many requests, or too many failed attempts to authenticate.", &["too-many-failures", "too-many-requests"]),
    ProblemResponse("HeadTooLarge", 431, "The request has too many headers, or too long ones.", &["head-too-large"]),
    ProblemResponse("InternalError", 500, "The manager failed; its log has the details.", &["internal"]),
    ProblemResponse("Unavailable", 503, "The request cannot be answered at the moment.", &["database-lost", "unavailable"]),
    ProblemResponse("TimedOut", 504, "The request was not answered in time.", &["timed-out"]),
    ProblemResponse("ConflictOnRead", 409, "There is nothing to answer in the current state of the host; `detail` says why.", &["conflict"]),
];

/// The components that operations refer to.
pub(super) fn components() -> Value {
    let named = RESPONSES.iter().map(|ProblemResponse(name, status, description, kinds)| {
        let types: Vec<String> = kinds.iter().map(|kind| format!("{TYPE_PREFIX}{kind}")).collect();
        let mut response = json!({
            "description": description,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            "x-problem-types": types,
        });
        let header = match status {
            401 => Some(("WWW-Authenticate", "How to authenticate.", json!({"type": "string"}))),
            429 | 503 => Some((
                "Retry-After",
                "Seconds to wait before the next try.",
                json!({"type": "integer", "minimum": 0}),
            )),
            _ => None,
        };
        if let Some((header, description, schema)) = header {
            let header = (header, json!({"description": description, "required": true, "schema": schema}));
            response["headers"] = Value::Object(Map::from_iter([(header.0.to_owned(), header.1)]));
        }
        ((*name).to_owned(), response)
    });
    Value::Object(named.collect())
}

/// Adds the problems that an operation can answer to its responses.
pub(super) fn add(method: &str, path: &str, operation: &mut Value) {
    let problems = OperationTraits::of(method, path, operation).problems();
    for name in problems {
        let status =
            RESPONSES.iter().find(|response| response.0 == name).map(|response| response.1.to_string());
        let status = status.expect("each is among the components");
        // What the handler answers with this status stays.
        if operation["responses"].get(&status).is_none() {
            operation["responses"][status] = json!({"$ref": format!("#/components/responses/{name}")});
        }
    }
}

/// Whether a caller with a valid token may be refused with 403. Otherwise there is always something to show, or what the caller may not see
/// does not exist for it (404).
fn can_be_forbidden(right: RequiredRight) -> bool {
    use RequiredRight::{Administer, EndClient, Operate, UseTenant, View};
    matches!(right, View | Operate | Administer | UseTenant | EndClient)
}

/// What an operation takes and requires, as far as that decides which problems it can answer.
struct OperationTraits<'o> {
    right: RequiredRight,
    writes: bool,
    path: &'o str,
    /// The names of its parameters.
    parameters: Vec<&'o str>,
    key_policy: Option<KeyPolicy>,
    /// The media types of its body.
    body: Vec<&'o str>,
}

impl<'o> OperationTraits<'o> {
    fn of(method: &str, path: &'o str, operation: &'o Value) -> Self {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let body = operation["requestBody"]["content"].as_object();
        Self {
            right: RequiredRight::deserialize(&operation[RIGHT]).expect("every handler declares it"),
            writes: method != "get",
            path,
            parameters: parameters.filter_map(|parameter| parameter["name"].as_str()).collect(),
            key_policy: KeyPolicy::deserialize(&operation[KEY_POLICY]).ok(),
            body: body.into_iter().flat_map(Map::keys).map(String::as_str).collect(),
        }
    }

    fn takes(&self, parameter: &str) -> bool {
        self.parameters.contains(&parameter)
    }

    /// The names of the responses that it can answer.
    fn problems(&self) -> Vec<&'static str> {
        let creates = self.writes && self.takes("If-None-Match");
        let mut names = vec!["WrongHost", "TooManyRequests", "HeadTooLarge", "InternalError", "TimedOut"];
        names.push(match (self.writes, self.body.is_empty()) {
            (false, _) => "BadRequest",
            (true, true) => "BadRequestOrBody",
            (true, false) => "BadRequestOrJson",
        });
        if self.right != RequiredRight::Public {
            names.extend(["Unauthorized", "Unavailable"]);
        }
        if self.right == RequiredRight::LogIn {
            names.push("CrossSite");
        } else if self.writes {
            names.push("ForbiddenOrCrossSite");
        } else if can_be_forbidden(self.right) {
            names.push("Forbidden");
        }
        if self.path.contains('{') && !creates {
            names.push("NotFound");
        }
        if self.writes {
            names.extend(["BodyTooSlow", "Conflict", "BodyTooLarge"]);
            names.push(match self.body.as_slice() {
                [] => "UnsupportedEncoding",
                [_] => "NotJson",
                _ => "NotADocument",
            });
        }
        if creates || self.takes("If-Match") {
            names.push("PreconditionFailed");
        }
        if self.key_policy == Some(KeyPolicy::Refuse) {
            names.push("InvalidRequestOrKeyRefused");
        } else if self.takes("Idempotency-Key") && self.key_policy != Some(KeyPolicy::NoEffect) {
            names.push("InvalidRequestOrKeyReused");
        } else if self.writes || !self.parameters.is_empty() {
            // A write without parameters refuses a body that it would ignore.
            names.push("InvalidRequest");
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mps_manager::http::problem::ProblemKind;

    #[test]
    fn problem_responses_hold_known_kinds() {
        for ProblemResponse(name, status, _, kinds) in RESPONSES {
            assert!(!kinds.is_empty(), "{name}");
            for kind in kinds {
                let mut known = ProblemKind::ALL.iter().map(|known| known.row());
                assert!(
                    known.any(|row| row.0 == *kind && row.1.as_u16() == status),
                    "{name} {status} {kind}"
                );
            }
        }
    }

    #[test]
    fn problem_responses_follow_from_operation_inputs() {
        let statuses = |method: &str, path: &str, operation: Value| {
            let mut operation = operation;
            add(method, path, &mut operation);
            operation["responses"].clone()
        };
        let own = json!({"description": "In its own words."});
        let read = json!({"x-right": "view", "responses": {"200": {}, "500": own}});
        let answers = statuses("get", "/x/{name}", read);
        assert_eq!(answers["403"]["$ref"], "#/components/responses/Forbidden");
        assert_eq!(answers["404"]["$ref"], "#/components/responses/NotFound");
        assert_eq!((&answers["500"], answers.get("409"), answers.get("422")), (&own, None, None));

        let created = json!({"x-right": "operate", "responses": {}, "parameters": [{"name": "If-None-Match"}],
            "requestBody": {"content": {"application/json": {}}}});
        let answers = statuses("put", "/x/{name}", created);
        assert_eq!(answers.get("404"), None);
        assert_eq!(answers["412"]["$ref"], "#/components/responses/PreconditionFailed");
        assert_eq!(answers["415"]["$ref"], "#/components/responses/NotJson");

        let key = json!([{"name": "Idempotency-Key"}]);
        for (policy, name) in [
            (json!(null), "InvalidRequestOrKeyReused"),
            (json!("store-answer"), "InvalidRequestOrKeyReused"),
            (json!("no-effect"), "InvalidRequest"),
            (json!("refuse"), "InvalidRequestOrKeyRefused"),
        ] {
            let operation = json!({"x-right": "operate", "x-idempotency-key": policy, "parameters": key, "responses": {}});
            let answers = statuses("post", "/x", operation);
            assert_eq!(answers["422"]["$ref"], format!("#/components/responses/{name}"));
        }

        let probe = statuses("get", "/x", json!({"x-right": "public", "responses": {}}));
        assert_eq!((probe.get("401"), probe.get("403"), probe.get("503")), (None, None, None));
    }
}
