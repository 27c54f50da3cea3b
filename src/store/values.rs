//! Values as columns hold them.

use super::StoreError;

/// Reads JSON that this program wrote.
pub(super) fn from_json<T: serde::de::DeserializeOwned>(
    what: &'static str,
    text: &str,
) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Corrupt { what, detail: error.to_string() })
}

/// Writes a value as the JSON that [`from_json`] reads.
pub(super) fn to_json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("specs and requests hold nothing that JSON cannot")
}

/// Reads a number or name that this program wrote.
pub(super) fn parsed<T, E: std::fmt::Display>(
    what: &'static str,
    value: Result<T, E>,
) -> Result<T, StoreError> {
    value.map_err(|error| StoreError::Corrupt { what, detail: error.to_string() })
}
