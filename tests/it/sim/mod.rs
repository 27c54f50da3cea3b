//! The simulated host against the recordings, and what it does where they are silent.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod changes;
mod concurrency;
mod conformance;
mod deaths;
mod doors;
mod faults;
mod hangs;
mod host;
mod logs;
mod partitions;
mod probe;
mod replay;
mod sessions;
mod terminal;
mod transcript;
mod world;
