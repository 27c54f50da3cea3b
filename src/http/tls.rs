//! The API's TLS certificate, reloaded when its files change.
//!
//! Invariant: connections get the last valid pair. An invalid pair is an error at startup, and is reported and ignored later.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustix::fs::OFlags;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::clock::Clock;
use crate::config::check_key;

/// Reason for which a certificate and its key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path} cannot be read: {detail}; see tls.certificate and tls.key")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        detail: String,
    },
    /// A file has other content.
    #[error("{path} contains no {what} in PEM format: {detail}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The content that it should have.
        what: &'static str,
        /// The error, or the content found instead.
        detail: String,
    },
    /// Others may read or change the key.
    #[error("{0}; see tls.key")]
    Exposed(String),
    /// They are not a pair.
    #[error("{certificate} and {key} are not a pair: {detail}; give the key of the certificate")]
    Mismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The error of rustls.
        detail: String,
    },
}

/// The result of a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reloaded {
    /// Unchanged.
    Same,
    /// New connections get another certificate.
    Replaced,
}

/// A certificate with its key: the files, and the pair in use.
pub struct Certificates {
    certificate: PathBuf,
    key: PathBuf,
    current: RwLock<Pair>,
}

/// A valid pair.
struct Pair {
    config: Arc<ServerConfig>,
    chain: Vec<CertificateDer<'static>>,
    /// In unix seconds.
    not_after: i64,
}

impl Certificates {
    /// Reads both files.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let current = RwLock::new(read(certificate, key)?);
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), current })
    }

    /// Reloads the files; an invalid pair changes nothing.
    pub fn reload(&self) -> Result<Reloaded, TlsError> {
        let pair = read(&self.certificate, &self.key)?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        // The same certificate means the same pair.
        if current.chain == pair.chain {
            return Ok(Reloaded::Same);
        }
        *current = pair;
        Ok(Reloaded::Replaced)
    }

    /// Returns the time at which the certificate expires, in unix seconds.
    pub fn not_after(&self) -> i64 {
        self.current.read().unwrap_or_else(PoisonError::into_inner).not_after
    }

    /// The two files.
    pub fn files(&self) -> [&Path; 2] {
        [&self.certificate, &self.key]
    }

    /// The acceptor for the next handshake.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).config).into()
    }
}

/// Opens a regular file; anything else, as a FIFO, is refused and not waited for.
fn open(path: &Path) -> std::io::Result<Vec<u8>> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(content)
}

fn read(certificate: &Path, key: &Path) -> Result<Pair, TlsError> {
    let unread = |path: &Path, detail: String| TlsError::File { path: path.to_owned(), detail };
    let open = |path: &Path| open(path).map_err(|error| unread(path, error.to_string()));
    let content =
        |path: &Path, what, detail: String| TlsError::Content { path: path.to_owned(), what, detail };
    let pem = open(certificate)?;
    let chain = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| content(certificate, "certificate", error.to_string()))?;
    let Some(first) = chain.first() else {
        return Err(content(certificate, "certificate", "it has none".into()));
    };
    let not_after = match X509Certificate::from_der(first) {
        Ok((_, parsed)) => parsed.validity().not_after.timestamp(),
        Err(error) => return Err(content(certificate, "certificate", error.to_string())),
    };
    let secret = open(key)?;
    check_key(key).map_err(TlsError::Exposed)?;
    // The library's message may quote the file.
    let private = PrivateKeyDer::from_pem_slice(&secret)
        .map_err(|_| content(key, "private key", "it has none that can be read".into()))?;
    let provider = Arc::new(ring::default_provider());
    let mismatch = |error: rustls::Error| TlsError::Mismatch {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        detail: error.to_string(),
    };
    let pair = CertifiedKey::from_der(chain.clone(), private, &provider).map_err(mismatch)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(mismatch)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    config.time_provider = Arc::new(HandshakeTime);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Pair { config: Arc::new(config), chain, not_after })
}

/// The time for handshakes; the library's own clock panics before 1970.
#[derive(Debug)]
struct HandshakeTime;

impl TimeProvider for HandshakeTime {
    fn current_time(&self) -> Option<UnixTime> {
        let now = u64::try_from(Clock::system().unix_ms()).unwrap_or_default();
        Some(UnixTime::since_unix_epoch(Duration::from_millis(now)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    struct Files {
        directory: tempfile::TempDir,
    }

    impl Files {
        fn new() -> Self {
            Self { directory: tempfile::tempdir().expect("a directory") }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.path(name);
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("mode");
            path
        }

        fn pair(&self, name: &str) -> (PathBuf, PathBuf) {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("a pair");
            (
                self.write(&format!("{name}.pem"), &made.cert.pem()),
                self.write(&format!("{name}.key"), &made.signing_key.serialize_pem()),
            )
        }
    }

    #[test]
    fn reload_keeps_the_last_valid_pair() {
        let files = Files::new();
        let (certificate, key) = files.pair("a");
        let certificates = Certificates::load(&certificate, &key).expect("a pair");
        assert_eq!(certificates.reload(), Ok(Reloaded::Same));
        let (other, other_key) = files.pair("b");
        let before = Arc::as_ptr(&certificates.current.read().expect("whole").config);
        std::fs::copy(&other, &certificate).expect("copied");
        let error = certificates.reload().expect_err("half of it").to_string();
        assert!(error.contains("are not a pair"), "{error}");
        assert_eq!(Arc::as_ptr(&certificates.current.read().expect("whole").config), before);
        std::fs::copy(&other_key, &key).expect("copied");
        assert_eq!(certificates.reload(), Ok(Reloaded::Replaced));
        assert_ne!(Arc::as_ptr(&certificates.current.read().expect("whole").config), before);
    }

    #[test]
    fn errors_name_the_file_without_the_key() {
        let files = Files::new();
        let (certificate, key) = files.pair("a");
        let message = |certificate: &Path, key: &Path| {
            Certificates::load(certificate, key).err().expect("refused").to_string()
        };
        let none = files.path("none");
        assert!(message(&none, &key).contains("none cannot be read"));
        assert!(message(&certificate, &none).contains("none cannot be read"));
        let words = files.write("words", "SECRET-WORDS");
        assert!(message(&words, &key).contains("contains no certificate"));
        let error = message(&certificate, &words);
        assert!(error.contains("contains no private key") && !error.contains("SECRET"), "{error}");
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(message(&files.write("broken", broken), &key).contains("contains no certificate"));
        for mode in [0o604, 0o644, 0o620, 0o660] {
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).expect("mode");
            let error = message(&certificate, &key);
            assert!(error.contains(&format!("mode {mode:o}")) && error.contains("chmod 600"), "{error}");
        }
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).expect("mode");
        Certificates::load(&certificate, &key).expect("its group may read it");
    }
}
