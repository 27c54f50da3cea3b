//! The manager without its sockets: put together, served by a router, and ended in order.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::platform::{DriverWait, Platform, ProbedProgram};
use super::remote::OverHttp;
use super::{
    DATABASE, StartupError, durable_records, file_watch, platform, refused, seed, token_file, trial, trusted,
};
use crate::clock::Clock;
use crate::config::{Config, Limits};
use crate::domain::access::{Actor, UserMap};
use crate::domain::daemon::DesiredState;
use crate::domain::health::HostHealth;
use crate::domain::listening::HostListening;
use crate::domain::timings::Timings;
use crate::domain::token::Secret;
use crate::gpu::Inventory;
use crate::gpu::probe::Prober;
use crate::host;
use crate::http::authenticator::{Authenticator, ServerAddress};
use crate::http::bounds::Rates;
use crate::http::server::{Listeners, ServerContext};
use crate::http::tls::Certificates;
use crate::http::{AppParts, AppState, ReadMemo, router};
use crate::metrics::Metrics;
use crate::operations::Engine;
use crate::service::access::Access;
use crate::service::access::context::RequestContext;
use crate::service::events::writer;
use crate::service::host::startup::NO_MACHINE_ID;
use crate::service::hosts::TokenSealer;
use crate::service::{Parts, Service};
use crate::store::audit_head::AuditHead;
use crate::store::lock::StateLock;
use crate::store::{self, Store, StoreError};
use crate::supervisor::report::event_queue::EventQueue;
use crate::supervisor::{
    DurableWrite, Fleet, ForeignDaemonScanner, GpuPresence, Handouts, OwnedComputeModes, SupervisorContext,
};

/// Longest time for the last events to be written.
const FLUSH: Duration = Duration::from_secs(2);

/// State that is checked, locked and read before a port is taken and the database is opened.
pub struct Prepared {
    lock: StateLock,
    users: UserMap,
    machine_id: String,
    /// `None` for a simulated host, which is written to the runtime directory and therefore made later.
    real: Option<Platform>,
    remembered: Option<crate::gpu::SuspendedGpus>,
    admin_token: Option<Secret>,
    /// Desired state of the example daemons of a new simulated host; `None` adds no examples.
    seeded: Option<DesiredState>,
    /// Binary that runs probes, if it is not this process's own.
    probe: Option<PathBuf>,
}

impl Prepared {
    /// Inspects a real host, takes the state directory's lock, and refuses a state directory that has lost its database.
    ///
    /// `new_database` begins with an empty one instead.
    pub async fn new(config: &Config, new_database: bool) -> Result<Self, StartupError> {
        let users = config.users().map_err(refused)?;
        let database = config.state_dir.join(DATABASE);
        let machine_id = host::machine_id().unwrap_or_else(|| NO_MACHINE_ID.to_owned());
        let remembered =
            platform::remembered(store::maintenance::peek_inventory(&database, &machine_id).await.as_deref());
        let real = config.sim.is_none().then(|| platform::find(config, remembered.clone())).transpose()?;
        let lock = store::lock::take(&config.state_dir).await.map_err(refused)?;
        let admin_token = token_file::read(&config.state_dir)?;
        file_watch::check_database(&config.state_dir, new_database)?;
        trial::mark(config)?;
        trusted::make_runtime_directory(&config.runtime_dir)?;
        let seeded = Some(DesiredState::Running);
        Ok(Self { lock, users, machine_id, real, remembered, admin_token, seeded, probe: None })
    }

    /// Leaves the daemons of a new simulated host stopped.
    #[must_use]
    pub fn stopped(self) -> Self {
        Self { seeded: Some(DesiredState::Stopped), ..self }
    }

    /// Adds no example daemons and tenants to a new simulated host: a host file says what it has.
    #[must_use]
    pub fn without_examples(self) -> Self {
        Self { seeded: None, ..self }
    }

    /// Runs probes with another binary: this process's own may be that of a test.
    #[must_use]
    pub fn with_probe(self, program: PathBuf) -> Self {
        Self { probe: Some(program), ..self }
    }
}

/// The manager.
pub struct App {
    state: AppState,
    store: Store,
    engine: Engine,
    fleet: Fleet,
    health: HostHealth,
    audit_head: AuditHead,
    events: EventQueue,
    new_token: bool,
    /// Tasks that requests have begun and that may outlive them.
    tasks: TaskTracker,
    event_writer: JoinHandle<()>,
    record_writer: JoinHandle<()>,
    background: Vec<JoinHandle<()>>,
    lock: StateLock,
    /// The wait for the driver, if it is missing.
    waiting: Option<DriverWait>,
}

impl App {
    /// Opens the database, adopts or starts what is recorded, and seeds a new simulated host.
    ///
    /// `address` is the address of the API, `listening` its description for the API; `stop` ends the tasks that run until shutdown.
    pub async fn build(
        config: &Config,
        prepared: Prepared,
        address: SocketAddr,
        listening: watch::Sender<HostListening>,
        stop: CancellationToken,
    ) -> Result<Self, StartupError> {
        let Prepared { lock, users, machine_id, real, remembered, admin_token, seeded, probe } = prepared;
        let platform = real.map_or_else(|| platform::find(config, remembered), Ok)?;
        let program = platform.probe(&config.runtime_dir).await?;
        let health = HostHealth::default();
        let clock = Clock::system();
        let store = open_store(clock, &config.state_dir.join(DATABASE), health.clone()).await?;
        // Only after the database is open: a token without a database shows that the database was lost.
        let new_token = admin_token.is_none();
        let token = admin_token.map_or_else(|| token_file::create(&config.state_dir), Ok)?;
        if platform.waiting.is_none() {
            platform.apply_maintenance(maintenance_inventory(&store, &machine_id).await?)?;
        }
        let (recorder, records) = mpsc::channel(durable_records::QUEUE);
        let events = EventQueue::default();
        let inventory: Arc<dyn Inventory> = platform.inventory.clone();
        let manager_uid = rustix::process::geteuid().as_raw();
        let fleet = Fleet::new(supervisor_context(
            config,
            clock,
            &platform,
            probe,
            program,
            recorder,
            events.clone(),
        )?);
        let record_writer = tokio::spawn(durable_records::write_all(clock, store.clone(), records));
        let boot_id = fleet.context().boot_id.clone();
        let event_writer =
            tokio::spawn(writer::write_queued_events(clock, store.clone(), events.clone(), boot_id));
        let engine =
            Engine::new(clock, store.clone(), fleet.clone(), platform.inventory.clone(), manager_uid);
        let tls = listening.borrow().tls.is_some();
        let tasks = TaskTracker::new();
        let metrics = Metrics { operations: engine.outcomes().clone(), ..Metrics::default() };
        let service = Service::new(Parts {
            clock,
            store: store.clone(),
            access: Access::new(&token, manager_uid, users, config.access.session_limits()),
            fleet: fleet.clone(),
            engine: engine.clone(),
            inventory: Arc::clone(&inventory),
            machine_id,
            manager_uid,
            timeout: Duration::from_secs(config.fresh_timeout_s.into()),
            listening: listening.subscribe(),
            metrics: metrics.clone(),
            tasks: tasks.clone(),
            streams: usize::try_from(config.events.streams).unwrap_or(usize::MAX),
            health: health.clone(),
            cdi: config.cdi_directory(),
            remote: Arc::new(OverHttp::default()),
            host_tokens: TokenSealer::in_directory(&config.state_dir),
            waiting_for_driver: platform.waiting.as_ref().map(|waiting| waiting.missing.clone()),
        });
        service.without_permit().withdraw_engine_files().await;
        let first_start = service.without_permit().start().await.map_err(refused)?;
        let audit_head = AuditHead::in_directory(&config.state_dir);
        let machine_id = service.without_permit().machine_id();
        file_watch::compare_audit(clock, &store, &audit_head, &health, &machine_id).await?;
        let mut background = spawn_background_tasks(&service, config);
        let watching = file_watch::watch(store.clone(), config.state_dir.clone(), health.clone());
        background.push(tokio::spawn(watching));
        if platform.simulated && platform.waiting.is_none() {
            add_examples(&service, &store, &inventory, seeded, first_start, config).await?;
        }
        let (hosts, open_metrics) = (config.access.hosts.clone(), config.access.open_metrics);
        let auth = Authenticator::new(ServerAddress { address, tls, hosts, open_metrics });
        let rates = Arc::new(Rates::new(&config.limits, manager_uid));
        let state = AppState::new(AppParts {
            service,
            auth,
            stop,
            limits: config.limits,
            stream_heartbeat: Timings::duration(config.timings.stream_heartbeat_ms),
            rates,
            metrics,
            memo: ReadMemo::default(),
        });
        Ok(Self {
            state,
            store,
            engine,
            fleet,
            health,
            audit_head,
            events,
            new_token,
            tasks,
            event_writer,
            record_writer,
            background,
            lock,
            waiting: platform.waiting,
        })
    }

    /// Returns the wait for the driver, if it is missing.
    pub(super) fn waiting(&self) -> Option<&DriverWait> {
        self.waiting.as_ref()
    }

    /// Returns true if this is the first start with this state directory.
    pub(super) fn is_new(&self) -> bool {
        self.new_token
    }

    /// The API, its document, the pages and the probes; a request brings its [`Peer`](crate::http::peer::Peer).
    pub fn router(&self) -> Router {
        router(self.state.clone())
    }

    /// The use cases.
    pub(super) fn service(&self) -> &Service {
        &self.state.service
    }

    /// The faults of the manager itself.
    pub(super) fn health(&self) -> &HostHealth {
        &self.health
    }

    /// The daemons.
    pub(super) fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Answers what comes in on the sockets with its [`router`](Self::router), until `stop`.
    pub fn answer(
        &self,
        router: Router,
        listeners: Listeners,
        limits: Limits,
        certificates: Option<Arc<Certificates>>,
        stop: CancellationToken,
    ) -> impl Future<Output = Listeners> + Send + use<> {
        let (wire, health) = (self.state.metrics.wire.clone(), self.health.clone());
        let service = self.state.service.clone();
        let has_grant = move |user| service.without_permit().access().user(user).is_some();
        let context = ServerContext { wire, health, has_grant: Arc::new(has_grant) };
        listeners.serve(router, limits, certificates, context, stop)
    }

    /// Makes an address at which the operator can log in once.
    pub(super) async fn first_login(&self) -> Result<Secret, StartupError> {
        let service = &self.state.service;
        let ctx = RequestContext::new(Actor::manager(), service.clock(), None);
        let made = service.create_login_code(&ctx).await.map_err(refused)?;
        Ok(self.state.auth.login_url(&made.code))
    }

    /// Ends everything but the daemons: first the tasks that may still write, then the writers, then the database, then the lock.
    pub async fn shutdown(self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.engine.shutdown().await;
        self.fleet.shutdown().await;
        self.background.iter().for_each(JoinHandle::abort);
        self.state.service.without_permit().close_engine_files().await;
        self.record_writer.abort();
        flush_events(&self.events, self.event_writer, &self.state.service).await;
        file_watch::remember(&self.store, &self.audit_head, &self.health).await;
        self.store.close().await;
        drop(self.lock);
    }
}

/// Makes the context that the supervisors of all daemons share.
fn supervisor_context(
    config: &Config,
    clock: Clock,
    platform: &Platform,
    probe: Option<PathBuf>,
    program: ProbedProgram,
    recorder: mpsc::Sender<DurableWrite>,
    events: EventQueue,
) -> Result<SupervisorContext, StartupError> {
    let inventory: Arc<dyn Inventory> = platform.inventory.clone();
    let client_wait = Duration::from_secs(config.client_wait_s.into());
    Ok(SupervisorContext {
        clock,
        control_program: Arc::new(program.program),
        capability: program.capability,
        prober: Arc::new(match probe {
            Some(program) => Prober::with_program(program, &platform.extra_env),
            None => Prober::new(&platform.extra_env),
        }),
        gpu_presence: watch::Sender::new(GpuPresence::default()),
        kernel_log: platform.kernel_log(),
        scopes: host::systemd::Scopes::detect(rustix::process::geteuid().as_raw()),
        runtime_dir: config.runtime_dir.clone(),
        foreign_daemons: ForeignDaemonScanner::new(
            Arc::clone(&inventory),
            config.runtime_dir.join("daemons"),
            &platform.extra_env,
        ),
        inventory,
        extra_env: platform.extra_env.clone(),
        boot_id: host::boot_id().map_err(refused)?,
        check_interval: config.refresh_interval(),
        publications: tokio::sync::watch::Sender::new(0),
        memory_readings: tokio::sync::watch::Sender::new(0),
        poll: Duration::from_secs(config.poll_interval_s.into()),
        deadline: Duration::from_secs(config.control_deadline_s.into()),
        grace_s: config.stop_grace_s,
        timings: config.timings,
        modes: OwnedComputeModes::default(),
        handouts: Handouts::new(&config.runtime_dir, client_wait, clock),
        recorder,
        events,
    })
}

/// Adds the examples of a new simulated host, or the rest of them where that was interrupted.
async fn add_examples(
    service: &Service,
    store: &Store,
    inventory: &Arc<dyn Inventory>,
    seeded: Option<DesiredState>,
    first_start: bool,
    config: &Config,
) -> Result<(), StartupError> {
    let unfinished = config.state_dir.join(seed::SEEDING);
    // A copied state directory may contain the file: a sealed database gets nothing new.
    let is_new = !store.is_sealed() && (first_start || unfinished.exists());
    let Some(seeded) = seeded.filter(|_| is_new) else { return Ok(()) };
    if service.without_permit().has_lost_daemons().await {
        tracing::warn!(
            "daemons of this manager are running that its database does not know, so no examples were added: \
             `mps-manager daemon adopt --all-ours` takes them back"
        );
        return Ok(());
    }
    seed::seed_simulated_host(service, inventory, seeded, &unfinished).await
}

/// Starts the tasks that run beside the requests until the manager ends.
fn spawn_background_tasks(service: &Service, config: &Config) -> Vec<JoinHandle<()>> {
    let every = config.refresh_interval();
    let keep = writer::Keep { days: config.events.keep_days, count: config.events.keep_count };
    let tasks = || Arc::clone(service.without_permit());
    vec![
        tokio::spawn(tasks().watch_gpus(every)),
        tokio::spawn(tasks().collect_expired_tenants(every)),
        tokio::spawn(tasks().collect_tenant_directories(every)),
        tokio::spawn(tasks().keep_engine_files(every)),
        tokio::spawn(tasks().write_uses()),
        tokio::spawn(tasks().prune_events(keep)),
        tokio::spawn(tasks().keep_audit()),
        tokio::spawn(tasks().refresh_metrics_snapshot()),
        tokio::spawn(tasks().keep_history()),
        tokio::spawn(tasks().watch_breaches(every)),
        tokio::spawn(tasks().watch_exposures(every)),
        tokio::spawn(tasks().watch_sharing(every)),
        tokio::spawn(service.clone().watch_foreign_users(tasks())),
    ]
}

/// Writes the last events, for a limited time, and then records that the manager stops.
async fn flush_events(events: &EventQueue, mut writer: JoinHandle<()>, service: &Service) {
    service.without_permit().write_last_uses().await;
    service.without_permit().store_last_minute().await;
    events.close();
    if tokio::time::timeout(FLUSH, &mut writer).await.is_err() {
        tracing::error!("the last events could not be written in time");
        writer.abort();
    }
    service.without_permit().record_stop().await;
}

async fn open_store(clock: Clock, database: &Path, health: HostHealth) -> Result<Store, StartupError> {
    Store::open_with(database, clock.unix_ms(), health).await.map_err(|error| match error {
        StoreError::Database(_) => StartupError(format!("{}: {error}", database.display())),
        error => refused(error),
    })
}

/// The GPUs as a maintenance that has begun remembers them.
async fn maintenance_inventory(
    store: &Store,
    machine_id: &str,
) -> Result<Option<crate::gpu::SuspendedGpus>, StartupError> {
    let mut reader = store.read().await.map_err(refused)?;
    let written = store::maintenance::inventory(&mut reader, machine_id).await.map_err(refused)?;
    Ok(platform::remembered(written.as_deref()))
}
