//! Everything, on the simulated host.

mod mps;
