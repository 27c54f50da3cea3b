//! Fatal GPU errors: which clients one client's fault takes down, and when the server is well again (recording 04).
//!
//! A fault spreads from device to device through the processes that use both, so everybody who shares a device
//! with an affected process is affected. The log blames the context that came to the device last, whichever it
//! was.

use std::sync::MutexGuard;

use super::super::protocol::Grant;
use super::table::{Server, Table};

impl Server {
    /// A context of `pid` faulted.
    pub(super) fn fault(&self, pid: i32, number: u32) {
        let mut table = self.table();
        let Some(device) =
            table.contexts.iter().find(|c| c.pid == pid && c.number == number).map(|context| context.device)
        else {
            return;
        };
        if let Some(last) = table.on_device(device).last() {
            self.log(&format_args!(
                "Client {{PID: {}, Context: {}}} encountered a fatal GPU error.",
                last.pid, last.number
            ));
        }
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
            let error = if shares { "cudaErrorIllegalAddress" } else { "cudaErrorLaunchFailure" };
            if let Some(process) = table.processes.iter().find(|process| process.pid == pid) {
                let _ = process.conn.send_message(&Grant::Sticky(error.to_owned()));
            }
        }
        table.resetting.extend(devices);
    }

    /// Devices and processes that a fault on a device affects, each in the order of discovery.
    fn affected(&self, table: &MutexGuard<'_, Table>, first: usize) -> (Vec<usize>, Vec<i32>) {
        let mut devices = vec![first];
        let mut processes = Vec::new();
        let mut done = 0;
        while let Some(&device) = devices.get(done) {
            done += 1;
            for context in table.on_device(device) {
                self.log(&format_args!(
                    "Client {{PID: {}, Context ID: {}}} on device {device} to be torn down",
                    context.pid, context.number
                ));
            }
            for pid in table.on_device(device).map(|context| context.pid) {
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
                    if !devices.contains(&context.device) {
                        devices.push(context.device);
                    }
                }
            }
        }
        (devices, processes)
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
