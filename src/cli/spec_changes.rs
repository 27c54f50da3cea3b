//! Fields of specs and their changes in words, as the server understood them.

use serde_json::Value;

use crate::domain::memory::Bytes;

/// The field whose numbers are bytes.
const MEMORY_LIMIT: &str = "device_memory_limit";
/// Field for the expiry of a tenant; without it the tenant stays.
const EXPIRY: &str = "expires_at";

/// A field with its value, as `memory limit 4 GiB`.
pub(super) fn described(path: &[&str], value: &Value) -> String {
    format!("{} {}", label(path), shown(path, value))
}

/// Returns the differences between two specs, each as `memory limit 4 GiB -> 8 GiB`.
pub(super) fn differences(before: &Value, after: &Value) -> Vec<String> {
    let mut changes = Vec::new();
    collect(&[], before, after, &mut changes);
    changes
}

fn collect(path: &[&str], before: &Value, after: &Value, changes: &mut Vec<String>) {
    if before == after {
        return;
    }
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        return changes.push(format!("{} {} -> {}", label(path), shown(path, before), shown(path, after)));
    };
    let names = old.keys().chain(new.keys().filter(|name| !old.contains_key(*name)));
    for name in names {
        let deeper: Vec<&str> = path.iter().copied().chain([name.as_str()]).collect();
        collect(&deeper, &before[name.as_str()], &after[name.as_str()], changes);
    }
}

/// A field in words: `defaults.device_memory_limit` is the default memory limit.
fn label(path: &[&str]) -> String {
    let word = |segment: &&str| match *segment {
        "defaults" => "default".to_owned(),
        "labels" => "label".to_owned(),
        "gpus" => "GPUs".to_owned(),
        "sms" => "SMs".to_owned(),
        "active_thread_percentage" => "thread percentage".to_owned(),
        MEMORY_LIMIT => "memory limit".to_owned(),
        EXPIRY => "expiry".to_owned(),
        field if field.starts_with("GPU-") => format!("on {field}"),
        field => field.replace('_', " "),
    };
    path.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn shown(path: &[&str], value: &Value) -> String {
    let is_memory = path.contains(&MEMORY_LIMIT);
    match value {
        Value::Null if path.contains(&"labels") || path == [EXPIRY] => "(none)".to_owned(),
        Value::Null if path.first() == Some(&"defaults") => "none".to_owned(),
        Value::Null => "(default)".to_owned(),
        Value::Number(number) if is_memory => {
            number.as_u64().map_or_else(|| number.to_string(), |bytes| Bytes(bytes).to_string())
        }
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "(default)".to_owned(),
        Value::Array(items) => items.iter().map(|item| shown(path, item)).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{name}: {}", shown(path, value)));
            fields.collect::<Vec<_>>().join(", ")
        }
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_are_shown_in_words() {
        let before = json!({
            "gpus": [], "device_memory_limit": 4_u64 << 30, "sms": 32, "labels": {"team": "a"},
            "defaults": {"device_memory_limit": 1 << 30, "priority": "below_normal"}
        });
        let after = json!({
            "gpus": ["GPU-1"], "device_memory_limit": {"GPU-1": 8_u64 << 30}, "max_clients": 2, "labels": {"team": "b"},
            "expires_at": "2026-11-25T05:03:49.000Z",
            "defaults": {"device_memory_limit": 2_u64 << 30}
        });
        let mut changes = differences(&before, &after);
        changes.sort();
        let expected = [
            "GPUs (default) -> GPU-1",
            "SMs 32 -> (default)",
            "default memory limit 1 GiB -> 2 GiB",
            "default priority below_normal -> none",
            "expiry (none) -> 2026-11-25T05:03:49.000Z",
            "label team a -> b",
            "max clients (default) -> 2",
            "memory limit 4 GiB -> GPU-1: 8 GiB",
        ];
        assert_eq!(changes, expected);
        assert!(differences(&before, &before).is_empty());
    }

    #[test]
    fn fields_are_described_as_understood() {
        assert_eq!(described(&["defaults", MEMORY_LIMIT], &json!(8_u64 << 30)), "default memory limit 8 GiB");
        assert_eq!(described(&["active_thread_percentage"], &json!(12.5)), "thread percentage 12.5");
    }
}
