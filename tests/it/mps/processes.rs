//! Daemons as processes: started, found, stopped, cleaned up after.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use mps_manager::domain::Inode;
use mps_manager::domain::daemon::Mode;
use mps_manager::host::{Identity, Signal, process};
use mps_manager::mps::process::{
    DaemonEnd, DaemonSearch, DaemonStartError, RecordedProcess, clean_stale, find, find_recorded, mode,
    occupant, pipe_inode, servers, start, stop,
};
use mps_manager::mps::{Command, InstalledProgram};

use super::host::{Host, ask, connected, server, token_of};
use crate::harness::scratch;
use crate::harness::{TIMEOUT, eventually_async};

#[tokio::test]
async fn daemon_is_started_found_stopped_and_cleaned() {
    let host = Host::new("h200x2");
    let (spec, started) = host.start("a").await;
    let pid = started.identity.pid;
    let pipe = &spec.pipe_directory;

    // What it is: a process of its own, with nothing of ours but what it needs.
    assert_eq!(process::command(pid).expect("alive").last().map(String::as_str), Some("-d"));
    let mut keys: Vec<_> = process::environ(pid).expect("alive").into_iter().map(|(key, _)| key).collect();
    keys.retain(|key| !["PATH", "LD_LIBRARY_PATH", "LC_ALL"].iter().any(|known| key == known));
    // The simulated program's own.
    keys.retain(|key| !key.to_string_lossy().starts_with("MPS_SIM_"));
    keys.sort();
    assert_eq!(
        keys,
        [
            "CUDA_MPS_LOG_DIRECTORY",
            "CUDA_MPS_PIPE_DIRECTORY",
            "CUDA_VISIBLE_DEVICES",
            "MPS_MANAGER_INCARNATION"
        ]
    );
    assert_eq!(token_of(pid).as_deref(), Some(spec.token.as_str()));

    // Who it is, to one that comes later.
    assert_eq!(started.pipe_inode, pipe_inode(pipe).expect("inode"));
    assert_eq!(find(&spec.token, pipe), DaemonSearch::Ours(started.identity));
    let recorded = RecordedProcess { identity: started.identity, pipe_inode: started.pipe_inode };
    assert_eq!(find_recorded(&spec.token, pipe, recorded), DaemonSearch::Ours(started.identity));
    let holder = occupant(pipe).expect("occupied");
    assert_eq!((holder.pid, holder.ours.as_ref()), (Some(pid), Some(&spec.token)));
    assert!(matches!(start(&host.program(), &spec).await, Err(DaemonStartError::Occupied { .. })));
    assert!(process::is_alive(started.identity));

    let control = host.control(&spec);
    let server = server(&control).await;
    let of_daemon: Vec<u32> = servers(pid).into_iter().map(|id| id.pid).collect();
    assert_eq!(of_daemon, [server], "the server is its child, and no daemon in spite of the token");
    assert_eq!(find(&spec.token, pipe), DaemonSearch::Ours(started.identity));

    let stopped = stop(&control, started.identity, 1).await.expect("stopped");
    assert_eq!((stopped.how, stopped.servers_killed), (DaemonEnd::Quit, 0));
    assert_eq!(process::identify(server), None);
    assert_eq!(find(&spec.token, pipe), DaemonSearch::None);
    assert_eq!(occupant(pipe), None);
    assert_eq!(stop(&control, started.identity, 1).await.expect("nothing to do").how, DaemonEnd::AlreadyDead);
    clean_stale(pipe).expect("cleaned");
    assert_eq!(fs::read_dir(pipe).expect("it stays").count(), 0);
}

#[tokio::test]
async fn killed_daemon_is_noticed_and_replaced() {
    let host = Host::new("h200x2");
    let (mut spec, first) = host.start("a").await;
    let control = host.control(&spec);
    let server = process::identify(server(&control).await).expect("a server");
    let death = process::death(first.identity);
    assert!(crate::harness::send(first.identity, Signal::KILL));
    tokio::time::timeout(TIMEOUT, death).await.expect("noticed");
    tokio::time::timeout(TIMEOUT, process::death(server)).await.expect("its server dies with it");

    // What it left is nobody's.
    assert!(spec.pipe_directory.join("control").exists());
    assert!(spec.pipe_directory.join("nvidia-cuda-mps-control.pid").exists());
    assert_eq!(occupant(&spec.pipe_directory), None);
    assert_eq!(find(&spec.token, &spec.pipe_directory), DaemonSearch::None);

    spec.token.push_str("-second");
    let second = start(&host.program(), &spec).await.expect("in the same directory");
    assert_ne!(second.identity, first.identity);
    assert_eq!(second.pipe_inode, first.pipe_inode);
    assert_eq!(ask(&control, Command::GetServerList).await, b"");
}

#[tokio::test]
async fn two_daemons_run_side_by_side() {
    let host = Host::new("h200x2");
    let (one, two) = tokio::join!(host.start("a"), host.start("b"));
    assert_eq!(find(&one.0.token, &one.0.pipe_directory), DaemonSearch::Ours(one.1.identity));
    assert_eq!(find(&two.0.token, &two.0.pipe_directory), DaemonSearch::Ours(two.1.identity));
    stop(&host.control(&one.0), one.1.identity, 1).await.expect("stopped");
    assert!(process::is_alive(two.1.identity));
}

#[tokio::test]
async fn mismatched_daemon_is_doubtful() {
    let host = Host::new("h200x2");
    let (spec, started) = host.start("a").await;
    let elsewhere = host.spec("b").pipe_directory;
    let DaemonSearch::Doubtful { reason } = find(&spec.token, &elsewhere) else {
        panic!("another directory")
    };
    assert!(reason.contains(&elsewhere.display().to_string()), "{reason}");

    let Identity { pid, start_time } = started.identity;
    let earlier = Identity { pid, start_time: start_time - 1 };
    let recorded = RecordedProcess { identity: earlier, pipe_inode: started.pipe_inode };
    assert!(matches!(
        find_recorded(&spec.token, &spec.pipe_directory, recorded),
        DaemonSearch::Doubtful { .. }
    ));
    let Inode { number, born } = started.pipe_inode;
    let earlier = born.map(|born| Inode { number, born: Some(born - 1) });
    for other in [Some(Inode { number: number + 1, born }), earlier].into_iter().flatten() {
        let recorded = RecordedProcess { identity: started.identity, pipe_inode: other };
        let DaemonSearch::Doubtful { reason } = find_recorded(&spec.token, &spec.pipe_directory, recorded)
        else {
            panic!("another inode")
        };
        assert!(reason.contains("not the directory that the daemon was started in"), "{reason}");
    }

    // The directory was swapped for another of its name.
    let moved = spec.pipe_directory.with_extension("old");
    fs::rename(&spec.pipe_directory, &moved).expect("moved");
    fs::create_dir(&spec.pipe_directory).expect("made");
    let recorded = RecordedProcess { identity: started.identity, pipe_inode: started.pipe_inode };
    assert!(matches!(
        find_recorded(&spec.token, &spec.pipe_directory, recorded),
        DaemonSearch::Doubtful { .. }
    ));

    // A program that only has the token.
    let mut sleeper = std::process::Command::new("sleep");
    let mut sleeper =
        sleeper.arg("600").env("MPS_MANAGER_INCARNATION", "a token nobody gave").spawn().expect("sleep");
    eventually_async("sleep runs", async || {
        process::command(sleeper.id()).is_some_and(|words| words == ["sleep", "600"])
    })
    .await;
    let found = find("a token nobody gave", &spec.pipe_directory);
    sleeper.kill().expect("killed");
    sleeper.wait().expect("reaped");
    assert!(matches!(found, DaemonSearch::Doubtful { .. }), "{found:?}");
}

#[tokio::test]
async fn foreign_daemon_is_left_alone() {
    let host = Host::new("h200x2");
    let spec = host.spec("a");
    let started = std::process::Command::new(host.program().path)
        .arg("-d")
        .env_clear()
        .envs(host.environment())
        .env("CUDA_MPS_PIPE_DIRECTORY", &spec.pipe_directory)
        .env("CUDA_MPS_LOG_DIRECTORY", &spec.log_directory)
        .status()
        .expect("runs");
    assert!(started.success());
    eventually_async("the foreign daemon comes", async || {
        occupant(&spec.pipe_directory).is_some_and(|o| o.pid.is_some())
    })
    .await;
    let holder = occupant(&spec.pipe_directory).expect("occupied");
    assert_eq!(holder.ours, None);
    assert_eq!(holder.uid, Some(rustix::process::getuid().as_raw()));
    let Err(DaemonStartError::Occupied { occupant: refused, .. }) = start(&host.program(), &spec).await
    else {
        panic!("it is taken")
    };
    assert_eq!(refused, holder);
    assert_eq!(find(&spec.token, &spec.pipe_directory), DaemonSearch::None);

    // A forged pid file hides nothing, since the socket answers.
    fs::write(spec.pipe_directory.join("nvidia-cuda-mps-control.pid"), "1\n").expect("forged");
    assert!(occupant(&spec.pipe_directory).is_some());
    assert!(process::identify(holder.pid.expect("known")).is_some());
}

#[tokio::test]
async fn a_hanging_daemon_is_killed_with_its_server() {
    let host = Host::new("h200x2");
    let (spec, started) = host.start("a").await;
    let control = host.control(&spec);
    let server = process::identify(server(&control).await).expect("a server");
    assert!(crate::harness::send(started.identity, Signal::STOP));
    let stopped = stop(&control, started.identity, 0).await.expect("stopped");
    // A stopped process handles SIGTERM only when it is continued.
    assert_eq!(stopped.how, DaemonEnd::Killed);
    assert!(!process::is_alive(server) && !process::is_alive(started.identity));
}

#[tokio::test]
async fn clients_get_their_grace_and_no_more() {
    let host = Host::new("h200x2");
    let (spec, started) = host.start("a").await;
    let control = host.control(&spec);
    let mut client = host.client(&spec.pipe_directory, &["--spin", "600"]);
    connected(&control, client.pid()).await;
    let stopped = stop(&control, started.identity, 1).await.expect("stopped");
    assert_eq!(stopped.how, DaemonEnd::Quit);
    eventually_async("the client ends with its daemon", async || client.has_ended()).await;
}

/// Both programs as one shell script.
fn program(host: &Host, script: &str) -> InstalledProgram {
    let dir = host.path("bin");
    fs::create_dir_all(&dir).expect("made");
    for name in ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
        scratch::install_script(&dir.join(name), &format!("#!/bin/sh\n{script}\n"));
    }
    InstalledProgram { path: dir.join("nvidia-cuda-mps-control"), ..host.program() }
}

#[tokio::test]
async fn a_program_that_leaves_no_daemon_is_quoted() {
    let host = Host::new("h200x2");
    let program = |script: &str| program(&host, script);
    let mut spec = host.spec("a");
    fs::write(spec.log_directory.join("control.log"), "the last words\n").expect("written");

    // An unknown option: usage, and code 0.
    let unknown = program("echo 'Unrecognized option'; exit 0");
    let error = start(&unknown, &spec).await.expect_err("no daemon").to_string();
    assert!(error.contains("exit status: 0") && error.contains("Unrecognized option"), "{error}");
    assert!(error.contains("control.log: the last words"), "{error}");

    // What never answers, and what is no daemon: neither is left behind.
    let silent = "gave no answer in time";
    for (child, message) in [
        ("while :; do sleep 600; done", [silent, silent]),
        // Up to its exec it looks like a daemon that says nothing.
        ("exec sleep 600", ["has the daemon's token and is not a control daemon", silent]),
    ] {
        let script =
            format!("[ $# = 0 ] && exit 0; [ \"$2\" = child ] && {{ {child}; }}; \"$0\" -d child & exit 0");
        spec.deadline = Duration::from_secs(2);
        let error = start(&program(&script), &spec).await.expect_err("no daemon").to_string();
        assert!(message.iter().any(|message| error.contains(message)), "{error}");
        eventually_async("no process of the failed start is left", async || {
            process::find_by_env("MPS_MANAGER_INCARNATION", &spec.token).is_empty()
        })
        .await;
    }

    let missing = InstalledProgram { path: host.path("nothing"), ..host.program() };
    assert!(matches!(start(&missing, &spec).await, Err(DaemonStartError::Spawn(_))));
}

#[tokio::test]
async fn several_users_are_an_option_of_the_daemon() {
    let host = Host::new("h200x2");
    let mut spec = host.spec("a");
    spec.multi_user = Some("-M");
    spec.gpus = host.gpus.clone();
    let started = start(&host.program(), &spec).await.expect("a daemon");
    assert!(process::command(started.identity.pid).expect("alive").iter().any(|word| word == "-M"));
    let visible = process::environ(started.identity.pid).expect("alive");
    let visible = visible.iter().find(|(key, _)| key == "CUDA_VISIBLE_DEVICES").expect("set");
    assert_eq!(visible.1.to_str().expect("text"), format!("{},{}", host.gpus[0], host.gpus[1]));
    let mode = fs::metadata(&spec.pipe_directory).expect("made").permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
}

#[tokio::test]
async fn static_mode_is_a_daemon_option() {
    let host = Host::new("h200x2@13.1");
    let mut spec = host.spec("a");
    spec.mode = Mode::Static;
    let started = start(&host.program(), &spec).await.expect("a daemon");
    assert_eq!(process::command(started.identity.pid).expect("alive")[1..], ["-d", "-S"]);
    assert_eq!(mode(started.identity.pid), Mode::Static);

    // One that takes the option for none ends well and leaves a daemon all the same.
    let control = host.program().path;
    let mut spec = host.spec("b");
    spec.mode = Mode::Static;
    let other = program(&host, &format!("[ $# = 0 ] && exec '{0}'; exec '{0}' -d", control.display()));
    let error = start(&other, &spec).await.expect_err("another mode");
    assert!(matches!(error, DaemonStartError::OtherMode { .. }), "{error}");
    eventually_async("no daemon of the failed start is left", async || {
        process::find_by_env("MPS_MANAGER_INCARNATION", &spec.token).is_empty()
    })
    .await;

    // 13.0 prints usage and ends well.
    let host = Host::new("h200x2@13.0");
    let mut spec = host.spec("a");
    spec.mode = Mode::Static;
    assert!(matches!(start(&host.program(), &spec).await, Err(DaemonStartError::NoDaemon { .. })));
}
