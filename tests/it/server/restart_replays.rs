//! The record of what each restart of a daemon with a layout led to.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::layouts::{add, apply, partitions, remove, trapped_host, write};
use super::shares;
use crate::harness::{Host, InProcess, Served, Spring, Trap, eventually, is_alive, signal};

/// All replays, the newest first, once the newest of so many has completed.
fn replays(host: &Served, count: usize) -> Vec<Value> {
    eventually(&format!("{count} replays have come to their end"), || {
        let items = host.api().get("/api/v1/replays").ok()["items"].as_array().expect("a list").clone();
        let ended = items.first().is_some_and(|newest| newest["finished_at"].is_string());
        (ended && items.len() >= count).then_some(items)
    })
}

/// Waits until the daemon is ready in another process.
fn back(host: &Served, daemon: &str, before: u32) {
    eventually("another process is ready", || {
        let status = &host.daemon(daemon)["status"];
        (status["pid"].is_u64() && status["pid"] != before && status["phase"] == "ready").then_some(())
    });
}

/// Something that ends a daemon's control process.
type Happens = fn(&mut Host, &Trap);

#[test]
fn partition_restart_is_recorded_as_replay() {
    let trap = Trap::new();
    let mut host: Host = trapped_host(&trap, "");
    write(&host, "prod", &[add("web", 7), add("gap", 2), add("jobs", 5), remove("gap"), add("tail", 1)]);
    let applied = apply(&host, "prod", &json!({}));
    let made = partitions(&host);
    assert_eq!(host.api().get("/api/v1/replays").ok()["items"], json!([]), "an apply is none");
    let ids: Vec<Value> = applied["steps"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|step| {
            ["add ", "remove "].iter().any(|verb| step["name"].as_str().unwrap().starts_with(verb))
        })
        .map(|step| json!(step["outcome"].as_str().unwrap().split_once('/').unwrap().1))
        .collect();
    assert_eq!(ids.len(), 5);

    let events: [(&str, Happens); 4] = [
        ("it dies", |host, _| signal(host.daemon_pid("gpu1"), Signal::KILL)),
        ("another program restarts it", |host, _| {
            host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/restart?grace_s=1", &json!({})));
        }),
        ("the host is started again", |host, _| {
            let daemons = ["gpu0", "gpu1"].map(|daemon| host.daemon_pid(daemon));
            host.end_manager(Signal::KILL);
            for pid in daemons {
                signal(pid, Signal::KILL);
                eventually("it is gone", || (!is_alive(pid)).then_some(()));
            }
            host.execute_sql("UPDATE incarnations SET boot_id = 'b'");
            host.serve();
        }),
        ("it dies, and then its manager in the middle of the layout", |host, trap| {
            trap.set(Spring::Held, 3);
            signal(host.daemon_pid("gpu1"), Signal::KILL);
            trap.sprung();
            host.end_manager(Signal::KILL);
            trap.release();
            host.serve();
        }),
    ];
    for (number, (what, happens)) in events.into_iter().enumerate() {
        let before = host.daemon_pid("gpu1");
        happens(&mut host, &trap);
        back(&host, "gpu1", before);
        let all = replays(&host, number + 1);
        assert_eq!(all.len(), number + 1, "{what}");
        let newest = &all[0];
        assert_eq!(
            (&newest["cause"], &newest["verdict"]),
            (&json!("restart"), &json!("same")),
            "{what}: {newest}"
        );
        assert_eq!(
            (&newest["daemon"], &newest["layout"], &newest["version"]),
            (&json!("gpu1"), &json!("prod"), &json!(1))
        );
        assert_eq!((&newest["operation"], &newest["expected"]), (&json!(null), &json!(ids)), "{what}");
        let steps = newest["steps"].as_array().unwrap();
        // Before its own, the next manager removes the results of steps whose end was not recorded.
        let of_layout = steps.iter().filter(|step| step["step"].is_u64());
        assert_eq!(
            of_layout.map(|step| &step["id"]).collect::<Vec<_>>(),
            ids.iter().collect::<Vec<_>>(),
            "{what}"
        );
        assert_eq!(steps.len() > ids.len(), what.contains("manager"), "{newest}");
        assert!(newest["duration_us"].is_u64(), "{newest}");
        assert_eq!(partitions(&host), made, "{what}");
        let by_id = host.api().get(&format!("/api/v1/replays/{}", newest["id"].as_str().unwrap())).ok();
        assert_eq!(by_id, *newest);
    }
    // Of an operation there is the operation's own.
    write(&host, "empty", &[]);
    apply(&host, "empty", &json!({"gpu_map": {}}));
    assert_eq!(replays(&host, 4).len(), 4);
}

/// Something after which the layout is no longer desired.
type Wish = fn(&Served);

#[test]
fn restart_replay_ends_when_layout_is_removed() {
    let taken_out = |host: &Served| {
        let mut spec = host.daemon("gpu1")["spec"].clone();
        spec["layout"] = Value::Null;
        assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    };
    let deleted = |host: &Served| {
        host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu1?grace_s=0"));
    };
    let wishes: [(Wish, &str); 2] = [(taken_out, "taken out"), (deleted, "asked to stop")];
    for (wish, why) in wishes {
        let trap = Trap::new();
        let host: InProcess = trapped_host(&trap, "");
        write(&host, "prod", &[add("web", 7)]);
        apply(&host, "prod", &json!({}));
        trap.refuse_starts();
        signal(host.daemon_pid("gpu1"), Signal::KILL);
        eventually("another process is recorded, and does not come up", || {
            let begun = &host.api().get("/api/v1/replays").ok()["items"][0]["verdict"] == "pending";
            (begun && host.daemon("gpu1")["status"]["pid"].is_null()).then_some(())
        });
        wish(&host);
        let record = host.api().get("/api/v1/replays").ok()["items"][0].clone();
        assert_eq!((&record["cause"], &record["verdict"]), (&json!("restart"), &json!("failed")), "{record}");
        assert!(record["finished_at"].is_string(), "{record}");
        assert!(record["error"].as_str().unwrap().contains(why), "{record}");
    }
}

#[test]
fn percentage_restart_is_no_replay() {
    let host: InProcess = shares::host_with("h200x1@13.0", &shares::THREE);
    let before = host.daemon_pid("gpu0");
    signal(before, Signal::KILL);
    back(&host, "gpu0", before);
    shares::applied(&host);
    assert_eq!(host.api().get("/api/v1/replays").ok()["items"], json!([]), "nothing is compared");
}
