//! The manager killed at every single step of a change of a layout, before and after each command about partitions and in
//! each transaction of the store: the next one leaves the old layout or the new one, whole, and says which.
//!
//! Nothing here knows the steps: commands are counted as the control program gets them, and transactions in the log of a run
//! that nobody disturbs.

use std::collections::BTreeSet;

use mps_manager::domain::layout::document::Document;
use reqwest::Method;
use serde_json::{Value, json};

use super::layout_replays::exported;
use super::layouts::{add, apply, partitions, remove, target, trapped_host, write};
use crate::harness::{Host, Spring, Trap, eventually};

/// Has the manager killed at every command, and at every page of every transaction; else at a sample of them.
const EVERY_DEATH: &str = "MPS_MANAGER_EVERY_DEATH";
/// Of so many places one is tried in a sample, another one in each run.
const SAMPLED: usize = 4;
/// The size of a page in the log.
const FRAME: u64 = 4096 + 24;

/// Name and ID of each partition.
type Made = Vec<(String, String)>;

/// A change that is asked for again and again, from the same state.
struct PartitionChange {
    host: Host,
    trap: Trap,
    path: &'static str,
    body: Value,
    /// The layout `old` before it, and what else it is applied with.
    old: Made,
    back: Value,
    /// The layout of this name after it; `None` for one that fails at its last step.
    new: Option<(&'static str, Made)>,
    /// How often it came to the one and to the other.
    went: (usize, usize),
}

/// How one try ended.
struct Round {
    died: bool,
    /// How many transactions of it were written whole when the manager died.
    written: usize,
}

fn static_host() -> (Host, Trap) {
    let trap = Trap::new();
    let host = trapped_host(&trap, "");
    (host, trap)
}

/// One partition stays, one goes, two come, of which one is only for the order.
fn an_apply() -> PartitionChange {
    let (host, trap) = static_host();
    write(&host, "old", &[add("web", 7), add("jobs", 5)]);
    write(&host, "new", &[add("web", 7), add("gap", 2), add("tail", 3), remove("gap")]);
    apply(&host, "new", &json!({}));
    let new = partitions(&host);
    apply(&host, "old", &json!({}));
    let old = partitions(&host);
    assert_eq!((old.len(), new.len(), &old[0]), (2, 2, &new[0]));
    let body = target(&json!({}));
    PartitionChange {
        host,
        trap,
        path: "/api/v1/layouts/new/apply",
        body,
        old,
        back: json!({}),
        new: Some(("new", new)),
        went: (0, 0),
    }
}

/// From empty GPUs, held to the IDs of a document; or to a last ID that no step gives.
fn a_replay(differs: bool) -> PartitionChange {
    let (host, trap) = static_host();
    write(&host, "prod", &[add("web", 7), add("gap", 2), add("jobs", 5), remove("gap"), add("tail", 1)]);
    apply(&host, "prod", &json!({}));
    let new = partitions(&host);
    let mut document = exported(&host);
    if differs {
        let ids = &mut document["layouts"]["prod"]["recorded"]["ids"];
        ids[4] = ids[0].clone();
        document.as_object_mut().expect("fields").remove("checksum");
        let unsealed: Document = serde_json::from_value(document).expect("a document");
        document = serde_json::to_value(Document::sealed(unsealed.layouts)).expect("text");
    }
    write(&host, "old", &[]);
    let back = json!({"gpu_map": {}});
    apply(&host, "old", &back);
    assert_eq!(partitions(&host), []);
    let body = target(&json!({"document": document}));
    let new = (!differs).then_some(("prod", new));
    PartitionChange { host, trap, path: "/api/v1/replays", body, old: Vec::new(), back, new, went: (0, 0) }
}

impl PartitionChange {
    /// Asks for the change, waits until the manager is dead or all is over, starts another one if it is dead, and checks what
    /// there is; then everything is as before.
    fn round(&mut self, what: &str) -> Round {
        let known = self.operations().iter().map(id).collect::<BTreeSet<_>>();
        let began = self.log_ends();
        self.ask(what);
        let died = eventually(&format!("{what}: it is over"), || {
            if self.host.manager_has_ended() {
                return Some(true);
            }
            let answer =
                self.host.api().try_send(Method::GET, "/api/v1/operations?limit=1", &[], None).ok()?;
            let newest = answer.json()["items"][0].clone();
            (!known.contains(&id(&newest)) && newest["finished_at"].is_string()).then_some(false)
        });
        let written = self.host.transactions().into_iter().filter(|end| *end > began).count();
        self.trap.clear();
        // A poll of its own may have sprung the trap after all was over. One that begins now comes behind it.
        let died = died
            || self.host.api().try_send(Method::GET, "/api/v1/daemons/gpu1?fresh=true", &[], None).is_err();
        if died {
            eventually(&format!("{what}: the manager is dead"), || {
                self.host.manager_has_ended().then_some(())
            });
            self.host.empty_log();
            self.host.serve();
        } else {
            self.host.die_past(None);
        }
        self.wait_until_ready(what);
        let operations = self.operations();
        let news: Vec<&Value> =
            operations.iter().filter(|operation| !known.contains(&id(operation))).collect();
        assert!(news.len() <= 1, "{what}: it was asked for once");
        self.check_layout(what, news.first().copied());
        Round { died, written }
    }

    fn ask(&self, what: &str) {
        let body = Some(self.body.to_string());
        // The manager may die before it answers.
        if let Ok(answer) = self.host.api().try_send(Method::POST, self.path, &[], body) {
            assert_eq!(answer.status, 202, "{what}: {}", answer.text);
        }
    }

    fn operations(&self) -> Vec<Value> {
        self.host.api().get("/api/v1/operations?limit=500").ok()["items"].as_array().expect("a list").clone()
    }

    fn wait_until_ready(&self, what: &str) {
        eventually(&format!("{what}: the next manager is done"), || {
            let daemon = self.host.daemon("gpu1");
            let status = &daemon["status"];
            let done = status["phase"] == "ready"
                && status["observed_generation"] == daemon["generation"]
                && status["layout"]["state"] == "applied"
                && self.operations().iter().all(|operation| operation["finished_at"].is_string());
            done.then_some(())
        });
    }

    /// The old layout or the new one, whole, with the IDs that it has, and as the operation says.
    fn check_layout(&mut self, what: &str, operation: Option<&Value>) {
        let daemon = self.host.daemon("gpu1");
        let (layout, status) = (&daemon["spec"]["layout"], &daemon["status"]["layout"]);
        let made = partitions(&self.host);
        let succeeded = operation.is_some_and(|operation| operation["state"] == "succeeded");
        let (name, expected) = match (&self.new, succeeded) {
            (Some((name, new)), true) => (*name, new),
            (None, true) => panic!("{what}: it cannot succeed: {operation:?}"),
            (_, false) => ("old", &self.old),
        };
        let reported = format!("{what}: {daemon} {operation:?}");
        assert_eq!((&layout["name"], &status["name"]), (&json!(name), &json!(name)), "{reported}");
        assert_eq!(made, *expected, "{reported}");
        assert_eq!((&status["drift"], &status["degraded"]), (&json!([]), &json!([])), "{reported}");
        assert_eq!(self.host.query_sql("SELECT daemon FROM layout_changes"), [] as [String; 0], "{reported}");
        if let Some(operation) = operation {
            if !succeeded {
                assert_eq!(operation["state"], "failed", "{reported}");
                assert!(
                    operation["error"].as_str().expect("why").contains("The daemon has layout old"),
                    "{reported}"
                );
            }
            self.check_record(&reported, &operation["request"]["replay"], succeeded);
        }
        if succeeded {
            self.went.1 += 1;
            apply(&self.host, "old", &self.back);
            assert_eq!(partitions(&self.host), self.old, "{what}");
            self.wait_until_ready(what);
        } else {
            self.went.0 += 1;
        }
    }

    fn check_record(&self, reported: &str, replay: &Value, succeeded: bool) {
        let Some(replay) = replay.as_str() else { return };
        let record = self.host.api().get(&format!("/api/v1/replays/{replay}")).ok();
        let verdict = record["verdict"].as_str().expect("a verdict");
        assert_eq!(verdict == "same", succeeded, "{reported}: {record}");
        assert!(succeeded || ["differs", "failed"].contains(&verdict), "{reported}: {record}");
        assert!(record["finished_at"].is_string(), "{reported}: {record}");
        let steps = record["steps"].as_array().expect("a list");
        let of_layout = |step: &&Value| step["undo"] == false && step["step"].is_u64();
        let given: Vec<&Value> = steps.iter().filter(of_layout).map(|step| &step["id"]).collect();
        if succeeded {
            let expected = record["expected"].as_array().expect("a list");
            assert_eq!(given, expected.iter().collect::<Vec<_>>(), "{reported}: {record}");
        } else if verdict == "differs" {
            assert!(!given.is_empty(), "{reported}: {record}");
        }
    }

    /// Kills the manager at the first command, the second, and so on, or at a sample of them, until there is none at which it
    /// dies.
    fn at_commands(mut self, spring: Spring) {
        let (first, step) = places();
        let mut last = 0;
        for nth in (first + 1..).step_by(step) {
            self.trap.set(spring, nth);
            if !self.round(&format!("{spring:?} {nth}")).died {
                break;
            }
            last = nth;
        }
        eprintln!(
            "{spring:?}: dead at command {first} + {step}n up to {last}, {:?} times the old and the new layout",
            self.went
        );
        // A list before the plan, one for the run, and one after each command of it at the least.
        assert!(last + step > 8, "the run has more commands than {last}");
    }

    /// Kills the manager as it writes the first page of a sample of the transactions that a run has, or every page of all.
    fn in_transactions(mut self) {
        let began = self.log_ends();
        let undisturbed = self.round("undisturbed");
        assert!(!undisturbed.died);
        let ends: Vec<u64> = self.host.transactions().into_iter().filter(|end| *end > began).collect();
        let ends: Vec<u64> = ends.into_iter().take(undisturbed.written).map(|end| end - began).collect();
        let transactions = ends.len();
        let last = ends.last().copied().unwrap_or(0);
        let (first, step) = places();
        let begins: Vec<u64> = if step == 1 {
            (0..last / FRAME).map(|page| page * FRAME).collect()
        } else {
            std::iter::once(0).chain(ends).take(transactions).skip(first).step_by(step).collect()
        };
        let (mut deaths, mut seen) = (0, BTreeSet::new());
        for at in &begins {
            // One byte of it is written yet.
            self.host.die_past(Some(self.log_ends() + at + 1));
            let Round { died, written } = self.round(&format!("{at} bytes into the log"));
            if died {
                deaths += 1;
                seen.insert(written);
            }
        }
        eprintln!(
            "{transactions} transactions, {deaths} deaths at {} places after {seen:?} transactions, {:?} times the old and the new \
             layout",
            begins.len(),
            self.went
        );
        assert!(transactions >= 8, "a change has more transactions than {transactions}");
        // Who writes together shares a transaction, and those are not the same ones each time.
        let survived = begins.len() - deaths;
        assert!(survived <= (begins.len() / 4).max(1), "{deaths} of {}", begins.len());
        assert!(seen.len() * 2 >= transactions.min(deaths), "{seen:?} of {transactions}");
    }

    fn log_ends(&self) -> u64 {
        self.host.transactions().last().copied().unwrap_or(0)
    }
}

/// At which place to begin, and how many to go on by.
fn places() -> (usize, usize) {
    if std::env::var_os(EVERY_DEATH).is_some() { (0, 1) } else { (fastrand::usize(..SAMPLED), SAMPLED) }
}

fn id(operation: &Value) -> String {
    operation["id"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn apply_survives_crash_before_any_command() {
    an_apply().at_commands(Spring::FatalBefore);
}

#[test]
fn apply_survives_crash_after_any_command() {
    an_apply().at_commands(Spring::FatalAfter);
}

#[test]
fn apply_survives_crash_in_any_transaction() {
    an_apply().in_transactions();
}

#[test]
fn replay_survives_crash_before_any_command() {
    a_replay(false).at_commands(Spring::FatalBefore);
}

#[test]
fn replay_survives_crash_after_any_command() {
    a_replay(false).at_commands(Spring::FatalAfter);
}

#[test]
fn replay_survives_crash_in_any_transaction() {
    a_replay(false).in_transactions();
}

#[test]
fn differing_replay_is_undone_after_any_command() {
    a_replay(true).at_commands(Spring::FatalAfter);
}

#[test]
fn differing_replay_is_undone_in_any_transaction() {
    a_replay(true).in_transactions();
}
