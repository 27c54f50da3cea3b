//! Names, sizes, numbers and IDs at volume: each accepted value is printed in one spelling, and reads back as the same value.

use std::fmt::{Debug, Display};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::access::Grant;
use super::client::ClientId;
use super::foreign::visible_gpus;
use super::gpu::{ComputeCapability, GpuRef};
use super::memory::MAX_MIB;
use super::partitions::{PartitionRef, named};
use super::token::{PREFIX, Secret, TokenId};
use super::*;
use crate::fuzz_inputs::{Inputs, values};
use crate::testing::h200;

/// Longest refusal of any value, in bytes: it repeats at most 80 characters of the value, escaped.
const WORDS: usize = 1200;

/// Checks that a type has one spelling, both for a text and for that text as JSON.
fn hold<T>(samples: &[&str], words: &[&str], parse: impl Fn(&str) -> Result<T, InvalidValue>)
where
    T: Debug + Display + PartialEq + Serialize + DeserializeOwned,
{
    Inputs::new(samples, words).check_text(|text| {
        let quoted = serde_json::to_string(text).expect("JSON");
        let json = serde_json::from_str::<T>(&quoted);
        match parse(text) {
            Ok(value) => {
                let printed = value.to_string();
                assert!(printed.eq_ignore_ascii_case(text), "{text:?} is taken and printed as {printed:?}");
                assert_eq!(parse(&printed).as_ref(), Ok(&value));
                let written = serde_json::to_string(&value).expect("JSON");
                assert_eq!(serde_json::from_str::<T>(&written).expect("its own"), value);
                assert_eq!(json.expect("taken as text"), value);
                true
            }
            Err(InvalidValue(why)) => {
                assert!(why.len() <= WORDS, "{} bytes of words", why.len());
                assert!(json.is_err(), "{text:?} is refused as text and taken as JSON");
                false
            }
        }
    });
}

#[test]
fn names() {
    hold(&["web", "gpu0", "a_1", "web_prod"], &["_", "a", "Z", "-", "."], TenantName::parse);
    hold(&["web", "gpu0", "a_1", "web_prod"], &["_", "a", "Z", "-", "."], DaemonName::parse);
}

#[test]
fn partition_ids() {
    let samples = ["Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "D/79e/DgwYMDAAAAAAAAAAAAAAAAAAAAAAAA", "1e5"];
    hold(&samples, &["/", "+", "=", "A", "%2F"], PartitionId::parse);
}

#[test]
fn gpu_uuids() {
    hold(&["GPU-514466a0-8e68-f857-9f73-e438010e48cb"], &["GPU-", "MIG-", "-", "f", "F"], GpuUuid::parse);
}

#[test]
fn partition_references() {
    let samples = ["GPU-514466a0-8e68-f857-9f73-e438010e48cb/Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"];
    hold(&samples, &["GPU-", "/", "-", ",", "A"], PartitionRef::parse);
}

#[test]
fn client_ids() {
    hold(&["1234-567890", "1-0"], &["-", "1", "0"], ClientId::parse);
}

#[test]
fn compute_capabilities() {
    hold(&["9.0", "12.1"], &[".", "9", "0", "a"], ComputeCapability::parse);
}

#[test]
fn token_ids() {
    hold(&["0123456789abcdef", "ffffffffffffffff"], &["a", "F", "0", "_", "mpsm_"], TokenId::parse);
}

#[test]
fn grants() {
    let samples = ["viewer", "operator", "admin", "tenant:web", "tenant:a_1"];
    hold(&samples, &["tenant:", ":", "admin", "web", " ", "Admin", "_"], Grant::parse);
}

#[test]
fn tokens() {
    let secret = "0123456789abcdef".repeat(4);
    let whole = format!("{PREFIX}fedcba9876543210_{secret}");
    let samples = [&*whole, &secret, "mpsm_fedcba9876543210_", "mpsm__"];
    Inputs::new(samples, &[PREFIX, "_", "F", "0", "fedcba9876543210", &secret]).check_text(|text| {
        let shown = Secret::shown(text);
        assert_eq!(format!("{shown:?}"), "Secret(..)");
        let Some((id, secret)) = shown.parts() else { return false };
        // One spelling, without further letters: the whole text is compared.
        assert_eq!(secret.token(&id).reveal(), text);
        assert_eq!((text.len(), secret.reveal().len()), (whole.len(), 64));
        true
    });
}

#[test]
fn lists_of_partitions() {
    let reference = "GPU-514466a0-8e68-f857-9f73-e438010e48cb/Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    Inputs::new([reference, &format!("{reference}, {reference}")], &[",", "/", " ", "GPU-", reference])
        .check_text(|text| {
            let all = named(text);
            let printed = all.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            assert_eq!(named(&printed), all);
            !all.is_empty()
        });
}

#[test]
fn sizes() {
    Inputs::new(["4G", "512Mi", "4294967296", "1M"], &["G", "Gi", "M", "K", "T", "1.5", "-"]).check_text(
        |text| {
            let quoted = serde_json::to_string(text).expect("JSON");
            let json = serde_json::from_str::<MemoryLimit>(&quoted);
            match MemoryLimit::parse(text) {
                Ok(limit) => {
                    assert!((1..=MAX_MIB).contains(&limit.mib()));
                    assert_eq!(MemoryLimit::parse(&limit.as_mps()), Ok(limit));
                    assert_eq!(MemoryLimit::parse(&limit.bytes().to_string()), Ok(limit));
                    assert_eq!(json.expect("taken as text"), limit);
                    true
                }
                Err(InvalidValue(why)) => {
                    assert!(why.len() <= WORDS && json.is_err(), "{why}");
                    false
                }
            }
        },
    );
}

#[test]
fn limits_of_gpus() {
    Inputs::new(["0=1G,1=2G", "GPU-5=512M", "06:00.0=1G", "4G"], &["=", ",", " ", "G", "0", "GPU-", "K"])
        .check_text(|text| {
            let quoted = serde_json::to_string(text).expect("JSON");
            match serde_json::from_str::<DeviceMemoryLimit<GpuRef>>(&quoted) {
                Ok(limit) => {
                    let written = serde_json::to_string(&limit).expect("JSON");
                    assert_eq!(
                        serde_json::from_str::<DeviceMemoryLimit<GpuRef>>(&written).expect("its own"),
                        limit
                    );
                    assert!(limit.sizes().all(|limit| (1..=MAX_MIB).contains(&limit.mib())));
                    true
                }
                Err(why) => {
                    assert!(why.to_string().len() <= WORDS, "{why}");
                    false
                }
            }
        });
}

#[test]
fn percentages() {
    Inputs::new(["25", "33.3", "100.0", "0.1"], &[".", "%", "e1", "nan", "inf", "-"]).check_text(|text| {
        // The same digits as a number of JSON, which may have more spellings.
        if let Ok(percentage) = serde_json::from_str::<ThreadPercentage>(text) {
            let written = serde_json::to_string(&percentage).expect("JSON");
            assert_eq!(serde_json::from_str::<ThreadPercentage>(&written).expect("its own"), percentage);
        }
        match ThreadPercentage::parse(text) {
            Ok(percentage) => {
                assert!((1..=1000).contains(&percentage.tenths()));
                assert_eq!(ThreadPercentage::parse(&percentage.to_string()), Ok(percentage));
                true
            }
            Err(InvalidValue(why)) => {
                assert!(why.len() <= WORDS);
                false
            }
        }
    });
}

#[test]
fn percentages_of_numbers() {
    values(proptest::num::f64::ANY, |number| {
        if let Ok(percentage) = ThreadPercentage::from_f64(*number) {
            assert!((f64::from(percentage.tenths()) / 10.0 - number).abs() < 1e-6);
        }
    });
}

#[test]
fn references_to_gpus() {
    let host = [h200(0), h200(1)];
    let samples = ["0", "1", "GPU-514466a0", "00000000:07:00.0", "07:00.0", host[0].uuid.as_str()];
    Inputs::new(samples, &["GPU-", ":", ".", "0", "-"]).check_text(|text| {
        match GpuRef(text.to_owned()).resolve(&host) {
            Ok(gpu) => {
                assert_eq!(GpuRef(gpu.uuid.to_string()).resolve(&host), Ok(gpu));
                true
            }
            Err(InvalidValue(why)) => {
                assert!(why.len() <= WORDS);
                false
            }
        }
    });
}

#[test]
fn visible_devices() {
    let present = [h200(0), h200(1)];
    let samples = ["0,1", "1", "GPU-514466a0,1", "", "-1", "1,1"];
    Inputs::new(samples, &[",", "GPU-", "0", "1", " "]).check_text(|text| {
        let visible = visible_gpus(Some(text), true, &present).expect("in PCI order, all is known");
        assert!(visible.len() <= present.len());
        let mut once = visible.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), visible.len(), "a GPU twice");
        !visible.is_empty()
    });
}
