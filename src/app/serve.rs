//! The process that serves: its signals, its certificate, its sockets, and its end.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::interval;
use tokio_util::sync::CancellationToken;

use super::{App, Prepared, StartupError, certificates, platform, refused, trial, trusted, welcome};
use crate::clock::Clock;
use crate::config::{Config, Limits};
use crate::domain::host_file::HostFile;
use crate::domain::listening::HostListening;
use crate::domain::timings::Timings;
use crate::domain::token::Secret;
use crate::host;
use crate::http::server::{Listeners, check_address};
use crate::lifecycle::{self, StopSignals};

/// Files that the manager itself may have open, without its connections.
const OWN_FILES: u64 = 256;

/// Options of a start beyond the configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::Args)]
pub struct ServeOptions {
    /// Start with an empty database if the state directory has lost its own
    #[arg(long)]
    pub new_database: bool,
    /// With --sim: at the end, stop the simulated daemons and remove the state and the runtime directory
    #[arg(long = "rm")]
    pub remove_at_exit: bool,
}

/// Serves until it is stopped.
///
/// Everything that can be refused is refused before the database is opened and before any daemon is touched.
///
/// `host_file` is applied before any request is answered; one that is refused ends the start. While the driver is missing, a manager
/// that changes nothing answers; once the driver is present, another manager takes its place.
pub async fn serve(
    config: Config,
    options: ServeOptions,
    host_file: Option<HostFile>,
) -> Result<(), StartupError> {
    let signals = StopSignals::listen().map_err(refused)?;
    trusted::check_directories(&config)?;
    let around = if options.remove_at_exit { trial::check_removable(&config)? } else { Vec::new() };
    check_address(config.listen, config.tls.is_some(), config.insecure_listen).map_err(refused)?;
    let (hangups, tls) = certificates::begin(config.tls.as_ref())?;
    let effect = if options.remove_at_exit {
        "the simulated host and its directories are removed"
    } else {
        "daemons and their clients run on"
    };
    let stop = CancellationToken::new();
    let mut prepared = look(&config, host_file.is_some(), options.new_database).await?;
    let mut listeners = Listeners::bind(config.listen, &config.socket()).await.map_err(refused)?;
    let address = listeners.address().map_err(refused)?;
    raise_fd_limit(&config.limits);
    let listening = watch::Sender::new(certificates::listening(address, tls.as_deref()));
    let url = welcome::url(&listening.borrow());
    let (mut signals, mut stopping) = (Some(signals), None);
    let following = tokio::spawn(certificates::follow(tls.clone(), hangups, listening.clone()));
    let releasing = tokio::spawn(release_freed_memory(Timings::duration(config.timings.release_memory_ms)));
    let mut is_first = false;
    loop {
        let round = stop.child_token();
        let app = App::build(&config, prepared, address, listening.clone(), round.clone()).await?;
        is_first |= app.is_new();
        let login = match before_answering(&app, host_file.as_ref(), is_first, &round).await {
            Ok(login) => login,
            Err(refused) => {
                app.shutdown().await;
                if options.remove_at_exit
                    && let Err(error) = trial::remove_all(&config, &around).await
                {
                    tracing::error!(%error, "the simulated host could not be removed");
                }
                return Err(refused);
            }
        };
        stopping = stopping
            .or(signals.take().map(|signals| tokio::spawn(lifecycle::watch(signals, stop.clone(), effect))));
        announce(&config, &listening.borrow());
        let is_waiting = app.waiting().is_some();
        welcome::print(&config, &listening.borrow(), login.as_ref(), options.remove_at_exit, is_waiting);
        let arriving = if let Some(waiting) = app.waiting().cloned() {
            tracing::warn!(
                "waiting for the NVIDIA driver, and changing nothing until it is here: {}",
                waiting.missing
            );
            lifecycle::ready(&format!("serving on {url}, and waiting for the NVIDIA driver"));
            Some(tokio::spawn(platform::arrives(config.clone(), waiting, round.clone())))
        } else {
            lifecycle::ready(&format!("serving on {url}"));
            None
        };
        listeners = app.answer(app.router(), listeners, config.limits, tls.clone(), round).await;
        arriving.inspect(JoinHandle::abort);
        app.shutdown().await;
        if stop.is_cancelled() {
            break;
        }
        tracing::info!("the NVIDIA driver is here");
        prepared = look(&config, host_file.is_some(), false).await?;
    }
    drop(listeners);
    releasing.abort();
    following.abort();
    if options.remove_at_exit {
        trial::remove_all(&config, &around).await?;
    }
    stopping.inspect(JoinHandle::abort);
    tracing::info!("stopped");
    Ok(())
}

/// Prepares the start, and refuses what can be refused; a host file brings its own daemons, so there are no examples.
async fn look(config: &Config, has_file: bool, new_database: bool) -> Result<Prepared, StartupError> {
    let prepared = Prepared::new(config, new_database).await?;
    Ok(if has_file { prepared.without_examples() } else { prepared })
}

/// Does what has to succeed before any request is answered.
async fn before_answering(
    app: &App,
    host_file: Option<&HostFile>,
    is_first: bool,
    stop: &CancellationToken,
) -> Result<Option<Secret>, StartupError> {
    if app.waiting().is_some() {
        return Ok(None);
    }
    if let Some(file) = host_file {
        app.apply_host_file(file.clone(), stop.clone()).await?;
    }
    if is_first { app.first_login().await.map(Some) } else { Ok(None) }
}

/// Returns memory to the system that a start or a burst of requests needed.
async fn release_freed_memory(pause: Duration) {
    let mut timer = interval(pause);
    loop {
        timer.tick().await;
        // The call takes milliseconds if there is much to release.
        let _ = tokio::task::spawn_blocking(host::memory::release_freed).await;
    }
}

fn announce(config: &Config, listening: &HostListening) {
    let kind = welcome::kind(config);
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
}

/// Raises the limit on open files to the maximum, for daemons too; warns if connections may need more.
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
