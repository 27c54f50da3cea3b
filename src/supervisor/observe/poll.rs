//! One poll of a daemon: wrong settings are written, then everything is read, in one session.
//!
//! A poll costs one control process, however many values it reads, and more only when others keep the daemon busy.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::exact_limits::WrittenLimits;
use super::log_tail::Logs;
use super::mlopart::MlopartReading;
use super::partition_listing::by_gpu;
use super::poll_outcome::{PollOutcome, unanswered};
use crate::domain::client::{ClientFacts, ClientId, MountedDirectories};
use crate::domain::daemon::{Effective, MemoryReading, Server, ServerStatus};
use crate::domain::difference::SettingDifference;
use crate::domain::environment::{
    MAX_CONNECTIONS, MEMORY_LIMITS, SM_PARTITION, TENANT_HINT, THREAD_PERCENTAGE, memory_limits,
};
use crate::domain::gpu::GpuProcess;
use crate::domain::mlopart::MlopartDevice;
use crate::domain::occupancy::{CONNECTIONS, USUAL_CONNECTIONS};
use crate::domain::partitions;
use crate::domain::plan::Desired;
use crate::domain::{GpuUuid, MemoryLimit, ThreadPercentage};
use crate::gpu::Inventory;
use crate::host::{self, Identity};
use crate::mps::parse::{self, Clients, LimitReading, ParseError};
use crate::mps::{Command, ControlChannel, ControlSession, DeviceSelector, SessionError};
use crate::supervisor::handout::Handouts;

/// Pause before a daemon is read again that still lists a dead server. [`UNNOTICED`] is the longest time for such retries.
const UNNOTICED_POLL: Duration = Duration::from_millis(10);
const UNNOTICED: Duration = Duration::from_secs(2);

/// Most further reads of a daemon to which another program keeps writing.
const REREADS: u32 = 3;

/// UUID that no GPU has.
const NO_GPU: &str = "GPU-00000000-0000-0000-0000-000000000000";

/// Longest time for a poll of a daemon whose server is known to hang.
pub(crate) const HUNG_DEADLINE: Duration = Duration::from_secs(1);

/// Daemon to poll.
#[derive(Clone, Copy)]
pub(crate) struct PollTarget<'s> {
    /// Channel to the daemon.
    pub(crate) control: &'s dyn ControlChannel,
    /// GPUs whose partitions it lists, according to its start and not to the desired state.
    pub(crate) partitioned: &'s [GpuUuid],
    /// Longest time for a session.
    pub(crate) deadline: Duration,
    /// True if the daemon reports whether a server takes clients; otherwise the logs show it.
    pub(crate) server_status: bool,
    /// Which servers' devices are read; `None` if this version of MPS has no MLOPart devices.
    pub(crate) mlopart: Option<MlopartReading<'s>>,
    /// GPUs of this host, which know the memory of each process.
    pub(crate) inventory: &'s Arc<dyn Inventory>,
    /// Sockets of tenants, which show the tenant of a process.
    pub(crate) handouts: &'s Arc<Handouts>,
}

/// Reason why a poll ended early.
enum PollError {
    Session(SessionError),
    Unreadable(ParseError),
    /// The partitions do not fit the daemon's GPUs.
    Partitions(String),
    /// The daemon lists a server that is dead or dying: it has not noticed yet, and would ignore a `start_server`.
    Dying(u32),
}

impl From<SessionError> for PollError {
    fn from(error: SessionError) -> Self {
        Self::Session(error)
    }
}

impl From<ParseError> for PollError {
    fn from(error: ParseError) -> Self {
        Self::Unreadable(error)
    }
}

/// Writes the `wrong` settings and reads everything. The list of clients is empty unless everything was read.
pub(crate) async fn sync(
    target: PollTarget<'_>,
    logs: &mut Logs,
    desired: &Desired,
    wrong: &[SettingDifference],
    written: &mut WrittenLimits,
    now: i64,
) -> (PollOutcome, Vec<ClientFacts>) {
    written.begin(wrong);
    let began = Instant::now();
    let sessions = logs.state().own_sessions();
    let mut to_write = wrong;
    let (mut rereads, mut before) = (0, None);
    loop {
        let answered = tokio::select! {
            answered = once(target, desired, to_write, now) => answered,
            () = shows_hang(logs, &desired.gpus) => {
                let what = "it did not answer, and server.log shows that its server hangs".to_owned();
                return (PollOutcome::Unanswered(what), Vec::new());
            }
        };
        // A successful read is not lost because the next one fails.
        let (answered, is_last) = match (answered, before.take()) {
            (Err(_), Some(read)) => (Ok(read), true),
            (answered, _) => (answered, rereads == REREADS || desired.is_observed()),
        };
        match answered {
            Ok((mut effective, rows)) => {
                written.done(wrong, desired);
                // Also where control.log does not show these commands.
                for difference in to_write {
                    logs.wrote(&correction(desired, difference).line());
                }
                logs.read(&desired.gpus);
                logs.note_session(sessions);
                if !is_last && logs.state().overwrites().newer {
                    // The getters may show values from before another program's command: the two do not fit together.
                    (rereads, before, to_write) = (rereads + 1, Some((effective, rows)), &[]);
                    continue;
                }
                if logs.take_lost() {
                    // Another program may have written values that the getters do not show exactly.
                    written.clear();
                }
                // A daemon that is only observed has no desired settings.
                let changed = |setting| {
                    let desired_command = correction(desired, &setting).line();
                    !desired.is_observed() && logs.state().overwrites().undo(&desired_command)
                };
                written.resolve(&mut effective, logs.state().limits(), desired.percentage, changed);
                name_users(&mut effective, logs);
                if !target.server_status {
                    derive_statuses(&mut effective, logs);
                }
                let parts: Vec<MlopartDevice> = effective.mlopart_devices().cloned().collect();
                let clients = clients(target, &desired.gpus, &parts, rows).await;
                place(&mut effective, &clients);
                return (PollOutcome::Seen(effective), clients);
            }
            Err(PollError::Dying(_)) if began.elapsed() < UNNOTICED => {
                tokio::time::sleep(UNNOTICED_POLL).await;
            }
            Err(error) => return (failed(error), Vec::new()),
        }
    }
}

/// Completes when the log shows that a server hangs, but not before a healthy daemon would have answered. No session thus
/// waits until its deadline for a daemon that will not answer.
async fn shows_hang(logs: &mut Logs, gpus: &[GpuUuid]) {
    loop {
        tokio::time::sleep(HUNG_DEADLINE).await;
        logs.read(gpus);
        if logs.shows_hang() {
            return;
        }
    }
}

/// Settings and clients of a foreign daemon.
#[derive(Debug, Clone, PartialEq)]
pub struct ForeignPoll {
    /// Settings of the daemon, with devices named by ordinal.
    pub effective: Effective,
    /// GPUs for which it also has a default limit under their UUID, which MPS keeps apart.
    pub limited_by_uuid: Vec<GpuUuid>,
    /// Clients of the daemon.
    pub clients: Vec<ClientFacts>,
}

/// Reads a foreign daemon in one session, and writes nothing; fails with the reason if it cannot be read.
pub(crate) async fn foreign(
    target: PollTarget<'_>,
    log_directory: &Path,
    gpus: &[GpuUuid],
    now: i64,
) -> Result<ForeignPoll, String> {
    let reading = async {
        let mut session = target.control.session(Instant::now() + target.deadline)?;
        let (mut effective, rows) = read(&mut *session, gpus, target, now).await?;
        let mut limited_by_uuid = Vec::new();
        for gpu in gpus {
            let device = DeviceSelector::Uuid(gpu.clone());
            let reply = session.send(&Command::GetDefaultMemoryLimit { device }).await?;
            if parse::memory_limit(&reply)?.is_some() {
                limited_by_uuid.push(gpu.clone());
            }
        }
        if !limited_by_uuid.is_empty() {
            // Programs before 13.0 read a UUID that they do not know as ordinal 0 (recording 22): the answers above were then
            // those of ordinal 0.
            let device = DeviceSelector::Uuid(GpuUuid::parse(NO_GPU).expect("it is spelled as one"));
            let reply = session.send(&Command::GetDefaultMemoryLimit { device }).await?;
            if parse::memory_limit(&reply)?.is_some() {
                limited_by_uuid.clear();
            }
        }
        effective.control_processes = session.processes();
        session.close().await;
        Ok::<_, PollError>((effective, limited_by_uuid, rows))
    };
    let (mut effective, limited_by_uuid, rows) = reading.await.map_err(|error| {
        let outcome = failed(error);
        outcome.failure().unwrap_or("it could not be read").to_owned()
    })?;
    let logs = Logs::read_once(log_directory, gpus);
    // The writers of its settings are not followed here, so values that a getter rounds stay unknown.
    WrittenLimits::default()
        .resolve(&mut effective, logs.state().limits(), ThreadPercentage::FULL, |_| false);
    name_users(&mut effective, &logs);
    if !target.server_status {
        derive_statuses(&mut effective, &logs);
    }
    let clients = clients(target, gpus, &[], rows).await;
    place(&mut effective, &clients);
    Ok(ForeignPoll { effective, limited_by_uuid, clients })
}

async fn once(
    target: PollTarget<'_>,
    desired: &Desired,
    wrong: &[SettingDifference],
    now: i64,
) -> Result<(Effective, Vec<parse::ClientRow>), PollError> {
    let mut session = target.control.session(Instant::now() + target.deadline)?;
    for difference in wrong {
        session.send(&correction(desired, difference)).await?;
    }
    let (mut effective, rows) = read(&mut *session, &desired.gpus, target, now).await?;
    effective.control_processes = session.processes();
    session.close().await;
    Ok((effective, rows))
}

fn failed(error: PollError) -> PollOutcome {
    match error {
        PollError::Session(error) => unanswered(error),
        PollError::Unreadable(error) => PollOutcome::Unreadable(error.to_string()),
        PollError::Partitions(why) => PollOutcome::Unreadable(why),
        PollError::Dying(server) => PollOutcome::Unreadable(format!(
            "the daemon has listed server {server}, which is dead or dies, for {} s without noticing",
            UNNOTICED.as_secs()
        )),
    }
}

/// Reads all settings, servers, partitions and clients; the position of a GPU is its ordinal.
async fn read(
    session: &mut dyn ControlSession,
    gpus: &[GpuUuid],
    target: PollTarget<'_>,
    now: i64,
) -> Result<(Effective, Vec<parse::ClientRow>), PollError> {
    let first = DeviceSelector::Ordinal(0);
    let [pids, percentage, first_limit, priority] = together(
        session,
        [
            Command::GetServerList,
            Command::GetDefaultThreadPercentage,
            Command::GetDefaultMemoryLimit { device: first },
            Command::GetDefaultPriority,
        ],
    )
    .await?;
    let pids = parse::server_list(&pids)?;
    let percentage = parse::percentage(&percentage)?;
    let priority = parse::priority(&priority)?;
    let mut default_memory_limits = Vec::new();
    for (ordinal, (device, gpu)) in devices(gpus).enumerate() {
        let limit = match ordinal {
            0 => parse::memory_limit(&first_limit)?,
            _ => parse::memory_limit(&session.send(&Command::GetDefaultMemoryLimit { device }).await?)?,
        };
        default_memory_limits.push(reading(gpu, limit));
    }
    let mut servers = Vec::new();
    for pid in pids {
        if let Some(server) = read_server(session, gpus, pid, target.server_status).await? {
            servers.push(server);
        }
    }
    if let Some(reading) = target.mlopart {
        if reading.is_due(&servers) {
            let listed = session.send(&Command::DeviceQuery { server: None }).await?;
            match parse::device_query(&listed) {
                Ok(listed) => reading.fill(&mut servers, &listed, gpus),
                Err(unreadable) if reading.are_desired => return Err(unreadable.into()),
                Err(_) => reading.keep(&mut servers),
            }
        } else {
            reading.keep(&mut servers);
        }
    }
    let rows = match parse::clients(&session.send(&Command::Ps { server: None }).await?)? {
        Clients::ServerNotFound => Vec::new(),
        Clients::Listed { rows, .. } => rows,
    };
    let partitions = if target.partitioned.is_empty() {
        None
    } else {
        let listing = parse::lspart(&session.send(&Command::Lspart).await?)?;
        Some(by_gpu(listing, target.partitioned).map_err(PollError::Partitions)?)
    };
    // Of a server that dies meanwhile the daemon answers nothing, which reads like a limit that is not set.
    if let Some(dying) = servers.iter().find(|server| host::process::is_ending(Identity::from(*server))) {
        return Err(PollError::Dying(dying.pid));
    }
    let effective = Effective {
        observed_at: now,
        control_processes: 0,
        default_active_thread_percentage: Some(percentage),
        default_priority: Some(priority),
        default_memory_limits,
        servers,
        partitions,
    };
    Ok((effective, rows))
}

/// Sends read commands together and returns their replies.
async fn together<const N: usize>(
    session: &mut dyn ControlSession,
    commands: [Command; N],
) -> Result<[Vec<u8>; N], SessionError> {
    let replies = session.send_together(&commands).await?;
    Ok(replies.try_into().expect("a reply to each command"))
}

/// Reads a server; returns `None` if it ended while the daemon was being read.
async fn read_server(
    session: &mut dyn ControlSession,
    gpus: &[GpuUuid],
    pid: u32,
    says_status: bool,
) -> Result<Option<Server>, PollError> {
    let percentage = Command::GetThreadPercentage { server: pid };
    let first_limit = Command::GetMemoryLimit { server: pid, device: DeviceSelector::Ordinal(0) };
    let (percentage, first_limit, status) = if says_status {
        let status = Command::GetServerStatus { server: pid };
        let [percentage, first_limit, status] = together(session, [percentage, first_limit, status]).await?;
        let Some(status) = parse::server_status(&status)? else { return Ok(None) };
        (percentage, first_limit, status)
    } else {
        // Derived from the logs, once they are read up to here.
        let status = ServerStatus::Other(String::new());
        (session.send(&percentage).await?, session.send(&first_limit).await?, status)
    };
    let Some(identity) = host::process::identify(pid) else { return Err(PollError::Dying(pid)) };
    let percentage = parse::server_percentage(&percentage).map_err(|error| dying(pid, error))?;
    let Some(percentage) = percentage else { return Err(PollError::Dying(pid)) };
    let mut memory_limits = Vec::new();
    for (ordinal, (device, gpu)) in devices(gpus).enumerate() {
        let limit = match ordinal {
            0 => parse::memory_limit(&first_limit),
            _ => parse::memory_limit(&session.send(&Command::GetMemoryLimit { server: pid, device }).await?),
        };
        let limit = limit.map_err(|error| dying(pid, error))?;
        memory_limits.push(reading(gpu, limit));
    }
    Ok(Some(Server {
        pid,
        start_time: identity.start_time,
        uid: host::process::uid(pid),
        status,
        active_thread_percentage: Some(percentage),
        memory_limits,
        mlopart_devices: None,
        held_by: Vec::new(),
    }))
}

/// Interprets an error about a server that was listed a moment ago: if it is no longer found, it has just ended.
fn dying(server: u32, error: ParseError) -> PollError {
    match error {
        ParseError::ServerNotFound { .. } => PollError::Dying(server),
        error => PollError::Unreadable(error),
    }
}

/// Returns the command that corrects one setting.
fn correction(desired: &Desired, difference: &SettingDifference) -> Command {
    let device = |ordinal: usize| DeviceSelector::Ordinal(u32::try_from(ordinal).unwrap_or(u32::MAX));
    let limit =
        |ordinal: usize| -> Option<MemoryLimit> { desired.memory_limits.get(ordinal).copied().flatten() };
    match *difference {
        SettingDifference::DefaultPercentage => Command::SetDefaultThreadPercentage(desired.percentage),
        SettingDifference::DefaultPriority => Command::SetDefaultPriority(desired.priority),
        SettingDifference::DefaultMemory(ordinal) => {
            Command::SetDefaultMemoryLimit { device: device(ordinal), limit: limit(ordinal) }
        }
        SettingDifference::ServerPercentage(server) => {
            Command::SetThreadPercentage { server, percentage: desired.percentage }
        }
        SettingDifference::ServerMemory(server, ordinal) => {
            Command::SetMemoryLimit { server, device: device(ordinal), limit: limit(ordinal) }
        }
    }
}

fn devices(gpus: &[GpuUuid]) -> impl Iterator<Item = (DeviceSelector, &GpuUuid)> {
    (0..).map(DeviceSelector::Ordinal).zip(gpus)
}

fn reading(gpu: &GpuUuid, limit: Option<LimitReading>) -> MemoryReading {
    let (bytes, unreadable) = match limit {
        None => (None, None),
        Some(LimitReading::Whole(limit)) => (Some(limit.bytes()), None),
        Some(LimitReading::Nonsense(text)) => (None, Some(text)),
    };
    MemoryReading { gpu: gpu.clone(), bytes, exact: unreadable.is_none(), unreadable, in_server_log: None }
}

/// Fills in the user of each server: the process's user, or, where that is root, who may serve anybody, the user that
/// control.log names. The user of a server whose start the log no longer shows stays unknown.
fn name_users(effective: &mut Effective, logs: &Logs) {
    for server in &mut effective.servers {
        server.uid = server.uid.filter(|uid| *uid != 0).or_else(|| logs.state().user_of(server.pid));
    }
}

/// Fills in the status of each server according to the logs.
fn derive_statuses(effective: &mut Effective, logs: &Logs) {
    let alive = |pid| host::process::identify(pid).is_some();
    for server in &mut effective.servers {
        server.status = logs.state().status_of(server.pid, alive);
    }
}

/// Places the clients in the partitions that they named.
fn place(effective: &mut Effective, clients: &[ClientFacts]) {
    if let Some(listed) = &mut effective.partitions {
        partitions::place(listed, clients);
    }
}

/// Joins the daemon's list of clients with /proc and the driver's memory figures.
async fn clients(
    target: PollTarget<'_>,
    gpus: &[GpuUuid],
    parts: &[MlopartDevice],
    rows: Vec<parse::ClientRow>,
) -> Vec<ClientFacts> {
    if rows.is_empty() {
        return Vec::new();
    }
    let inventory = Arc::clone(target.inventory);
    let handouts = Arc::clone(target.handouts);
    let gpus = gpus.to_vec();
    let pids: Vec<u32> = rows.iter().map(|row| row.pid).collect();
    let (memory, mut mounted) = tokio::task::spawn_blocking(move || {
        let memory: Vec<(GpuUuid, Vec<GpuProcess>)> = gpus
            .into_iter()
            .map(|gpu| {
                let processes = inventory.processes(&gpu).unwrap_or_else(|error| {
                    // A suspended or timed-out driver was reported already; the clients' memory is unknown meanwhile.
                    if error.is_news() {
                        tracing::warn!(%gpu, %error, "the driver did not list the processes of the GPU");
                    }
                    Vec::new()
                });
                (gpu, processes)
            })
            .collect();
        (memory, handouts.mounted_in(pids))
    })
    .await
    .unwrap_or_default();
    let boot_time = host::boot_time();
    let with_mounts = |row: parse::ClientRow| {
        let mounted = mounted.remove(&row.pid).unwrap_or_default();
        facts(row, &memory, parts, mounted, boot_time)
    };
    rows.into_iter().filter_map(with_mounts).collect()
}

fn facts(
    row: parse::ClientRow,
    memory: &[(GpuUuid, Vec<GpuProcess>)],
    parts: &[MlopartDevice],
    mounted: MountedDirectories,
    boot_time: i64,
) -> Option<ClientFacts> {
    // A client that is gone already is left out.
    let identity = host::process::identify(row.pid)?;
    let environment = host::process::environ(row.pid);
    let variable = |wanted: &str| {
        let (_, value) = environment.as_ref()?.iter().find(|(name, _)| name == wanted)?;
        value.to_str().map(str::to_owned)
    };
    let devices: Vec<&GpuUuid> = memory.iter().map(|(gpu, _)| gpu).collect();
    let memory = memory
        .iter()
        .filter_map(|(gpu, processes)| {
            let process = processes.iter().find(|process| process.pid == row.pid)?;
            Some((gpu.clone(), process.used_memory))
        })
        .collect();
    let command = host::process::command(row.pid).filter(|words| !words.is_empty());
    Some(ClientFacts {
        id: identity.into(),
        server: row.server,
        uid: host::process::uid(row.pid),
        command: command.map_or(row.command, |words| words.join(" ")),
        since: host::process::started_at(identity, boot_time),
        memory,
        container: host::container::container_of(row.pid),
        mounted,
        ancestors: host::process::ancestors(row.pid)
            .filter_map(host::process::identify)
            .map(ClientId::from)
            .collect(),
        hint: variable(TENANT_HINT),
        sm_partition: variable(SM_PARTITION),
        connections: variable(MAX_CONNECTIONS)
            .and_then(|value| value.trim().parse().ok())
            .filter(|connections| CONNECTIONS.contains(connections))
            .unwrap_or(USUAL_CONNECTIONS),
        // MPS ignores a value that is no percentage.
        active_thread_percentage: environment.as_ref().map(|_| {
            let value = variable(THREAD_PERCENTAGE).and_then(|text| text.trim().parse().ok());
            value.and_then(|value| ThreadPercentage::from_f64(value).ok()).unwrap_or(ThreadPercentage::FULL)
        }),
        memory_limits: environment.as_ref().map(|_| {
            let value = variable(MEMORY_LIMITS);
            value.map(|value| memory_limits(&value, &devices, parts)).unwrap_or_default()
        }),
    })
}
