//! Values that unit tests begin with, compiled for the tests of each package that names this file.

use crate::domain::gpu::{ComputeCapability, ComputeMode, Gpu};
use crate::domain::tenant::{Tenant, TenantSpec};
use crate::domain::{GpuUuid, TenantDirectory, TenantName};

/// An H200 with this index.
pub(crate) fn h200(index: u32) -> Gpu {
    Gpu {
        uuid: GpuUuid::parse(&format!("GPU-514466a0-8e68-f857-9f73-00000000000{index}")).expect("uuid"),
        index: index.into(),
        pci_bus_id: Some(format!("00000000:0{}:00.0", 6 + index)),
        name: "NVIDIA H200".into(),
        sms: Some(132),
        compute_capability: Some(ComputeCapability { major: 9, minor: 0 }),
        memory_total: Some(150_109_880_320),
        memory_used: Some(0),
        compute_mode: Some(ComputeMode::Default),
        mig_enabled: false,
        mig: None,
        mlopart: None,
        present: true,
        device_file: None,
    }
}

/// The specification that a JSON text is.
pub(crate) fn spec(json: &str) -> TenantSpec {
    serde_json::from_str(json).expect("spec")
}

/// A tenant of this name with the specification that a JSON text is.
pub(crate) fn tenant(name: &str, json: &str) -> Tenant {
    Tenant {
        name: TenantName::parse(name).expect("a name"),
        spec: spec(json),
        generation: 1,
        daemon_generation: 1,
        created_at: 1,
        updated_at: 1,
        directory: TenantDirectory::parse("0123456789").expect("a directory"),
        draining: false,
        finished: false,
        held: false,
    }
}
