//! `set`: reads a spec, changes the fields that were given, and writes it if nobody else did meanwhile.

use std::time::Duration;

use reqwest::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::confirm::ConfirmArgs;
use super::fetch::GpuNames;
use super::spec_changes::{described, differences};
use super::wait::{waiting, when_back};
use crate::client::{Client, ClientError};
use crate::domain::DeviceMemoryLimit;

/// A word of `--unset`, and the path of its field.
pub(super) type UnsetField = (&'static str, &'static [&'static str]);

/// Fields to set in a spec, by their path in it.
#[derive(Debug, Default)]
pub(super) struct SpecFields {
    set: Vec<(Vec<String>, Value)>,
    unset: Vec<&'static [&'static str]>,
    /// True if every other field gets its default.
    is_exact: bool,
}

impl SpecFields {
    /// Creates the fields of a whole spec: a field that is not set gets its default, whatever its value was before.
    pub(super) fn exactly() -> Self {
        Self { is_exact: true, ..Self::default() }
    }

    /// Creates a change that leaves out the fields that these words name.
    pub(super) fn without(words: &[String], fields: &[UnsetField]) -> Self {
        let named = fields.iter().filter(|(word, _)| words.iter().any(|given| given == word));
        Self { unset: named.map(|(_, path)| *path).collect(), ..Self::default() }
    }

    /// Sets a field if a value was given; of an object, only the named fields.
    pub(super) fn set(&mut self, path: &[&str], value: Option<impl Into<Value>>) -> &mut Self {
        match value.map(Into::into) {
            Some(Value::Object(fields)) => {
                for (name, value) in fields {
                    self.set(&[path, &[name.as_str()]].concat(), Some(value));
                }
            }
            Some(value) => self.set.push((path.iter().copied().map(String::from).collect(), value)),
            None => {}
        }
        self
    }

    /// Leaves a field out, so that its default holds.
    pub(super) fn unset(&mut self, path: &'static [&'static str]) -> &mut Self {
        self.unset.push(path);
        self
    }

    /// Describes the fields that are set, with their values in a spec that the server returned.
    fn understood(&self, spec: &Value) -> Vec<String> {
        let descriptions = self.set.iter().filter_map(|(path, _)| {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let value = path.iter().try_fold(spec, |node, name| node.get(*name))?;
            Some(described(&path, value))
        });
        descriptions.collect()
    }

    fn apply(&self, spec: &mut Value) {
        for path in &self.unset {
            if let Some((last, way)) = path.split_last() {
                let parent = way.iter().try_fold(&mut *spec, |node, name| node.get_mut(name));
                if let Some(Value::Object(fields)) = parent {
                    fields.remove(*last);
                }
            }
        }
        for (path, value) in &self.set {
            let mut node = &mut *spec;
            for name in path {
                if !node.is_object() {
                    *node = Value::Object(Map::new());
                }
                node = &mut node[name];
            }
            *node = value.clone();
        }
    }
}

/// Effect of a change, or of its dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpecChange {
    Created,
    Changed,
    Unchanged,
}

impl SpecChange {
    /// Returns the predicate of a sentence whose subject is the changed object, as `was created`.
    pub(super) fn words(self, dry_run: bool) -> &'static str {
        match (self, dry_run) {
            (Self::Created, false) => "was created",
            (Self::Changed, false) => "was changed",
            (Self::Created, true) => "would be created",
            (Self::Changed, true) => "would be changed",
            (Self::Unchanged, _) => "is unchanged",
        }
    }
}

/// A spec that was written, or would be.
#[derive(Debug)]
pub(super) struct SpecAnswer {
    pub(super) made: SpecChange,
    /// The fields that change, in words.
    changes: Vec<String>,
    /// Object that the server returned.
    view: Value,
}

impl SpecAnswer {
    /// Reads the object that the server returned.
    pub(super) fn view<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        T::deserialize(&self.view).map_err(|error| ClientError::Unreadable(error.to_string()))
    }

    /// Returns the predicate of a sentence whose subject is the changed object, followed by the changed fields.
    pub(super) fn words(&self, dry_run: bool) -> String {
        let made = self.made.words(dry_run);
        if self.changes.is_empty() { made.to_owned() } else { format!("{made}: {}", self.changes.join(", ")) }
    }
}

/// Number of times that a change is tried again after another caller's change came first.
const TRIES: u32 = 5;

/// Changes fields of the object at a path, or creates it from `new`; the server waits up to `wait` for the effect.
///
/// Exact fields replace the object by `new` with these fields. If it would lose other settings, the user is asked first.
pub(super) async fn change(
    client: &Client,
    path: &str,
    fields: &SpecFields,
    new: impl AsyncFn() -> Result<Value, ClientError>,
    dry_run: bool,
    wait: Duration,
    confirm: ConfirmArgs,
) -> Result<SpecAnswer, ClientError> {
    let mut tries = 0;
    // The spec before a change whose answer was lost.
    let mut lost_before = None;
    loop {
        let read = async || client.get_tagged::<Value>(path).await;
        let current = if lost_before.is_some() { when_back(read, || {}).await? } else { read().await? };
        let (before, tag) = match current {
            Some((view, tag)) => (Some(view["spec"].clone()), Some(tag)),
            None => (None, None),
        };
        let mut spec = match &before {
            Some(spec) if !fields.is_exact => spec.clone(),
            _ => new().await?,
        };
        fields.apply(&mut spec);
        let rehearsal = format!("{path}?dry_run=true");
        if let Some(before) = before.as_ref().filter(|_| fields.is_exact && !dry_run && confirm.asks()) {
            let view: Value = client.put(&rehearsal, tag.as_deref(), &spec).await?;
            if view["removed"].as_array().is_some_and(|removed| !removed.is_empty()) {
                let lost = lost(&differences(before, &view["spec"]));
                let name = path.rsplit('/').next().unwrap_or_default();
                confirm
                    .ask(&format!("{name} exists, and would lose what is not given: {lost}. Replace it?"))?;
            }
        }
        let target = if dry_run { rehearsal } else { waiting(path, wait) };
        match client.put::<Value>(&target, tag.as_deref(), &spec).await {
            Ok(view) => {
                let (made, changes) = match lost_before.unwrap_or(before) {
                    None => (SpecChange::Created, fields.understood(&view["spec"])),
                    Some(before) if before == view["spec"] => (SpecChange::Unchanged, Vec::new()),
                    Some(before) => (SpecChange::Changed, differences(&before, &view["spec"])),
                };
                let changes = with_indices(client, changes).await;
                return Ok(SpecAnswer { made, changes, view });
            }
            // Another caller changed it in between: the object is read again, so that the other change is kept.
            Err(ClientError::Refused(problem))
                if problem.status == StatusCode::PRECONDITION_FAILED.as_u16() && tries < TRIES =>
            {
                tries += 1;
            }
            // Whether it was done is seen once the manager is back; if not, it is done then.
            Err(error) if error.is_away() && !dry_run && tries < TRIES => {
                tries += 1;
                lost_before.get_or_insert(before);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Selects the changes after which a field has its default, or no value.
fn lost(changes: &[String]) -> String {
    let is_lost = |change: &&String| {
        ["(default)", "(none)", "none"].iter().any(|end| change.ends_with(&format!("-> {end}")))
    };
    changes.iter().filter(is_lost).cloned().collect::<Vec<_>>().join(", ")
}

/// Adds the index of each GPU that changes name by UUID, where the host lists it.
async fn with_indices(client: &Client, changes: Vec<String>) -> Vec<String> {
    if !changes.iter().any(|change| change.contains("GPU-")) {
        return changes;
    }
    let names = GpuNames::read(client).await;
    changes.iter().map(|change| names.in_text(change)).collect()
}

/// A memory limit in a spelling of MPS, also from the API's JSON of one for each GPU; the server judges it.
pub(super) fn memory_limit(text: &str) -> Result<String, String> {
    if !text.trim_start().starts_with('{') {
        return Ok(text.to_owned());
    }
    let limits: DeviceMemoryLimit<String> = serde_json::from_str(text)
        .map_err(|error| format!("{error}: give one size as 4G, or one for each GPU as 0=1G,1=2G"))?;
    Ok(match limits {
        DeviceMemoryLimit::Same(limit) => limit.as_mps(),
        DeviceMemoryLimit::PerGpu(limits) => {
            let entries = limits.iter().map(|(gpu, limit)| format!("{gpu}={}", limit.as_mps()));
            entries.collect::<Vec<_>>().join(",")
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn memory_limits_are_also_read_as_json() {
        assert_eq!(memory_limit("4 GiB").as_deref(), Ok("4 GiB"));
        assert_eq!(memory_limit("0=1G,1=2G").as_deref(), Ok("0=1G,1=2G"));
        assert_eq!(memory_limit(r#"{"0": "1G", "1": "2G"}"#).as_deref(), Ok("0=1024M,1=2048M"));
        let refused = memory_limit(r#"{"0": "1G""#).expect_err("no JSON");
        assert!(refused.contains("0=1G,1=2G"), "{refused}");
    }

    #[test]
    fn only_given_fields_change() {
        let mut spec = json!({"gpus": ["GPU-1"], "sms": 32, "defaults": {"priority": "normal"}});
        let mut fields = SpecFields::default();
        fields
            .set(&["mode"], Some("static"))
            .set(&["uid"], None::<u32>)
            .set(&["defaults", "device_memory_limit"], Some("4G"))
            .set(&["labels", "team"], Some("search"))
            .unset(&["sms"])
            .unset(&["nothing", "here"]);
        fields.apply(&mut spec);
        let expected = json!({
            "gpus": ["GPU-1"],
            "mode": "static",
            "defaults": {"priority": "normal", "device_memory_limit": "4G"},
            "labels": {"team": "search"},
        });
        assert_eq!(spec, expected);
    }
}
