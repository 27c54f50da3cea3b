//! Tenants that a layout moves to partitions that others still use.

use serde_json::json;

use super::layouts::{apply, host, post, write};
use super::log_pages::page;
use super::partition_tenants::{bound, tenants};
use crate::harness::{InProcess, Served, eventually, stderr_of};

/// No process of the tenant `jobs` is started, and the refusal has these words.
fn refused(host: &Served, words: &[&str]) {
    let run = host.run("jobs", &["true"]);
    assert_eq!(run.status.code(), Some(2), "{}", stderr_of(&run));
    for word in words {
        assert!(stderr_of(&run).contains(word), "{word} in {}", stderr_of(&run));
    }
}

#[test]
fn swapped_tenants_are_planned_and_not_ready() {
    let host: InProcess = host();
    tenants(&host, &["web", "jobs"]);
    write(&host, "prod", &[bound("left", 7, &["web"]), bound("right", 7, &["jobs"])]);
    apply(&host, "prod", &json!({}));
    let mut run = host.run_command("web", &["sleep", "600"]).spawn().unwrap();
    let pid = u64::from(run.id());
    eventually("it is admitted", || {
        let swapped = json!([bound("left", 7, &["jobs"]), bound("right", 7, &["web"])]);
        let plan = post(&host, "prod", "plan", &json!({"layout": {"steps": swapped}})).ok();
        assert_eq!(plan["in_force"], false, "{plan}");
        let moves = plan["moves"].as_array().unwrap();
        assert_eq!((moves.len(), &moves[0]["tenant"]), (2, &json!("jobs")), "{plan}");
        assert_eq!((&moves[0]["from"], &moves[0]["to"]), (&json!("right"), &json!("left")));
        let holders = moves[0]["held_by"].as_array().unwrap();
        holders.iter().any(|one| one["tenant"] == "web").then_some(())
    });
    write(&host, "prod", &[bound("left", 7, &["jobs"]), bound("right", 7, &["web"])]);
    let text = host.cli(&["layout", "plan", "prod", "--daemon", "gpu1", "--gpu", "0=1"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("tenant jobs moves from partition right to partition left"), "{text}");
    assert!(text.contains(&format!("occupied by {pid}-")) && !text.contains("nothing to do"), "{text}");

    apply(&host, "prod", &json!({}));
    let ready = |tenant: &str| {
        host.api().get(&format!("/api/v1/tenants/{tenant}")).ok()["status"]["conditions"][0].clone()
    };
    refused(&host, &["runs in it or may join it", &pid.to_string()]);
    let condition = ready("jobs");
    assert_eq!((&condition["status"], &condition["reason"]), (&json!(false), &json!("PartitionInUse")));
    let message = condition["message"].as_str().unwrap();
    assert!(message.contains(&format!("{pid}-")) && message.contains("of tenant web"), "{message}");
    assert_eq!(ready("web")["status"], true);
    run.kill().unwrap();
    run.wait().unwrap();
    // That a process has ended is seen a moment later.
    eventually("jobs is ready", || (ready("jobs")["status"] == true).then_some(()));
    let jobs = host.api().get("/api/v1/tenants/jobs").ok();
    let held = &jobs["status"]["effective"]["threads"]["partitions"];
    assert_eq!((&held[0]["partition"], &held[0]["sms"]), (&json!("left"), &json!(56)), "{jobs}");

    // The same on the command line, with the SMs of the partitions.
    let status = String::from_utf8_lossy(&host.cli(&["status"]).stdout).into_owned();
    assert!(status.contains("56 in left") && status.contains("56 in right"), "{status}");
    assert!(!status.contains("? of"), "{status}");
    // And in the console's list.
    let listed = page(&host, "/tenants");
    for (tenant, partition) in [("jobs", "left"), ("web", "right")] {
        let row = listed.split("<tr>").find(|row| row.contains(&format!("href=\"/tenants/{tenant}\"")));
        let row = row.unwrap_or_else(|| panic!("no {tenant}: {listed}"));
        assert!(row.contains(&format!("partition {partition}<")) && row.contains(", 56 SMs<"), "{row}");
    }
    // One refusal has one exit code, and an unknown name another.
    for verb in ["plan", "apply", "assert"] {
        for (name, daemon, code) in [("prod", "gpu0", 1), ("nothing", "gpu1", 2)] {
            let refused = host.cli(&["layout", verb, name, "--daemon", daemon]);
            assert_eq!(refused.status.code(), Some(code), "{verb} {name}: {}", stderr_of(&refused));
        }
    }

    // What else keeps a tenant out is said, too.
    assert_eq!(host.api().post("/api/v1/daemons/gpu1/cordon", &json!({})).status, 200);
    host.await_phase("gpu1", "ready");
    refused(&host, &["takes no new clients"]);
    assert_eq!((&ready("jobs")["status"], &ready("jobs")["reason"]), (&json!(false), &json!("Cordoned")));
}
