//! Everything, on the simulated host.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod architecture;
mod chaos;
mod document;
mod fuzzing;
mod gpu;
mod harness;
#[path = "../host/mod.rs"]
mod host;
mod kubelet;
mod layout_model;
mod mps;
mod server;
mod sim;
