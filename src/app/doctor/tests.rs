//! Judgements of facts that no test host can have, and of those that need none.

use std::collections::BTreeSet;

use super::facts::{
    CdiFacts, CgroupFacts, DirectoryFacts, DirectoryPlace, DriverFacts, GpuProcessFacts, ManagerFacts,
    NoDatabase, NoDriver, NoPrograms, SlurmFacts, WaitingUsers,
};
use super::*;
use crate::domain::checkup::CheckOutcome;
use crate::domain::checkup::CheckVerdict::{self, Fail, Ok as Well, Skipped, Warn};
use crate::domain::condition::{ConditionReason, ConditionType};
use crate::domain::daemon::Mode;
use crate::domain::foreign_owner::ForeignOwner;
use crate::domain::gpu::{ComputeCapability, ComputeMode};
use crate::domain::mig::MigInstance;
use crate::gpu::GpuDriver;
use crate::host::Identity;
use crate::host::systemd::Scopes;
use crate::host::trust::Untrusted;
use crate::mps::process::foreign::{Running, Surroundings};
use crate::supervisor::ExposureSearch;
use crate::testing::h200;

const DAY_MS: i64 = 24 * 3600 * 1000;

/// A host on which a first manager would start.
fn host() -> HostFacts {
    let directory = || DirectoryFacts {
        place: Ok(DirectoryPlace::There { uid: 0, mode: 0o755 }),
        network: None,
        untrusted: None,
        open: Vec::new(),
    };
    HostFacts {
        config: Config::default(),
        config_fault: None,
        machine_id: "0123456789abcdef0123456789abcdef".into(),
        driver: Ok(DriverFacts {
            driver: GpuDriver {
                driver_version: "580.82.07".into(),
                cuda_version: Some("13.0".into()),
                simulated: false,
                profile: None,
            },
            gpus: vec![h200(0), h200(1)],
            processes: Vec::new(),
            unread: None,
        }),
        programs: Err(NoPrograms::NotMade),
        manager: ManagerFacts::NeverServed,
        state_directory: directory(),
        runtime_directory: directory(),
        database: Err(NoDatabase::NotMade),
        free: Ok(vec![(1 << 40, "/var/lib/mps-manager".into())]),
        pipes: Ok("/run/mps-manager/daemons/x/pipe".into()),
        has_default_pipes: false,
        unreachable: Vec::new(),
        report: None,
        daemons: Vec::new(),
        waiting: Vec::new(),
        exposed: Ok(ExposureSearch { searched: 0, found: Vec::new(), unseen: 0, unresolved: Vec::new() }),
        open_files: Some(65_536),
        tasks: None,
        variables: Vec::new(),
        services: Vec::new(),
        other_managers: Vec::new(),
        slurm: SlurmFacts::default(),
        xids: Ok(Vec::new()),
        cgroup: CgroupFacts { has_dmem: Some(true), limited: Vec::new() },
        cdi: CdiFacts { count: 0, stale: Vec::new(), gpus: None, unusable: None },
        scopes: Scopes::Unavailable("no systemd".into()),
        private_mounts: None,
        bound: Ok(()),
        listens: None,
        certificate: Ok(None),
        boot_id: Ok("a boot".into()),
        now_ms: 20_000 * DAY_MS,
    }
}

/// Judges a host that is well but for a change.
fn judged(id: &str, change: impl FnOnce(&mut HostFacts)) -> CheckOutcome {
    let mut host = host();
    change(&mut host);
    let (_, judge) = CHECKS.into_iter().find(|(name, _)| *name == id).expect("a check");
    judge(&host).into()
}

#[track_caller]
fn is(id: &str, change: impl FnOnce(&mut HostFacts), status: CheckVerdict, words: &str) {
    let outcome = judged(id, change);
    assert_eq!(outcome.status, status, "{id}: {outcome:?}");
    let all = format!("{} {}", outcome.seen, outcome.remedy.as_deref().unwrap_or_default());
    assert!(all.contains(words), "{id}: {outcome:?}");
    assert_eq!(outcome.remedy.is_some(), status > Skipped, "{id}: {outcome:?}");
}

fn gpu_facts(host: &mut HostFacts) -> &mut DriverFacts {
    host.driver.as_mut().expect("there is a driver")
}

#[test]
fn first_manager_of_a_host_is_not_warned() {
    let names: BTreeSet<&str> = CHECKS.iter().map(|(id, _)| *id).collect();
    assert_eq!(names.len(), CHECKS.len());
    for (id, _) in CHECKS {
        let outcome = judged(id, |_| ());
        assert!(outcome.status <= Skipped, "{id}: {outcome:?}");
    }
}

#[test]
fn checks_of_gpus_are_skipped_without_driver() {
    let gpu_checks = ["gpus", "compute_capability", "mig", "compute_mode", "outside_mps", "pid_namespace"];
    is("driver", |host| host.driver = Err(NoDriver::Failed("no NVML".into())), Fail, "no NVML");
    is("driver", |host| host.driver = Err(NoDriver::NotAsked("in maintenance")), Skipped, "in maintenance");
    is("gpus", |host| gpu_facts(host).gpus.clear(), Fail, "lists no GPU");
    for id in gpu_checks {
        is(id, |host| host.driver = Err(NoDriver::Failed(String::new())), Skipped, "did not answer");
        is(id, |host| host.driver = Err(NoDriver::NotAsked("in maintenance")), Skipped, "in maintenance");
        if id != "gpus" {
            is(id, |host| gpu_facts(host).gpus.clear(), Skipped, "lists no GPU");
        }
    }
}

#[test]
fn gpus_are_judged_by_mode_and_generation() {
    let with = |change: fn(&mut crate::domain::gpu::Gpu)| {
        move |host: &mut HostFacts| change(&mut gpu_facts(host).gpus[1])
    };
    is("compute_capability", |_| (), Well, "static partitions");
    let capability = |major| Some(ComputeCapability { major, minor: 0 });
    is(
        "compute_capability",
        |host| gpu_facts(host).gpus[1].compute_capability = capability(6),
        Warn,
        "before Volta: GPU 1",
    );
    is(
        "compute_capability",
        |host| gpu_facts(host).gpus[0].compute_capability = capability(7),
        Well,
        "before Ampere, so without static partitions: GPU 0",
    );
    is("compute_capability", with(|gpu| gpu.compute_capability = None), Skipped, "of GPU 1");
    is("mig", with(|gpu| gpu.mig_enabled = true), Warn, "nvidia-smi mig -i 1 -lgip");
    let with_instance = |host: &mut HostFacts| {
        let gpus = &mut gpu_facts(host).gpus;
        gpus[1].mig_enabled = true;
        let mut instance = gpus[1].clone();
        instance.mig_enabled = false;
        instance.mig = Some(MigInstance { parent: gpus[1].uuid.clone(), number: 0, profile: None });
        gpus.push(instance);
    };
    is("mig", with_instance, Well, "GPU 1 in MIG mode, 1 instance");
    is("compute_mode", |_| (), Well, "default: GPU 0, GPU 1");
    is(
        "compute_mode",
        with(|gpu| gpu.compute_mode = Some(ComputeMode::Prohibited)),
        Fail,
        "prohibited: GPU 1",
    );
    is("compute_mode", with(|gpu| gpu.compute_mode = None), Skipped, "of GPU 1");
}

#[test]
fn gpus_in_mig_mode_are_distinguished() {
    let with = |divided: &'static [usize], mode: ComputeMode| {
        move |host: &mut HostFacts| {
            for (at, gpu) in gpu_facts(host).gpus.iter_mut().enumerate() {
                gpu.mig_enabled = divided.contains(&at);
                gpu.compute_mode = Some(if gpu.mig_enabled { ComputeMode::Default } else { mode });
            }
        }
    };
    let exclusive = ComputeMode::ExclusiveProcess;
    is("compute_mode", with(&[], exclusive), Well, "exclusive_process: GPU 0, GPU 1; a process outside MPS");
    let both = judged("compute_mode", with(&[1], exclusive)).seen;
    assert!(both.starts_with("exclusive_process: GPU 0; a process outside MPS is refused there. "), "{both}");
    assert!(
        both.contains("cannot be changed: GPU 1; a process outside MPS is reported as a bypass"),
        "{both}"
    );
    is("compute_mode", with(&[0, 1], exclusive), Skipped, "in MIG mode");
    is("compute_mode", with(&[0], ComputeMode::Default), Well, "default: GPU 1;");
    is("compute_capability", with(&[1], exclusive), Well, "in MIG mode, so without static partitions: GPU 1");
}

#[test]
fn checks_of_nothing_are_skipped() {
    is("privileged_socket", |_| (), Skipped, "no daemon has a directory");
    let searched = |host: &mut HostFacts| host.exposed.as_mut().expect("searched").searched = 1;
    is("privileged_socket", searched, Well, "no other mount namespace");
    is("pid_namespace", |host| gpu_facts(host).unread = Some("of GPU 1".into()), Skipped, "of GPU 1");
    let daemon = |pid, environment| Running {
        identity: Identity { pid, start_time: 1 },
        uid: Some(0),
        options: Vec::new(),
        multi_user: false,
        mode: Mode::Shared,
        owner: ForeignOwner::default(),
        environment,
    };
    let read = Surroundings {
        pipe_directory: "/a".into(),
        log_directory: "/b".into(),
        visible_devices: None,
        pci_order: false,
        token: None,
        tenant: None,
        reachable: Err("not looked at".into()),
    };
    let unread = || daemon(7, Err("not allowed".into()));
    is("waiting_users", |host| host.daemons = vec![unread()], Skipped, "no MPS control daemon runs");
    let one_of_two = vec![unread(), daemon(8, Ok(read.clone()))];
    is("waiting_users", |host| host.daemons = one_of_two, Skipped, "of 2 MPS control daemons 1 could not");
    is("waiting_users", |host| host.daemons = vec![daemon(8, Ok(read))], Well, "no client waits");
}

#[test]
fn host_file_held_back_is_warned_of() {
    let with = |reason: ConditionReason| {
        move |host: &mut HostFacts| {
            host.manager = ManagerFacts::Serves { pid: Some(7), health: Ok(()) };
            let condition = ConditionType::HostFileNotApplied.problem(reason, "it names 1/mig0".to_owned());
            host.report = Some(Ok(ManagerReport { host: vec![condition], daemons: Vec::new() }));
        }
    };
    is("manager", with(ConditionReason::GpuMissing), Warn, "it names 1/mig0 make the MIG instances");
    is("manager", with(ConditionReason::WriteFailed), Warn, "it names 1/mig0 fix the file");
}

#[test]
fn processes_outside_mps_are_named() {
    let process = |pid, is_of_mps, is_like_server| GpuProcessFacts {
        gpu: 0.into(),
        pid,
        is_of_mps,
        is_like_server,
        is_visible: pid != 9,
    };
    let with = |pids: &'static [(u32, bool, bool)]| {
        move |host: &mut HostFacts| {
            let all = pids.iter().map(|(pid, is_of_mps, server)| process(*pid, *is_of_mps, *server));
            gpu_facts(host).processes = all.collect();
        }
    };
    is("outside_mps", with(&[]), Skipped, "no process");
    is("outside_mps", with(&[(7, true, false)]), Well, "client or server");
    is("outside_mps", with(&[(7, true, false), (8, false, false), (5, false, true)]), Warn, "kill 8");
    is("outside_mps", with(&[(5, false, true), (6, false, true)]), Warn, "-p 5,6");
    is("outside_mps", |host| gpu_facts(host).unread = Some("of GPU 1".into()), Skipped, "of GPU 1");
    let exclusive = |host: &mut HostFacts| {
        with(&[(8, false, false)])(host);
        gpu_facts(host).gpus[0].compute_mode = Some(ComputeMode::ExclusiveProcess);
    };
    is("outside_mps", exclusive, Warn, "one on GPU 0 keeps MPS");
    is("pid_namespace", with(&[(7, true, false), (9, true, false)]), Warn, "not visible here: 9;");
    is("pid_namespace", with(&[(7, true, false)]), Well, "visible here");
}

#[test]
fn directories_are_judged_by_place_and_trust() {
    for (id, option) in [("state_directory", "--state-dir"), ("runtime_directory", "--runtime-dir")] {
        let with = |change: fn(&mut DirectoryFacts)| {
            move |host: &mut HostFacts| {
                change(if id == "state_directory" {
                    &mut host.state_directory
                } else {
                    &mut host.runtime_directory
                });
            }
        };
        is(id, |_| (), Well, "of uid 0, mode 755");
        is(id, with(|facts| facts.place = Err("/x is not a directory".into())), Fail, option);
        is(
            id,
            with(|facts| facts.place = Ok(DirectoryPlace::CanBeMade("/var".into()))),
            Well,
            "made in /var",
        );
        is(id, with(|facts| facts.open = vec!["/x (mode 644)".into()]), Warn, "/x (mode 644)");
        let untrusted = |facts: &mut DirectoryFacts| {
            facts.untrusted =
                Some(Untrusted { path: "/x".into(), problem: "is open".into(), remedy: "chmod".into() });
            facts.open = vec!["/x".into()];
        };
        is(id, with(untrusted), Fail, "/x is open chmod");
        let remote = |facts: &mut DirectoryFacts| {
            facts.network = Some("NFS");
            facts.place = Ok(DirectoryPlace::CanBeMade("/net".into()));
        };
        is(id, with(remote), Fail, "is on NFS");
    }
    for (bytes, status) in [(1 << 20, Fail), (16 << 20, Warn), ((256 << 20) - 1, Warn), (256 << 20, Well)] {
        let free = |host: &mut HostFacts| host.free = Ok(vec![(1 << 40, "/a".into()), (bytes, "/b".into())]);
        is("disk_space", free, status, "free at /b");
    }
}

#[test]
fn address_in_use_is_the_managers_or_not() {
    let in_use = |pid, listens| {
        move |host: &mut HostFacts| {
            host.bound = Err("in use".into());
            host.manager = ManagerFacts::Serves { pid, health: Ok(()) };
            host.listens = listens;
        }
    };
    is("listen", in_use(Some(7), Some(true)), Well, "by the manager, process 7");
    is("listen", in_use(Some(7), Some(false)), Fail, "process 7, listens elsewhere");
    is("listen", in_use(Some(7), None), Skipped, "process 7");
    is("listen", in_use(None, None), Skipped, "whether the manager uses it");
    is("listen", |host| host.bound = Err("in use".into()), Fail, "8640: in use");
    is("manager", in_use(None, None), Well, "one whose process this user may not see serves at");
}

#[test]
fn time_left_of_a_certificate_is_judged() {
    let until =
        |days: i64| move |host: &mut HostFacts| host.certificate = Ok(Some((20_000 + days) * DAY_MS / 1000));
    for (days, status, words) in [
        (-2, Fail, "expired 2 days ago"),
        (0, Warn, "in 0 days"),
        (13, Warn, "in 13 days"),
        (14, Well, "in 14 days"),
    ] {
        is("certificate", until(days), status, words);
    }
    is("clock", |host| host.boot_id = Err("no /proc".into()), Fail, "no /proc");
}

#[test]
fn limits_and_other_software_are_judged() {
    is("open_files", |host| host.open_files = Some(16_383), Warn, "16383 open files here");
    is("open_files", |host| host.open_files = None, Skipped, "may not be read");
    is("tasks", |host| host.tasks = Some((4095, "pids.max".into())), Warn, "by pids.max");
    is("isolation", |host| host.private_mounts = Some(true), Warn, "PrivateTmp=");
    is(
        "mps_services",
        |host| host.services = vec!["a.service".into()],
        Warn,
        "systemctl disable --now a.service",
    );
    is(
        "other_managers",
        |host| host.other_managers = vec![("nvidia-mig-manager", 7)],
        Warn,
        "systemctl disable",
    );
    is(
        "other_managers",
        |host| host.other_managers = vec![("vGPUmonitor", 7)],
        Warn,
        "kubectl get daemonsets",
    );
    is(
        "device_cgroup",
        |host| host.cgroup.limited = vec!["/sys/fs/cgroup/a".into()],
        Warn,
        "cat /sys/fs/cgroup/a/dmem.max",
    );
    is("device_cgroup", |host| host.cgroup.has_dmem = None, Well, "no cgroup v2");
    let slurm = |host: &mut HostFacts| {
        host.slurm =
            SlurmFacts { files: 1, enabling: vec!["a.conf".into()], unreadable: vec!["b.conf".into()] };
    };
    is("slurm_mps", slurm, Warn, "a.conf");
    is("default_pipe_directory", |host| host.has_default_pipes = true, Warn, "container runtime");
    is("cdi", |host| host.cdi.gpus = Some(BTreeSet::new()), Warn, "(of nvidia.com/gpu there are: none)");
    is("cdi", |host| host.cdi.stale = vec![("/a b.json".into(), "/gone".into())], Warn, "rm /a b.json");
}

#[test]
fn waiting_clients_are_named_with_a_command() {
    let with = |managed: Option<&'static str>, clients: &'static [(u32, u32)]| {
        move |host: &mut HostFacts| {
            host.waiting = vec![WaitingUsers {
                control: 3,
                managed: managed.map(str::to_owned),
                served: [1000].into(),
                clients: clients.to_vec(),
            }];
        }
    };
    is(
        "waiting_users",
        with(Some("gpu0"), &[(7, 1001)]),
        Warn,
        "process 7 of uid 1001 mps-manager daemon set gpu0 --multi-user",
    );
    is("waiting_users", with(None, &[(7, 1001)]), Warn, "mps-manager foreign list");
    is("waiting_users", with(None, &[]), Skipped, "no MPS control daemon runs");
}
