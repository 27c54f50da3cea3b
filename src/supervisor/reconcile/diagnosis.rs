//! Diagnosis of a daemon that could not be read: a reason, the likely cause, and the remedy. Pure; `observe/gather.rs`
//! gathers the evidence.

use std::collections::BTreeMap;

use crate::domain::condition::ConditionReason;
use crate::domain::wedge::processes;
use crate::mps::process::ForeignCaller;
use crate::supervisor::blocker::Blocker;
use crate::supervisor::observe::evidence::{DiagnosisEvidence, Pipes};
use crate::supervisor::observe::poll_outcome::PollOutcome;
use crate::supervisor::reconcile::wedge::timeout_ms;
use crate::supervisor::remedy::Remedy;

/// Most processes that a message names.
const NAMED: usize = 4;

/// Diagnoses the outcome of a poll; `None` if everything was read.
pub(crate) fn name(outcome: &PollOutcome, evidence: &DiagnosisEvidence) -> Option<Blocker> {
    let (reason, message) = match (outcome, &evidence.pipes) {
        (PollOutcome::Seen(_), _) => return None,
        (_, Pipes::Lost(what)) => (ConditionReason::PipeDirectoryLost, pipes_lost(what)),
        (PollOutcome::Mute(why), _) if evidence.callers.is_empty() => {
            (ConditionReason::ControlProgramFailed, mute(why))
        }
        (PollOutcome::Misbehaved(what), _) => (ConditionReason::ControlProgramFailed, misbehaved(what)),
        (PollOutcome::Busy(why) | PollOutcome::Mute(why), _) if evidence.held.is_empty() => {
            (ConditionReason::OthersInterfere, interfering(why, evidence))
        }
        (PollOutcome::Busy(why) | PollOutcome::Mute(why), _) => {
            (ConditionReason::SessionHeldOpen, held_open(why, evidence))
        }
        (PollOutcome::Unanswered(_), _) if evidence.shows_hung_server() => {
            (ConditionReason::ServerHangs, server_hangs(evidence))
        }
        (PollOutcome::Unanswered(command), _) => (ConditionReason::Wedged, wedged(command, evidence)),
        (PollOutcome::Unreadable(why), _) => (ConditionReason::Unreadable, unreadable(why)),
        (PollOutcome::NoFiles(why), _) => (ConditionReason::FilesExhausted, no_files(why)),
        (PollOutcome::NotRun(why), _) => (ConditionReason::ControlProgramFailed, why.clone()),
    };
    Some(Blocker { reason, message })
}

fn unreadable(why: &str) -> String {
    format!(
        "its answer could not be understood, so nothing is concluded from it: {why}; should it stay, compare the version \
         of nvidia-cuda-mps-control with those in docs/hardware.md"
    )
}

fn no_files(why: &str) -> String {
    format!(
        "no control process can be started: {why}; raise LimitNOFILE of the manager's unit, or fs.file-max for the whole \
         host, or end what holds so many files"
    )
}

/// Describes the consequences of a lost pipe directory, and the remedy.
pub(crate) fn pipes_lost(what: &str) -> String {
    format!(
        "{what} while the daemon ran, so no new client can reach it, and one that tries runs outside MPS: the daemon is \
         restarted as soon as no client is connected; restart the daemon to have that at once"
    )
}

/// Describes the consequences of a full log disk, and the remedy.
pub(crate) fn log_disk_full(directory: &std::path::Path, room: u64) -> String {
    format!(
        "{room} bytes are left on the file system of {}: MPS drops the log lines that do not fit, so what happens is seen at the \
         next poll and not at once, and a restart may fail; make room there",
        directory.display()
    )
}

fn misbehaved(what: &str) -> String {
    format!(
        "{what}, so nothing is known of the daemon: run nvidia-cuda-mps-control by hand in its pipe directory, and compare the \
         binary with the one that was installed"
    )
}

fn mute(why: &str) -> String {
    format!(
        "{why}. No other caller was seen meanwhile, and none of them reported that it was turned away: run nvidia-cuda-mps-control by \
         hand in its pipe directory; callers in another PID namespace are not seen"
    )
}

fn interfering(why: &str, evidence: &DiagnosisEvidence) -> String {
    let who = if evidence.callers.is_empty() {
        "none of them was seen; a caller lives for some milliseconds, and one in another PID \
         namespace is not seen"
            .to_owned()
    } else {
        // The callers change all the time; an operator needs their parent processes.
        let mut parents: BTreeMap<String, usize> = BTreeMap::new();
        for caller in &evidence.callers {
            *parents.entry(started_by(caller)).or_default() += 1;
        }
        let named: Vec<String> = parents.into_keys().take(NAMED).collect();
        format!("control processes of others: {}", named.join("; "))
    };
    format!(
        "others keep the daemon busy with sessions of their own ({why}). Seen meanwhile: {who}. Have them read from this API \
         instead, or call less often"
    )
}

fn held_open(why: &str, evidence: &DiagnosisEvidence) -> String {
    let holders = evidence.callers.iter().filter(|caller| evidence.held.contains(&caller.identity));
    let named: Vec<String> = holders
        .take(NAMED)
        .map(|caller| {
            let still = if caller.stopped { ", stopped" } else { "" };
            format!("process {}{still} ({})", caller.identity.pid, started_by(caller))
        })
        .collect();
    format!(
        "another program holds a session with the daemon open, which turns every other caller away ({why}): {}; have it closed, or \
         end that process",
        named.join(", ")
    )
}

fn started_by(caller: &ForeignCaller) -> String {
    let uid = caller.uid.map_or_else(|| "of an unknown user".to_owned(), |uid| format!("of uid {uid}"));
    match &caller.parent {
        Some((pid, command)) => {
            let command: String = command.chars().take(120).collect();
            format!("{uid}, started by process {pid}: {command}")
        }
        None => uid,
    }
}

fn server_hangs(evidence: &DiagnosisEvidence) -> String {
    let servers = if evidence.hung.is_empty() { &evidence.servers } else { &evidence.hung };
    let server: Vec<String> = servers.iter().map(|server| server.pid.to_string()).collect();
    let server = server.join(", ");
    let waiting = match evidence.waiting.as_slice() {
        [] if evidence.waited => "Who waited to connect is gone".to_owned(),
        [] => "Nobody waits to connect".to_owned(),
        pids => format!("Waiting to connect: {}", processes(pids)),
    };
    let working = match evidence.connected.as_deref() {
        None => {
            "who is connected and at work is not known, since server.log was not read from the server's first line on".to_owned()
        }
        Some([]) => "no client is at work".to_owned(),
        Some(pids) => format!("still at work: {}", processes(pids)),
    };
    let next = match &evidence.remedy {
        Remedy::KillServers(_) | Remedy::KillDaemon => "It is being replaced".to_owned(),
        Remedy::WaitUntil(_) => format!(
            "The server is replaced when the daemon has been silent for {}, or sooner when no client is at work; kill -9 {server} \
             does it at once, with those clients",
            replaced_after(evidence)
        ),
        Remedy::WaitForClients => format!(
            "The server is replaced when no client is at work any more, since wedge_policy is wait; kill -9 {server} does it at \
             once, with those clients, and a restart of the daemon after its grace"
        ),
        Remedy::None => {
            format!("Nothing is done, since the daemon is only observed: kill -9 {server} ends the server")
        }
    };
    format!(
        "server {server} hangs, as it does when a client dies while it connects: no client is accepted, and the daemon does not answer. \
         {waiting}; {working}. {next}"
    )
}

fn wedged(command: &str, evidence: &DiagnosisEvidence) -> String {
    let own = evidence.stopped.iter().copied();
    let stopped: Vec<_> = own.chain(evidence.stopped_clients.iter().map(|pid| ("client", *pid))).collect();
    let mut remedy = if let Some(files) = evidence.files.first() {
        files.to_string()
    } else if stopped.is_empty() {
        "no stopped process of it was found: look for a client that hangs, and end its server (kill -9) when nothing else helps"
            .to_owned()
    } else {
        let pids: Vec<String> = stopped.iter().map(|(_, pid)| pid.to_string()).collect();
        let stopped: Vec<String> = stopped.iter().map(|(kind, pid)| format!("{kind} {pid}")).collect();
        let (stopped, pids) = (stopped.join(", "), pids.join(" "));
        format!("stopped (SIGSTOP): {stopped}; continue what is stopped (`kill -CONT {pids}`) or end it")
    };
    match &evidence.remedy {
        Remedy::None => {}
        Remedy::KillServers(_) | Remedy::KillDaemon => remedy.push_str(". It is being replaced"),
        Remedy::WaitUntil(_) => {
            remedy.push_str(
                ". Its server is replaced, with the clients at work, when the daemon has been silent for ",
            );
            remedy.push_str(&replaced_after(evidence));
        }
        Remedy::WaitForClients => {
            remedy.push_str(
                ". Its server is replaced when no client is at work any more, since wedge_policy is wait",
            );
        }
    }
    format!("{command}; until it answers, nothing but reads is sent; {remedy}")
}

/// Returns the silence after which the daemon's server is replaced, in words.
fn replaced_after(evidence: &DiagnosisEvidence) -> String {
    let grace = evidence.wedge.grace.as_millis();
    let timeout = timeout_ms(evidence, evidence.wedge).unwrap_or(grace);
    let setting = if timeout == grace { " (wedge_grace_s)" } else { "" };
    format!("{} s{setting}", timeout / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Identity;

    fn caller(pid: u32, parent: &str) -> ForeignCaller {
        ForeignCaller {
            identity: Identity { pid, start_time: 1 },
            uid: Some(1000),
            stopped: false,
            parent: Some((7, parent.into())),
        }
    }

    fn named(outcome: &PollOutcome, evidence: &DiagnosisEvidence) -> (ConditionReason, String) {
        let Blocker { reason, message } = name(outcome, evidence).expect("a trouble");
        (reason, message)
    }

    #[test]
    fn interfering_loops_are_named_by_their_parent() {
        let callers = vec![caller(1, "sh loop.sh"), caller(2, "sh loop.sh"), caller(3, "watch")];
        let evidence = DiagnosisEvidence { callers, ..DiagnosisEvidence::default() };
        let (reason, message) = named(&PollOutcome::Busy("turned away".into()), &evidence);
        assert_eq!(reason, ConditionReason::OthersInterfere);
        assert_eq!(message.matches("sh loop.sh").count(), 1, "{message}");
        assert!(message.contains("of uid 1000, started by process 7: watch"), "{message}");
        let (reason, message) =
            named(&PollOutcome::Busy("turned away".into()), &DiagnosisEvidence::default());
        assert_eq!(reason, ConditionReason::OthersInterfere);
        assert!(message.contains("none of them was seen"), "{message}");
    }

    #[test]
    fn failing_program_is_not_called_interference() {
        let crashed = PollOutcome::Misbehaved("the control program crashed: signal 11 (SIGSEGV)".into());
        let (reason, message) = named(&crashed, &DiagnosisEvidence::default());
        assert_eq!(reason, ConditionReason::ControlProgramFailed);
        assert!(message.contains("SIGSEGV") && message.contains("by hand"), "{message}");
        let mute = PollOutcome::Mute("31 control processes in a row got no answer".into());
        assert_eq!(named(&mute, &DiagnosisEvidence::default()).0, ConditionReason::ControlProgramFailed);
        let beside =
            DiagnosisEvidence { callers: vec![caller(1, "sh loop.sh")], ..DiagnosisEvidence::default() };
        assert_eq!(named(&mute, &beside).0, ConditionReason::OthersInterfere, "they may be why");
    }

    #[test]
    fn session_holder_is_named_without_other_callers() {
        let callers = vec![caller(1, "sh loop.sh"), caller(2, "python")];
        let evidence =
            DiagnosisEvidence { held: vec![callers[1].identity], callers, ..DiagnosisEvidence::default() };
        let (reason, message) = named(&PollOutcome::Busy("turned away".into()), &evidence);
        assert_eq!(reason, ConditionReason::SessionHeldOpen);
        assert!(message.contains("process 2 (of uid 1000") && !message.contains("loop.sh"), "{message}");
    }

    #[test]
    fn stopped_client_is_named_with_its_remedy() {
        let evidence = DiagnosisEvidence { stopped_clients: vec![9], ..DiagnosisEvidence::default() };
        let (reason, message) = named(&PollOutcome::Unanswered("ps".into()), &evidence);
        assert_eq!(reason, ConditionReason::Wedged);
        assert!(message.contains("client 9") && message.ends_with("(`kill -CONT 9`) or end it"), "{message}");
        let replaced_later = DiagnosisEvidence { remedy: Remedy::WaitUntil(1), ..evidence };
        let (_, message) = named(&PollOutcome::Unanswered("ps".into()), &replaced_later);
        assert!(message.ends_with("when the daemon has been silent for 45 s"), "{message}");
    }

    #[test]
    fn hung_server_is_named_with_its_clients() {
        let hung = vec![Identity { pid: 7, start_time: 1 }];
        let evidence = DiagnosisEvidence {
            hung: hung.clone(),
            connected: Some(vec![8, 9]),
            waiting: vec![11],
            remedy: Remedy::WaitUntil(1),
            ..DiagnosisEvidence::default()
        };
        let (reason, message) = named(&PollOutcome::Unanswered("ps".into()), &evidence);
        assert_eq!(reason, ConditionReason::ServerHangs);
        assert!(
            message.contains("server 7 hangs") && message.contains("at work: processes 8, 9"),
            "{message}"
        );
        assert!(
            message.contains("Waiting to connect: process 11") && message.contains("kill -9 7"),
            "{message}"
        );
        assert!(message.contains("5 s (wedge_grace_s)"), "{message}");
        let unknown = DiagnosisEvidence { hung: hung.clone(), ..DiagnosisEvidence::default() };
        assert!(named(&PollOutcome::Unanswered("ps".into()), &unknown).1.contains("not known"));
        let waits =
            DiagnosisEvidence { servers: hung.clone(), waiting: vec![11], ..DiagnosisEvidence::default() };
        assert_eq!(
            named(&PollOutcome::Unanswered("ps".into()), &waits).0,
            ConditionReason::ServerHangs,
            "as in recording 20"
        );
        let gone = DiagnosisEvidence { servers: hung.clone(), waited: true, ..DiagnosisEvidence::default() };
        let (reason, message) = named(&PollOutcome::Unanswered("ps".into()), &gone);
        assert_eq!(reason, ConditionReason::ServerHangs);
        assert!(message.contains("Who waited to connect is gone"), "{message}");
        let client = DiagnosisEvidence {
            hung: hung.clone(),
            stopped_clients: vec![9],
            ..DiagnosisEvidence::default()
        };
        assert_eq!(
            named(&PollOutcome::Unanswered("ps".into()), &client).0,
            ConditionReason::ServerHangs,
            "whatever a client does"
        );
        let stopped =
            DiagnosisEvidence { hung, stopped: vec![("server", 7)], ..DiagnosisEvidence::default() };
        assert_eq!(
            named(&PollOutcome::Unanswered("ps".into()), &stopped).0,
            ConditionReason::Wedged,
            "a stopped process may be continued"
        );
    }

    #[test]
    fn a_lost_directory_explains_everything_else() {
        let pipes = Pipes::Lost("its pipe directory /p was removed".into());
        for outcome in [
            PollOutcome::Busy(String::new()),
            PollOutcome::Unanswered(String::new()),
            PollOutcome::Unreadable(String::new()),
        ] {
            let evidence = DiagnosisEvidence { pipes: pipes.clone(), ..DiagnosisEvidence::default() };
            assert_eq!(named(&outcome, &evidence).0, ConditionReason::PipeDirectoryLost);
        }
        assert_eq!(
            named(&PollOutcome::NoFiles(String::new()), &DiagnosisEvidence::default()).0,
            ConditionReason::FilesExhausted
        );
    }
}
