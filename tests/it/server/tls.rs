//! TLS: a certificate that is served, replaced while serving, and refused where it does not fit.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::Signal;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

use super::layouts::{add, in_static_mode, write};
use crate::harness::{Host, eventually, signal, stderr_of, unix_ms};

/// A private authority and what it signs.
struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).expect("names");
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = parameters.self_signed(&key).expect("an authority").pem();
        Self { issuer: rcgen::Issuer::new(parameters, key), pem }
    }

    /// A certificate for this machine, and its key.
    fn pair(&self) -> (String, String) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let parameters = rcgen::CertificateParams::new(names).expect("names");
        let certificate = parameters.signed_by(&key, &self.issuer).expect("signed");
        (certificate.pem(), key.serialize_pem())
    }
}

/// A host with a certificate, and what its callers trust.
pub(super) struct Secured {
    pub(super) host: Host,
    authority: Authority,
}

impl Secured {
    fn new(profile: &str) -> Self {
        let host = Host::of(profile, "");
        let secured = Self { host, authority: Authority::new() };
        let config = secured.file("config.toml");
        let text = fs::read_to_string(&config).expect("a configuration");
        let tables = format!(
            "{text}\n[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n",
            secured.file("server.pem").display(),
            secured.file("server.key").display()
        );
        fs::write(config, tables).expect("written");
        fs::write(secured.file("ca.pem"), &secured.authority.pem).expect("written");
        let (certificate, key) = secured.authority.pair();
        secured.put("server.pem", &certificate);
        secured.put("server.key", &key);
        secured
    }

    fn file(&self, name: &str) -> PathBuf {
        self.host.dir().join(name)
    }

    /// Replaces a file at once, as tools that renew certificates do.
    fn put(&self, name: &str, text: &str) {
        let new = self.file(&format!("{name}.new"));
        fs::write(&new, text).expect("written");
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).expect("mode");
        fs::rename(new, self.file(name)).expect("renamed");
    }

    fn serve(&mut self) {
        self.host.serve();
        self.host.await_ready();
    }

    pub(super) fn served(profile: &str) -> Self {
        let mut secured = Self::new(profile);
        secured.serve();
        secured
    }

    /// The command line over TLS, with the token in its environment.
    fn cli(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = self.host.command(arguments);
        command.env("MPS_MANAGER_TOKEN", self.host.token());
        command.output().expect("it runs")
    }

    /// A handshake: the certificate that is shown, and the protocols that were agreed.
    fn handshake(&self, versions: &[&'static rustls::SupportedProtocolVersion], alpn: &[&[u8]]) -> Shown {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.authority.pem.as_bytes()).expect("PEM"))
            .expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        let mut connection = rustls::ClientConnection::new(Arc::new(config), name).expect("a client");
        let address = self.host.url().trim_start_matches("https://").to_owned();
        let mut stream = std::net::TcpStream::connect(address).expect("connected");
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).expect("a handshake");
        }
        Shown {
            certificate: connection.peer_certificates().expect("a certificate")[0].clone().into_owned(),
            alpn: connection.alpn_protocol().map(<[u8]>::to_vec),
            version: connection.protocol_version().expect("a version"),
        }
    }

    fn shown(&self) -> CertificateDer<'static> {
        self.handshake(rustls::ALL_VERSIONS, &[]).certificate
    }

    fn listening(&self) -> Value {
        self.host.api().get("/api/v1/host").ok()["listening"].clone()
    }
}

struct Shown {
    certificate: CertificateDer<'static>,
    alpn: Option<Vec<u8>>,
    version: rustls::ProtocolVersion,
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")
}

#[test]
fn cli_verifies_the_api_certificate_authority() {
    let secured = Secured::served("h200x2");
    let url = secured.host.url();
    assert!(url.starts_with("https://"), "{url}");
    let ca = secured.file("ca.pem").display().to_string();
    let status = secured.cli(&["status", "--url", &url, "--ca-file", &ca]);
    assert!(status.status.success(), "{}", stderr_of(&status));
    let mut command = secured.host.command(&["status", "--url", &url]);
    command.env("MPS_MANAGER_TOKEN", secured.host.token()).env("MPS_MANAGER_CA_FILE", &ca);
    assert!(command.output().expect("it runs").status.success());

    let other = secured.file("other.pem");
    fs::write(&other, Authority::new().pem).expect("written");
    for (arguments, words) in [
        (vec!["status", "--url", &url], "cannot be reached"),
        (vec!["status", "--url", &url, "--ca-file", other.to_str().expect("text")], "certificate"),
        (vec!["status", "--url", &url, "--ca-file", "/nowhere"], "/nowhere contains no certificates"),
        (vec!["status", "--url", &url.replace("https", "http"), "--ca-file", &ca], "cannot be reached"),
        (vec!["status", "--url", "ftp://127.0.0.1"], "neither an https:// nor an http:// URL"),
    ] {
        let refused = secured.cli(&arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        assert!(stderr_of(&refused).contains(words), "{arguments:?}: {}", stderr_of(&refused));
    }
    let listening = secured.listening();
    assert_eq!(listening["insecure"], false);
    assert!(unix_ms(&listening["tls"]["not_after"]) > 0, "{listening}");
    assert_eq!(listening["tls"]["reload_error"], Value::Null);

    let (tls12, tls13) = (&rustls::version::TLS12, &rustls::version::TLS13);
    let old = secured.handshake(&[tls12], &[b"http/1.1"]);
    assert_eq!(
        (old.version, old.alpn.as_deref()),
        (rustls::ProtocolVersion::TLSv1_2, Some(&b"http/1.1"[..]))
    );
    let new = secured.handshake(&[tls12, tls13], &[b"h2", b"http/1.1"]);
    assert_eq!((new.version, new.alpn.as_deref()), (rustls::ProtocolVersion::TLSv1_3, Some(&b"h2"[..])));
}

#[test]
fn a_layout_is_replayed_over_tls() {
    let (first, second) = (Secured::served("h200x2"), Secured::served("h200x2"));
    for secured in [&first, &second] {
        in_static_mode(&secured.host);
    }
    write(&first.host, "prod", &[add("web", 3)]);
    let applied = first.host.cli(&["layout", "apply", "prod", "--daemon", "gpu1", "--gpu", "0=1"]);
    assert!(applied.status.success(), "{}", stderr_of(&applied));
    let both = first.file("both.pem");
    fs::write(&both, format!("{}{}", first.authority.pem, second.authority.pem)).expect("written");
    let tokens: Vec<String> = [&first, &second]
        .iter()
        .map(|secured| {
            let host = secured.host.url().trim_start_matches("https://").to_owned();
            format!("{host}={}", secured.host.state("admin.token").display())
        })
        .collect();
    let names: Vec<&str> = tokens.iter().map(|token| token.split_once('=').expect("two").0).collect();
    let replayed = first.host.cli(&[
        "layout",
        "replay",
        "prod",
        "--from",
        names[0],
        "--to",
        names[1],
        "--gpu",
        "0=1",
        "--token-file",
        &tokens[0],
        "--token-file",
        &tokens[1],
        "--ca-file",
        both.to_str().expect("text"),
    ]);
    let printed = String::from_utf8_lossy(&replayed.stdout);
    assert_eq!(replayed.status.code(), Some(0), "{printed}{}", stderr_of(&replayed));
    assert!(printed.contains("same"), "{printed}");
}

#[test]
fn only_complete_certificate_pair_is_reloaded() {
    let secured = Secured::served("h200x2");
    let first = secured.shown();
    let (certificate, key) = secured.authority.pair();
    secured.put("server.pem", &certificate);
    let error = eventually("the pair is refused", || {
        secured.listening()["tls"]["reload_error"].as_str().map(str::to_owned)
    });
    assert!(error.contains("are not a pair"), "{error}");
    assert_eq!(secured.shown(), first, "the one from before is served");
    secured.put("server.key", &key);
    eventually("the new one is served", || (secured.shown() == der(&certificate)).then_some(()));
    eventually("nothing is wrong", || secured.listening()["tls"]["reload_error"].is_null().then_some(()));
    // A key that others may read is as good as none.
    let (another, another_key) = secured.authority.pair();
    secured.put("server.pem", &another);
    secured.put("server.key", &another_key);
    eventually("the third one is served", || (secured.shown() == der(&another)).then_some(()));
    fs::set_permissions(secured.file("server.key"), fs::Permissions::from_mode(0o644)).expect("mode");
    signal(secured.host.manager_pid(), Signal::HUP);
    let error = eventually("the key is refused as readable by others", || {
        secured.listening()["tls"]["reload_error"].as_str().map(str::to_owned)
    });
    assert!(error.contains("chmod 600"), "{error}");
    assert!(secured.host.log().contains("the certificate was replaced"));
    assert!(!secured.host.log().contains("PRIVATE KEY"));
}

#[test]
fn mismatched_certificate_pair_refuses_start() {
    let secured = Secured::new("h200x2");
    let (_, key) = secured.authority.pair();
    let own = fs::read_to_string(secured.file("server.key")).expect("a key");
    secured.put("server.key", &key);
    let reported = secured.host.refused(&[]);
    assert!(reported.contains("are not a pair"), "{reported}");
    secured.put("server.key", &own);
    fs::set_permissions(secured.file("server.key"), fs::Permissions::from_mode(0o604)).expect("mode");
    let reported = secured.host.refused(&[]);
    assert!(reported.contains("server.key can be used by others (mode 604)"), "{reported}");
    fs::remove_file(secured.file("server.pem")).expect("removed");
    let reported = secured.host.refused(&[]);
    assert!(reported.contains("server.pem cannot be read"), "{reported}");
    assert!(!secured.host.state("mps-manager.db").exists());
}

#[test]
fn public_address_without_tls_needs_a_flag() {
    let mut host = Host::new("insecure_listen = true");
    let config = host.dir().join("config.toml");
    let text = fs::read_to_string(&config).expect("a configuration");
    fs::write(&config, text.replace("127.0.0.1:0", "0.0.0.0:0")).expect("written");
    host.serve();
    let listening = host.api().get("/api/v1/host").ok()["listening"].clone();
    assert_eq!((&listening["insecure"], &listening["tls"]), (&Value::Bool(true), &Value::Null));
    assert!(host.log().contains("WITHOUT TLS"), "{}", host.log());
}
