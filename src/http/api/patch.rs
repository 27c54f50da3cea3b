//! Changes of single fields: JSON merge patches (RFC 7396).

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::domain::json;
use crate::http::extract::refused;
use crate::http::problem::Problem;
use crate::service::{ServiceError, WriteOptions, etag};

/// The fields of a spec that change; `null` gives one its default.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = Object)]
pub(super) struct MergePatch(Map<String, Value>);

impl MergePatch {
    /// The spec that this patch makes of one.
    pub(super) fn onto<T: DeserializeOwned>(&self, spec: &impl Serialize) -> Result<T, Problem> {
        let internal = |error: serde_json::Error| ServiceError::Internal(error.to_string());
        let mut merged = serde_json::to_value(spec).map_err(internal)?;
        merge(&mut merged, &self.0);
        json::read_merged(merged).map_err(refused)
    }
}

/// The conditions of a write of what was read at this revision. Where the caller stated none, it is tried again once another write
/// came between: each time one of them has succeeded.
pub(super) fn at_revision(options: &WriteOptions, revision: i64) -> WriteOptions {
    let if_match = options.if_match.clone().or_else(|| Some(etag(revision)));
    WriteOptions { if_match, ..options.clone() }
}

/// Merges a patch; what it removes is null, so that a name which no spec has is refused.
fn merge(target: &mut Value, patch: &Map<String, Value>) {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (name, value) in patch {
        match value {
            Value::Object(deeper) => merge(&mut target[name.as_str()], deeper),
            value => target[name.as_str()] = value.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The examples of RFC 7396, appendix A, whose patches are objects, with null for what is removed.
    #[test]
    fn patches_merge_as_the_rfc_has_it() {
        for (mut target, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({"a": null})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"a": null, "b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d", "c": null}}),
            ),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!(["a", "b"]), json!({"a": "b"}), json!({"a": "b"})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!("foo"), json!({"a": "b"}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {"ccc": null}}})),
        ] {
            let Value::Object(fields) = &patch else { unreachable!("all are objects") };
            merge(&mut target, fields);
            assert_eq!(target, expected, "{patch}");
        }
    }

    #[test]
    fn only_fields_of_the_spec_are_given_defaults() {
        #[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq)]
        #[serde(deny_unknown_fields)]
        struct Spec {
            #[serde(default)]
            sms: Option<u32>,
            #[serde(default)]
            gpus: Vec<String>,
            #[serde(default)]
            labels: std::collections::BTreeMap<String, String>,
        }
        let before = Spec { sms: Some(8), gpus: vec!["0".into()], labels: [("a".into(), "b".into())].into() };
        let patched = |patch: Value| {
            let Value::Object(patch) = patch else { unreachable!("all are objects") };
            MergePatch(patch).onto::<Spec>(&before)
        };
        let empty = Spec { sms: None, gpus: Vec::new(), labels: std::collections::BTreeMap::default() };
        let all = json!({"sms": null, "gpus": null, "labels": {"a": null, "b": null}});
        assert_eq!(patched(all).expect("its own fields"), empty);
        for unknown in [json!({"smss": null}), json!({"sms": null, "label": null}), json!({"x": {"y": null}})]
        {
            assert!(patched(unknown.clone()).is_err(), "{unknown}");
        }
    }
}
