//! The answer of `lspart`, sorted by the daemon's GPUs.
//!
//! `lspart` identifies a GPU only by the beginning of its UUID. A row that could belong to several of the daemon's GPUs, or
//! to none of them, makes the whole reading an error: a wrong guess would later remove another program's partition.

use crate::domain::GpuUuid;
use crate::domain::partitions::{GpuPartitions, ListedPartition};
use crate::mps::parse::{Partition, PartitionDevice, Partitions};

/// Sorts a listing by GPU, in the order of `gpus` and without clients. Fails with a reason if it does not fit these GPUs.
pub(crate) fn by_gpu(listing: Partitions, gpus: &[GpuUuid]) -> Result<Vec<GpuPartitions>, String> {
    let mut devices: Vec<Option<GpuPartitions>> = vec![None; gpus.len()];
    for PartitionDevice { device_prefix, free_chunks, used_chunks, free_sms, used_sms } in listing.devices {
        let ordinal = position(&device_prefix, gpus)?;
        let gpu = gpus[ordinal].clone();
        let partitions = Vec::new();
        let device = GpuPartitions { gpu, free_chunks, used_chunks, free_sms, used_sms, partitions };
        if devices[ordinal].replace(device).is_some() {
            return Err(format!("lspart lists {} twice", gpus[ordinal]));
        }
    }
    for Partition { device_prefix, id, chunks, sms, in_use } in listing.partitions {
        let ordinal = position(&device_prefix, gpus)?;
        let Some(device) = &mut devices[ordinal] else {
            return Err(format!("lspart lists partition {id} of {} and not the GPU", gpus[ordinal]));
        };
        if device.partitions.iter().any(|listed| listed.id == id) {
            return Err(format!("lspart lists partition {id} of {} twice", gpus[ordinal]));
        }
        device.partitions.push(ListedPartition { id, chunks, sms, in_use, clients: Vec::new() });
    }
    let missing = |(device, gpu): (Option<GpuPartitions>, &GpuUuid)| {
        device.ok_or_else(|| format!("lspart does not list {gpu}, which the daemon was started with"))
    };
    devices.into_iter().zip(gpus).map(missing).collect()
}

/// Returns the index of the one GPU whose UUID begins with this prefix.
fn position(prefix: &str, gpus: &[GpuUuid]) -> Result<usize, String> {
    let begins = |gpu: &GpuUuid| {
        let beginning = gpu.as_str().get(..prefix.len());
        prefix.len() > "GPU-".len() && beginning.is_some_and(|text| text.eq_ignore_ascii_case(prefix))
    };
    let mut matching = gpus.iter().enumerate().filter(|(_, gpu)| begins(gpu));
    match (matching.next(), matching.next()) {
        (Some((ordinal, _)), None) => Ok(ordinal),
        (first, _) => {
            let all: Vec<&str> = gpus.iter().map(GpuUuid::as_str).collect();
            let what = if first.is_some() { "could be several" } else { "is none" };
            let short: String = prefix.chars().take(60).collect();
            Err(format!("lspart names GPU {short:?}, which {what} of the daemon's ({})", all.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mps::parse::lspart;

    fn gpus() -> Vec<GpuUuid> {
        ["514466a0", "514466b1", "9f9440d9"]
            .map(|start| GpuUuid::parse(&format!("GPU-{start}-8e68-f857-9f73-e438010e48cb")).expect("uuid"))
            .to_vec()
    }

    fn read(text: &str) -> Result<Vec<GpuPartitions>, String> {
        by_gpu(lspart(text.as_bytes()).expect("understood"), &gpus())
    }

    const ALL: &str = "GPU-9f9440d9 15 0 132 0\nGPU-514466a0 8 7 76 56\nGPU-514466b1 15 0 132 0\n";

    #[test]
    fn partitions_are_listed_per_gpu_in_daemon_order() {
        let read = read(&format!("{ALL}GPU-514466a0 b/ 4 32 Yes\nGPU-514466a0 a+ 3 24\n")).expect("it fits");
        assert_eq!(read.iter().map(|listing| listing.gpu.clone()).collect::<Vec<_>>(), gpus());
        let first = &read[0];
        let numbers = (first.free_chunks, first.used_chunks, first.free_sms, first.used_sms);
        assert_eq!(numbers, (8, 7, 76, 56));
        let seen: Vec<_> =
            first.partitions.iter().map(|one| (one.id.as_str(), one.chunks, one.sms, one.in_use)).collect();
        assert_eq!(seen, [("b/", 4, 32, Some(true)), ("a+", 3, 24, None)]);
        assert!(read[1].partitions.is_empty() && read[2].partitions.is_empty());
    }

    #[test]
    fn inconsistent_partition_listing_is_an_error() {
        for (text, message) in [
            ("GPU-9f9440d9 15 0 132 0\n".to_owned(), "does not list GPU-514466a0"),
            (format!("{ALL}GPU-514466 15 0 132 0\n"), "could be several"),
            (format!("{ALL}GPU-77777777 15 0 132 0\n"), "is none"),
            (format!("{ALL}GPU- 15 0 132 0\n"), "is none"),
            (format!("{ALL}MIG-514466a0 15 0 132 0\n"), "is none"),
            (format!("{ALL}GPU-9f9440d9 15 0 132 0\n"), "twice"),
            (format!("{ALL}GPU-514466 a 3 24 No\n"), "could be several"),
            (format!("{ALL}GPU-514466a0 a 3 24 No\nGPU-514466a0 a 3 24 No\n"), "twice"),
        ] {
            let error = read(&text).expect_err(message);
            assert!(error.contains(message), "{error}");
        }
    }
}
