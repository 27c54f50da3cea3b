//! The JSON Schema of host files, made of the same types that read them.

use serde_json::{Value, json};
use utoipa::OpenApi;

use super::layout_schema::schema_of;
use crate::domain::host_file::HostFile;

#[derive(OpenApi)]
#[openapi(components(schemas(HostFile)))]
struct Schemas;

/// The schema of a host file, self-contained: JSON Schema 2020-12.
pub fn host_file_schema() -> Value {
    let mut schema = schema_of(&Schemas::openapi(), "HostFile", "host", "Host files of mps-manager");
    // What a host file has elsewhere or not at all, though the types that it is made of do.
    for (definition, field) in [("DaemonSpec_GpuRef", "layout"), ("DocumentLayout", "recorded")] {
        let fields =
            schema.pointer_mut(&format!("/$defs/{definition}/properties")).and_then(Value::as_object_mut);
        fields.and_then(|fields| fields.remove(field)).expect("the definition has the field");
    }
    let definitions = schema["$defs"].as_object_mut().expect("definitions");
    for unused in ["ActiveLayout", "Recorded", "PartitionShare", "Fingerprint", "Provenance"] {
        definitions.remove(unused);
    }
    // YAML has no quotes around an index.
    let gpu = definitions.get_mut("GpuRef").expect("the definition of a GPU");
    gpu["type"] = json!(["string", "integer"]);
    gpu["minimum"] = json!(0);
    schema
}
