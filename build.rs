//! Compiles the kubelet's protocols to Rust, without protoc, compresses the documents that the program serves, and says how programs for
//! tests are linked.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write as _;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=openapi");
    println!("cargo:rerun-if-changed=docs");
    // Tests start the programs thousands of times, of which half the page faults are relocations. A release keeps its random place in memory.
    if std::env::var("PROFILE")? == "debug" {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
    let protocols = protox::compile(["deviceplugin-v1beta1.proto", "podresources-v1.proto"], ["proto"])?;
    tonic_prost_build::configure().build_transport(false).compile_fds(protocols)?;
    // As text they would be a thirtieth of the program.
    for name in ["v1.json", "v1-3.0.json"] {
        compress(name, &std::fs::read(Path::new("openapi").join(name))?)?;
    }
    let mut pages = BTreeMap::new();
    for folder in ["", "integrate/", "pictures/"] {
        for entry in std::fs::read_dir(Path::new("docs").join(folder))? {
            let name = entry?.file_name().into_string().map_err(|_| "the name of a page is UTF-8")?;
            if name.ends_with(".md") || name.ends_with(".svg") {
                let page = format!("{folder}{name}");
                let text = std::fs::read_to_string(Path::new("docs").join(&page))?;
                pages.insert(page, text);
            }
        }
    }
    compress("docs.json", &serde_json::to_vec(&pages)?)
}

/// Writes a document, compressed, where the program includes it.
fn compress(name: &str, document: &[u8]) -> Result<(), Box<dyn Error>> {
    let to = std::fs::File::create(Path::new(&std::env::var("OUT_DIR")?).join(format!("{name}.gz")))?;
    let mut compressed = flate2::write::GzEncoder::new(to, flate2::Compression::best());
    compressed.write_all(document)?;
    compressed.finish()?;
    Ok(())
}
