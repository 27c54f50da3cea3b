//! `set`: reads a spec, changes the fields that were given, and writes it if nobody else did meanwhile.

use reqwest::StatusCode;
use serde_json::{Map, Value, json};

use crate::client::{Client, ClientError};

/// Fields to set in a spec, by their path in it.
#[derive(Debug, Default)]
pub(super) struct SpecFields {
    set: Vec<(&'static [&'static str], Value)>,
    unset: Vec<&'static [&'static str]>,
}

impl SpecFields {
    /// Sets a field if a value was given.
    pub(super) fn set(
        &mut self,
        path: &'static [&'static str],
        value: Option<impl Into<Value>>,
    ) -> &mut Self {
        if let Some(value) = value {
            self.set.push((path, value.into()));
        }
        self
    }

    /// Leaves a field out, so that its default holds.
    pub(super) fn unset(&mut self, path: &'static [&'static str]) -> &mut Self {
        self.unset.push(path);
        self
    }

    fn apply(&self, spec: &mut Value) {
        for path in &self.unset {
            if let Some((last, way)) = path.split_last() {
                let parent = way.iter().try_fold(&mut *spec, |at, name| at.get_mut(name));
                if let Some(Value::Object(fields)) = parent {
                    fields.remove(*last);
                }
            }
        }
        for (path, value) in &self.set {
            let mut at = &mut *spec;
            for name in *path {
                if !at.is_object() {
                    *at = Value::Object(Map::new());
                }
                at = &mut at[*name];
            }
            *at = value.clone();
        }
    }
}

/// What a change did, or would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpecChange {
    Created,
    Changed,
    Unchanged,
}

impl SpecChange {
    /// In a sentence about what was changed.
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

/// How often a change is tried again that another one preceded.
const TRIES: u32 = 5;

/// Changes these fields of what is at this path, or creates it from `new`.
pub(super) async fn change(
    client: &Client,
    path: &str,
    fields: &SpecFields,
    new: impl AsyncFn() -> Result<Value, ClientError>,
    dry_run: bool,
) -> Result<(SpecChange, Value), ClientError> {
    let mut tries = 0;
    loop {
        let found: Option<(Value, String)> = client.get_tagged(path).await?;
        let (before, tag) = match found {
            Some((view, tag)) => (Some(view["spec"].clone()), Some(tag)),
            None => (None, None),
        };
        let mut spec = match &before {
            Some(spec) => spec.clone(),
            None => new().await?,
        };
        fields.apply(&mut spec);
        let target = if dry_run { format!("{path}?dry_run=true") } else { path.to_owned() };
        match client.put::<Value>(&target, tag.as_deref(), &spec).await {
            Ok(view) => {
                let change = match before {
                    None => SpecChange::Created,
                    Some(before) if before == view["spec"] => SpecChange::Unchanged,
                    Some(_) => SpecChange::Changed,
                };
                return Ok((change, view));
            }
            // Somebody else changed it in between: what they wrote is read, and kept.
            Err(ClientError::Refused(problem))
                if problem.status == StatusCode::PRECONDITION_FAILED.as_u16() && tries < TRIES =>
            {
                tries += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// A list as JSON, if it has anything.
pub(super) fn some_list(items: &[String]) -> Option<Value> {
    (!items.is_empty()).then(|| json!(items))
}

#[cfg(test)]
mod tests {
    use super::*;

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
