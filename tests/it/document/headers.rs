//! Headers and links of answers.

use serde_json::{Map, Value, json};

const LOCATION: &str = "The path of the resource that shows the progress.";

/// The entity tag of an answer that shows nothing with a revision, for these conditions.
pub(super) fn of_content(conditions: &str, is_required: bool) -> Value {
    json!({
        "description": format!("The entity tag of all of it, for {conditions}."),
        "required": is_required,
        "schema": {"type": "string", "pattern": "^\"[0-9a-f]{16}\"$", "examples": ["\"0123456789abcdef\""]},
    })
}

/// The answer to a read of what has not changed.
pub(super) fn not_modified() -> Value {
    json!({
        "description": "Nothing changed since the read that gave the entity tag.",
        "headers": {"ETag": {
            "description": "The entity tag.",
            "required": true,
            "schema": {"type": "string", "pattern": "^\"([0-9]+-)?[0-9a-f]{16}\"$", "examples": ["\"0123456789abcdef\""]},
        }},
    })
}

/// Describes the entity tags of answers, and says where an accepted action can be followed.
pub(super) fn add(method: &str, operation: &mut Value) {
    let can_be_dry_run =
        operation["parameters"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == "dry_run"));
    // The only resource without a generation of its own: its tag is of the content alone.
    let is_host_file = operation["operationId"].as_str().is_some_and(|id| id.ends_with("_host_spec"));
    let responses = operation.get_mut("responses").and_then(Value::as_object_mut);
    for (status, response) in responses.into_iter().flat_map(Map::iter_mut) {
        match response.pointer_mut("/headers/ETag") {
            Some(tag) if is_host_file => *tag = of_content("`If-Match` and `If-None-Match`", true),
            Some(tag) if tag["schema"]["pattern"].is_null() && tag["$ref"].is_null() => {
                *tag = etag(method == "get", can_be_dry_run && status == "200");
            }
            _ => {}
        }
        if status == "202" {
            response["headers"]["Location"] =
                json!({"description": LOCATION, "required": true, "schema": {"type": "string"}});
        }
    }
}

fn etag(of_read: bool, may_be_of_dry_run: bool) -> Value {
    let more = if may_be_of_dry_run && !of_read { " A dry run has none." } else { "" };
    json!({
        "description": format!(
            "The entity tag: `If-None-Match` of a later read compares all of it, `If-Match` of a later write its revision only.{more}"
        ),
        "required": !may_be_of_dry_run,
        "schema": {"type": "string", "pattern": "^\"[0-9]+-[0-9a-f]{16}\"$", "examples": ["\"3-0123456789abcdef\""]},
    })
}

/// Links an accepted action to its operation, and a resource to the requests about it.
pub(super) fn links(operation: &mut Value) {
    let of_name =
        |id: &str| (id.to_owned(), json!({"operationId": id, "parameters": {"name": "$request.path.name"}}));
    let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
    let requests: &[&str] = match id.as_str() {
        "put_tenant" => &["get_tenant", "get_tenant_environment", "list_tenant_clients", "delete_tenant"],
        "put_daemon" | "adopt_daemon" => {
            &["get_daemon", "cordon_daemon", "uncordon_daemon", "list_partitions", "delete_daemon"]
        }
        "put_layout" => &["get_layout", "list_layout_versions", "delete_layout"],
        _ => &[],
    };
    let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else { return };
    for status in ["200", "201"] {
        if let Some(response) = responses.get_mut(status).filter(|_| !requests.is_empty()) {
            let links: Map<String, Value> = requests.iter().map(|id| of_name(id)).collect();
            response["links"] = Value::Object(links);
        }
    }
    if let Some(response) = responses.get_mut("202") {
        if id == "verify_tenant" {
            response["links"] = Value::Object(Map::from_iter([of_name("get_tenant")]));
            return;
        }
        let place = if id == "create_replay" { "$response.body#/operation/id" } else { "$response.body#/id" };
        response["links"] = json!({
            "get_operation": {"operationId": "get_operation", "parameters": {"id": place}},
        });
        if id == "create_replay" {
            response["links"]["get_replay"] =
                json!({"operationId": "get_replay", "parameters": {"id": "$response.body#/replay"}});
        }
    }
}
