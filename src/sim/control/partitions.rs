//! `sm_partition` and `lspart`: for 13.1 in the words of NVIDIA's documentation, from 13.2 on as others recorded them (27), to the blank. Where
//! neither says anything the words are made up.

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
                let name = match envvar::position(&self.listed(), device)
                    .and_then(|ordinal| self.gpus.get(ordinal))
                {
                    Some(gpu) => format!("{}/{id}", gpu.uuid),
                    None => format!("{device}/{id}"),
                };
                self.remove_partition(session, &name);
            }
            _ => self.say(session, "Invalid command format."),
        }
    }

    fn add_partition(&mut self, session: &Session, device: &str, chunks: &str) {
        let Some(ordinal) = envvar::position(&self.listed(), device) else {
            self.say(session, &format!("Invalid device {device}"));
            return;
        };
        let chunks = chunks.parse().unwrap_or(0);
        match self.partitions.add(ordinal, chunks) {
            Ok(name) if self.narrow() => self.say(session, &format!("Partition {name} created")),
            Ok(name) => self.say(session, &name),
            Err(AddError::DoesNotFit) if self.narrow() => self.say(session, "Failed to create partition "),
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
            Ok(()) if self.narrow() => {
                let id = name.split_once('/').map_or(name, |(_, id)| id);
                self.say(session, &format!("Partition {id} removed"));
            }
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
        let mut lines = if narrow {
            NARROW_HEADS.map(|cells| line(narrow, cells)).to_vec()
        } else {
            let head = line(narrow, HEAD);
            vec![head.clone(), "-".repeat(head.len())]
        };
        for mut summary in self.partitions.summaries() {
            let short = &summary.uuid[..if narrow { 6 } else { 12 }];
            if narrow {
                // The newest first.
                summary.partitions.reverse();
            }
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
const NARROW_HEADS: [[&str; 7]; 2] = [
    ["GPU", "Partition", "free", "used", "free", "used", "clients"],
    ["", "", "chunks", "chunks", "SM", "SM", ""],
];

/// One row: 7 columns with `-` for what does not apply, or the same columns with blanks to their ends.
fn line(narrow: bool, cells: [&str; 7]) -> String {
    let widths = if narrow { [21, 37, 9, 9, 7, 7, 6] } else { [14, 38, 12, 12, 10, 10, 0] };
    let mut text = String::new();
    for (cell, width) in cells.into_iter().zip(widths) {
        let cell = if narrow && cell == "-" { "" } else { cell };
        let _ = write!(text, "{cell:<width$}");
    }
    if narrow { text } else { text.trim_end().to_owned() }
}
