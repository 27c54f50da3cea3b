//! Browser sessions: opened with a token or a code, listed, and ended.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::domain::access::{Actor, Grant, Principal, Right};
use crate::domain::audit::Target;
use crate::domain::event::{DomainEvent, EventCause, SessionOwner, TokenFacts};
use crate::domain::session::{LoginSession, SessionHolder};
use crate::domain::token::{Digest, Secret, TokenId};
use crate::metrics::wire::Limit;
use crate::service::access::context::{Permit, RequestContext};
use crate::service::access::endings::{SessionEnd, SessionEnding};
use crate::service::access::tokens::random;
use crate::service::access::{NoHolder, SessionKey};
use crate::service::error::{Found as _, conflict};
use crate::service::limits::whole_seconds;
use crate::service::{Backend, Result, Service, ServiceError};
use crate::store::{self, StoreError, Transaction, TransactionEnd, transact};

/// Sessions per token; a further one ends the least recently used.
const MAX_SESSIONS: usize = 32;

/// A session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SessionView {
    /// Name of its user.
    #[schema(example = "token 0123456789abcdef (ci)")]
    pub subject: String,
    /// Its user's grant: a role, or `tenant:` and the name of a tenant.
    #[schema(value_type = String, example = "operator")]
    pub grant: Grant,
    /// When it was opened.
    #[serde(with = "crate::domain::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: i64,
    /// When it was last used.
    #[serde(with = "crate::domain::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub last_used_at: i64,
    /// When it ends if unused.
    #[serde(with = "crate::domain::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub ends_at: i64,
}

/// A new session, with the secret for its cookie.
#[derive(Debug)]
pub struct NewSession {
    /// The session.
    pub session: SessionView,
    /// The cookie's value.
    pub cookie: Secret,
    /// Its maximum lifetime in seconds.
    pub max_age_s: i64,
}

/// A single-use login code.
#[derive(Debug)]
pub struct NewCode {
    /// The code.
    pub code: Secret,
    /// When it expires, in unix milliseconds.
    pub expires_at: i64,
}

/// The owner whose sessions end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionsOf {
    /// The caller's own.
    Own,
    /// The sessions of the admin token.
    AdminToken,
    /// The sessions of a token.
    Token(TokenId),
    /// The sessions of a user of this host.
    User(u32),
}

impl Service {
    /// Opens a session for a token or a code. A code is consumed only by success, so that a caller that must wait can use it
    /// again.
    pub async fn open_session(&self, ctx: &RequestContext, code: Option<&Secret>) -> Result<NewSession> {
        let permit = ctx.require(Right::ViewOwn)?;
        let backend = self.with(&permit);
        let holder = backend.parts.access.holder_of(&ctx.actor)?;
        let now = ctx.clock.unix_ms();
        backend.parts.access.logins.take(&holder).map_err(too_many)?;
        if code.is_some_and(|code| !backend.parts.access.consume_code(code, now)) {
            return Err(conflict!("this login link was used a moment ago"));
        }
        let cookie = Secret::new(random()?);
        let session = LoginSession { digest: cookie.digest(), holder, created_at: now, last_used_at: now };
        backend.refuse_sealed().await?;
        let open = backend.parts.access.sessions_of(&session.holder);
        let surplus: Vec<Digest> =
            open.iter().copied().take((open.len() + 1).saturating_sub(MAX_SESSIONS)).collect();
        let (written, ended, admin) = (session.clone(), surplus.clone(), backend.parts.access.admin);
        let by = ctx.cause();
        transact!(backend, write(&permit), |db| {
            end(&mut *db, &written.holder, &ended, &by, now).await?;
            store::sessions::insert(&mut *db, &written, &admin).await?;
            let owner = session_owner(&mut *db, &written.holder).await?;
            let opened = DomainEvent::SessionOpened(owner);
            store::events::append(db, &opened.because(by), now).await?;
            Ok(((), TransactionEnd::Commit))
        })?;
        let access = &backend.parts.access;
        access.end_sessions(&surplus, &SessionEnding { at: now, end: SessionEnd::Replaced });
        let key = SessionKey(session.digest);
        access.begin_session(session);
        let Some((session, ends_at)) = access.session_now(&key, now) else {
            return Err(conflict!("the token was revoked a moment ago"));
        };
        let max_age_s = access.session_seconds();
        Ok(NewSession { session: view(&ctx.actor, &session, ends_at), cookie, max_age_s })
    }

    /// The session of the request.
    pub fn session(&self, ctx: &RequestContext, key: Option<SessionKey>) -> Result<SessionView> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let session = key.and_then(|key| backend.parts.access.session_now(&key, ctx.clock.unix_ms()));
        session.map(|(session, ends_at)| view(&ctx.actor, &session, ends_at)).ok_or_else(no_session)
    }

    /// All sessions, the last used first.
    pub fn sessions(&self, ctx: &RequestContext) -> Result<Vec<SessionView>> {
        let backend = self.with(&ctx.require(Right::Administer)?);
        let valid = backend.parts.access.valid_sessions(ctx.actor.origin, ctx.clock.unix_ms());
        Ok(valid.iter().map(|(actor, session, ends_at)| view(actor, session, *ends_at)).collect())
    }

    /// Ends the session of the request.
    pub async fn end_session(&self, ctx: &RequestContext, key: Option<SessionKey>) -> Result<()> {
        let permit = ctx.require(Right::ViewOwn)?;
        let backend = self.with(&permit);
        let open = key.and_then(|key| backend.parts.access.session_now(&key, ctx.clock.unix_ms()));
        let (session, _) = open.ok_or_else(no_session)?;
        backend.end_these(&permit, session.holder, vec![session.digest]).await
    }

    /// Ends all sessions of a token or a user: the caller's own, or another's for an admin.
    pub async fn end_sessions(&self, ctx: &RequestContext, of: SessionsOf) -> Result<()> {
        let right = match of {
            SessionsOf::Own => Right::ViewOwn,
            SessionsOf::AdminToken | SessionsOf::Token(_) | SessionsOf::User(_) => Right::Administer,
        };
        let permit = ctx.require(right)?;
        let backend = self.with(&permit);
        let access = &backend.parts.access;
        let (holder, target) = match of {
            SessionsOf::Own => match access.holder_of(&ctx.actor) {
                Ok(holder) => (holder, None),
                // It may have sessions from when it was named itself.
                Err(NoHolder::OfAGroup(uid)) => (SessionHolder::User(uid), None),
                // They have none.
                Err(NoHolder::Anonymous) => {
                    return backend
                        .write(&permit, |_| Box::pin(async { Ok(((), TransactionEnd::Commit)) }))
                        .await;
                }
            },
            SessionsOf::AdminToken => (SessionHolder::AdminToken, None),
            SessionsOf::Token(id) => {
                // A mistyped ID must not look like success.
                let token = store::tokens::get(&mut *backend.parts.store.read().await?, &id).await?;
                let id = token.found("token", &id)?.id;
                (SessionHolder::Token(id.clone()), Some(Target::Token(id)))
            }
            SessionsOf::User(uid) => {
                let holder = access.holder_of_user(uid).unwrap_or(SessionHolder::User(uid));
                let is_known = access.holder_of_user(uid).is_ok() || !access.sessions_of(&holder).is_empty();
                if !is_known {
                    return Err(ServiceError::NotFound { kind: "user with sessions", name: uid.to_string() });
                }
                (holder, Some(Target::Other(format!("users/{uid}"))))
            }
        };
        let open = backend.parts.access.sessions_of(&holder);
        let permit = match target {
            Some(target) => permit.on(target),
            None => permit,
        };
        backend.end_these(&permit, holder, open).await
    }

    /// Makes a single-use login code for the caller.
    pub async fn create_login_code(&self, ctx: &RequestContext) -> Result<NewCode> {
        let permit = ctx.require(Right::Administer)?;
        let backend = self.with(&permit);
        let code = Secret::new(random()?);
        let holder = backend.parts.access.holder_of(&ctx.actor)?;
        // The code is kept in memory only; its creation is recorded. The manager's own code at its first start is not
        // recorded: that must also work with a read-only database.
        if ctx.actor.subject != Principal::Manager {
            backend.write(&permit, |_| Box::pin(async { Ok(((), TransactionEnd::Commit)) })).await?;
        }
        let expires_at = backend.parts.access.keep_code(&code, holder, ctx.clock.unix_ms());
        Ok(NewCode { code, expires_at })
    }
}

impl Backend {
    /// Ends sessions in memory at once, then in the store.
    async fn end_these(&self, permit: &Permit, holder: SessionHolder, digests: Vec<Digest>) -> Result<()> {
        let by = SessionEnd::By(permit.ctx().actor.subject.to_string());
        let ending = SessionEnding { at: self.parts.clock.unix_ms(), end: by };
        self.parts.access.end_sessions(&digests, &ending);
        self.refuse_sealed().await?;
        let (by, clock) = (permit.ctx().cause(), self.parts.clock);
        transact!(self, write(permit), |db| {
            end(db, &holder, &digests, &by, clock.unix_ms()).await?;
            Ok(((), TransactionEnd::Commit))
        })
    }
}

/// Deletes sessions of a holder, with an event for each that was not ended by someone else at the same time.
async fn end(
    db: Transaction<'_>,
    holder: &SessionHolder,
    digests: &[Digest],
    by: &EventCause,
    now: i64,
) -> Result<(), StoreError> {
    for digest in digests {
        if store::sessions::delete(&mut *db, digest).await? {
            let over = DomainEvent::SessionEnded(session_owner(&mut *db, holder).await?);
            store::events::append(&mut *db, &over.because(by.clone()), now).await?;
        }
    }
    Ok(())
}

/// Whose a session is, for its events.
///
/// The token is read from the store, because an expired or revoked one is known only there.
async fn session_owner(db: Transaction<'_>, holder: &SessionHolder) -> Result<SessionOwner, StoreError> {
    Ok(match holder {
        SessionHolder::AdminToken => SessionOwner::AdminToken,
        SessionHolder::User(uid) => SessionOwner::User(*uid),
        SessionHolder::Token(id) => match store::tokens::get(db, id).await? {
            Some(token) => SessionOwner::Token(TokenFacts::from(&token)),
            None => SessionOwner::DeletedToken(id.clone()),
        },
    })
}

fn too_many(wait: Duration) -> ServiceError {
    let wait_s = whole_seconds(wait);
    let detail = format!(
        "too many logins with the same token or by the same user: use an open session, or try again in {wait_s} s"
    );
    ServiceError::TooMany { detail, wait_s, of: Limit::LogIn }
}

impl From<NoHolder> for ServiceError {
    fn from(none: NoHolder) -> Self {
        Self::Conflict(none.to_string())
    }
}

fn view(actor: &Actor, session: &LoginSession, ends_at: i64) -> SessionView {
    SessionView {
        subject: actor.subject.to_string(),
        grant: actor.grant.clone(),
        created_at: session.created_at,
        last_used_at: session.last_used_at,
        ends_at,
    }
}

fn no_session() -> ServiceError {
    ServiceError::NotFound { kind: "session", name: "of this request".to_owned() }
}
