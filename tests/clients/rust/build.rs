//! Generates the client of the document that `DOCUMENT` names, which is `OpenAPI` 3.0.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-env-changed=DOCUMENT");
    let document = std::env::var("DOCUMENT").expect("DOCUMENT names the document");
    println!("cargo:rerun-if-changed={document}");
    let file = std::fs::File::open(&document).expect("the document");
    let document: openapiv3::OpenAPI = serde_json::from_reader(file).expect("a document of OpenAPI 3.0");
    let tokens = progenitor::Generator::default().generate_tokens(&document).expect("a client");
    let client = prettyplease::unparse(&syn::parse2(tokens).expect("Rust"));
    let out = std::env::var("OUT_DIR").expect("cargo says where");
    std::fs::write(Path::new(&out).join("client.rs"), client).expect("written");
}
