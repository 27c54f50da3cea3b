//! The gate itself, and each kind of change on a small document.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use super::{breaking_changes, objections};
use crate::document::document;

#[test]
fn released_api_is_broken_only_as_accepted() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi/released");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a file of openapi/released");
    let released: Value = serde_json::from_str(&read("v1.json")).expect("JSON");
    let accepted: BTreeMap<String, String> =
        toml::from_str(&read("accepted.toml")).expect("changes with reasons");
    let objections = objections(&breaking_changes(&released, &document()), &accepted);
    assert!(
        objections.is_empty(),
        "openapi/released/accepted.toml says what to do about changes of the released API:\n{}",
        objections.join("\n")
    );
}

/// A document with one resource that is read, written and deleted.
fn small() -> Value {
    let answer = json!({"description": "It.", "headers": {"ETag": {}},
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/View"}}}});
    json!({
        "paths": {
            "/things/{name}": {
                "get": {"operationId": "get_thing", "parameters": [
                    {"name": "name", "in": "path", "required": true, "schema": {"type": "string"}},
                    {"name": "order", "in": "query", "required": false, "schema": {"type": "string", "enum": ["up", "down"]}},
                ], "responses": {"200": answer, "404": {"description": "None."}}},
                "put": {"operationId": "put_thing",
                    "requestBody": {"required": true, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Spec"}}}},
                    "responses": {"200": answer}},
                "delete": {"operationId": "delete_thing", "responses": {"204": {"description": "Gone."}}},
            },
            "/health": {"get": {"operationId": "get_health", "responses": {"200": {"description": "Well."}}}},
        },
        "components": {"schemas": {
            "Spec": {"type": "object", "additionalProperties": false, "required": ["daemon"], "properties": {
                "daemon": {"type": "string", "maxLength": 63},
                "size": {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[0-9]+G$"}]},
                "mode": {"$ref": "#/components/schemas/Mode"},
                "step": {"oneOf": [{"$ref": "#/components/schemas/Add"}, {"$ref": "#/components/schemas/Remove"}]},
                "note": {"type": ["string", "null"]},
            }},
            "Mode": {"type": "string", "enum": ["shared", "alone"]},
            "Add": {"type": "object", "required": ["add"], "properties": {"add": {"type": "string"}}},
            "Remove": {"type": "object", "required": ["remove"], "properties": {"remove": {"type": "string"}}},
            "View": {"allOf": [{"$ref": "#/components/schemas/Named"}, {"type": "object", "required": ["mode", "parts"], "properties": {
                "mode": {"$ref": "#/components/schemas/Mode"},
                "parts": {"type": "array", "items": {"$ref": "#/components/schemas/View"}},
                "cause": {"oneOf": [{"$ref": "#/components/schemas/ByUser"}, {"type": "null"}]},
            }}]},
            "Named": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
            "ByUser": {"type": "object", "required": ["by", "uid"], "properties": {
                "by": {"type": "string", "enum": ["user"]}, "uid": {"type": "integer", "format": "int64"}}},
        }},
    })
}

fn changes(change: impl FnOnce(&mut Value)) -> BTreeSet<String> {
    let mut current = small();
    change(&mut current);
    breaking_changes(&small(), &current)
}

/// Changes the value at a pointer, or removes it, and expects exactly these lines.
fn expect(pointer: &str, value: Option<Value>, expected: &[&str]) {
    let found = changes(|document| {
        let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
        let parent = document.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer} leads nowhere"));
        match (parent, value) {
            (Value::Array(items), Some(value)) if field == "-" => items.push(value),
            (Value::Array(items), Some(value)) => items[field.parse::<usize>().expect("an index")] = value,
            (Value::Array(items), None) => drop(items.remove(field.parse().expect("an index"))),
            (Value::Object(fields), Some(value)) => drop(fields.insert(field.replace("~1", "/"), value)),
            (Value::Object(fields), None) => {
                assert!(fields.remove(&field.replace("~1", "/")).is_some(), "{pointer} leads nowhere");
            }
            _ => panic!("{pointer} leads nowhere"),
        }
    });
    assert_eq!(found, expected.iter().map(|line| (*line).to_owned()).collect(), "{pointer}");
}

const GET: &str = "/paths/~1things~1{name}/get";
const PUT: &str = "/paths/~1things~1{name}/put";
const SCHEMAS: &str = "/components/schemas";

#[test]
fn equal_documents_have_no_breaking_change() {
    assert_eq!(changes(|_| ()), BTreeSet::new());
}

#[test]
fn removed_path_operation_or_parameter_breaks() {
    expect("/paths/~1health", None, &["GET /health: removed"]);
    expect("/paths/~1things~1{name}/delete", None, &["DELETE /things/{name}: removed"]);
    expect(&format!("{GET}/parameters/1"), None, &["GET /things/{name}: query parameter order: removed"]);
    expect(
        &format!("{GET}/operationId"),
        Some(json!("read_thing")),
        &["GET /things/{name}: operationId is \"read_thing\" now"],
    );
}

#[test]
fn removed_answer_or_part_of_one_breaks() {
    let answer = format!("{PUT}/responses/200");
    expect(&answer, None, &["PUT /things/{name} answer 200: removed"]);
    expect(&format!("{GET}/responses/404"), None, &[]);
    expect(&format!("{answer}/headers/ETag"), None, &["PUT /things/{name} answer 200: header ETag removed"]);
    expect(
        &format!("{answer}/content/application~1json"),
        None,
        &["PUT /things/{name} answer 200 application/json: removed"],
    );
    expect(&format!("{SCHEMAS}/Named/properties/name"), None, &["answer View.name: removed"]);
    expect(&format!("{SCHEMAS}/ByUser/properties/uid"), None, &["answer ByUser.uid: removed"]);
}

#[test]
fn answer_that_may_be_other_breaks() {
    let named = format!("{SCHEMAS}/Named");
    expect(&format!("{named}/required/0"), None, &["answer View.name: may be left out now"]);
    let nullable = json!({"type": ["string", "null"]});
    expect(&format!("{named}/properties/name"), Some(nullable), &["answer View.name: may be null now"]);
    let number = json!({"type": "integer"});
    expect(&format!("{named}/properties/name"), Some(number), &["answer View.name: may be integer now"]);
    expect(
        &format!("{SCHEMAS}/ByUser/properties/uid/format"),
        Some(json!("int32")),
        &["answer ByUser.uid: format changed"],
    );
}

#[test]
fn new_requirement_of_request_breaks() {
    let spec = format!("{SCHEMAS}/Spec");
    expect(&format!("{spec}/required/-"), Some(json!("size")), &["request Spec.size: required now"]);
    let parameter = json!({"name": "filter", "in": "query", "required": true, "schema": {"type": "string"}});
    expect(
        &format!("{GET}/parameters/-"),
        Some(parameter),
        &["GET /things/{name}: query parameter filter: required now"],
    );
    expect(
        &format!("{GET}/parameters/1/required"),
        Some(json!(true)),
        &["GET /things/{name}: query parameter order: required now"],
    );
    let found = changes(|document| {
        document["components"]["schemas"]["Spec"]["properties"]["owner"] = json!({"type": "string"});
        document["components"]["schemas"]["Spec"]["required"] = json!(["daemon", "owner"]);
    });
    assert_eq!(found, BTreeSet::from(["request Spec.owner: required now".to_owned()]));
}

#[test]
fn request_that_takes_less_breaks() {
    let spec = format!("{SCHEMAS}/Spec/properties");
    expect(&format!("{spec}/note"), None, &["request Spec.note: removed"]);
    expect(&format!("{spec}/note/type/1"), None, &["request Spec.note: null is refused now"]);
    expect(&format!("{spec}/size/oneOf/1"), None, &["request Spec.size: string is refused now"]);
    expect(&format!("{spec}/step/oneOf/1"), None, &["request Spec.step: Remove is refused now"]);
    expect(&format!("{spec}/size/oneOf/0/minimum"), Some(json!(2)), &["request Spec.size: minimum is 2 now"]);
    expect(
        &format!("{spec}/daemon/maxLength"),
        Some(json!(62)),
        &["request Spec.daemon: maxLength is 62 now"],
    );
    expect(&format!("{spec}/daemon/pattern"), Some(json!("^a")), &["request Spec.daemon: pattern changed"]);
    expect(
        &format!("{spec}/daemon/enum"),
        Some(json!(["gpu0"])),
        &["request Spec.daemon: takes only some values now"],
    );
    expect(&format!("{SCHEMAS}/Mode/enum/1"), None, &["request Mode: \"alone\" is refused now"]);
    expect(
        &format!("{GET}/parameters/1/schema/enum/0"),
        None,
        &["GET /things/{name}: query parameter order: \"up\" is refused now"],
    );
    expect(
        &format!("{PUT}/requestBody/content/application~1json"),
        None,
        &["PUT /things/{name} request application/json: removed"],
    );
    expect(
        &format!("{SCHEMAS}/Add/additionalProperties"),
        Some(json!(false)),
        &["request Add: unknown fields are refused now"],
    );
}

#[test]
fn additions_break_nothing() {
    let text = json!({"type": "string"});
    let operation = json!({"operationId": "list_things", "responses": {"200": {"description": "All."}}});
    for (pointer, value) in [
        ("/paths/~1things".to_owned(), json!({"get": operation})),
        ("/paths/~1health/put".to_owned(), operation),
        (format!("{GET}/parameters/-"), json!({"name": "filter", "in": "query", "schema": text})),
        (format!("{PUT}/responses/201"), json!({"description": "Created."})),
        (format!("{PUT}/requestBody/required"), json!(false)),
        (format!("{PUT}/requestBody/content/text~1plain"), json!({"schema": text})),
        (format!("{SCHEMAS}/Mode/enum/-"), json!("observed")),
        (format!("{SCHEMAS}/Spec/properties/owner"), text.clone()),
        (format!("{SCHEMAS}/Spec/required"), json!([])),
        (format!("{SCHEMAS}/Spec/properties/daemon/maxLength"), json!(100)),
        (format!("{SCHEMAS}/Spec/properties/daemon/type"), json!(["string", "null"])),
        (format!("{SCHEMAS}/Spec/properties/step/oneOf/-"), json!({"$ref": "#/components/schemas/Mode"})),
        (format!("{SCHEMAS}/Spec/additionalProperties"), json!(true)),
        (format!("{SCHEMAS}/Named/properties/owner"), text.clone()),
        (format!("{SCHEMAS}/Named/required/-"), json!("owner")),
        (format!("{SCHEMAS}/ByUser/properties/by/description"), text),
    ] {
        expect(&pointer, Some(value), &[]);
    }
    // A cause that can be another one too.
    let found = changes(|document| {
        let schemas = &mut document["components"]["schemas"];
        schemas["ByHost"] =
            json!({"type": "object", "properties": {"by": {"type": "string", "enum": ["host"]}}});
        let causes = &mut schemas["View"]["allOf"][1]["properties"]["cause"]["oneOf"];
        causes.as_array_mut().expect("variants").push(json!({"$ref": "#/components/schemas/ByHost"}));
    });
    assert_eq!(found, BTreeSet::new());
}

#[test]
fn schema_may_get_another_name() {
    let found = changes(|document| {
        let text = document.to_string().replace("schemas/ByUser", "schemas/ByPerson");
        *document = serde_json::from_str(&text).expect("JSON");
        let schemas = document["components"]["schemas"].as_object_mut().expect("schemas");
        let mut schema = schemas.remove("ByUser").expect("a schema");
        schema["properties"].as_object_mut().expect("fields").remove("uid");
        schemas.insert("ByPerson".to_owned(), schema);
    });
    assert_eq!(found, BTreeSet::from(["answer ByUser.uid: removed".to_owned()]));
}

#[test]
fn accepted_changes_are_explained_and_there() {
    let changes = BTreeSet::from(["a: removed".to_owned(), "b: removed".to_owned()]);
    let accepted = |rows: &[(&str, &str)]| {
        let rows = rows.iter().map(|(change, reason)| ((*change).to_owned(), (*reason).to_owned()));
        objections(&changes, &rows.collect())
    };
    assert_eq!(accepted(&[("a: removed", "never worked"), ("b: removed", "nor this")]), Vec::<String>::new());
    assert_eq!(accepted(&[("a: removed", "never worked")]), ["breaks clients: \"b: removed\""]);
    assert_eq!(
        accepted(&[("a: removed", " "), ("b: removed", "why"), ("c: removed", "why")]),
        ["is accepted and no change: \"c: removed\"", "is accepted without a reason: \"a: removed\""]
    );
}
