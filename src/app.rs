//! The composition root: the only place that knows everything.

pub mod backup;
mod certificates;
pub mod doctor;
mod guarding;
mod platform;
mod trusted;

use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::unix_ms;
use crate::config::{Config, Limits};
use crate::domain::TenantDirectory;
use crate::domain::access::Actor;
use crate::domain::audit::{Attempt, Broken, Head, Target};
use crate::domain::daemon::DaemonSpec;
use crate::domain::gpu::GpuRef;
use crate::domain::health::HostHealth;
use crate::domain::listening::Listening;
use crate::domain::token::Secret;
use crate::gpu::Inventory;
use crate::gpu::probe::Prober;
use crate::host::trust::Trust;
use crate::http::auth::{Authenticator, Entrance};
use crate::http::bounds::Rates;
use crate::http::server::{Listeners, check_address};
use crate::http::{AppState, router};
use crate::lifecycle::{self, StopSignals};
use crate::metrics::Metrics;
use crate::mps::process::LONGEST_PATH;
use crate::operations::Engine;
use crate::service::access::Access;
use crate::service::acting::attempting;
use crate::service::recording;
use crate::service::take_up::NO_MACHINE_ID;
use crate::service::{Parts, Service, ServiceError, WriteOptions};
use crate::store::audit_head::AuditHead;
use crate::store::{self, Fate, Store, StoreError};
use crate::supervisor::journal::Journal;
use crate::supervisor::{
    Census, Context, Fact, Fleet, Handouts, HeldModes, Lasting, Lookout, tenants_directory,
};
use crate::{host, mps};

/// The database in the state directory.
pub(crate) const DATABASE: &str = "mps-manager.db";
/// A file that is there while a new simulated host is furnished: a manager that was killed meanwhile goes on with it.
const FURNISHING: &str = "furnishing";
/// Files that the manager itself may have open beside its connections.
const OWN_FILES: u64 = 256;
/// Facts that may wait for the recorder.
const FACTS: usize = 64;
/// How long it may take to write what drivers told last.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Why the server did not start, in words for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(String);

fn refused(error: impl std::fmt::Display) -> StartError {
    StartError(error.to_string())
}

/// Serves until told to stop.
///
/// Everything that can be refused is refused before the store is opened and before any daemon is touched.
///
/// `new_database` begins with an empty database where the state directory has lost its own.
#[allow(clippy::too_many_lines, reason = "the parts in the order in which they must begin and end")]
pub async fn serve(config: Config, new_database: bool) -> Result<(), StartError> {
    let signals = StopSignals::listen().map_err(refused)?;
    check_places(&config)?;
    let users = config.users().map_err(refused)?;
    check_address(config.listen, config.tls.is_some(), config.insecure_listen).map_err(refused)?;
    let (hangups, tls) = certificates::begin(config.tls.as_ref())?;
    // A real host is looked at before anything is written; a simulated one is written, under the lock.
    let database = config.state_dir.join(DATABASE);
    let machine_id = host::machine_id().unwrap_or_else(|| NO_MACHINE_ID.to_owned());
    let remembered = platform::remembered(store::maintenance::peek(&database, &machine_id).await.as_deref());
    let real = config.sim.is_none().then(|| platform::real(&config, remembered.clone())).transpose()?;
    let lock = store::lock::take(&config.state_dir).await.map_err(refused)?;
    let known_token = read_admin_token(&config.state_dir)?;
    guarding::check_database(&config.state_dir, new_database)?;
    make_directory(&config.runtime_dir)?;
    let listeners = Listeners::bind(config.listen, &config.socket()).await.map_err(refused)?;
    let platform = match real {
        Some(platform) => platform,
        None => platform::simulated(&config, remembered)?,
    };
    let capability = mps::capability::probe(&platform.binaries).await.map_err(refused)?;
    let address = listeners.address().map_err(refused)?;
    raise_fd_limit(&config.limits);
    let health = HostHealth::default();
    let store = open_store(&database, health.clone()).await?;
    // After the database: a token without one tells that it was lost.
    let new_token = known_token.is_none();
    let token = known_token.map_or_else(|| make_admin_token(&config.state_dir), Ok)?;
    platform.settle(maintenance_of(&store, &machine_id).await?)?;
    let manager_uid = rustix::process::geteuid().as_raw();
    let (recorder, facts) = mpsc::channel(FACTS);
    let journal = Journal::default();
    let inventory: Arc<dyn Inventory> = platform.inventory.clone();
    let fleet = Fleet::new(Context {
        binaries: platform.binaries,
        capability,
        inventory: Arc::clone(&inventory),
        prober: Arc::new(Prober::new(&platform.extra_env)),
        census: watch::Sender::new(Census::default()),
        scopes: host::systemd::Scopes::detect(manager_uid),
        runtime_dir: config.runtime_dir.clone(),
        lookout: Lookout::new(Arc::clone(&inventory), &platform.extra_env),
        extra_env: platform.extra_env,
        boot_id: host::boot_id().map_err(refused)?,
        rhythm: config.refresh_interval(),
        poll: Duration::from_secs(config.look_interval_s.into()),
        deadline: Duration::from_secs(config.control_deadline_s.into()),
        grace_s: config.stop_grace_s,
        modes: HeldModes::default(),
        handouts: Handouts::new(&config.runtime_dir, Duration::from_secs(config.client_wait_s.into())),
        recorder,
        journal: journal.clone(),
    });
    let recording = tokio::spawn(record(store.clone(), facts));
    let boot_id = fleet.context().boot_id.clone();
    let telling = tokio::spawn(recording::keep_journal(store.clone(), journal.clone(), boot_id));
    let engine = Engine::new(store.clone(), fleet.clone(), Arc::clone(&platform.inventory), manager_uid);
    let (listening, listening_now) = watch::channel(certificates::listening(address, tls.as_deref()));
    let tasks = TaskTracker::new();
    let metrics = Metrics { operations: engine.outcomes().clone(), ..Metrics::default() };
    let service = Service::new(Parts {
        store: store.clone(),
        access: Access::new(&token, manager_uid, users, config.access.session_limits()),
        fleet: fleet.clone(),
        engine: engine.clone(),
        inventory: Arc::clone(&inventory),
        machine_id,
        manager_uid,
        patience: Duration::from_secs(config.fresh_patience_s.into()),
        listening: listening_now,
        metrics: metrics.clone(),
        tasks: tasks.clone(),
        streams: usize::try_from(config.events.streams).unwrap_or(usize::MAX),
        health: health.clone(),
    });
    let first_start = service.begin().await.map_err(refused)?;
    let head = AuditHead::in_directory(&config.state_dir);
    guarding::compare_audit(&store, &head, &health, &service.machine_id()).await?;
    let house = keep_house(&service, &config);
    let guarding = tokio::spawn(guarding::watch(store.clone(), head.clone(), health.clone()));
    let unfinished = config.state_dir.join(FURNISHING);
    // A copied state directory may bring the file along: what is sealed gets nothing new.
    if platform.simulated && !store.is_sealed() && (first_start || unfinished.exists()) {
        furnish(&service, &inventory, &unfinished).await?;
    }

    let (hosts, open_metrics) = (config.access.hosts.clone(), config.access.open_metrics);
    let auth = Arc::new(Authenticator::new(Entrance { address, tls: tls.is_some(), hosts, open_metrics }));
    let login = first_login(&service, &auth, new_token).await?;
    let stop = CancellationToken::new();
    let stopping = tokio::spawn(lifecycle::watch(signals, stop.clone()));
    announce(&config, &listening.borrow(), platform.simulated, login.as_ref());
    let last = service.clone();
    let following = tokio::spawn(certificates::follow(tls.clone(), hangups, listening));
    let (limits, wire) = (config.limits, metrics.wire.clone());
    let rates = Rates::new(&limits, manager_uid);
    let state = AppState { service, auth, stop: stop.clone(), limits, rates, metrics };
    listeners.serve(router(state), limits, tls, wire, health.clone(), stop).await;
    following.abort();

    // In this order: who may still write, then who records, then the file, then the lock.
    tasks.close();
    tasks.wait().await;
    engine.shutdown().await;
    fleet.shutdown().await;
    house.iter().for_each(JoinHandle::abort);
    drop(fleet);
    recording.abort();
    guarding.abort();
    last_words(&journal, telling, &last).await;
    guarding::remember(&store, &head, &health).await;
    store.close().await;
    stopping.abort();
    drop(lock);
    tracing::info!("stopped");
    Ok(())
}

/// What goes on beside the requests for as long as the manager serves.
fn keep_house(service: &Service, config: &Config) -> [JoinHandle<()>; 7] {
    let every = config.refresh_interval();
    let keep = recording::Keep { days: config.events.keep_days, count: config.events.keep_count };
    [
        tokio::spawn(service.clone().watch_gpus(every)),
        tokio::spawn(service.clone().collect_tenant_directories(every)),
        tokio::spawn(service.clone().write_uses()),
        tokio::spawn(service.clone().prune_events(keep)),
        tokio::spawn(service.clone().keep_audit()),
        tokio::spawn(service.clone().keep_book()),
        tokio::spawn(service.clone().keep_history()),
    ]
}

async fn open_store(database: &Path, health: HostHealth) -> Result<Store, StartError> {
    Store::open_with(database, unix_ms(), health).await.map_err(|error| match error {
        StoreError::Database(_) => StartError(format!("{}: {error}", database.display())),
        other => refused(other),
    })
}

/// An address by which whoever starts the manager for the first time logs in.
async fn first_login(
    service: &Service,
    auth: &Authenticator,
    first_start: bool,
) -> Result<Option<Secret>, StartError> {
    if !first_start {
        return Ok(None);
    }
    let made = service.create_login_code(&Actor::manager()).await.map_err(refused)?;
    Ok(Some(auth.login_url(&made.code)))
}

/// Checks the audit in a database; the first row that does not fit is the inner error.
///
/// `anchor` is a row that somebody kept elsewhere.
pub async fn verify_audit(database: &Path, anchor: Option<Head>) -> Result<Result<Head, Broken>, String> {
    let verified = store::audit::verify(database, anchor.as_ref()).await;
    verified.map_err(|error| format!("{}: {error}", database.display()))
}

/// Writes what drivers told last, unless it cannot be, and that the manager stops.
async fn last_words(journal: &Journal, mut telling: JoinHandle<()>, service: &Service) {
    service.write_last_uses().await;
    journal.close();
    if tokio::time::timeout(LAST_WORDS, &mut telling).await.is_err() {
        tracing::error!("what happened last could not be written in time");
        telling.abort();
    }
    service.record_refusals().await;
    service.say_stopped().await;
}

fn announce(config: &Config, listening: &Listening, simulated: bool, login: Option<&Secret>) {
    let kind = if simulated { "a SIMULATED host" } else { "this host" };
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
    if let Some(tls) = listening.tls.as_ref().filter(|tls| tls.not_after < unix_ms()) {
        tracing::warn!(not_after = tls.not_after, "the certificate has expired: callers will refuse it");
    }
    // For people and scripts that started us; the log may be filtered. Whoever listened may have gone, as `head -1`
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

/// What a maintenance that was begun has of the platform.
async fn maintenance_of(
    store: &Store,
    machine_id: &str,
) -> Result<Option<crate::gpu::Remembered>, StartError> {
    let mut reader = store.read().await.map_err(refused)?;
    let written = store::maintenance::remembered(&mut reader, machine_id).await.map_err(refused)?;
    Ok(platform::remembered(written.as_deref()))
}

/// Refuses directories that cannot be used, or that others could change.
fn check_places(config: &Config) -> Result<(), StartError> {
    check_length(&config.runtime_dir)?;
    let trust = Trust::own();
    trusted::check_state(&config.state_dir, &trust).map_err(refused)?;
    trusted::check_runtime(&config.runtime_dir, &trust).map_err(refused)
}

/// Refuses a runtime directory in which no tenant's directory would fit, nor a daemon with the shortest name.
fn check_length(runtime_dir: &Path) -> Result<(), StartError> {
    let daemon = runtime_dir.join("daemons/x/pipe").as_os_str().len();
    let tenant = tenants_directory(runtime_dir).as_os_str().len() + 1 + TenantDirectory::LENGTH;
    let longest = daemon.max(tenant);
    if longest <= LONGEST_PATH {
        return Ok(());
    }
    Err(StartError(format!(
        "the runtime directory {} is too long: a pipe directory in it would have {longest} bytes or more, and the path of a \
         socket leaves room for {LONGEST_PATH}; give a shorter one with --runtime-dir",
        runtime_dir.display()
    )))
}

fn make_directory(path: &Path) -> Result<(), StartError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(|error| {
        StartError(format!(
            "the runtime directory {} cannot be made: {error}; give another with --runtime-dir",
            path.display()
        ))
    })
}

/// Reads the admin token; `None` before the first start has made it.
fn read_admin_token(state_dir: &Path) -> Result<Option<Secret>, StartError> {
    let path = state_dir.join("admin.token");
    match std::fs::read_to_string(&path) {
        Ok(text) if text.trim().len() >= 32 => Ok(Some(Secret::shown(text.trim()))),
        Ok(_) => {
            Err(StartError(format!("{} holds no token: delete it, and a new one is made", path.display())))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StartError(format!("{}: {error}", path.display()))),
    }
}

/// Makes the admin token, at the first start.
fn make_admin_token(state_dir: &Path) -> Result<Secret, StartError> {
    let path: PathBuf = state_dir.join("admin.token");
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(refused)?;
    let token = hex::encode(bytes);
    // Under another name first: a manager that is killed here must not leave a file that holds half a token.
    let unfinished = path.with_extension("new");
    let _ = std::fs::remove_file(&unfinished);
    std::fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)
        .and_then(|mut file| writeln!(file, "{token}").and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&unfinished, &path))
        .map_err(|error| StartError(format!("{}: {error}", path.display())))?;
    Ok(Secret::shown(&token))
}

/// Writes what drivers report, until they are all gone.
async fn record(store: Store, mut facts: mpsc::Receiver<Fact>) {
    while let Some(Fact { daemon, recorded, written }) = facts.recv().await {
        let result: Result<(), StoreError> = store
            .write_urgent(move |db| {
                Box::pin(async move {
                    let now = unix_ms();
                    match recorded {
                        Lasting::Incarnation(incarnation) => {
                            store::replays::begin_restart(&mut *db, &daemon, &incarnation, now).await?;
                            store::daemons::put_incarnation(db, &daemon, &incarnation, now).await?;
                        }
                        Lasting::PartitionRun(run) => {
                            store::partitions::put_run(db, &daemon, &run, now).await?;
                        }
                        Lasting::Shares(proven) => {
                            store::shares::put_proven(db, &daemon, &proven, now).await?;
                        }
                        Lasting::Layout(status) => {
                            store::replays::end_restart(db, &daemon, &status, now).await?;
                        }
                        Lasting::ComputeMode { gpu, held } => {
                            recording::tell_of_mode(&mut *db, &daemon, &gpu, held.as_ref(), now).await?;
                            store::compute_modes::put(db, &gpu, held.as_ref(), now).await?;
                        }
                    }
                    Ok(((), Fate::Commit))
                })
            })
            .await;
        if let Err(error) = &result {
            tracing::error!(%error, "what has to outlive the manager could not be recorded");
        }
        let _ = written.send(result.is_ok());
    }
}

/// Memory of a GPU below which the example tenants get less.
const EXAMPLE_MEMORY: u64 = 40 << 30;

/// Gives a new simulated host a daemon for each GPU and two example tenants, but for those that it has.
async fn furnish(
    service: &Service,
    inventory: &Arc<dyn Inventory>,
    unfinished: &Path,
) -> Result<(), StartError> {
    let begun = std::fs::write(unfinished, "");
    begun.map_err(|error| StartError(format!("{}: {error}", unfinished.display())))?;
    let manager = Actor::manager();
    let new = WriteOptions { must_be_new: true, ..WriteOptions::default() };
    let gpus = inventory.gpus().map_err(refused)?;
    for gpu in &gpus {
        let name = crate::domain::DaemonName::parse(&format!("gpu{}", gpu.index)).map_err(refused)?;
        let spec = DaemonSpec::of(vec![GpuRef(gpu.uuid.to_string())]);
        let attempt = Attempt::of(&manager, None, "furnish".to_owned(), Target::Daemon(name.clone()));
        there(attempting(attempt, service.put_daemon(&manager, name, spec, new.clone())).await)?;
    }
    let tenants = [
        (
            "demo",
            r#"{"device_memory_limit": "4G", "active_thread_percentage": 25, "labels": {"example": "true"}}"#,
        ),
        (
            "batch",
            r#"{"device_memory_limit": "8G", "max_clients": 4, "sms": 66, "priority": "below_normal", "labels": {"example": "true"}}"#,
        ),
    ];
    let sms = gpus.first().and_then(|gpu| gpu.sms);
    let is_small = gpus.first().is_some_and(|gpu| gpu.memory_total < EXAMPLE_MEMORY);
    for (name, json) in tenants {
        let mut value: serde_json::Value = serde_json::from_str(json).map_err(refused)?;
        if let Some(most) = sms
            && value["sms"].as_u64().is_some_and(|wanted| wanted > u64::from(most))
        {
            // A smaller GPU than the example was written for: half of it.
            value["sms"] = (most / 4 * 2).max(8).into();
        }
        if is_small {
            value["device_memory_limit"] = if name == "demo" { "1G" } else { "2G" }.into();
        }
        value["daemon"] = "gpu0".into();
        value["uid"] = rustix::process::geteuid().as_raw().into();
        let spec = serde_json::from_value(value).map_err(refused)?;
        let name = crate::domain::TenantName::parse(name).map_err(refused)?;
        let attempt = Attempt::of(&manager, None, "furnish".to_owned(), Target::Tenant(name.clone()));
        there(attempting(attempt, service.put_tenant(&manager, name, spec, new.clone())).await)?;
    }
    std::fs::remove_file(unfinished).map_err(|error| StartError(format!("{}: {error}", unfinished.display())))
}

/// Whether it was there before or is new.
fn there<T>(written: Result<T, ServiceError>) -> Result<(), StartError> {
    match written {
        Ok(_) | Err(ServiceError::PreconditionFailed(_)) => Ok(()),
        Err(error) => Err(refused(error)),
    }
}
