//! Replies about clients.
//!
//! A client chooses its own command name, so a name may hold blanks, newlines and lines that look like rows. `ps`
//! says which PIDs to examine; what they are is for `/proc` to say.

use super::{ParseError, missing_server, not_understood, pids, shown, text};

/// Heading of `ps`.
const HEADER: [&str; 6] = ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"];
/// Attributes of a device: none, a GPU that is divided into MLOPart devices, and one of these (recording 29).
const ATTRIBUTES: [&str; 3] = ["N/A", "M", "MD"];

/// Clients that `ps` lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Clients {
    /// There is no server, so there are no clients.
    ServerNotFound,
    /// The clients of every server, or of the one that was named.
    Listed {
        /// The rows that were understood. A process on two GPUs has one (recording 04).
        rows: Vec<ClientRow>,
        /// The lines that were not.
        bad: Vec<String>,
    },
}

/// A row of `ps`: one client process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRow {
    /// Process ID, in the daemon's PID namespace.
    pub pid: u32,
    /// The number that the server gave it.
    pub id: u64,
    /// PID of its server.
    pub server: u32,
    /// The beginning of the UUID of its first GPU: `GPU-514466a0-8e68-f857`.
    pub device_prefix: String,
    /// Inode of its PID namespace.
    pub namespace: u64,
    /// Command name that it gives itself, without trailing blanks.
    pub command: String,
    /// Attributes of its device, as `MD` of an MLOPart device; empty where the daemon has none to tell (before CUDA 13.1, the whole column).
    pub attributes: String,
}

/// A device of `get_device_client_list`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceClients {
    /// The server's ordinal of the device.
    pub ordinal: u32,
    /// A bus ID, which is wrong (recording 04: `00:02.0` for `00:08.00`).
    pub bus: String,
    /// The product name.
    pub name: String,
    /// The contexts on it.
    pub contexts: Vec<DeviceContext>,
}

/// A context of a client on a device, as in `959.2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceContext {
    /// Process ID of the client.
    pub pid: u32,
    /// The context's number in that client.
    pub context: u32,
}

/// Result of a `terminate_client`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Terminated {
    /// The client's work on the GPU is over.
    Done,
    /// Nothing was terminated.
    Refused {
        /// The number that it printed, which is not 0.
        code: i64,
        /// The words before it.
        text: String,
    },
}

/// Reads `ps`: nothing when no server has a client.
///
/// ```text
/// PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND        
/// 1077      89        641            GPU-d4e3a02e-e949-ae50    4026531836     /tmp/a client with spaces and a very long name that goes on and on
/// 1080      90        641            GPU-d4e3a02e-e949-ae50    4026532350     /tmp/client    
/// ```
/// From CUDA 13.1 on, as documented (recording 29):
/// ```text
/// PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND         ATTRIBUTES
/// 52845     1         52837          GPU-b13add01-c28c         4026531836     while1          MD
/// ```
/// ```text
/// Server not found
/// ```
/// `ps -p 1`:
/// ```text
/// Server 1 not found
/// Server 1 not found
///
/// ```
pub fn clients(reply: &[u8]) -> Result<Clients, ParseError> {
    let text = text(reply)?;
    if text.trim_end() == "Server not found" || missing_server(text).is_some() {
        return Ok(Clients::ServerNotFound);
    }
    let mut lines = text.lines();
    let has_attributes = match lines.next().map(|header| header.split_ascii_whitespace().collect::<Vec<_>>())
    {
        None => return Ok(Clients::Listed { rows: Vec::new(), bad: Vec::new() }),
        Some(header) if header == HEADER => false,
        Some(header) if header.split_last() == Some((&"ATTRIBUTES", &HEADER)) => true,
        Some(_) => return Err(not_understood("the header of ps and its rows", reply)),
    };
    let (mut rows, mut bad) = (Vec::new(), Vec::new());
    for line in lines {
        match client_row(line, has_attributes) {
            Some(row) => rows.push(row),
            None => bad.push(shown(line)),
        }
    }
    Ok(Clients::Listed { rows, bad })
}

fn client_row(line: &str, has_attributes: bool) -> Option<ClientRow> {
    let mut rest = line;
    let mut field = || {
        let (word, after) = rest.split_once(' ')?;
        rest = after.trim_start_matches(' ');
        Some(word)
    };
    let pid = field()?.parse().ok().filter(|pid| *pid != 0)?;
    let id = field()?.parse().ok()?;
    let server = field()?.parse().ok()?;
    let device = field()?;
    let namespace = field()?.parse().ok()?;
    let is_gpu = device.starts_with("GPU-") || device.starts_with("MIG-");
    let (command, attributes) = if has_attributes { split_attributes(rest) } else { (rest, "") };
    is_gpu.then(|| ClientRow {
        pid,
        id,
        server,
        device_prefix: device.to_owned(),
        namespace,
        command: command.trim_end_matches(' ').to_owned(),
        attributes: attributes.to_owned(),
    })
}

/// Splits the attributes off the end of a line: its last word, if it is one that the documentation has. A client may end its own name with
/// one, and then is shown as it says.
pub(super) fn split_attributes(text: &str) -> (&str, &str) {
    let text = text.trim_end_matches(' ');
    let split = text.rsplit_once(' ').filter(|(_, last)| ATTRIBUTES.contains(last));
    split.map_or((text, ""), |(before, last)| (before, last))
}

/// Reads `get_client_list`: a PID a line; nothing when the server has no client.
///
/// ```text
/// 668
/// 669
/// ```
pub fn client_list(reply: &[u8]) -> Result<Vec<u32>, ParseError> {
    let text = text(reply)?;
    if let Some(server) = missing_server(text) {
        return Err(ParseError::ServerNotFound { server });
    }
    pids(text).ok_or_else(|| not_understood("a PID a line", reply))
}

/// Reads `get_device_client_list`: devices that have clients, each followed by its contexts.
///
/// ```text
/// [1] 00:01.0, NVIDIA H200
/// 960.1
/// 959.2
/// [0] 00:00.0, NVIDIA H200
/// 958.1
/// 959.1
/// ```
pub fn device_client_list(reply: &[u8]) -> Result<Vec<DeviceClients>, ParseError> {
    let text = text(reply)?;
    if let Some(server) = missing_server(text) {
        return Err(ParseError::ServerNotFound { server });
    }
    let mut devices: Vec<DeviceClients> = Vec::new();
    for line in text.lines() {
        let understood = match line.strip_prefix('[') {
            Some(heading) => device_heading(heading).map(|device| devices.push(device)),
            None => devices
                .last_mut()
                .and_then(|device| device_context(line).map(|context| device.contexts.push(context))),
        };
        understood.ok_or_else(|| not_understood("devices and their contexts", reply))?;
    }
    Ok(devices)
}

fn device_heading(rest: &str) -> Option<DeviceClients> {
    let (ordinal, rest) = rest.split_once("] ")?;
    let (bus, name) = rest.split_once(", ")?;
    Some(DeviceClients {
        ordinal: ordinal.parse().ok()?,
        bus: bus.to_owned(),
        name: name.trim_end().to_owned(),
        contexts: Vec::new(),
    })
}

fn device_context(line: &str) -> Option<DeviceContext> {
    let (pid, context) = line.trim_end().split_once('.')?;
    Some(DeviceContext { pid: pid.parse().ok()?, context: context.parse().ok()? })
}

/// Reads `terminate_client`: `0` on success, else words and another number.
///
/// ```text
/// 0
/// ```
/// ```text
/// Invalid process 424242!
/// 1
/// ```
/// ```text
/// Server 1 not found
/// Server 1 not found!
/// 1
/// ```
pub fn terminate(reply: &[u8]) -> Result<Terminated, ParseError> {
    let text = text(reply)?.trim_end();
    let (words, last) = text.rsplit_once('\n').unwrap_or(("", text));
    let code: i64 = last.trim_end().parse().map_err(|_| not_understood("words and a number", reply))?;
    match code {
        0 if words.trim().is_empty() => Ok(Terminated::Done),
        // Words beside a 0 were never seen; they are not called a success.
        0 => Err(not_understood("0 alone, or words and another number", reply)),
        code => Ok(Terminated::Refused { code, text: shown(words.trim_end()) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_with_blanks_in_their_names_are_read() {
        let reply = b"PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND        \n\
            1077      89        641            GPU-d4e3a02e-e949-ae50    4026531836     /tmp/a client with spaces and a very long name that goes on and on\n\
            1080      90        641            GPU-d4e3a02e-e949-ae50    4026532350     /tmp/client    \n\
            forged line\n";
        let Ok(Clients::Listed { rows, bad }) = clients(reply) else { panic!("listed") };
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].command, "/tmp/a client with spaces and a very long name that goes on and on");
        assert_eq!(
            rows[1],
            ClientRow {
                pid: 1080,
                id: 90,
                server: 641,
                device_prefix: "GPU-d4e3a02e-e949-ae50".into(),
                namespace: 4_026_532_350,
                command: "/tmp/client".into(),
                attributes: String::new(),
            }
        );
        assert_eq!(bad, ["forged line"]);
    }

    #[test]
    fn attributes_follow_the_command() {
        let header = "PID ID SERVER DEVICE NAMESPACE COMMAND ATTRIBUTES";
        let read = |row: &str| {
            let reply = format!("{header}\n52845 1 52837 GPU-b13add01-c28c 4026531836 {row}\n");
            let Ok(Clients::Listed { rows, .. }) = clients(reply.as_bytes()) else { panic!("listed") };
            (rows[0].command.clone(), rows[0].attributes.clone())
        };
        let pair = |command: &str, attributes: &str| (command.to_owned(), attributes.to_owned());
        assert_eq!(read("while1 MD"), pair("while1", "MD"));
        assert_eq!(read("a client with blanks     N/A"), pair("a client with blanks", "N/A"));
        assert_eq!(read("while1"), pair("while1", ""));
        assert_eq!(read("ends in words"), pair("ends in words", ""));
        assert!(clients(b"PID ID SERVER DEVICE NAMESPACE COMMAND COLOUR\n").is_err());
    }

    #[test]
    fn no_server_and_no_client_are_two_answers() {
        assert_eq!(clients(b"Server not found\n"), Ok(Clients::ServerNotFound));
        assert_eq!(clients(b"Server 1 not found\nServer 1 not found\n\n"), Ok(Clients::ServerNotFound));
        assert_eq!(clients(b""), Ok(Clients::Listed { rows: vec![], bad: vec![] }));
        assert!(clients(b"something else\n").is_err());
    }

    #[test]
    fn devices_have_contexts() {
        let reply = b"[1] 00:01.0, NVIDIA H200\n960.1\n959.2\n[0] 00:00.0, NVIDIA H200\n958.1\n";
        let devices = device_client_list(reply).expect("read");
        assert_eq!((devices[0].ordinal, devices[0].contexts.len()), (1, 2));
        assert_eq!(devices[0].contexts[1], DeviceContext { pid: 959, context: 2 });
        assert_eq!(devices[1].name, "NVIDIA H200");
        assert!(device_client_list(b"960.1\n").is_err());
    }

    #[test]
    fn only_a_bare_0_is_a_termination() {
        assert_eq!(terminate(b"0\n"), Ok(Terminated::Done));
        assert_eq!(
            terminate(b"Invalid process 424242!\n1\n"),
            Ok(Terminated::Refused { code: 1, text: "Invalid process 424242!".into() })
        );
        assert!(terminate(b"").is_err());
        assert!(terminate(b"words\n0\n").is_err());
        let refused = b"Insufficient privileges for UID 65534. Control deamon settings can only be modified by the user who started it or by the root user.\n800\n";
        assert!(matches!(terminate(refused), Err(ParseError::InsufficientPrivileges { .. })));
    }
}
