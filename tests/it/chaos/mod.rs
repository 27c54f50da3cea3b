//! Random kills: manager, control daemons, servers and clients die and stand still at random while tenants are written
//! and programs come and go, beside a foreign control daemon and with one that was adopted; after every kill
//! everything must hold.
//!
//! ```text
//!   plan ──strike──► strike ──► the manager is started again if it died ──► checks ──► the next
//!                    writers write all the time, but not while it is checked
//! ```
//!
//! Every decision comes from the seed. What processes do with their time does not, so a seed that failed may pass; the
//! history of the last steps is printed with it. `MPS_MANAGER_SEED`, `MPS_MANAGER_KILLS` and `MPS_MANAGER_HOSTS` say
//! otherwise than the few kills on two hosts of the ordinary run; `MPS_MANAGER_KIND=maintenance` kills in one way only.

mod checks;
mod dump;
mod foreign;
mod ledger;
mod pairs;
mod plan;
mod programs;
mod story;
mod strike;
mod writers;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Host, heavy, setting};
use foreign::Untouched;
use plan::{ADOPTED, ADOPTED_GPU, EXCLUSIVE, FOREIGN_GPU, Strike, VOLATILE, VOLATILE_GPU};
use programs::Programs;
use story::Story;
use strike::Outcome;
use writers::{Desk, Writers};

/// Tenants that nobody writes after the beginning.
const GIVEN: [&str; 5] = ["batch", "demo", "steady1", "steady2", "steady3"];
/// One of them for each daemon.
const STEADY: [&str; 4] = ["batch", "steady1", "steady2", "steady3"];
/// Programs that run at most.
const MOST_PROGRAMS: usize = 10;

/// The processes of a daemon that is well.
#[derive(Debug, Clone, Copy)]
struct Standing {
    control: u32,
    server: u32,
}

/// A host with all that lives on it. Ended in this order.
struct Scene {
    writers: Writers,
    programs: Programs,
    foreign: Untouched,
    host: Host,
    desk: Arc<Desk>,
    /// For what depends on what is there; the strikes have a source of their own, so that they depend on the seed alone.
    rng: Rng,
}

#[test]
fn nothing_is_lost_whatever_is_killed() {
    let _turn = heavy();
    let kills = setting("MPS_MANAGER_KILLS").unwrap_or(12);
    let hosts = setting("MPS_MANAGER_HOSTS").unwrap_or(2).max(1);
    let seed = setting("MPS_MANAGER_SEED").unwrap_or_else(|| getrandom::u64().expect("random bytes") >> 32);
    eprintln!("{kills} kills on {hosts} hosts, seeds {seed} to {}", seed + hosts - 1);
    let began = Instant::now();
    let hosts: Vec<_> = (0..hosts)
        .map(|host| {
            let kills = kills / hosts + u64::from(host < kills % hosts);
            let kills = u32::try_from(kills).expect("a few thousand");
            std::thread::spawn(move || Scene::play(seed + host, kills))
        })
        .collect();
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let mut failed = None;
    for host in hosts {
        match host.join() {
            Ok(counted) => {
                for (what, count) in counted {
                    *counts.entry(what).or_default() += count;
                }
            }
            Err(panic) => failed = Some(panic),
        }
    }
    if let Some(panic) = failed {
        std::panic::resume_unwind(panic);
    }
    for (what, count) in &counts {
        eprintln!("{count:>7} {what}");
    }
    eprintln!("{kills} kills in {} s", began.elapsed().as_secs());
    assert!(counts.contains_key("writes acknowledged"), "{counts:?}");
    assert!(counts.contains_key("programs that ran"), "{counts:?}");
    // What is checked only where it occurs must have occurred.
    assert!(counts.contains_key(checks::CONNECTED_RUN), "{counts:?}");
    assert!(counts.contains_key(checks::LOGGED), "{counts:?}");
    let count = |what: &str| counts.get(what).copied().unwrap_or(0);
    let unavailable = count(writers::UNAVAILABLE);
    assert!(unavailable * 100 <= count("writes acknowledged"), "{unavailable} writes refused: {counts:?}");
    for what in ["maintenance", "drain"] {
        let (done, failed) = (count(&format!("{what} \"succeeded\"")), count(&format!("{what} \"failed\"")));
        assert!(
            failed < 4 || failed <= done,
            "{what} failed {failed} times of {}: {counts:?}",
            done + failed
        );
    }
}

impl Scene {
    /// Plays a seed to its end; gives what was counted.
    fn play(seed: u64, kills: u32) -> BTreeMap<String, u64> {
        let mut strikes = Rng::with_seed(seed);
        let only = std::env::var("MPS_MANAGER_KIND").unwrap_or_default();
        let kinds = plan::kinds();
        assert!(
            kinds.iter().any(|kind| kind.contains(&only)),
            "MPS_MANAGER_KIND is {only:?}: give a part of one of {kinds:?}"
        );
        let (mut scene, mut standing) = Self::set(seed, &mut strikes);
        for number in 1..=kills {
            scene.desk.story.kill(number);
            scene.churn();
            std::thread::sleep(Duration::from_micros(strikes.u64(..60_000)));
            scene.writers.check();
            let mut drawn = std::iter::repeat_with(|| Strike::draw(&mut strikes));
            let strike = drawn.find(|strike| strike.kind().contains(&only)).expect("of that kind");
            scene.desk.story.log(format!("{strike:?} on {standing:?}"));
            let began = Instant::now();
            let outcome = scene.strike(&strike, &standing);
            let struck = Instant::now();
            scene.desk.story.count(&format!("kills: {}", strike.kind()));
            if outcome.manager_died {
                scene.serve();
            }
            standing = scene.quietly(Some(&strike), &outcome, &standing, struck);
            let took = u64::try_from(began.elapsed().as_millis()).expect("short");
            scene.desk.story.add(&format!("ms from kill to all checked: {}", strike.kind()), took);
        }
        let desk = Arc::clone(&scene.desk);
        scene.check_mode_restored();
        drop(scene);
        desk.story.counts()
    }

    /// A host with daemons, tenants and a foreign daemon, all healthy and polled.
    ///
    /// Its manager is killed a few times before the first start has ended.
    fn set(seed: u64, strikes: &mut Rng) -> (Self, Vec<Standing>) {
        let story = Story::new(seed);
        let mut host = Host::of("h200x6", "control_deadline_s = 5\nstop_grace_s = 1");
        for _ in 0..3 {
            let mut manager = host.start_manager();
            let after = strikes.u64(..400);
            std::thread::sleep(Duration::from_millis(after));
            manager.kill().expect("killed");
            manager.wait().expect("reaped");
            story.log(format!("the manager was killed {after} ms after its first start"));
        }
        host.serve();
        host.await_ready();
        for gpu in [ADOPTED_GPU, FOREIGN_GPU, VOLATILE_GPU] {
            host.api().succeeds(&host.api().delete(&format!("/api/v1/daemons/gpu{gpu}?grace_s=1")));
        }
        let volatile = json!({"gpus": [VOLATILE_GPU.to_string()]});
        assert_eq!(host.api().put(&format!("/api/v1/daemons/{VOLATILE}"), &volatile).status, 201);
        foreign::adopt(&host, ADOPTED_GPU);
        for (name, daemon) in [("steady1", "gpu1"), ("steady2", "gpu2")] {
            let spec = json!({
                "daemon": daemon, "uid": 0, "device_memory_limit": "1536M", "active_thread_percentage": 25, "max_clients": 3,
            });
            assert_eq!(host.api().tenant(name, &spec).status, 201);
        }
        // Its limits are what the adopted daemon was found with.
        let heir = json!({"daemon": ADOPTED, "uid": 0, "max_clients": 3});
        assert_eq!(host.api().tenant("steady3", &heir).status, 201);
        let exclusive = json!({"gpus": [EXCLUSIVE.to_string()], "compute_mode": "exclusive_process"});
        let put = host.api().put(&format!("/api/v1/daemons/{}", plan::DAEMONS[EXCLUSIVE]), &exclusive);
        assert_eq!(put.status, 200, "{}", put.text);
        host.await_ready();
        let foreign = Untouched::start(&host, FOREIGN_GPU);
        let desk = Arc::new(Desk::new(story));
        {
            let mut ledger = desk.ledger.lock().expect("unpoisoned");
            for name in GIVEN {
                ledger.given(name, &host.api().get(&format!("/api/v1/tenants/{name}")).ok()["spec"]);
            }
            for name in plan::DAEMONS.into_iter().chain([VOLATILE]) {
                ledger.given_daemon(name, &host.daemon(name)["spec"]);
            }
        }
        let writers = Writers::start(&desk, host.api(), seed);
        let rng = strikes.fork();
        let mut scene = Self { writers, programs: Programs::default(), foreign, host, desk, rng };
        // One at least is found listed, however few kills there are.
        scene.programs.run(&scene.host, GIVEN[0], &scene.desk.story);
        let standing = scene.quietly(None, &Outcome::default(), &[], Instant::now());
        (scene, standing)
    }

    /// Checks while nobody writes.
    fn quietly(
        &mut self,
        strike: Option<&Strike>,
        outcome: &Outcome,
        before: &[Standing],
        struck: Instant,
    ) -> Vec<Standing> {
        let desk = Arc::clone(&self.desk);
        let _quiet = desk.gate.write().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        let standing = self.check(strike, outcome, before, struck);
        self.desk.story.log(format!("all is ready after {} ms", began.elapsed().as_millis()));
        standing
    }

    /// Programs come and go.
    fn churn(&mut self) {
        let running = self.programs.connected().count() as u64;
        if running > 0 {
            self.desk.story.count("programs that ran");
        }
        for _ in 0..self.rng.u32(..3) {
            if self.programs.len() >= MOST_PROGRAMS {
                let number = self.rng.usize(..);
                let with = if self.rng.bool() { Signal::KILL } else { Signal::TERM };
                if let Some(pid) = self.programs.pick(number) {
                    self.programs.end(pid, with, &self.desk.story);
                }
            }
            let tenant = self.tenant();
            if self.rng.bool() {
                self.programs.run(&self.host, &tenant, &self.desk.story);
            } else {
                self.programs.plain(&self.host, &tenant, &self.desk.story);
            }
        }
    }

    fn tenant(&mut self) -> String {
        let written = self.desk.ledger.lock().expect("unpoisoned").names();
        if written.is_empty() || self.rng.u32(..3) > 0 {
            return GIVEN[self.rng.usize(..GIVEN.len())].to_owned();
        }
        written[self.rng.usize(..written.len())].clone()
    }
}
