//! End of an operation: it is written whatever went wrong, and frees the operation's daemons.
//!
//! A full disk, or a database locked by another process, is a passing fault. Until it has passed the operation stays `running`, and each
//! failed write is repeated until the manager stops; the next manager resumes the operation.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use uuid::Uuid;

use super::{Engine, Result, Stop};
use crate::domain::operation::{Operation, UNDO, Undo};
use crate::store::StoreError;

/// Pause between two attempts to write.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum number of attempts at an undo that fails although its journal can be written.
const UNDO_TRIES: u32 = 3;

impl Engine {
    /// Runs an operation to its end; one that panics fails, and is undone if its kind can be.
    pub(super) async fn run_to_end(&self, operation: &Operation, undo: Option<Undo>) -> Result<(), Stop> {
        let mut undo = undo;
        for _ in 0..2 {
            match AssertUnwindSafe(Box::pin(self.run(operation, undo.take()))).catch_unwind().await {
                Ok(result) => return result,
                Err(_) if operation.request.is_undone() => undo = Some(Undo::Failed(PANICKED.to_owned())),
                Err(_) => break,
            }
        }
        Err(Stop::Failed(PANICKED.to_owned().into()))
    }

    /// Journals how an operation is undone, and tries again while the journal cannot be written.
    pub(super) async fn undo<F: Future<Output = Result<((), String)>>>(
        &self,
        id: Uuid,
        undone: impl Fn() -> F,
    ) -> Result<()> {
        let mut tries = 0;
        loop {
            match self.journaled(id, UNDO, undone()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(failure)) => {
                    tries += 1;
                    if tries == UNDO_TRIES {
                        return Err(failure);
                    }
                }
                Err(error @ StoreError::Closed) => return Err(error.into()),
                Err(error) => tracing::error!(operation = %id, %error, "it cannot be undone yet"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Writes how an operation ended, and tries again until it is written.
    pub(super) async fn finish_with_retries(&self, id: Uuid, result: Result<(), Stop>) {
        loop {
            match self.finish(id, result.clone()).await {
                Ok(()) | Err(StoreError::Closed) => return,
                Err(error) => {
                    tracing::error!(operation = %id, %error, "the end of the operation cannot be written yet");
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Error of an operation that met a fault of this program.
const PANICKED: &str = "a fault in mps-manager ended it: the log says where, please report it";
