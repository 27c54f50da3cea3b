//! Processes that use a GPU of a daemon outside MPS.

use super::{GpuUuid, TenantName};

/// The most processes that a text names.
const NAMED: usize = 4;

/// A process that uses a GPU outside MPS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bypass {
    /// Its process ID.
    pub pid: u32,
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its user.
    pub uid: Option<u32>,
    /// Its program, without arguments.
    pub program: Option<String>,
    /// Its tenant, where it has a lease.
    pub tenant: Option<TenantName>,
}

/// Processes in words, the first few by name; `more` are counted only.
pub fn describe_bypasses<'b>(bypasses: impl ExactSizeIterator<Item = &'b Bypass>, more: usize) -> String {
    let more = bypasses.len().saturating_sub(NAMED) + more;
    let mut named: Vec<String> = bypasses
        .take(NAMED)
        .map(|Bypass { pid, gpu, uid, program, tenant }| {
            let uid = uid.map(|uid| format!(" of uid {uid}")).unwrap_or_default();
            let program = program.as_ref().map(|program| format!(" ({program})")).unwrap_or_default();
            let tenant = tenant.as_ref().map(|tenant| format!(" of tenant {tenant}")).unwrap_or_default();
            format!("process {pid}{uid}{program}{tenant} on {gpu}")
        })
        .collect();
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    named.join(", ")
}
