//! Output formats, colour, and the man pages.

use serde_json::{Value, json};

use super::{json_of, ok};
use crate::harness::{InProcess, stderr_of};

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
fn terminated_clients_are_one_document() {
    let host = InProcess::ready();
    let terminate = ["client", "terminate", "--tenant", "demo"];
    assert_eq!(json_of(&host, &terminate), json!([]));
    let _client = host.run_client("demo");
    let ended = json_of(&host, &terminate);
    assert_eq!(ended.as_array().map(Vec::len), Some(1), "{ended}");
    assert_eq!(ended[0]["state"], "succeeded", "{ended}");
}

#[test]
fn binary_file_is_no_document() {
    let host = InProcess::new("");
    let file = host.dir().join("binary");
    std::fs::write(&file, [0xff, 0xfe, 0]).expect("written");
    let output = host.cli(&["diff", "-f", file.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr_of(&output).contains("binary is not a text in UTF-8: "), "{}", stderr_of(&output));
}

#[test]
fn wrong_line_is_shown_with_its_file() {
    let host = InProcess::new("");
    let file = host.dir().join("h2.yaml");
    std::fs::write(&file, "version: v1\ntenants:\n  a: {daemon: gpu0, uid: nobody}\n").expect("written");
    let output = host.cli(&["diff", "-f", file.to_str().expect("text")]);
    let words = stderr_of(&output);
    assert!(words.contains(&format!("--> {}:3:26", file.display())), "{words}");
    assert!(words.contains("cannot be read: line 3 column 26: a whole number from 0 is"), "{words}");
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
