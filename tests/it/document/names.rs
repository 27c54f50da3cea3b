//! Names of schemas as generated clients show them.
//!
//! In the code the module says what a type belongs to; in a generated client every type stands alone. Generics have no names there,
//! and a number needs none.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

const SCHEMAS: &str = "#/components/schemas/";
/// What the name of a list begins with, before that of its items.
const LIST: &str = "List_";

/// Types whose name in the document differs from the one in the code.
const NAMES: &[(&str, &str)] = &[
    // A spec in requests, where a GPU can be named in several ways, and in answers, where it is resolved.
    ("DaemonSpec_GpuRef", "DaemonSpec"),
    ("DaemonSpec", "ResolvedDaemonSpec"),
    ("TenantSpec_GpuRef", "TenantSpec"),
    ("TenantSpec", "ResolvedTenantSpec"),
    ("AcknowledgeRequest", "AcknowledgeIncidentRequest"),
    ("Acknowledgement", "IncidentAcknowledgement"),
    ("Action", "PartitionAction"),
    ("AdoptRequest", "AdoptDaemonRequest"),
    ("AdoptionView", "AdoptionOptions"),
    ("ApplyRequest", "ApplyLayoutRequest"),
    ("Assertion", "LayoutAssertion"),
    ("AttributedBy", "ClientAttribution"),
    ("Chunks", "ChunkCounts"),
    ("ComparisonVerdict", "SettingVerdict"),
    ("ConfirmRequest", "ConfirmHostRequest"),
    ("Defaults", "DaemonDefaults"),
    ("Degraded", "DegradedPartition"),
    ("DesiredState", "DesiredDaemonState"),
    ("DifferenceKind", "LayoutDifferenceKind"),
    ("Document", "LayoutDocument"),
    ("DriftSeen", "PartitionDriftHistory"),
    ("Drifted", "DriftedSetting"),
    ("Effective", "DaemonEffective"),
    ("Enforcement", "LayoutEnforcement"),
    ("Entry", "LayoutDocumentEntry"),
    ("FaultHolder", "FaultedClient"),
    ("Evidence", "FaultEvidence"),
    ("EvidenceKind", "FaultEvidenceKind"),
    ("EvidenceWorth", "FaultEvidenceWorth"),
    ("Fingerprint", "HardwareFingerprint"),
    ("HeldLease", "Lease"),
    ("Isolation", "DaemonIsolation"),
    ("KnownFrom", "EventObservation"),
    ("LeaseView", "GrantedLease"),
    ("List_Version", "LayoutVersionList"),
    ("Management", "DaemonManagement"),
    ("Measure", "HistoryMeasure"),
    ("Mode", "DaemonMode"),
    ("NewToken", "CreatedToken"),
    ("NotReady", "DaemonNotReady"),
    ("BlockerCode", "VerificationBlockerCode"),
    ("OnTimeout", "DrainTimeoutAction"),
    ("Phase", "DaemonPhase"),
    ("Predecessor", "PreviousManager"),
    ("Priority", "ClientPriority"),
    ("Provenance", "LayoutProvenance"),
    ("Provisioning", "DaemonProvisioning"),
    ("ReadOnly", "ReadOnlyReason"),
    ("RankedClient", "IncidentClient"),
    ("Reason", "PlannedStepReason"),
    ("Recorded", "RecordedLayout"),
    ("ReplaceRequest", "ReplaceGpuRequest"),
    ("Replacement", "GpuReplacement"),
    ("Server", "MpsServer"),
    ("Severity", "EventSeverity"),
    ("Staleness", "VerificationStaleness"),
    ("Step", "OperationStep"),
    ("StoppedPolicy", "StoppedClientPolicy"),
    ("TenantMove", "TenantPartitionMove"),
    ("Verdict", "ReplayVerdict"),
    ("VerdictView", "ActionAvailability"),
    ("Version", "LayoutVersion"),
    ("Waiting", "WaitingUser"),
    ("WedgePolicy", "WedgedDaemonPolicy"),
];

/// The name in the document of a type in the code.
pub(super) fn wire_name(name: &str) -> String {
    if let Some((_, wire)) = NAMES.iter().find(|(code, _)| *code == name) {
        return (*wire).to_owned();
    }
    match name.strip_prefix(LIST) {
        Some(item) => format!("{}List", item.strip_suffix("View").unwrap_or(item)),
        None => name.to_owned(),
    }
}

/// Whether a schema is a primitive type, which needs no name.
fn is_primitive(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
}

/// Renames the schemas of a document, and inlines those that need no name.
pub(super) fn rename(document: &mut Value) {
    let Some(schemas) = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut) else {
        return;
    };
    list_items(schemas);
    let (inlined, named): (Vec<_>, Vec<_>) =
        std::mem::take(schemas).into_iter().partition(|(name, _)| is_primitive(name));
    schemas.extend(named.into_iter().map(|(name, schema)| (wire_name(&name), schema)));
    let inlined: BTreeMap<String, Value> = inlined.into_iter().collect();
    follow(document, &inlined);
}

/// A generic list holds the schema of its items; every list refers to that of its type instead.
fn list_items(schemas: &mut Map<String, Value>) {
    let lists: Vec<String> = schemas.keys().filter(|name| name.starts_with(LIST)).cloned().collect();
    for list in lists {
        let Some(items) = schemas[&list].pointer_mut("/properties/items/items") else { continue };
        let item = list.trim_start_matches(LIST);
        let reference = json!({"$ref": format!("{SCHEMAS}{item}")});
        let schema = std::mem::replace(items, reference);
        schemas.entry(item).or_insert(schema);
    }
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

/// A keyword beside the reference takes precedence over that of the schema.
fn inline(fields: &mut Map<String, Value>, schema: &Map<String, Value>) {
    fields.remove("$ref");
    for (keyword, value) in schema {
        fields.entry(keyword.clone()).or_insert_with(|| value.clone());
    }
}

#[cfg(test)]
mod tests {
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
                "TenantSpec": {}, "Problem": {},
                "List_TenantView": {"properties": {"items": {"type": "array", "items": {"type": "object"}}}},
                "u32": {"type": "integer", "minimum": 0, "description": "A number."},
            }},
        });
        rename(&mut document);
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        let names: Vec<&str> = schemas.keys().map(String::as_str).collect();
        assert_eq!(names, ["Problem", "ResolvedTenantSpec", "TenantList", "TenantSpec", "TenantView"]);
        assert_eq!(document["paths"]["/x"]["$ref"], "#/components/schemas/TenantSpec");
        let items = &schemas["TenantList"]["properties"]["items"]["items"];
        assert_eq!(*items, json!({"$ref": "#/components/schemas/TenantView"}));
        let spec = &schemas["TenantSpec"]["properties"];
        assert_eq!(spec["all"]["$ref"], "#/components/schemas/TenantList");
        assert_eq!(spec["uid"], json!({"type": "integer", "minimum": 0, "description": "The user."}));
    }
}
