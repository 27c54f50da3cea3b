//! Reloads the served certificate when its files change.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::{StartupError, refused};
use crate::config::Tls;
use crate::domain::listening::{HostListening, TlsStatus};
use crate::host::Watch;
use crate::http::tls::{Certificates, Reloaded, TlsError};

/// Time without changes after which files are read: a certificate and its key are two writes.
const DEBOUNCE: Duration = Duration::from_millis(300);
/// Pause after which files are read without a report of a change: the target of a link to a link may be in a directory that is not watched.
const ANYWAY: Duration = Duration::from_secs(10 * 60);

/// Takes SIGHUP over, which would end the process, and reads the certificate that the configuration names.
pub(super) fn begin(tls: Option<&Tls>) -> Result<(Signal, Option<Arc<Certificates>>), StartupError> {
    let hangups = signal(SignalKind::hangup()).map_err(refused)?;
    Ok((hangups, load(tls).map_err(refused)?))
}

/// Reads the certificate that the configuration names.
pub(super) fn load(tls: Option<&Tls>) -> Result<Option<Arc<Certificates>>, TlsError> {
    let read = tls.map(|tls| Certificates::load(&tls.certificate, &tls.key)).transpose()?;
    Ok(read.map(Arc::new))
}

/// Returns the address and the protection of the API at the start.
pub(super) fn listening(address: SocketAddr, certificates: Option<&Certificates>) -> HostListening {
    HostListening {
        address: address.to_string(),
        tls: certificates.map(status),
        insecure: certificates.is_none() && !address.ip().is_loopback(),
    }
}

/// Returns the status of a certificate whose files are intact.
fn status(certificates: &Certificates) -> TlsStatus {
    TlsStatus { not_after: certificates.not_after().saturating_mul(1000), reload_error: None }
}

/// Reads the files whenever they change and at each SIGHUP, until shutdown.
pub(super) async fn follow(
    certificates: Option<Arc<Certificates>>,
    mut hangups: Signal,
    listening: watch::Sender<HostListening>,
) {
    let Some(certificates) = certificates else {
        while hangups.recv().await.is_some() {
            tracing::info!(
                "SIGHUP: there is no certificate to read again, and nothing else is read while serving"
            );
        }
        return std::future::pending().await;
    };
    let mut watch = match Watch::new() {
        Ok(watch) => Some(watch),
        Err(error) => {
            tracing::warn!(%error, "the certificate's files are not watched: send SIGHUP when they were replaced");
            None
        }
    };
    loop {
        cover(watch.as_mut(), &certificates);
        tokio::select! {
            () = changed(watch.as_mut()) => debounce(watch.as_mut()).await,
            _ = hangups.recv() => {}
            () = tokio::time::sleep(ANYWAY) => {}
        }
        let reading = Arc::clone(&certificates);
        let Ok(read) = tokio::task::spawn_blocking(move || reading.reload()).await else { continue };
        let error = match read {
            Ok(Reloaded::Same) => None,
            Ok(Reloaded::Replaced) => {
                tracing::info!(
                    not_after = certificates.not_after(),
                    "the certificate was replaced: new connections get the new one"
                );
                None
            }
            Err(error) => Some(error.to_string()),
        };
        listening.send_if_modified(|listening| {
            let now = TlsStatus { reload_error: error.clone(), ..status(&certificates) };
            if listening.tls.as_ref() == Some(&now) {
                return false;
            }
            if let Some(error) = &error {
                tracing::error!(%error, "the certificate's files cannot be used: the one from before is still served");
            }
            listening.tls = Some(now);
            true
        });
    }
}

/// Watches the directories of the files, and those of what they are links to.
fn cover(watch: Option<&mut Watch>, certificates: &Certificates) {
    let Some(watch) = watch else { return };
    for directory in directories(&certificates.files()) {
        if let Err(error) = watch.cover(&directory) {
            tracing::debug!(directory = %directory.display(), %error, "cannot be watched now");
        }
    }
}

fn directories(files: &[&Path]) -> BTreeSet<PathBuf> {
    let real = files.iter().filter_map(|file| std::fs::canonicalize(file).ok());
    let all = files.iter().map(|file| file.to_path_buf()).chain(real);
    all.filter_map(|file| file.parent().map(Path::to_path_buf)).collect()
}

async fn changed(watch: Option<&mut Watch>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

/// Waits until nothing has happened for a while.
async fn debounce(watch: Option<&mut Watch>) {
    let Some(watch) = watch else { return };
    while tokio::time::timeout(DEBOUNCE, watch.changed()).await.is_ok() {}
}
