//! The fields that a row of the audit log changed, with their values in units.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value};

use super::AuditRecord;
use crate::count::{counted, joined};
use crate::memory::Bytes;
use crate::rfc3339;

/// Most changed fields that a sentence names.
const NAMED: usize = 3;

/// A field that a change gave another value, with both values in their units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldChange {
    /// Path of the field, such as `defaults.priority`.
    pub field: String,
    /// The value before; `None` where it was not set.
    pub before: Option<String>,
    /// The value since.
    pub after: Option<String>,
}

impl FieldChange {
    /// Returns the name of the field for people.
    pub fn label(&self) -> String {
        let word = |part: &str| match part {
            "device_memory_limit" => "memory limit".to_owned(),
            "active_thread_percentage" => "thread percentage".to_owned(),
            "expires_at" => "expiry".to_owned(),
            "uid" => "user ID".to_owned(),
            "sms" => "SMs".to_owned(),
            "gpus" => "GPUs".to_owned(),
            "labels" => "label".to_owned(),
            part => part.strip_suffix("_s").unwrap_or(part).replace('_', " "),
        };
        joined(self.field.split('.').map(word), " ")
    }

    /// Returns the change of a share of the GPU as a gift: `20 GiB instead of 12 GiB`; `None` for other fields.
    pub(super) fn as_share(&self) -> Option<String> {
        let after = share_words(&self.field, self.after.as_deref())?;
        let before = match (&self.before, &self.after) {
            (Some(before), Some(_)) => before.clone(),
            (before, _) => share_words(&self.field, before.as_deref())?,
        };
        Some(format!("{after} instead of {before}"))
    }
}

/// Returns a tenant's share of a GPU in words, or the absence of one; `None` for a field that is no share.
pub(super) fn share_words(field: &str, value: Option<&str>) -> Option<String> {
    let (with, without) = match field {
        "device_memory_limit" => (value.map(str::to_owned), "no memory limit"),
        "active_thread_percentage" => {
            (value.map(|share| format!("{share} of the threads")), "no thread percentage")
        }
        "sms" => (value.map(|sms| format!("{sms} SMs")), "no number of SMs"),
        "max_clients" => (value.map(|most| format!("at most {}", clients(most))), "no limit of clients"),
        _ => return None,
    };
    Some(with.unwrap_or_else(|| without.to_owned()))
}

fn clients(count: &str) -> String {
    count.parse::<u64>().map_or_else(|_| count.to_owned(), |count| counted(count, "client"))
}

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [before, after] = [&self.before, &self.after].map(|value| value.as_deref().unwrap_or("none"));
        write!(f, "{} {after} instead of {before}", self.label())
    }
}

impl AuditRecord {
    /// Returns the fields that the change gave another value, in the order of their paths.
    pub fn changes(&self) -> Vec<FieldChange> {
        let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
        flatten("", &Value::Object(fields(self.before.as_deref())), &mut before);
        flatten("", &Value::Object(fields(self.after.as_deref())), &mut after);
        let paths: BTreeSet<String> = before.keys().chain(after.keys()).cloned().collect();
        let change =
            |field: String| FieldChange { before: before.remove(&field), after: after.remove(&field), field };
        // What is to be applied changes nothing by itself, and the sentence names it.
        let paths = paths.into_iter().filter(|path| !path.starts_with("applied."));
        paths.map(change).filter(|change| change.before != change.after).collect()
    }
}

/// Lists changes behind a colon; further ones are counted.
pub(super) fn listed(changes: &[FieldChange]) -> String {
    let (named, more) = changes.split_at(changes.len().min(NAMED));
    let more =
        if more.is_empty() { String::new() } else { format!(" and {}", counted(more.len(), "more field")) };
    if named.is_empty() { String::new() } else { format!(": {}{more}", joined(named, ", ")) }
}

pub(super) fn fields(text: Option<&str>) -> Map<String, Value> {
    match text.map(serde_json::from_str::<Value>) {
        Some(Ok(Value::Object(fields))) => fields,
        _ => Map::new(),
    }
}

pub(super) fn plain(fields: &Map<String, Value>, field: &str) -> String {
    fields.get(field).map(words).unwrap_or_default()
}

/// Collects the values of a spec by their paths, each in its unit.
fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&inner, value, into);
            }
        }
        Value::Null => {}
        Value::Array(items) if items.is_empty() => {}
        value => {
            into.insert(path.to_owned(), in_units(path, value));
        }
    }
}

/// Returns a value in the unit of its field.
pub(super) fn in_units(path: &str, value: &Value) -> String {
    let last = path.rsplit('.').next().unwrap_or(path);
    match value {
        Value::Number(_) if path.contains("memory_limit") || last.ends_with("_bytes") => {
            Bytes(value.as_u64().unwrap_or_default()).to_string()
        }
        Value::Object(of_gpus) if last == "device_memory_limit" => {
            joined(of_gpus.iter().map(|(gpu, limit)| format!("{} on {gpu}", in_units(path, limit))), " and ")
        }
        Value::Number(_) if last.contains("percentage") => format!("{} %", words(value)),
        Value::Number(_) if last.ends_with("_s") => format!("{} s", words(value)),
        Value::String(text) if last.ends_with("_at") => match rfc3339::parse(text) {
            Ok(at) => rfc3339::format(at).get(..16).unwrap_or(text).replace('T', " ") + " UTC",
            Err(_) => text.clone(),
        },
        value => words(value),
    }
}

/// Returns a value without the signs of JSON.
pub(super) fn words(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => {
            number.as_f64().map_or_else(|| number.to_string(), |number| number.to_string())
        }
        Value::Array(items) => {
            let apart = if items.iter().any(Value::is_object) { "; " } else { ", " };
            joined(items.iter().map(words), apart)
        }
        Value::Object(fields) => {
            joined(fields.iter().map(|(name, value)| format!("{name} {}", words(value))), " ")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sentence::tests::{TENANT, row};
    use super::*;

    #[test]
    fn only_changed_fields_are_listed() {
        let changes = |before: Value, after: Value| {
            row("uid 7", TENANT, "tenants/web", Some(before), Some(after)).changes()
        };
        let change = |field: &str, before: Option<&str>, after: Option<&str>| FieldChange {
            field: field.into(),
            before: before.map(Into::into),
            after: after.map(Into::into),
        };
        assert_eq!(
            changes(
                json!({ "daemon": "gpu0", "sms": 32, "labels": {}, "gpus": [] }),
                json!({ "daemon": "gpu0", "labels": { "a": "b" }, "gpus": ["x", "y"], "defaults": { "device_memory_limit": { "x": 1 << 30 } } }),
            ),
            [
                change("defaults.device_memory_limit.x", None, Some("1 GiB")),
                change("gpus", None, Some("x, y")),
                change("labels.a", None, Some("b")),
                change("sms", Some("32"), None),
            ]
        );
        assert!(changes(json!("no object"), json!({})).is_empty());
    }
}
