//! The `mps-manager` command.

fn main() {}
