//! mps-manager owns the NVIDIA MPS control daemons of one GPU host.
//!
//! It remembers tenants and their limits in SQLite, applies them, reads them back, and says what it saw. The
//! binary of the same name is the only user of this library; it is one so that tests and benchmarks reach the
//! same code.

pub mod domain;
pub mod gpu;
pub mod host;
pub mod mps;
pub mod sim;
pub mod store;
