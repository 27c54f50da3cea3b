//! Layouts that a daemon's driver applies and keeps: after every start, after every death, and never by a guess.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::foreign::{condition, delete};
use super::layouts::uuid;
use crate::harness::{Host, Served, Spring, Trap, eventually, is_alive, signal, stderr_of, unix_ms};

/// `web` 7, `spare` 2, `batch` 3, `spare` removed, `tail` 1: the removal is part of the sequence.
fn small() -> Value {
    let add = |name: &str, chunks: u32| json!({"add": {"gpu": 0, "partition": name, "chunks": chunks}});
    let mut web = add("web", 7);
    web["add"]["tenants"] = json!(["parts"]);
    json!({"steps": [web, add("spare", 2), add("batch", 3), {"remove": {"partition": "spare"}}, add("tail", 1)]})
}

/// Fifteen partitions of one chunk.
fn full() -> Value {
    let add = |number: u32| json!({"add": {"gpu": 0, "partition": format!("p{number}"), "chunks": 1}});
    json!({"steps": (0..15).map(add).collect::<Vec<_>>()})
}

/// A host whose second GPU has a daemon of this layout, in force.
fn host_with(layout: &Value) -> Host {
    laid_out(Host::new(""), layout)
}

fn trapped(trap: &Trap, layout: &Value) -> Host {
    let host = Host::new(&trap.config());
    trap.install(&host);
    laid_out(host, layout)
}

fn laid_out(mut host: Host, layout: &Value) -> Host {
    host.serve();
    host.await_ready();
    delete(&host, "gpu1");
    host.end_manager(Signal::TERM);
    host.execute_sql(&format!(
        "INSERT INTO layouts (name, created_at) VALUES ('main', 0);
         INSERT INTO layout_versions (layout, version, content, author, created_at) VALUES ('main', 1, '{layout}', 'a test', 0);"
    ));
    host.serve();
    host.await_ready();
    assert_eq!(put(&host, "report"), 201);
    applied(&host);
    host
}

fn put(host: &Served, policy: &str) -> u16 {
    let layout =
        json!({"name": "main", "version": 1, "gpu_map": {"0": uuid(host, 1)}, "drift_policy": policy});
    let spec = json!({"gpus": ["1"], "mode": "static", "layout": layout});
    host.api().put("/api/v1/daemons/gpu1", &spec).status
}

/// Waits until the layout is in force and the daemon ready for it, and gives its status.
fn applied(host: &Served) -> Value {
    in_state(host, "applied", "ready")
}

fn in_state(host: &Served, state: &str, phase: &str) -> Value {
    eventually(&format!("the layout is {state} and the daemon {phase}"), || {
        let daemon = host.daemon("gpu1");
        let status = &daemon["status"];
        let there = status["layout"]["state"] == state && status["phase"] == phase;
        let current = phase == "blocked" || status["observed_generation"] == daemon["generation"];
        (there && current).then(|| status["layout"].clone())
    })
}

/// Name and ID of each partition.
fn ids(layout: &Value) -> Vec<(String, Value)> {
    let partitions = layout["partitions"].as_array().expect("partitions").iter();
    partitions.map(|one| (one["partition"].as_str().expect("a name").to_owned(), one["id"].clone())).collect()
}

/// The IDs that the daemon itself lists, in its order.
fn listed(host: &Served) -> Vec<String> {
    let rows = host.control("gpu1", "lspart");
    let ids = rows.lines().filter(|line| line.starts_with("GPU-")).filter_map(|line| {
        let id = line.split_whitespace().nth(1)?;
        (id != "-").then(|| id.to_owned())
    });
    ids.collect()
}

/// How many additions and removals the daemon was sent.
fn changes(host: &Served) -> (usize, usize) {
    (host.logged("gpu1", "Cmd:sm_partition add"), host.logged("gpu1", "Cmd:sm_partition rm"))
}

/// The daemon dies, and the next one is ready with the layout.
fn die_and_come_back(host: &Served) -> Value {
    let before = host.daemon_pid("gpu1");
    signal(before, Signal::KILL);
    eventually("another daemon is there", || {
        let status = &host.daemon("gpu1")["status"];
        (status["pid"].is_u64() && status["pid"] != before).then_some(())
    });
    applied(host)
}

#[test]
fn layout_in_new_spec_is_applied() {
    let host = host_with(&small());
    let layout = applied(&host);
    assert_eq!((&layout["name"], &layout["version"]), (&json!("main"), &json!(1)));
    let partitions = layout["partitions"].as_array().unwrap();
    let reported: Vec<_> = partitions
        .iter()
        .map(|one| (one["partition"].as_str().unwrap(), one["sms"].as_u64().unwrap()))
        .collect();
    assert_eq!(reported, [("web", 56), ("batch", 24), ("tail", 8)]);
    assert_eq!(partitions[0]["tenants"], json!(["parts"]));
    let here: Vec<_> = ids(&layout).into_iter().map(|(_, id)| id.as_str().unwrap().to_owned()).collect();
    assert_eq!(here, listed(&host));
    assert_eq!(changes(&host), (4, 1));
    let taken = layout["executed_steps"].as_array().unwrap();
    assert_eq!(taken.len(), 5);
    assert!(taken.iter().all(|step| step["problem"].is_null() && step["id"].is_string()), "{layout}");
    assert!(taken[3]["command"].as_str().unwrap().starts_with("sm_partition rm GPU-"), "{layout}");
    assert_eq!(taken[3]["id"], taken[1]["id"]);

    let tenant = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "8G"});
    assert_eq!(host.api().tenant("parts", &tenant).status, 201);
    applied(&host);
    assert_eq!(host.client("parts").seen["devices"][0]["sms"], 56);
    assert_eq!(changes(&host), (4, 1), "nothing is done twice");
}

#[test]
fn restarted_daemon_gets_identical_partition_ids() {
    let mut host = host_with(&full());
    let first = applied(&host);
    let expected = ids(&first);
    assert_eq!(expected.len(), 15);
    assert!(expected.iter().all(|(_, id)| id.is_string()), "{first}");
    let began = std::time::Instant::now();
    let again = die_and_come_back(&host);
    eprintln!("back with 15 partitions after {:?}", began.elapsed());
    assert_eq!(ids(&again), expected);
    for (number, partition) in again["partitions"].as_array().unwrap().iter().enumerate() {
        assert_eq!(partition["expected"], expected[number].1, "each step is compared with the first time");
    }
    assert_eq!(host.daemon("gpu1")["status"]["deaths"], 1);
    assert_eq!(changes(&host), (30, 0));

    host.end_manager(Signal::KILL);
    host.serve();
    assert_eq!(ids(&applied(&host)), expected);
    assert_eq!(changes(&host), (30, 0), "what is there is left alone");
    assert_eq!(ids(&die_and_come_back(&host)), expected);
}

#[test]
fn partition_drift_is_repaired_only_on_request() {
    let host = host_with(&small());
    let made = ids(&applied(&host));
    let (gpu, tail) = (uuid(&host, 1), made[2].1.as_str().unwrap().to_owned());
    host.control("gpu1", &format!("sm_partition rm {gpu}/{tail}"));
    let drifted = in_state(&host, "drifted", "ready");
    let drift = &drifted["drift"][0];
    assert_eq!(
        (&drift["kind"], &drift["partition"], &drift["id"]),
        (&json!("missing"), &json!("tail"), &json!(tail))
    );
    assert_eq!(drifted["partitions"][2]["id"], json!(null), "it is not handed out");
    assert_eq!(drifted["partitions"][2]["expected"], json!(tail));
    assert_eq!(drifted["partitions"][0]["id"], made[0].1, "the others are what they were");
    let drifted = condition(&host.daemon("gpu1"), "PartitionsDrifted").expect("the drift is reported");
    assert!(drifted["message"].as_str().unwrap().contains("partition tail"), "{drifted}");
    for _ in 0..3 {
        host.api().get("/api/v1/daemons/gpu1?fresh=true").ok();
    }
    assert_eq!(changes(&host), (4, 2), "nobody asked for it to be restored");
    assert_eq!(host.log().matches("a partition was changed by another program").count(), 1, "logged once");

    assert_eq!(put(&host, "repair"), 200);
    assert_eq!(ids(&applied(&host)), made, "the same ID");
    assert_eq!(changes(&host), (5, 2));
    let strange = host.control("gpu1", &format!("sm_partition add {gpu} 1"));
    eventually("it is taken away again", || (changes(&host) == (6, 3)).then_some(()));
    let repaired = applied(&host);
    assert_eq!(ids(&repaired), made);
    // It is over, and is reported all the same.
    let seen = &repaired["drift_seen"];
    assert_eq!((&seen["count"], &seen["repairs"]), (&json!(2), &json!(2)), "{seen}");
    assert_eq!(seen["last"][0]["kind"], "unknown", "{seen}");
    assert!(seen["executed_steps"][0]["command"].as_str().unwrap().starts_with("sm_partition rm"), "{seen}");
    assert_eq!(
        repaired["executed_steps"].as_array().unwrap().len(),
        5,
        "what made the layout is what it was"
    );
    let reported = condition(&host.daemon("gpu1"), "PartitionsDrifted").expect("the drift is reported");
    assert_eq!((&reported["status"], &reported["reason"]), (&json!(false), &json!("Restored")), "{reported}");
    let log = host.log();
    assert_eq!(log.matches("a partition was changed by another program").count(), 2, "logged once each");
    assert_eq!(log.matches("partitions that another program changed were restored").count(), 2);
    assert!(!listed(&host).contains(&strange.split_once('/').unwrap().1.to_owned()));

    // Before the others: to restore it where it was, they would have to be made again.
    let web = made[0].1.as_str().unwrap();
    host.control("gpu1", &format!("sm_partition rm {gpu}/{web}"));
    let drifted = in_state(&host, "drifted", "ready");
    assert!(drifted["not_repaired"].as_str().unwrap().contains("recreated"), "{drifted}");
    assert_eq!(changes(&host), (6, 4));
}

#[test]
fn repeatedly_undone_repair_backs_off() {
    let host = host_with(&small());
    assert_eq!(put(&host, "repair"), 200);
    let made = ids(&applied(&host));
    let remove = format!("sm_partition rm {}/{}", uuid(&host, 1), made[2].1.as_str().unwrap());
    for (round, pause) in [(1, 0), (2, 0), (3, 0), (4, 1_000), (5, 2_000)] {
        host.control("gpu1", &remove);
        let mut put_off = false;
        let layout = eventually("it is restored", || {
            let status = host.daemon("gpu1")["status"].clone();
            let layout = &status["layout"];
            if layout["drift_seen"]["next_repair_at"].is_string() {
                assert_eq!((&layout["state"], &status["phase"]), (&json!("drifted"), &json!("ready")));
                assert!(layout["not_repaired"].as_str().unwrap().contains("times in a row"), "{layout}");
                put_off = true;
            }
            let repaired = layout["drift_seen"]["repairs"] == round && layout["state"] == "applied";
            repaired.then(|| layout.clone())
        });
        assert_eq!(ids(&layout), made);
        let at = |when: &str| unix_ms(&layout["drift_seen"][when]);
        assert!(at("repaired_at") - at("last_at") >= pause, "{round}: {layout}");
        assert_eq!((&layout["drift_seen"]["count"], put_off), (&json!(round), pause > 0), "{layout}");
    }
}

#[test]
fn lost_reply_is_resolved_from_the_listing() {
    let trap = Trap::new();
    let host = trapped(&trap, &small());
    let expected = ids(&applied(&host));
    let before = changes(&host);
    for (spring, nth, sent) in [
        (Spring::Unanswered, 1, 4),
        (Spring::Unanswered, 3, 4),
        (Spring::Unheard, 2, 4),
        (Spring::Unanswered, 4, 4),
    ] {
        trap.set(spring, nth);
        let had = changes(&host);
        // Not by a death, of which several are followed by pauses.
        host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/restart?grace_s=1", &json!({})));
        trap.sprung();
        let layout = applied(&host);
        assert_eq!(ids(&layout), expected, "{spring:?} {nth}");
        assert_eq!((changes(&host).0 - had.0, changes(&host).1 - had.1), (sent, 1), "none is done twice");
        let again =
            layout["executed_steps"].as_array().unwrap().iter().filter(|step| step["problem"].is_string());
        assert_eq!(again.count(), usize::from(matches!(spring, Spring::Unheard)), "{layout}");
        assert_eq!(listed(&host).len(), 3);
    }
    assert!(changes(&host) > before);
}

#[test]
fn other_die_stops_at_first_differing_id() {
    let mut host = host_with(&small());
    // A partition of seven chunks has one of each of the first seven GPCs on either die.
    let expected = applied(&host)["executed_steps"][1]["id"].clone();
    let tenant = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "8G"});
    assert_eq!(host.api().tenant("parts", &tenant).status, 201);
    applied(&host);
    let pid = host.daemon_pid("gpu1");
    host.end_manager(Signal::TERM);
    signal(pid, Signal::KILL);
    eventually("it is gone", || (!is_alive(pid)).then_some(()));
    // As after an exchange of the board that kept the UUID in our simulation.
    let file = host.runtime("sim/world.json");
    let mut world: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    world["gpus"][1]["gpcs"].as_array_mut().unwrap().reverse();
    fs::write(&file, world.to_string()).unwrap();
    host.serve();
    let failed = in_state(&host, "failed", "blocked");
    let cause = &failed["failure"]["cause"];
    assert_eq!(
        (&cause["kind"], &cause["step"], &cause["expected"]),
        (&json!("other_id"), &json!(1), &expected)
    );
    assert!(cause["got"].is_string() && cause["got"] != expected, "{cause}");
    let message = failed["failure"]["message"].as_str().unwrap();
    for id in [&cause["got"], &cause["expected"]] {
        assert!(message.contains(id.as_str().unwrap()), "{message}");
    }
    let daemon = host.daemon("gpu1");
    for kind in ["Ready", "Layout"] {
        assert_eq!(condition(&daemon, kind).unwrap()["reason"], "PartitionIdDiffers", "{daemon}");
    }
    assert_eq!(listed(&host), [""; 0], "what was made is taken away again");
    assert!(failed["partitions"].as_array().unwrap().iter().all(|one| one["id"].is_null()), "{failed}");
    let refused = host.api().get("/api/v1/tenants/parts/environment").problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("is recorded"), "{refused}");
    // A user bound to the tenant sees that it is so, and not what is made on the host.
    let own = host.api().with_token(Some(&super::tokens::create(&host, "t", "tenant:parts")));
    let tenant = own.get("/api/v1/tenants/parts");
    for reported in [own.get("/api/v1/tenants/parts/environment"), tenant.clone()] {
        for id in [&cause["got"], &cause["expected"]] {
            assert!(!reported.text.contains(id.as_str().unwrap()), "{}", reported.text);
        }
        assert!(
            !reported.text.contains("is recorded") && reported.text.contains("operator"),
            "{}",
            reported.text
        );
    }
    assert!(tenant.text.contains("(PartitionIdDiffers)"), "{}", tenant.text);
    let output = host.run("parts", &["true"]);
    assert!(!output.status.success() && stderr_of(&output).contains("is recorded"), "{}", stderr_of(&output));

    let replays = host.api().get("/api/v1/replays").ok()["items"].clone();
    assert_eq!(replays.as_array().unwrap().len(), 1, "{replays}");
    assert_eq!((&replays[0]["verdict"], &replays[0]["cause"]), (&json!("differs"), &json!("restart")));
    assert!(replays[0]["error"].as_str().unwrap().contains(cause["got"].as_str().unwrap()), "{replays}");

    // It is not tried again by itself, and is on request.
    let tried = changes(&host);
    for _ in 0..3 {
        host.api().get("/api/v1/daemons/gpu1?fresh=true").ok();
    }
    assert_eq!(changes(&host), tried);
    let start = host.api().outcome(&host.api().post("/api/v1/daemons/gpu1/start", &json!({})));
    assert_eq!(start["state"], "failed", "{start}");
    assert!(start["error"].as_str().unwrap().contains("is recorded"), "{start}");
    assert_eq!(changes(&host), (tried.0 + 2, tried.1 + 2));
}

#[test]
fn killed_managers_partition_run_is_finished() {
    let trap = Trap::new();
    let mut host = trapped(&trap, &small());
    let expected = ids(&applied(&host));
    for nth in 1..=4 {
        trap.set(Spring::Held, nth);
        let before = host.daemon_pid("gpu1");
        signal(before, Signal::KILL);
        trap.sprung();
        assert_ne!(host.await_phase("gpu1", "applying")["status"]["layout"]["state"], "applied");
        host.end_manager(Signal::KILL);
        trap.release();
        host.serve();
        assert_eq!(ids(&applied(&host)), expected, "killed at addition {nth}");
        assert_eq!(listed(&host).len(), 3);
    }
}

#[test]
fn partition_run_recovers_from_hung_daemon() {
    let trap = Trap::new();
    let mut host = Host::new(&format!("{}\ncontrol_deadline_s = 1", trap.config()));
    trap.install(&host);
    host = laid_out(host, &small());
    let expected = ids(&applied(&host));
    trap.set(Spring::Held, 3);
    signal(host.daemon_pid("gpu1"), Signal::KILL);
    trap.sprung();
    let daemon = host.daemon_pid("gpu1");
    signal(daemon, Signal::STOP);
    trap.release();
    let hung = host.await_phase("gpu1", "wedged");
    assert_eq!(hung["status"]["layout"]["state"], "pending", "{hung}");
    signal(daemon, Signal::CONT);
    assert_eq!(ids(&applied(&host)), expected);
    assert_eq!(host.daemon_pid("gpu1"), daemon, "it was not replaced");
    assert_eq!(listed(&host).len(), 3);
}
