//! The API's document: made of what the handlers declare, and kept as the files in `openapi/`, which the server serves.
//!
//! What the handlers give is completed with what follows from an operation's own parts, so that no handler repeats it.
//!
//! The order matters: names first, since everything else refers to them; then each operation; then the schemas of answers; and at
//! last what several operations share becomes a component.

mod compatibility;
mod directions;
mod headers;
mod host_schema;
mod layout_schema;
mod names;
mod openapi_3_0;
mod page;
mod patches;
mod problems;
mod shared;
mod unions;
mod walk;

use mps_manager::http::api;
use mps_manager::http::endpoint::KEY_POLICY;
use serde_json::{Map, Value, json};

pub use host_schema::host_file_schema;
pub use layout_schema::layout_document_schema;
pub use openapi_3_0::openapi_3_0;
pub use page::page;
pub use walk::METHODS;
use walk::{for_each_operation, not_null};

/// The document, complete.
pub fn document() -> Value {
    let document = serde_json::to_value(api::declared());
    let mut document = document.expect("the document holds nothing that JSON cannot");
    let key = declared_parameter(&document, "Idempotency-Key");
    names::rename(&mut document);
    if let Some(schemas) = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut) {
        unions::name_variants(schemas);
    }
    patches::of_specs(&mut document);
    integers(&mut document);
    document["servers"] = json!([{"url": "/", "description": "The manager that this document comes from"}]);
    for_each_operation(&mut document, |method, path, operation| {
        conditional(method, path, operation);
        add_key(operation, &key);
        parameters(method, operation);
        problems::add(method, path, operation);
        headers::add(method, operation);
        headers::links(operation);
    });
    document["components"]["responses"] = problems::components();
    document["components"]["responses"]["NotModified"] = headers::not_modified();
    document["components"]["headers"] = json!({"ContentTag": headers::of_content("`If-None-Match`", true)});
    directions::split(&mut document);
    shared::parameters(&mut document);
    document
}

fn add_parameter(operation: &mut Value, parameter: Value) {
    match operation.get_mut("parameters").and_then(Value::as_array_mut) {
        Some(parameters) => parameters.push(parameter),
        None => operation["parameters"] = json!([parameter]),
    }
}

/// A read that is answered with JSON has an entity tag, and takes `If-None-Match`.
fn conditional(method: &str, path: &str, operation: &mut Value) {
    if method != "get" || !path.starts_with("/api/v1/") {
        return;
    }
    let Some(answer) = operation.pointer_mut("/responses/200") else { return };
    if answer.pointer("/headers/ETag").is_none() {
        if answer.pointer("/content/application~1json").is_none() {
            return;
        }
        let is_only_json = answer["content"].as_object().is_some_and(|forms| forms.len() == 1);
        answer["headers"]["ETag"] = if is_only_json {
            json!({"$ref": "#/components/headers/ContentTag"})
        } else {
            headers::of_content("`If-None-Match`", false)
        };
    }
    let condition = json!({
        "name": "If-None-Match",
        "in": "header",
        "required": false,
        "description": "Answer only if the entity tag is none of these, and 304 otherwise.",
    });
    add_parameter(operation, condition);
    operation["responses"]["304"] = json!({"$ref": "#/components/responses/NotModified"});
}

/// A parameter as the handlers that read it declare it.
fn declared_parameter(document: &Value, name: &str) -> Value {
    let operations = document["paths"].as_object().expect("paths").values();
    let operations = operations.filter_map(Value::as_object).flat_map(Map::values);
    let mut parameters = operations.filter_map(|operation| operation["parameters"].as_array()).flatten();
    parameters.find(|parameter| parameter["name"] == name).expect("a handler declares it").clone()
}

/// Adds `Idempotency-Key` where the handler does not read it itself.
fn add_key(operation: &mut Value, key: &Value) {
    if matches!(operation[KEY_POLICY].as_str(), None | Some("refuse")) {
        return;
    }
    let same = |other: &Value| other["name"] == key["name"];
    if !operation["parameters"].as_array().is_some_and(|all| all.iter().any(same)) {
        add_parameter(operation, key.clone());
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

/// A document whose operations hold their parameters and responses themselves, where it refers to components for them.
pub fn expanded(mut document: Value) -> Value {
    let components = document["components"].clone();
    let resolve = |value: &mut Value| {
        let reference = value["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/components"));
        if let Some(pointer) = reference.map(str::to_owned) {
            *value =
                components.pointer(&pointer).unwrap_or_else(|| panic!("{pointer} is no component")).clone();
        }
    };
    let paths = document["paths"].as_object_mut().expect("paths");
    for operation in paths.values_mut().filter_map(Value::as_object_mut).flat_map(Map::values_mut) {
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        parameters.into_iter().flatten().for_each(resolve);
        let responses = operation.get_mut("responses").and_then(Value::as_object_mut);
        responses.into_iter().flat_map(Map::values_mut).for_each(resolve);
    }
    document
}
