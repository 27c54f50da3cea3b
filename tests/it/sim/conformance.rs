//! The recordings, played.

use std::os::unix::process::CommandExt as _;
use std::time::Duration;

use rustix::process::Signal;

use super::host::{Busy, Host, NOBODY, can_become_nobody, finish, uid};
use super::replay::Replay;
use super::transcript;
use crate::harness::{TIMEOUT, eventually};

const H200_01: &str = "GPU-514466a0-8e68-f857-9f73-e438010e48cb";
const H200_03: &str = "GPU-63d36076-e242-e60f-b1d0-629fff0ef875";
const H200_05: [&str; 2] =
    ["GPU-d4e3a02e-e949-ae50-e3df-9ad944749bce", "GPU-aefdca94-c177-1da3-3cd5-20aceb6e7a29"];
const H200_07: [&str; 2] =
    ["GPU-846ca074-594c-9363-3286-102a1ae0f2e7", "GPU-9f9440d9-f2a5-ca07-f0dc-0904b990eecc"];

/// The PID namespace in which everything was recorded but for one client.
const NAMESPACE: &str = "4026531836";

fn namespace() -> String {
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap();
    link.to_str().unwrap().trim_start_matches("pid:[").trim_end_matches(']').to_owned()
}

fn name(pid: rustix::process::Pid) -> String {
    pid.as_raw_nonzero().to_string()
}

#[test]
fn recording_01_help_and_version() {
    let host = Host::new("h200x1@13.0");
    let mut shown = String::new();
    for option in ["--help", "-h", "-v", "-v"] {
        let done = finish(host.control_program().arg(option), b"", TIMEOUT);
        assert_eq!((done.rc, done.stderr.as_str()), (0, ""));
        shown.push_str(&done.stdout);
    }
    let recorded = transcript::text("01-h200-x1-commands-clients-fault.txt");
    let (_, rest) = recorded.split_once("## help\n").unwrap();
    let (help, _) = rest.split_once("## command with no daemon").unwrap();
    assert_eq!(shown.trim_end(), help.trim_end());
}

#[test]
fn recording_01_commands_clients_and_a_fault() {
    let host = Host::new("h200x1@13.0");
    let mut r = Replay::new(&host, "01-h200-x1-commands-clients-fault.txt");
    r.gpus(&[H200_01]);
    r.name(NAMESPACE, &namespace());
    r.play_to("start");
    host.start(&["-d"], &[]);
    let second = finish(host.control_program().arg("-d"), b"", TIMEOUT);
    r.compare(
        0,
        "second start",
        "1 An instance of this daemon is already running\n",
        &format!("{} {}", second.rc, second.stderr),
    );
    r.before("start_server");
    r.one();
    let server = name(host.ready());
    r.name("511", &server);
    r.play_to("clients");

    clients_of_01(&host);
    let first = host.busy_client(&["--spin", "60"], &[]);
    let second = host.busy_client(&["--spin", "60"], &[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30")]);
    r.name("668", &name(first.pid()));
    r.name("669", &name(second.pid()));
    r.play_to("fault");
    let terminated = second.finish(TIMEOUT);
    assert_eq!(terminated.rc, 4);
    assert!(
        terminated.stderr.contains(
            "launches: cudaErrorMpsClientTerminated the MPS client has been terminated by the server"
        )
    );

    let culprit = host.busy_client(&["--fault-after", "0"], &[]);
    r.name("715", &name(culprit.pid()));
    let failed = first.finish(TIMEOUT);
    assert_eq!(failed.rc, 4);
    assert!(failed.stderr.contains("cudaErrorIllegalAddress an illegal memory access was encountered"));
    eventually("the first client is gone", || host.ask("ps").lines().count() == 2);
    r.before("ps");
    r.one();
    assert_eq!(culprit.finish(TIMEOUT).rc, 0);
    eventually("the server is well", || host.ask(&format!("get_server_status {server}")) == "ACTIVE\n");
    r.play_to("logs");
    r.name("/tmp/mps/pipe", &host.pipe().display().to_string());
    r.name("/tmp/mps/log", &host.pipe().with_file_name("log").display().to_string());
    super::logs::compare_01(&host, &r);
    r.play_to("static");
    let unknown = finish(host.control_program().args(["-d", "-S"]), b"", TIMEOUT);
    let recorded = transcript::text("01-h200-x1-commands-clients-fault.txt");
    let (_, rest) = recorded.split_once("## static\n").unwrap();
    let (usage, _) = rest.split_once("$ lspart").unwrap();
    r.compare(0, "-S", usage, &format!("{}[rc {}]\n", unknown.stdout, unknown.rc));
    r.end();
}

/// What the first four clients of recording 01 saw: SMs exact, free memory within 64 MiB.
fn clients_of_01(host: &Host) {
    const PERCENTAGE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
    const LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
    type Run<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], &'a str);
    let runs: [Run; 4] = [
        (&[], &[], "SM 66 free 4011117488 total 150109880320 prio least 0 greatest -5"),
        (&[(PERCENTAGE, "10")], &[], "SM 12 free 4219729520 total 150109880320 prio least 0 greatest -5"),
        (
            &[(LIMIT, "0=2G")],
            &["--alloc", "4096"],
            "SM 66 free 1863633840 total 150109880320 prio least 0 greatest -5\n\
             alloc fails after 1536 MiB: CUDA_ERROR_OUT_OF_MEMORY\ngot 1536 MiB\n\
             free 253021104 total 150109880320",
        ),
        (
            &[],
            &["--alloc", "8192"],
            "SM 66 free 4011117488 total 150109880320 prio least 0 greatest -5\n\
             alloc fails after 3584 MiB: CUDA_ERROR_OUT_OF_MEMORY\ngot 3584 MiB\n\
             free 253021104 total 150109880320",
        ),
    ];
    for (count, (env, args, recorded)) in runs.into_iter().enumerate() {
        let done = host.client(args, env);
        assert_eq!(done.rc, 0);
        // The log counts who is left, so the next one comes only when this one is gone.
        eventually("it is gone", || host.log("server.log").matches(" disconnected\n").count() == count + 1);
        let (_, seen) = done.stdout.split_once(" s\n").unwrap();
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (recorded, seen) = (words(recorded), words(seen));
        assert_eq!(recorded.len(), seen.len(), "{seen:?}");
        for (recorded, seen) in recorded.iter().zip(&seen) {
            match (recorded.parse::<u64>(), seen.parse::<u64>()) {
                (Ok(a), Ok(b)) if a > 1 << 27 => assert!(a.abs_diff(b) <= 64 << 20, "{a} {b}"),
                _ => assert_eq!(recorded, seen),
            }
        }
    }
}

#[test]
fn recording_03_argument_grammar_and_users() {
    let host = Host::new("h200x1@13.0");
    let mut r = Replay::new(&host, "03-h200-x1-argument-grammar-users.txt");
    r.gpus(&[H200_03]);
    r.name(NAMESPACE, &namespace());
    let mut daemon = Busy::spawn(host.control_program().arg("-f"));
    eventually("the daemon listens", || host.control("get_server_list").rc == 0);
    r.before("start_server");
    r.one();
    r.name("657", &name(host.ready()));
    r.before("start_server -uid 1000");
    r.one();
    r.name("829", &name(host.ready()));
    r.before("start_server -uid 0 -mlopart");
    r.one();
    r.name("856", &name(host.ready()));
    r.play_to("-M");
    assert!(daemon.output().0.contains("] Cmd:terminate_client 1 2\n"), "-f repeats the log on stdout");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.finish(TIMEOUT).rc, 128 + 15);

    host.move_to("m");
    host.start(&["-d", "-M"], &[]);
    r.one();
    as_nobody(&mut host.client_command(&[], &[]));
    r.name("927", &name(host.ready()));
    assert!(host.log("control.log").contains(" from user 0: "), "under -M everybody is user 0");
    r.play_to("two users, no -M");

    host.move_to("u");
    host.start(&["-d"], &[]);
    let first = host.busy_client(&["--spin", "60"], &[]);
    r.name("962", &name(first.pid()));
    r.name("965", &name(host.ready()));
    r.end();
    let mut command = host.client_command(&[], &[]);
    let mut second = Busy::spawn(if can_become_nobody() { nobody(&mut command) } else { return });
    eventually("the second user waits", || {
        host.log("control.log").contains("from user 65534: Server is not ready, push client to pending list")
    });
    assert!(second.running());
    first.signal(Signal::KILL);
    let done = second.finish(TIMEOUT);
    assert_eq!(done.rc, 0, "{done:?}");
}

fn nobody(command: &mut std::process::Command) -> &mut std::process::Command {
    command.uid(NOBODY).gid(NOBODY)
}

/// Runs a command as nobody, or as oneself where that cannot be.
fn as_nobody(command: &mut std::process::Command) {
    let command = if can_become_nobody() { nobody(command) } else { command };
    let done = finish(command, b"", TIMEOUT);
    assert_eq!(done.rc, 0, "{done:?}");
}

#[test]
fn recording_04_faults_across_four_gpus() {
    let host = Host::new("h200x4@13.0");
    let mut r = Replay::new(&host, "04-h200-x4-fault-containment.txt");
    r.gpus(&[
        "GPU-0b3a285d-9edb-4fc8-e082-c898e3a0f209",
        "GPU-6bd4d6e1-4195-52f0-0b57-52ec2a616d15",
        "GPU-bfc29475-2a2b-59b5-91ea-7fc381aade63",
        "GPU-48588586-48d9-cd39-2673-dab6fd807826",
    ]);
    r.name(NAMESPACE, &namespace());
    host.start(&["-d"], &[]);
    r.one();
    r.name("902", &name(host.ready()));
    r.before("ps");
    // As recorded: A on 0, B on 0 and 1, C on 1, D on 2, their first contexts in the order C, A, D, B.
    let [third, culprit, bystander, second] = [&["1"][..], &["0"], &["2"], &["0,1"]].map(|gpus| {
        let args: &[&str] =
            if gpus == ["0"] { &["--fault-after", "1", "--gpus"] } else { &["--spin", "60", "--gpus"] };
        let mut command = host.client_command(args, &[]);
        let mut busy = Busy::spawn(command.args(gpus).arg("--json").arg0("/tmp/multi"));
        eventually("the client has its contexts", || busy.output().0.contains("\"pid\""));
        if gpus == ["0"] {
            busy.signal(Signal::STOP);
        }
        busy
    });
    for (recorded, client) in [("958", &culprit), ("959", &second), ("960", &third), ("961", &bystander)] {
        r.name(recorded, &name(client.pid()));
    }
    r.before("get_server_status");
    culprit.signal(Signal::CONT);
    let (second, third) = (second.finish(TIMEOUT), third.finish(TIMEOUT));
    assert_eq!((second.rc, third.rc), (4, 4));
    assert!(second.stderr.contains("cudaErrorIllegalAddress"), "{}", second.stderr);
    assert!(third.stderr.contains("cudaErrorLaunchFailure"), "{}", third.stderr);
    // A stays for a while after its fault; here, for as long as a query takes.
    culprit.signal(Signal::STOP);
    eventually("B and C are gone", || host.ask("ps").lines().count() == 3);
    r.one();
    r.one();
    let refused = host.client(&[], &[]);
    assert_eq!((refused.rc, refused.stdout.as_str()), (3, "cuInit(0) -> CUDA_ERROR_MPS_SERVER_NOT_READY\n"));
    r.one();
    culprit.signal(Signal::CONT);
    assert_eq!(culprit.finish(TIMEOUT).rc, 0);
    host.ready();
    r.before("get_server_status 902");
    r.one();
    r.one();
    bystander.signal(Signal::KILL);
    bystander.finish(TIMEOUT);
    assert_eq!(host.client(&["--gpus", "0"], &[]).rc, 0);
    super::logs::compare_04(&host, &r);
    r.end();
}

#[test]
fn recording_05_ordinals_and_percentages() {
    let host = Host::new("h200x2@13.0");
    let mut r = Replay::new(&host, "05-h200-x2-device-ordinals-percentages.txt");
    r.gpus(&H200_05);
    r.name(NAMESPACE, &namespace());
    host.start(&["-d"], &[]);
    r.one();
    r.name("641", &name(host.ready()));
    r.play_to("names");
    let spaces = "/tmp/a client with spaces and a very long name that goes on and on";
    let mut command = host.client_command(&["--spin", "60", "--gpus", "0", "--json"], &[]);
    let mut first = Busy::spawn(command.arg0(spaces));
    eventually("the client has its context", || first.output().0.contains("\"pid\""));
    let second = host.busy_client(&["--spin", "60", "--gpus", "0"], &[]);
    r.name("1077", &name(first.pid()));
    r.name("1080", &name(second.pid()));
    assert!(host.ask("ps").contains(spaces));
    r.before("quit");
    for client in [first, second] {
        client.signal(Signal::KILL);
        client.finish(TIMEOUT);
    }
    r.play_to("daemon with CUDA_VISIBLE_DEVICES=1");

    host.move_to("b");
    host.start(&["-d", "-q"], &[("CUDA_VISIBLE_DEVICES", "1")]);
    r.one();
    r.one();
    r.name("1115", &name(host.ready()));
    r.play_to("daemon-level env");

    host.move_to("c");
    let env = [
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "40"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "1=4G"),
        ("CUDA_MPS_CLIENT_PRIORITY", "1"),
    ];
    host.start(&["-d"], &env);
    r.end();
}

#[test]
fn recording_07_limits_by_uuid_and_other_users() {
    let host = Host::new("h200x2@13.0");
    let mut r = Replay::new(&host, "07-h200-x2-limits-by-uuid-other-uid-logs.txt");
    r.gpus(&H200_07);
    host.start(&["-d"], &[]);
    r.before("start_server");
    r.one();
    r.name("643", &name(host.ready()));
    r.play_to("one daemon per GPU");

    host.move_to("b");
    host.start(&["-d"], &[("CUDA_VISIBLE_DEVICES", "1")]);
    r.before("start_server");
    r.one();
    r.name("759", &name(host.ready()));
    r.play_to("stopped client, stopped daemon");
    let client = host.busy_client(&["--spin", "60"], &[]);
    client.signal(Signal::STOP);
    r.name("4161", &name(client.pid()));
    r.one();
    r.one();
    client.signal(Signal::CONT);
    assert_eq!(client.finish(TIMEOUT).rc, 4, "the termination took effect though its caller was killed");
    host.ready();
    r.end();
}

#[test]
fn recording_08_privilege_is_the_privileged_socket() {
    let host = Host::new("h200x4@13.0");
    let mut r = Replay::new(&host, "08-h200-x4-census-trust-escape-namespaces.txt");
    host.start(&["-d"], &[]);
    r.before("start_server");
    r.one();
    host.ready();
    r.before("get_default_active_thread_percentage");
    host.ask("set_default_active_thread_percentage 77");
    r.one();
    host.ask("set_default_active_thread_percentage 66");
    r.one();
    let privileged = host.pipe().join("control_privileged");
    std::fs::rename(&privileged, host.path("hidden")).unwrap();
    let refusal = format!(
        "Insufficient privileges for UID {}. Control deamon settings can only be modified by the user who started \
         it or by the root user.\n",
        uid()
    );
    assert_eq!(host.ask("set_default_active_thread_percentage 50"), refusal);
    std::fs::rename(host.path("hidden"), &privileged).unwrap();
    r.before("quit");
    let several = host.busy_client(&["--spin", "60", "--gpus", "0"], &[("CUDA_DEVICE_MAX_CONNECTIONS", "8")]);
    let mut more = vec![several];
    loop {
        let env = [("CUDA_DEVICE_MAX_CONNECTIONS", "8")];
        let mut command = host.client_command(&["--spin", "60", "--gpus", "0"], &env);
        let mut client = Busy::spawn(&mut command);
        eventually("the client got in or not", || {
            let text = client.output().0;
            text.contains("SM ") || text.contains("MAX_CONNECTIONS_REACHED")
        });
        if client.output().0.contains("CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED") {
            break;
        }
        more.push(client);
    }
    assert_eq!(more.len(), 15);
    let log = "Failed to accept new client. Reached maximum number of device connections.";
    assert!(host.log("server.log").contains(log));
    for client in more {
        client.signal(Signal::KILL);
        client.finish(Duration::from_secs(5));
    }
    r.end();
}
