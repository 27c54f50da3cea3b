//! The tenant of an allocation: it holds the places of one container. Its name follows from the places, and its labels list them, so that
//! the plugin has nothing to remember.
//!
//! MPS limits each process by itself and does not count processes: each process of the container has the share and the memory of one place.
//! Its tenant counts as one process for each place: `run` admits that many, and the tenant takes that much memory and that part of the GPU.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use super::context::KubeletPluginOptions;
use super::places::DevicePlace;
use crate::domain::count::counted;
use crate::domain::percentage::ThreadPercentage;
use crate::domain::provisioning::TenantWeight;
use crate::domain::tenant::{TenantSpec, VisibleDevices};
use crate::domain::{DaemonName, GpuUuid, TenantName};

/// The label with the resource of the places.
const RESOURCE: &str = "kubernetes-resource";
/// Prefix of a label that lists places of a GPU; the GPU's UUID follows.
const PLACES: &str = "kubernetes-places-";
/// A bound above the number of places of any GPU.
const MOST: u32 = 1000;

/// The places that a container holds: those of one resource, by device ID.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeviceClaim {
    /// The resource by its full name.
    pub(super) resource: String,
    /// The device IDs.
    pub(super) ids: BTreeSet<String>,
}

impl DeviceClaim {
    /// The name of the tenant that holds these places.
    pub(super) fn tenant_name(&self) -> TenantName {
        let ids: Vec<&str> = self.ids.iter().map(String::as_str).collect();
        let digest = Sha256::digest(ids.join("\n").as_bytes());
        TenantName::parse(&format!("kube-{}", hex::encode(&digest[..6])))
            .expect("hexadecimal digits after a word")
    }

    /// Reads the places from the labels of a tenant; `None` for a tenant that no kubelet plugin made.
    pub(super) fn of_labels(labels: &BTreeMap<String, String>) -> Option<Self> {
        let resource = labels.get(RESOURCE)?.clone();
        let mut ids = BTreeSet::new();
        for (label, numbers) in labels {
            let Some(gpu) = label.strip_prefix(PLACES) else { continue };
            for range in numbers.split(',') {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
                // Labels are written by people too.
                if last.checked_sub(first)? > MOST {
                    return None;
                }
                ids.extend((first..=last).map(|number| format!("{gpu}-{number}")));
            }
        }
        (!ids.is_empty()).then_some(Self { resource, ids })
    }
}

/// The places of a request, all of one daemon.
#[derive(Debug)]
pub(super) struct RequestedPlaces<'p> {
    resource: String,
    daemon: &'p DaemonName,
    /// Share of each place: places of one daemon have the same share.
    share: ThreadPercentage,
    places: BTreeMap<&'p str, &'p DevicePlace>,
}

impl<'p> RequestedPlaces<'p> {
    /// Finds the places of a request among those of the resource; the error says why they cannot be allocated.
    pub(super) fn find(resource: &str, offered: &'p [DevicePlace], ids: &[String]) -> Result<Self, String> {
        let mut places = BTreeMap::new();
        for id in ids {
            let place = offered.iter().find(|place| place.id == *id).ok_or_else(|| {
                format!(
                    "{resource} has no device {id}: the daemon of its GPU is gone or divides it otherwise now; delete the pod, so that \
                     it is scheduled again"
                )
            })?;
            if places.insert(place.id.as_str(), place).is_some() {
                return Err(format!(
                    "device {id} of {resource} is requested twice: a place is for one container"
                ));
            }
        }
        let Some(first) = places.values().next().copied() else {
            return Err(format!("no device of {resource} is requested: request at least 1"));
        };
        if let Some(other) = places.values().find(|place| place.daemon != first.daemon) {
            let mut daemons = [&first.daemon, &other.daemon];
            daemons.sort();
            return Err(format!(
                "{} of {resource} are on GPUs of daemons {} and {}, and a container has one: request at most as many as one GPU has, or \
                 give one daemon several GPUs",
                counted(places.len(), "place"),
                daemons[0],
                daemons[1]
            ));
        }
        Ok(Self { resource: resource.to_owned(), daemon: &first.daemon, share: first.share, places })
    }

    /// Returns the resource and the device IDs of the places.
    pub(super) fn claim(&self) -> DeviceClaim {
        let ids = self.places.keys().map(|id| (*id).to_owned()).collect();
        DeviceClaim { resource: self.resource.clone(), ids }
    }

    /// Returns the GPUs of the places.
    pub(super) fn gpus(&self) -> Vec<GpuUuid> {
        let gpus: BTreeSet<&GpuUuid> = self.places.values().map(|place| &place.gpu).collect();
        gpus.into_iter().cloned().collect()
    }

    /// Returns the tenant that holds the places until `expires_at`. It states the share that its class promises: the daemon would give it
    /// less where other tenants state theirs. The limit is the daemon's default, from which the class has its name too.
    pub(super) fn tenant(&self, options: &KubeletPluginOptions, expires_at: i64) -> TenantSpec {
        TenantSpec {
            daemon: self.daemon.clone(),
            uid: options.uid,
            gpus: self.gpus(),
            device_memory_limit: None,
            max_clients: Some(u32::try_from(self.places.len()).unwrap_or(u32::MAX)),
            sms: None,
            active_thread_percentage: Some(self.share),
            weight: TenantWeight::default(),
            priority: None,
            visible_devices: if options.ordinals { VisibleDevices::Ordinal } else { VisibleDevices::Uuid },
            labels: self.labels(),
            expires_at: Some(expires_at),
        }
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let mut numbers: BTreeMap<&GpuUuid, BTreeSet<u32>> = BTreeMap::new();
        for place in self.places.values() {
            numbers.entry(&place.gpu).or_default().insert(place.number);
        }
        let label = |(gpu, numbers): (&GpuUuid, BTreeSet<u32>)| (format!("{PLACES}{gpu}"), ranges(&numbers));
        let mut labels: BTreeMap<String, String> = numbers.into_iter().map(label).collect();
        labels.insert(RESOURCE.to_owned(), self.resource.clone());
        labels
    }
}

/// Writes numbers as `0-3,7`.
fn ranges(numbers: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let text = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::places::tests::places;
    use super::*;

    const RESOURCE_NAME: &str = "mps-manager.dev/sm32";

    fn ids(places: &[DevicePlace], of: &[usize]) -> Vec<String> {
        of.iter().map(|index| places[*index].id.clone()).collect()
    }

    #[test]
    fn tenant_name_follows_from_the_places() {
        let places = places();
        let claim = |of: &[usize]| {
            RequestedPlaces::find(RESOURCE_NAME, &places, &ids(&places, of)).expect("places").claim()
        };
        let name = claim(&[0, 1]).tenant_name();
        assert_eq!(name, claim(&[1, 0]).tenant_name());
        assert_ne!(name, claim(&[0]).tenant_name());
        let digits = name.as_str().strip_prefix("kube-").expect("its beginning");
        assert!(digits.len() == 12 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()), "{name}");
    }

    #[derive(clap::Parser)]
    struct Arguments {
        #[command(flatten)]
        options: KubeletPluginOptions,
    }

    #[test]
    fn labels_say_which_places_are_held() {
        let places = places();
        let places =
            RequestedPlaces::find(RESOURCE_NAME, &places, &ids(&places, &[0, 1, 3, 6])).expect("places");
        let of = |arguments: &[&str]| {
            let words = ["plugin", "--uid", "7"].iter().chain(arguments);
            places.tenant(&<Arguments as clap::Parser>::parse_from(words).options, 1000)
        };
        assert_eq!(of(&["--ordinals"]).visible_devices, VisibleDevices::Ordinal);
        let tenant = of(&[]);
        assert_eq!(tenant.visible_devices, VisibleDevices::Uuid);
        assert_eq!((tenant.max_clients, tenant.uid, tenant.gpus.len()), (Some(4), 7, 2));
        assert!(tenant.check().is_ok());
        assert_eq!(tenant.active_thread_percentage.map(ThreadPercentage::tenths), Some(250));
        let shown: Vec<&str> = tenant.labels.values().map(String::as_str).collect();
        assert_eq!(shown, ["0-1,3", "2", RESOURCE_NAME]);
        assert_eq!(DeviceClaim::of_labels(&tenant.labels), Some(places.claim()));
        assert_eq!(DeviceClaim::of_labels(&BTreeMap::new()), None);
        let broken = BTreeMap::from([
            (RESOURCE.to_owned(), RESOURCE_NAME.to_owned()),
            (format!("{PLACES}x"), "many".to_owned()),
        ]);
        assert_eq!(DeviceClaim::of_labels(&broken), None);
    }

    #[test]
    fn impossible_requests_are_refused() {
        let places = places();
        let refusal =
            |ids: &[String]| RequestedPlaces::find(RESOURCE_NAME, &places, ids).expect_err("refused");
        assert!(refusal(&ids(&places, &[0, 8])).contains("daemons a and b"));
        assert!(refusal(&ids(&places, &[0, 0])).contains("twice"));
        assert!(refusal(&[]).contains("request at least 1"));
        assert!(refusal(&["GPU-1-0".to_owned()]).contains("has no device GPU-1-0"));
    }
}
