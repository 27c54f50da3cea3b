//! The one task that writes.
//!
//! Jobs that wait together go into one `BEGIN IMMEDIATE`, each in a savepoint, and are answered after the
//! `COMMIT`: one fsync serves a burst, and the order of jobs is the order in which the world changes.

use std::time::Instant;

use futures_util::future::BoxFuture;
use sqlx::{Connection as _, SqliteConnection};
use tokio::sync::{mpsc, oneshot, watch};

use super::{StoreError, events};
use crate::metrics::store::Commits;

/// Jobs that may wait; more than that is answered with [`StoreError::Busy`].
const QUEUE: usize = 256;
/// Jobs that share one commit at most, so that the first of them does not wait for ever.
const BURST: usize = 64;

/// The connection inside a job's savepoint.
pub type Transaction<'c> = &'c mut SqliteConnection;

/// What becomes of a job that ran without error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Keep what it wrote.
    Commit,
    /// Undo what it wrote: it was a dry run.
    RollBack,
}

/// A job that ran, and how its caller is told once the commit is known.
struct Ran {
    keep: bool,
    answer: Box<dyn FnOnce(Option<StoreError>) + Send>,
}

type Job = Box<dyn for<'c> FnOnce(Transaction<'c>) -> BoxFuture<'c, Ran> + Send>;

enum Message {
    Job(Job),
    Close(oneshot::Sender<()>),
}

/// Sends jobs to the writer.
#[derive(Debug, Clone)]
pub(super) struct Handle {
    queue: mpsc::Sender<Message>,
    pub(super) commits: Commits,
    /// Tells that something was committed.
    pub(super) committed: watch::Receiver<()>,
}

/// Starts the writer on its connection; it raises `newest` to the number of the last event after each commit.
pub(super) fn start(connection: SqliteConnection, newest: watch::Sender<i64>) -> Handle {
    let (queue, jobs) = mpsc::channel(QUEUE);
    let (tell, committed) = watch::channel(());
    let commits = Commits::default();
    tokio::spawn(run(connection, jobs, newest, commits.clone(), tell));
    Handle { queue, commits, committed }
}

impl Handle {
    /// Jobs that wait.
    pub(super) fn waiting(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }

    pub(super) async fn run<T, E, F>(&self, job: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
        F: for<'c> FnOnce(Transaction<'c>) -> BoxFuture<'c, Result<(T, Fate), E>> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |transaction| {
            Box::pin(async move {
                let result = job(transaction).await;
                let keep = matches!(result, Ok((_, Fate::Commit)));
                Ran {
                    keep,
                    answer: Box::new(move |failed| {
                        let result = match failed {
                            Some(error) if keep => Err(E::from(error)),
                            _ => result.map(|(value, _)| value),
                        };
                        // The caller may have gone; what was committed stays committed.
                        let _ = answer.send(result);
                    }),
                }
            })
        });
        self.queue.try_send(Message::Job(job)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::Busy,
            mpsc::error::TrySendError::Closed(_) => StoreError::Closed,
        })?;
        answered.await.map_err(|_| StoreError::NotWritten)?
    }

    pub(super) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.queue.send(Message::Close(done)).await.is_ok() {
            let _ = closed.await;
        }
    }
}

async fn run(
    mut connection: SqliteConnection,
    mut queue: mpsc::Receiver<Message>,
    newest: watch::Sender<i64>,
    commits: Commits,
    committed: watch::Sender<()>,
) {
    let mut closing = None;
    while closing.is_none() {
        let mut burst = Vec::new();
        let mut next = queue.recv().await;
        while let Some(message) = next.take() {
            match message {
                Message::Job(job) => burst.push(job),
                Message::Close(done) => closing = Some(done),
            }
            if closing.is_none() && burst.len() < BURST {
                next = queue.try_recv().ok();
            }
        }
        if burst.is_empty() && closing.is_none() {
            break; // every handle is gone
        }
        if !burst.is_empty() {
            let began = Instant::now();
            let kept = commit(&mut connection, burst, &newest).await;
            commits.took.observe(began.elapsed().as_secs_f64());
            if kept {
                committed.send_replace(());
            } else {
                commits.failed.inc();
            }
        }
    }
    if let Err(error) = connection.close().await {
        tracing::warn!(%error, "the database did not close cleanly");
    }
    if let Some(done) = closing {
        let _ = done.send(());
    }
}

/// Runs jobs in one transaction; whether it was kept.
async fn commit(connection: &mut SqliteConnection, burst: Vec<Job>, newest: &watch::Sender<i64>) -> bool {
    let mut answers = Vec::with_capacity(burst.len());
    let result = async {
        execute(connection, "BEGIN IMMEDIATE").await?;
        for job in burst {
            execute(connection, "SAVEPOINT job").await?;
            let ran = job(connection).await;
            if !ran.keep {
                execute(connection, "ROLLBACK TO job").await?;
            }
            answers.push(ran.answer);
            execute(connection, "RELEASE job").await?;
        }
        let last = events::newest(connection).await?;
        execute(connection, "COMMIT").await?;
        Ok::<_, StoreError>(last)
    }
    .await;
    if let Ok(last) = &result {
        // Before anybody is answered: whoever has the answer finds the events of it in a stream that is up to date.
        newest.send_if_modified(|newest| std::mem::replace(newest, *last) != *last);
    }
    if let Err(error) = &result {
        tracing::error!(%error, "a commit failed; nothing of it was kept");
        // Fails when SQLite has rolled back by itself, which is what it is for.
        let _ = execute(connection, "ROLLBACK").await;
    }
    let kept = result.is_ok();
    for answer in answers {
        answer(result.as_ref().err().map(StoreError::again));
    }
    kept
}

async fn execute(connection: &mut SqliteConnection, sql: &'static str) -> Result<(), StoreError> {
    sqlx::query(sql).execute(connection).await?;
    Ok(())
}
