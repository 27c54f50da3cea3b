//! Which test carries out the remedy of each reason, incident, check and problem, or why none can.

use std::collections::BTreeSet;

use mps_manager::app::doctor::CHECKS;
use mps_manager::domain::condition::ConditionReason;
use mps_manager::domain::incident::IncidentKind;

/// Where the remedy of a reason is tried, or why none can be.
enum Remedy {
    /// Nothing is to be done: all is well, or the manager does it, or it passes.
    None,
    /// A test of this file or another carries it out.
    Tried(&'static str),
    /// It needs somebody who looks, decides or repairs.
    Person(&'static str),
}

const HARDWARE: Remedy = Remedy::Person("a driver, a disk or a program of the host has to be repaired");
const DECISION: Remedy = Remedy::Person("its owner has to decide what the tenants are to have");
const OTHERS: Remedy = Remedy::Person("another program or its owner has to be asked");

#[allow(clippy::enum_glob_use, clippy::too_many_lines, reason = "every reason is named once")]
fn remedy_of(reason: ConditionReason) -> Remedy {
    use ConditionReason::*;
    match reason {
        Cordoned => Remedy::Tried("cordoned_daemon_takes_clients_again"),
        PartitionDrained => Remedy::Tried("cancelled_drain_opens_its_tenants"),
        Maintenance | StoppedForMaintenance => Remedy::Tried("maintenance_is_ended"),
        StoppedBySpec => Remedy::Tried("stopped_daemon_is_started"),
        Expired => Remedy::Tried("expired_tenant_gets_a_later_expiry"),
        GpuMissing => Remedy::Tried("gpu_that_is_missing_is_replaced"),
        ChangedByOthers | SettingsDrifted | SettingsDiffer => {
            Remedy::Tried("settings_that_others_changed_are_restored")
        }
        ProcessOutsideMps => Remedy::Tried("process_outside_mps_is_started_by_run"),
        RestartRequired | ShapeDiffers => Remedy::Tried("daemon_that_needs_a_restart_is_restarted"),
        CrashLoop => Remedy::Tried("crash_loop_ends_once_its_cause_is_mended"),
        ServerFault | AwaitingClientExit | Wedged => Remedy::Tried("holders_of_a_server_continue_or_end"),
        DirectoryUnusable | TenantDirectoryUnsafe => Remedy::Tried("directory_of_another_is_given_back"),
        OtherUser | ServesAnotherUser => Remedy::Tried("stranger_is_only_reported_where_that_is_wanted"),
        LayoutBlocked | PartitionIdDiffers | OtherIds | PartitionNotMade => {
            Remedy::Tried("partitions_that_others_changed_are_restored")
        }
        ForeignDaemon
        | GpuSharedWithForeignDaemon
        | DoubtfulProcess
        | Blocked
        | OthersInterfere
        | PartitionsInterfered
        | SessionHeldOpen
        | ComputeModeDiffers
        | SocketRemoved
        | SocketReplaced
        | OtherDirectories => OTHERS,
        CannotBeHeld
        | ContextPaidFromLimit
        | NeighbourWithoutLimit
        | SeveralGpus
        | FewestSmsOfMps
        | MigEnabled
        | StaticModeUnsupported
        | MaximumLowered
        | MlopartUnsupported
        | MultiUserUnsupported
        | NearLimit => DECISION,
        DriverMissing
        | ControlProgramFailed
        | ComputeModeNotSet
        | DiskFull
        | FileRemoved
        | FileReplaced
        | FilesExhausted
        | HeadUnreadable
        | LinkNotPermitted
        | NoInventory
        | NoScope
        | NotClosed
        | OldDriver
        | OtherFileSystem
        | PageCorrupt
        | ProgramsOfAnotherDriver
        | RowsMissing
        | ServerExits
        | StoreUnavailable
        | WriteFailed
        | Unreadable
        | DirectoryUnreachable
        | DirectoryNotMade
        | NoPlaceholder
        | StopFailed
        | PipeDirectoryLost
        | ServerHangs => HARDWARE,
        AppliedAndReadBack | AwaitingReadBack | BackOff | DaemonNotReady | DaemonUnreachable
        | DiedInSession | DiedOrDidNotStart | GpuNotReleased | Hung | NoControlSocket | NotPolled
        | NotReadBack | NotRunning | OnlyObserved | Over | PartitionInUse | PartitionNotProven
        | NoMlopartDevices | PartitionsBeingMade | QuitByOthers | Restored | ServerStarting
        | SetAndReadBack | SocketNotHandedOut | SocketNotLinked | Starting | Stopping | Undetermined => {
            Remedy::None
        }
    }
}

fn remedy_of_incident(kind: IncidentKind) -> Remedy {
    match kind {
        IncidentKind::GpuFault | IncidentKind::DaemonWedged => {
            Remedy::Tried("holders_of_a_server_continue_or_end")
        }
        IncidentKind::CrashLoop => Remedy::Tried("crash_loop_ends_once_its_cause_is_mended"),
        IncidentKind::Drift => Remedy::Tried("settings_that_others_changed_are_restored"),
        IncidentKind::LayoutDegraded => Remedy::Tried("partitions_that_others_changed_are_restored"),
        IncidentKind::Bypass => Remedy::Tried("process_outside_mps_is_started_by_run"),
        IncidentKind::ForeignUser => Remedy::Tried("stranger_is_only_reported_where_that_is_wanted"),
        IncidentKind::ClientRefused => Remedy::Tried("full_tenant_is_waited_for"),
        IncidentKind::GpuMissing => Remedy::Tried("gpu_that_is_missing_is_replaced"),
        IncidentKind::ServerDied | IncidentKind::DaemonDied => {
            Remedy::Person("whose work was lost has to start it again")
        }
        IncidentKind::NoServer => HARDWARE,
        IncidentKind::LayoutIdsDiffer | IncidentKind::GpuShared | IncidentKind::SocketExposed => OTHERS,
        IncidentKind::Breach => Remedy::Tried("client_beyond_its_limit_is_terminated"),
        IncidentKind::UnknownOutcome => DECISION,
    }
}

fn remedy_of_check(id: &str) -> Remedy {
    match id {
        "state_directory" | "runtime_directory" => Remedy::Tried("open_files_and_directories_are_closed"),
        "outside_mps" => Remedy::Tried("process_outside_mps_is_ended"),
        "cdi" => Remedy::Tried("missing_directory_of_specifications_is_made"),
        "database" => Remedy::Tried("damaged_database_is_restored"),
        "machine" => Remedy::Tried("database_of_another_machine_is_confirmed"),
        "daemons" => Remedy::Tried("cordoned_daemon_takes_clients_again"),
        "waiting_users" => Remedy::Tried("stranger_is_only_reported_where_that_is_wanted"),
        "gpus" | "compute_capability" | "driver" | "programs" | "mig" | "compute_mode" | "kernel_log"
        | "disk_space" | "clock" | "certificate" => HARDWARE,
        "foreign_daemons"
        | "mps_services"
        | "other_managers"
        | "slurm_mps"
        | "device_cgroup"
        | "privileged_socket"
        | "default_pipe_directory" => OTHERS,
        "configuration" | "capabilities" | "pid_namespace" | "manager" | "pipe_directories" | "tenants"
        | "open_files" | "tasks" | "environment" | "isolation" | "listen" => {
            Remedy::Person("how the manager is set up, or what it is called with, has to be changed")
        }
        _ => panic!("{id} has no row"),
    }
}

fn remedy_of_problem(name: &str) -> Remedy {
    match name {
        "read-only" => Remedy::Tried("database_of_another_machine_is_confirmed"),
        "conflict" => Remedy::Tried("cordoned_daemon_takes_clients_again"),
        "not-admitted" | "layout-blocked" | "host-file-refused" | "fingerprint-differs" => DECISION,
        "database-lost" | "internal" => HARDWARE,
        "unauthorized" | "forbidden" => Remedy::Person("an administrator has to grant it"),
        "precondition-failed" | "timed-out" | "too-many-failures" | "too-many-requests" | "unavailable" => {
            Remedy::None
        }
        "body-too-large"
        | "body-too-slow"
        | "cross-site"
        | "head-too-large"
        | "idempotency-key-refused"
        | "idempotency-key-reused"
        | "invalid-request"
        | "malformed-json"
        | "no-host"
        | "not-a-document"
        | "not-acceptable"
        | "not-found"
        | "not-json"
        | "unreadable-body"
        | "unsupported-encoding"
        | "wrong-host" => Remedy::Person("the caller has to send another request"),
        _ => panic!("{name} has no row"),
    }
}

/// The types of problems that the document of the API names.
fn problems() -> BTreeSet<String> {
    let document = include_str!("../../../openapi/v1.json");
    let named = document.split("urn:mps-manager:problem:").skip(1);
    let name = |rest: &str| rest.split_once('"').map(|(name, _)| name.to_owned());
    // One of them is the pattern of all.
    named.filter_map(name).filter(|name| !name.contains('[')).collect()
}

/// Every reason, kind, check and type of problem has its row, and each test that a row names is one.
#[test]
fn every_remedy_is_tried_or_needs_somebody() {
    let source =
        [include_str!("remedies.rs"), include_str!("strangers.rs"), include_str!("layout_drains.rs")]
            .concat();
    let reasons = ConditionReason::ALL.iter().map(|reason| (reason.to_string(), remedy_of(*reason)));
    let kinds = IncidentKind::ALL.iter().map(|kind| (kind.as_str().to_owned(), remedy_of_incident(*kind)));
    let (mut tried, mut by_people, mut none) = (BTreeSet::new(), 0, 0);
    let checks = CHECKS.iter().map(|(id, _)| (format!("check {id}"), remedy_of_check(id)));
    let problems = problems();
    assert!(problems.len() > 25, "{problems:?}");
    let problems = problems.iter().map(|name| (format!("problem {name}"), remedy_of_problem(name)));
    for (name, remedy) in reasons.chain(kinds).chain(checks).chain(problems) {
        match remedy {
            Remedy::None => none += 1,
            Remedy::Person(why) => {
                assert!(!why.is_empty(), "{name}");
                by_people += 1;
            }
            Remedy::Tried(test) => {
                assert!(source.contains(&format!("#[test]\nfn {test}()")), "{name}: there is no test {test}");
                tried.insert(test);
            }
        }
    }
    println!("remedies: {} tests, {by_people} rows for people, {none} without any", tried.len());
    assert!(tried.len() >= 19, "{}", tried.len());
}
