//! Fatal GPU errors: which clients one client's fault takes down, and when the server is well again (recordings 04, 23 and 24).
//!
//! A fault spreads from device to device through the processes that use both, so everybody who shares a device
//! with an affected process is affected. Of a memory fault the log and the kernel name the client that came first, whoever did it (24
//! of 24), or one that uses several devices (recording 04); of other errors nobody.

use std::sync::MutexGuard;

use super::super::profile::Part;
use super::super::protocol::{FaultKind, Grant};
use super::table::{Context, Server, Table};

impl Server {
    /// A context of `pid` faulted.
    pub(super) fn fault(&self, pid: i32, number: u32, error: FaultKind) {
        let mut table = self.table();
        let Some(device) =
            table.contexts.iter().find(|c| c.pid == pid && c.number == number).map(|context| context.device)
        else {
            return;
        };
        let spans = |context: &&Context| table.of_process(context.pid).count() > 1;
        let first = table.on_device(device).find(spans).or_else(|| table.on_device(device).next());
        let named = first.filter(|_| error == FaultKind::Address);
        if let Some(named) = named {
            self.log(&format_args!(
                "Client {{PID: {}, Context: {}}} encountered a fatal GPU error.",
                named.pid, named.number
            ));
        }
        self.report_to_kernel(device, error, named.map(|named| named.pid));
        self.log(&"Server is handling a fatal GPU error.");
        let (devices, processes) = self.affected(&table, device);
        self.log(&"The following devices will be reset:");
        for device in &devices {
            self.log(device);
        }
        self.log(&"The following client process have a sticky error set:");
        for &pid in &processes {
            self.log(&pid);
            let shares = table.of_process(pid).any(|context| context.device == device);
            let error = if shares { error.runtime_error() } else { "cudaErrorLaunchFailure" };
            if let Some(process) = table.processes.iter().find(|process| process.pid == pid) {
                let _ = process.conn.send_message(&Grant::Sticky(error.to_owned()));
            }
        }
        table.resetting.extend(devices);
        match error {
            FaultKind::Trap => {
                table.in_reset.insert(pid);
            }
            // Its context ends in that moment, seen of 20 of 20 on H200s.
            FaultKind::Misaligned => {
                drop(table);
                self.context_left(pid, number);
            }
            _ => {}
        }
    }

    /// The lines of the driver in the kernel's log, as recorded (24).
    fn report_to_kernel(&self, device: usize, error: FaultKind, named: Option<i32>) {
        let gpu = &self.gpus[device];
        let warp = |what: &str| {
            self.kernel.line(gpu, &format!("13, Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): {what}"));
            let registers = "ESR 0x518730=0x500000f 0x518734=0x0 0x518728=0x1f81fb60 0x51872c=0x1174";
            self.kernel.line(gpu, &format!("13, Graphics Exception: {registers}"));
        };
        match error {
            FaultKind::Misaligned => warp("Misaligned Address"),
            FaultKind::Stack => warp("Out Of Range Address"),
            _ => {}
        }
        self.kernel.line(gpu, &match named {
            Some(pid) => format!(
                "31, pid={pid}, name=f, channel 0x0000000e, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_6 faulted @ \
                 0x0_dead0000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
            ),
            None => format!("43, pid={}, name=nvidia-cuda-mps, channel 0x0000000a", std::process::id()),
        });
    }

    /// Devices and processes that a fault on a device affects, each in the order of discovery.
    fn affected(&self, table: &MutexGuard<'_, Table>, first: usize) -> (Vec<usize>, Vec<i32>) {
        let mut devices = self.beside(first);
        let mut processes = Vec::new();
        let mut done = 0;
        while let Some(&device) = devices.get(done) {
            done += 1;
            for context in in_order(table, device) {
                self.log(&format_args!(
                    "Client {{PID: {}, Context ID: {}}} on device {device} to be torn down",
                    context.pid, context.number
                ));
            }
            for pid in in_order(table, device).map(|context| context.pid) {
                if processes.contains(&pid) {
                    continue;
                }
                processes.push(pid);
                self.log(&format_args!(
                    "All clients belonging to error trigging process {pid} will be torn down"
                ));
                for context in table.of_process(pid) {
                    self.log(&format_args!(
                        "Client {{PID: {pid}, Context ID: {}}} on the error-trigging process {pid} to be torn down",
                        context.number
                    ));
                    for device in self.beside(context.device) {
                        if !devices.contains(&device) {
                            devices.push(device);
                        }
                    }
                }
            }
        }
        (devices, processes)
    }

    /// Returns a device and the other MLOPart devices of its GPU: that a fault stays in one is documented nowhere.
    fn beside(&self, device: usize) -> Vec<usize> {
        let parent = |device: usize| match &self.gpus[device].part {
            Some(Part::Mlo { parent, .. }) => Some(parent),
            _ => None,
        };
        let others = (0..self.gpus.len()).filter(|&other| other != device && parent(other) == parent(device));
        let others = others.filter(|_| parent(device).is_some());
        std::iter::once(device).chain(others).collect()
    }

    /// A context left a device: when it was the last one, a pending reset takes place.
    pub(super) fn recover(&self, table: &mut MutexGuard<'_, Table>, device: usize) {
        if table.resetting.contains(&device) && table.on_device(device).next().is_none() {
            self.log(&format_args!("Destroy server context on device {device} ({})", self.gpus[device].name));
            table.resetting.remove(&device);
            table.destroyed.insert(device);
        }
    }
}

/// The contexts on a device in the order of a fault's lists, recorded (23): the first to connect, then from the last on.
fn in_order(table: &Table, device: usize) -> impl Iterator<Item = &Context> {
    let mut contexts: Vec<&Context> = table.on_device(device).collect();
    contexts.get_mut(1..).unwrap_or_default().reverse();
    contexts.into_iter()
}
