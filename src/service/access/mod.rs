//! Authentication: turns secrets into actors, from a table in memory.
//!
//! The table holds what every request needs of the store, so that no request waits for SQLite. It changes after the commit
//! and before the answer: a revocation is in force when it is answered.

pub mod audit;
pub mod audit_log;
pub mod context;
pub mod endings;
pub(in crate::service) mod idempotency;
pub mod redaction;
pub(super) mod refusals;
pub mod sessions;
pub mod tokens;
mod uses;
pub mod whoami;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::domain::access::{Actor, Grant, Origin, Principal, Role, UserMap};
use crate::domain::session::{LoginSession, SessionHolder, SessionLimits};
use crate::domain::token::{Digest, Secret, Token, TokenId, TokenState};
use crate::host;
use crate::service::access::endings::{Endings, SessionEnd, SessionEnding};
use crate::service::limits::{FailureRate, Rate};

/// Lifetime of a login code, in milliseconds.
const CODE_MS: i64 = 15 * 60 * 1000;
/// Burst of logins for one holder: as many as it may have sessions.
const LOGIN_BURST: u32 = 32;
/// After the burst, one login per this time: each leaves rows that are never deleted.
const LOGIN_INTERVAL: Duration = Duration::from_secs(60);
/// Most login codes at the same time.
const CODES: usize = 16;

/// The peer of a unix socket connection, as the kernel recorded it at connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalUser {
    /// Its uid.
    pub uid: u32,
    /// Its gid.
    pub gid: u32,
    /// Its PID.
    pub pid: Option<u32>,
    /// A handle to the process, if it was alive when the connection was accepted.
    pub process: Option<host::Identity>,
}

impl LocalUser {
    /// The peer of a connection that was just accepted.
    pub fn connected(socket: &impl AsFd) -> std::io::Result<Self> {
        let host::SocketPeer { uid, gid, pid, process } = host::peer(socket)?;
        Ok(Self { uid, gid, pid, process })
    }

    /// The gid and the supplementary groups of the process, while it lives and belongs to this user.
    ///
    /// They are read from the process itself: a user database has what the next login will get, may be queried over a
    /// network, and the process may have dropped groups on purpose. A process that has ended has no groups, so it has no more
    /// rights than it had.
    fn groups(self) -> Vec<u32> {
        let listed = self.pid.and_then(host::process::groups).filter(|(owner, _)| *owner == self.uid);
        std::iter::once(self.gid).chain(listed.into_iter().flat_map(|(_, groups)| groups)).collect()
    }
}

/// An authenticated actor, with the lifetime of its admission.
#[derive(Debug, Clone)]
pub struct Admission {
    /// The actor.
    pub actor: Actor,
    /// The lifetime of the admission.
    pub lifetime: Lifetime,
}

impl Admission {
    /// Admits anonymous requests to public resources, and to nothing else.
    pub fn anonymous(origin: Origin) -> Self {
        Self::unlimited(Principal::Anybody, Grant::Host(Role::Viewer), origin)
    }

    /// Admits a subject until the manager stops.
    fn unlimited(subject: Principal, grant: Grant, origin: Origin) -> Self {
        let lifetime = Lifetime { ended: CancellationToken::new(), expires_at: None, session: None };
        Self { actor: Actor { subject, grant, origin }, lifetime }
    }
}

/// Lifetime of an admission: a stream that began under it ends with it.
#[derive(Debug, Clone)]
pub struct Lifetime {
    ended: CancellationToken,
    expires_at: Option<i64>,
    session: Option<Arc<LiveSession>>,
}

impl Lifetime {
    /// Counts a long-running stream as use of its session: an open page keeps its session alive.
    pub fn in_use(&self, clock: Clock) -> InUse {
        if let Some(session) = &self.session {
            session.watched.fetch_add(1, Ordering::Relaxed);
        }
        InUse { session: self.session.clone(), clock }
    }

    /// Returns true if the admission is revoked, or has expired at `now`.
    pub fn is_over(&self, now: i64) -> bool {
        self.ended.is_cancelled() || self.expires_at.is_some_and(|end| end <= now)
    }

    /// Waits until the admission ends: revoked, logged out, or expired.
    pub async fn over(&self, clock: Clock) {
        let left = self.expires_at.map(|end| {
            Duration::from_millis(u64::try_from(end.saturating_sub(clock.unix_ms())).unwrap_or_default())
        });
        match left {
            None => self.ended.cancelled().await,
            Some(left) => {
                let _ = tokio::time::timeout(left, self.ended.cancelled()).await;
            }
        }
    }
}

/// An open stream; its session counts as used until this is dropped.
#[derive(Debug)]
pub struct InUse {
    session: Option<Arc<LiveSession>>,
    clock: Clock,
}

impl Drop for InUse {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            session.last_used.fetch_max(self.clock.unix_ms(), Ordering::Relaxed);
            session.watched.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A valid token.
#[derive(Debug)]
struct LiveToken {
    token: Token,
    last_used: AtomicI64,
    written_use: AtomicI64,
    ended: CancellationToken,
}

/// A valid session.
#[derive(Debug)]
struct LiveSession {
    session: LoginSession,
    last_used: AtomicI64,
    written_use: AtomicI64,
    /// Open streams that count as use.
    watched: AtomicUsize,
    ended: CancellationToken,
}

/// A single-use login code in a URL.
#[derive(Debug)]
struct LoginCode {
    digest: Digest,
    holder: SessionHolder,
    expires_at: i64,
}

/// The session that a request came with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionKey(pub(super) Digest);

/// Reason why an actor can have no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoHolder {
    /// Its role was granted to a group of its process.
    #[error(
        "uid {0} has its role through a group, which a browser session does not have: log in with a token made by \
         `mps-manager token create`, or name the user in access.users of the configuration"
    )]
    OfAGroup(u32),
    /// The actor is anonymous.
    #[error("a session belongs to a token or to a user of this host: send a token")]
    Anonymous,
}

/// Everyone with access.
#[derive(Debug)]
pub struct Access {
    admin: Digest,
    manager_uid: u32,
    users: UserMap,
    limits: SessionLimits,
    tokens: RwLock<HashMap<TokenId, Arc<LiveToken>>>,
    sessions: RwLock<HashMap<[u8; 32], Arc<LiveSession>>>,
    codes: Mutex<Vec<LoginCode>>,
    endings: Endings,
    /// Failed attempts to authenticate.
    pub failures: FailureRate,
    logins: Rate<SessionHolder>,
    /// Held from reading the rows until the table is replaced, so that a revocation in between is not undone.
    loading: tokio::sync::Mutex<()>,
}

impl Access {
    /// Reads the admin token once, and keeps its digest.
    pub fn new(admin: &Secret, manager_uid: u32, users: UserMap, limits: SessionLimits) -> Self {
        Self {
            admin: admin.digest(),
            manager_uid,
            users,
            limits,
            tokens: RwLock::default(),
            sessions: RwLock::default(),
            codes: Mutex::default(),
            endings: Endings::default(),
            failures: FailureRate::default(),
            logins: Rate::new(LOGIN_BURST, LOGIN_INTERVAL),
            loading: tokio::sync::Mutex::default(),
        }
    }

    /// The actor for a secret, if it is valid.
    ///
    /// An unknown ID, a wrong secret and a malformed token take the same steps: two digests are computed and compared.
    pub fn holder(&self, token: &Secret, origin: Origin, now: i64) -> Option<Admission> {
        let (id, secret) = match token.parts() {
            Some((id, secret)) => (Some(id), secret),
            None => (None, token.clone()),
        };
        let live = id.as_ref().and_then(|id| self.live(id));
        let digest = secret.digest();
        let expected = live.as_ref().map_or(self.admin, |live| live.token.digest);
        let equal = digest == expected;
        match (id, live) {
            (None, _) if equal => Some(admin(origin)),
            (Some(_), Some(live)) if equal => live.admission(origin, now),
            _ => None,
        }
    }

    /// The actor and key of a session, if it is valid.
    pub fn session(&self, cookie: &Secret, origin: Origin, now: i64) -> Option<(Admission, SessionKey)> {
        let digest = cookie.digest();
        let live = self.live_session(&SessionKey(digest))?;
        let LoginSession { holder, created_at, .. } = &live.session;
        if live.ended.is_cancelled() || live.end(self.limits, now) <= now {
            return None;
        }
        let of = self.admission_of(holder, origin, now)?;
        live.last_used.fetch_max(now, Ordering::Relaxed);
        let end = self.limits.last_end(*created_at);
        let expires_at = Some(of.lifetime.expires_at.map_or(end, |token| token.min(end)));
        let lifetime = Lifetime { ended: live.ended.clone(), expires_at, session: Some(live) };
        Some((Admission { actor: of.actor, lifetime }, SessionKey(digest)))
    }

    /// Returns the present admission of a holder of sessions, or `None` if it has no access any more.
    fn admission_of(&self, holder: &SessionHolder, origin: Origin, now: i64) -> Option<Admission> {
        match holder {
            SessionHolder::AdminToken => Some(admin(origin)),
            SessionHolder::Token(id) => self.live(id)?.admission(origin, now),
            // Without a known process, grants to groups do not apply.
            SessionHolder::User(uid) => {
                let grant = self.users.grant(*uid, &[])?;
                Some(Admission::unlimited(Principal::User(*uid), grant, origin))
            }
        }
    }

    /// All valid sessions with their actors and when they end if unused, the last used first.
    pub(super) fn valid_sessions(&self, origin: Origin, now: i64) -> Vec<(Actor, LoginSession, i64)> {
        let live: Vec<Arc<LiveSession>> =
            self.sessions.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let valid = |live: Arc<LiveSession>| {
            let ends_at = live.end(self.limits, now);
            if live.ended.is_cancelled() || ends_at <= now {
                return None;
            }
            let actor = self.admission_of(&live.session.holder, origin, now)?.actor;
            let session = LoginSession { last_used_at: live.used(now), ..live.session.clone() };
            Some((actor, session, ends_at))
        };
        let mut sessions: Vec<_> = live.into_iter().filter_map(valid).collect();
        sessions.sort_by_key(|(_, session, _)| std::cmp::Reverse((session.last_used_at, session.created_at)));
        sessions
    }

    /// Stores a single-use login code for this holder.
    pub(super) fn keep_code(&self, code: &Secret, holder: SessionHolder, now: i64) -> i64 {
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        codes.retain(|code| code.expires_at > now);
        if codes.len() >= CODES {
            codes.remove(0);
        }
        let expires_at = now + CODE_MS;
        codes.push(LoginCode { digest: code.digest(), holder, expires_at });
        expires_at
    }

    /// The actor of a login code, which the login then consumes.
    pub fn coded(&self, code: &Secret, origin: Origin, now: i64) -> Option<Admission> {
        let digest = code.digest();
        let codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = codes.iter().find(|code| code.digest == digest && code.expires_at > now)?;
        let holder = stored.holder.clone();
        drop(codes);
        self.admission_of(&holder, origin, now)
    }

    /// Consumes a code; returns whether it was valid.
    pub(super) fn consume_code(&self, code: &Secret, now: i64) -> bool {
        let digest = code.digest();
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        codes.retain(|code| code.expires_at > now);
        let position = codes.iter().position(|code| code.digest == digest);
        position.map(|position| codes.remove(position)).is_some()
    }

    /// The actor for a user of this host, if it has a grant.
    pub fn user(&self, user: LocalUser) -> Option<Admission> {
        let grant = match user.uid {
            uid if uid == 0 || uid == self.manager_uid => Some(Grant::Host(Role::Admin)),
            uid if self.users.groups.is_empty() => self.users.grant(uid, &[]),
            uid => self.users.grant(uid, &user.groups()),
        };
        Some(Admission::unlimited(Principal::User(user.uid), grant?, Origin::Socket))
    }

    /// The holder of sessions that an actor may open for itself, or why it can have none.
    pub(super) fn holder_of(&self, actor: &Actor) -> Result<SessionHolder, NoHolder> {
        match &actor.subject {
            Principal::AdminToken | Principal::Manager => Ok(SessionHolder::AdminToken),
            Principal::Token { id, .. } => Ok(SessionHolder::Token(id.clone())),
            Principal::User(uid) => self.holder_of_user(*uid),
            Principal::Anybody => Err(NoHolder::Anonymous),
        }
    }

    /// Returns the holder of the sessions of a user of this host, or the reason why it can have none.
    pub(super) fn holder_of_user(&self, uid: u32) -> Result<SessionHolder, NoHolder> {
        match uid {
            // It could read the admin token as well.
            uid if uid == 0 || uid == self.manager_uid => Ok(SessionHolder::AdminToken),
            uid if self.users.users.contains_key(&uid) => Ok(SessionHolder::User(uid)),
            uid => Err(NoHolder::OfAGroup(uid)),
        }
    }

    /// When a token was last used, if it is valid.
    pub(super) fn last_used(&self, id: &TokenId) -> Option<i64> {
        self.live(id).map(|live| live.last_used.load(Ordering::Relaxed)).filter(|at| *at > 0)
    }

    /// A session as of now, and when it ends if unused.
    pub(super) fn session_now(&self, key: &SessionKey, now: i64) -> Option<(LoginSession, i64)> {
        let live = self.live_session(key)?;
        Some((
            LoginSession { last_used_at: live.used(now), ..live.session.clone() },
            live.end(self.limits, now),
        ))
    }

    /// Maximum lifetime of a session, in seconds.
    pub(super) fn session_seconds(&self) -> i64 {
        self.limits.max_ms / 1000
    }

    /// The sessions of a holder, least recently used first.
    pub(super) fn sessions_of(&self, holder: &SessionHolder) -> Vec<Digest> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        let mut digests: Vec<(i64, Digest)> = sessions
            .values()
            .filter(|live| live.session.holder == *holder)
            .map(|live| (live.last_used.load(Ordering::Relaxed), live.session.digest))
            .collect();
        digests.sort_by_key(|(used, _)| *used);
        digests.into_iter().map(|(_, digest)| digest).collect()
    }

    /// Adds a session, if its token is still valid.
    pub(super) fn begin_session(&self, session: LoginSession) {
        let ended = match &session.holder {
            SessionHolder::AdminToken | SessionHolder::User(_) => CancellationToken::new(),
            SessionHolder::Token(id) => match self.live(id) {
                Some(live) => live.ended.child_token(),
                None => return,
            },
        };
        let used = session.last_used_at;
        let key = session.digest.key();
        let live = LiveSession {
            session,
            last_used: AtomicI64::new(used),
            written_use: AtomicI64::new(used),
            watched: AtomicUsize::new(0),
            ended,
        };
        self.sessions.write().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::new(live));
    }

    /// Ends sessions.
    pub(super) fn end_sessions(&self, digests: &[Digest], ending: &SessionEnding) {
        self.endings.note(digests, ending);
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        for digest in digests {
            if let Some(live) = sessions.remove(&digest.key()) {
                live.ended.cancel();
            }
        }
    }

    /// Returns how the session of a cookie ended, if that is known.
    pub fn ending(&self, cookie: &Secret, now: i64) -> Option<SessionEnding> {
        let digest = cookie.digest();
        let of_live = || {
            let live = self.live_session(&SessionKey(digest))?;
            let ended = live.end(self.limits, now);
            let of_token = match &live.session.holder {
                SessionHolder::Token(id) => self.live(id).and_then(|token| token.token.expires_at),
                SessionHolder::AdminToken | SessionHolder::User(_) => None,
            };
            let expired = |at: i64, end| (at <= now).then_some(SessionEnding { at, end });
            expired(ended, SessionEnd::Expired)
                .or_else(|| of_token.and_then(|at| expired(at, SessionEnd::TokenExpired)))
        };
        self.endings.of(&digest).or_else(of_live)
    }

    /// Ends expired sessions and those whose token expired; returns the others with unwritten uses.
    fn sweep(&self, now: i64) -> Vec<(Arc<LiveSession>, i64)> {
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, live| {
            let at = live.end(self.limits, now);
            let lives = !live.ended.is_cancelled() && at > now;
            if !lives {
                // Other ends were noted when they came.
                let end = if at > now { SessionEnd::TokenExpired } else { SessionEnd::Expired };
                self.endings.note(&[live.session.digest], &SessionEnding { at: at.min(now), end });
                live.ended.cancel();
            }
            lives
        });
        sessions
            .values()
            .map(|live| (Arc::clone(live), live.used(now)))
            .filter(|(live, at)| *at > live.written_use.load(Ordering::Relaxed))
            .collect()
    }

    fn live_session(&self, SessionKey(digest): &SessionKey) -> Option<Arc<LiveSession>> {
        self.sessions.read().unwrap_or_else(PoisonError::into_inner).get(&digest.key()).cloned()
    }

    fn unwritten_uses(&self) -> Vec<(Arc<LiveToken>, i64)> {
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        tokens
            .values()
            .map(|live| (Arc::clone(live), live.last_used.load(Ordering::Relaxed)))
            .filter(|(live, at)| *at > live.written_use.load(Ordering::Relaxed))
            .collect()
    }

    fn live(&self, id: &TokenId) -> Option<Arc<LiveToken>> {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Ends a revoked token and everything opened with it.
    pub(super) async fn end(&self, ids: &[TokenId], ending: &SessionEnding) {
        for id in ids {
            self.endings.note(&self.sessions_of(&SessionHolder::Token(id.clone())), ending);
        }
        let _one = self.loading.lock().await;
        let mut tokens = self.tokens.write().unwrap_or_else(PoisonError::into_inner);
        for id in ids {
            if let Some(live) = tokens.remove(id) {
                live.ended.cancel();
            }
        }
    }
}

impl LiveSession {
    /// When it was last used: now, while a stream is open.
    fn used(&self, now: i64) -> i64 {
        if self.watched.load(Ordering::Relaxed) > 0 {
            self.last_used.fetch_max(now, Ordering::Relaxed);
        }
        self.last_used.load(Ordering::Relaxed)
    }

    /// When it ends if unused.
    fn end(&self, limits: SessionLimits, now: i64) -> i64 {
        limits.end(self.session.created_at, self.used(now))
    }
}

fn admin(origin: Origin) -> Admission {
    Admission::unlimited(Principal::AdminToken, Grant::Host(Role::Admin), origin)
}

impl LiveToken {
    fn admission(&self, origin: Origin, now: i64) -> Option<Admission> {
        if self.token.state(now) != TokenState::Active {
            return None;
        }
        self.last_used.fetch_max(now, Ordering::Relaxed);
        let Token { id, name, grant, expires_at, .. } = self.token.clone();
        Some(Admission {
            actor: Actor { subject: Principal::Token { id, name }, grant, origin },
            lifetime: Lifetime { ended: self.ended.clone(), expires_at, session: None },
        })
    }
}
