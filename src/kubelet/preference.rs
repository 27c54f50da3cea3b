//! Which places a request should get: those of one GPU if possible, else of one daemon, since one tenant has one daemon.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::places::DevicePlace;
use crate::domain::{DaemonName, GpuUuid};

/// Which GPU is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum GpuPreference {
    /// The one with the most used places, so that others stay empty
    Pack,
    /// The one with the fewest used places
    Spread,
}

/// The free places of a GPU, and counts of the others.
struct FreeOfGpu<'p> {
    daemon: &'p DaemonName,
    used: usize,
    free: Vec<&'p DevicePlace>,
    /// Its places that the request has already.
    included: usize,
}

/// Chooses `size` of the available places, those that must be included first; fewer if there are not as many.
pub(super) fn preferred(
    places: &[DevicePlace],
    available: &[String],
    included: &[String],
    size: usize,
    preference: GpuPreference,
) -> Vec<String> {
    let mut chosen: Vec<String> = included.to_vec();
    let mut gpus: BTreeMap<&GpuUuid, FreeOfGpu<'_>> = BTreeMap::new();
    for place in places {
        let empty = || FreeOfGpu { daemon: &place.daemon, used: 0, free: Vec::new(), included: 0 };
        let gpu = gpus.entry(&place.gpu).or_insert_with(empty);
        if included.contains(&place.id) {
            gpu.included += 1;
        } else if available.contains(&place.id) {
            gpu.free.push(place);
        } else {
            gpu.used += 1;
        }
    }
    let mut free_of_daemons: BTreeMap<&DaemonName, usize> = BTreeMap::new();
    for gpu in gpus.values() {
        *free_of_daemons.entry(gpu.daemon).or_default() += gpu.free.len();
    }
    let included_daemon = gpus.values().find(|gpu| gpu.included > 0).map(|gpu| gpu.daemon);
    let needed = size.saturating_sub(chosen.len());
    let mut gpus: Vec<FreeOfGpu<'_>> = gpus.into_values().collect();
    gpus.sort_by_key(|gpu| {
        let is_of_daemon = included_daemon.is_none_or(|daemon| daemon == gpu.daemon);
        let used = match preference {
            GpuPreference::Pack => usize::MAX - gpu.used,
            GpuPreference::Spread => gpu.used,
        };
        (
            Reverse(is_of_daemon),
            Reverse(gpu.included),
            Reverse(gpu.free.len() >= needed),
            Reverse(free_of_daemons.get(gpu.daemon).is_some_and(|free| *free >= needed)),
            used,
        )
    });
    // Places that the first GPU lacks come from other GPUs of its daemon.
    if let Some(first) = gpus.first().map(|gpu| gpu.daemon.clone()) {
        gpus.sort_by_key(|gpu| *gpu.daemon != first);
    }
    let free = gpus.iter().flat_map(|gpu| &gpu.free).map(|place| place.id.clone());
    chosen.extend(free.take(needed));
    chosen
}

#[cfg(test)]
mod tests {
    use super::super::places::tests::places;
    use super::*;

    /// Places by the index of their GPU and their number: GPUs 0 and 1 are of one daemon, GPU 2 of another.
    fn ids(of: &[(usize, usize)]) -> Vec<String> {
        let places = places();
        of.iter().map(|(gpu, number)| places[gpu * 4 + number].id.clone()).collect()
    }

    fn chosen(
        available: &[(usize, usize)],
        included: &[(usize, usize)],
        size: usize,
        preference: GpuPreference,
    ) -> Vec<(usize, usize)> {
        let places = places();
        let ids = preferred(&places, &ids(available), &ids(included), size, preference);
        let position = |id: &String| places.iter().position(|place| place.id == *id).expect("a place");
        ids.iter().map(|id| (position(id) / 4, position(id) % 4)).collect()
    }

    fn all_but(used: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let all = (0..3).flat_map(|gpu| (0..4).map(move |number| (gpu, number)));
        all.filter(|place| !used.contains(place)).collect()
    }

    #[test]
    fn packing_prefers_the_fuller_gpu() {
        let free = all_but(&[(1, 0), (1, 1), (2, 0)]);
        assert_eq!(chosen(&free, &[], 1, GpuPreference::Pack), [(1, 2)]);
        assert_eq!(chosen(&free, &[], 2, GpuPreference::Pack), [(1, 2), (1, 3)]);
        assert_eq!(chosen(&free, &[], 3, GpuPreference::Pack), [(2, 1), (2, 2), (2, 3)], "all on one GPU");
        assert_eq!(chosen(&free, &[], 1, GpuPreference::Spread), [(0, 0)]);
    }

    #[test]
    fn included_places_come_first() {
        let free = all_but(&[(0, 0)]);
        assert_eq!(chosen(&free, &[(2, 3)], 2, GpuPreference::Pack), [(2, 3), (2, 0)]);
        assert_eq!(chosen(&free, &[(1, 3)], 1, GpuPreference::Pack), [(1, 3)]);
        // Its daemon has no further place, so that the kubelet's request cannot be met.
        assert_eq!(chosen(&[(0, 1)], &[(2, 3)], 2, GpuPreference::Pack), [(2, 3), (0, 1)]);
    }

    #[test]
    fn large_requests_stay_on_one_daemon() {
        let free = all_but(&[(0, 0), (1, 0), (2, 0)]);
        let of = |size| chosen(&free, &[], size, GpuPreference::Spread);
        assert!(of(6).iter().all(|(gpu, _)| *gpu < 2), "{:?}", of(6));
        assert_eq!(of(6).len(), 6);
        assert_eq!(chosen(&[(2, 1)], &[], 4, GpuPreference::Pack), [(2, 1)], "what there is");
    }
}
