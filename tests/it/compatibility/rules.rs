//! What of a newer document breaks a program that was written for an older one.
//!
//! Such a program sends what the older document allows, and understands what it promises. It ignores fields of answers
//! that it does not know, and takes an error that it does not know for one of its class.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::schemas::{Comparison, Direction};

const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

/// Each break in one line; empty where there is none.
pub(super) fn broken(old: &Value, new: &Value) -> Vec<String> {
    let mut comparison = Comparison::new(old, new);
    let mut found = Vec::new();
    for (path, item) in entries(&old["paths"]) {
        for method in METHODS {
            let Some(before) = item.get(method) else { continue };
            let name = format!("{} {path}", method.to_uppercase());
            match new["paths"].get(path).and_then(|item| item.get(method)) {
                None => found.push(format!("{name}: the operation is gone")),
                Some(after) => operation(&name, before, after, &mut comparison, &mut found),
            }
        }
    }
    found
}

fn operation(name: &str, old: &Value, new: &Value, comparison: &mut Comparison<'_>, found: &mut Vec<String>) {
    if old["operationId"] != new["operationId"] {
        found.push(format!("{name}: operationId {} is now {}", old["operationId"], new["operationId"]));
    }
    security(name, old, new, comparison, found);
    parameters(name, old, new, comparison, found);
    request_body(name, &old["requestBody"], &new["requestBody"], comparison, found);
    responses(name, &old["responses"], &new["responses"], comparison, found);
}

/// Whoever got in before still does: each alternative is still there.
fn security(name: &str, old: &Value, new: &Value, comparison: &Comparison<'_>, found: &mut Vec<String>) {
    let alternatives = |operation: &Value, document: &Value| -> BTreeSet<String> {
        let own = operation.get("security").or_else(|| document.get("security"));
        own.and_then(Value::as_array).into_iter().flatten().map(ToString::to_string).collect()
    };
    let before = alternatives(old, comparison.old);
    let after = alternatives(new, comparison.new);
    let open = |alternatives: &BTreeSet<String>| alternatives.is_empty() || alternatives.contains("{}");
    if open(&after) {
        return;
    }
    if open(&before) {
        found.push(format!("{name}: it needs to be authorised now"));
        return;
    }
    for gone in before.difference(&after) {
        found.push(format!("{name}: authorisation by {gone} is gone"));
    }
}

fn parameters(
    name: &str,
    old: &Value,
    new: &Value,
    comparison: &mut Comparison<'_>,
    found: &mut Vec<String>,
) {
    let list = |operation: &Value| operation["parameters"].as_array().cloned().unwrap_or_default();
    let (before, after) = (list(old), list(new));
    let same = |a: &Value, b: &Value| a["in"] == b["in"] && a["name"] == b["name"];
    for parameter in &before {
        let at = format!("{name}: {} parameter {}", text(&parameter["in"]), text(&parameter["name"]));
        let Some(now) = after.iter().find(|other| same(parameter, other)) else {
            found.push(format!("{at} is gone"));
            continue;
        };
        if now["required"] == true && parameter["required"] != true {
            found.push(format!("{at} is required now"));
        }
        comparison.compare(&at, &parameter["schema"], &now["schema"], Direction::Request, found);
    }
    for parameter in after.iter().filter(|parameter| parameter["required"] == true) {
        if !before.iter().any(|other| same(parameter, other)) {
            let (place, name_) = (text(&parameter["in"]), text(&parameter["name"]));
            found.push(format!("{name}: {place} parameter {name_} is new and required"));
        }
    }
}

fn request_body(
    name: &str,
    old: &Value,
    new: &Value,
    comparison: &mut Comparison<'_>,
    found: &mut Vec<String>,
) {
    match (old.is_null(), new.is_null()) {
        (true, true) => return,
        (true, false) => {
            if new["required"] == true {
                found.push(format!("{name}: a body is required now"));
            }
            return;
        }
        (false, true) => {
            found.push(format!("{name}: it takes no body any more"));
            return;
        }
        (false, false) => {}
    }
    if new["required"] == true && old["required"] != true {
        found.push(format!("{name}: its body is required now"));
    }
    for (mime, before) in entries(&old["content"]) {
        let at = format!("{name}: body {mime}");
        match new["content"].get(mime) {
            None => found.push(format!("{at} is not taken any more")),
            Some(after) => {
                comparison.compare(&at, &before["schema"], &after["schema"], Direction::Request, found);
            }
        }
    }
}

fn responses(name: &str, old: &Value, new: &Value, comparison: &mut Comparison<'_>, found: &mut Vec<String>) {
    for (status, before) in entries(old) {
        let Some(after) = new.get(status) else {
            // An error that is answered no more breaks nobody.
            if is_success(status) {
                found.push(format!("{name}: answer {status} is gone"));
            }
            continue;
        };
        for (header, before) in entries(&before["headers"]) {
            let at = format!("{name}: answer {status}: header {header}");
            match after["headers"].get(header) {
                None => found.push(format!("{at} is gone")),
                Some(after) => {
                    if before["required"] == true && after["required"] != true {
                        found.push(format!("{at} may be missing now"));
                    }
                    comparison.compare(&at, &before["schema"], &after["schema"], Direction::Answer, found);
                }
            }
        }
        for (mime, before) in entries(&before["content"]) {
            let at = format!("{name}: answer {status} {mime}");
            match after["content"].get(mime) {
                None => found.push(format!("{at} is gone")),
                Some(after) => {
                    comparison.compare(&at, &before["schema"], &after["schema"], Direction::Answer, found);
                }
            }
        }
    }
    for (status, _) in entries(new).filter(|(status, _)| is_success(status) && old.get(status).is_none()) {
        found.push(format!("{name}: answer {status} is new, and a success"));
    }
}

fn is_success(status: &str) -> bool {
    !status.starts_with(['4', '5'])
}

pub(super) fn entries(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter).map(|(key, value)| (key.as_str(), value))
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
