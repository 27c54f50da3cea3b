//! Random layouts on real processes of the simulated host: what decides the IDs, and what finds out that they differ.
//!
//! ```text
//!                      ┌─► twin: the same die          the same IDs
//!   source ─ export ───┼─► other: another die          stopped at the first ID that differs, and as before
//!   (one after another)├─► lossy: a reply is lost      whole with the right IDs, or undone whole
//!                      └─► stranger: another SKU       refused before the first command
//! ```
//!
//! What each step has to give is worked out in this process beforehand. `MPS_MANAGER_LAYOUTS` says how many layouts, and
//! `MPS_MANAGER_SEED` which.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use fastrand::Rng;
use mps_manager::domain::PartitionId;
use mps_manager::domain::layout::{PartitionChange, ResolvedStep};
use reqwest::Method;
use serde_json::{Value, json};

use super::foreign::delete;
use super::layouts::{add, remove, uuid, write};
use crate::harness::{Answer, Host, Spring, Trap, heavy, setting};
use crate::layout_model::{Daemon, OTHER_DIE, USUAL, by_hand, first_that_differs, on_the_other_die, random};

/// The daemon over both GPUs of a host.
const DAEMON: &str = "pair";
/// The layout, of which every sample is a version.
const LAYOUT: &str = "sample";

/// Partitions by the role of their GPU and their ID.
type Made = BTreeSet<(usize, String)>;
type Counts = BTreeMap<&'static str, u64>;

fn count(counts: &mut Counts, what: &'static str) {
    *counts.entry(what).or_default() += 1;
}

/// A random layout, what it has to give, and what happens to it.
#[derive(Debug, Clone)]
struct Sample {
    steps: Vec<Value>,
    /// What each step gives or takes away.
    ids: Vec<String>,
    made: Made,
    /// The first step that gives another ID on the other die, and that ID.
    differs: Option<(usize, String)>,
    /// Which of the host's GPUs plays the first role, and so which the second, on each host.
    first: BTreeMap<&'static str, usize>,
    /// The reply that is lost on the way there, and the one on the way back.
    lost: [(Spring, usize); 2],
}

impl Sample {
    fn random(rng: &mut Rng) -> Self {
        let gpus = Daemon::new(USUAL).gpus();
        let role = |uuid: &str| gpus.iter().position(|gpu| gpu.as_str() == uuid).expect("one of the model's");
        let used = if rng.bool() { &gpus[..] } else { &gpus[..1] };
        let steps = random(rng, used);
        let (ids, made) = by_hand(USUAL, &steps);
        let (other, _) = by_hand(OTHER_DIE, &on_the_other_die(&steps));
        let differs = first_that_differs(&steps, &ids, &other).map(|step| (step, other[step].to_string()));
        let made: Made = made
            .iter()
            .map(|name| name.split_once('/').expect("GPU/ID"))
            .map(|(gpu, id)| (role(gpu), id.to_owned()))
            .collect();
        let written = |step: &ResolvedStep| match step.change {
            PartitionChange::Add => {
                let mut written = add(step.partition.as_str(), step.chunks);
                written["add"]["gpu"] = json!(role(step.gpu.as_str()));
                written
            }
            PartitionChange::Remove => remove(step.partition.as_str()),
        };
        let mut lost = |commands: usize| {
            let spring = if rng.bool() { Spring::Unheard } else { Spring::Unanswered };
            (spring, rng.usize(1..=commands.max(1)))
        };
        let lost = [lost(steps.len()), lost(made.len())];
        Self {
            steps: steps.iter().map(written).collect(),
            ids: ids.iter().map(PartitionId::to_string).collect(),
            made,
            differs,
            first: ["source", "twin", "other", "lossy", "stranger"]
                .map(|host| (host, rng.usize(0..2)))
                .into(),
            lost,
        }
    }

    /// The step's ID, where it makes a partition.
    fn expected(&self, step: usize) -> Value {
        if self.steps[step].get("add").is_some() { json!(self.ids[step]) } else { Value::Null }
    }
}

/// Says which sample it was, if it does not hold.
struct ReportOnPanic<'a>(u64, u64, &'a Sample);

impl Drop for ReportOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("MPS_MANAGER_SEED={} does not hold at layout {} of it: {:?}", self.0, self.1, self.2);
        }
    }
}

/// A host with one static daemon over its two GPUs.
struct Station {
    name: &'static str,
    host: Host,
    gpus: [String; 2],
}

impl Station {
    fn of(name: &'static str, mut host: Host) -> Self {
        host.serve();
        host.await_ready();
        for tenant in ["demo", "batch"] {
            assert_eq!(host.api().delete(&format!("/api/v1/tenants/{tenant}")).status, 204);
        }
        delete(&host, "gpu0");
        delete(&host, "gpu1");
        let gpus = [0, 1].map(|index| uuid(&host, index));
        let spec = json!({"gpus": gpus, "mode": "static"});
        assert_eq!(host.api().put(&format!("/api/v1/daemons/{DAEMON}"), &spec).status, 201);
        host.await_phase(DAEMON, "ready");
        write(&host, "nothing", &[]);
        Self { name, host, gpus }
    }

    /// A request about the daemon for a sample, with these fields beside.
    fn target(&self, sample: &Sample, more: &Value) -> Value {
        let first = sample.first[self.name];
        let roles = sample.steps.iter().filter_map(|step| step["add"]["gpu"].as_u64());
        let map: BTreeMap<String, &str> = roles
            .map(|role| {
                let second = usize::from(role > 0);
                (role.to_string(), self.gpus[(first + second) % 2].as_str())
            })
            .collect();
        let mut target = json!({"daemon": DAEMON, "gpu_map": map});
        target.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
        target
    }

    /// What the daemon itself lists, by the role that each GPU has for the sample.
    fn listed(&self, sample: &Sample) -> Made {
        let first = sample.first[self.name];
        let rows = self.host.control(DAEMON, "lspart");
        let role = |short: &str| {
            let gpu = self.gpus.iter().position(|gpu| gpu.starts_with(short)).expect("one of its GPUs");
            usize::from(gpu != first)
        };
        rows.lines()
            .filter(|row| row.starts_with("GPU-"))
            .filter_map(|row| {
                let mut words = row.split_whitespace();
                let (short, id) = (words.next()?, words.next()?);
                (id != "-").then(|| (role(short), id.to_owned()))
            })
            .collect()
    }

    fn replay(&self, sample: &Sample, document: &Value) -> Answer {
        self.host.api().post("/api/v1/replays", &self.target(sample, &json!({"document": document})))
    }

    /// Replays a sample to its end; gives the operation and the record.
    fn replayed(&self, sample: &Sample, document: &Value) -> (Value, Value) {
        let accepted = self.replay(sample, document);
        let operation = self.host.api().outcome(&accepted);
        let id = accepted.json()["replay"].as_str().expect("an ID").to_owned();
        (operation, self.host.api().get(&format!("/api/v1/replays/{id}")).ok())
    }

    /// Takes every partition out.
    fn empty(&self) -> Value {
        let nothing = json!({"daemon": DAEMON});
        self.host.api().outcome(&self.host.api().post("/api/v1/layouts/nothing/apply", &nothing))
    }

    fn emptied(&self, sample: &Sample) {
        let operation = self.empty();
        assert_eq!(operation["state"], "succeeded", "{operation}");
        assert_eq!(self.listed(sample), Made::new());
    }

    /// How many commands the daemon was sent that change partitions, since its log was begun.
    fn sent(&self) -> usize {
        self.host.logged(DAEMON, "Cmd:sm_partition")
    }
}

/// Every step of the sample gave its ID, and each was found done once.
fn holds(station: &Station, sample: &Sample, operation: &Value, record: &Value) {
    assert_eq!((&operation["state"], &record["verdict"]), (&json!("succeeded"), &json!("same")), "{record}");
    let taken = record["steps"].as_array().expect("steps").iter().filter(|taken| !taken["id"].is_null());
    let given: Vec<(&Value, &Value)> = taken.map(|taken| (&taken["step"], &taken["id"])).collect();
    let ids: Vec<(Value, Value)> =
        sample.ids.iter().enumerate().map(|(step, id)| (json!(step), json!(id))).collect();
    assert!(given.into_iter().eq(ids.iter().map(|(step, id)| (step, id))), "{record}");
    assert_eq!(station.listed(sample), sample.made);
}

/// Applies the sample in place of the one before it, and gives the document of it.
fn recorded(station: &Station, sample: &Sample) -> Value {
    let api = station.host.api();
    write(&station.host, LAYOUT, &sample.steps);
    let apply = station.target(sample, &json!({"recreate": true}));
    api.succeeds(&api.post(&format!("/api/v1/layouts/{LAYOUT}/apply"), &apply));
    assert_eq!(station.listed(sample), sample.made);
    let document = exported(station);
    assert_eq!(document["layouts"][LAYOUT]["recorded"]["ids"], json!(sample.ids));
    document
}

fn exported(station: &Station) -> Value {
    let path = format!("/api/v1/layouts/{LAYOUT}/export?daemon={DAEMON}");
    station.host.api().send(Method::GET, &path, &[("accept", "application/json")], None).ok()
}

fn on_the_twin(station: &Station, sample: &Sample, document: &Value, counts: &mut Counts) {
    let (operation, record) = station.replayed(sample, document);
    holds(station, sample, &operation, &record);
    assert_eq!(exported(station)["layouts"][LAYOUT]["recorded"]["ids"], json!(sample.ids));
    station.emptied(sample);
    count(counts, "the same die: every ID the same");
}

fn on_the_other(station: &Station, sample: &Sample, document: &Value, counts: &mut Counts) {
    let before = station.host.daemon(DAEMON);
    let (operation, record) = station.replayed(sample, document);
    let Some((step, got)) = &sample.differs else {
        holds(station, sample, &operation, &record);
        station.emptied(sample);
        return count(counts, "another die: no ID differs, and it is done");
    };
    assert_eq!((&operation["state"], &record["verdict"]), (&json!("failed"), &json!("differs")), "{record}");
    let taken = record["steps"].as_array().expect("steps");
    let forward: Vec<&Value> = taken.iter().filter(|taken| taken["undo"] == false).collect();
    assert_eq!(forward.len(), step + 1, "it stopped there: {record}");
    for (number, taken) in forward.iter().enumerate() {
        let id = if number == *step { got } else { &sample.ids[number] };
        assert_eq!((&taken["step"], &taken["id"]), (&json!(number), &json!(id)), "{record}");
        if taken["change"] == "add" {
            assert_eq!(taken["expected"], sample.expected(number), "{record}");
        }
    }
    let error = operation["error"].as_str().expect("an error");
    for part in [got, &sample.ids[*step]] {
        assert!(error.contains(part), "{part} in {error}");
    }
    assert_eq!(station.listed(sample), Made::new(), "the host is as it was");
    let after = station.host.await_phase(DAEMON, "ready");
    for field in ["/spec", "/status/pid", "/status/layout/name", "/status/layout/version"] {
        assert_eq!(after.pointer(field), before.pointer(field), "{field}");
    }
    count(counts, "another die: found at the first step that differs");
}

fn with_a_reply_lost(station: &Station, trap: &Trap, sample: &Sample, document: &Value, counts: &mut Counts) {
    let [there, back] = sample.lost;
    let before = station.sent();
    trap.set_for("", there.0, there.1);
    let (operation, record) = station.replayed(sample, document);
    trap.sprung();
    if operation["state"] == "succeeded" {
        holds(station, sample, &operation, &record);
        // The log is emptied when it has grown too long.
        if let Some(sent) = station.sent().checked_sub(before) {
            assert_eq!(sent, sample.ids.len(), "none is done twice");
        }
        count(counts, "a reply lost: found done or done again, with the right IDs");
    } else {
        assert_eq!(station.listed(sample), Made::new(), "undone whole: {operation}");
        return count(counts, "a reply lost: undone");
    }
    if sample.made.is_empty() {
        return station.emptied(sample);
    }
    trap.set_for("rm", back.0, back.1);
    let operation = station.empty();
    trap.sprung();
    if operation["state"] == "succeeded" {
        assert_eq!(station.listed(sample), Made::new());
        count(counts, "a reply lost on the way out: found done or done again");
    } else {
        assert_eq!(station.listed(sample), sample.made, "undone whole: {operation}");
        count(counts, "a reply lost on the way out: undone");
        station.emptied(sample);
    }
}

fn on_the_stranger(station: &Station, sample: &Sample, document: &Value, counts: &mut Counts) {
    let refused = station.replay(sample, document);
    assert!([409, 422].contains(&refused.status), "{}", refused.text);
    assert!(refused.text.contains("H200") && refused.text.contains("H100"), "{}", refused.text);
    count(counts, "another SKU: refused");
}

#[test]
fn partition_ids_depend_only_on_the_die() {
    let _turn = heavy();
    let layouts = setting("MPS_MANAGER_LAYOUTS").unwrap_or(3);
    let seed = setting("MPS_MANAGER_SEED").unwrap_or_else(|| getrandom::u64().expect("random bytes") >> 32);
    eprintln!("{layouts} layouts, seed {seed}");
    let began = Instant::now();
    let trap = Trap::new();
    let lossy = Host::of(USUAL, &trap.config());
    trap.install(&lossy);
    let [source, twin, other, lossy, stranger] = thread::scope(|scope| {
        let start = |name, host| scope.spawn(move || Station::of(name, host));
        [
            start("source", Host::of(USUAL, "")),
            start("twin", Host::of(USUAL, "")),
            start("other", Host::of(OTHER_DIE, "")),
            start("lossy", lossy),
            start("stranger", Host::of("h100x2@13.1", "")),
        ]
        .map(|station| station.join().expect("a host"))
    });
    let changes = || (stranger.sent(), stranger.host.changes(DAEMON));
    let before = changes();

    let mut counts = Counts::new();
    thread::scope(|scope| {
        type Check<'a> = Box<dyn Fn(&Sample, &Value, &mut Counts) + Send + 'a>;
        let checks: [Check; 4] = [
            Box::new(|sample, document, counts| on_the_twin(&twin, sample, document, counts)),
            Box::new(|sample, document, counts| on_the_other(&other, sample, document, counts)),
            Box::new(|sample, document, counts| with_a_reply_lost(&lossy, &trap, sample, document, counts)),
            Box::new(|sample, document, counts| on_the_stranger(&stranger, sample, document, counts)),
        ];
        let (documents, workers): (Vec<_>, Vec<_>) = checks
            .into_iter()
            .map(|check| {
                let (sender, receiver) = mpsc::sync_channel::<(u64, Sample, Value)>(4);
                let worker = scope.spawn(move || {
                    let mut counts = Counts::new();
                    for (number, sample, document) in receiver {
                        let _report = ReportOnPanic(seed, number, &sample);
                        check(&sample, &document, &mut counts);
                    }
                    counts
                });
                (sender, worker)
            })
            .unzip();
        let mut rng = Rng::with_seed(seed);
        'layouts: for number in 0..layouts {
            let sample = Sample::random(&mut rng);
            let _report = ReportOnPanic(seed, number, &sample);
            let document = recorded(&source, &sample);
            for documents in &documents {
                // One that is gone has failed, which is reported below.
                if documents.send((number, sample.clone(), document.clone())).is_err() {
                    break 'layouts;
                }
            }
        }
        drop(documents);
        for worker in workers {
            counts.extend(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
    for (what, count) in &counts {
        eprintln!("{count:>7} {what}");
    }
    eprintln!("{layouts} layouts in {:.1} s", began.elapsed().as_secs_f64());

    assert_eq!(changes(), before, "another SKU was refused before the first command");
    assert_eq!(stranger.host.api().get("/api/v1/replays").ok()["items"], json!([]));
    let count = |what: &str| {
        counts.iter().filter(|(reported, _)| reported.starts_with(what)).map(|(_, count)| count).sum::<u64>()
    };
    for what in ["the same die", "another die", "a reply lost: ", "another SKU"] {
        assert_eq!(count(what), layouts, "{what}");
    }
    assert!(count("another die: found") > 0 || layouts < 10, "{counts:?}");
}
