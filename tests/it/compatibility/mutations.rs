//! The rules, proven by changes that break and by changes that do not.

use serde_json::{Value, json};

use super::current;
use super::rules::{broken, entries};

/// A document with one of everything that there is a rule for.
fn base() -> Value {
    json!({
        "security": [{"token": []}],
        "paths": {
            "/things/{name}": {
                "put": {
                    "operationId": "put_thing",
                    "parameters": [
                        {"in": "path", "name": "name", "required": true, "schema": {"type": "string", "maxLength": 64}},
                        {"in": "query", "name": "dry_run", "schema": {"type": "boolean", "default": false}},
                    ],
                    "requestBody": {"required": true, "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Spec"}},
                        "application/yaml": {"schema": {"type": "string"}},
                    }},
                    "responses": {
                        "200": {
                            "description": "done",
                            "headers": {"ETag": {"required": true, "schema": {"type": "string"}}},
                            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}},
                        },
                        "409": {"description": "no", "content": {"application/problem+json": {"schema": {"type": "object"}}}},
                    },
                },
                "get": {
                    "operationId": "get_thing",
                    "security": [{}],
                    "responses": {"200": {"description": "it"}},
                },
            },
        },
        "components": {"schemas": {
            "Spec": {
                "type": "object", "additionalProperties": false, "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1, "maximum": 10},
                    "label": {"type": ["string", "null"], "pattern": "^[a-z]+$", "maxLength": 9},
                    "mode": {"type": "string", "enum": ["a", "b"]},
                    "limit": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
                    "gpus": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                },
            },
            "Thing": {
                "type": "object", "required": ["size", "inner"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1, "maximum": 10},
                    "state": {"type": "string", "enum": ["on", "off"]},
                    "inner": {"$ref": "#/components/schemas/Inner"},
                    "event": {"oneOf": [
                        {"type": "object", "required": ["kind"], "properties": {"kind": {"type": "string", "enum": ["up"]}}},
                        {"type": "object", "required": ["kind"], "properties": {"kind": {"type": "string", "enum": ["down"]}}},
                    ]},
                },
            },
            "Inner": {
                "allOf": [
                    {"type": "object", "required": ["at"], "properties": {"at": {"type": "integer", "format": "int64"}}},
                    {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Inner"}}},
                ],
            },
        }},
    })
}

const PUT: &str = "/paths/~1things~1{name}/put";
const GET: &str = "/paths/~1things~1{name}/get";
const SPEC: &str = "/components/schemas/Spec";
const THING: &str = "/components/schemas/Thing";

/// The base with what stands at a pointer put, or taken away.
fn changed(pointer: &str, value: Option<Value>) -> Value {
    let mut document = base();
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    let key = key.replace("~1", "/");
    let parent = document.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer} leads nowhere"));
    match (parent, value) {
        (Value::Object(fields), Some(value)) => {
            fields.insert(key, value);
        }
        (Value::Object(fields), None) => {
            fields.remove(&key).unwrap_or_else(|| panic!("{pointer} is not there"));
        }
        (Value::Array(items), Some(value)) if key == "-" => items.push(value),
        (Value::Array(items), Some(value)) => items[key.parse::<usize>().expect("an index")] = value,
        (Value::Array(items), None) => {
            items.remove(key.parse().expect("an index"));
        }
        _ => panic!("{pointer} is in no container"),
    }
    document
}

#[test]
fn every_change_that_breaks_a_program_is_found() {
    let put = |rest: &str| format!("{PUT}/{rest}");
    let spec = |rest: &str| format!("{SPEC}/{rest}");
    let thing = |rest: &str| format!("{THING}/{rest}");
    let cases: Vec<(String, Option<Value>, &str)> = vec![
        // Operations.
        ("/paths/~1things~1{name}".into(), None, "the operation is gone"),
        (GET.into(), None, "GET /things/{name}: the operation is gone"),
        (put("operationId"), Some(json!("write_thing")), "operationId"),
        (format!("{GET}/security"), None, "it needs to be authorised now"),
        (put("security"), Some(json!([{"session": []}])), "authorisation by"),
        // Parameters.
        (put("parameters/1"), None, "query parameter dry_run is gone"),
        (put("parameters/1/required"), Some(json!(true)), "is required now"),
        (put("parameters/0/schema/maxLength"), Some(json!(63)), "maxLength 64 is now 63"),
        (put("parameters/1/schema/default"), Some(json!(true)), "default false is now true"),
        (
            put("parameters/-"),
            Some(json!({"in": "query", "name": "why", "required": true, "schema": {"type": "string"}})),
            "query parameter why is new and required",
        ),
        // Bodies.
        (put("requestBody"), None, "it takes no body any more"),
        (put("requestBody/content/application~1yaml"), None, "body application/yaml is not taken any more"),
        (
            format!("{GET}/requestBody"),
            Some(json!({"required": true, "content": {}})),
            "a body is required now",
        ),
        (spec("required"), Some(json!(["size", "mode"])), ".mode is required now"),
        (spec("properties/mode"), None, ".mode is gone"),
        (spec("properties/size/type"), Some(json!("string")), "type \"integer\" is now \"string\""),
        (spec("properties/size/minimum"), Some(json!(2)), "minimum 1 is now 2"),
        (spec("properties/size/maximum"), Some(json!(9)), "maximum 10 is now 9"),
        (spec("properties/size/multipleOf"), Some(json!(2)), "multipleOf"),
        (spec("properties/size/exclusiveMaximum"), Some(json!(8)), "exclusiveMaximum"),
        (spec("properties/label/type"), Some(json!("string")), "variant null is not taken as it was"),
        (spec("properties/label/pattern"), Some(json!("^[a-y]+$")), "variant string is not taken as it was"),
        (spec("properties/label/maxLength"), Some(json!(8)), "variant string is not taken as it was"),
        (spec("properties/mode/enum"), Some(json!(["a"])), "enum"),
        (spec("properties/mode/const"), Some(json!("a")), "enum"),
        (spec("properties/limit/oneOf/1"), None, "variant string is not taken as it was"),
        (spec("properties/gpus/minItems"), Some(json!(2)), "minItems 1 is now 2"),
        (spec("properties/gpus/items/enum"), Some(json!(["x"])), ".gpus[]: enum"),
        (spec("properties/labels/additionalProperties/maxLength"), Some(json!(5)), ".labels.*: maxLength"),
        (
            spec("properties/labels/additionalProperties"),
            Some(json!(false)),
            "unknown fields are refused now",
        ),
        (spec("not"), Some(json!({"required": ["mode"]})), "no rule says whether that breaks"),
        // Answers.
        (put("responses/200"), None, "answer 200 is gone"),
        (put("responses/202"), Some(json!({"description": "later"})), "answer 202 is new, and a success"),
        (put("responses/200/headers/ETag"), None, "header ETag is gone"),
        (put("responses/200/headers/ETag/required"), None, "header ETag may be missing now"),
        (put("responses/200/content/application~1json"), None, "answer 200 application/json is gone"),
        (put("responses/409/content/application~1problem+json"), None, "problem+json is gone"),
        (thing("required"), Some(json!(["inner"])), ".size may be missing now"),
        (thing("properties/state"), None, ".state is gone"),
        (thing("properties/size/type"), Some(json!("number")), "type \"integer\" is now \"number\""),
        (thing("properties/size/type"), Some(json!(["integer", "null"])), "variant null is new or wider"),
        (thing("properties/size/maximum"), Some(json!(11)), "maximum 10 is now 11"),
        (thing("properties/size/minimum"), None, "minimum 1 is now (none)"),
        (thing("properties/state/enum"), Some(json!(["on", "off", "half"])), "enum"),
        (thing("properties/state/enum"), None, "enum"),
        (
            thing("properties/event/oneOf/-"),
            Some(json!({"type": "object", "required": ["kind"],
                "properties": {"kind": {"type": "string", "enum": ["sideways"]}}})),
            "variant kind = \"sideways\" is new or wider",
        ),
        // Behind references and in what `allOf` puts together.
        (
            "/components/schemas/Inner/allOf/0/properties/at/format".into(),
            Some(json!("int32")),
            ".inner.at: format",
        ),
        (
            "/components/schemas/Inner/allOf/0/required".into(),
            Some(json!([])),
            ".inner.at may be missing now",
        ),
    ];
    for (pointer, value, says) in cases {
        let breaks = broken(&base(), &changed(&pointer, value.clone()));
        assert!(
            breaks.iter().any(|line| line.contains(says)),
            "{pointer} {value:?} should say {says:?}, and said {breaks:?}"
        );
    }
}

#[test]
fn what_only_adds_breaks_nothing() {
    let put = |rest: &str| format!("{PUT}/{rest}");
    let spec = |rest: &str| format!("{SPEC}/{rest}");
    let thing = |rest: &str| format!("{THING}/{rest}");
    let cases: Vec<(String, Option<Value>)> = vec![
        ("/paths/~1others".into(), Some(json!({"get": {"operationId": "list", "responses": {}}}))),
        (put("parameters/-"), Some(json!({"in": "query", "name": "why", "schema": {"type": "string"}}))),
        (put("parameters/0/schema/maxLength"), Some(json!(65))),
        (put("security"), Some(json!([{"token": []}, {"session": []}]))),
        (put("security"), Some(json!([{}]))),
        (put("requestBody/required"), Some(json!(false))),
        (put("requestBody/content/text~1csv"), Some(json!({"schema": {"type": "string"}}))),
        (put("responses/429"), Some(json!({"description": "slower"}))),
        (put("responses/409"), None),
        (put("responses/200/description"), Some(json!("all done"))),
        (spec("properties/new"), Some(json!({"type": "string"}))),
        (spec("required"), Some(json!([]))),
        (spec("additionalProperties"), Some(json!(true))),
        (spec("properties/size/maximum"), None),
        (spec("properties/size/type"), Some(json!("number"))),
        (spec("properties/mode/enum"), Some(json!(["a", "b", "c"]))),
        (spec("properties/limit/oneOf/-"), Some(json!({"type": "null"}))),
        (spec("properties/label/pattern"), None),
        (spec("description"), Some(json!("words"))),
        (thing("properties/new"), Some(json!({"type": "string"}))),
        (thing("required"), Some(json!(["size", "inner", "state"]))),
        (thing("properties/size/maximum"), Some(json!(9))),
        (thing("properties/state/enum"), Some(json!(["on"]))),
        (thing("properties/event/oneOf/0"), None),
    ];
    for (pointer, value) in cases {
        let breaks = broken(&base(), &changed(&pointer, value.clone()));
        assert!(breaks.is_empty(), "{pointer} {value:?}: {breaks:?}");
    }
    assert!(broken(&base(), &base()).is_empty());
}

#[test]
fn no_operation_can_go_without_being_missed() {
    let whole = current();
    assert!(broken(&whole, &whole).is_empty());
    let mut tried = 0;
    for (path, item) in entries(&whole["paths"]) {
        for (method, _) in entries(item) {
            let mut less = whole.clone();
            less["paths"][path].as_object_mut().expect("operations").remove(method);
            assert_eq!(broken(&whole, &less).len(), 1, "{method} {path}");
            tried += 1;
        }
    }
    assert!(tried > 50, "{tried}");
}

/// Each property of what is sent and answered, as the real document has them.
#[test]
fn no_required_field_of_an_answer_can_become_optional() {
    let whole = current();
    let mut found = 0;
    for name in ["TenantView", "DaemonView", "Operation", "Problem", "ClientView", "LayoutView", "GpuView"] {
        let required = whole["components"]["schemas"][name]["required"].as_array().expect("required fields");
        for field in required {
            let mut less = whole.clone();
            let list = less["components"]["schemas"][name]["required"].as_array_mut().expect("a list");
            list.retain(|other| other != field);
            let breaks = broken(&whole, &less);
            let says = format!(".{} may be missing now", field.as_str().expect("a name"));
            assert!(breaks.iter().any(|line| line.ends_with(&says)), "{name} {field}: {breaks:?}");
            found += 1;
        }
    }
    assert!(found > 30, "{found}");
}
