//! Everything, on the simulated host.
