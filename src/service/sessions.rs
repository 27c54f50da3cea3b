//! Sessions of browsers: opened with a token or a code, shown, and ended.

use serde::{Deserialize, Serialize};

use super::access::SessionKey;
use super::acting::{about, cause};
use super::tokens::{not_found, random};
use super::{Service, ServiceError};
use crate::clock::unix_ms;
use crate::domain::access::{Actor, Grant, Right, Subject};
use crate::domain::audit::Target;
use crate::domain::event::{Details, EventType, NewEvent, Subject as About};
use crate::domain::session::{Holder, Session};
use crate::domain::token::{Digest, Secret, TokenId};
use crate::store::{self, Fate};

/// Sessions that one token may have; another one ends the one that was used longest ago.
const MOST: usize = 32;

/// A session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SessionView {
    /// By what its user is known.
    #[schema(example = "token 0123456789abcdef (ci)")]
    pub subject: String,
    /// What its user may do: a role, or `tenant:` and the name of a tenant.
    #[schema(value_type = String, example = "operator")]
    pub grant: Grant,
    /// When it was opened, in unix milliseconds.
    pub created_at: i64,
    /// When it was last used, in unix milliseconds.
    pub last_used_at: i64,
    /// When it ends if it is not used again, in unix milliseconds.
    pub ends_at: i64,
}

/// A session that was opened, with the secret for its cookie.
#[derive(Debug)]
pub struct NewSession {
    /// The session.
    pub session: SessionView,
    /// What its cookie says.
    pub cookie: Secret,
    /// Seconds that it lasts at most.
    pub max_age_s: i64,
}

/// A code by which one logs in once.
#[derive(Debug)]
pub struct NewCode {
    /// The code.
    pub code: Secret,
    /// When it is over, in unix milliseconds.
    pub expires_at: i64,
}

/// Whose sessions are to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionsOf {
    /// One's own.
    Own,
    /// Those of the admin token.
    AdminToken,
    /// Those of a token.
    Token(TokenId),
}

impl Service {
    /// Opens a session for whoever has shown a token or a code.
    pub async fn open_session(&self, actor: &Actor) -> Result<NewSession, ServiceError> {
        actor.may(Right::ViewOwn)?;
        let holder = holder(actor)?;
        let cookie = Secret::new(random()?);
        let now = unix_ms();
        let session = Session { digest: cookie.digest(), holder, created_at: now, last_used_at: now };
        let (service, actor) = (self.clone(), actor.clone());
        self.to_the_end(async move {
            let open = service.parts.access.sessions_of(&session.holder);
            let surplus: Vec<Digest> =
                open.iter().copied().take((open.len() + 1).saturating_sub(MOST)).collect();
            let (written, ended, admin) = (session.clone(), surplus.clone(), service.admin_digest());
            let opened = service.told(EventType::SessionOpened, &session.holder);
            let over = service.told(EventType::SessionEnded, &session.holder);
            service
                .write(move |db| {
                    Box::pin(async move {
                        for digest in &ended {
                            if store::sessions::delete(&mut *db, digest).await? {
                                store::events::append(&mut *db, &over, now).await?;
                            }
                        }
                        store::sessions::insert(&mut *db, &written, &admin).await?;
                        store::events::append(db, &opened, now).await?;
                        Ok::<_, ServiceError>(((), Fate::Commit))
                    })
                })
                .await?;
            let access = &service.parts.access;
            access.end_sessions(&surplus);
            let key = SessionKey(session.digest);
            access.begin_session(session);
            let Some((session, ends_at)) = access.session_now(&key) else {
                return Err(ServiceError::Conflict("the token was revoked a moment ago".to_owned()));
            };
            let max_age_s = access.session_seconds();
            Ok(NewSession { session: view(&actor, &session, ends_at), cookie, max_age_s })
        })
        .await
    }

    /// The session that a request came with.
    #[allow(clippy::unused_async, reason = "as every use case is called")]
    pub async fn session(&self, actor: &Actor, key: Option<SessionKey>) -> Result<SessionView, ServiceError> {
        actor.may(Right::ViewOwn)?;
        let found = key.and_then(|key| self.parts.access.session_now(&key));
        found.map(|(session, ends_at)| view(actor, &session, ends_at)).ok_or_else(no_session)
    }

    /// Ends the session that a request came with.
    pub async fn end_session(&self, actor: &Actor, key: Option<SessionKey>) -> Result<(), ServiceError> {
        actor.may(Right::ViewOwn)?;
        let SessionKey(digest) = key.ok_or_else(no_session)?;
        self.end_these(&holder(actor)?, vec![digest]).await
    }

    /// Ends all sessions of a token: one's own, or one that an admin names.
    pub async fn end_sessions(&self, actor: &Actor, of: SessionsOf) -> Result<(), ServiceError> {
        let right = match of {
            SessionsOf::Own => Right::ViewOwn,
            SessionsOf::AdminToken | SessionsOf::Token(_) => Right::Administer,
        };
        actor.may(right)?;
        let named = of != SessionsOf::Own;
        let holder = match of {
            SessionsOf::Own => match holder(actor) {
                Ok(holder) => holder,
                // A user of the socket has none.
                Err(_) => return Ok(()),
            },
            SessionsOf::AdminToken => Holder::AdminToken,
            SessionsOf::Token(id) => {
                // Whoever mistypes an ID must not believe that it is done.
                let token = store::tokens::get(&mut *self.parts.store.read().await?, &id).await?;
                Holder::Token(token.ok_or_else(|| not_found(&id))?.id)
            }
        };
        let ending = self.end_these(&holder, self.parts.access.sessions_of(&holder));
        match (named, &holder) {
            (true, Holder::Token(id)) => Box::pin(about(Target::Token(id.clone()), ending)).await,
            _ => ending.await,
        }
    }

    /// Makes a code by which one logs in once as whoever made it.
    pub async fn create_login_code(&self, actor: &Actor) -> Result<NewCode, ServiceError> {
        actor.may(Right::Administer)?;
        let code = Secret::new(random()?);
        // An admin of the socket could read the admin token just as well.
        let holder = holder(actor).unwrap_or(Holder::AdminToken);
        // The code is in memory only; that somebody made one is on record. The manager's own, at its first start, is not: that has
        // to go well with a database that may not be written, too.
        if actor.subject != Subject::Manager {
            self.write(|_| Box::pin(async { Ok::<_, ServiceError>(((), Fate::Commit)) })).await?;
        }
        let expires_at = self.parts.access.keep_code(&code, holder, unix_ms());
        Ok(NewCode { code, expires_at })
    }

    /// Ends sessions at once, and then for good.
    async fn end_these(&self, holder: &Holder, digests: Vec<Digest>) -> Result<(), ServiceError> {
        self.parts.access.end_sessions(&digests);
        if digests.is_empty() {
            return Ok(());
        }
        let (service, over) = (self.clone(), self.told(EventType::SessionEnded, holder));
        self.to_the_end(async move {
            service
                .write(move |db| {
                    Box::pin(async move {
                        for digest in &digests {
                            // Somebody else may have ended it at the same time.
                            if store::sessions::delete(&mut *db, digest).await? {
                                store::events::append(&mut *db, &over, unix_ms()).await?;
                            }
                        }
                        Ok::<_, ServiceError>(((), Fate::Commit))
                    })
                })
                .await
        })
        .await
    }

    /// What is told of a session: whose it is, and nothing by which it is known.
    fn told(&self, kind: EventType, holder: &Holder) -> NewEvent {
        let token = match holder {
            Holder::AdminToken => None,
            Holder::Token(id) => self.parts.access.token(id),
        };
        let (whose, details, tenant) = match token {
            None => {
                let details = Details::Token { id: "admin".to_owned(), name: "admin".to_owned() };
                ("the admin token".to_owned(), details, None)
            }
            Some(token) => {
                let details = Details::Token { id: token.id.to_string(), name: token.name.to_string() };
                (format!("token {} ({})", token.id, token.name), details, token.grant.tenant().cloned())
            }
        };
        let what = if kind == EventType::SessionOpened { "was opened" } else { "was ended" };
        NewEvent::new(kind, About { tenant, ..About::default() }, format!("a session of {whose} {what}"))
            .with(details)
            .because(cause())
    }
}

/// Whose the sessions of an actor are.
fn holder(actor: &Actor) -> Result<Holder, ServiceError> {
    match &actor.subject {
        Subject::AdminToken => Ok(Holder::AdminToken),
        Subject::Token { id, .. } => Ok(Holder::Token(id.clone())),
        Subject::User(_) | Subject::Anybody | Subject::Manager => Err(ServiceError::Conflict(
            "a session stands for a token, and a user of the socket needs none: show a token".to_owned(),
        )),
    }
}

fn view(actor: &Actor, session: &Session, ends_at: i64) -> SessionView {
    SessionView {
        subject: actor.subject.to_string(),
        grant: actor.grant.clone(),
        created_at: session.created_at,
        last_used_at: session.last_used_at,
        ends_at,
    }
}

fn no_session() -> ServiceError {
    ServiceError::NotFound { kind: "session", name: "that this request came with".to_owned() }
}
