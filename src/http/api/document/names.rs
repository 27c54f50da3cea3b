//! Names of schemas as generated clients show them.
//!
//! In the code a module says what a type is of; in a generated client every type stands alone. Generics have no names there, and
//! a number needs none.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

const SCHEMAS: &str = "#/components/schemas/";

/// Types that are called otherwise in the document than in the code.
const NAMES: [(&str, &str); 45] = [
    // A spec as it is written, with GPUs by any of their names, and as it is answered, with everything resolved.
    ("DaemonSpec_GpuRef", "DaemonSpec"),
    ("DaemonSpec", "ResolvedDaemonSpec"),
    ("TenantSpec_GpuRef", "TenantSpec"),
    ("TenantSpec", "ResolvedTenantSpec"),
    ("Action", "PartitionAction"),
    ("Assertion", "LayoutAssertion"),
    ("BlockedOutlook", "LayoutObstacle"),
    ("Cause", "LayoutFailureCause"),
    ("Change", "PartitionChange"),
    ("Chunks", "ChunkCounts"),
    ("Defaults", "DaemonDefaults"),
    ("Degraded", "DegradedPartition"),
    ("Difference", "FingerprintDifference"),
    ("DifferenceKind", "LayoutDifferenceKind"),
    ("Document", "LayoutDocument"),
    ("Drifted", "DriftedSetting"),
    ("Effective", "DaemonEffective"),
    ("Entry", "LayoutDocumentEntry"),
    ("Fingerprint", "HardwareFingerprint"),
    ("Holder", "DeviceHolder"),
    ("Isolation", "DaemonIsolation"),
    ("KnownFrom", "DriftSource"),
    ("List_Version", "LayoutVersionList"),
    ("Listening", "HostListening"),
    ("Mode", "DaemonMode"),
    ("OnTimeout", "DrainTimeoutAction"),
    ("Phase", "DaemonPhase"),
    ("Predecessor", "PreviousManager"),
    ("Provenance", "LayoutProvenance"),
    ("ReadOnly", "ReadOnlyReason"),
    ("Reason", "PlannedStepReason"),
    ("Recorded", "RecordedLayout"),
    ("Replacement", "GpuReplacement"),
    ("Script", "LayoutScript"),
    ("Server", "MpsServer"),
    ("Severity", "EventSeverity"),
    ("Share", "PartitionShare"),
    ("Staleness", "VerificationStaleness"),
    ("Step", "OperationStep"),
    ("StepOutlook", "LayoutPlanStep"),
    ("Taken", "ExecutedStep"),
    ("Verdict", "ReplayVerdict"),
    ("VerdictView", "ActionVerdict"),
    ("Version", "LayoutVersion"),
    ("Waiting", "WaitingUser"),
];

/// What a schema of the code is called in the document.
pub(super) fn wire_name(name: &str) -> String {
    if let Some((_, wire)) = NAMES.iter().find(|(code, _)| *code == name) {
        return (*wire).to_owned();
    }
    match name.strip_prefix("List_") {
        Some(item) => format!("{}List", item.strip_suffix("View").unwrap_or(item)),
        None => name.to_owned(),
    }
}

/// Whether a schema is a type of the language: it stands for itself wherever it is named.
fn is_primitive(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
}

/// Gives the schemas of a document their names, and puts those that need none where they are used.
pub(super) fn rename(document: &mut Value) {
    let Some(schemas) = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut) else {
        return;
    };
    let (inlined, named): (Vec<_>, Vec<_>) =
        std::mem::take(schemas).into_iter().partition(|(name, _)| is_primitive(name));
    schemas.extend(named.into_iter().map(|(name, schema)| (wire_name(&name), schema)));
    let inlined: BTreeMap<String, Value> = inlined.into_iter().collect();
    follow(document, &inlined);
}

fn follow(value: &mut Value, inlined: &BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            let named = fields.get("$ref").and_then(Value::as_str).and_then(|at| at.strip_prefix(SCHEMAS));
            if let Some(name) = named.map(str::to_owned) {
                match inlined.get(&name).and_then(Value::as_object) {
                    Some(schema) => inline(fields, schema),
                    None => {
                        fields.insert("$ref".into(), format!("{SCHEMAS}{}", wire_name(&name)).into());
                    }
                }
            }
            fields.values_mut().for_each(|field| follow(field, inlined));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| follow(item, inlined)),
        _ => {}
    }
}

/// What is said beside the reference counts before what the schema says of itself.
fn inline(fields: &mut Map<String, Value>, schema: &Map<String, Value>) {
    fields.remove("$ref");
    for (keyword, value) in schema {
        fields.entry(keyword.clone()).or_insert_with(|| value.clone());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_follow_their_schemas() {
        let mut document = json!({
            "paths": {"/x": {"$ref": "#/components/schemas/TenantSpec_GpuRef"}},
            "components": {"schemas": {
                "TenantSpec_GpuRef": {"properties": {
                    "uid": {"$ref": "#/components/schemas/u32", "description": "The user."},
                    "all": {"$ref": "#/components/schemas/List_TenantView"},
                }},
                "TenantSpec": {}, "List_TenantView": {}, "Problem": {},
                "u32": {"type": "integer", "minimum": 0, "description": "A number."},
            }},
        });
        rename(&mut document);
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        let names: Vec<&str> = schemas.keys().map(String::as_str).collect();
        assert_eq!(names, ["Problem", "ResolvedTenantSpec", "TenantList", "TenantSpec"]);
        assert_eq!(document["paths"]["/x"]["$ref"], "#/components/schemas/TenantSpec");
        let spec = &schemas["TenantSpec"]["properties"];
        assert_eq!(spec["all"]["$ref"], "#/components/schemas/TenantList");
        assert_eq!(spec["uid"], json!({"type": "integer", "minimum": 0, "description": "The user."}));
    }
}
