//! The process that serves: its signals, its certificate, its sockets, and the messages to its caller.

use std::io::Write as _;

use tokio_util::sync::CancellationToken;

use super::{App, Prepared, StartupError, certificates, refused, trusted};
use crate::clock::Clock;
use crate::config::{Config, Limits};
use crate::domain::host_file::HostFile;
use crate::domain::listening::HostListening;
use crate::domain::token::Secret;
use crate::host;
use crate::http::server::{Listeners, check_address};
use crate::lifecycle::{self, StopSignals};

/// Files that the manager itself may have open beside its connections.
const OWN_FILES: u64 = 256;

/// Serves until it is stopped.
///
/// Everything that can be refused is refused before the database is opened and before any daemon is touched.
///
/// `new_database` begins with an empty database where the state directory has lost its own. `file` is applied before anybody is
/// answered; one that is refused ends the start.
pub async fn serve(config: Config, new_database: bool, file: Option<HostFile>) -> Result<(), StartupError> {
    let signals = StopSignals::listen().map_err(refused)?;
    trusted::check_directories(&config)?;
    check_address(config.listen, config.tls.is_some(), config.insecure_listen).map_err(refused)?;
    let (hangups, tls) = certificates::begin(config.tls.as_ref())?;
    let prepared = Prepared::new(&config, new_database).await?;
    let listeners = Listeners::bind(config.listen, &config.socket()).await.map_err(refused)?;
    let address = listeners.address().map_err(refused)?;
    raise_fd_limit(&config.limits);
    let stop = CancellationToken::new();
    let listening = certificates::listening(address, tls.as_deref());
    let app = App::build(&config, prepared, address, listening, stop.clone()).await?;
    if let Some(file) = file
        && let Err(refused) = app.apply_host_file(file).await
    {
        app.shutdown().await;
        return Err(refused);
    }
    let login = app.first_login().await?;
    let stopping = tokio::spawn(lifecycle::watch(signals, stop.clone()));
    announce(&config, &app.listening().borrow(), login.as_ref());
    let following = tokio::spawn(certificates::follow(tls.clone(), hangups, app.listening().clone()));
    app.answer(listeners, config.limits, tls, stop).await;
    following.abort();
    app.shutdown().await;
    stopping.abort();
    tracing::info!("stopped");
    Ok(())
}

fn announce(config: &Config, listening: &HostListening, login: Option<&Secret>) {
    let kind = if config.sim.is_some() { "a SIMULATED host" } else { "this host" };
    let scheme = if listening.tls.is_some() { "https" } else { "http" };
    let address = &listening.address;
    tracing::info!(%address, scheme, socket = %config.socket().display(), "serving {kind}");
    if listening.insecure {
        tracing::warn!(
            %address,
            "serving beyond this host WITHOUT TLS, as insecure_listen says: everybody on the way can read and change what is \
             sent, tokens included"
        );
    }
    if let Some(tls) = listening.tls.as_ref().filter(|tls| tls.not_after < Clock::system().unix_ms()) {
        tracing::warn!(not_after = tls.not_after, "the certificate has expired: callers will refuse it");
    }
    // For people and scripts that started us; the log may be filtered. The reader may have gone, as `head -1`
    // does, which is no reason to end.
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(
        stdout,
        "mps-manager serves {kind} on {scheme}://{address} and {}\nadmin token: {}",
        config.socket().display(),
        config.state_dir.join("admin.token").display()
    )
    .and_then(|()| match login {
        Some(url) => writeln!(stdout, "log in once, within 15 minutes: {}", url.reveal()),
        None => Ok(()),
    })
    .and_then(|()| stdout.flush());
    lifecycle::ready(&format!("serving on {scheme}://{address}"));
}

/// As many open files as the system allows, for daemons too; says so where those are fewer than connections may take.
fn raise_fd_limit(limits: &Limits) {
    match host::raise_fd_limit() {
        Ok(files) => {
            let wanted = u64::from(limits.connections) + u64::from(limits.socket_connections) + OWN_FILES;
            if files < wanted {
                tracing::warn!(
                    files,
                    wanted,
                    "the limit on open files is lower than what limits.connections may take: raise it (LimitNOFILE= in the unit), or \
                     allow fewer connections"
                );
            }
        }
        Err(error) => tracing::warn!(%error, "the limit on open files could not be raised"),
    }
}
