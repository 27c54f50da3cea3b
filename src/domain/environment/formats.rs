//! The environment of a tenant's processes as others take it: JSON, containers, units.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::quoted;

/// The variables and what is to be unset, as the API gives them.
pub fn as_json(variables: &BTreeMap<String, String>, unset: &[String]) -> String {
    let json = serde_json::json!({ "variables": variables, "unset": unset });
    format!("{json:#}\n")
}

/// Options for `docker run` in a shell, each on a line of its own; a container has none of the host's variables to unset.
pub fn as_container_options(variables: &BTreeMap<String, String>) -> String {
    let lines: Vec<String> =
        variables.iter().map(|(name, value)| format!("--env {name}={}", quoted(value))).collect();
    format!("{}\n", lines.join(" \\\n"))
}

/// A file for `docker run --env-file`, which takes all behind the first `=` as it stands: `None` where a value has a line break,
/// which such a file cannot hold.
pub fn as_env_file(variables: &BTreeMap<String, String>) -> Option<String> {
    let whole = variables.values().all(|value| !value.contains(['\n', '\r']));
    let line = |(name, value): (&String, &String)| format!("{name}={value}");
    whole.then(|| variables.iter().map(line).collect::<Vec<_>>().join("\n") + "\n")
}

/// Lines for the `[Service]` section of a unit.
pub fn as_unit(variables: &BTreeMap<String, String>, unset: &[String]) -> String {
    let mut lines = String::new();
    if !unset.is_empty() {
        let _ = writeln!(lines, "UnsetEnvironment={}", unset.join(" "));
    }
    for (name, value) in variables {
        let _ = writeln!(lines, "Environment=\"{name}={}\"", in_unit(value));
    }
    lines
}

/// A value inside double quotes in a unit: systemd.syntax(7) for the backslash, systemd.unit(5) for the percent sign.
fn in_unit(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for letter in value.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '%' => text.push_str("%%"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            letter => text.push(letter),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("X".to_owned(), value.to_owned())])
    }

    #[test]
    fn options_come_out_of_a_shell_as_they_went_in() {
        for value in ["plain", "", "two words", "it's", "$HOME", "GPU-1=4096M,GPU-2=4096M", "a\nb"] {
            let options = as_container_options(&one(value));
            let script = format!("set -- {options}\nprintf '%s|%s' \"$1\" \"$2\"");
            let out = std::process::Command::new("sh").arg("-c").arg(script).output().expect("sh runs");
            assert_eq!(String::from_utf8_lossy(&out.stdout), format!("--env|X={value}"));
        }
        let two = BTreeMap::from([("A".to_owned(), "1".to_owned()), ("B".to_owned(), "2".to_owned())]);
        assert_eq!(as_container_options(&two), "--env A=1 \\\n--env B=2\n");
    }

    #[test]
    fn a_file_takes_values_as_they_stand_and_no_line_break() {
        assert_eq!(as_env_file(&one("it's $HOME")).as_deref(), Some("X=it's $HOME\n"));
        assert_eq!(as_env_file(&one("a\nb")), None);
    }

    #[test]
    fn a_unit_has_nothing_that_systemd_would_read_otherwise() {
        let text = as_unit(&one("50% of \"it\" \\ $HOME"), &["Y".to_owned(), "Z".to_owned()]);
        assert_eq!(text, "UnsetEnvironment=Y Z\nEnvironment=\"X=50%% of \\\"it\\\" \\\\ $HOME\"\n");
        assert_eq!(as_unit(&one("1"), &[]), "Environment=\"X=1\"\n");
    }

    #[test]
    fn json_is_what_the_api_gives() {
        let read: serde_json::Value =
            serde_json::from_str(&as_json(&one("a\"b"), &["Y".to_owned()])).expect("JSON");
        assert_eq!(read, serde_json::json!({ "variables": { "X": "a\"b" }, "unset": ["Y"] }));
    }
}
