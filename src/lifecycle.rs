//! From ready to gone: systemd's notifications, and the two ways to stop.
//!
//! The first SIGTERM or SIGINT is a soft stop: no new requests, what is under way finishes, the store is closed;
//! daemons and their clients run on. The second one, or [`SOFT_STOP`] running out, is a hard stop: the process
//! ends at once, which is safe at any time.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Longest time for a soft stop.
pub const SOFT_STOP: Duration = Duration::from_secs(30);

/// Signals that stop the process.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Takes the signals over; from here on they no longer end the process by themselves.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for one of them.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Cancels `stop` at the first signal; ends the process at the second, or when the soft stop takes too long.
///
/// `effect` says what becomes of daemons and their clients.
pub async fn watch(mut signals: StopSignals, stop: CancellationToken, effect: &'static str) {
    signals.next().await;
    tracing::info!("stopping; {effect}");
    notify("STOPPING=1");
    stop.cancel();
    tokio::select! {
        () = signals.next() => tracing::warn!("second stop request: ending at once"),
        () = tokio::time::sleep(SOFT_STOP) => tracing::error!("the soft stop took too long: ending at once"),
    }
    std::process::exit(1);
}

/// Notifies systemd, if it started us.
pub fn ready(status: &str) {
    notify(&format!("READY=1\nSTATUS={status}"));
}

fn notify(message: &str) {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Custom(message)]) {
        tracing::debug!(%error, "systemd was not notified");
    }
}
