//! Striking, and nothing else: who dies when.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;

use super::plan::{BORROWED, DAEMONS, Part, Strike, VOLATILE, VOLATILE_GPU};
use super::{Scene, Standing};
use crate::harness::{
    Answer, Api, Host, command_line, eventually, is_alive, processes_with, signal_if_there,
};

/// What a strike leaves behind to be checked.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) manager_died: bool,
    /// Programs that were struck themselves.
    pub(super) doomed: Vec<u32>,
    /// Where an operation that was accepted is to be found, and what it is to come to.
    pub(super) operation: Option<(String, Aim)>,
    /// The foreign daemon was adopted, and its release was asked for.
    pub(super) released: Option<Release>,
}

/// How a release was answered, if it was.
#[derive(Debug, Clone, Copy)]
pub(super) struct Release(pub(super) Option<u16>);

/// What an operation is to come to, whatever became of the manager.
#[derive(Debug, Clone, Copy)]
pub(super) enum Aim {
    Success,
    /// A daemon that no longer has this control process, however often it was asked for.
    Restarted(&'static str, u32),
    /// The end of a program, if it succeeds.
    End(u32),
    /// A daemon without clients that takes no new ones, if it succeeds, or else one that does.
    Drained(&'static str),
}

/// Sends a signal to a process that may be gone.
pub(super) fn send(pid: u32, signal: Signal) {
    signal_if_there(pid, signal);
}

fn pause(us: u64) {
    std::thread::sleep(Duration::from_micros(us));
}

impl Scene {
    /// Strikes. The manager that dies is not started again here.
    pub(super) fn strike(&mut self, strike: &Strike, standing: &[Standing]) -> Outcome {
        let mut outcome = Outcome::default();
        match strike {
            Strike::Kill(parts) => self.kill(parts, standing, &mut outcome),
            Strike::InAWrite { after_us } => {
                let until = Instant::now() + Duration::from_millis(200);
                while self.desk.in_flight.load(Ordering::SeqCst) == 0 && Instant::now() < until {
                    std::thread::yield_now();
                }
                pause(*after_us);
                self.kill_manager(&mut outcome);
            }
            Strike::AtItsStart { after_us } => {
                self.kill_manager(&mut outcome);
                for after in after_us {
                    let mut manager = self.host.start_manager();
                    pause(*after);
                    manager.kill().expect("killed");
                    manager.wait().expect("reaped");
                }
            }
            Strike::Successor { daemon, after_us } => {
                send(standing[*daemon].control, Signal::KILL);
                let next = eventually("another control daemon starts", || {
                    let starting = starting(&self.host, DAEMONS[*daemon], standing[*daemon].control);
                    (!starting.is_empty()).then_some(starting)
                });
                pause(*after_us);
                for pid in
                    next.into_iter().chain(starting(&self.host, DAEMONS[*daemon], standing[*daemon].control))
                {
                    send(pid, Signal::KILL);
                }
            }
            Strike::WhileItStarts { daemon, after_us } => {
                send(standing[*daemon].control, Signal::KILL);
                pause(*after_us);
                self.kill_manager(&mut outcome);
            }
            Strike::WhileItServes { daemon, after_us } => {
                send(standing[*daemon].server, Signal::KILL);
                pause(*after_us);
                self.kill_manager(&mut outcome);
            }
            Strike::Stop { part, ms } => {
                let Some(pid) = self.process(*part, standing) else { return outcome };
                send(pid, Signal::STOP);
                std::thread::sleep(Duration::from_millis(*ms));
                send(pid, Signal::CONT);
            }
            Strike::Session => {
                let until = Instant::now() + Duration::from_secs(2);
                let manager = self.host.manager_pid();
                let found = std::iter::repeat_with(|| sessions(manager).first().copied())
                    .take_while(|_| Instant::now() < until)
                    .find_map(|found| found);
                if let Some(pid) = found {
                    send(pid, Signal::KILL);
                    self.desk.story.count("control programs killed in a session");
                }
            }
            Strike::Terminating { client, after_us } => self.terminating(*client, *after_us, &mut outcome),
            Strike::Restarting { daemon, after_us } => {
                let (name, control) = (DAEMONS[*daemon], standing[*daemon].control);
                let place = place(&self.restart(name, control));
                outcome.operation = Some((place, Aim::Restarted(name, control)));
                pause(*after_us);
                self.kill_manager(&mut outcome);
            }
            Strike::Draining { daemon, after_us } => {
                let name = DAEMONS[*daemon];
                let path = format!("/api/v1/daemons/{name}/drain?timeout_s=0&on_timeout=terminate");
                let place = place(&self.host.api().post(&path, &json!({})));
                outcome.operation = Some((place, Aim::Drained(name)));
                pause(*after_us);
                self.kill_manager(&mut outcome);
            }
            Strike::Maintaining { daemon, after_us } => self.maintaining(*daemon, *after_us, &mut outcome),
            Strike::Borrowing { managed, after_us } => self.borrowing(*managed, *after_us, &mut outcome),
            Strike::Deleting { after_us } => self.deleting(*after_us, &mut outcome),
            Strike::Admitted { daemon } => self.admit(*daemon, standing[*daemon], &mut outcome),
            Strike::Hanging { daemon } => self.hanging(*daemon, standing[*daemon], &mut outcome),
        }
        outcome
    }

    fn kill(&mut self, parts: &[Part], standing: &[Standing], outcome: &mut Outcome) {
        for part in parts {
            match part {
                Part::Manager => self.kill_manager(outcome),
                Part::Client(number) => {
                    if let Some(pid) = self.programs.pick(*number) {
                        outcome.doomed.push(pid);
                        send(pid, Signal::KILL);
                    }
                }
                Part::Daemon(daemon) => send(standing[*daemon].control, Signal::KILL),
                Part::Server(daemon) => send(standing[*daemon].server, Signal::KILL),
            }
        }
    }

    fn kill_manager(&mut self, outcome: &mut Outcome) {
        if !outcome.manager_died {
            self.end_manager();
            outcome.manager_died = true;
        }
    }

    fn end_manager(&mut self) {
        self.desk.manager_goes();
        self.host.end_manager(Signal::KILL);
    }

    /// Another manager, after which no write may stay without an answer.
    pub(super) fn serve(&mut self) {
        self.host.serve();
        self.desk.manager_is_back();
    }

    fn process(&mut self, part: Part, standing: &[Standing]) -> Option<u32> {
        match part {
            Part::Manager => Some(self.host.manager_pid()),
            Part::Daemon(daemon) => Some(standing[daemon].control),
            Part::Server(daemon) => Some(standing[daemon].server),
            Part::Client(number) => self.programs.pick(number),
        }
    }

    fn terminating(&mut self, client: usize, after_us: u64, outcome: &mut Outcome) {
        if let Some(pid) = self.programs.pick(client) {
            let client = self.host.listed(pid);
            let id = client["id"].as_str().expect("an ID");
            let accepted = self.host.api().post(&format!("/api/v1/clients/{id}/terminate"), &json!({}));
            outcome.operation = Some((place(&accepted), Aim::End(pid)));
            outcome.doomed.push(pid);
            pause(after_us);
        }
        self.kill_manager(outcome);
    }

    /// Asks for the restart of a daemon that has this control process; asked again, it is the same restart.
    pub(super) fn restart(&self, daemon: &str, control: u32) -> Answer {
        let path = format!("/api/v1/daemons/{daemon}/restart?grace_s=0");
        let key = format!("restart-{control}");
        self.host.api().send(Method::POST, &path, &[("Idempotency-Key", &key)], None)
    }

    fn maintaining(&mut self, daemon: usize, after_us: [u64; 2], outcome: &mut Outcome) {
        const PATH: &str = "/api/v1/host/maintenance";
        let request = json!({"gpus": [daemon.to_string()], "timeout_s": 0, "on_timeout": "terminate"});
        let begun = place(&self.host.api().post(PATH, &request));
        pause(after_us[0]);
        self.end_manager();
        self.serve();
        let ended = eventually("maintenance has begun or failed", || {
            let operation = self.host.api().get(&begun).ok();
            (operation["state"] == "succeeded" || operation["state"] == "failed").then_some(operation)
        });
        self.desk.story.log(format!("maintenance: {ended}"));
        self.desk.story.count(&format!("maintenance {}", ended["state"]));
        let down = self.host.api().get(PATH).ok()["state"] == "active";
        assert_eq!(down, ended["state"] == "succeeded", "{ended}");
        if down {
            self.check_released(daemon);
            outcome.operation = Some((place(&self.host.api().delete(PATH)), Aim::Success));
            pause(after_us[1]);
        }
        self.kill_manager(outcome);
    }

    fn deleting(&mut self, after_us: [u64; 2], outcome: &mut Outcome) {
        let path = format!("/api/v1/daemons/{VOLATILE}");
        let deletion = place(&self.host.api().delete(&format!("{path}?grace_s=0")));
        pause(after_us[0]);
        self.end_manager();
        self.serve();
        self.check_operation(&deletion, Aim::Success);
        assert_eq!(self.host.api().get(&path).status, 404);
        for program in ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
            let left = super::checks::processes(&self.host, VOLATILE, program);
            assert!(left.is_empty(), "{left:?} of a daemon that was deleted");
        }
        let spec = json!({"gpus": [VOLATILE_GPU.to_string()]});
        let created = self.host.api().put(&path, &spec);
        assert_eq!(created.status, 201, "{}", created.text);
        pause(after_us[1]);
        self.kill_manager(outcome);
    }

    fn borrowing(&mut self, managed: bool, after_us: [u64; 2], outcome: &mut Outcome) {
        let path = format!("/api/v1/daemons/{BORROWED}");
        let management = if managed { "managed" } else { "observed" };
        let process = self.host.foreign_id(&self.foreign.daemon);
        let request = json!({"process": process, "management": management}).to_string();
        let post = |what: &str, body: &str| {
            let (path, body) = (format!("{path}/{what}"), body.to_owned());
            move |api: &Api| api.try_send(Method::POST, &path, &[], Some(body)).ok()
        };
        let answered = self.while_asking(after_us[0], post("adopt", &request));
        self.serve();
        assert!(answered.as_ref().is_none_or(|answer| answer.status == 201), "{answered:?}");
        let borrowed = self.is_borrowed();
        self.desk.story.log(format!("adoption: {answered:?}, adopted: {borrowed}"));
        assert!(borrowed || answered.is_none(), "the adoption was answered and is lost: {answered:?}");
        if borrowed {
            let what = if answered.is_some() { "answered" } else { "done without an answer" };
            self.desk.story.count(&format!("adoptions that were {what}"));
        } else {
            self.desk.story.count("adoptions that a death undid");
            let adopted = post("adopt", &request)(self.host.api()).expect("the manager answers");
            assert_eq!(adopted.status, 201, "{}", adopted.text);
        }
        self.host.await_phase(BORROWED, if managed { "ready" } else { "observed" });
        assert!(self.is_borrowed());
        self.foreign.check();
        let answered = self.while_asking(after_us[1], post("release", "{}"));
        outcome.released = Some(Release(answered.map(|answer| answer.status)));
        outcome.manager_died = true;
    }

    /// Kills the manager so long after a request began; gives the answer, if one came.
    fn while_asking(
        &mut self,
        after_us: u64,
        ask: impl FnOnce(&Api) -> Option<Answer> + Send,
    ) -> Option<Answer> {
        let api = self.host.api().clone();
        std::thread::scope(|scope| {
            let asking = scope.spawn(move || ask(&api));
            pause(after_us);
            self.end_manager();
            asking.join().expect("no answer is an answer too")
        })
    }

    /// The manager has to end the server that hangs, once nobody is connected to it.
    fn admit(&mut self, daemon: usize, standing: Standing, outcome: &mut Outcome) {
        let name = DAEMONS[daemon];
        self.host.hang_server(name, super::STEADY[daemon]);
        self.desk.story.log(format!("server {} of {name} has taken a dead client", standing.server));
        eventually("a server that hangs and serves nobody is ended", || {
            for pid in self.programs.of(name) {
                outcome.doomed.push(pid);
                send(pid, Signal::KILL);
            }
            (!is_alive(standing.server)).then_some(())
        });
    }

    fn hanging(&mut self, daemon: usize, standing: Standing, outcome: &mut Outcome) {
        let name = DAEMONS[daemon];
        let ready = self.host.logged(name, "Ready");
        send(standing.server, Signal::KILL);
        if let Some(pid) = self.programs.plain(&self.host, super::STEADY[daemon], &self.desk.story) {
            outcome.doomed.push(pid);
            let waits = format!("NEW CLIENT {pid} ");
            eventually("the client waits for a server", || {
                (self.host.logged(name, &waits) > 0).then_some(())
            });
            send(pid, Signal::KILL);
        }
        eventually("the next server comes up", || (self.host.logged(name, "Ready") > ready).then_some(()));
        pause(30_000);
        let server = super::checks::processes(&self.host, name, "nvidia-cuda-mps-server");
        self.desk.story.log(format!("server {server:?} of {name} has taken a dead client"));
        send(standing.control, Signal::KILL);
        self.kill_manager(outcome);
    }
}

/// Where an operation that was accepted is to be found.
fn place(accepted: &Answer) -> String {
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    accepted.header("location").expect("the address of the operation").to_owned()
}

/// The control programs that a manager has running; read without a pause, since each lives for milliseconds.
fn sessions(manager: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{manager}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<String> = children.collect();
    let pids =
        children.iter().flat_map(|list| list.split_ascii_whitespace()).filter_map(|pid| pid.parse().ok());
    pids.filter(|pid| {
        let words = command_line(*pid);
        words.len() == 1 && words[0].ends_with("nvidia-cuda-mps-control")
    })
    .collect()
}

/// Control processes that become, or have become, the daemon in place of the one that died.
fn starting(host: &Host, daemon: &str, died: u32) -> Vec<u32> {
    let pipe = host.home(daemon).join("pipe");
    let mut found = processes_with("CUDA_MPS_PIPE_DIRECTORY", &pipe);
    found.retain(|pid| {
        let words = command_line(*pid);
        *pid != died
            && words.first().is_some_and(|word| word.ends_with("nvidia-cuda-mps-control"))
            && words.iter().any(|word| word == "-d")
    });
    found
}
