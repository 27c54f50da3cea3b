//! Sessions with control programs that misbehave, each a few lines of shell.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mps_manager::host::process;
use mps_manager::mps::session::NoReplyCause;
use mps_manager::mps::{Command, Control, ControlChannel as _, InstalledProgram, SessionError};
use tokio::time::Instant;

use super::host::deadline;
use crate::harness::{eventually_async, scratch};

/// Echoes words it does not know, as the control program does; `$1` of `case` decides about the others.
const ECHO: &str = r#"zz-*) printf 'Unknown command "%s"\n' "$line" ;;"#;

struct Double {
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Double {
    fn new(script: &str) -> Self {
        let dir = scratch::directory("p");
        let program = dir.path().join("control");
        scratch::install_script(&program, &format!("#!/bin/sh\n{script}\n"));
        Self { dir, program }
    }

    /// A double that reads lines and answers each as `cases` says.
    fn answering(cases: &str) -> Self {
        Self::new(&format!("while IFS= read -r line; do case $line in {cases} {ECHO} esac; done"))
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn mark(&self) -> String {
        self.dir.path().display().to_string()
    }

    fn control(&self) -> Control {
        let extra_env = vec![("MPS_DOUBLE".into(), self.mark().into())];
        let program = InstalledProgram { path: self.program.clone(), server_directory: None, extra_env };
        Control::new(&program, self.dir.path().join("pipe"))
    }

    fn running(&self) -> Vec<u32> {
        process::find_by_env("MPS_DOUBLE", &self.mark()).into_iter().map(|id| id.pid).collect()
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(300)
}

#[tokio::test]
async fn other_delimiter_text_is_part_of_reply() {
    let double = Double::answering(
        r#"get_server_list) printf 'Unknown command "zz-0000000000000000-1"\r\n511\r\nzz-\r\nno newline here' ;;"#,
    );
    let control = double.control();
    let mut session = control.session(deadline()).expect("a session");
    for _ in 0..2 {
        let reply = session.send(&Command::GetServerList).await.expect("a reply");
        assert_eq!(
            String::from_utf8_lossy(&reply),
            "Unknown command \"zz-0000000000000000-1\"\n511\nzz-\nno newline here"
        );
    }
    assert_eq!(session.processes(), 1);
    session.close().await;
    assert_eq!(double.running(), Vec::<u32>::new());
}

#[tokio::test]
async fn rejected_session_is_retried() {
    // Each of the ways of being turned away, then an answer.
    let double = Double::new(&format!(
        r#"cd "$(dirname "$0")"; echo x >> tries
        case $(wc -l < tries) in
        1) exit 0 ;;
        2) echo 'Cannot send command to MPS control daemon process' >&2; exit 1 ;;
        3) exit 1 ;;
        esac
        while IFS= read -r line; do case $line in get_server_list) echo 511 ;; {ECHO} esac; done"#
    ));
    let control = double.control();
    let mut session = control.session(deadline()).expect("a session");
    assert_eq!(session.send(&Command::GetServerList).await.expect("a reply"), b"511\n");
    assert_eq!(session.processes(), 4);
    session.close().await;
}

#[tokio::test]
async fn process_accepted_by_dying_daemon_stays_unheard() {
    let double = Double::new(
        r#"cd "$(dirname "$0")"; echo x >> tries
        case $(wc -l < tries) in
        2) exit 0 ;;
        *) echo 'Cannot find MPS control daemon process'; exit 1 ;;
        esac"#,
    );
    let control = double.control();
    for unheard in [false, true] {
        let mut session = control.session(deadline()).expect("a session");
        assert!(matches!(session.send(&Command::GetServerList).await, Err(SessionError::NoDaemon)));
        assert_eq!(control.calls().is_unheard(), unheard);
    }
    assert_eq!(std::fs::read_to_string(double.dir().join("tries")).expect("tries").lines().count(), 3);
}

#[tokio::test]
async fn a_slow_program_is_waited_for() {
    let double = Double::new(&format!(
        "sleep 0.4; while IFS= read -r line; do case $line in get_server_list) echo 511 ;; {ECHO} esac; done"
    ));
    let control = double.control();
    // The first session finds out how slow it is.
    for processes in [2, 1, 1] {
        let mut session = control.session(deadline()).expect("a session");
        assert_eq!(session.send(&Command::GetServerList).await.expect("a reply"), b"511\n");
        assert_eq!(session.processes(), processes);
        session.close().await;
    }
    assert_eq!(control.calls().turned_away(), 0, "nobody else was there");
    assert_eq!(double.running(), Vec::<u32>::new());
}

#[tokio::test]
async fn program_too_slow_for_deadline_is_named() {
    let double =
        Double::new(&format!("sleep 0.6; while IFS= read -r line; do case $line in {ECHO} esac; done"));
    let mut session =
        double.control().session(Instant::now() + Duration::from_millis(900)).expect("a session");
    let error = session.send(&Command::GetServerList).await.expect_err("no time left");
    let SessionError::Slow { took, .. } = &error else { panic!("{error}") };
    // Its clock may begin after the program's.
    assert!(*took >= Duration::from_millis(500), "{took:?}");
    assert!(error.to_string().contains("control_deadline_s"), "{error}");
    assert_eq!(session.processes(), 2);
}

#[tokio::test]
async fn held_back_output_is_called_so() {
    // As on a pipe, where a program writes at the end of its input, whole or twice.
    for print in ["printf '%s\\n' \"$said\"", "printf '%s\\n%s\\n' \"$said\" \"$said\""] {
        let double = Double::new(&format!(
            "said=$(while IFS= read -r line; do case $line in {ECHO} esac; done); {print}"
        ));
        let control = double.control();
        // The second session begins with what the first has seen.
        for _ in 0..2 {
            let mut session = control.session(Instant::now() + Duration::from_secs(2)).expect("a session");
            let error = session.send(&Command::GetServerList).await.expect_err("no answer in time");
            let SessionError::Slow { took, .. } = &error else { panic!("{error}") };
            assert!(*took >= Duration::from_millis(150), "{error}");
            assert!(error.to_string().contains("no answer ended by a prompt within"), "{error}");
            assert!(error.to_string().contains("holds its output back, for example a pipe"), "{error}");
            assert!((1..8).contains(&session.processes()), "{}", session.processes());
        }
        eventually_async("its process is gone", async || double.running().is_empty()).await;
    }
}

#[tokio::test]
async fn empty_reply_with_success_is_no_answer() {
    let double = Double::new("exit 0");
    let control = double.control();
    let mut session = control.session(Instant::now() + Duration::from_secs(1)).expect("a session");
    let error = session.send(&Command::Ps { server: None }).await.expect_err("busy to the end");
    let SessionError::Busy { attempts, last, .. } = &error else { panic!("{error}") };
    // The deadline may have cut the very last one off.
    assert!(*attempts > 1 && (*attempts..=attempts + 1).contains(&session.processes()), "{attempts}");
    assert_eq!(last, "exit status: 0, without a word");
}

#[tokio::test]
async fn misbehaving_program_is_called_what_it_is() {
    let scripts = [
        ("echo 'error while loading shared libraries' ; exit 0", "something else than an answer"),
        ("read -r line; printf 'Unknown command \"%.12s' \"$line\"", "something else than an answer"),
        // Cut within the answer, wherever that is.
        ("read -r line; printf 'Unknown command \"%.20s' \"$line\"", "something else than an answer"),
        ("read -r line; printf 'Unknown command \"%s\"' \"$line\"", "something else than an answer"),
        ("read -r line; printf 'UNKNOWN COMMAND \"%s\"\n' \"$line\"", "something else than an answer"),
        ("kill -SEGV $$", "SIGSEGV"),
        ("exit 127", "exit status: 127"),
        ("exit 1", "exit status: 1, without a word"),
        ("head -c 100000000 /dev/zero", "more than 1048576 bytes"),
        ("while read -r line; do head -c 100000000 /dev/zero; done", "more than 1048576 bytes"),
    ];
    for (script, message) in scripts {
        let double = Double::new(script);
        let control = double.control();
        let mut session = control.session(deadline()).expect("a session");
        let error = session.send(&Command::Ps { server: None }).await.expect_err("no answer");
        assert!(matches!(error, SessionError::Misbehaved { .. }), "{script}: {error}");
        assert!(error.to_string().contains(message), "{script}: {error}");
        eventually_async("its process is gone", async || double.running().is_empty()).await;
    }
}

#[tokio::test]
async fn silent_program_was_sent_nothing() {
    let double = Double::new(r#"cd "$(dirname "$0")"; cat > received; sleep 600"#);
    let control = double.control();
    let mut session = control.session(soon()).expect("a session");
    let error = session.send(&Command::StartServer { uid: 0, mlopart: false }).await.expect_err("silence");
    assert!(matches!(error, SessionError::Unresponsive), "{error}");
    let received = std::fs::read_to_string(double.dir().join("received")).unwrap_or_default();
    assert!(!received.contains("start_server"), "{received}");
    let error = control.quit(Some(1), soon()).await.expect_err("silence");
    assert!(matches!(error, SessionError::Unknown { cause: NoReplyCause::Deadline, .. }), "{error}");
    // What the program had started is gone with it.
    eventually_async("its control processes are gone", async || double.running().is_empty()).await;
}

#[tokio::test]
async fn interrupted_command_has_unknown_outcome() {
    for (cases, cause) in [
        (
            "start_server*) printf 'half an ans'; echo 'died of it' >&2; exit 3 ;;",
            NoReplyCause::Ended { ending: "exit status: 3, saying \"died of it\"".into() },
        ),
        ("start_server*) exec head -c 3000000 /dev/zero ;;", NoReplyCause::TooLong),
        ("start_server*) echo half; exec sleep 600 ;;", NoReplyCause::Deadline),
    ] {
        let double = Double::answering(cases);
        let control = double.control();
        let until = if cause == NoReplyCause::Deadline { soon() } else { deadline() };
        let mut session = control.session(until).expect("a session");
        let error =
            session.send(&Command::StartServer { uid: 0, mlopart: false }).await.expect_err("broken off");
        let SessionError::Unknown { command, cause: actual } = &error else { panic!("{error}") };
        assert_eq!((command.as_str(), actual), ("start_server -uid 0", &cause));
        assert_eq!(double.running(), Vec::<u32>::new(), "killed and reaped");
        assert!(matches!(session.send(&Command::GetServerList).await, Err(SessionError::Over)));
    }
}

#[tokio::test]
async fn dropped_future_kills_and_reports_its_command() {
    let double = Double::answering("start_server*) echo hanging; exec sleep 600 ;;");
    let control = double.control();
    let mut session = control.session(deadline()).expect("a session");
    assert_eq!(session.send(&Command::Lspart).await.expect("an empty reply"), b"");
    let sending = session.send(&Command::StartServer { uid: 0, mlopart: false });
    let hanging = eventually_async("it hangs", async || {
        let running = double.running();
        let asleep = |pid: &u32| process::command(*pid).is_some_and(|words| words == ["sleep", "600"]);
        running.iter().any(asleep).then_some(running)
    });
    let running = tokio::select! {
        sent = sending => panic!("{sent:?}"),
        running = hanging => running,
    };
    // Gone from /proc altogether: not even a zombie.
    eventually_async("its control processes are gone", async || {
        running.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    })
    .await;
    let error = session.send(&Command::GetServerList).await.expect_err("one is unaccounted for");
    assert!(
        matches!(&error, SessionError::Unknown { command, cause: NoReplyCause::Abandoned } if command == "start_server -uid 0"),
        "{error}"
    );
}

#[tokio::test]
async fn dropped_sessions_leave_no_descriptors_open() {
    let double = Double::answering("get_server_list) echo 511 ;;");
    let control = double.control();
    let open = || std::fs::read_dir("/proc/self/fd").expect("our descriptors").count();
    let before = open();
    for round in 0..200u32 {
        let mut session = control.session(deadline()).expect("a session");
        let sending = async {
            for _ in 0..3 {
                session.send(&Command::GetServerList).await.expect("a reply");
            }
        };
        // From before the greeting to after the last reply.
        drop(tokio::time::timeout(Duration::from_micros(u64::from(round) * 50), sending).await);
    }
    // Other tests of this program open some at the same time, but not 200 and more.
    eventually_async("descriptors are closed", async || open() < before + 100).await;
    eventually_async("control processes have ended", async || double.running().is_empty()).await;
}
