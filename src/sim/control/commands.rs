//! The commands of a session.
//!
//! Each answers what the recordings show, errors included; whatever is sent to the caller is logged too, and a
//! few reasons are logged only.

use std::time::{Duration, Instant};

use super::super::envvar;
use super::super::profile::{
    GUARDED_SINCE, Gpu, LIMITS_SINCE, MLOPART_SINCE, SPEAKING_SINCE, STATIC_PARTITIONS_SINCE,
};
use super::super::protocol::{Answer, Order, ui};
use super::attempts::{Attempts, Quit};
use super::daemon::{Daemon, Session};
use super::limits;
use super::server_process::Server;

/// A line that does not fit here kills the daemon, as recorded with 4100 bytes; 3000 are safe.
const LINE_BUFFER: usize = 4096;
/// The longest message that versions before 13.0 write to their log, recorded.
const OLD_LOG_LINE: usize = 4048;

impl Daemon {
    pub(super) fn execute(&mut self, session: &Session, line: &[u8]) {
        // C strings end at the first NUL.
        let text = line.split(|&byte| byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(text);
        if line.len() > LINE_BUFFER && self.world.host().binary_version >= SPEAKING_SINCE {
            let mut reply = format!("Unknown command \"{text}").into_bytes();
            reply.truncate(LINE_BUFFER);
            reply.push(b'\n');
            session.send(ui::TEXT, &reply);
            std::process::exit(139);
        }
        self.say_log(self.cut(&format!("Cmd:{text}"), OLD_LOG_LINE));
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        self.dispatch(session, words.first().copied().unwrap_or(""), words.get(1..).unwrap_or_default());
        session.end();
    }

    fn dispatch(&mut self, session: &Session, command: &str, args: &[&str]) {
        let arg = |index: usize| args.get(index).copied();
        let version = self.world.host().binary_version;
        let static_partitions = version >= STATIC_PARTITIONS_SINCE;
        if !is_known(command, version) {
            return self.unknown(session, command);
        }
        if self.is_old()
            && (command.starts_with("set_active_")
                || command.starts_with("set_device_")
                || command == "shutdown_server"
                || command == "terminate_client")
        {
            // Before they look whether the caller may, recorded.
            let server = args.first().map_or(0, |word| number(word));
            if !self.is_server(server) {
                self.say(session, &format!("Server {server} not found"));
                if command == "terminate_client" {
                    self.say(session, &format!("Server {server} not found!"));
                    self.say(session, "1");
                }
                return;
            }
        }
        match command {
            "get_server_list" => {
                if let Some(pid) = self.server.as_ref().map(Server::pid) {
                    self.say(session, &pid.to_string());
                }
            }
            "get_server_status" => self.status(session, arg(0)),
            "start_server" if self.allowed(session) => self.start_server_for(session, args),
            "shutdown_server" if self.allowed(session) => self.shutdown(session, args),
            "quit" => self.begin_quit(session, args),
            "ps" => self.ps(session, args),
            "get_client_list" => self.client_list(session, arg(0)),
            "get_device_client_list" => self.device_client_list(session, arg(0)),
            "device_query" => self.device_query(session, args),
            "set_default_active_thread_percentage" if self.allowed(session) => {
                match arg(0).and_then(envvar::percentage) {
                    Some(value) => self.defaults.percentage = value,
                    None => self.say_log("Invalid percentage, expected between (0.0, 100.0]"),
                }
                self.say(session, &format!("{:.1}", self.defaults.percentage));
            }
            "get_default_active_thread_percentage" => {
                self.say(session, &format!("{:.1}", self.defaults.percentage));
            }
            "set_active_thread_percentage" if self.allowed(session) => self.set_percentage(session, args),
            "get_active_thread_percentage" => {
                if self.found(session, arg(0)) {
                    self.show_percentage(session);
                }
            }
            "set_default_device_pinned_mem_limit" if self.allowed(session) => self.set_default_limit(args),
            "get_default_device_pinned_mem_limit" => self.default_limit(session, arg(0)),
            "set_device_pinned_mem_limit" if self.allowed(session) => self.set_limit(session, args),
            "get_device_pinned_mem_limit" => self.limit(session, args),
            "set_default_client_priority" if self.allowed(session) => self.set_priority(session, arg(0)),
            "get_default_client_priority" => self.say(session, &self.defaults.priority.to_string()),
            "terminate_client" => self.terminate(session, args),
            "sm_partition" if static_partitions && self.allowed(session) => self.sm_partition(session, args),
            "lspart" if static_partitions => self.lspart(session),
            "start_server"
            | "shutdown_server"
            | "set_default_active_thread_percentage"
            | "set_active_thread_percentage"
            | "set_default_device_pinned_mem_limit"
            | "set_device_pinned_mem_limit"
            | "set_default_client_priority" => self.refuse(session),
            "sm_partition" if static_partitions => self.refuse(session),
            _ => self.unknown(session, command),
        }
    }

    fn unknown(&self, session: &Session, command: &str) {
        let text = format!("Unknown command \"{command}\"");
        self.say_log(self.cut(&text, OLD_LOG_LINE));
        session.send(ui::TEXT, format!("{}\n", self.cut(&text, LINE_BUFFER)).as_bytes());
    }

    /// Cuts text to the length that a buffer of a version before 13.0 has room for.
    fn cut<'t>(&self, text: &'t str, most: usize) -> &'t str {
        if self.is_old() { text.get(..most).unwrap_or(text) } else { text }
    }

    /// Returns true for a version before 13.0, whose `-v` and `--help` do not tell the version.
    pub(super) fn is_old(&self) -> bool {
        self.world.host().binary_version < SPEAKING_SINCE
    }

    /// Sends a line to the caller and logs it.
    pub(super) fn say(&self, session: &Session, text: &str) {
        self.say_log(text);
        session.send(ui::TEXT, format!("{text}\n").as_bytes());
    }

    /// Returns true if the caller may change settings: privilege is a property of the socket that the caller could write to. Before 12.4
    /// everybody may, recorded (22).
    fn allowed(&self, session: &Session) -> bool {
        session.privileged || self.world.host().binary_version < GUARDED_SINCE
    }

    fn refuse(&self, session: &Session) {
        let who = if self.world.host().binary_version >= SPEAKING_SINCE { "user who" } else { "user" };
        self.say(
            session,
            &format!(
                "Insufficient privileges for UID {}. Control deamon settings can only be modified by the {who} started it or by the \
                 root user.",
                session.uid
            ),
        );
    }

    /// Returns true if the named server exists; otherwise the caller gets an error.
    pub(super) fn found(&self, session: &Session, pid: Option<&str>) -> bool {
        let pid = pid.map_or(0, number);
        let found = self.is_server(pid);
        if !found {
            self.say(session, &format!("Server {pid} not found"));
        }
        found
    }

    fn status(&mut self, session: &Session, pid: Option<&str>) {
        if pid.is_none() {
            self.say(session, "A server PID is required");
        } else if self.found(session, pid) {
            let text = if self.ready_server().is_none() {
                "INITIALIZING"
            } else if let Some(Answer::Status { fault: false }) = self.order(&Order::Status) {
                "ACTIVE"
            } else {
                // A dead server has it too.
                "FAULT"
            };
            self.say(session, text);
        }
    }

    fn start_server_for(&mut self, session: &Session, args: &[&str]) {
        let uid = match args {
            ["-uid", uid, ..] => uid.parse::<u32>().ok(),
            _ => None,
        };
        let Some(uid) = uid else {
            self.say(session, "A user id (UID) is required to start a new server");
            return;
        };
        // The daemon of a user starts servers for that user alone, as seen on 580.
        if session.uid != 0 && session.uid != uid {
            self.refuse(session);
            return;
        }
        let uid = if self.mode.multiuser { 0 } else { uid };
        // `-mlopart` starts a server of another kind, so it replaces the one there is, as recorded; it starts an ordinary one where MPS
        // does not know it.
        let replaces = args.contains(&"-mlopart");
        let mlopart = replaces && !self.mode.partitioned && self.world.host().binary_version >= MLOPART_SINCE;
        match &self.server {
            None => self.start_server(uid, mlopart),
            Some(server) if server.uid == uid && (!replaces || server.mlopart) => {}
            Some(_) => self.change_to(uid, mlopart),
        }
    }

    fn shutdown(&mut self, session: &Session, args: &[&str]) {
        if self.found(session, args.first().copied()) {
            self.stop_server(args.contains(&"-f"));
        }
    }

    fn begin_quit(&mut self, session: &Session, args: &[&str]) {
        if !session.privileged {
            self.say(session, "Not enough privilege to execute quit command");
            return;
        }
        let now = Instant::now();
        let force_at = match args {
            ["-t", seconds, ..] => seconds.parse().ok().map(|seconds| now + Duration::from_secs(seconds)),
            _ => None,
        };
        session.send(ui::QUITTING, b"");
        if let ["-t", seconds, ..] = args {
            self.say_log(&format!("quit command issued with timeout of {seconds}"));
        }
        self.quit = Some(Quit { force_at, attempts: Attempts::new() });
    }

    fn set_percentage(&mut self, session: &Session, args: &[&str]) {
        if self.found(session, args.first().copied()) {
            match args.get(1).copied().and_then(envvar::percentage) {
                Some(value) => drop(self.order(&Order::SetPercentage(value))),
                None => self.say_log("Invalid percentage, expected between (0.0, 100.0]"),
            }
            self.show_percentage(session);
        }
    }

    fn show_percentage(&mut self, session: &Session) {
        // A server that dies and is still listed has no percentage: seen on 13.0 as `0.0`.
        let value = match self.order(&Order::Percentage) {
            Some(Answer::Percentage(value)) => value,
            _ => 0.0,
        };
        self.say(session, &format!("{value:.1}"));
    }

    fn set_default_limit(&mut self, args: &[&str]) {
        let [device, value, ..] = args else {
            if !self.is_old() {
                self.say_log("Invalid command format.");
            }
            return;
        };
        if !self.is_old() {
            self.say_log(&format!("set_default_device_pinned_mem_limit {device} {value}."));
        } else if !self.names_device(device) {
            return;
        }
        self.defaults.limits.retain(|(known, _)| known != device);
        let bytes = limits::parse(value);
        if bytes > 0 {
            self.defaults.limits.push(((*device).to_owned(), bytes));
        }
    }

    /// Returns true if a word is an ordinal or the UUID of one of the daemon's GPUs.
    fn names_device(&self, word: &str) -> bool {
        word.starts_with(|first: char| first.is_ascii_digit()) || self.gpus.iter().any(|gpu| gpu.uuid == word)
    }

    fn default_limit(&self, session: &Session, device: Option<&str>) {
        // Before 13.0 a word that names no device, and a missing one, is read as a number: 0, recorded.
        let device = match device {
            Some(word) if !self.is_old() || self.names_device(word) => Some(word),
            _ if self.is_old() => Some("0"),
            none => none,
        };
        match self.defaults.limits.iter().find(|(known, _)| Some(known.as_str()) == device) {
            Some((_, bytes)) => self.say(session, &limits::show(*bytes)),
            None => self.say_log("No default pinned memory limit set for the device!"),
        }
    }

    fn set_limit(&mut self, session: &Session, args: &[&str]) {
        let [pid, device, value, ..] = args else {
            self.say_log("Invalid command format.");
            return;
        };
        if self.found(session, Some(pid)) {
            let order = Order::SetLimit { device: (*device).to_owned(), bytes: limits::parse(value) };
            let _ = self.order(&order);
        }
    }

    fn limit(&mut self, session: &Session, args: &[&str]) {
        if self.found(session, args.first().copied()) {
            let device = args.get(1).copied().unwrap_or("").to_owned();
            match self.order(&Order::Limit { device }) {
                Some(Answer::Limit(Some(bytes))) => self.say(session, &limits::show(bytes)),
                _ => self.say_log("No pinned memory limit set for the device!"),
            }
        }
    }

    fn set_priority(&mut self, session: &Session, value: Option<&str>) {
        // Before 13.0 a word is a number, recorded.
        let old = value.map_or(0, number).to_string();
        match value.filter(|_| !self.is_old()).or_else(|| self.is_old().then_some(&old)) {
            Some(value @ ("0" | "1")) => {
                self.defaults.priority = u8::from(value == "1");
                // A running server is named at once, recorded.
                if self.ready_server().is_some() {
                    let _ = self.order(&Order::Priority(self.defaults.priority));
                }
            }
            _ => self.say(session, "Invalid priority value - must be 0 or 1!"),
        }
    }

    fn terminate(&mut self, session: &Session, args: &[&str]) {
        if !session.privileged {
            self.refuse(session);
            self.say(session, "800");
            return;
        }
        let server = args.first().map_or(0, |word| number(word));
        let client = args.get(1).map_or(0, |word| number(word));
        if !self.found(session, args.first().copied()) {
            self.say(session, &format!("Server {server} not found!"));
            self.say(session, "1");
            return;
        }
        let pid = i32::try_from(client).unwrap_or(-1);
        if let Some(Answer::Terminated(true)) = self.order(&Order::Terminate(pid)) {
            self.say(session, "0");
        } else {
            self.say(session, &format!("Invalid process {client}!"));
            self.say(session, "1");
        }
    }

    /// Returns the daemon's GPUs in its order.
    pub(super) fn listed(&self) -> Vec<&Gpu> {
        self.gpus.iter().collect()
    }
}

/// Returns true unless a command is newer than this version.
fn is_known(command: &str, version: u32) -> bool {
    let since = match command {
        "get_server_status" => GUARDED_SINCE,
        "device_query" => SPEAKING_SINCE,
        "ps" | "terminate_client" => LIMITS_SINCE,
        command if command.ends_with("_device_pinned_mem_limit") || command.ends_with("_client_priority") => {
            LIMITS_SINCE
        }
        _ => 0,
    };
    version >= since
}

/// Reads a number as C's `atoi` does: any other word is 0.
pub(super) fn number(word: &str) -> i64 {
    let end = word.bytes().skip(usize::from(word.starts_with('-'))).take_while(u8::is_ascii_digit).count()
        + usize::from(word.starts_with('-'));
    word[..end].parse().unwrap_or(0)
}
