//! Answers stored under an `Idempotency-Key` after they were given, for requests that store none in their own transaction.
//!
//! These are not use cases: a key names its owner, and the request itself was authorised before.

use crate::service::{IdempotencyKey, Service, ServiceError};
use crate::store::idempotency::{self, Remembered};
use crate::store::{Fate, StoreError};

impl Service {
    /// The answer stored under a key; refused when the key belongs to another request.
    pub(crate) async fn kept_answer(&self, key: &IdempotencyKey) -> Result<Option<String>, ServiceError> {
        let mut reader = self.parts.store.read().await?;
        let Some(kept) = idempotency::get(&mut reader, &key.owner, &key.key).await? else { return Ok(None) };
        if kept.request_hash == key.request_hash {
            return Ok(Some(kept.response));
        }
        Err(ServiceError::KeyReused(key.key.clone()))
    }

    /// Stores a JSON answer under a key. If that fails, a repeated request runs again.
    pub(crate) async fn keep_answer(&self, key: IdempotencyKey, response: String) {
        let IdempotencyKey { owner, key, request_hash } = key;
        let clock = self.parts.clock;
        let kept = self.parts.store.write::<(), StoreError, _>(move |db| {
            Box::pin(async move {
                let answer = Remembered { request_hash, response };
                idempotency::put(db, &owner, &key, &answer, clock.unix_ms()).await?;
                Ok(((), Fate::Commit))
            })
        });
        if let Err(error) = kept.await {
            tracing::warn!(%error, "an answer could not be stored under its Idempotency-Key");
        }
    }
}
