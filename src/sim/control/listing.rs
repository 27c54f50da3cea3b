//! The commands that list clients and devices, in the columns recorded.

use super::super::profile::{Gpu, Part};
use super::super::protocol::{Answer, ClientRow, Order, ui};
use super::commands::number;
use super::daemon::{Daemon, Session};

impl Daemon {
    fn clients(&mut self) -> Vec<ClientRow> {
        match self.order(&Order::Clients) {
            Some(Answer::Clients(rows)) => rows,
            _ => Vec::new(),
        }
    }

    pub(super) fn ps(&mut self, session: &Session, args: &[&str]) {
        let named =
            args.first().is_some_and(|word| *word == "-p").then(|| args.get(1).map_or(0, |pid| number(pid)));
        if let Some(pid) = named.filter(|pid| !self.is_server(*pid)) {
            // Twice and an empty line, as recorded.
            let text = format!("Server {pid} not found");
            self.say(session, &text);
            self.say(session, &text);
            if self.is_old() {
                session.send(ui::TEXT, b"\n");
            } else {
                self.say(session, "");
            }
            return;
        }
        let Some(server) = self.ready_server() else {
            self.say(session, "Server not found");
            return;
        };
        let rows: Vec<_> = self.clients().into_iter().filter(|row| !row.contexts.is_empty()).collect();
        if rows.is_empty() {
            return;
        }
        // Documented of a server with MLOPart devices; nothing is known of others since.
        let mlopart = self.server.as_ref().is_some_and(|server| server.mlopart);
        let line = |[pid, id, server, device, namespace, command]: [&str; 6], attributes: &str| {
            let attributes = if mlopart { attributes } else { "" };
            format!("{pid:<10}{id:<10}{server:<15}{device:<26}{namespace:<15}{command:<15}{attributes}")
        };
        self.say(session, &line(["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"], "ATTRIBUTES"));
        for row in rows {
            let device = row.contexts.first().and_then(|&(_, ordinal)| self.device(ordinal));
            let attributes = device.map_or("", attributes);
            let device = device.map_or("", |gpu| short(gpu));
            let [pid, id, namespace] = [row.pid.to_string(), row.id.to_string(), row.namespace.to_string()];
            let server = server.to_string();
            self.say(session, &line([&pid, &id, &server, device, &namespace, &row.command], attributes));
        }
    }

    pub(super) fn client_list(&mut self, session: &Session, pid: Option<&str>) {
        if pid.is_none() && !self.is_old() {
            self.say(session, "A server PID is required");
        } else if self.found(session, pid) {
            for row in self.clients().iter().filter(|row| !row.contexts.is_empty()) {
                self.say(session, &row.pid.to_string());
            }
        }
    }

    pub(super) fn device_client_list(&mut self, session: &Session, pid: Option<&str>) {
        if pid.is_some() && !self.found(session, pid) || self.ready_server().is_none() {
            return;
        }
        let rows = self.clients();
        let devices = self.server.as_ref().map_or(0, |server| server.gpus.len());
        for ordinal in (0..devices).rev() {
            let mut clients = rows
                .iter()
                .flat_map(|row| row.contexts.iter().map(move |&(context, device)| (row.pid, context, device)))
                .filter(|&(_, _, device)| device == ordinal)
                .peekable();
            if clients.peek().is_some() {
                let name = self.device(ordinal).map_or("", |gpu| gpu.name.as_str());
                // The bus ids are made of the ordinal and wrong, recorded.
                self.say(session, &format!("[{ordinal}] 00:{ordinal:02}.0, {name}"));
            }
            for (pid, context, _) in clients {
                self.say(session, &format!("{pid}.{context}"));
            }
        }
    }

    pub(super) fn device_query(&mut self, session: &Session, args: &[&str]) {
        let csv = args.contains(&"--csv");
        let wanted = args.iter().copied().find(|word| !word.starts_with('-'));
        if wanted.is_some() && !self.found(session, wanted) {
            return;
        }
        if wanted.is_none() {
            self.say(session, "Default");
            self.device_table(session, csv, &self.gpus);
        }
        if let Some(pid) = self.ready_server() {
            let _ = self.order(&Order::DeviceQuery);
            let gap = if wanted.is_none() { "\n" } else { "" };
            self.say(session, &format!("{gap}Server {pid}"));
            let devices = self.server.as_ref().map(|server| server.gpus.clone()).unwrap_or_default();
            self.device_table(session, csv, &devices);
        }
    }

    /// Prints devices in the form recorded of 13.0. On a host with MLOPart devices it has their UUIDs cut, a row without an ordinal for a GPU
    /// that stands for its devices, and attributes, as documented.
    fn device_table(&self, session: &Session, csv: bool, devices: &[Gpu]) {
        let documented = self.gpus.iter().any(|gpu| gpu.mlo_sms.is_some());
        let line = |cells: [&str; 5]| {
            if csv {
                return cells.join(",");
            }
            let [ordinal, bus, uuid, name, attributes] = cells;
            format!("{ordinal:<16}{bus:<15}{uuid:<42}{name:<34}{attributes}").trim_end().to_owned()
        };
        self.say(session, &line(["Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes"]));
        for (ordinal, gpu) in devices.iter().enumerate() {
            let parent = match &gpu.part {
                Some(Part::Mlo { parent, number: 0 }) => {
                    self.gpus.iter().find(|listed| listed.uuid == *parent)
                }
                _ => None,
            };
            if let Some(parent) = parent {
                self.say(session, &line(["N/A", &bus(parent), short(parent), &parent.name, "M"]));
            }
            let (uuid, attributes) =
                if documented { (short(gpu), attributes(gpu)) } else { (gpu.uuid.as_str(), "N/A") };
            self.say(session, &line([&ordinal.to_string(), &bus(gpu), uuid, &gpu.name, attributes]));
        }
    }
}

/// Returns the beginning of a UUID that some lists print.
fn short(gpu: &Gpu) -> &str {
    gpu.uuid.get(..22).unwrap_or(&gpu.uuid)
}

/// Returns the attributes of a device as documented: `MD` for an MLOPart device.
fn attributes(gpu: &Gpu) -> &'static str {
    if matches!(gpu.part, Some(Part::Mlo { .. })) { "MD" } else { "" }
}

/// `00000000:00:06.0` as the daemon writes it: `0000:00.06.00`.
fn bus(gpu: &Gpu) -> String {
    let short = gpu.pci_bus_id.get(4..).unwrap_or_default();
    let mut parts = short.split([':', '.']);
    let mut part = || parts.next().unwrap_or_default();
    format!("{}:{}.{}.0{}", part(), part(), part(), part())
}
