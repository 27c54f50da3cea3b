//! The JSON Schema of host files, made of the same types that read them.

use serde_json::{Value, json};
use utoipa::OpenApi;

use super::layout_schema::schema_of;
use mps_manager::domain::gpu::GpuRef;
use mps_manager::domain::host_file::HostFile;

#[derive(OpenApi)]
#[openapi(components(schemas(HostFile, GpuRef)))]
struct HostFileSchemas;

/// The schema of a host file, self-contained: JSON Schema 2020-12.
pub fn host_file_schema() -> Value {
    let mut schema = schema_of(&HostFileSchemas::openapi(), "HostFile", "host", "Host files of mps-manager");
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
    // YAML needs no quotes around an index.
    let gpu = definitions.get("GpuRef").cloned().expect("the definition of a GPU");
    let of_any_type = |gpu: &Value| {
        let mut gpu = gpu.clone();
        gpu["type"] = json!(["string", "integer"]);
        gpu["minimum"] = json!(0);
        gpu
    };
    replace(&mut schema, &gpu, &of_any_type(&gpu));
    schema
}

/// Replaces one schema by another wherever it stands.
fn replace(value: &mut Value, from: &Value, to: &Value) {
    if value == from {
        *value = to.clone();
        return;
    }
    match value {
        Value::Object(fields) => fields.values_mut().for_each(|value| replace(value, from, to)),
        Value::Array(items) => items.iter_mut().for_each(|value| replace(value, from, to)),
        _ => {}
    }
}
