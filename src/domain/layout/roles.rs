//! A map of roles as JSON within a tagged enum, where serde reads no key as a number.

use std::collections::BTreeMap;

use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

use super::GpuMap;
use crate::GpuUuid;

/// Writes the roles as text.
pub fn serialize<S: Serializer>(map: &GpuMap, serializer: S) -> Result<S::Ok, S::Error> {
    let map: BTreeMap<String, &GpuUuid> = map.iter().map(|(role, gpu)| (role.to_string(), gpu)).collect();
    map.serialize(serializer)
}

/// Reads the roles from text.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<GpuMap, D::Error> {
    let map = BTreeMap::<String, GpuUuid>::deserialize(deserializer)?;
    map.into_iter()
        .map(|(role, gpu)| {
            let number = role.parse().map_err(|_| {
                serde::de::Error::custom(format!("{role:?} is not a role: it is a number counted from 0"))
            })?;
            Ok((number, gpu))
        })
        .collect()
}
