//! Tokens: created, read and revoked.

use serde::{Deserialize, Serialize};

use crate::domain::access::{Grant, Right};
use crate::domain::audit::Target;
use crate::domain::event::{DomainEvent, EventCause, TokenFacts};
use crate::domain::token::{Secret, Token, TokenId, TokenState};
use crate::domain::{TenantName, TokenName};
use crate::service::access::context::RequestContext;
use crate::service::access::endings::{SessionEnd, SessionEnding};
use crate::service::access::idempotency::once;
use crate::service::error::{Found as _, conflict, field};
use crate::service::page::{Page, Paged};
use crate::service::{Backend, Result, Service, ServiceError, WriteOptions, transaction_end};
use crate::store::{self, StoreError, Transaction, transact};

/// Most valid tokens: few enough to review by hand.
const MAX_TOKENS: usize = 1000;
/// Shortest lifetime of a token that expires, in seconds.
const MIN_LIFETIME_S: u64 = 60;
/// Longest lifetime, in seconds: ten years.
const MAX_LIFETIME_S: u64 = 10 * 366 * 24 * 60 * 60;

/// A token to be created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Purpose of the token, as a name that no other valid token may have.
    #[schema(value_type = String, pattern = "^[a-z]([a-z0-9_-]{0,61}[a-z0-9])?$", example = "ci")]
    pub name: TokenName,
    /// Role that it grants, or `tenant:` with the name of an existing tenant.
    #[schema(value_type = String, pattern = "^(viewer|operator|admin|tenant:[a-z]([a-z0-9_-]{0,61}[a-z0-9])?)$", example = "operator")]
    pub grant: Grant,
    /// Seconds until it expires; without it, it is valid until revoked.
    #[serde(default)]
    #[schema(minimum = 60, maximum = 316_224_000, example = 86_400)]
    pub expires_in_s: Option<u64>,
}

/// A token without its secret, which is not stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TokenView {
    /// Its ID: the middle part of its text.
    #[schema(value_type = String, example = "0123456789abcdef")]
    pub id: TokenId,
    /// Purpose of the token.
    #[schema(value_type = String, example = "ci")]
    pub name: TokenName,
    /// Role that it grants, or `tenant:` with the name of a tenant.
    #[schema(value_type = String, example = "operator")]
    pub grant: Grant,
    /// Present state; only an `active` token is valid.
    pub state: TokenState,
    /// When it was created.
    #[serde(with = "crate::domain::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: i64,
    /// Caller that created it.
    #[schema(example = "admin token")]
    pub created_by: String,
    /// When it expires.
    #[serde(with = "crate::domain::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<i64>,
    /// When it was last used; to the minute after a restart.
    #[serde(with = "crate::domain::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_used_at: Option<i64>,
    /// When it was revoked.
    #[serde(with = "crate::domain::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<i64>,
}

/// A new token, with its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NewToken {
    /// The token.
    pub token: TokenView,
    /// Its text, shown only this once; `null` in a dry run and for a repeated request.
    #[schema(value_type = Option<String>, example = "mpsm_0123456789abcdef_…")]
    pub secret: Option<Secret>,
}

impl Service {
    /// Creates a token; its secret is only in the answer.
    ///
    /// A request that is repeated under a key creates no other token, and is answered without the secret, which is not
    /// stored.
    pub async fn create_token(
        &self,
        ctx: &RequestContext,
        request: TokenRequest,
        options: WriteOptions,
    ) -> Result<NewToken> {
        let permit = ctx.require(Right::Administer)?;
        let backend = self.with(&permit);
        let lifetime = request.expires_in_s.map(checked_lifetime).transpose()?;
        let secret = Secret::new(random()?);
        let now = ctx.clock.unix_ms();
        let token = Token {
            id: TokenId::new(random()?),
            name: request.name,
            digest: secret.digest(),
            grant: request.grant,
            created_at: now,
            created_by: ctx.actor.subject.to_string(),
            expires_at: lifetime.map(|ms| now + ms),
            last_used_at: None,
            revoked_at: None,
        };
        backend.refuse_sealed().await?;
        if let Some(made) = backend.answered::<TokenId>(ctx).await? {
            return backend.created_before(&made).await;
        }
        let (written, dry_run, by, key) =
            (token.clone(), options.dry_run, ctx.cause(), ctx.idempotency.clone());
        let permit = permit.on(Target::Token(token.id.clone()));
        let writing = transact!(backend, write(&permit), |db| {
            let making = async |db: Transaction<'_>| make(db, &written, by, now).await;
            Ok((once(db, key.as_deref(), now, making).await?, transaction_end(&options)))
        });
        let made = writing?;
        if dry_run {
            return Ok(NewToken { token: backend.token_view(token), secret: None });
        }
        if made != token.id {
            return backend.created_before(&made).await;
        }
        backend.load_tokens().await?;
        tracing::info!(token = %token.id, name = %token.name, grant = %token.grant, by = token.created_by, "a token was created");
        let text = secret.token(&token.id);
        Ok(NewToken { token: backend.token_view(token), secret: Some(text) })
    }

    /// One token.
    pub async fn token(&self, ctx: &RequestContext, id: &TokenId) -> Result<TokenView> {
        let backend = self.with(&ctx.require(Right::Administer)?);
        let token = store::tokens::get(&mut *backend.parts.store.read().await?, id).await?;
        token.map(|token| backend.token_view(token)).found("token", id)
    }

    /// Tokens by ID, including those that are no longer valid.
    pub async fn tokens(&self, ctx: &RequestContext, page: &Page) -> Result<Paged<TokenView>> {
        let backend = self.with(&ctx.require(Right::Administer)?);
        let mut reader = backend.parts.store.read().await?;
        page.key::<TokenId>()?;
        let tokens = store::tokens::page(&mut reader, &page.after, page.rows()).await?;
        let paged = page.cut(tokens, |token| token.id.to_string());
        let items = paged.items.into_iter().map(|token| backend.token_view(token)).collect();
        Ok(Paged { items, next_cursor: paged.next_cursor })
    }

    /// Revokes a token, in force when it is answered; sessions and streams opened with it end.
    ///
    /// A token that was revoked before stays as it is.
    pub async fn revoke_token(&self, ctx: &RequestContext, id: TokenId, options: WriteOptions) -> Result<()> {
        let permit = ctx.require(Right::Administer)?;
        let backend = self.with(&permit);
        backend.refuse_sealed().await?;
        let by = ctx.actor.subject.to_string();
        let (revoked, dry_run, because) = (id.clone(), options.dry_run, ctx.cause());
        let clock = ctx.clock;
        transact!(backend, write(&permit), |db| {
            let Some(token) = store::tokens::get(&mut *db, &id).await? else {
                return Err(ServiceError::not_found("token", &id));
            };
            let now = clock.unix_ms();
            if store::tokens::revoke(&mut *db, &id, now).await? {
                let event = DomainEvent::TokenRevoked(TokenFacts::from(&token)).because(because);
                store::events::append(db, &event, now).await?;
            }
            Ok(((), transaction_end(&options)))
        })?;
        if !dry_run {
            tracing::info!(token = %revoked, by, "a token was revoked");
            let ending = SessionEnding { at: clock.unix_ms(), end: SessionEnd::Revoked(by) };
            backend.parts.access.end(&[revoked], &ending).await;
        }
        Ok(())
    }
}

impl Backend {
    /// The token that a repeated request created the first time, without its text.
    async fn created_before(&self, id: &TokenId) -> Result<NewToken> {
        let token = store::tokens::get(&mut *self.parts.store.read().await?, id).await?;
        let token = token.found("token", id)?;
        Ok(NewToken { token: self.token_view(token), secret: None })
    }

    fn token_view(&self, token: Token) -> TokenView {
        let state = token.state(self.parts.clock.unix_ms());
        let used = self.parts.access.last_used(&token.id).max(token.last_used_at);
        let Token { id, name, grant, created_at, created_by, expires_at, revoked_at, .. } = token;
        TokenView {
            id,
            name,
            grant,
            state,
            created_at,
            created_by,
            expires_at,
            last_used_at: used,
            revoked_at,
        }
    }
}

/// Stores a new token, with its event.
async fn make(db: Transaction<'_>, token: &Token, by: EventCause, now: i64) -> Result<TokenId> {
    if let Some(tenant) = token.grant.tenant()
        && store::tenants::get(&mut *db, tenant).await?.is_none()
    {
        return Err(field!(
            "/grant",
            "there is no tenant {tenant}: create it first, or name one that exists"
        ));
    }
    let living = store::tokens::living(&mut *db, now).await?;
    if let Some(other) = living.iter().find(|other| other.name == token.name) {
        return Err(conflict!(
            "token {} is valid and named {} too: give another name, or revoke that one first",
            other.id,
            other.name
        ));
    }
    if living.len() >= MAX_TOKENS {
        return Err(conflict!("there are {MAX_TOKENS} valid tokens, which is the limit: revoke unused ones"));
    }
    store::tokens::insert(&mut *db, token).await?;
    let event = DomainEvent::TokenCreated(TokenFacts::from(token)).because(by);
    store::events::append(db, &event, now).await?;
    Ok(token.id.clone())
}

/// Revokes every token of a tenant, each with its event; returns those whose sessions and streams must end.
pub(in crate::service) async fn revoke_of(
    db: Transaction<'_>,
    tenant: &TenantName,
    by: &EventCause,
    now: i64,
) -> Result<Vec<TokenId>, StoreError> {
    let revoked = store::tokens::revoke_of(&mut *db, tenant, now).await?;
    for id in &revoked {
        if let Some(token) = store::tokens::get(&mut *db, id).await? {
            let event = DomainEvent::TokenRevoked(TokenFacts::from(&token)).because(by.clone());
            store::events::append(&mut *db, &event, now).await?;
        }
    }
    Ok(revoked)
}

/// A checked lifetime, in milliseconds.
fn checked_lifetime(seconds: u64) -> Result<i64> {
    let refused = || {
        field!(
            "/expires_in_s",
            "expires_in_s is {seconds}: give {MIN_LIFETIME_S} to {MAX_LIFETIME_S} seconds, or leave it out for a token that is \
             valid until it is revoked"
        )
    };
    if !(MIN_LIFETIME_S..=MAX_LIFETIME_S).contains(&seconds) {
        return Err(refused());
    }
    i64::try_from(seconds * 1000).map_err(|_| refused())
}

/// Random bytes from the system.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| ServiceError::Internal(format!("the system gives no random bytes: {error}")))?;
    Ok(bytes)
}
