//! Sessions with a simulated daemon.

use std::io::Write as _;
use std::process::{Command as Program, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use mps_manager::domain::capability::RunningDriver;
use mps_manager::domain::{MemoryLimit, Priority, ThreadPercentage};
use mps_manager::host::Signal;
use mps_manager::host::process::find_by_env;
use mps_manager::mps::log::{self, LogEvent};
use mps_manager::mps::parse::{self, Clients, LimitReading, Terminated};
use mps_manager::mps::session::NoReplyCause;
use mps_manager::mps::{Command, Control, DeviceSelector, SessionError, capability};
use tokio::time::Instant;

use super::host::{Host, ask, connected, deadline, server};
use crate::harness::{SetOnDrop, eventually, eventually_async, heavy, setting};

#[tokio::test]
async fn capabilities_of_two_versions_are_distinguished() {
    for (profile, version, partitions, ceiling) in
        [("h200x2@13.0", "13.0", false, 48), ("h200x2@13.1", "13.1", true, 60)]
    {
        let host = Host::new(profile);
        let place = host.path("asked");
        let capability = capability::probe(&host.program(), None, &place).await.expect("a control program");
        assert_eq!(capability.cuda_version(), version);
        assert_eq!(capability.static_partitions(), partitions);
        assert_eq!(capability.client_ceiling(), ceiling);
        assert!(capability.options.contains("-M") && capability.commands.contains("terminate_client"));
    }
}

#[tokio::test]
async fn old_program_is_asked_once_by_a_daemon() {
    for (profile, cuda, status) in
        [("h200x1@12.2", "12.2", false), ("h200x1@12.4", "12.4", true), ("h200x1@12.8", "12.8", true)]
    {
        let host = Host::new(profile);
        let place = host.path("asked");
        let driver = RunningDriver { version: "of-no-file".into(), cuda: Some(cuda.to_owned()) };
        let probe = async || {
            capability::probe(&host.program(), Some(&driver), &place).await.expect("a control program")
        };
        let capability = probe().await;
        assert_eq!((capability.cuda_version().as_str(), capability.server_status()), (cuda, status));
        assert!(
            capability.commands.contains("terminate_client") && !capability.commands.contains("device_query")
        );
        assert!(!place.exists(), "nothing of the daemon that was asked is left");
        // The program that asked it to quit may still be ending.
        let world = host.world.dir().to_string_lossy().into_owned();
        eventually("no process is left", || find_by_env("MPS_SIM_WORLD", &world).is_empty());
        // What it knew is kept for this very file.
        let kept = place.with_extension("json");
        let text = std::fs::read_to_string(&kept).expect("kept");
        let (asked, knew) = text.split_at(text.find("\"commands\"").expect("what it knew"));
        let changed = format!("{asked}{}", knew.replace("get_client_list", "kept_word"));
        std::fs::write(&kept, changed).expect("written");
        assert!(probe().await.commands.contains("kept_word"));
        std::fs::write(&kept, text.replace(&host.binaries.control.display().to_string(), "/elsewhere"))
            .expect("written");
        assert_eq!(probe().await, capability);
    }
}

#[tokio::test]
async fn program_without_memory_limits_is_refused() {
    let host = Host::new("h200x1@11.4");
    let refused = capability::probe(&host.program(), None, &host.path("asked")).await.expect_err("too old");
    assert!(
        refused
            .to_string()
            .contains("does not know ps, terminate_client, get_default_device_pinned_mem_limit"),
        "{refused}"
    );
}

#[tokio::test]
async fn commands_share_one_process_in_order() {
    let host = Host::new("h200x2@13.0");
    let (spec, _) = host.start("a").await;
    let control = host.control(&spec);
    let mut session = control.session(deadline()).expect("a session");
    let quarter = ThreadPercentage::parse("25").expect("percentage");
    let device = DeviceSelector::Ordinal(0);
    let limit = MemoryLimit::parse("4G").expect("limit");

    let reply = session.send(&Command::SetDefaultThreadPercentage(quarter)).await.expect("a reply");
    assert_eq!(parse::percentage(&reply), Ok(quarter));
    let set = Command::SetDefaultMemoryLimit { device: device.clone(), limit: Some(limit) };
    assert_eq!(session.send(&set).await.expect("a reply"), b"");
    let get = Command::GetDefaultMemoryLimit { device: device.clone() };
    let read = parse::memory_limit(&session.send(&get).await.expect("a reply"));
    assert_eq!(read, Ok(Some(LimitReading::Whole(limit))));
    let reply = session.send(&Command::SetDefaultPriority(Priority::BelowNormal)).await.expect("a reply");
    assert_eq!(parse::silent(&reply), Ok(()));
    let reply = session.send(&Command::GetDefaultPriority).await.expect("a reply");
    assert_eq!(parse::priority(&reply), Ok(Priority::BelowNormal));
    let reply = session.send(&Command::Ps { server: None }).await.expect("a reply");
    assert_eq!(parse::clients(&reply), Ok(Clients::ServerNotFound));
    // Refusals are replies like any other, and the session continues.
    let reply = session.send(&Command::Lspart).await.expect("a reply");
    assert!(matches!(parse::lspart(&reply), Err(parse::ParseError::UnknownCommand { .. })));
    session.send(&Command::SetDefaultMemoryLimit { device, limit: None }).await.expect("a reply");
    assert_eq!(parse::memory_limit(&session.send(&get).await.expect("a reply")), Ok(None));
    assert_eq!(session.processes(), 1);
    session.close().await;
}

#[tokio::test]
async fn limit_is_confirmed_by_getter_and_log() {
    let host = Host::new("h200x2@13.0");
    let (spec, _) = host.start("a").await;
    let control = host.control(&spec);
    let server = server(&control).await;
    let device = DeviceSelector::Uuid(host.gpus[0].clone());
    let limit = MemoryLimit::parse("4G").expect("limit");
    ask(&control, Command::SetMemoryLimit { server, device: device.clone(), limit: Some(limit) }).await;
    let read = parse::memory_limit(&ask(&control, Command::GetMemoryLimit { server, device }).await);
    assert_eq!(read, Ok(Some(LimitReading::Whole(limit))));
    let proof = LogEvent::MemoryLimitSet { device: host.gpus[0].to_string(), bytes: limit.bytes() };
    eventually_async("server.log has the limit", async || {
        let text = log::tail(&spec.log_directory.join("server.log"), 1 << 16);
        log::read(text.as_bytes()).iter().any(|record| record.event == proof && record.pid == server)
    })
    .await;
}

#[tokio::test]
async fn missing_daemon_is_reported_at_once() {
    let host = Host::new("h200x2");
    let control = host.control(&host.spec("a"));
    let mut session = control.session(deadline()).expect("a session");
    assert!(matches!(session.send(&Command::GetServerList).await, Err(SessionError::NoDaemon)));
    assert_eq!(session.processes(), 1);
    assert!(matches!(session.send(&Command::GetServerList).await, Err(SessionError::Over)));
    assert!(matches!(control.quit(None, deadline()).await, Err(SessionError::NoDaemon)));
}

/// Recordings 07 and 08: such callers make 994 of 1600 fail, 49 of 500 with an empty reply and code 0.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_eight_noisy_callers_every_answer_is_right() {
    let _turn = heavy();
    let host = Host::new("h200x2@13.0");
    let (spec, _) = host.start("a").await;
    let control = host.control(&spec);
    let (over, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (program, pipe) = (host.program().path, spec.pipe_directory.clone());
            let (environment, over, failed) = (host.environment(), over.clone(), failed.clone());
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let mut caller = Program::new(&program);
                    caller.env_clear().envs(environment.clone()).env("CUDA_MPS_PIPE_DIRECTORY", &pipe);
                    caller.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
                    let mut caller = caller.spawn().expect("a caller");
                    let mut input = caller.stdin.take().expect("its input");
                    // It may be gone by now, turned away.
                    let _ = input.write_all(b"get_default_active_thread_percentage\nget_server_list\n");
                    drop(input);
                    let output = caller.wait_with_output().expect("its end");
                    if output.stdout.is_empty() {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    let quiet = SetOnDrop(&over);
    let (mut wrong, mut processes) = (0, 0);
    for round in 1..=setting("MPS_MANAGER_NOISY_ROUNDS").unwrap_or(12) {
        // Another value each time, from 2.5 to 100 %.
        let tenths = u16::try_from((round - 1) % 40 + 1).expect("at most 40") * 25;
        let percentage = ThreadPercentage::from_tenths(tenths).expect("percentage");
        let mut session = control.session(deadline()).expect("a session");
        let set = session.send(&Command::SetDefaultThreadPercentage(percentage)).await;
        let get = session.send(&Command::GetDefaultThreadPercentage).await;
        let list = session.send(&Command::GetServerList).await;
        processes += session.processes();
        session.close().await;
        let right = matches!(set, Ok(reply) if parse::percentage(&reply) == Ok(percentage))
            && matches!(get, Ok(reply) if parse::percentage(&reply) == Ok(percentage))
            && matches!(list, Ok(reply) if parse::server_list(&reply) == Ok(vec![]));
        wrong += u32::from(!right);
    }
    drop(quiet);
    for caller in callers {
        caller.join().expect("a caller");
    }
    assert_eq!(wrong, 0);
    // Otherwise nobody was in anybody's way, and the test showed nothing.
    assert!(failed.load(Ordering::Relaxed) > 0, "no caller was turned away; ours took {processes} processes");
}

/// Recording 15: a caller that is dropped for another session may get no answer, and waits forever.
#[tokio::test]
async fn lost_greeting_costs_less_than_the_deadline() {
    let host = Host::new("h200x2@13.0");
    let (spec, _) = host.start("a").await;
    let control = host.control(&spec);
    let mut held = control.session(deadline()).expect("a session");
    held.send(&Command::GetServerList).await.expect("a reply");
    let accepted = || {
        let text = log::tail(&spec.log_directory.join("control.log"), 1 << 20);
        log::read(text.as_bytes()).iter().filter(|record| record.event == LogEvent::Accepting).count()
    };
    let before = accepted();
    let waiting = tokio::spawn({
        let control = control.clone();
        async move {
            let mut session = control.session(deadline()).expect("a session");
            (session.send(&Command::GetServerList).await, session.processes())
        }
    });
    // The simulated daemon lets every second one wait in silence, so by then several attempts were lost.
    eventually_async("it is tried again", async || accepted() >= before + 8).await;
    held.close().await;
    let (reply, processes) = waiting.await.expect("no panic");
    assert_eq!(parse::server_list(&reply.expect("a reply")), Ok(vec![]));
    assert!(processes > 4, "{processes} control processes");
}

#[tokio::test]
async fn termination_of_stopped_client_happens_later() {
    let host = Host::new("h200x2@13.0");
    let (spec, _) = host.start("a").await;
    let control = host.control(&spec);
    let server = server(&control).await;
    let mut client = host.client(&spec.pipe_directory, &["--spin", "600"]);
    connected(&control, client.pid()).await;
    client.signal(Signal::STOP);

    let mut session = control.session(Instant::now() + Duration::from_secs(1)).expect("a session");
    let terminate = Command::TerminateClient { server, client: client.pid() };
    let error = session.send(&terminate).await.expect_err("it hangs");
    let expected = terminate.line();
    assert!(
        matches!(&error, SessionError::Unknown { command, cause: NoReplyCause::Deadline } if *command == expected),
        "{error}"
    );
    assert!(matches!(session.send(&Command::GetServerList).await, Err(SessionError::NotAlone { .. })));

    // Everybody else hangs with it, and knows that nothing of theirs was sent.
    let mut session = control.session(Instant::now() + Duration::from_millis(300)).expect("a session");
    let error = session.send(&Command::GetServerList).await.expect_err("it hangs");
    assert!(matches!(error, SessionError::Unresponsive), "{error}");

    // The caller is long dead, and its command takes effect.
    client.signal(Signal::CONT);
    eventually_async("the client is terminated", async || client.has_ended()).await;
    assert_eq!(parse::server_list(&ask(&control, Command::GetServerList).await), Ok(vec![server]));
}

#[tokio::test]
async fn termination_runs_alone_and_reports_its_result() {
    let host = Host::new("h200x2@13.0");
    let (spec, _) = host.start("a").await;
    let control = host.control(&spec);
    let server = server(&control).await;
    let mut client = host.client(&spec.pipe_directory, &["--spin", "600"]);
    connected(&control, client.pid()).await;
    let terminate = Command::TerminateClient { server, client: client.pid() };

    let mut session = control.session(deadline()).expect("a session");
    session.send(&Command::GetServerList).await.expect("a reply");
    assert!(matches!(session.send(&terminate).await, Err(SessionError::NotAlone { .. })));
    assert!(
        session.send(&Command::GetServerList).await.is_ok(),
        "nothing was sent, so the session continues"
    );
    session.close().await;

    let stranger = Command::TerminateClient { server, client: 4_000_000 };
    let refused = parse::terminate(&ask(&control, stranger).await).expect("read");
    assert!(matches!(refused, Terminated::Refused { code: 1, .. }), "{refused:?}");
    assert_eq!(parse::terminate(&ask(&control, terminate).await), Ok(Terminated::Done));
    eventually_async("the client ends", async || client.has_ended()).await;
}

#[tokio::test]
async fn command_to_dying_daemon_is_unknown() {
    let host = Host::new("h200x2@13.0");
    let (spec, started) = host.start("a").await;
    let control: Control = host.control(&spec);
    let mut session = control.session(deadline()).expect("a session");
    session.send(&Command::GetServerList).await.expect("a reply");
    assert!(crate::harness::send(started.identity, Signal::KILL));
    mps_manager::host::process::death(started.identity).await;
    let error = session.send(&Command::GetServerList).await.expect_err("nobody answers");
    assert!(matches!(&error, SessionError::Unknown { cause: NoReplyCause::Ended { .. }, .. }), "{error}");
    let mut session = control.session(deadline()).expect("a session");
    assert!(matches!(session.send(&Command::GetServerList).await, Err(SessionError::NoDaemon)));
}
