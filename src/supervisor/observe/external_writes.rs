//! Settings that another program wrote last, according to control.log. Pure.
//!
//! Getters round: from 1 GiB on a memory limit is printed in whole GiB, and a percentage with one decimal. A value that
//! another program writes may thus read like the manager's own. control.log has each command as it was sent, in the order in
//! which the daemon took them; a later write of the manager ends the doubt. The log is only a hint, since anybody may write
//! there: a forged line costs one write of the desired value.

use crate::domain::difference::SettingDifference;
use crate::domain::memory::MIB;

/// Most settings that are remembered: anybody can write to the log, and memory is limited.
const KEPT: usize = 256;

/// Memory limit that another program wrote, as MPS understood it: bytes, or no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExternalLimit(pub(crate) Option<u64>);

/// Settings that another program wrote last, with their values.
#[derive(Debug, Default)]
pub(crate) struct ExternalWrites {
    values: Vec<(SettingDifference, String)>,
    /// Setting of the last command of another program, and its value before, in case the command is refused.
    last: Option<(SettingDifference, Option<String>)>,
    /// True if another program wrote since the manager's last session began.
    pub(crate) newer: bool,
}

impl ExternalWrites {
    /// Takes a command that another program sent.
    pub(crate) fn by_others(&mut self, line: &str) {
        self.last = None;
        let Some((setting, value)) = setting(line) else { return };
        self.newer = true;
        self.last = Some((setting.clone(), self.value(&setting).map(str::to_owned)));
        self.values.retain(|(known, _)| *known != setting);
        if self.values.len() < KEPT {
            self.values.push((setting, value.chars().take(40).collect()));
        }
    }

    /// Takes a command that the manager sent.
    pub(crate) fn by_manager(&mut self, line: &str) {
        self.last = None;
        if let Some((setting, _)) = setting(line) {
            self.values.retain(|(known, _)| *known != setting);
        }
    }

    /// Reverts the last command of another program, which the daemon refused.
    pub(crate) fn refused(&mut self) {
        let Some((setting, before)) = self.last.take() else { return };
        self.values.retain(|(known, _)| *known != setting);
        self.values.extend(before.map(|value| (setting, value)));
    }

    /// Forgets everything, for another control process.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets servers that are gone.
    pub(crate) fn prune(&mut self, alive: impl Fn(u32) -> bool) {
        self.values.retain(|(setting, _)| match setting {
            SettingDifference::ServerPercentage(server) | SettingDifference::ServerMemory(server, _) => {
                alive(*server)
            }
            _ => true,
        });
    }

    fn value(&self, setting: &SettingDifference) -> Option<&str> {
        let found = self.values.iter().find(|(known, _)| known == setting);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the memory limit that another program wrote since the manager's own last write.
    pub(crate) fn memory(&self, setting: &SettingDifference) -> Option<ExternalLimit> {
        self.value(setting).map(|value| ExternalLimit(limit(value)))
    }

    /// Returns true if another program wrote a percentage with decimals that the getter does not print.
    pub(crate) fn hides_decimals(&self, setting: &SettingDifference) -> bool {
        let Some(value) =
            self.value(setting).and_then(|value| value.trim_end_matches('%').parse::<f64>().ok())
        else {
            return false;
        };
        let tenths = value * 10.0;
        (0.0..=1000.0).contains(&tenths) && (tenths - tenths.round()).abs() > 1e-6
    }
}

/// Returns the setting that a command writes, and its value, if the setting's getter rounds.
///
/// A default limit that names its GPU by UUID is kept apart from the one that names it by number (FACTS.md, "Limits"), and a
/// server writes the exact bytes of its own to server.log, so neither matters here.
fn setting(line: &str) -> Option<(SettingDifference, &str)> {
    let mut words = line.split_ascii_whitespace();
    let command = words.next()?;
    let mut number = || words.next()?.parse::<u32>().ok();
    let setting = match command {
        "set_default_active_thread_percentage" => SettingDifference::DefaultPercentage,
        "set_active_thread_percentage" => SettingDifference::ServerPercentage(number()?),
        "set_default_device_pinned_mem_limit" => {
            SettingDifference::DefaultMemory(usize::try_from(number()?).ok()?)
        }
        "set_device_pinned_mem_limit" => {
            let server = number()?;
            SettingDifference::ServerMemory(server, usize::try_from(number()?).ok()?)
        }
        _ => return None,
    };
    Some((setting, words.next()?))
}

/// Parses a limit as MPS does: leading digits, in MiB unless a G follows. Without digits, or for 0, there is none (recording 03).
fn limit(value: &str) -> Option<u64> {
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = value.split_at(digits);
    let factor = if unit.starts_with(['g', 'G']) { 1024 * MIB } else { MIB };
    number.parse::<u64>().ok()?.checked_mul(factor).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_writer_of_a_setting_counts() {
        let mut writes = ExternalWrites::default();
        writes.by_others("set_default_device_pinned_mem_limit 0 1999M");
        assert_eq!(
            writes.memory(&SettingDifference::DefaultMemory(0)),
            Some(ExternalLimit(Some(1999 * MIB)))
        );
        assert_eq!(writes.memory(&SettingDifference::DefaultMemory(1)), None);
        writes.by_manager("set_default_device_pinned_mem_limit 1 1025M");
        assert!(writes.memory(&SettingDifference::DefaultMemory(0)).is_some());
        writes.by_manager("set_default_device_pinned_mem_limit 0 1025M");
        assert_eq!(writes.memory(&SettingDifference::DefaultMemory(0)), None);
        writes.by_others("set_device_pinned_mem_limit 511 0 0");
        assert_eq!(writes.memory(&SettingDifference::ServerMemory(511, 0)), Some(ExternalLimit(None)));
        writes.prune(|server| server != 511);
        assert_eq!(writes.memory(&SettingDifference::ServerMemory(511, 0)), None);
    }

    #[test]
    fn a_refused_write_changes_nothing() {
        let mut writes = ExternalWrites::default();
        writes.by_others("set_default_device_pinned_mem_limit 0 1999M");
        writes.refused();
        assert_eq!(writes.memory(&SettingDifference::DefaultMemory(0)), None);
        writes.by_others("set_default_device_pinned_mem_limit 0 1999M");
        for refused in ["set_default_client_priority 1", "set_default_device_pinned_mem_limit 0 1100M"] {
            writes.by_others(refused);
            writes.refused();
            assert_eq!(
                writes.memory(&SettingDifference::DefaultMemory(0)),
                Some(ExternalLimit(Some(1999 * MIB))),
                "{refused}"
            );
        }
    }

    #[test]
    fn limits_are_read_as_mps_reads_them() {
        let read = |value| limit(value).map(|bytes| bytes / MIB);
        for (value, mib) in [
            ("4G", 4096),
            ("4g", 4096),
            ("4096M", 4096),
            ("4GB", 4096),
            ("512K", 512),
            ("1T", 1),
            ("1.5G", 1),
        ] {
            assert_eq!(read(value), Some(mib), "{value}");
        }
        for value in ["0", "banana", "-1", "99999999999999999999"] {
            assert_eq!(read(value), None, "{value}");
        }
    }

    #[test]
    fn decimals_that_are_not_printed_are_noticed() {
        let mut writes = ExternalWrites::default();
        for (value, hidden) in
            [("43.94", true), ("43.9", false), ("50%", false), ("150.55", false), ("nan", false)]
        {
            writes.by_others(&format!("set_active_thread_percentage 511 {value}"));
            assert_eq!(writes.hides_decimals(&SettingDifference::ServerPercentage(511)), hidden, "{value}");
        }
    }
}
