//! `sm_partition` and `lspart`. Nothing here is recorded: the words are NVIDIA's documentation's for 13.1 and as
//! documented by others for 13.2, and where neither says anything they are made up.

use std::fmt::Write as _;

use super::super::envvar;
use super::super::partition::{AddError, RemoveError, names};
use super::super::profile::NARROW_LSPART_SINCE;
use super::super::protocol::{Answer, ClientRow, Order};
use super::daemon::{Daemon, Session};

impl Daemon {
    pub(super) fn sm_partition(&mut self, session: &Session, args: &[&str]) {
        if !self.mode.partitioned {
            self.say(session, "Static SM partitioning is not enabled");
            return;
        }
        match args {
            ["add", device, chunks] => self.add_partition(session, device, chunks),
            ["rm", name] => self.remove_partition(session, name),
            ["rm", device, id] => {
                let name =
                    match envvar::position(&self.devices(), device).and_then(|ordinal| self.gpu(ordinal)) {
                        Some(gpu) => format!("{}/{id}", gpu.uuid),
                        None => format!("{device}/{id}"),
                    };
                self.remove_partition(session, &name);
            }
            _ => self.say(session, "Invalid command format."),
        }
    }

    fn add_partition(&mut self, session: &Session, device: &str, chunks: &str) {
        let Some(ordinal) = envvar::position(&self.devices(), device) else {
            self.say(session, &format!("Invalid device {device}"));
            return;
        };
        let chunks = chunks.parse().unwrap_or(0);
        match self.partitions.add(ordinal, chunks) {
            Ok(name) if self.narrow() => self.say(session, &format!("Partition {name} created")),
            Ok(name) => self.say(session, &name),
            Err(AddError::DoesNotFit) => self.say(
                session,
                &format!(
                    "Failed to fulfill the requested SM partition of {chunks} chunks, error \
                     CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
                ),
            ),
        }
    }

    fn remove_partition(&mut self, session: &Session, name: &str) {
        let used = self.users(name) > 0;
        match self.partitions.remove(name, used) {
            Ok(()) if self.narrow() => self.say(session, &format!("Partition {name} removed")),
            Ok(()) => {}
            Err(RemoveError::Unknown) => self.say(session, &format!("Partition {name} not found")),
            Err(RemoveError::InUse) => {
                self.say(
                    session,
                    &format!("Partition {name} in use. Terminate all clients before removing."),
                );
            }
        }
    }

    /// Clients with a context in a partition.
    fn users(&mut self, name: &str) -> usize {
        if self.ready_server().is_none() {
            return 0;
        }
        let Some(device) = self.partitions.device(name) else { return 0 };
        let Some(Answer::Clients(rows)) = self.order(&Order::Clients) else { return 0 };
        let is_in = |row: &&ClientRow| {
            row.partition.iter().any(|variable| names(variable).any(|named| named == name))
                && row.contexts.iter().any(|(_, on)| *on == device)
        };
        rows.iter().filter(is_in).count()
    }

    pub(super) fn lspart(&mut self, session: &Session) {
        if !self.mode.partitioned {
            self.say(session, "Static SM partitioning is not enabled");
            return;
        }
        let narrow = self.narrow();
        let mut lines = vec![head(narrow)];
        lines.push("-".repeat(lines[0].len()));
        for summary in self.partitions.summaries() {
            let short = &summary.uuid[..12];
            let [free, used] = [summary.free_chunks, summary.used_chunks].map(|n| n.to_string());
            let [free_sms, used_sms] = [summary.free_sms, summary.used_sms].map(|n| n.to_string());
            lines.push(line(narrow, [short, "-", &free, &used, &free_sms, &used_sms, "-"]));
            for part in summary.partitions {
                let clients = if self.users(&part.name) > 0 { "Yes" } else { "No" };
                let [chunks, sms] = [part.chunks, part.sms].map(|n| n.to_string());
                lines.push(line(narrow, [short, &part.id, "-", &chunks, "-", &sms, clients]));
            }
        }
        for line in lines {
            self.say(session, &line);
        }
    }

    fn narrow(&self) -> bool {
        self.world.host().binary_version >= NARROW_LSPART_SINCE
    }
}

const HEAD: [&str; 7] = ["GPU", "Partition", "Free Chunk", "Used Chunk", "Free SM", "Used SM", "Clients"];

fn head(narrow: bool) -> String {
    line(narrow, HEAD)
}

/// One row: 7 columns with `-` for what does not apply, or the same columns with blanks.
fn line(narrow: bool, cells: [&str; 7]) -> String {
    let widths = [14, 38, 12, 12, 10, 10, 0];
    let mut text = String::new();
    for (cell, width) in cells.into_iter().zip(widths) {
        let cell = if narrow && cell == "-" { "" } else { cell };
        let _ = write!(text, "{cell:<width$}");
    }
    text.trim_end().to_owned()
}
