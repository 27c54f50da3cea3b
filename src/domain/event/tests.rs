//! The events: their filters, and one example of each.

use super::*;
use crate::access::Grant;
use crate::bypass::Bypass;
use crate::client::{ClientId, LeaseKind};
use crate::condition::ConditionReason;
use crate::exposure::SocketExposure;
use crate::fault::GpuFaultReport;
use crate::foreign_owner::{ForeignOwner, SharingDaemon};
use crate::foreign_user::ForeignUser;
use crate::gpu::ComputeMode;
use crate::maintenance::{Maintenance, MaintenanceState};
use crate::token::TokenId;
use crate::verification::VerifiedSetting;
use crate::wedge::ReplacedProcess;

#[test]
fn types_are_filtered_by_name_or_prefix() {
    let names = |text: &str| {
        EventFilter::parse_types(text)
            .map(|types| types.into_iter().map(EventType::as_str).collect::<Vec<_>>())
    };
    assert_eq!(names("gpu.missing").expect("a type"), ["gpu.missing"]);
    assert_eq!(names("gpu., gpu.missing").expect("types"), ["gpu.missing", "gpu.back", "gpu.replaced"]);
    for bad in ["", "gpu", "gpu.missing,", "client.dies", "."] {
        let error = names(bad).expect_err(bad).to_string();
        assert!(error.contains("docs/events.md"), "{error}");
    }
}

#[test]
fn severities_are_in_order() {
    for pair in Severity::ALL.windows(2) {
        assert!(pair[0] < pair[1] && pair[0].number() < pair[1].number());
    }
    for severity in Severity::ALL {
        assert_eq!(serde_json::to_value(severity).expect("a word"), severity.as_str());
    }
}

#[test]
fn subject_has_only_its_own_fields() {
    let daemon = DaemonName::parse("gpu0").expect("a name");
    let text = serde_json::to_string(&EventSubject::daemon(&daemon)).expect("JSON");
    assert_eq!(text, r#"{"daemon":"gpu0"}"#);
    assert_eq!(serde_json::from_str::<EventSubject>(&text).expect("read"), EventSubject::daemon(&daemon));
}

fn text<T: std::str::FromStr>(text: &str) -> T
where
    T::Err: std::fmt::Debug,
{
    text.parse().expect(text)
}

/// One event of each type, some of several.
#[allow(clippy::too_many_lines, reason = "one example for each type")]
fn examples() -> Vec<DomainEvent> {
    let daemon = || text::<DaemonName>("gpu0");
    let tenant = || text::<TenantName>("web");
    let layout_name = || text::<LayoutName>("halves");
    let gpu = || GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid");
    let client = ClientId { pid: 7, start_time: 1 };
    let condition =
        || DaemonBlocker { daemon: daemon(), reason: ConditionReason::Wedged, message: "because".into() };
    let lost = |pids: &[u32], is_uncertain| LostWork {
        clients: pids.iter().map(|pid| AffectedClient::of(*pid)).collect(),
        is_uncertain,
    };
    let process = |is_daemon| ReplacedProcess { at: 0, pid: 5, is_daemon, waiting: vec![], working: None };
    let fault = ServerFault {
        daemon: daemon(),
        server: 5,
        report: GpuFaultReport { named_by_mps: vec![7], ..GpuFaultReport::default() },
        affected: vec![7],
        clients: vec![],
        known_from: KnownFrom::Poll,
        logged_at: None,
    };
    let breach = || MemoryBreach {
        daemon: daemon(),
        client,
        tenant: Some(tenant()),
        program: Some("train".into()),
        gpu: gpu(),
        used: 2 << 30,
        limit: 1 << 30,
    };
    let notice = || IncidentNotice {
        incident: 3,
        kind: IncidentKind::Drift,
        daemon: daemon(),
        gpus: vec![gpu()],
        tenants: vec![tenant()],
        summary: "another program changed settings of gpu0".into(),
    };
    let observed = |client: Option<ClientId>| ObservedClient {
        daemon: daemon(),
        server: 5,
        pid: 7,
        client,
        uid: None,
        program: None,
        tenant: Some(tenant()),
        attributed_by: AttributedBy::Lease,
        logged_at: None,
    };
    let bypass = Bypass::of(7, gpu());
    let exposure = SocketExposure {
        process: client,
        uid: Some(0),
        program: Some("train".into()),
        container: Some("3f9a2b4c5d6e7f80".into()),
        point: "/mnt".into(),
    };
    let lease = || GrantedLease { tenant: tenant(), holder: client, kind: LeaseKind::Own, program: None };
    let layout = || DaemonLayout {
        daemon: daemon(),
        layout: Some(layout_name()),
        version: Some(1),
        drift: vec![],
        degraded: vec![],
    };
    let operation = || OperationFacts {
        id: Uuid::nil(),
        kind: "drain_daemon",
        daemons: vec![daemon()],
        gpus: vec![gpu()],
        client: None,
        tenant: None,
        layout: None,
    };
    let maintenance = || Maintenance {
        operation: Uuid::nil(),
        state: MaintenanceState::Active,
        gpus: vec![gpu()],
        since: 0,
    };
    let token = || TokenFacts {
        id: TokenId::new([7; 8]),
        name: text("ci"),
        grant: Grant::parse("tenant:web").expect("a grant"),
    };
    vec![
        DomainEvent::DaemonCreated { daemon: daemon() },
        DomainEvent::DaemonChanged { daemon: daemon(), gpus: vec![], fields: vec![], operation: None },
        DomainEvent::DaemonDeleted { daemon: daemon(), gpus: vec![], operation: None },
        DomainEvent::DaemonAdopted { daemon: daemon() },
        DomainEvent::DaemonReleased { daemon: daemon() },
        DomainEvent::DaemonStarted { daemon: daemon(), pid: 5 },
        DomainEvent::DaemonFound { daemon: daemon(), pid: 5, uid: None },
        DomainEvent::DaemonReady { daemon: daemon() },
        DomainEvent::DaemonObserved { daemon: daemon() },
        DomainEvent::DaemonDied {
            daemon: daemon(),
            pid: 5,
            why: DaemonDeath::ForeignQuit,
            lost: lost(&[7], true),
        },
        DomainEvent::DaemonBackOff(condition()),
        DomainEvent::DaemonCrashLoop(condition()),
        DomainEvent::DaemonWithoutServer(condition()),
        DomainEvent::DaemonUnreadable(condition()),
        DomainEvent::DaemonWedged(condition()),
        DomainEvent::DaemonBlocked(condition()),
        DomainEvent::DaemonStopped { daemon: daemon(), pid: 5 },
        DomainEvent::DaemonReplaced { daemon: daemon(), process: process(true), clients: vec![] },
        DomainEvent::ServerReplaced { daemon: daemon(), process: process(false), clients: vec![] },
        DomainEvent::SettingsApplied { daemon: daemon(), generation: 2 },
        DomainEvent::SettingsDrifted { daemon: daemon(), drifted: vec![], command: None },
        DomainEvent::SettingsRepaired { daemon: daemon() },
        DomainEvent::ServerStarted { daemon: daemon(), pid: 5, uid: None },
        DomainEvent::ServerExited { daemon: daemon(), pid: 5 },
        DomainEvent::ServerDied { daemon: daemon(), pid: 5, lost: lost(&[7, 8], false) },
        DomainEvent::ServerFault(fault),
        DomainEvent::ServerRecovered { daemon: daemon(), pid: 5 },
        DomainEvent::ClientConnected(observed(Some(client))),
        DomainEvent::ClientLeft(observed(None)),
        DomainEvent::ClientTerminated { daemon: daemon(), server: 5, client, outcome: "by MPS" },
        DomainEvent::ClientWaiting { daemon: daemon(), server: 5, pid: 7, uid: 1, behind_uid: 2 },
        DomainEvent::ClientInReset { daemon: daemon(), server: 5, pid: 7 },
        DomainEvent::ClientRefused(ClientRefusal {
            daemon: daemon(),
            server: 5,
            reason: "full".into(),
            pid: Some(7),
            tenant: None,
            process: None,
            logged_at: None,
        }),
        DomainEvent::BreachDetected(breach()),
        DomainEvent::BreachEnded(breach()),
        DomainEvent::IncidentOpened(notice()),
        DomainEvent::IncidentRecovered(notice()),
        DomainEvent::IncidentAcknowledged(notice()),
        DomainEvent::BypassAppeared {
            daemon: daemon(),
            processes: vec![bypass.clone()],
            unnamed: 0,
            present: vec![bypass.clone()],
        },
        DomainEvent::BypassChanged { daemon: daemon(), present: vec![bypass] },
        DomainEvent::BypassEnded { daemon: daemon() },
        DomainEvent::ExposureDetected { daemon: daemon(), present: vec![exposure] },
        DomainEvent::ExposureEnded { daemon: daemon() },
        DomainEvent::ForeignUserAppeared {
            daemon: daemon(),
            present: vec![ForeignUser {
                process: client,
                uid: 33,
                program: Some("train".into()),
                waits: false,
            }],
        },
        DomainEvent::ForeignUserEnded { daemon: daemon() },
        DomainEvent::ForeignDaemonAppeared {
            daemon: daemon(),
            present: vec![SharingDaemon {
                process: client,
                uid: Some(0),
                pipe_directory: Some("/tmp/nvidia-mps".into()),
                owner: ForeignOwner { unit: Some("nvidia-mps.service".into()), ..ForeignOwner::default() },
            }],
        },
        DomainEvent::ForeignDaemonEnded { daemon: daemon() },
        DomainEvent::TenantCreated { tenant: tenant(), daemon: Some(daemon()) },
        DomainEvent::TenantChanged(ChangedTenant {
            tenant: tenant(),
            daemon: None,
            gpu: None,
            fields: vec![],
        }),
        DomainEvent::TenantDeleted { tenant: tenant(), daemon: None, expired_at: None },
        DomainEvent::TenantDeleted { tenant: tenant(), daemon: Some(daemon()), expired_at: Some(5) },
        DomainEvent::TenantVerified { tenant: tenant(), daemon: daemon() },
        DomainEvent::TenantVerificationFailed {
            tenant: tenant(),
            daemon: daemon(),
            failure: VerificationFailure::Differs(vec![VerifiedSetting::Sms]),
        },
        DomainEvent::LeaseGranted(lease()),
        DomainEvent::LeaseRevoked(lease()),
        DomainEvent::LayoutVersionWritten { layout: layout_name(), version: 1 },
        DomainEvent::LayoutDeleted { layout: layout_name(), version: Some(1) },
        DomainEvent::LayoutApplied(layout()),
        DomainEvent::LayoutDegraded(layout()),
        DomainEvent::LayoutFailed { layout: layout(), failure: "no room".into(), ids_differ: false },
        DomainEvent::LayoutDrifted { layout: layout(), command: None },
        DomainEvent::LayoutRepaired(layout()),
        DomainEvent::OperationRequested(operation()),
        DomainEvent::OperationStarted(operation()),
        DomainEvent::OperationStep { operation: operation(), step: "drain".into(), outcome: "empty".into() },
        DomainEvent::OperationCancelRequested(operation()),
        DomainEvent::OperationFinished(operation()),
        DomainEvent::OperationFailed {
            operation: operation(),
            error: "timed out".into(),
            outcome_is_unknown: false,
        },
        DomainEvent::OperationCancelled(operation()),
        DomainEvent::GpuMissing { gpu: gpu(), daemon: daemon(), board: None, left: Vec::new() },
        DomainEvent::GpuBack { gpu: gpu(), daemon: daemon() },
        DomainEvent::GpuReplaced { daemon: daemon(), old: gpu(), new: gpu() },
        DomainEvent::ComputeModeRepaired {
            daemon: daemon(),
            gpu: gpu(),
            found: ComputeMode::Default,
            set: ComputeMode::ExclusiveProcess,
        },
        DomainEvent::ComputeModeChanged(ComputeModeChange {
            daemon: daemon(),
            gpu: gpu(),
            previous: None,
            desired: None,
        }),
        DomainEvent::MaintenanceBegun(maintenance()),
        DomainEvent::MaintenanceActive(maintenance()),
        DomainEvent::MaintenanceEnded(maintenance()),
        DomainEvent::HostConfirmed(HostConfirmation::LossAccepted),
        DomainEvent::ManagerStarted { pid: 1, predecessor: Predecessor::Died },
        DomainEvent::ManagerStopped { pid: 1 },
        DomainEvent::DatabaseBackedUp { file: "b.db".into() },
        DomainEvent::DatabaseRestored { file: "b.db".into() },
        DomainEvent::DatabaseRowsLost(AuditDamage::Truncated { known: 3, found: 2 }),
        DomainEvent::TokenCreated(token()),
        DomainEvent::TokenRevoked(token()),
        DomainEvent::SessionOpened(SessionOwner::AdminToken),
        DomainEvent::SessionEnded(SessionOwner::Token(token())),
        DomainEvent::EventsLost(LostEvents::NotWritten { count: 1, from: 1, until: 2 }),
    ]
}

#[test]
fn each_type_is_produced_with_its_severity() {
    let produced: Vec<EventType> = examples().iter().map(DomainEvent::kind).collect();
    // A stored event of a later version is read as unknown; none is written.
    let catalogue = EventType::ALL.iter().filter(|kind| **kind != EventType::EventUnknown);
    let missing: Vec<&EventType> = catalogue.filter(|kind| !produced.contains(kind)).collect();
    assert!(missing.is_empty() && !produced.contains(&EventType::EventUnknown), "{missing:?}");
    for event in examples() {
        assert_eq!(event.severity(), event.kind().severity(), "{event:?}");
    }
}

#[test]
fn messages_name_what_the_event_is_about() {
    for event in examples() {
        let (message, subject) = (event.message(), event.subject());
        assert!(!message.is_empty() && !message.ends_with('.') && !message.contains("  "), "{message:?}");
        // A waiting client's users, a step's operation and a verified tenant say enough without their daemon.
        let says_enough = subject.tenant.is_some()
            || matches!(event.kind(), EventType::ClientWaiting | EventType::OperationStep)
            || matches!(event, DomainEvent::ComputeModeChanged(ComputeModeChange { desired: None, .. }));
        if let Some(daemon) = subject.daemon.filter(|_| !says_enough) {
            assert!(message.contains(daemon.as_str()), "{message:?}");
        }
        let details = serde_json::to_value(event.details()).expect("JSON");
        let read: Option<Details> = serde_json::from_value(details).expect("details");
        assert_eq!(read, event.details());
    }
}

#[test]
fn single_daemon_and_gpu_are_the_subject() {
    let operation = |event: DomainEvent| match event {
        DomainEvent::OperationStarted(operation) => Some(operation),
        _ => None,
    };
    let one = examples().into_iter().find_map(operation).expect("an example");
    let two = OperationFacts { gpus: [one.gpus.clone(), one.gpus.clone()].concat(), ..one.clone() };
    let (one, two) = (DomainEvent::OperationStarted(one), DomainEvent::OperationStarted(two));
    assert!(one.subject().gpu.is_some() && one.also() == OtherSubjects::default());
    assert_eq!((two.subject().gpu, two.also().gpus.len()), (None, 2));
    let ready = DomainEvent::DaemonReady { daemon: text("gpu0") };
    let new = NewEvent { gpu: one.subject().gpu, ..ready.clone().into() };
    assert_eq!((ready.subject().gpu, new.subject().gpu), (None, one.subject().gpu), "the daemon's only one");
}
