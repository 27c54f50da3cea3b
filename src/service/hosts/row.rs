//! Hosts beside each other, as they were read last.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::HostName;
use crate::domain::layout::comparison::HeldLayout;
use crate::domain::saved_host::SavedHost;

/// Time for which readings of other hosts are used again, however many look at them.
const FRESH: Duration = Duration::from_secs(4);
/// Time for which a host that could not be read keeps nobody waiting.
const DOWN: Duration = Duration::from_secs(60);

/// A host, and its reading or the reason why it cannot be read.
#[derive(Debug, Clone)]
pub struct HostState {
    /// The saved host; `None` for this one.
    pub saved: Option<SavedHost>,
    /// Its state.
    pub reading: Result<HostReading, String>,
}

/// The state of a host.
#[derive(Debug, Clone)]
pub struct HostReading {
    /// The name of its machine.
    pub hostname: String,
    /// True if it is simulated.
    pub simulated: bool,
    /// The version of its manager.
    pub manager_version: String,
    /// Number of its GPUs.
    pub gpus: usize,
    /// Number of its daemons.
    pub daemons: usize,
    /// Number of its daemons that are ready.
    pub ready_daemons: usize,
    /// Number of open incidents; at most 1000 are counted on another host.
    pub open_incidents: usize,
    /// Number of clients; at most 1000 are counted.
    pub clients: usize,
    /// The layouts of its daemons.
    pub layouts: Vec<HeldLayout>,
}

/// The last readings of the other hosts.
#[derive(Debug, Default)]
pub(in crate::service) struct OtherHosts(Mutex<BTreeMap<HostName, LastReading>>);

#[derive(Debug, Default)]
struct LastReading {
    /// Number of times that it was forgotten.
    changes: u64,
    /// When it was made, and of the host as it was saved at that time.
    made: Option<(Instant, i64, Result<HostReading, String>)>,
    /// The turn to read the host.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// A reading that was made before.
pub(super) struct Kept {
    pub(super) reading: Result<HostReading, String>,
    age: Duration,
}

impl Kept {
    /// Returns true if it is used as it is.
    pub(super) fn is_fresh(&self) -> bool {
        self.age < FRESH
    }

    /// Returns the reason why the host could not be read a moment ago: nobody waits for it again so soon.
    pub(super) fn why_down(&self) -> Option<&String> {
        self.reading.as_ref().err().filter(|_| self.age < DOWN)
    }
}

impl OtherHosts {
    /// Forgets the reading of a host, after something about it was changed.
    pub(super) fn forget(&self, host: &HostName) {
        let mut hosts = self.hosts();
        let last = hosts.entry(host.clone()).or_default();
        (last.changes, last.made) = (last.changes + 1, None);
    }

    /// Returns the number of times that the reading of a host was forgotten.
    pub(super) fn changes(&self, host: &HostName) -> u64 {
        self.hosts().get(host).map_or(0, |last| last.changes)
    }

    /// Returns the last reading of a host as it is saved now.
    pub(super) fn kept(&self, host: &SavedHost) -> Option<Kept> {
        let made = self.hosts().get(&host.name)?.made.clone();
        let (at, _, reading) = made.filter(|(_, saved_at, _)| *saved_at == host.saved_at)?;
        Some(Kept { reading, age: at.elapsed() })
    }

    /// Keeps a reading, unless it was forgotten since.
    pub(super) fn keep(&self, host: &SavedHost, since: u64, reading: Result<HostReading, String>) {
        let mut hosts = self.hosts();
        let last = hosts.entry(host.name.clone()).or_default();
        if last.changes == since {
            last.made = Some((Instant::now(), host.saved_at, reading));
        }
    }

    /// Returns the turn to read a host: one caller reads, and the others wait for it.
    pub(super) fn turn(&self, host: &HostName) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(&self.hosts().entry(host.clone()).or_default().turn)
    }

    fn hosts(&self) -> MutexGuard<'_, BTreeMap<HostName, LastReading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(saved_at: i64) -> SavedHost {
        let name = HostName::parse("gpu02").expect("a name");
        let url = serde_json::from_value("https://gpu02:8443".into()).expect("a URL");
        SavedHost { name, url, ca: None, saved_at, saved_by: "token:ada".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn failed_reading_is_used_for_a_minute() {
        let (others, host) = (OtherHosts::default(), host(1));
        others.keep(&host, others.changes(&host.name), Err("it did not answer".to_owned()));
        assert!(others.kept(&host).expect("kept").is_fresh());
        tokio::time::advance(FRESH).await;
        let kept = others.kept(&host).expect("kept");
        assert!(!kept.is_fresh() && kept.why_down().is_some());
        tokio::time::advance(DOWN).await;
        assert!(others.kept(&host).expect("kept").why_down().is_none(), "it may be up again");
    }

    #[test]
    fn reading_of_before_a_change_is_not_used() {
        let (others, first) = (OtherHosts::default(), host(1));
        let since = others.changes(&first.name);
        others.keep(&first, since, Err("refused".to_owned()));
        assert!(others.kept(&host(2)).is_none(), "it was saved again, with another token");
        others.forget(&first.name);
        others.keep(&first, since, Err("refused".to_owned()));
        assert!(others.kept(&first).is_none(), "it began before the change");
    }
}
