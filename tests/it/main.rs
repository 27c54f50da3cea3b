//! Everything, on the simulated host.

mod sim;
