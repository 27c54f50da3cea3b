//! The errors of NVIDIA's driver in the kernel's log (Xid).
//!
//! ```text
//! 4,1020,52012345,-;NVRM: Xid (PCI:0000:06:00): 31, pid=5337, name=train, Ch 00000008, intr 00000000. MMU Fault: …
//! ```

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};

/// The kernel's own log.
pub const KERNEL_LOG: &str = "/dev/kmsg";
/// Most bytes of all messages together; the kernel keeps some hundred KiB by default.
const LONGEST: usize = 4 << 20;

/// An error that the driver reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedXid {
    /// Time at which it was logged, since the start of the host.
    pub logged: Duration,
    /// Age of the message.
    pub age: Duration,
    /// The GPU's PCI address as the kernel writes it: `0000:06:00`.
    pub pci: String,
    /// The rest of the message: the number of the error and the driver's words.
    pub report: String,
}

/// Returns the errors in the kernel's log, oldest first.
pub fn xids(log: &Path) -> io::Result<Vec<LoggedXid>> {
    let now = uptime();
    Ok(messages(log)?.lines().filter_map(|line| xid(line, now)).collect())
}

/// Returns the present time, as the log counts it.
pub fn uptime() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

fn xid(line: &str, now: Duration) -> Option<LoggedXid> {
    let (head, rest) = line.split_once(";NVRM: Xid (PCI:")?;
    let (pci, report) = rest.split_once("): ")?;
    let logged = Duration::from_micros(head.split(',').nth(2)?.parse().ok()?);
    Some(LoggedXid {
        logged,
        age: now.saturating_sub(logged),
        pci: pci.to_owned(),
        report: report.to_owned(),
    })
}

/// Converts a PCI address of NVML, as `00000000:06:00.0`, to the kernel's form.
pub fn kernel_address(pci_bus_id: &str) -> String {
    let without_function = pci_bus_id.rsplit_once('.').map_or(pci_bus_id, |(address, _)| address);
    let start = without_function.len().saturating_sub("0000:06:00".len());
    without_function.get(start..).unwrap_or_default().to_lowercase()
}

/// Reads the messages that are kept, without waiting for further ones.
fn messages(log: &Path) -> io::Result<String> {
    let mut file = fs::File::options()
        .read(true)
        .custom_flags(i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default())
        .open(log)?;
    let (mut all, mut message) = (Vec::new(), vec![0; 8192]);
    while all.len() < LONGEST {
        match file.read(&mut message) {
            Ok(0) => break,
            // Each read returns one message.
            Ok(length) => all.extend_from_slice(&message[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            // The message was overwritten before it was read: the next one is read.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&all).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_the_kernel_does() {
        for (nvml, kernel) in [
            ("00000000:06:00.0", "0000:06:00"),
            ("00000001:0A:00.0", "0001:0a:00"),
            ("0000:06:00.0", "0000:06:00"),
            ("short", "short"),
        ] {
            assert_eq!(kernel_address(nvml), kernel);
        }
    }

    #[test]
    fn errors_are_found_among_other_messages() {
        let now = Duration::from_secs(60);
        let line = "4,1020,52012345,-;NVRM: Xid (PCI:0000:06:00): 31, pid=5337, name=train";
        let read = xid(line, now).expect("an error");
        assert_eq!((read.pci.as_str(), read.report.as_str()), ("0000:06:00", "31, pid=5337, name=train"));
        assert_eq!(read.age, Duration::from_micros(60_000_000 - 52_012_345));
        for line in
            ["", "6,1,2,-;usb 1-1: new device", "4,1,x,-;NVRM: Xid (PCI:0000:06:00): 31", " SUBSYSTEM=pci"]
        {
            assert_eq!(xid(line, now), None, "{line}");
        }
    }
}
