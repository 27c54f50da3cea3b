//! The GPUs of the host and the processes on them.
