//! Everything, on the simulated host.

mod gpu;
mod mps;
mod sim;
