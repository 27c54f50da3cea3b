//! Compiles the kubelet's protocols to Rust, without protoc, compresses the documents that the program serves, and says how programs for
//! tests are linked.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use serde_json::Value;

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
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md" || extension == "svg") {
                let page =
                    path.strip_prefix("docs")?.to_str().ok_or("the name of a page is UTF-8")?.to_owned();
                pages.insert(page, std::fs::read_to_string(&path)?);
            }
        }
    }
    compress("docs.json", &serde_json::to_vec(&pages)?)?;
    write_endpoints()
}

/// Writes the rows of `http::endpoint::ENDPOINTS`: what the checked-in document says of each operation.
fn write_endpoints() -> Result<(), Box<dyn Error>> {
    let document: Value = serde_json::from_str(&std::fs::read_to_string("openapi/v1.json")?)?;
    // `view-tenant` is `ViewTenant`.
    let variant = |word: &str| -> String {
        let parts = word.split('-').map(|part| part[..1].to_uppercase() + &part[1..]);
        parts.collect()
    };
    let mut rows = String::new();
    let routes = document["paths"].as_object().ok_or("the document has paths")?;
    for (route, item) in routes {
        for (method, operation) in item.as_object().ok_or("a path has operations")? {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let parameters: Vec<&Value> = parameters
                .map(|parameter| match parameter["$ref"].as_str() {
                    Some(reference) => {
                        document.pointer(&reference[1..]).expect("a reference to the document")
                    }
                    None => parameter,
                })
                .collect();
            let takes = |place: &str, name: Option<&str>| {
                let is_it = |parameter: &&Value| {
                    parameter["in"] == place && name.is_none_or(|name| parameter["name"] == name)
                };
                parameters.iter().any(is_it)
            };
            let right = operation["x-right"].as_str().ok_or(format!("{method} {route} has no x-right"))?;
            let policy = operation["x-idempotency-key"].as_str();
            let policy =
                policy.map_or("None".to_owned(), |policy| format!("Some(KeyPolicy::{})", variant(policy)));
            writeln!(
                rows,
                "Endpoint {{ method: Method::{}, route: {route:?}, right: RequiredRight::{}, key_policy: {policy}, takes_query: {}, \
                 takes_if_match: {}, takes_if_none_match: {} }},",
                method.to_uppercase(),
                variant(right),
                takes("query", None),
                takes("header", Some("If-Match")),
                takes("header", Some("If-None-Match")),
            )?;
        }
    }
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("endpoints.rs"), format!("&[{rows}]"))?;
    Ok(())
}

/// Writes a document, compressed, where the program includes it.
fn compress(name: &str, document: &[u8]) -> Result<(), Box<dyn Error>> {
    let to = std::fs::File::create(Path::new(&std::env::var("OUT_DIR")?).join(format!("{name}.gz")))?;
    let mut compressed = flate2::write::GzEncoder::new(to, flate2::Compression::best());
    compressed.write_all(document)?;
    compressed.finish()?;
    Ok(())
}
