//! Output of `serve` once it serves: for a person at a terminal, and for scripts that read it.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};

use crate::config::Config;
use crate::domain::listening::HostListening;
use crate::domain::token::Secret;

const WAITING: &str = "for the NVIDIA driver; nothing is changed until it is here";

/// Prints it, whether or not anybody reads it.
///
/// The log may be filtered. The reader may have gone, as `head -1` does, which is no reason to end.
pub(super) fn print(
    config: &Config,
    listening: &HostListening,
    login: Option<&Secret>,
    removed_at_exit: bool,
    waiting: bool,
) {
    let mut stdout = std::io::stdout().lock();
    let text = if stdout.is_terminal() {
        for_a_person(config, listening, login, removed_at_exit, waiting)
    } else {
        for_a_script(config, listening, login, waiting)
    };
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// The address of the API and the console.
pub(super) fn url(listening: &HostListening) -> String {
    let scheme = if listening.tls.is_some() { "https" } else { "http" };
    format!("{scheme}://{}", listening.address)
}

/// Describes the host that is served.
pub(super) fn kind(config: &Config) -> &'static str {
    if config.sim.is_some() { "a SIMULATED host" } else { "this host" }
}

fn console(listening: &HostListening, login: Option<&Secret>) -> String {
    match login {
        Some(link) => format!("{}  (logs in once, within 15 minutes)", link.reveal()),
        None => format!("{}  (mps-manager login-url to log in)", url(listening)),
    }
}

fn for_a_person(
    config: &Config,
    listening: &HostListening,
    login: Option<&Secret>,
    removed_at_exit: bool,
    waiting: bool,
) -> String {
    let host = match &config.sim {
        Some(profile) => format!("simulated {profile}: GPUs that are files, and nothing is computed"),
        None => "this one".to_owned(),
    };
    let end = if removed_at_exit {
        "Ctrl-C ends the simulated host and removes both directories"
    } else if config.sim.is_some() {
        "Ctrl-C leaves the daemons running; `mps-manager sim down` ends them too"
    } else {
        "Ctrl-C leaves daemons and clients running"
    };
    let rows = [
        ("Console", console(listening, login)),
        ("Host", host),
        ("Command line", format!("export MPS_MANAGER_RUNTIME_DIR={}", config.runtime_dir.display())),
        ("Admin token", config.state_dir.join("admin.token").display().to_string()),
        ("Stop", end.to_owned()),
    ];
    let waiting = waiting.then(|| ("Waiting", WAITING.to_owned()));
    let mut text = String::from("\n");
    for (name, value) in rows.into_iter().chain(waiting) {
        let _ = writeln!(text, "  {name:<14}{value}", name = format!("{name}:"));
    }
    text.push('\n');
    text
}

/// Returns the text for a script, with `mps-manager serves … on URL …` in the first line. Others can read a journal, so the text of a real
/// host has no login link.
fn for_a_script(config: &Config, listening: &HostListening, login: Option<&Secret>, waiting: bool) -> String {
    let waiting = if waiting { format!("Waiting {WAITING}\n") } else { String::new() };
    format!(
        "mps-manager serves {} on {} and {}\nadmin token: {}\nConsole: {}\n{waiting}",
        kind(config),
        url(listening),
        config.socket().display(),
        config.state_dir.join("admin.token").display(),
        console(listening, login.filter(|_| config.sim.is_some()))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_of_real_host_has_no_login() {
        let listening = HostListening { address: "127.0.0.1:1".into(), tls: None, insecure: false };
        let link = Secret::shown("http://127.0.0.1:1/login?code=7");
        let printed = |config: &Config| for_a_script(config, &listening, Some(&link), false);
        let real = printed(&Config::default());
        assert!(real.contains("(mps-manager login-url to log in)") && !real.contains("code="), "{real}");
        let simulated = printed(&Config { sim: Some("h200x2".into()), ..Config::default() });
        assert!(simulated.contains("/login?code=7 "), "{simulated}");
    }
}
