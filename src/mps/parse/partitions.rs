//! Static SM partitions (13.1 and later).
//!
//! The shapes are those of NVIDIA's documentation and of what others recorded on an L40S, L20s and an A10 (recording 27); nothing was run
//! here. So the parser takes exactly those and calls everything else an error, never a zero.

use super::{ParseError, not_understood, shown, text};
use crate::domain::PartitionId;
use crate::domain::partitions::PartitionRef;

/// Devices and partitions that `lspart` lists.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Partitions {
    /// The devices.
    pub devices: Vec<PartitionDevice>,
    /// The partitions on them.
    pub partitions: Vec<Partition>,
}

/// A device row of `lspart`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionDevice {
    /// The beginning of the device's UUID: `GPU-74d43ed3`.
    pub device_prefix: String,
    /// Chunks that a new partition could have.
    pub free_chunks: u32,
    /// Chunks in partitions.
    pub used_chunks: u32,
    /// SMs outside partitions.
    pub free_sms: u32,
    /// SMs in partitions.
    pub used_sms: u32,
}

/// A partition row of `lspart`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// The beginning of the device's UUID: `GPU-74d43ed3`.
    pub device_prefix: String,
    /// Its ID.
    pub id: PartitionId,
    /// Its chunks.
    pub chunks: u32,
    /// Its SMs, which may be more than its chunks make: the left-over ones go somewhere.
    pub sms: u32,
    /// True if a client uses it; `None` where the daemon does not say.
    pub in_use: Option<bool>,
}

/// Reads `lspart`, of 5 columns with blanks (reported) or 7 with `-` (documented):
///
/// ```text
/// GPU-aa 5 10 52 80
/// GPU-aa D/79e/DgwYMDAAAAAAAAAAAAAAAAAAAAAAAA 10 80 Yes
/// ```
/// ```text
/// GPU-74d43ed3 - 0 8 74 56 -
/// GPU-74d43ed3 Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA - 7 - 56 Yes
/// ```
///
/// Two lines of heading stand above either.
pub fn lspart(reply: &[u8]) -> Result<Partitions, ParseError> {
    let mut partitions = Partitions::default();
    let mut heading = 0;
    for line in text(reply)?.lines().filter(|line| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split_ascii_whitespace().filter(|field| *field != "-").collect();
        let is_row =
            fields.first().is_some_and(|first| first.starts_with("GPU-") || first.starts_with("MIG-"));
        let before_rows = partitions.devices.is_empty() && partitions.partitions.is_empty();
        if !is_row && before_rows && heading < 2 {
            heading += 1;
        } else if let Some(device) = is_row.then(|| device_row(&fields)).flatten() {
            partitions.devices.push(device);
        } else if let Some(partition) = is_row.then(|| partition_row(&fields)).flatten() {
            partitions.partitions.push(partition);
        } else {
            return Err(not_understood("a list of partitions", reply));
        }
    }
    if partitions.devices.is_empty() {
        return Err(not_understood("a list of partitions with at least one device", reply));
    }
    Ok(partitions)
}

fn device_row(fields: &[&str]) -> Option<PartitionDevice> {
    let [prefix, free_chunks, used_chunks, free_sms, used_sms] = fields else { return None };
    Some(PartitionDevice {
        device_prefix: (*prefix).to_owned(),
        free_chunks: free_chunks.parse().ok()?,
        used_chunks: used_chunks.parse().ok()?,
        free_sms: free_sms.parse().ok()?,
        used_sms: used_sms.parse().ok()?,
    })
}

fn partition_row(fields: &[&str]) -> Option<Partition> {
    let (fields, in_use) = match fields {
        [fields @ .., "Yes"] => (fields, Some(true)),
        [fields @ .., "No"] => (fields, Some(false)),
        fields => (fields, None),
    };
    let [prefix, id, chunks, sms] = fields else { return None };
    Some(Partition {
        device_prefix: (*prefix).to_owned(),
        id: PartitionId::parse(id).ok()?,
        chunks: chunks.parse().ok()?,
        sms: sms.parse().ok()?,
        in_use,
    })
}

/// Reads `sm_partition add` into the new partition:
///
/// ```text
/// GPU-74d43ed3-…/Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA
/// ```
/// ```text
/// Partition GPU-74d43ed3-…/Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA created
/// ```
/// ```text
/// Failed to fulfill the requested SM partition of 20 chunks, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION
/// ```
/// ```text
/// Failed to create partition
/// ```
pub fn sm_partition_add(reply: &[u8]) -> Result<PartitionRef, ParseError> {
    let text = text(reply)?;
    let refused = ["Failed", "Invalid", "Error"].iter().any(|word| text.trim_start().starts_with(word));
    if refused {
        return Err(ParseError::Refused { text: shown(text.trim()) });
    }
    text.split_ascii_whitespace()
        .find_map(|word| PartitionRef::parse(word).ok())
        .ok_or_else(|| not_understood("a partition as GPU-…/…", reply))
}

/// Reads `sm_partition rm`. It is `lspart` that decides; this detects a refusal.
///
/// ```text
/// Partition Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA removed
/// ```
/// ```text
/// … in use. Terminate all clients before removing.
/// ```
pub fn sm_partition_remove(reply: &[u8]) -> Result<(), ParseError> {
    let text = text(reply)?.trim();
    let refused =
        text.contains("in use") || ["Failed", "Invalid", "Error"].iter().any(|word| text.starts_with(word));
    if refused {
        return Err(ParseError::Refused { text: shown(text) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn device(prefix: &str, numbers: [u32; 4]) -> PartitionDevice {
        let [free_chunks, used_chunks, free_sms, used_sms] = numbers;
        PartitionDevice { device_prefix: prefix.into(), free_chunks, used_chunks, free_sms, used_sms }
    }

    #[test]
    fn five_columns_and_seven_are_read() {
        let listing = lspart(b"GPU  Partition\n---- ----\nGPU-aa 5 10 52 80\nGPU-aa D/79e/DgwYMDAAAAAAAAAAAAAAAAAAAAAAAA 10 80 Yes\n").expect("a listing");
        assert_eq!(listing.devices, [device("GPU-aa", [5, 10, 52, 80])]);
        assert_eq!(listing.partitions[0].id.as_str(), "D/79e/DgwYMDAAAAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(
            (listing.partitions[0].chunks, listing.partitions[0].sms, listing.partitions[0].in_use),
            (10, 80, Some(true))
        );

        let documented =
            lspart(format!("GPU-74d43ed3 - 0 8 74 56 -\nGPU-74d43ed3 {ID} - 7 - 56 Yes\n").as_bytes())
                .expect("documented");
        assert_eq!(documented.devices, [device("GPU-74d43ed3", [0, 8, 74, 56])]);
        assert_eq!(documented.partitions[0].chunks, 7);

        let empty = lspart(b"GPU-74d43ed3 - 10 0 92 92 -\n").expect("empty");
        assert!(empty.partitions.is_empty());
    }

    #[test]
    fn malformed_lspart_is_an_error() {
        for bad in [
            "",
            "GPU-aa\n",
            "GPU-aa 1 2 3\n",
            "GPU-aa 1 2 3 x\n",
            "GPU-aa 1 2 3 4 5\n",
            "a\nb\nc\nGPU-aa 15 0 132 0\n",
            "GPU-aa 15 0 132 0\nwhat is this\n",
            "GPU-aa 15 0 132 0\nGPU-aa a,b 7 56 Yes\n",
            "GPU-aa ID 7 56 Yes\n",
        ] {
            assert!(lspart(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }

    /// The commands and replies of recording 27.
    fn recorded() -> Vec<(String, String)> {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fixtures/recordings/27-static-partitions-recorded-by-others.txt"
        );
        let text = std::fs::read_to_string(path).expect("recording 27");
        let mut exchanges: Vec<(String, String)> = Vec::new();
        for line in text.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                exchanges.push((command.to_owned(), String::new()));
            } else if line.starts_with('#') {
                // Listings of other hosts follow without their command.
                exchanges.push(("lspart".to_owned(), String::new()));
            } else if let Some((_, reply)) = exchanges.last_mut() {
                reply.push_str(line);
                reply.push('\n');
            }
        }
        exchanges.retain(|(_, reply)| !reply.is_empty());
        exchanges
    }

    #[test]
    fn everything_that_others_recorded_is_read() {
        let mut listings = Vec::new();
        for (command, reply) in recorded() {
            let (bytes, exchange) = (reply.as_bytes(), format!("{command}: {reply:?}"));
            if command.starts_with("lspart") {
                listings.push(lspart(bytes).expect(&exchange));
            } else if command.ends_with(" 1000") {
                assert!(matches!(sm_partition_add(bytes), Err(ParseError::Refused { .. })), "{exchange}");
            } else if command.starts_with("sm_partition add") {
                let made = sm_partition_add(bytes).expect(&exchange);
                assert!(reply.contains(&format!("Partition {}/{} created", made.gpu, made.id)), "{exchange}");
            } else {
                assert!(command.starts_with("sm_partition rm"), "{exchange}");
                sm_partition_remove(bytes).expect(&exchange);
            }
        }
        let numbers = |listing: &Partitions| {
            let [device] = &listing.devices[..] else { panic!("{listing:?}") };
            (
                device.device_prefix.clone(),
                device.free_chunks,
                device.used_chunks,
                device.free_sms,
                device.used_sms,
            )
        };
        let read: Vec<_> = listings.iter().map(numbers).collect();
        assert_eq!(
            read[..4],
            [
                ("GPU-20".into(), 35, 0, 142, 0),
                ("GPU-20".into(), 34, 1, 138, 4),
                ("GPU-20".into(), 32, 3, 130, 12),
                ("GPU-59".into(), 0, 23, 0, 92),
            ]
        );
        let ids: Vec<_> = listings[2..]
            .iter()
            .flat_map(|listing| &listing.partitions)
            .map(|partition| (partition.id.as_str(), partition.chunks, partition.in_use))
            .collect();
        assert_eq!(
            ids,
            [
                ("YBgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", 2, Some(true)),
                ("AwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", 1, Some(true)),
                ("AAAAQZIgAAAAAAAAAAAAAAAAAAAAAAAAAAAA", 3, Some(false)),
                ("////vm0fAAAAAAAAAAAAAAAAAAAAAAAAAAAA", 20, Some(false)),
            ]
        );
    }

    #[test]
    fn id_may_begin_with_slashes() {
        let gpu = "GPU-74d43ed3-9e17-6f2c-86d2-aa0d5fbdb2c3";
        let id = "////vm0fAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        let made = sm_partition_add(format!("Partition {gpu}/{id} created\n").as_bytes()).expect("made");
        assert_eq!((made.gpu.as_str(), made.id.as_str()), (gpu, id));
        assert_eq!(made.to_string(), format!("{gpu}/{id}"));
    }

    #[test]
    fn a_new_partition_is_found_in_both_sentences() {
        let gpu = "GPU-74d43ed3-9e17-6f2c-86d2-aa0d5fbdb2c3";
        for reply in [format!("{gpu}/{ID}\n"), format!("Partition {gpu}/{ID} created\n")] {
            let made = sm_partition_add(reply.as_bytes()).expect("made");
            assert_eq!((made.gpu.as_str(), made.id.as_str()), (gpu, ID));
        }
        let id = "D/79e/DgwYMDAAAAAAAAAAAAAAAAAAAAAAAA";
        assert_eq!(sm_partition_add(format!("{gpu}/{id}\n").as_bytes()).expect("made").id.as_str(), id);
        let refused = b"Failed to fulfill the requested SM partition of 20 chunks, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION\n";
        assert!(matches!(sm_partition_add(refused), Err(ParseError::Refused { .. })));
        assert!(sm_partition_add(b"").is_err());
        assert!(matches!(
            sm_partition_remove(b"SM partition in use. Terminate all clients before removing.\n"),
            Err(ParseError::Refused { .. })
        ));
    }
}
