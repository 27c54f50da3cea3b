//! The GPU inventory and the probe.

mod sim;
