//! mps-manager owns the NVIDIA MPS control daemons of one GPU host.
//!
//! It remembers tenants and their limits in SQLite, applies them, reads them back, and says what it saw. The
//! binary of the same name is the only user of this library; it is one so that tests and benchmarks reach the
//! same code. `docs/architecture.md` shows which folder may use which; a test holds it.

pub mod app;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
#[cfg(test)]
mod fuzz;
pub mod gpu;
pub mod host;
pub mod http;
pub mod kubelet;
pub mod lifecycle;
pub mod metrics;
pub mod mps;
pub mod operations;
pub mod service;
pub mod store;
pub mod supervisor;
pub mod telemetry;
#[cfg(test)]
#[path = "domain/tests.rs"]
mod testing;
mod words;

pub use mps_domain as domain;
pub use simulated_host as sim;
