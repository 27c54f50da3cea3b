//! Output formats, colour, and the man pages.

use serde_json::Value;

use super::{json_of, ok};
use crate::harness::InProcess;

#[test]
fn every_list_has_every_format() {
    let host = InProcess::ready();
    let _client = host.run_client("demo");
    for list in [
        &["daemon", "list"][..],
        &["tenant", "list"],
        &["gpu", "list"],
        &["client", "list"],
        &["lease", "list", "demo"],
        &["audit", "list"],
    ] {
        let with = |format: &str| ok(&host, &[list, &["-o", format]].concat());
        let json: Value = serde_json::from_str(&with("json")).expect("JSON");
        let yaml: Value = serde_saphyr::from_str(&with("yaml")).expect("YAML");
        let count = json.as_array().expect("a list").len();
        assert!(count > 0 && yaml.as_array().expect("a list").len() == count, "{list:?}");
        assert_eq!(with("name").lines().count(), count, "{list:?}");
        let (table, wide) = (with("table"), with("wide"));
        assert_eq!((table.lines().count(), wide.lines().count()), (count + 1, count + 1), "{table}");
        assert!(wide.lines().next().expect("headings").starts_with(table.lines().next().expect("headings")));
    }
    // No UUID unless it is asked for.
    let uuid = json_of(&host, &["gpu", "list"])[0]["uuid"].as_str().expect("a UUID").to_owned();
    for list in ["daemon", "tenant", "gpu", "client"] {
        assert!(!ok(&host, &[list, "list"]).contains(&uuid), "{list}");
        assert!(ok(&host, &[list, "list", "-o", "wide"]).contains(&uuid), "{list}");
    }
}

#[test]
fn results_are_coloured_only_on_request() {
    let host = InProcess::ready();
    assert!(!ok(&host, &["tenant", "list"]).contains('\u{1b}'), "this is no terminal");
    assert!(ok(&host, &["tenant", "list", "--color", "always"]).contains("\u{1b}[32myes\u{1b}[0m"));
    assert!(!ok(&host, &["--color", "never", "tenant", "list"]).contains('\u{1b}'));
}

#[test]
fn every_command_has_a_manual_page() {
    let host = InProcess::new("");
    let directory = host.dir().join("man");
    ok(&host, &["man", directory.to_str().expect("text")]);
    for page in ["mps-manager.1", "mps-manager-tenant-set.1", "mps-manager-layout-replay.1"] {
        let text = std::fs::read_to_string(directory.join(page)).expect(page);
        assert!(text.contains(".TH "), "{page}");
    }
}
