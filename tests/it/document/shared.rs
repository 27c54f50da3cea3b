//! Parameters that several operations take, once among the document's components.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::for_each_operation;
use super::unions::pascal;

/// How many operations take a parameter before it becomes a component: the reference takes lines, too.
const OPERATIONS: usize = 3;

/// Replaces parameters that are repeated by references.
pub(super) fn parameters(document: &mut Value) {
    let mut uses: BTreeMap<String, usize> = BTreeMap::new();
    for_each_operation(document, |_, _, operation| {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            *uses.entry(parameter.to_string()).or_default() += 1;
        }
    });
    let mut shared: Map<String, Value> = Map::new();
    for_each_operation(document, |_, _, operation| {
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for parameter in parameters.into_iter().flatten() {
            if uses.get(&parameter.to_string()).is_none_or(|uses| *uses < OPERATIONS) {
                continue;
            }
            let name = name(parameter);
            // Of two with one name the first is the component.
            if shared.entry(&name).or_insert_with(|| parameter.clone()) == parameter {
                *parameter = json!({"$ref": format!("#/components/parameters/{name}")});
            }
        }
    });
    document["components"]["parameters"] = Value::Object(shared);
}

/// What a parameter is called among the components: after its type where it is part of a path, and else after itself.
fn name(parameter: &Value) -> String {
    let name = parameter["name"].as_str().unwrap_or_default();
    let schema = parameter["schema"]["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
    match (parameter["in"].as_str(), schema) {
        (Some("path"), Some(schema)) => schema.to_owned(),
        // Of a write; that of a read takes entity tags.
        _ if name == "If-None-Match" && parameter["schema"].get("enum").is_some() => {
            "IfNoneExists".to_owned()
        }
        _ => pascal(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_parameters_become_components() {
        let flag = json!({"name": "dry_run", "in": "query", "description": "Try it."});
        let other = json!({"name": "dry_run", "in": "query", "description": "Another one."});
        let thing =
            json!({"name": "name", "in": "path", "schema": {"$ref": "#/components/schemas/ThingName"}});
        let operation = |parameters: &[&Value]| json!({"post": {"parameters": parameters}});
        let mut document = json!({"components": {}, "paths": {
            "/a": operation(&[&thing, &flag]), "/b": operation(&[&thing, &flag]), "/c": operation(&[&thing, &flag]),
            "/d": operation(&[&other]), "/e": operation(&[&other]), "/f": operation(&[&other]), "/g": {"get": {}},
        }});
        parameters(&mut document);
        let [thing_ref, flag_ref] =
            ["ThingName", "DryRun"].map(|name| json!({"$ref": format!("#/components/parameters/{name}")}));
        for path in ["/a", "/b", "/c"] {
            assert_eq!(document["paths"][path]["post"]["parameters"], json!([thing_ref, flag_ref]));
        }
        assert_eq!(document["paths"]["/d"]["post"]["parameters"], json!([other]));
        assert_eq!(document["components"]["parameters"], json!({"DryRun": flag, "ThingName": thing}));
    }
}
