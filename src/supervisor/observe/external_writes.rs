//! Settings that another program wrote last, according to control.log. Pure.
//!
//! Getters round: from 1 GiB on a memory limit is printed in whole GiB, and a percentage with one decimal. A value that
//! another program writes may thus read like the manager's own. control.log has each command as it was sent, in the order in
//! which the daemon took them; a later write of the manager ends the doubt. The log is only a hint, since anybody may write
//! there: a forged line costs one write of the desired value.

use std::collections::BTreeMap;

/// Most settings that are remembered: anybody can write to the log, and memory is limited.
const KEPT: usize = 256;

/// Commands of another program that set limits and percentages, each under its [`setting`].
#[derive(Debug, Default)]
pub(crate) struct ExternalWrites {
    commands: BTreeMap<String, String>,
    /// Setting of the last command of another program, and the command before it, in case the last is refused.
    last: Option<(String, Option<String>)>,
    /// True if another program wrote since the manager's last session began.
    pub(crate) newer: bool,
}

impl ExternalWrites {
    /// Takes a command that another program sent.
    pub(crate) fn by_others(&mut self, line: &str) {
        self.last = None;
        let Some(setting) = setting(line) else { return };
        self.newer = true;
        if self.commands.len() < KEPT || self.commands.contains_key(&setting) {
            let before = self.commands.insert(setting.clone(), line.chars().take(120).collect());
            self.last = Some((setting, before));
        }
    }

    /// Takes a command that the manager sent.
    pub(crate) fn by_manager(&mut self, line: &str) {
        self.last = None;
        setting(line).map(|setting| self.commands.remove(&setting));
    }

    /// Reverts the last command of another program, which the daemon refused.
    pub(crate) fn refused(&mut self) {
        let Some((setting, before)) = self.last.take() else { return };
        self.commands.remove(&setting);
        self.commands.extend(before.map(|command| (setting, command)));
    }

    /// Forgets everything, for another control process.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns true if another program has set what this command of the manager sets, and not to its value.
    pub(crate) fn undo(&self, command: &str) -> bool {
        let theirs = setting(command).and_then(|setting| self.commands.get(&setting));
        theirs.is_some_and(|theirs| theirs != command)
    }
}

/// Returns the setting that a command writes, if the setting's getter rounds: the command's words before the value.
///
/// A default limit that names its GPU by UUID is kept apart from the one that names it by number (FACTS.md, "Limits"), and a
/// server writes the exact bytes of its own to server.log, so the manager never writes either of them.
fn setting(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let named = match *words.first()? {
        "set_default_active_thread_percentage" => 1,
        "set_active_thread_percentage" | "set_default_device_pinned_mem_limit" => 2,
        "set_device_pinned_mem_limit" => 3,
        _ => return None,
    };
    (words.len() > named).then(|| words.iter().take(named).copied().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "set_default_device_pinned_mem_limit 0 1025M";

    #[test]
    fn last_writer_of_a_setting_counts() {
        let mut writes = ExternalWrites::default();
        writes.by_others("set_default_device_pinned_mem_limit  0 1999M");
        assert!(writes.undo(OURS));
        assert!(!writes.undo("set_default_device_pinned_mem_limit 1 1025M"));
        writes.by_manager("set_default_device_pinned_mem_limit 1 1025M");
        assert!(writes.undo(OURS));
        writes.by_manager(OURS);
        assert!(!writes.undo(OURS));
        writes.by_others("set_active_thread_percentage 511 43.94");
        assert!(writes.undo("set_active_thread_percentage 511 43.9"));
        assert!(!writes.undo("set_active_thread_percentage 512 43.9"));
        writes.by_others(OURS);
        assert!(!writes.undo(OURS), "the desired value");
    }

    #[test]
    fn a_refused_write_changes_nothing() {
        let mut writes = ExternalWrites::default();
        writes.by_others("set_default_device_pinned_mem_limit 0 1999M");
        writes.refused();
        assert!(!writes.undo(OURS));
        writes.by_others("set_default_device_pinned_mem_limit 0 1999M");
        for refused in ["set_default_client_priority 1", OURS] {
            writes.by_others(refused);
            writes.refused();
            assert!(writes.undo(OURS), "{refused}");
        }
    }
}
