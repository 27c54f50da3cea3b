//! Compiles the kubelet's protocols to Rust, without protoc, compresses the API's documents, and says how programs for tests are linked.

use std::error::Error;
use std::io::Write as _;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=openapi");
    // Tests start the programs thousands of times, of which half the page faults are relocations. A release keeps its random place in memory.
    if std::env::var("PROFILE")? == "debug" {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
    let protocols = protox::compile(["deviceplugin-v1beta1.proto", "podresources-v1.proto"], ["proto"])?;
    tonic_prost_build::configure().build_transport(false).compile_fds(protocols)?;
    // As text they would be a thirtieth of the program.
    for name in ["v1.json", "v1-3.0.json"] {
        let to = std::fs::File::create(Path::new(&std::env::var("OUT_DIR")?).join(format!("{name}.gz")))?;
        let mut compressed = flate2::write::GzEncoder::new(to, flate2::Compression::best());
        compressed.write_all(&std::fs::read(Path::new("openapi").join(name))?)?;
        compressed.finish()?;
    }
    Ok(())
}
