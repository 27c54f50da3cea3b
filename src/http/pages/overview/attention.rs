//! Conditions that need attention: worst first, each with its cause and remedy.

use crate::domain::condition::{Condition, ConditionType};
use crate::domain::daemon::{DaemonStatus, DesiredState, Phase};
use crate::domain::incident::IncidentKind;
use crate::domain::layout::status::LayoutState;
use crate::domain::listening::RENEWAL_MS;
use crate::domain::maintenance::MaintenanceState;
use crate::http::extract::Call;
use crate::http::pages::banner::Banner;
use crate::http::pages::daemons::DaemonSummary;
use crate::http::pages::format::{Gauge, Moment, Tone};
use crate::http::pages::frame::PageLink;
use crate::http::pages::gpus::{GpuRow, PicturedGpu};
use crate::http::pages::settings::maintenance;
use crate::http::problem::Problem;
use crate::service::host::HostView;

/// One thing that needs attention.
pub(super) struct Attention {
    pub(super) tone: Tone,
    /// A short title.
    pub(super) what: String,
    /// The cause, as reported, with a remedy if there is one.
    pub(super) why: String,
    /// Link to the place where it can be handled.
    pub(super) remedy: PageLink,
}

fn attention(tone: Tone, what: impl Into<String>, why: impl Into<String>, remedy: PageLink) -> Attention {
    Attention { tone, what: what.into(), why: why.into(), remedy }
}

/// Returns everything that needs attention now, worst first, except what the banner above shows as an incident.
pub(super) async fn all(
    call: &Call,
    daemons: &[DaemonSummary],
    gpus: &[PicturedGpu],
    banner: &Banner,
) -> Result<Vec<Attention>, Problem> {
    let Call { app, ctx } = call;
    let mut items = Vec::new();
    let host = app.service.host(ctx).await?;
    items.extend(of_host(&host, call.now()));
    // While the manager waits for the driver, the GPUs are unknown, and are not reported as missing in addition.
    if host.read_only.is_some_and(|read_only| read_only.waiting_for_driver) {
        return Ok(items);
    }
    let maintenance = app.service.maintenance(ctx, false).await?;
    items.extend(maintenance.state.map(of_maintenance));
    let rests = |row: &DaemonSummary| maintenance.daemons.contains(&row.daemon.name);
    items.extend(daemons.iter().flat_map(|row| of_daemon(row, rests(row), banner)));
    items.extend(gpus.iter().flat_map(|(row, _)| of_gpu(row, banner)));
    items.sort_by_key(|attention| attention.tone);
    Ok(items)
}

fn of_host(host: &HostView, now: i64) -> Vec<Attention> {
    let mut items = Vec::new();
    let settings = || PageLink::new("/settings", "Settings");
    if let Some(read_only) = host.read_only.as_ref().filter(|read_only| !read_only.waiting_for_driver) {
        let what = "This host is read-only";
        items.push(attention(Tone::Bad, what, &read_only.reason, settings()));
    }
    for condition in &host.conditions {
        let what = match condition.kind {
            ConditionType::DatabaseLost => "The database file is missing",
            ConditionType::DatabaseDamaged => "The database is damaged",
            ConditionType::WritesFail => "Nothing can be written",
            ConditionType::StateDiskFull => "The disk of the state directory is full",
            ConditionType::SocketLost => "Commands on this host cannot reach the manager",
            ConditionType::WaitingForDriver => "The NVIDIA driver is not here yet",
            ConditionType::HostFileNotApplied => "The host file of the start is not applied",
            ConditionType::EngineFilesNotWritten => "Container engines and systemd are not given the tenants",
            _ => "The database lost its last writes",
        };
        items.push(attention(Tone::Bad, what, &condition.message, settings()));
    }
    if host.listening.insecure {
        let why = "callers beyond this host are served without TLS, so anyone on the network can read and change what is sent: \
                   configure a certificate (docs/wire.md)";
        items.push(attention(Tone::Warn, "Served without TLS", why, settings()));
    }
    if let Some(tls) = &host.listening.tls {
        if let Some(error) = &tls.reload_error {
            items.push(attention(Tone::Bad, "The new certificate is not in use", error, settings()));
        }
        if tls.not_after - now < RENEWAL_MS {
            let why = format!("it is valid until {}: replace it", Moment(tls.not_after));
            items.push(attention(Tone::Warn, "The certificate expires soon", why, settings()));
        }
    }
    // Missing scopes are shown in the settings: without systemd nothing can be done about it.
    if host.isolation.private_mounts == Some(true) {
        let why = host.isolation.remarks.last().map_or("", String::as_str);
        items.push(attention(Tone::Warn, "Other processes may not find the daemons", why, settings()));
    }
    items
}

fn of_maintenance(state: MaintenanceState) -> Attention {
    let place = PageLink::new("/settings#maintenance", "Show maintenance");
    attention(Tone::Warn, "Maintenance", maintenance(state), place)
}

/// The conditions of a daemon; one that `rests` is stopped for maintenance, which is shown separately.
fn of_daemon(row: &DaemonSummary, rests: bool, banner: &Banner) -> Vec<Attention> {
    let name = &row.daemon.name;
    let mut items = Vec::new();
    let place = |below: &str, label: &str| PageLink::new(format!("/daemons/{name}{below}"), label);
    let Some(status) = &row.daemon.status else {
        let what = format!("Daemon {name} is not looked after");
        let why = "nothing is known of it and nothing is changed, until the manager looks after it again";
        return vec![attention(Tone::Bad, what, why, place("", "Show daemon"))];
    };
    let is_wanted = row.daemon.spec.desired_state == DesiredState::Running;
    let died: &[IncidentKind] = &[IncidentKind::DaemonDied, IncidentKind::CrashLoop];
    let (log, page) = (("/logs", "Read its log"), ("", "Show daemon"));
    // A phase that is expected, the incidents that show it already, and what helps.
    let (expected, covered, (below, remedy)) = match status.phase {
        Phase::Ready | Phase::Observed => (true, &[][..], page),
        Phase::Stopped => (!is_wanted || rests, &[][..], ("#actions", "Start it")),
        // The drifted settings listed below are why it is not ready.
        Phase::Applying => (status.drift.present, &[IncidentKind::NoServer][..], page),
        Phase::Wedged => (false, &[IncidentKind::DaemonWedged][..], ("#actions", "Restart it")),
        Phase::Starting => (false, died, page),
        Phase::BackOff | Phase::CrashLoop => (false, died, log),
        Phase::Blocked => (false, &[IncidentKind::GpuMissing][..], page),
        Phase::Unknown | Phase::Stopping | Phase::Absent => (false, &[][..], page),
    };
    if !expected && !banner.covers(name, covered) {
        let what = format!("Daemon {name}: {}", row.badge.words());
        items.push(attention(row.badge.tone, what, why(status), place(below, remedy)));
    }
    if !row.daemon.spec.schedulable {
        let why = "it takes no new processes; connected ones keep running";
        let what = format!("Daemon {name} is cordoned");
        items.push(attention(Tone::Quiet, what, why, place("#actions", "Uncordon it")));
    }
    if status.drift.present && !banner.covers(name, &[IncidentKind::Drift]) {
        let what = format!("Settings of daemon {name} were changed by someone else");
        let last: Vec<String> = status.drift.last.iter().map(ToString::to_string).collect();
        items.push(attention(Tone::Warn, what, last.join("; "), place("#drift", "Compare")));
    }
    if let Some(layout) = &status.layout {
        let drifted = "someone else created or removed partitions after it was applied";
        let degraded = "changes were undone, but not everything is as before";
        let failed = layout.failure.as_ref().map_or("", |failure| failure.message.as_str());
        let problem = match layout.state {
            LayoutState::Drifted => Some((Tone::Warn, "has drifted", drifted, IncidentKind::Drift)),
            LayoutState::Degraded => {
                Some((Tone::Warn, "is degraded", degraded, IncidentKind::LayoutDegraded))
            }
            LayoutState::Failed => Some((Tone::Bad, "is not applied", failed, IncidentKind::LayoutIdsDiffer)),
            LayoutState::Pending | LayoutState::Applying | LayoutState::Applied => None,
        };
        let problem = problem.filter(|(.., covered)| !banner.covers(name, &[*covered]));
        items.extend(problem.map(|(tone, word, why, _)| {
            let what = format!("The layout of daemon {name} {word}");
            attention(tone, what, why, place("#layout", "Show layout"))
        }));
    }
    let waiting: usize = status.queue.iter().map(|queue| queue.waiting.len()).sum();
    if waiting > 0 {
        let what = format!("{waiting} wait for daemon {name}");
        let why = "it serves one user at a time, so they wait until the clients of another user have ended";
        items.push(attention(Tone::Warn, what, why, place("#clients", "Show its clients")));
    }
    items
}

/// Returns the reason for which a daemon is not ready, from its conditions.
fn why(status: &DaemonStatus) -> String {
    let failing = |condition: &&Condition| !condition.status && !condition.message.is_empty();
    status.conditions.iter().find(failing).map(|condition| condition.message.clone()).unwrap_or_default()
}

fn of_gpu(row: &GpuRow, banner: &Banner) -> Vec<Attention> {
    let mut items = Vec::new();
    let called = row.called();
    let open = || PageLink::new(format!("/gpus/{}", row.key()), "Show GPU");
    let is_covered = |kind| banner.covers_gpu(row.key(), kind);
    if !row.gpu.present && !is_covered(IncidentKind::GpuMissing) {
        let why = "the driver does not list it, or cannot describe it, but a daemon needs it: check the host, or replace the GPU";
        items.push(attention(Tone::Bad, format!("{called}: its daemon is blocked"), why, open()));
    }
    // A GPU without a daemon is not monitored for bypasses.
    if row.bypasses > 0 && row.gpu.daemon.is_some() && !is_covered(IncidentKind::Bypass) {
        let what = match row.bypasses {
            1 => format!("1 process bypasses MPS on {called}"),
            several => format!("{several} processes bypass MPS on {called}"),
        };
        let why = "no limit applies to it: end it, or set the daemon's compute mode to exclusive_process";
        items.push(attention(Tone::Warn, what, why, open()));
    }
    if let Some(memory) = row.memory.filter(Gauge::is_overcommitted) {
        let (over, limits, total) = (memory.over(), memory.limits, memory.total);
        let what = format!("{called}: limits exceed memory by {over} ({limits} of {total})");
        let why = "its tenants cannot use all of their limits at once";
        items.push(attention(Tone::Quiet, what, why, open()));
    }
    items
}
