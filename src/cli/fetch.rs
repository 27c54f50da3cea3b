//! Reading from the API.

use std::fmt::Display;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

use crate::client::{Client, ClientError};
use crate::domain::device_index::{DeviceIndex, DevicePart};
use crate::domain::{DaemonName, GpuUuid};
use crate::http::api::List;
use crate::service::daemons::DaemonView;
use crate::service::host::GpuView;

/// Characters that are escaped in a path or a query: all but letters, digits, `-`, `_`, `.` and `:`.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b':');

/// A value as a part of a path or a query.
pub(super) fn encoded(value: impl Display) -> String {
    utf8_percent_encode(&value.to_string(), PLAIN).to_string()
}

/// A path with those filters that were given.
pub(super) fn filtered(path: &str, filters: &[(&str, Option<String>)]) -> String {
    let mut path = path.to_owned();
    for (name, value) in filters {
        if let Some(value) = value {
            let joint = if path.contains('?') { '&' } else { '?' };
            path = format!("{path}{joint}{name}={}", encoded(value));
        }
    }
    path
}

/// Reads every page of a list.
pub(super) async fn all<T: DeserializeOwned>(client: &Client, path: &str) -> Result<Vec<T>, ClientError> {
    newest(client, path, usize::MAX).await
}

/// Reads the first items of a list.
pub(super) async fn newest<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    most: usize,
) -> Result<Vec<T>, ClientError> {
    client.list(path, most).await
}

/// Reads a list without pages, such as that of GPUs.
pub(super) async fn whole<T: DeserializeOwned>(client: &Client, path: &str) -> Result<Vec<T>, ClientError> {
    Ok(client.get::<List<T>>(path).await?.items)
}

/// The named daemon, or the only one of the host.
pub(super) async fn daemon_or_only(
    client: &Client,
    named: Option<&DaemonName>,
) -> Result<DaemonName, ClientError> {
    if let Some(named) = named {
        return Ok(named.clone());
    }
    let daemons: Vec<DaemonView> = all(client, "/api/v1/daemons").await?;
    let candidates: Vec<&DaemonName> = daemons.iter().map(|daemon| &daemon.name).collect();
    only_one(
        &candidates,
        "this host has no daemon: create one first (mps-manager daemon set NAME --gpu GPU)",
        "this host has several daemons: name one with --daemon ({})",
    )
    .map(|name| (*name).clone())
}

/// Returns the only item; an error if there is none, or with all in place of `{}` if there are several.
pub(super) fn only_one<'i, T: Display>(
    items: &'i [T],
    none: &str,
    several: &str,
) -> Result<&'i T, ClientError> {
    match items {
        [only] => Ok(only),
        [] => Err(ClientError::Caller(none.to_owned())),
        all => {
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            Err(ClientError::Caller(several.replace("{}", &all.join(", "))))
        }
    }
}

/// The named daemon, or the one that has these GPUs, or the only one of the host.
pub(super) async fn daemon_for(
    client: &Client,
    named: Option<&DaemonName>,
    gpus: &[String],
) -> Result<DaemonName, ClientError> {
    let Some((first, rest)) = gpus.split_first().filter(|_| named.is_none()) else {
        return daemon_or_only(client, named).await;
    };
    let daemon = daemon_of(client, first).await?;
    for gpu in rest {
        let other = daemon_of(client, gpu).await?;
        if other != daemon {
            return Err(format!(
                "GPU {first} has daemon {daemon}, GPU {gpu} has daemon {other}, and a tenant has one: name GPUs of one daemon"
            ).into());
        }
    }
    Ok(daemon)
}

async fn daemon_of(client: &Client, gpu: &str) -> Result<DaemonName, ClientError> {
    let view: GpuView = client.get(&format!("/api/v1/gpus/{}", encoded(gpu))).await?;
    let remedy = match view.mig_enabled {
        Some(true) if view.mig.is_none() => {
            "it is in MIG mode, so name one of its instances (mps-manager gpu list)".to_owned()
        }
        _ => format!("create one first (mps-manager daemon set NAME --gpu {gpu})"),
    };
    view.daemon.ok_or_else(|| ClientError::Caller(format!("GPU {gpu} has no daemon: {remedy}")))
}

/// The GPUs of the host with their indices; none for users who may not see the host.
#[derive(Default)]
pub(super) struct GpuNames(Vec<GpuView>);

impl GpuNames {
    /// Reads them.
    pub(super) async fn read(client: &Client) -> Self {
        Self(whole(client, "/api/v1/gpus").await.unwrap_or_default())
    }

    /// A GPU in words: `GPU 0`, or its UUID where the index is not known.
    pub(super) fn name(&self, uuid: &GpuUuid) -> String {
        let gpu = self.find(uuid);
        let missing = if gpu.is_some_and(|gpu| !gpu.present) { " (missing)" } else { "" };
        self.place(uuid).map_or_else(|| uuid.to_string(), |index| format!("GPU {index}{missing}"))
    }

    /// Names a GPU by index and UUID, as `GPU 0 (GPU-514466a0-…)`, or by its UUID alone if the index is not known.
    pub(super) fn full_name(&self, uuid: &GpuUuid) -> String {
        self.place(uuid).map_or_else(|| uuid.to_string(), |index| format!("GPU {index} ({uuid})"))
    }

    /// Returns the place of a device, that of an MLOPart device also while no server has it.
    fn place(&self, uuid: &GpuUuid) -> Option<DeviceIndex> {
        let listed = self.find(uuid).and_then(GpuView::place);
        listed.or_else(|| {
            let part = Some(DevicePart::Mlo(uuid.mlo()?));
            Some(DeviceIndex { part, ..self.find(&uuid.whole())?.place()? })
        })
    }

    /// Replaces each UUID in a text by the full name of its GPU.
    pub(super) fn in_text(&self, text: &str) -> String {
        let mut named = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            let found = self.0.iter().find(|gpu| rest.starts_with(gpu.uuid.as_str())).map(|gpu| &gpu.uuid);
            let uuid = found.map(|uuid| {
                // The name of an MLOPart device begins with the UUID of its GPU.
                let is_end = |char: char| !(char.is_ascii_alphanumeric() || char == '-');
                let word = &rest[..rest.find(is_end).unwrap_or(rest.len())];
                let device = GpuUuid::parse(word).ok().filter(|device| device.is_of(&uuid.whole()));
                device.unwrap_or_else(|| uuid.clone())
            });
            let length = uuid.as_ref().map_or(next.len_utf8(), |uuid| uuid.as_str().len());
            named.push_str(&uuid.map_or_else(|| rest[..length].to_owned(), |uuid| self.full_name(&uuid)));
            rest = &rest[length..];
        }
        named
    }

    /// Returns the GPU with this UUID, if the host lists it.
    pub(super) fn find(&self, uuid: &GpuUuid) -> Option<&GpuView> {
        self.0.iter().find(|gpu| gpu.uuid == *uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_in_texts_get_their_places() {
        let uuid = "GPU-514466a0-8e68-f857-9f73-e438010e48cb";
        let gpu = serde_json::json!({
            "uuid": uuid, "present": true, "index": 0, "pci_bus_id": null, "name": "NVIDIA B300", "sms": 148,
            "compute_capability": null, "memory_total": null, "memory_used": null, "compute_mode": null,
            "mig_enabled": false, "daemon": null, "memory_limits": 0, "tenants_without_limit": 0, "processes": null,
            "live": true,
        });
        let names = GpuNames(vec![serde_json::from_value(gpu).expect("a GPU")]);
        let text = format!("gpus {uuid}, {uuid}-mlo1 and {uuid}.");
        let expected = format!("gpus GPU 0 ({uuid}), GPU 0/mlo1 ({uuid}-mlo1) and GPU 0 ({uuid}).");
        assert_eq!(names.in_text(&text), expected);
    }

    #[test]
    fn filters_are_encoded() {
        let path = filtered("/x", &[("a", None), ("b", Some("1 2&3".into())), ("c", Some("uid 0".into()))]);
        assert_eq!(path, "/x?b=1%202%263&c=uid%200");
        assert_eq!(encoded("GPU-1/x"), "GPU-1%2Fx");
    }
}
