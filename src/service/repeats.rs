//! Answers that are kept under an `Idempotency-Key` after they were given, for requests that keep none in their own transaction.
//!
//! No use case: a key names its owner, and whoever asks here was let in by the right of the request itself.

use super::acting::carried;
use super::told::calling;
use super::{IdempotencyKey, Service, ServiceError};
use crate::clock::unix_ms;
use crate::domain::access::Actor;
use crate::store::idempotency::{self, Remembered};
use crate::store::{Fate, StoreError};

impl Service {
    /// The answer that was kept under a key; refused when it was given to another request.
    pub(crate) async fn kept_answer(&self, key: &IdempotencyKey) -> Result<Option<String>, ServiceError> {
        let mut reader = self.parts.store.read().await?;
        let Some(kept) = idempotency::get(&mut reader, &key.owner, &key.key).await? else { return Ok(None) };
        if kept.request_hash == key.request_hash {
            return Ok(Some(kept.response));
        }
        Err(ServiceError::KeyReused(key.key.clone()))
    }

    /// Keeps an answer, which is JSON, under a key. Where that fails, a repeated request is done again.
    pub(crate) async fn keep_answer(&self, key: IdempotencyKey, response: String) {
        let IdempotencyKey { owner, key, request_hash } = key;
        let kept = self.parts.store.write::<(), StoreError, _>(move |db| {
            Box::pin(async move {
                let answer = Remembered { request_hash, response };
                idempotency::put(db, &owner, &key, &answer, unix_ms()).await?;
                Ok(((), Fate::Commit))
            })
        });
        if let Err(error) = kept.await {
            tracing::warn!(%error, "an answer is not kept under its Idempotency-Key");
        }
    }

    /// Does something for a caller to its end, whether or not the caller waits for it.
    pub(crate) async fn carry<T: Send + 'static>(
        &self,
        actor: Actor,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let task = self.parts.tasks.spawn(carried(calling(actor, work)));
        task.await.map_err(|error| ServiceError::Internal(error.to_string()))
    }
}
