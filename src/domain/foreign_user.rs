//! Processes of users who belong to no tenant of a daemon: they use resources that its tenants were promised, and on a daemon that serves
//! one user at a time they lock its tenants out.

use serde::{Deserialize, Serialize};

use super::client::ClientId;
use super::count::first_few;

/// Policy for clients of users who belong to no tenant, on a daemon that serves one user at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ForeignUserPolicy {
    /// They are reported, and ended in the safe order.
    #[default]
    Terminate,
    /// They are only reported.
    Report,
}

/// A process of a user who belongs to no tenant of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignUser {
    /// The process.
    pub process: ClientId,
    /// Its user.
    pub uid: u32,
    /// Its program, without arguments.
    pub program: Option<String>,
    /// True if it waits until the clients of another user have ended; else it is connected.
    pub waits: bool,
}

/// Returns true for a user who may use or administer a daemon: those of its tenants, those whom its administrator added, root, and the
/// user who runs it.
pub fn has_business(
    uid: u32,
    runner: u32,
    others: (bool, &[u32]),
    mut tenants: impl Iterator<Item = u32>,
) -> bool {
    let (everyone, users) = others;
    // Root and the user who runs it administer it.
    uid == 0 || uid == runner || everyone || users.contains(&uid) || tenants.any(|tenant| tenant == uid)
}

/// Puts the text of [`describe_foreign_users`] into the past tense, without the remedies: the processes are gone.
pub fn describe_gone_foreign_users(words: &str) -> String {
    let past = |part: &str| {
        // A program's name may hold anything, also a colon.
        let (sentence, _) = part.rsplit_once(": ").unwrap_or((part, ""));
        sentence.replace(" is connected", " was connected").replace(" waits for", " waited for")
    };
    words.split("; ").map(past).collect::<Vec<_>>().join("; ")
}

/// Describes processes, the first few by name, each with the way to end it.
pub fn describe_foreign_users(users: &[ForeignUser]) -> String {
    let words = |ForeignUser { process, uid, program, waits }: &ForeignUser| {
        let program = program.as_ref().map(|program| format!(" ({program})")).unwrap_or_default();
        // A client that is killed while it waits hangs the daemon (recording 10).
        let does = if *waits {
            "waits for its turn: end it once it is connected, since killing it before hangs the daemon"
                .to_owned()
        } else {
            format!("is connected: mps-manager terminate {process}")
        };
        format!("process {} of uid {uid}{program} {does}", process.pid)
    };
    first_few(users.iter().map(words), 0, "; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_runner_added_and_tenants_users_have_business() {
        let has = |uid, others| has_business(uid, 500, others, [1000, 1001].into_iter());
        for uid in [0, 500, 1001, 33] {
            assert!(has(uid, (false, &[33])), "{uid}");
        }
        assert!(!has(34, (false, &[33])) && has(34, (true, &[])));
    }

    #[test]
    fn colon_in_a_program_name_is_no_command() {
        let hostile = ForeignUser {
            process: ClientId { pid: 7, start_time: 9 },
            uid: 33,
            program: Some("a: b".into()),
            waits: false,
        };
        let words = describe_foreign_users(&[hostile]);
        assert_eq!(describe_gone_foreign_users(&words), "process 7 of uid 33 (a: b) was connected");
    }

    #[test]
    fn first_few_are_named_with_what_ends_them() {
        let user = |pid: u32, waits: bool| ForeignUser {
            process: ClientId { pid, start_time: 9 },
            uid: 33,
            program: Some("train".into()),
            waits,
        };
        let text = describe_foreign_users(&[user(7, false), user(8, true)]);
        assert_eq!(
            text,
            "process 7 of uid 33 (train) is connected: mps-manager terminate 7-9; process 8 of uid 33 (train) waits for its turn: end it once it \
             is connected, since killing it before hangs the daemon"
        );
        assert_eq!(
            describe_gone_foreign_users(&text),
            "process 7 of uid 33 (train) was connected; process 8 of uid 33 (train) waited for its turn"
        );
        let many: Vec<ForeignUser> = (0..7).map(|pid| user(pid, false)).collect();
        assert!(describe_foreign_users(&many).ends_with("; and 3 more"));
    }
}
