//! Facts about the node for node-feature-discovery, which makes labels of them: a file of its directory `features.d`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use crate::service::daemons::DaemonView;

/// Writes the facts to a file, unless it says so already.
pub(super) fn keep(file: &Path, daemons: &[DaemonView]) -> io::Result<()> {
    let text = facts(daemons);
    if fs::read_to_string(file).is_ok_and(|now| now == text) {
        return Ok(());
    }
    // A name that begins with a dot is not read.
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let new = file.with_file_name(format!(".{name}.new"));
    fs::write(&new, text)?;
    fs::rename(&new, file)
}

/// One fact in a line: what all daemons have in common, or `mixed`.
fn facts(daemons: &[DaemonView]) -> String {
    let facts = [
        fact("strategy", daemons, |daemon| Some(daemon.spec.provisioning.strategy.as_str().to_owned())),
        fact("clients-per-gpu", daemons, |daemon| {
            daemon.spec.provisioning.expected_clients.map(|clients| clients.to_string())
        }),
        fact("layout", daemons, |daemon| daemon.spec.layout.as_ref().map(|layout| layout.name.to_string())),
        fact("layout-version", daemons, |daemon| {
            daemon.spec.layout.as_ref().map(|layout| layout.version.to_string())
        }),
    ];
    facts.into_iter().flatten().collect()
}

/// A fact that no daemon states is left out.
fn fact(name: &str, daemons: &[DaemonView], of: impl Fn(&DaemonView) -> Option<String>) -> Option<String> {
    let values: BTreeSet<Option<String>> = daemons.iter().map(of).collect();
    let value = match values.len() {
        1 => values.into_iter().next().flatten()?,
        0 => return None,
        _ => "mixed".to_owned(),
    };
    Some(format!("mps-manager.dev/{name}={value}\n"))
}

#[cfg(test)]
mod tests {
    use super::super::places::tests::daemon;
    use super::*;

    #[test]
    fn common_facts_are_written_once() {
        let uniform = r#"{"provisioning": {"strategy": "uniform", "expected_clients": 4}}"#;
        let same = [daemon("a", &[0], uniform), daemon("b", &[1], uniform)];
        let text = facts(&same);
        assert_eq!(text, "mps-manager.dev/strategy=uniform\nmps-manager.dev/clients-per-gpu=4\n");
        let layout = r#"{"layout": {"name": "night", "version": 3}}"#;
        let text = facts(&[daemon("a", &[0], layout)]);
        assert_eq!(
            text,
            "mps-manager.dev/strategy=none\nmps-manager.dev/layout=night\nmps-manager.dev/layout-version=3\n"
        );
        let mixed = facts(&[daemon("a", &[0], layout), daemon("b", &[1], uniform)]);
        assert!(mixed.lines().all(|line| line.ends_with("=mixed")) && mixed.lines().count() == 4, "{mixed}");
        assert_eq!(facts(&[]), "");

        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("mps-manager");
        keep(&file, &same).expect("written");
        assert_eq!(fs::read_to_string(&file).expect("there"), facts(&same));
        keep(&file, &[]).expect("written again");
        assert_eq!(fs::read_to_string(&file).expect("there"), "");
        assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 1, "nothing beside it");
    }
}
