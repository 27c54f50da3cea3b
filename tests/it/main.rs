//! Everything, on the simulated host.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod gpu;
mod mps;
mod sim;
