//! Writes what drivers need to find again after a restart of the manager.

use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::service::events::writer;
use crate::store::{self, Store, StoreError, TransactionEnd, transact};
use crate::supervisor::{DurableRecord, DurableWrite};

/// Records that may wait to be written.
pub(super) const QUEUE: usize = 64;

/// Writes what drivers send until the last one is gone.
pub(super) async fn write_all(clock: Clock, store: Store, mut records: mpsc::Receiver<DurableWrite>) {
    while let Some(DurableWrite { daemon, recorded, written }) = records.recv().await {
        let result: Result<(), StoreError> = transact!(store, write_urgent(), |db| {
            let (now, id) = (clock.unix_ms(), clock.new_id());
            match recorded {
                DurableRecord::Incarnation(incarnation) => {
                    store::restarts::begin(&mut *db, &daemon, &incarnation, id, now).await?;
                    store::daemons::put_incarnation(db, &daemon, &incarnation, now).await?;
                }
                DurableRecord::PartitionRun(run) => {
                    store::partitions::put_run(db, &daemon, &run, now).await?;
                }
                DurableRecord::Layout(status) => {
                    store::replays::end_restart(db, &daemon, &status, now).await?;
                }
                DurableRecord::ComputeMode { gpu, held } => {
                    writer::record_compute_mode_change(&mut *db, &daemon, &gpu, held.as_ref(), now).await?;
                    store::compute_modes::put(db, &gpu, held.as_ref(), now).await?;
                }
            }
            Ok(((), TransactionEnd::Commit))
        });
        if let Err(error) = &result {
            tracing::error!(%error, "what has to outlive the manager could not be recorded");
        }
        let _ = written.send(result.is_ok());
    }
}
