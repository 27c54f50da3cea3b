//! Compiles the kubelet's protocols to Rust, without protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=proto");
    let protocols = protox::compile(["deviceplugin-v1beta1.proto", "podresources-v1.proto"], ["proto"])?;
    tonic_prost_build::configure().build_transport(false).compile_fds(protocols)?;
    Ok(())
}
