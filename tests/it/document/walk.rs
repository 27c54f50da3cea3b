//! Ways through a document.

use serde_json::{Map, Value};

/// The methods of operations, in the order in which a reader looks for them.
pub const METHODS: [&str; 5] = ["get", "put", "patch", "post", "delete"];

/// Calls a function with each operation: its method, its path and what the document has on it.
pub(super) fn for_each_operation(document: &mut Value, mut change: impl FnMut(&str, &str, &mut Value)) {
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    for (path, item) in paths.into_iter().flat_map(Map::iter_mut) {
        for method in METHODS {
            if let Some(operation) = item.get_mut(method) {
                change(method, path, operation);
            }
        }
    }
}

/// A value that may be missing, without `null`: a parameter, or a field that is left out.
pub(super) fn not_null(schema: &Value) -> Value {
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
