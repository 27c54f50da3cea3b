//! Resources that the manager itself uses, from /proc, under the names that every exporter uses.

use std::fmt;

use procfs::WithCurrentSystemInfo as _;
use procfs::process::Process as Proc;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use super::families::{Families, length, number};

/// The manager's own process.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Ok(process) = Proc::myself() else { return Ok(()) };
        let Ok(stat) = process.stat() else { return Ok(()) };
        let ticks = number(procfs::ticks_per_second());
        let started = procfs::boot_time_secs().ok().map(|boot| number(boot) + number(stat.starttime) / ticks);
        let files = process.fd_count().ok().map(length);
        let most = match process.limits().ok().map(|limits| limits.max_open_files.soft_limit) {
            Some(procfs::process::LimitValue::Value(most)) => Some(number(most)),
            _ => None,
        };
        let mut families = Families::new(encoder);
        let (resident, virtual_memory) = (number(stat.rss_bytes().get()), number(stat.vsize));
        let threads = u64::try_from(stat.num_threads).ok().map(number);
        families.gauge_in(
            Unit::Bytes,
            "process_resident_memory",
            "Memory that the manager has in RAM, by /proc",
            resident,
        )?;
        families.gauge_in(
            Unit::Bytes,
            "process_virtual_memory",
            "Memory that the manager has mapped, by /proc",
            virtual_memory,
        )?;
        families.gauge_in(
            Unit::Seconds,
            "process_start_time",
            "When the manager started, as Unix time",
            started,
        )?;
        families.gauge("process_open_fds", "File descriptors that the manager has open", files)?;
        families.gauge("process_max_fds", "File descriptors that the manager may have open", most)?;
        families.gauge("process_threads", "Threads of the manager", threads)?;
        let cpu = number(stat.utime + stat.stime) / ticks;
        families.seconds_total("process_cpu", "Time that the manager has spent on a core", cpu)
    }
}
