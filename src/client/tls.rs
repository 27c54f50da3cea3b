//! TLS certificates that a client trusts.

use std::path::Path;
use std::sync::Arc;

use reqwest::ClientBuilder;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use super::ClientError;

/// A client that does not use TLS, and so reads no certificates.
pub(super) fn none() -> ClientBuilder {
    with_roots(RootCertStore::empty())
}

/// A client that trusts the certificates of a PEM file.
pub(super) fn trusting_file(path: &Path) -> Result<ClientBuilder, ClientError> {
    let shown = path.display();
    let advice = "give a PEM file with the server's authority (--ca-file)";
    let pem = std::fs::read_to_string(path).map_err(|error| error.to_string());
    pem.and_then(|pem| trusting(&pem)).map_err(|detail| {
        ClientError::Address(format!(
            "{shown} contains no certificates that can be trusted: {detail}; {advice}"
        ))
    })
}

/// A client that trusts the system's certificates.
pub(super) fn trusting_system() -> ClientBuilder {
    // The only provider of this program; a second call finds it installed.
    let _ = ring::default_provider().install_default();
    ClientBuilder::new()
}

/// A client that trusts the certificates of a PEM text.
pub(super) fn trusting(pem: &str) -> Result<ClientBuilder, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() {
        return Err("it has none".into());
    }
    Ok(with_roots(roots))
}

fn with_roots(roots: RootCertStore) -> ClientBuilder {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has suites for the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    ClientBuilder::new().tls_backend_preconfigured(config)
}
