//! Processes that use a GPU of a daemon outside MPS.

use super::attribution::Signs;
use super::count::first_few;
use super::{GpuUuid, TenantName};

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
    /// Its tenant, by its lease or other evidence.
    pub tenant: Option<TenantName>,
    /// The pipe directory that its environment names, if the process cannot reach it: because it is missing from its mount namespace, as in
    /// a container that does not mount it, or because its permissions exclude the user.
    pub missing_pipe: Option<String>,
    /// Evidence of its tenant, read while the process was alive; it is not stored.
    pub signs: Option<Signs>,
}

impl Bypass {
    /// Builds a bypass about which nothing else is known.
    pub fn of(pid: u32, gpu: GpuUuid) -> Self {
        Self { pid, gpu, uid: None, program: None, tenant: None, missing_pipe: None, signs: None }
    }
}

/// Describes processes in words, the first few by name; `more` are only counted.
pub fn describe_bypasses<'b>(bypasses: impl ExactSizeIterator<Item = &'b Bypass>, more: usize) -> String {
    let words = |Bypass { pid, gpu, uid, program, tenant, missing_pipe, .. }: &Bypass| {
        let uid = uid.map(|uid| format!(" of uid {uid}")).unwrap_or_default();
        let program = program.as_ref().map(|program| format!(" ({program})")).unwrap_or_default();
        let tenant = tenant.as_ref().map(|tenant| format!(" of tenant {tenant}")).unwrap_or_default();
        let missing = missing_pipe
            .as_ref()
            .map(|path| format!(", which reaches no directory {path}, its CUDA_MPS_PIPE_DIRECTORY"));
        format!("process {pid}{uid}{program}{tenant} on {gpu}{}", missing.unwrap_or_default())
    };
    first_few(bypasses.map(words), more, ", ")
}
