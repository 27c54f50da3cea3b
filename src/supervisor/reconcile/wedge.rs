//! Recovery of a daemon that does not answer because its server hangs. Pure.
//!
//! ```text
//!   silent ── no client works ────────────────────► kill the server ── it answers ──► over
//!      └── clients work ── wedge_grace_s is over ─►        └── still silent ──► kill the control daemon
//! ```
//!
//! If server.log does not show that the server hangs, recovery takes longer, depending on the other evidence. With
//! [`WedgePolicy::Replace`] every silence ends, except one that a stopped process of the daemon or a lack of files explains.
//!
//! On real hardware the control daemon hangs with its server, killing the waiting client does not help, and `kill -9` of the
//! server helps at once (FACTS.md, "A client killed while it connects").

use crate::domain::wedge::{WedgePolicy, WedgeSettings};
use crate::supervisor::observe::evidence::DiagnosisEvidence;
use crate::supervisor::remedy::Remedy;

/// Time that a daemon gets to answer again once its server was killed, before it is killed too.
const HEAL_MS: i64 = 2_000;
/// Least silence before a server is killed if server.log does not show that it hangs, and only a waiting client does.
const UNPROVEN_MS: i64 = 5_000;
/// Least silence if the client that waited is gone, because its user ended it: two sessions without an answer.
const WAITER_GONE_MS: i64 = 10_000;
/// Least silence without any evidence: a server of many GPUs takes long to start, and its daemon is silent meanwhile.
const UNEXPLAINED_MS: i64 = 45_000;

/// Duration of a daemon's silence, and the measures taken against it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WedgeDetector {
    /// Beginning of the first session that got no answer.
    since: Option<i64>,
    /// Time at which its servers were killed for it.
    killed_at: Option<i64>,
    /// True if another cause was last found to explain the silence; it may be over since.
    explained: bool,
    /// True if a client waited to connect at any time during the silence.
    waited: bool,
}

impl WedgeDetector {
    /// Notes that a session that began at `began` got no answer until now.
    pub(crate) fn note_silence(&mut self, began: i64, now: i64) {
        // A process that was continued during that session gets the time of a whole one to answer.
        let since = if std::mem::take(&mut self.explained) { now } else { began };
        self.since.get_or_insert(since);
    }

    /// Notes that another cause explains the silence, a stopped process or one that is out of files, and forgets the silence so far.
    pub(crate) fn note_explained(&mut self) {
        *self = Self { explained: true, ..Self::default() };
    }

    /// Notes that a client waited to connect; it may end meanwhile.
    pub(crate) fn client_waited(&mut self) {
        self.waited = true;
    }

    /// Returns true if a client waited to connect at any time during the silence.
    pub(crate) fn has_seen_waiting(&self) -> bool {
        self.waited
    }

    /// Notes that its servers were killed.
    pub(crate) fn server_killed(&mut self, now: i64) {
        self.killed_at = Some(now);
    }

    /// Returns true if its servers were killed, and it has not answered since.
    pub(crate) fn is_after_kill(&self) -> bool {
        self.killed_at.is_some()
    }
}

/// Chooses the remedy for a daemon that was silent until `now`.
pub(crate) fn remedy(
    silence: WedgeDetector,
    evidence: &DiagnosisEvidence,
    settings: WedgeSettings,
    now: i64,
) -> Remedy {
    if evidence.is_explained() {
        return Remedy::None;
    }
    let Some(since) = silence.since else { return Remedy::None };
    if let Some(killed) = silence.killed_at {
        let until = killed + HEAL_MS;
        return if now < until { Remedy::WaitUntil(until) } else { Remedy::KillDaemon };
    }
    let Some(timeout) = timeout_ms(evidence, settings) else { return Remedy::WaitForClients };
    let until = since + timeout;
    if now < until {
        return Remedy::WaitUntil(until);
    }
    let servers = if evidence.hung.is_empty() { &evidence.servers } else { &evidence.hung };
    if servers.is_empty() { Remedy::KillDaemon } else { Remedy::KillServers(servers.clone()) }
}

/// Returns the silence after which a daemon's server is replaced; `None` while clients are at work and the policy waits for
/// them. A stopped client gets the time of any client at work, since it blocks the daemon only if MPS was asked to end it
/// (recording 07).
pub(crate) fn timeout_ms(evidence: &DiagnosisEvidence, settings: WedgeSettings) -> Option<i64> {
    let sure = if !evidence.hung.is_empty() {
        0
    } else if evidence.servers.is_empty() {
        UNEXPLAINED_MS
    } else if !evidence.waiting.is_empty() {
        UNPROVEN_MS
    } else if evidence.waited {
        WAITER_GONE_MS
    } else {
        UNEXPLAINED_MS
    };
    let no_client_works = evidence.connected.as_ref().is_some_and(Vec::is_empty);
    match settings.policy {
        _ if no_client_works => Some(sure),
        WedgePolicy::Replace => Some(sure.max(settings.grace.as_millis())),
        WedgePolicy::Wait => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::wedge::WedgeGrace;
    use crate::host::Identity;

    const SERVER: Identity = Identity { pid: 7, start_time: 1 };

    fn hung(connected: Option<Vec<u32>>) -> DiagnosisEvidence {
        DiagnosisEvidence {
            hung: vec![SERVER],
            servers: vec![SERVER],
            connected,
            ..DiagnosisEvidence::default()
        }
    }

    fn silent_since(since: i64) -> WedgeDetector {
        WedgeDetector { since: Some(since), ..WedgeDetector::default() }
    }

    fn at(evidence: &DiagnosisEvidence, now: i64) -> Remedy {
        remedy(silent_since(0), evidence, WedgeSettings::default(), now)
    }

    #[test]
    fn hung_server_with_only_waiting_clients_is_killed() {
        let evidence = DiagnosisEvidence { waiting: vec![9], ..hung(Some(vec![])) };
        assert_eq!(at(&evidence, 1_000), Remedy::KillServers(vec![SERVER]));
    }

    #[test]
    fn connected_clients_get_the_grace() {
        for connected in [Some(vec![8]), None] {
            let evidence = hung(connected);
            assert_eq!(at(&evidence, 1_000), Remedy::WaitUntil(5_000));
            assert_eq!(at(&evidence, 5_000), Remedy::KillServers(vec![SERVER]));
            let longer = WedgeSettings {
                grace: WedgeGrace::try_from(60).expect("a minute"),
                ..WedgeSettings::default()
            };
            assert_eq!(remedy(silent_since(0), &evidence, longer, 59_000), Remedy::WaitUntil(60_000));
            let wait = WedgeSettings { policy: WedgePolicy::Wait, ..WedgeSettings::default() };
            assert_eq!(remedy(silent_since(0), &evidence, wait, i64::MAX), Remedy::WaitForClients);
            let nobody = hung(Some(vec![]));
            let killed = Remedy::KillServers(vec![SERVER]);
            assert_eq!(remedy(silent_since(0), &nobody, wait, 1_000), killed, "the last one has left");
        }
    }

    #[test]
    fn silent_daemon_is_killed_after_its_server() {
        let mut silence = WedgeDetector::default();
        assert_eq!(remedy(silence, &hung(Some(vec![])), WedgeSettings::default(), 9), Remedy::None);
        silence.note_silence(0, 400);
        silence.note_silence(500, 900);
        silence.server_killed(1_000);
        assert_eq!(silence, WedgeDetector { killed_at: Some(1_000), ..silent_since(0) });
        let after = DiagnosisEvidence::default();
        assert_eq!(remedy(silence, &after, WedgeSettings::default(), 2_999), Remedy::WaitUntil(3_000));
        assert_eq!(remedy(silence, &after, WedgeSettings::default(), 3_000), Remedy::KillDaemon);
    }

    #[test]
    fn waiting_client_alone_is_evidence_after_a_while() {
        let evidence = DiagnosisEvidence { hung: vec![], waiting: vec![9], ..hung(Some(vec![])) };
        assert_eq!(at(&evidence, 4_999), Remedy::WaitUntil(5_000));
        assert_eq!(at(&evidence, 5_000), Remedy::KillServers(vec![SERVER]));
    }

    #[test]
    fn client_that_waited_is_evidence_when_gone() {
        for connected in [Some(vec![]), Some(vec![8]), None] {
            let evidence = DiagnosisEvidence { hung: vec![], waited: true, ..hung(connected) };
            assert_eq!(at(&evidence, WAITER_GONE_MS - 1), Remedy::WaitUntil(WAITER_GONE_MS));
            assert_eq!(at(&evidence, WAITER_GONE_MS), Remedy::KillServers(vec![SERVER]));
        }
        let mut silence = silent_since(0);
        silence.client_waited();
        silence.note_silence(5_000, 6_000);
        assert!(silence.has_seen_waiting(), "within the same silence");
        silence.note_explained();
        assert!(!silence.has_seen_waiting());
    }

    #[test]
    fn silence_beside_clients_ends_unless_policy_waits() {
        for connected in [Some(vec![8]), None] {
            let evidence = DiagnosisEvidence { hung: vec![], ..hung(connected) };
            assert_eq!(at(&evidence, UNEXPLAINED_MS - 1), Remedy::WaitUntil(UNEXPLAINED_MS));
            assert_eq!(at(&evidence, UNEXPLAINED_MS), Remedy::KillServers(vec![SERVER]));
            let grace = WedgeGrace::try_from(60).expect("a minute");
            let longer = WedgeSettings { grace, ..WedgeSettings::default() };
            assert_eq!(remedy(silent_since(0), &evidence, longer, 59_999), Remedy::WaitUntil(60_000));
            let wait = WedgeSettings { policy: WedgePolicy::Wait, ..WedgeSettings::default() };
            assert_eq!(remedy(silent_since(0), &evidence, wait, i64::MAX), Remedy::WaitForClients);
        }
    }

    #[test]
    fn silence_without_clients_ends_in_any_case() {
        let idle = DiagnosisEvidence { hung: vec![], ..hung(Some(vec![])) };
        assert_eq!(at(&idle, UNEXPLAINED_MS), Remedy::KillServers(vec![SERVER]));
        let alone = DiagnosisEvidence { servers: vec![], ..idle };
        assert_eq!(at(&alone, UNEXPLAINED_MS - 1), Remedy::WaitUntil(UNEXPLAINED_MS));
        assert_eq!(at(&alone, UNEXPLAINED_MS), Remedy::KillDaemon);
    }

    #[test]
    fn stopped_client_switches_off_no_healing() {
        let stopped = DiagnosisEvidence { stopped_clients: vec![9], ..hung(Some(vec![8, 9])) };
        assert_eq!(at(&stopped, 4_999), Remedy::WaitUntil(5_000), "a client at work gets the grace");
        assert_eq!(at(&stopped, 5_000), Remedy::KillServers(vec![SERVER]));
        let unproven = DiagnosisEvidence { hung: vec![], ..stopped };
        assert_eq!(at(&unproven, UNEXPLAINED_MS), Remedy::KillServers(vec![SERVER]));
    }

    #[test]
    fn stopped_daemon_or_server_is_not_killed() {
        for what in ["control daemon", "server"] {
            let stopped = DiagnosisEvidence { stopped: vec![(what, 9)], ..hung(Some(vec![])) };
            assert_eq!(at(&stopped, i64::MAX), Remedy::None);
        }
        // A process that is continued in the middle of a session gets another session.
        let mut silence = silent_since(0);
        silence.note_explained();
        silence.note_silence(5_000, 10_000);
        assert_eq!(silence, silent_since(10_000));
    }
}
