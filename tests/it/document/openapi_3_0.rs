//! The document as `OpenAPI` 3.0, for generators of clients that do not read 3.1.
//!
//! A pure transformation: 3.1 writes its schemas in JSON Schema 2020-12, 3.0 in its own dialect. What 3.0 cannot say (patterns
//! of the names of further fields) becomes an extension, and is checked by the server alone. Of a body in several forms JSON stays,
//! and an error that is no problem document may be of any type: generators for 3.0 take one form, and one type of error.

use serde_json::{Map, Value, json};

use super::METHODS;

const VERSION: &str = "3.0.3";
const JSON: &str = "application/json";

/// The 3.0 form of a 3.1 document.
pub fn openapi_3_0(document: &Value) -> Value {
    let mut document = document.clone();
    document["openapi"] = json!(VERSION);
    if let Some(license) = document.pointer_mut("/info/license").and_then(Value::as_object_mut)
        && let Some(Value::String(identifier)) = license.remove("identifier")
    {
        license.insert("url".into(), json!(format!("https://spdx.org/licenses/{identifier}.html")));
    }
    for field in ["webhooks", "jsonSchemaDialect"] {
        remove(&mut document, field);
    }
    if let Some(schemas) = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut) {
        schemas.values_mut().for_each(|one| *one = schema(one));
    }
    fields_mut(document.pointer_mut("/components/parameters")).for_each(described);
    fields_mut(document.pointer_mut("/components/headers")).for_each(described);
    fields_mut(document.pointer_mut("/components/responses")).for_each(change_response);
    for item in fields_mut(document.get_mut("paths")) {
        for method in METHODS {
            if let Some(operation) = item.get_mut(method) {
                change_operation(operation);
            }
        }
    }
    document
}

fn change_operation(operation: &mut Value) {
    for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
        described(parameter);
    }
    // Generators of the older form know no other type of JSON, and the server takes both.
    if let Some(media_types) = operation.pointer_mut("/requestBody/content").and_then(Value::as_object_mut)
        && let Some(patch) = media_types.remove("application/merge-patch+json")
    {
        media_types.insert("application/json".into(), patch);
    }
    contents(operation.pointer_mut("/requestBody"));
    let responses = operation.get_mut("responses").and_then(Value::as_object_mut);
    for (status, response) in responses.into_iter().flat_map(Map::iter_mut) {
        change_response(response);
        let content = response.get_mut("content").and_then(Value::as_object_mut);
        if let Some(content) = content.filter(|_| status.starts_with(['4', '5']))
            && let Some(other) = content.remove(JSON)
        {
            content.insert("*/*".into(), other);
        }
    }
}

fn change_response(response: &mut Value) {
    fields_mut(response.get_mut("headers")).for_each(described);
    contents(Some(response));
}

fn contents(of: Option<&mut Value>) {
    let Some(content) = of.and_then(|of| of.get_mut("content")).and_then(Value::as_object_mut) else {
        return;
    };
    if content.contains_key(JSON) {
        content.retain(|media_type, _| media_type == JSON);
    }
    content.values_mut().for_each(described);
}

/// A parameter, a header or a media type: what it is is in its schema.
fn described(one: &mut Value) {
    if let Some(inner) = one.get_mut("schema") {
        *inner = schema(inner);
    }
}

fn fields_mut(value: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    value.and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut)
}

fn remove(value: &mut Value, field: &str) -> Option<Value> {
    value.as_object_mut()?.remove(field)
}

/// A schema in the dialect of 3.0.
fn schema(old: &Value) -> Value {
    let Some(fields) = old.as_object() else {
        // `true` takes everything, and `false` nothing.
        return if old == &json!(false) { json!({"not": {}}) } else { json!({}) };
    };
    let mut new = Map::new();
    for (keyword, value) in fields {
        let value = match keyword.as_str() {
            "properties" => map(value, schema),
            "items" | "not" => schema(value),
            "additionalProperties" if value.is_object() => schema(value),
            "oneOf" | "anyOf" | "allOf" => list(value, schema),
            _ => value.clone(),
        };
        new.insert(keyword.clone(), value);
    }
    constants(&mut new);
    exclusive(&mut new, "minimum", "exclusiveMinimum");
    exclusive(&mut new, "maximum", "exclusiveMaximum");
    if let Some(names) = new.remove("propertyNames") {
        new.insert("x-property-names".into(), schema(&names));
    }
    if let Some(Value::Array(examples)) = new.get("examples").cloned() {
        new.remove("examples");
        if let Some(first) = examples.into_iter().next() {
            new.entry("example").or_insert(first);
        }
    }
    types(&mut new);
    without_null(&mut new);
    reference(new)
}

fn map(value: &Value, change: impl Fn(&Value) -> Value) -> Value {
    let fields = value.as_object().into_iter().flatten();
    Value::Object(fields.map(|(name, value)| (name.clone(), change(value))).collect())
}

fn list(value: &Value, change: impl Fn(&Value) -> Value) -> Value {
    Value::Array(value.as_array().into_iter().flatten().map(change).collect())
}

fn constants(schema: &mut Map<String, Value>) {
    if let Some(only) = schema.remove("const") {
        schema.insert("enum".into(), json!([only]));
    }
}

/// In 3.0 a bound is exclusive by a word beside it.
fn exclusive(schema: &mut Map<String, Value>, inclusive: &str, exclusive: &str) {
    if let Some(bound) = schema.get(exclusive).filter(|bound| bound.is_number()).cloned() {
        schema.insert(inclusive.to_owned(), bound);
        schema.insert(exclusive.to_owned(), json!(true));
    }
}

/// One type, and whether it may be `null`.
fn types(schema: &mut Map<String, Value>) {
    if schema.get("type") == Some(&json!("null")) {
        schema.remove("type");
        schema.insert("nullable".into(), json!(true));
        schema.insert("enum".into(), json!([null]));
        return;
    }
    let Some(Value::Array(types)) = schema.get("type").cloned() else { return };
    let (null, rest): (Vec<Value>, Vec<Value>) = types.into_iter().partition(|one| one == "null");
    schema.remove("type");
    if !null.is_empty() {
        schema.insert("nullable".into(), json!(true));
    }
    match rest.as_slice() {
        [only] => {
            schema.insert("type".into(), only.clone());
        }
        several => {
            let variants = several.iter().map(|one| json!({"type": one})).collect();
            schema.insert("anyOf".into(), Value::Array(variants));
        }
    }
}

/// A union with `null` is the rest of it, and nullable.
fn without_null(schema: &mut Map<String, Value>) {
    for keyword in ["oneOf", "anyOf"] {
        let Some(Value::Array(variants)) = schema.get(keyword).cloned() else { continue };
        let is_null = |one: &Value| one["enum"] == json!([null]);
        let rest: Vec<Value> = variants.iter().filter(|one| !is_null(one)).cloned().collect();
        if rest.len() == variants.len() {
            continue;
        }
        schema.remove(keyword);
        schema.insert("nullable".into(), json!(true));
        match rest.as_slice() {
            [Value::Object(only)] if !only.contains_key("$ref") => {
                for (name, value) in only {
                    schema.entry(name.clone()).or_insert_with(|| value.clone());
                }
            }
            [only] => {
                schema.insert("allOf".into(), json!([only]));
            }
            _ => {
                schema.insert(keyword.to_owned(), Value::Array(rest));
            }
        }
    }
}

/// In 3.0 nothing that stands beside a reference counts, so it goes around it.
fn reference(mut schema: Map<String, Value>) -> Value {
    if schema.len() > 1
        && let Some(target) = schema.remove("$ref")
    {
        schema.insert("allOf".into(), json!([{"$ref": target}]));
    }
    Value::Object(schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_written_in_the_older_dialect() {
        let target = "#/components/schemas/X";
        for (old, new) in [
            (
                json!({"type": ["string", "null"], "pattern": "a"}),
                json!({"type": "string", "nullable": true, "pattern": "a"}),
            ),
            (
                json!({"type": ["integer", "string"]}),
                json!({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
            ),
            (json!({"const": "a"}), json!({"enum": ["a"]})),
            (json!({"type": "null"}), json!({"nullable": true, "enum": [null]})),
            (
                json!({"type": "number", "exclusiveMinimum": 0, "maximum": 100}),
                json!({"type": "number", "minimum": 0, "exclusiveMinimum": true, "maximum": 100}),
            ),
            (json!({"examples": ["a", "b"]}), json!({"example": "a"})),
            (json!({"examples": [], "example": 3}), json!({"example": 3})),
            (json!({"$ref": target}), json!({"$ref": target})),
            (
                json!({"$ref": target, "description": "x"}),
                json!({"allOf": [{"$ref": target}], "description": "x"}),
            ),
            (
                json!({"oneOf": [{"type": "null"}, {"$ref": target}], "description": "x"}),
                json!({"allOf": [{"$ref": target}], "nullable": true, "description": "x"}),
            ),
            (
                json!({"oneOf": [{"type": "null"}, {"type": "array", "items": {"type": "string"}}]}),
                json!({"type": "array", "items": {"type": "string"}, "nullable": true}),
            ),
            (
                json!({"anyOf": [{"type": "null"}, {"type": "string"}, {"type": "integer"}]}),
                json!({"anyOf": [{"type": "string"}, {"type": "integer"}], "nullable": true}),
            ),
            (
                json!({"additionalProperties": {"const": 1}, "propertyNames": {"const": "a"}}),
                json!({"additionalProperties": {"enum": [1]}, "x-property-names": {"enum": ["a"]}}),
            ),
            (
                json!({"items": true, "additionalProperties": false}),
                json!({"items": {}, "additionalProperties": false}),
            ),
        ] {
            assert_eq!(schema(&old), new, "{old}");
        }
    }

    #[test]
    fn fields_named_like_keywords_stay() {
        let old = json!({"type": "object", "required": ["type"], "properties": {
            "type": {"type": "string"}, "const": {"type": "integer"}, "examples": {"type": ["boolean", "null"]},
        }});
        let new = schema(&old);
        assert_eq!(new["required"], json!(["type"]));
        assert_eq!(new["properties"]["type"], json!({"type": "string"}));
        assert_eq!(new["properties"]["const"], json!({"type": "integer"}));
        assert_eq!(new["properties"]["examples"], json!({"type": "boolean", "nullable": true}));
    }

    #[test]
    fn a_whole_document_is_transformed() {
        let nullable = json!({"type": ["string", "null"]});
        let content = json!({"application/json": {"schema": nullable}, "application/yaml": {"schema": {}}});
        let old = json!({
            "openapi": "3.1.0",
            "info": {"title": "t", "version": "1", "license": {"name": "MIT", "identifier": "MIT"}},
            "webhooks": {},
            "paths": {"/x": {"put": {
                "parameters": [{"name": "a", "in": "query", "schema": nullable}],
                "requestBody": {"content": content},
                "responses": {"200": {"description": "d", "content": content, "headers": {"E": {"schema": nullable}}},
                    "503": {"description": "d", "content": content}},
            }}},
            "components": {"schemas": {"X": nullable}, "parameters": {"P": {"schema": nullable}},
                "responses": {"R": {"content": content}}},
        });
        let new = openapi_3_0(&old);
        let text = new.to_string();
        assert!(
            !text.contains("\"null\"") && !text.contains("webhooks") && !text.contains("identifier"),
            "{text}"
        );
        assert_eq!(text.matches("\"nullable\":true").count(), 8, "{text}");
        assert!(!text.contains("yaml"), "{text}");
        assert!(new["paths"]["/x"]["put"]["responses"]["503"]["content"]["*/*"].is_object(), "{text}");
        assert_eq!(new["openapi"], VERSION);
        assert_eq!(new["info"]["license"]["url"], "https://spdx.org/licenses/MIT.html");
    }
}
