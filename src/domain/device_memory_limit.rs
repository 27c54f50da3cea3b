//! The device memory limit of a daemon's defaults or a tenant: one for all its GPUs, or one for each.
//!
//! MPS knows GPUs by ordinals that are the client's own, and one entry for a GPU that a client does not see drops every limit
//! (recordings 05 and 07). So a GPU may be named in each way that people name one here, and is kept by UUID.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, IntoDeserializer as _, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::device_index::DeviceIndex;
use super::gpu::{Gpu, GpuRef};
use super::{GpuUuid, InvalidValue, MemoryLimit};

/// A device memory limit, for every GPU or by GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceMemoryLimit<G = GpuUuid> {
    /// One limit for every GPU.
    Same(MemoryLimit),
    /// One limit for each GPU that is named, in PCI order once they are resolved; the other GPUs have none.
    PerGpu(Vec<(G, MemoryLimit)>),
}

impl DeviceMemoryLimit {
    /// Returns the limit on a GPU.
    pub fn on(&self, gpu: &GpuUuid) -> Option<MemoryLimit> {
        match self {
            Self::Same(limit) => Some(*limit),
            // That of an MLOPart device, or else that of its GPU.
            Self::PerGpu(limits) => {
                let own = limits.iter().find(|(named, _)| named == gpu);
                let of_whole = || limits.iter().find(|(named, _)| gpu.is_of(named));
                own.or_else(of_whole).map(|(_, limit)| *limit)
            }
        }
    }

    /// Returns the largest limit on a GPU or an MLOPart device of it.
    pub fn largest_on(&self, gpu: &GpuUuid) -> Option<MemoryLimit> {
        match self {
            Self::Same(limit) => Some(*limit),
            Self::PerGpu(limits) => {
                let of_gpu = limits.iter().filter(|(named, _)| named.is_of(gpu));
                of_gpu.map(|(_, limit)| *limit).max_by_key(|limit| limit.bytes())
            }
        }
    }

    /// Returns the GPUs that it names.
    pub fn gpus(&self) -> impl Iterator<Item = &GpuUuid> {
        let named = match self {
            Self::Same(_) => &[][..],
            Self::PerGpu(limits) => limits.as_slice(),
        };
        named.iter().map(|(gpu, _)| gpu)
    }

    /// Returns the first GPU that it names and that is not among these.
    pub fn names_beyond(&self, gpus: &[GpuUuid]) -> Option<&GpuUuid> {
        match self {
            Self::Same(_) => None,
            Self::PerGpu(limits) => {
                limits.iter().map(|(named, _)| named).find(|named| !gpus.iter().any(|gpu| named.is_of(gpu)))
            }
        }
    }

    /// Replaces the GPU `old` with `new`, and restores PCI order.
    #[must_use]
    pub fn exchanged(self, old: &GpuUuid, new: &GpuUuid, host: &[Gpu]) -> Self {
        let Self::PerGpu(mut limits) = self else { return self };
        for (gpu, _) in limits.iter_mut().filter(|(gpu, _)| gpu == old) {
            *gpu = new.clone();
        }
        let index = |uuid: &GpuUuid| host.iter().find(|gpu| gpu.uuid == *uuid).map(|gpu| gpu.index);
        limits.sort_by_key(|(gpu, _)| index(gpu));
        Self::PerGpu(limits)
    }

    /// Builds one limit if these GPUs have the same, or else one for each; `None` if none has a limit.
    pub fn of(limits: &[(GpuUuid, Option<MemoryLimit>)]) -> Option<Self> {
        let (_, first) = limits.first()?;
        if limits.iter().all(|(_, limit)| limit == first) {
            return first.map(Self::Same);
        }
        let named = limits.iter().filter_map(|(gpu, limit)| Some((gpu.clone(), (*limit)?)));
        Some(Self::PerGpu(named.collect()))
    }
}

impl DeviceMemoryLimit<GpuRef> {
    /// Resolves its GPUs to UUIDs, in PCI order.
    pub fn resolve_gpus(self, host: &[Gpu]) -> Result<DeviceMemoryLimit, InvalidValue> {
        let limits = match self {
            Self::Same(limit) => return Ok(DeviceMemoryLimit::Same(limit)),
            Self::PerGpu(limits) => limits,
        };
        let mut resolved: Vec<(DeviceIndex, GpuUuid, MemoryLimit)> = Vec::with_capacity(limits.len());
        for (named, limit) in limits {
            let (index, uuid) = named.resolve_device(host)?;
            if resolved.iter().any(|(_, other, _)| *other == uuid) {
                return Err(InvalidValue(format!("GPU {index} has two limits: give it one")));
            }
            resolved.push((index, uuid, limit));
        }
        resolved.sort_by_key(|(index, ..)| *index);
        Ok(DeviceMemoryLimit::PerGpu(resolved.into_iter().map(|(_, uuid, limit)| (uuid, limit)).collect()))
    }
}

impl<G> DeviceMemoryLimit<G> {
    /// Returns its sizes, in the order of the GPUs that it names.
    pub fn sizes(&self) -> impl Iterator<Item = MemoryLimit> {
        let (same, per_gpu) = match self {
            Self::Same(limit) => (Some(*limit), &[][..]),
            Self::PerGpu(limits) => (None, limits.as_slice()),
        };
        same.into_iter().chain(per_gpu.iter().map(|(_, limit)| *limit))
    }
}

impl<G> From<MemoryLimit> for DeviceMemoryLimit<G> {
    fn from(limit: MemoryLimit) -> Self {
        Self::Same(limit)
    }
}

impl<'de, G: Deserialize<'de>> DeviceMemoryLimit<G> {
    /// Reads `4G`, or `0=1G,1=2G` as MPS writes it.
    fn parse<E: de::Error>(text: &str) -> Result<Self, E> {
        if !text.contains('=') {
            return MemoryLimit::parse(text).map(Self::Same).map_err(E::custom);
        }
        let mut limits = Vec::new();
        for entry in text.split(',') {
            let (gpu, limit) = entry.split_once('=').ok_or_else(|| {
                let shown: String = entry.chars().take(80).collect();
                E::custom(format!(
                    "{shown:?} is not a limit of a GPU: give GPU=SIZE for each, as \"0=1G,1=2G\""
                ))
            })?;
            let gpu = G::deserialize(gpu.trim().to_owned().into_deserializer())?;
            limits.push((gpu, MemoryLimit::parse(limit.trim()).map_err(E::custom)?));
        }
        Ok(Self::PerGpu(limits))
    }
}

impl<G: Serialize> Serialize for DeviceMemoryLimit<G> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Same(limit) => limit.serialize(serializer),
            Self::PerGpu(limits) => {
                let mut map = serializer.serialize_map(Some(limits.len()))?;
                for (gpu, limit) in limits {
                    map.serialize_entry(gpu, limit)?;
                }
                map.end()
            }
        }
    }
}

impl<'de, G: Deserialize<'de>> Deserialize<'de> for DeviceMemoryLimit<G> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LimitVisitor<G>(PhantomData<G>);

        impl<'de, G: Deserialize<'de>> Visitor<'de> for LimitVisitor<G> {
            type Value = DeviceMemoryLimit<G>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a size (\"4G\", \"512Mi\" or an integer of bytes), or one for each GPU ({\"0\": \"1G\", \"1\": \"2G\"} or \"0=1G,1=2G\")",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                DeviceMemoryLimit::parse(text)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Self::Value, E> {
                MemoryLimit::deserialize(bytes.into_deserializer()).map(DeviceMemoryLimit::Same)
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Self::Value, E> {
                MemoryLimit::deserialize(bytes.into_deserializer()).map(DeviceMemoryLimit::Same)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut limits = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    limits.push(entry);
                }
                if limits.is_empty() {
                    let none =
                        "no GPU is named: name one, as {\"0\": \"1G\"}, or leave the limit out for none";
                    return Err(de::Error::custom(none));
                }
                Ok(DeviceMemoryLimit::PerGpu(limits))
            }
        }

        deserializer.deserialize_any(LimitVisitor(PhantomData))
    }
}

/// The name of the schema of a limit for each GPU.
const PER_GPU: &str = "MemoryLimitPerGpu";

impl<G> utoipa::PartialSchema for DeviceMemoryLimit<G> {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::Ref;
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};
        let text = ObjectBuilder::new().schema_type(Type::String).pattern(Some(format!(
            "^({size}|{gpu}={size}(,{gpu}={size})*)$",
            size = super::memory::SPELLINGS,
            gpu = super::gpu::names()
        )));
        Schema::OneOf(
            OneOfBuilder::new()
                .description(Some(
                    "A device memory limit: one for all GPUs, or one for each. Answers hold an integer of bytes, or integers of \
                     bytes by GPU UUID. Requests may hold a text as well: a size such as \"4G\", or sizes of GPUs as MPS writes \
                     them, \"0=1G,1=2G\", where a GPU is named by its index on the host, UUID, unique beginning of it, or PCI address.",
                ))
                .item(super::memory::bytes_schema())
                .item(text)
                .item(Ref::from_schema_name(PER_GPU))
                .build(),
        )
        .into()
    }
}

impl<G> utoipa::ToSchema for DeviceMemoryLimit<G> {
    fn name() -> std::borrow::Cow<'static, str> {
        "DeviceMemoryLimit".into()
    }

    fn schemas(schemas: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::schema::Schema>)>) {
        use utoipa::PartialSchema as _;
        use utoipa::openapi::Ref;
        use utoipa::openapi::schema::{ObjectBuilder, Schema};
        let per_gpu = ObjectBuilder::new()
            .description(Some(
                "A device memory limit for each GPU that is named. Requests may name a GPU by its index on the host, UUID, unique \
                 beginning of it, or PCI address; answers name it by UUID.",
            ))
            .min_properties(Some(1))
            .additional_properties(Some(Ref::from_schema_name("MemoryLimit")))
            .build();
        schemas.push((PER_GPU.to_owned(), Schema::Object(per_gpu).into()));
        schemas.push(("MemoryLimit".to_owned(), MemoryLimit::schema()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::h200;

    fn read(json: &str) -> Result<DeviceMemoryLimit, String> {
        let named: DeviceMemoryLimit<GpuRef> =
            serde_json::from_str(json).map_err(|error| error.to_string())?;
        named.resolve_gpus(&[h200(0), h200(1)]).map_err(|error| error.to_string())
    }

    fn limit(text: &str) -> MemoryLimit {
        MemoryLimit::parse(text).expect("a limit")
    }

    #[test]
    fn gpus_are_named_in_every_usual_way() {
        let (zero, one) = (h200(0).uuid, h200(1).uuid);
        let both = DeviceMemoryLimit::PerGpu(vec![(zero, limit("1G")), (one.clone(), limit("2G"))]);
        for json in [
            r#"{"0": "1G", "1": "2G"}"#.to_owned(),
            r#"{"1": 2147483648, "0": "1024M"}"#.to_owned(),
            r#""0=1G,1=2G""#.to_owned(),
            r#""1=2GB, 0=1024M""#.to_owned(),
            format!("{{\"06:00.0\": \"1G\", \"{one}\": \"2G\"}}"),
            format!("\"00000000:06:00.0=1G,{one}=2G\""),
        ] {
            assert_eq!(read(&json).as_ref(), Ok(&both), "{json}");
        }
        assert_eq!(both.on(&one), Some(limit("2G")));
        let answered = serde_json::to_value(&both).expect("JSON");
        assert_eq!(answered[one.as_str()], 2_u64 << 30);
        assert_eq!(read(&answered.to_string()), Ok(both));
    }

    #[test]
    fn one_size_holds_for_every_gpu() {
        for json in ["\"4G\"", "4294967296"] {
            let same = read(json).expect("a limit");
            assert_eq!(
                (same.on(&h200(0).uuid), same.on(&h200(7).uuid)),
                (Some(limit("4G")), Some(limit("4G")))
            );
            assert_eq!(serde_json::to_string(&same).expect("JSON"), "4294967296");
        }
    }

    #[test]
    fn misread_limits_are_refused() {
        for (json, words) in [
            ("{}", "no GPU is named"),
            (r#""0=1G,""#, "GPU=SIZE"),
            (r#""0=1G,2G""#, "GPU=SIZE"),
            (r#""0=512K""#, "whole number of MiB"),
            (r#"{"0": "banana"}"#, "not a memory limit"),
            (r#"{"0": 0}"#, "0 is refused"),
            (r#"{"7": "1G"}"#, "there is no GPU 7: the GPUs of this host are 0 GPU-"),
            (r#"{"0": "1G", "06:00.0": "2G"}"#, "has two limits"),
            (r#"{"0": "1G", "0": "2G"}"#, "has two limits"),
            ("[1]", "one for each GPU"),
            ("-1", "negative"),
            ("true", "a size"),
        ] {
            let error = read(json).expect_err(json);
            assert!(error.contains(words), "{json}: {error}");
        }
    }

    #[test]
    fn limits_of_devices_are_their_own() {
        let zero = h200(0).uuid;
        let [first, second] = [zero.with_mlo(0), zero.with_mlo(1)];
        let both = DeviceMemoryLimit::PerGpu(vec![(first.clone(), limit("1G")), (zero.clone(), limit("3G"))]);
        assert_eq!((both.on(&first), both.on(&second)), (Some(limit("1G")), Some(limit("3G"))));
        let one = DeviceMemoryLimit::PerGpu(vec![(first.clone(), limit("2G"))]);
        assert_eq!((one.on(&first), one.on(&second), one.on(&zero)), (Some(limit("2G")), None, None));
        assert_eq!((one.largest_on(&zero), one.largest_on(&h200(1).uuid)), (Some(limit("2G")), None));
    }

    #[test]
    fn equal_limits_are_one() {
        let (zero, one) = (h200(0).uuid, h200(1).uuid);
        let of = |first: Option<&str>, second: Option<&str>| {
            DeviceMemoryLimit::of(&[(zero.clone(), first.map(limit)), (one.clone(), second.map(limit))])
        };
        assert_eq!(of(Some("1G"), Some("1G")), Some(DeviceMemoryLimit::Same(limit("1G"))));
        assert_eq!(of(None, Some("1G")), Some(DeviceMemoryLimit::PerGpu(vec![(one.clone(), limit("1G"))])));
        assert_eq!((of(None, None), DeviceMemoryLimit::of(&[])), (None, None));
    }
}
