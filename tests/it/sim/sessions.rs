//! Recording 09: what a batch gives, command by command, and what a line can do.

use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::process::Signal;

use super::host::{Busy, Host, NOBODY, can_become_nobody, finish, uid};
use super::replay::replace_word;
use super::terminal::Terminal;
use super::transcript;
use crate::harness::{TIMEOUT, eventually};

const RECORDING: &str = "09-h200-x1-sessions-delimiter-long-lines-ptx.txt";
/// How long nothing is waited for.
const SILENCE: Duration = Duration::from_millis(400);

/// The line of the recording that starts so, and the ones after it.
fn recorded(start: &str) -> Vec<String> {
    let text = transcript::text(RECORDING);
    let lines: Vec<_> = text.lines().skip_while(|line| !line.starts_with(start)).map(str::to_owned).collect();
    assert!(!lines.is_empty(), "{RECORDING} has no {start:?}");
    lines
}

/// The first `out b'…'` of some lines, unescaped.
fn output(lines: &[String]) -> String {
    let line = lines.iter().find_map(|line| line.strip_prefix("out b'")).unwrap();
    line[..line.rfind('\'').unwrap()].replace("\\n", "\n")
}

/// `a | b | " c "` as lines, a delimiter after each.
fn batch(commands: &str) -> String {
    let lines: Vec<_> = commands.split(" | ").map(|command| command.trim_matches('"')).collect();
    lines.join("\nzz-1\n") + "\nzz-1\n"
}

fn send(host: &Host, bytes: &[u8]) -> super::host::Done {
    finish(&mut host.control_program(), bytes, TIMEOUT)
}

#[test]
fn a_delimiter_comes_back_after_every_command() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let lines = recorded("## one batch");
    let done = send(&host, batch(&lines[1]).as_bytes());
    assert_eq!((done.rc, done.stderr.as_str()), (0, ""));
    assert_eq!(done.stdout, output(&lines));
}

#[test]
fn command_words_are_split_as_recorded() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let done = send(&host, b"\n\n  \nzz-1\n# x\nzz-1\nps;ps\nzz-1\n");
    assert_eq!(done.stdout, output(&recorded("## b'")));
    let line = recorded("## no newline at the end").remove(0);
    assert!(line.contains(r#"b'p\0s\n' -> Unknown command "p""#));
    assert_eq!(send(&host, b"p\0s\n").stdout, "Unknown command \"p\"\n");
    assert_eq!(send(&host, b"ps\r\nps").stdout, "Server not found\nServer not found\n");
}

#[test]
fn started_server_is_listed_before_clients() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let commands = format!("start_server -uid {} | get_server_list | ps", uid());
    let done = send(&host, batch(&commands).as_bytes());
    let server = host.ready().as_raw_nonzero().to_string();
    let wanted = output(&recorded("## start_server -uid 0 | get_server_list | ps"));
    assert_eq!(replace_word(&done.stdout, &server, "443"), wanted);

    let commands =
        "set_device_pinned_mem_limit S 0 4096M | get_device_pinned_mem_limit S 0 | get_server_status S";
    let wanted = recorded(&format!("## {commands}"));
    let done = send(&host, batch(&replace_word(commands, "S", &server)).as_bytes());
    assert_eq!(done.stdout, output(&wanted));

    let clients = [(); 3].map(|()| host.busy_client(&["--spin", "60"], &[]));
    let commands =
        "get_client_list S | terminate_client S 531 | get_client_list S | terminate_client S 99999";
    let wanted = recorded(&format!("## {commands}"));
    let mut commands = replace_word(commands, "S", &server).replace("99999", "9999999");
    commands = replace_word(&commands, "531", &clients[0].pid().as_raw_nonzero().to_string());
    let mut seen = send(&host, batch(&commands).as_bytes()).stdout.replace("9999999", "99999");
    for (client, recorded) in clients.iter().zip(["531", "532", "533"]) {
        seen = replace_word(&seen, &client.pid().as_raw_nonzero().to_string(), recorded);
    }
    assert_eq!(seen, output(&wanted));
    let [first, ..] = clients;
    assert_eq!(first.finish(TIMEOUT).rc, 4);
}

#[test]
fn a_pipe_gets_nothing_before_the_input_ends() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let mut child = host.control_program().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"ps\nzz-1\n").unwrap();
    eventually("the command was executed", || host.log("control.log").contains("Cmd:zz-1"));
    let mut stdout = child.stdout.take().unwrap();
    {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&stdout, PollFlags::IN)];
        let silence = Timespec::try_from(SILENCE).unwrap();
        assert_eq!(retry_on_intr(|| poll(&mut fds, Some(&silence))).unwrap(), 0);
    }
    drop(stdin);
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    assert_eq!(text, "Server not found\nUnknown command \"zz-1\"\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_terminal_gets_each_line_at_once() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let mut terminal = Terminal::open(&host);
    terminal.say("ps");
    terminal.say("zz-1");
    assert_eq!(terminal.shows("zz-1\"\r\n", TIMEOUT), "Server not found\r\nUnknown command \"zz-1\"\r\n");
    assert_eq!(terminal.close(), 0);
}

#[test]
fn hung_command_blocks_everyone_and_outlives_caller() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let server = host.server().as_raw_nonzero();
    let stopped = host.busy_client(&["--spin", "60"], &[]);
    let other = host.busy_client(&["--spin", "60"], &[]);
    stopped.signal(Signal::STOP);
    let client = stopped.pid().as_raw_nonzero();

    // On a terminal, what came before is seen; then nothing.
    let mut terminal = Terminal::open(&host);
    terminal.say(&format!("get_server_list\nzz-1\nterminate_client {server} {client}\nps"));
    let shown = format!("{server}\r\nUnknown command \"zz-1\"\r\n");
    assert_eq!(terminal.shows("no such thing", SILENCE), shown);
    drop(terminal);
    let next = finish(&mut host.control_program(), b"get_server_list\n", SILENCE);
    assert_eq!((next.rc, next.stdout.as_str()), (124, ""));

    stopped.signal(Signal::CONT);
    assert_eq!(stopped.finish(TIMEOUT).rc, 4);
    assert_eq!(host.ask(&format!("get_client_list {server}")), format!("{}\n", other.pid().as_raw_nonzero()));
}

#[test]
fn quit_with_timeout_keeps_the_session_open() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let client = host.busy_client(&["--spin", "60"], &[]);
    let server = host.ready().as_raw_nonzero();
    let done = send(&host, batch("get_server_list | quit -t 1 | ps").as_bytes());
    assert_eq!(done.rc, 0);
    assert_eq!(done.stdout.matches("Unknown command \"zz-1\"\n").count(), 3);
    assert!(done.stdout.contains("/tmp/client"), "{}", done.stdout);
    assert_eq!(host.control("ps").stderr, "Cannot find MPS control daemon process\n");
    let log = host.log("control.log");
    for line in [
        format!("Try shutting down server {server}, backoff is enabled"),
        format!("Server {server} has 2 active worker threads. Server will not shutdown."),
        format!("Force shutting down server {server}"),
        format!("Server {server} exited with status 0"),
        "Exit with status 0".to_owned(),
    ] {
        assert!(log.contains(&format!("] {line}\n")), "{line}:\n{log}");
    }
    let client = client.finish(TIMEOUT);
    assert!(client.stderr.contains("cudaErrorMpsRpcFailure"), "{}", client.stderr);
    let line = recorded("log: \"Try shutting down").remove(0);
    assert!(line.contains("control, control_lock, control_privileged stay"));
    let mut left: Vec<_> = host
        .pipe()
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["control", "control_lock", "control_privileged"]);
}

#[test]
fn quit_without_a_server_answers_nothing_more() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let done = send(&host, b"quit -t 1\nzz-1\n");
    assert_eq!((done.rc, done.stdout.as_str(), done.stderr.as_str()), (0, "", ""));
    recorded("## quit -t 1 with no server: rc 0, stdout ''");
}

#[test]
fn a_long_line_kills_the_daemon() {
    let host = Host::new("h200x1@13.0");
    let users: &[bool] = if can_become_nobody() { &[false, true] } else { &[false] };
    for &nobody in users {
        host.start(&["-d"], &[]);
        let say = |length: usize| {
            let mut program = host.control_program();
            if nobody {
                use std::os::unix::process::CommandExt as _;
                program.uid(NOBODY).gid(NOBODY);
            }
            finish(&mut program, format!("{}\nzz-1\n", "a".repeat(length)).as_bytes(), TIMEOUT)
        };
        for length in [200, 1024, 3000] {
            let wanted = format!("Unknown command \"{}\"\nUnknown command \"zz-1\"\n", "a".repeat(length));
            assert_eq!(say(length).stdout, wanted);
        }
        assert_eq!(say(4100).stdout.len(), 4097);
        let next = host.control("get_server_list");
        assert_eq!((next.rc, next.stderr.as_str()), (1, "Cannot find MPS control daemon process\n"));
    }
}

#[test]
fn commands_as_arguments_do_nothing() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let mut command = host.control_program();
    let done = Busy::spawn(command.arg("get_server_list")).finish(TIMEOUT);
    assert_eq!((done.rc, done.stdout.as_str(), done.stderr.as_str()), (0, "", ""));
}
