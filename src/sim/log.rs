//! control.log and server.log: `[YYYY-MM-DD HH:MM:SS.mmm Control|Server|Other <pid>] text`.
//!
//! Opened once and appended to, as the real programs do: truncating a log in place works, renaming it does not.
//! Each process writes its own lines, so the order is the order of events.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::profile::Gpu;

/// One open log.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    /// Under `-f` every line goes to stdout as well.
    echo: bool,
}

/// Author of a line.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Voice {
    Control,
    Server,
    /// The server before it is ready, and a start that found another daemon.
    Other,
}

impl Log {
    pub(crate) fn open(path: &Path, echo: bool) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file, echo })
    }

    /// Writes one line in this process's name. A log that cannot be written is no reason to stop.
    pub(crate) fn line(&self, voice: Voice, text: &str) {
        let voice = match voice {
            Voice::Control => "Control",
            Voice::Server => "Server",
            Voice::Other => "Other",
        };
        let now = jiff::Zoned::now().strftime("%Y-%m-%d %H:%M:%S%.3f").to_string();
        let line = format!("[{now} {voice} {:>5}] {text}\n", std::process::id());
        let _ = (&self.file).write_all(line.as_bytes());
        if self.echo {
            let _ = io::stdout().lock().write_all(line.as_bytes());
        }
    }
}

/// The kernel's log, in the form of `/dev/kmsg`: priority, number and microseconds since the boot before each message.
#[derive(Debug)]
pub(crate) struct KernelLog(pub(crate) PathBuf);

impl KernelLog {
    /// Adds a report of the driver about a GPU.
    pub(crate) fn line(&self, gpu: &Gpu, report: &str) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        // NVML writes eight digits of the domain, and the function; the kernel writes four digits, and no function.
        let address = gpu.pci_bus_id.get(4..).unwrap_or_default().trim_end_matches(".0").to_lowercase();
        let line = format!("4,1,{micros},-;NVRM: Xid (PCI:{address}): {report}\n");
        let file = OpenOptions::new().append(true).open(&self.0);
        // A log that cannot be written is no reason to stop.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}
