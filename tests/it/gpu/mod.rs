//! The GPU inventory and the probe.

mod probe;
mod prober;
mod sim;
