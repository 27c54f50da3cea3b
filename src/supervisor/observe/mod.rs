//! Observation of daemons, their processes, their logs and their GPUs.

pub(crate) mod bypass;
pub(crate) mod control_process;
pub(crate) mod debounce;
pub(crate) mod evidence;
pub(crate) mod exact_limits;
pub(crate) mod exposed_directories;
pub(crate) mod external_writes;
pub(crate) mod foreign_daemons;
pub(crate) mod gather;
pub(crate) mod gpu_presence;
pub(crate) mod isolation;
pub(crate) mod log_state;
pub(crate) mod log_tail;
pub(crate) mod mlopart;
pub(crate) mod partition_listing;
pub(crate) mod poll;
pub(crate) mod poll_outcome;
pub(crate) mod server_log_events;
pub mod signs;
