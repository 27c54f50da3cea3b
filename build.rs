//! Compiles the kubelet's protocols to Rust, without protoc, and says how programs for tests are linked.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=proto");
    // Tests start the programs thousands of times, of which half the page faults are relocations. A release keeps its random place in memory.
    if std::env::var("PROFILE")? == "debug" {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
    let protocols = protox::compile(["deviceplugin-v1beta1.proto", "podresources-v1.proto"], ["proto"])?;
    tonic_prost_build::configure().build_transport(false).compile_fds(protocols)?;
    Ok(())
}
