//! The API's document for tests that read what each operation takes and answers.

use serde_json::{Map, Value};

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
