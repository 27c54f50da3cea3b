//! What a merge patch may hold: the fields of its spec, each of which may be `null`, and none of which has to be there.

use serde_json::{Map, Value, json};

use super::not_null;

/// The operations that take patches: their path and method in the document, the patch, and what it is of.
const PATCHES: [(&str, &str, &str); 2] = [
    ("/paths/~1api~1v1~1daemons~1{name}/patch", "DaemonPatch", "DaemonSpec"),
    ("/paths/~1api~1v1~1tenants~1{name}/patch", "TenantPatch", "TenantSpec"),
];

/// Gives each patch a schema of its own.
pub(super) fn of_specs(document: &mut Value) {
    for (operation, patch, spec) in PATCHES {
        let fields = document.pointer(&format!("/components/schemas/{spec}/properties"));
        let fields = fields.and_then(Value::as_object).unwrap_or_else(|| panic!("{spec} has fields"));
        let nullable: Map<String, Value> =
            fields.iter().map(|(name, field)| (name.clone(), or_null(field))).collect();
        let schema = json!({
            "type": "object",
            "description": "The fields that change; `null` gives one its default.",
            "properties": nullable,
            "additionalProperties": false,
        });
        document["components"]["schemas"][patch] = schema;
        let body = document.pointer_mut(&format!("{operation}/requestBody/content")).expect("a body");
        body["application/merge-patch+json"]["schema"] =
            json!({"$ref": format!("#/components/schemas/{patch}")});
    }
    let schemas = document["components"]["schemas"].as_object_mut().expect("schemas");
    schemas.remove("MergePatch");
}

/// A field that may also be `null`.
fn or_null(field: &Value) -> Value {
    let mut field = field.clone();
    if let Some(fields) = field.as_object_mut() {
        fields.remove("default");
    }
    let types: Vec<Value> = match &field["type"] {
        Value::Array(several) => several.clone(),
        Value::Null => Vec::new(),
        only => vec![only.clone()],
    };
    if not_null(&field) != field {
        return field;
    }
    if types.is_empty() || field.get("enum").is_some() {
        let mut of_value = field;
        let description = of_value.as_object_mut().and_then(|fields| fields.remove("description"));
        let mut either = json!({"oneOf": [of_value, {"type": "null"}]});
        if let Some(description) = description {
            either["description"] = description;
        }
        return either;
    }
    field["type"] = types.into_iter().chain([json!("null")]).collect();
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_may_be_null_once() {
        let name = json!({"$ref": "#/components/schemas/Name", "description": "Its name."});
        for (field, expected) in [
            (json!({"type": "integer", "default": 1}), json!({"type": ["integer", "null"]})),
            (json!({"type": ["string", "null"]}), json!({"type": ["string", "null"]})),
            (json!({"oneOf": [name, {"type": "null"}]}), json!({"oneOf": [name, {"type": "null"}]})),
            (
                name.clone(),
                json!({"oneOf": [{"$ref": "#/components/schemas/Name"}, {"type": "null"}], "description": "Its name."}),
            ),
        ] {
            assert_eq!(or_null(&field), expected, "{field}");
        }
    }
}
