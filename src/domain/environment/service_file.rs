//! The environment of a tenant as a file for `EnvironmentFile=` of a systemd unit.

use std::collections::BTreeMap;

/// First line of each file, which names its owner.
const HEADER: &str =
    "# Kept by mps-manager: replaced when the tenant changes, removed while it takes no new processes\n";

/// Writes a file for `EnvironmentFile=` (systemd.exec(5)): the tenant's variables, and the defaults of those that the unit may
/// set to other values, since such a file cannot unset any.
pub fn as_environment_file(
    variables: &BTreeMap<String, String>,
    defaults: &BTreeMap<String, String>,
) -> String {
    let all: BTreeMap<&String, &String> = defaults.iter().chain(variables).collect();
    let mut lines = HEADER.to_owned();
    for (name, value) in all {
        lines.push_str(name);
        lines.push_str("=\"");
        for letter in value.chars() {
            if matches!(letter, '"' | '\\' | '`' | '$') {
                lines.push('\\');
            }
            lines.push(letter);
        }
        lines.push_str("\"\n");
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn tenants_values_win_over_defaults() {
        let defaults = BTreeMap::from([("X".into(), "100".into()), ("Y".into(), String::new())]);
        let text = as_environment_file(&one("X", "GPU-1=4096M,GPU-2=4096M"), &defaults);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1..], ["X=\"GPU-1=4096M,GPU-2=4096M\"", "Y=\"\""]);
        assert!(lines[0].starts_with("# "));
    }

    #[test]
    fn values_are_quoted_as_a_shell_reads_them() {
        // systemd reads double quotes as a shell does, but expands nothing: both need the same characters escaped.
        for value in ["plain", "", "two words", "it's", "$HOME `id`", "back\\slash \"quoted\"", "50%", "a\nb"]
        {
            let text = as_environment_file(&one("X", value), &BTreeMap::new());
            let script = format!("{text}printf %s \"$X\"");
            let out = std::process::Command::new("sh").arg("-c").arg(script).output().expect("sh runs");
            assert_eq!(String::from_utf8_lossy(&out.stdout), value, "{text}");
        }
        assert!(as_environment_file(&one("X", "$a"), &BTreeMap::new()).ends_with("X=\"\\$a\"\n"));
    }
}
