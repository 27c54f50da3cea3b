//! Trials: a simulated host that is ended with all it started and wrote, and nothing of anybody else.

use std::fs::{self, File};
use std::io::Read as _;

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::harness::{Host, eventually, is_alive, processes_with, signal, stderr_of};

/// Every process of a host, clients included.
fn processes(host: &Host) -> Vec<u32> {
    processes_with("MPS_SIM_WORLD", &host.runtime("sim"))
}

#[test]
fn served_with_rm_leaves_nothing() {
    let mut host = Host::new("");
    // Left by a manager that was killed: it goes on from there.
    for signal in [Signal::KILL, Signal::TERM] {
        host.serve_with(&["--rm"]);
        host.await_ready();
        let mut client = host.client("demo");
        assert!(processes(&host).len() >= 5, "two daemons, two servers and a client");
        let code = host.end_manager(signal);
        if signal == Signal::KILL {
            assert!(client.is_running(), "daemons and clients outlive a manager that is killed");
            continue;
        }
        assert_eq!(code, Some(0), "{}", host.log());
        client.ended();
    }
    assert_eq!(processes(&host), [] as [u32; 0]);
    assert!(!host.state("").exists() && !host.runtime("").exists(), "{}", host.log());
}

#[test]
fn rm_refuses_what_was_there_before() {
    let mut host = Host::ready();
    host.end_manager(Signal::TERM);
    let thesis = host.state("thesis.txt");
    fs::write(&thesis, "three years").unwrap();
    let refused = host.refused(&["--rm"]);
    assert!(refused.contains("it holds thesis.txt") && refused.contains("leave --rm out"), "{refused}");
    fs::remove_file(thesis).unwrap();
    let mark = host.state("simulated");
    fs::remove_file(&mark).unwrap();
    let refused = host.refused(&["--rm"]);
    assert!(refused.contains("not known to be that of a simulated host"), "{refused}");
    let config = host.dir().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    let real: Vec<&str> =
        text.lines().filter(|line| !line.starts_with("sim = ") && !line.contains("_ms = ")).collect();
    fs::write(&config, real.join("\n")).unwrap();
    let refused = host.refused(&["--rm"]);
    assert!(refused.contains("add --sim PROFILE"), "{refused}");
    assert!(host.state("mps-manager.db").exists() && host.runtime("sim/world.json").exists());
}

#[test]
fn sim_down_ends_one_host_alone() {
    let (mut one, mut other) = (Host::ready(), Host::ready());
    let mut clients = [one.client("demo"), other.client("demo")];
    let before = eventually("no control program runs for a moment", || {
        let seen = processes(&other);
        (seen.len() == 5).then_some(seen)
    });
    let state = one.state("");
    let state = state.to_str().unwrap();

    let down = one.cli(&["sim", "down", "--state-dir", state]);
    let text = String::from_utf8(down.stdout.clone()).unwrap();
    assert_eq!(down.status.code(), Some(0), "{text}{}", stderr_of(&down));
    assert!(text.contains("Stopped the manager") && text.contains("Removed"), "{text}");
    eventually("its manager has ended", || one.manager_has_ended().then_some(()));
    clients[0].ended();
    assert_eq!(processes(&one), [] as [u32; 0]);
    assert!(!one.state("").exists() && !one.runtime("").exists(), "{text}");

    eventually("the other host is as it was", || (processes(&other) == before).then_some(()));
    assert!(clients[1].is_running() && is_alive(other.manager_pid()));
    assert_eq!(other.end_manager(Signal::TERM), Some(0));
    // Without a manager, and without the state directory, which stays.
    let down = other.cli(&["sim", "down"]);
    assert_eq!(down.status.code(), Some(0), "{}", stderr_of(&down));
    assert_eq!(processes(&other), [] as [u32; 0]);
    assert!(other.state("mps-manager.db").exists() && !other.runtime("").exists());

    let down = other.cli(&["sim", "down"]);
    assert_eq!(down.status.code(), Some(2));
    assert!(stderr_of(&down).contains("holds no simulated host"), "{}", stderr_of(&down));
}

/// What `serve` with these arguments shows on a terminal from its start to its end.
fn shown_on_terminal(host: &Host, arguments: &[&str]) -> String {
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    let name = ptsname(&screen, Vec::new()).unwrap();
    // By name and without NOCTTY it would be the terminal of tests that lead a session.
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let terminal = File::from(rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty()).unwrap());
    let config = host.dir().join("config.toml");
    let mut command = host.command(&["serve", "--config", config.to_str().unwrap()]);
    command.args(arguments).stdout(terminal.try_clone().unwrap()).stderr(terminal);
    let mut manager = command.spawn().unwrap();
    // It holds the other side of the screen, which would never end.
    drop(command);
    let (mut screen, mut shown) = (File::from(screen), String::new());
    let mut buffer = [0; 4096];
    let mut is_told = false;
    while let Ok(count @ 1..) = screen.read(&mut buffer) {
        shown.push_str(&String::from_utf8_lossy(&buffer[..count]));
        if !is_told && shown.contains("Ctrl-C") {
            is_told = true;
            signal(manager.id(), Signal::TERM);
        }
    }
    manager.wait().unwrap();
    shown.replace('\r', "")
}

#[test]
fn terminal_shows_address_first_between_blank_lines() {
    let host = Host::new("");
    let first = shown_on_terminal(&host, &[]);
    let lines: Vec<&str> = first.lines().collect();
    assert!(lines[0].is_empty() && lines[1].starts_with("  Console:      http://127.0.0.1:"), "{first}");
    assert!(lines[1].contains("/login?code=") && lines[1].contains("within 15 minutes"), "{first}");
    assert!(lines.last().unwrap().is_empty() && !first.contains("INFO"), "{first}");
    assert!(
        first.contains(
            format!("export MPS_MANAGER_RUNTIME_DIR={}", host.runtime("").display()).trim_end_matches('/')
        ),
        "{first}"
    );

    let again = shown_on_terminal(&host, &["-v"]);
    assert!(again.contains("INFO") && again.contains("serving a SIMULATED host"), "{again}");
    let console = again.lines().find(|line| line.starts_with("  Console:")).unwrap();
    assert!(console.ends_with("(mps-manager login-url to log in)") && !console.contains("code="), "{again}");
    let down = host.cli(&["sim", "down"]);
    assert_eq!(down.status.code(), Some(0), "{}", stderr_of(&down));
}
