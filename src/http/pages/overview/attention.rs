//! What needs somebody: the worst first, each with why and with what to do about it.

use crate::clock::unix_ms;
use crate::domain::access::Actor;
use crate::domain::daemon::{Condition, DaemonStatus, DesiredState, Phase};
use crate::domain::event::{Event, EventFilter, Severity};
use crate::domain::layout::status::LayoutState;
use crate::domain::maintenance::MaintenanceState;
use crate::http::AppState;
use crate::http::pages::gpus::GpuRow;
use crate::http::pages::words::{Gauge, Moment, Tone};
use crate::http::problem::Problem;
use crate::service::events::Order;
use crate::service::host::HostView;
use crate::service::page::Page;

use super::DaemonRow;

/// How far back failures are told of, in milliseconds.
const LATELY_MS: i64 = 60 * 60 * 1000;
/// Failures that are looked through; those of one kind are told of once.
const FAILURES: u32 = 50;
/// Kinds of failures that are told of.
const KINDS: usize = 3;
/// How long before its end a certificate is told of, in milliseconds.
const CERTIFICATE_MS: i64 = 14 * 24 * 60 * 60 * 1000;

/// One thing that needs somebody.
pub(super) struct Attention {
    pub(super) tone: Tone,
    /// What it is, in a few words.
    pub(super) what: String,
    /// Why, as whoever found it says it, with the remedy in words where there is one.
    pub(super) why: String,
    /// When, where it is something that happened.
    pub(super) at: Option<Moment>,
    /// Where to see to it.
    pub(super) remedy: Remedy,
}

/// The place where something is seen to.
pub(super) struct Remedy {
    pub(super) href: String,
    pub(super) label: String,
}

impl Remedy {
    fn new(href: impl Into<String>, label: impl Into<String>) -> Self {
        Self { href: href.into(), label: label.into() }
    }
}

fn attention(tone: Tone, what: impl Into<String>, why: impl Into<String>, remedy: Remedy) -> Attention {
    Attention { tone, what: what.into(), why: why.into(), at: None, remedy }
}

/// Everything that needs somebody now, the worst first.
pub(super) async fn all(
    app: &AppState,
    actor: &Actor,
    daemons: &[DaemonRow],
    gpus: &[GpuRow],
) -> Result<Vec<Attention>, Problem> {
    let mut found = Vec::new();
    found.extend(of_host(&app.service.host(actor).await?));
    let maintenance = app.service.maintenance(actor).await?;
    found.extend(maintenance.state.map(of_maintenance));
    let rests = |row: &DaemonRow| maintenance.daemons.contains(&row.daemon.name);
    found.extend(daemons.iter().flat_map(|row| of_daemon(row, rests(row))));
    found.extend(gpus.iter().flat_map(of_gpu));
    let failures = failures(app, actor).await?;
    // What is so still is told of by what is so now.
    let is_told =
        |failure: &Attention| found.iter().any(|now| !now.why.is_empty() && failure.why.ends_with(&now.why));
    let failures: Vec<Attention> = failures.into_iter().filter(|failure| !is_told(failure)).collect();
    found.extend(failures);
    found.sort_by_key(|attention| attention.tone);
    Ok(found)
}

fn of_host(host: &HostView) -> Vec<Attention> {
    let mut found = Vec::new();
    let settings = || Remedy::new("/settings", "Settings");
    if let Some(read_only) = &host.read_only {
        let what = "Nothing is changed on this host";
        found.push(attention(Tone::Bad, what, &read_only.reason, settings()));
    }
    for condition in &host.conditions {
        let what = match condition.kind.as_str() {
            "DatabaseLost" => "The database is gone from its place",
            "DatabaseDamaged" => "The database is damaged",
            "WritesFail" => "Nothing can be written",
            "SocketLost" => "Commands on this host do not reach the manager",
            _ => "The database lost what was written last",
        };
        found.push(attention(Tone::Bad, what, &condition.message, settings()));
    }
    if host.listening.insecure {
        let why = "callers beyond this host are served without TLS, so everybody on the way can read and change what is sent: \
                   configure a certificate (docs/access.md)";
        found.push(attention(Tone::Warn, "Served without TLS", why, settings()));
    }
    if let Some(tls) = &host.listening.tls {
        if let Some(error) = &tls.reload_error {
            found.push(attention(Tone::Bad, "The new certificate is not used", error, settings()));
        }
        if tls.not_after - unix_ms() < CERTIFICATE_MS {
            let why = format!("it is valid until {}: put another in its place", Moment(tls.not_after));
            found.push(attention(Tone::Warn, "The certificate ends soon", why, settings()));
        }
    }
    // That a host has no scopes is said in its settings: without systemd there is nothing to be done about it.
    if host.isolation.private_mounts == Some(true) {
        let why = host.isolation.remarks.last().map_or("", String::as_str);
        found.push(attention(Tone::Warn, "Other processes may not find the daemons", why, settings()));
    }
    found
}

fn of_maintenance(state: MaintenanceState) -> Attention {
    let why = match state {
        MaintenanceState::Draining => {
            "its daemons take no new clients, and those that are there are waited for"
        }
        MaintenanceState::Quitting => "its daemons are being stopped",
        MaintenanceState::Active => "its daemons are down and the driver is not asked, until it is ended",
        MaintenanceState::Ending => "its daemons are being started again",
    };
    attention(Tone::Warn, "Maintenance", why, Remedy::new("/settings#maintenance", "See to it"))
}

/// What is to be said of a daemon; one that `rests` is stopped for maintenance, which is told of by itself.
fn of_daemon(row: &DaemonRow, rests: bool) -> Vec<Attention> {
    let name = &row.daemon.name;
    let mut found = Vec::new();
    let place = |below: &str, label: &str| Remedy::new(format!("/daemons/{name}{below}"), label);
    let Some(status) = &row.daemon.status else {
        let why = "nobody drives it, so nothing of it is kept as it should be";
        found.push(attention(Tone::Bad, format!("Daemon {name} is not driven"), why, place("", "Look")));
        return found;
    };
    let is_wanted = row.daemon.spec.desired_state == DesiredState::Running;
    let expected = match status.phase {
        Phase::Ready | Phase::Observed => true,
        Phase::Stopped => !is_wanted || rests,
        // What is told of the settings below is why it is not ready.
        Phase::Applying => status.drift.present,
        _ => false,
    };
    if !expected {
        let remedy = match status.phase {
            Phase::CrashLoop | Phase::BackOff => place("/logs", "Read its log"),
            Phase::Wedged => place("#actions", "Restart it"),
            Phase::Stopped => place("#actions", "Start it"),
            _ => place("", "Look"),
        };
        let what = format!("Daemon {name}: {}", row.stands.word);
        found.push(attention(row.stands.tone, what, why(status), remedy));
    }
    if !row.daemon.spec.schedulable {
        let why = "no process is let in, and those that are there go on";
        let what = format!("Daemon {name} is cordoned");
        found.push(attention(Tone::Quiet, what, why, place("#actions", "Uncordon it")));
    }
    if status.drift.present {
        let what = format!("Settings of daemon {name} were changed by somebody else");
        let last: Vec<String> = status.drift.last.iter().map(ToString::to_string).collect();
        found.push(attention(Tone::Warn, what, last.join("; "), place("#drift", "Compare")));
    }
    if let Some(layout) = &status.layout {
        let what = |word: &str| format!("The layout of daemon {name} {word}");
        let found_here = match layout.state {
            LayoutState::Drifted => {
                let why = "somebody else made or removed partitions since it was applied";
                Some((Tone::Warn, what("has drifted"), why.to_owned()))
            }
            LayoutState::Degraded => {
                let why = "something had to be undone or put back, and not all is as it was";
                Some((Tone::Warn, what("is degraded"), why.to_owned()))
            }
            LayoutState::Failed => {
                let why = layout.failure.as_ref().map(|failure| failure.message.clone());
                Some((Tone::Bad, what("is not in force"), why.unwrap_or_default()))
            }
            LayoutState::Pending | LayoutState::Applying | LayoutState::Applied => None,
        };
        let see = || place("#layout", "Look at it");
        found.extend(found_here.map(|(tone, what, why)| attention(tone, what, why, see())));
    }
    let waiting: usize = status.queue.iter().map(|queue| queue.waiting.len()).sum();
    if waiting > 0 {
        let what = format!("{waiting} wait for daemon {name}");
        let why = "it serves one user at a time, and they wait until the clients of another user are gone";
        found.push(attention(Tone::Warn, what, why, place("#clients", "See whom they wait for")));
    }
    found
}

/// Why a daemon is not ready, in its own words.
fn why(status: &DaemonStatus) -> String {
    let told = |condition: &&Condition| !condition.status && !condition.message.is_empty();
    status.conditions.iter().find(told).map(|condition| condition.message.clone()).unwrap_or_default()
}

fn of_gpu(row: &GpuRow) -> Vec<Attention> {
    let mut found = Vec::new();
    let called = row.called();
    let look = || Remedy::new(format!("/gpus/{}", row.key()), "Look");
    if !row.gpu.present {
        let why = "the driver does not list it, or cannot describe it, and a daemon holds it: see to the host, or put another in \
                   its place";
        found.push(attention(Tone::Bad, format!("{called} is missing"), why, look()));
    }
    // A GPU that nobody manages is nobody's to hold.
    if row.bypasses > 0 && row.gpu.daemon.is_some() {
        let what = match row.bypasses {
            1 => format!("1 process goes past MPS on {called}"),
            several => format!("{several} processes go past MPS on {called}"),
        };
        let why = "no limit holds it: end it, or set the daemon's compute mode to exclusive_process";
        found.push(attention(Tone::Warn, what, why, look()));
    }
    if let Some(memory) = row.memory.filter(Gauge::is_overcommitted) {
        let why = format!(
            "{} are promised to tenants of {} that there are: {} more than all can have at once",
            memory.promised,
            memory.total,
            memory.over()
        );
        found.push(attention(Tone::Quiet, format!("The memory of {called} is over-committed"), why, look()));
    }
    found
}

/// What failed lately, the last first; what failed in the same way before is counted.
async fn failures(app: &AppState, actor: &Actor) -> Result<Vec<Attention>, Problem> {
    let filter = EventFilter {
        severity: Some(Severity::Error),
        since: Some(unix_ms() - LATELY_MS),
        ..EventFilter::default()
    };
    let page = Page::first(FAILURES);
    let events = app.service.events(actor, filter, Order::NewestFirst, &page).await?.items;
    let alike =
        |one: &Event, other: &Event| one.kind == other.kind && one.subject.daemon == other.subject.daemon;
    let newest = |at: &usize| !events[..*at].iter().any(|newer| alike(newer, &events[*at]));
    let mut told = Vec::new();
    for at in (0..events.len()).filter(newest).take(KINDS) {
        let event = &events[at];
        let meaning = event.kind.meaning().trim_end_matches('.');
        let (what, remedy) = match events.iter().filter(|other| alike(other, event)).count() {
            1 => (meaning.to_owned(), Remedy::new(format!("/events/{}", event.id), "The event")),
            times => {
                let all = format!("/events?type={}&within=1h", event.kind.as_str());
                (format!("{meaning}, {times} times in the last hour"), Remedy::new(all, "The events"))
            }
        };
        let fault = app.service.fault(actor, event.clone()).await?;
        let why = match fault.over {
            Some(_) => format!("it is over: {}", event.message),
            None => event.message.clone(),
        };
        // It happened; whether it is so still is told by what is so now.
        told.push(Attention { tone: Tone::Quiet, what, why, at: Some(Moment(event.at)), remedy });
    }
    Ok(told)
}
