//! Answers stored under an `Idempotency-Key`, in the transaction of their effect or after they were given.
//!
//! These are not use cases: a key names its owner, and the request itself was authorised before.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::service::access::context::{IdempotencyKey, RequestContext};
use crate::service::{Backend, Result, ServiceError};
use crate::store::idempotency::{self, Remembered};
use crate::store::{StoreError, Transaction, transact};

impl Backend {
    /// The answer stored under a key; refused when the key belongs to another request.
    pub(crate) async fn kept_answer(&self, key: &IdempotencyKey) -> Result<Option<String>> {
        stored_text(&mut *self.parts.store.read().await?, key).await
    }

    /// The answer to the same request if it was made before.
    pub(in crate::service) async fn answered<T: DeserializeOwned>(
        &self,
        ctx: &RequestContext,
    ) -> Result<Option<T>> {
        let Some(key) = &ctx.idempotency else { return Ok(None) };
        stored_answer(&mut *self.parts.store.read().await?, key).await
    }

    /// Stores a JSON answer under a key. If that fails, a repeated request runs again.
    pub(crate) async fn keep_answer(&self, key: IdempotencyKey, response: String) {
        let IdempotencyKey { owner, key, request_hash } = key;
        let clock = self.parts.clock;
        let written = transact!(self.parts.store, |db| {
            let answer = Remembered { request_hash, response };
            idempotency::put(db, &owner, &key, &answer, clock.unix_ms()).await
        });
        if let Err(error) = written {
            tracing::warn!(%error, "an answer could not be stored under its Idempotency-Key");
        }
    }
}

/// Answers a repeated request with the first answer; stores the answer to a new request.
pub(in crate::service) async fn once<T: Serialize + DeserializeOwned>(
    db: Transaction<'_>,
    key: Option<&IdempotencyKey>,
    now: i64,
    work: impl AsyncFnOnce(Transaction<'_>) -> Result<T>,
) -> Result<T> {
    let Some(key) = key else { return work(db).await };
    if let Some(value) = stored_answer(&mut *db, key).await? {
        return Ok(value);
    }
    let value = work(&mut *db).await?;
    let response =
        serde_json::to_string(&value).map_err(|error| ServiceError::Internal(error.to_string()))?;
    let answer = Remembered { request_hash: key.request_hash.clone(), response };
    idempotency::put(db, &key.owner, &key.key, &answer, now).await?;
    Ok(value)
}

async fn stored_answer<T: DeserializeOwned>(db: Transaction<'_>, key: &IdempotencyKey) -> Result<Option<T>> {
    let Some(text) = stored_text(db, key).await? else { return Ok(None) };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| StoreError::Corrupt { what: "a stored answer", detail: error.to_string() }.into())
}

/// The stored answer for a key; refused when the key belongs to another request.
async fn stored_text(
    db: Transaction<'_>,
    IdempotencyKey { owner, key, request_hash }: &IdempotencyKey,
) -> Result<Option<String>> {
    let Some(stored) = idempotency::get(db, owner, key).await? else { return Ok(None) };
    if stored.request_hash != *request_hash {
        return Err(ServiceError::KeyReused(key.clone()));
    }
    Ok(Some(stored.response))
}
