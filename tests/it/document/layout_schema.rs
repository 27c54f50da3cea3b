//! The JSON Schema of layout documents, made of the same types that read them.

use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::unions;
use mps_manager::domain::layout::document::Document;

#[derive(OpenApi)]
#[openapi(components(schemas(Document)))]
struct Schemas;

/// What an OpenAPI document calls a schema, and what a JSON Schema calls it.
const COMPONENTS: &str = "#/components/schemas/";
const DEFINITIONS: &str = "#/$defs/";

/// The schema of a layout document, self-contained: JSON Schema 2020-12, which is what OpenAPI 3.1 writes its schemas in.
pub fn layout_document_schema() -> Value {
    schema_of(&Schemas::openapi(), "Document", "layouts", "Partition layouts of mps-manager")
}

/// The schema of a document with this root, from the components of an OpenAPI document.
pub(super) fn schema_of(document: &utoipa::openapi::OpenApi, root: &str, id: &str, title: &str) -> Value {
    let document = serde_json::to_value(document).expect("an OpenAPI document is JSON");
    let schemas = document.pointer("/components/schemas").and_then(Value::as_object).cloned();
    let mut definitions = schemas.expect("the document has the schema it was made of");
    unions::name_variants(&mut definitions);
    let root = definitions.remove(root).expect("the requested schema");
    let mut schema = Map::from_iter([
        ("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema")),
        ("$id".to_owned(), json!(format!("urn:mps-manager:{id}:v1"))),
        ("title".to_owned(), json!(title)),
    ]);
    schema.extend(root.as_object().cloned().expect("a document is an object"));
    schema.insert("$defs".to_owned(), Value::Object(definitions));
    let mut schema = Value::Object(schema);
    point_inside(&mut schema);
    schema
}

fn point_inside(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get_mut("$ref")
                && let Some(name) = reference.strip_prefix(COMPONENTS)
            {
                *reference = format!("{DEFINITIONS}{name}");
            }
            fields.values_mut().for_each(point_inside);
        }
        Value::Array(items) => items.iter_mut().for_each(point_inside),
        _ => {}
    }
}
