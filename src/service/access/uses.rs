//! Tokens and sessions in the store: loaded at the start, and written when they were used.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Access, LiveToken};
use crate::service::{Backend, Result};
use crate::store::{self, StoreError, transact};

/// Interval at which the last uses of tokens are written.
const WRITING_USES: Duration = Duration::from_secs(60);

impl Backend {
    /// Everyone with access.
    pub fn access(&self) -> &Access {
        &self.parts.access
    }

    /// Loads the tokens from the store.
    pub(in crate::service) async fn load_tokens(&self) -> Result<(), StoreError> {
        let access = &self.parts.access;
        let _one = access.loading.lock().await;
        let living =
            store::tokens::living(&mut *self.parts.store.read().await?, self.parts.clock.unix_ms()).await?;
        let mut tokens = access.tokens.write().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *tokens);
        for token in living {
            let live = before.remove(&token.id).unwrap_or_else(|| {
                let used = token.last_used_at.unwrap_or_default();
                Arc::new(LiveToken {
                    token: token.clone(),
                    last_used: AtomicI64::new(used),
                    written_use: AtomicI64::new(used),
                    ended: CancellationToken::new(),
                })
            });
            tokens.insert(token.id, live);
        }
        // Revoked or expired.
        for gone in before.into_values() {
            gone.ended.cancel();
        }
        Ok(())
    }

    /// Loads the sessions from the store, at startup.
    pub(in crate::service) async fn load_sessions(&self) -> Result<(), StoreError> {
        let access = &self.parts.access;
        let sessions = store::sessions::all(&mut *self.parts.store.read().await?, &access.admin).await?;
        for session in sessions {
            access.begin_session(session);
        }
        Ok(())
    }

    /// Periodically writes when tokens and sessions were last used, and ends expired ones; no request waits for it.
    pub async fn write_uses(self: Arc<Self>) {
        loop {
            tokio::time::sleep(WRITING_USES).await;
            self.write_last_uses().await;
        }
    }

    /// Writes the last uses of tokens and sessions now, as also at shutdown. A failure is only logged.
    pub async fn write_last_uses(&self) {
        if let Err(error) = self.write_uses_now().await {
            tracing::warn!(%error, "the last uses of tokens could not be written");
        }
    }

    async fn write_uses_now(&self) -> Result<()> {
        let now = self.parts.clock.unix_ms();
        let access = &self.parts.access;
        let (uses, sessions) = (access.unwritten_uses(), access.sweep(now));
        if self.parts.store.is_sealed() {
            return Ok(());
        }
        let (written, written_sessions) = (uses.clone(), sessions.clone());
        let (limits, admin) = (access.limits, access.admin);
        transact!(self.parts.store, |db| {
            for (live, at) in &written {
                store::tokens::used(&mut *db, &live.token.id, *at).await?;
            }
            for (live, at) in &written_sessions {
                store::sessions::used(&mut *db, &live.session.digest, *at).await?;
            }
            let (idle, opened) = (now - limits.idle_ms, now - limits.max_ms);
            store::sessions::delete_old(db, idle, opened, &admin).await?;
            Ok(())
        })?;
        for (live, at) in uses {
            live.written_use.fetch_max(at, Ordering::Relaxed);
        }
        for (live, at) in sessions {
            live.written_use.fetch_max(at, Ordering::Relaxed);
        }
        Ok(())
    }
}
