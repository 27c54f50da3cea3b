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

/// A client that trusts the certificates of a file, or the system's.
pub(super) fn trusting(ca_file: Option<&Path>) -> Result<ClientBuilder, ClientError> {
    let Some(path) = ca_file else {
        // The only provider of this program; a second call finds it installed.
        let _ = ring::default_provider().install_default();
        return Ok(ClientBuilder::new());
    };
    let refused = |detail: String| {
        ClientError::Address(format!(
            "{} contains no certificates that can be trusted: {detail}; give a PEM file with the server's authority (--ca-file)",
            path.display()
        ))
    };
    let pem = std::fs::read(path).map_err(|error| refused(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| refused(error.to_string()))?;
        roots.add(certificate).map_err(|error| refused(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(refused("it has none".into()));
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
