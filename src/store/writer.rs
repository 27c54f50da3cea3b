//! The only task that writes.
//!
//! Jobs that wait together go into one `BEGIN IMMEDIATE`, each in a savepoint, and are answered after the `COMMIT`: one fsync serves a
//! burst, and changes take effect in the order of their jobs. Jobs of drivers come first: a daemon that is down does not wait for requests.
//! A job should take milliseconds, and is measured.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use sqlx::{Connection as _, SqliteConnection};
use tokio::sync::{mpsc, oneshot, watch};

use super::failure::noting;
use super::guard::Guard;
use super::{Db, Result, StoreError, events};
use crate::metrics::store::Commits;

/// Maximum number of waiting jobs; a further one is answered with [`StoreError::Busy`].
const QUEUE: usize = 256;
/// Maximum number of jobs in one commit, so that the first of them does not wait forever.
const BURST: usize = 64;
/// Time for which jobs may join a commit that has begun: the jobs behind it wait no longer than this and one job.
const SHARE: Duration = Duration::from_millis(20);

/// The connection inside a job's savepoint.
pub type Transaction<'c> = &'c mut SqliteConnection;

/// End of the transaction of a job that ran without error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionEnd {
    /// Keep the job's writes.
    Commit,
    /// Undo the job's writes, as after a dry run.
    RollBack,
}

/// A job that ran, with the function that answers its caller once the result of the commit is known.
struct FinishedJob {
    keep: bool,
    answer: Box<dyn FnOnce(Option<StoreError>) + Send>,
}

type Job = Box<dyn for<'c> FnOnce(Transaction<'c>) -> BoxFuture<'c, FinishedJob> + Send>;

enum Message {
    Job(Job),
    Close(oneshot::Sender<()>),
}

/// Source of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobSource {
    /// A driver, which may be waiting with a daemon that is down.
    Drivers,
    /// A request, or another task.
    Requests,
}

/// Sends jobs to the writer.
#[derive(Debug, Clone)]
pub(super) struct WriterHandle {
    queue: mpsc::Sender<Message>,
    urgent: mpsc::Sender<Message>,
    pub(super) commits: Commits,
    /// Counts commits.
    pub(super) committed: watch::Receiver<u64>,
    guard: Guard,
}

/// Starts the writer on its connection; it raises `newest` to the number of the last event after each commit.
pub(super) fn start(connection: SqliteConnection, newest: watch::Sender<i64>, guard: Guard) -> WriterHandle {
    let (queue, requests) = mpsc::channel(QUEUE);
    let (urgent, drivers) = mpsc::channel(QUEUE);
    let (counting, committed) = watch::channel(0);
    let commits = Commits::default();
    let writer =
        Writer { connection, newest, committed: counting, commits: commits.clone(), guard: guard.clone() };
    tokio::spawn(run(writer, Jobs { drivers, requests }));
    WriterHandle { queue, urgent, commits, committed, guard }
}

impl WriterHandle {
    /// Jobs that wait.
    pub(super) fn waiting(&self) -> usize {
        [&self.queue, &self.urgent].map(|queue| queue.max_capacity() - queue.capacity()).iter().sum()
    }

    pub(super) async fn run<T, E, F>(&self, lane: JobSource, job: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
        F: for<'c> FnOnce(Transaction<'c>) -> BoxFuture<'c, Result<(T, TransactionEnd), E>> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |transaction| {
            Box::pin(async move {
                let result = job(transaction).await;
                let keep = matches!(result, Ok((_, TransactionEnd::Commit)));
                FinishedJob {
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
        let queue = if lane == JobSource::Drivers { &self.urgent } else { &self.queue };
        queue.try_send(Message::Job(job)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::Busy,
            mpsc::error::TrySendError::Closed(_) => StoreError::Closed,
        })?;
        // What was not even tried could not be, as while the file is gone.
        answered
            .await
            .map_err(|_| if self.guard.is_lost() { self.guard.lost() } else { StoreError::NotWritten })?
    }

    pub(super) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.queue.send(Message::Close(done)).await.is_ok() {
            let _ = closed.await;
        }
    }
}

/// The queues, the drivers' first.
struct Jobs {
    drivers: mpsc::Receiver<Message>,
    requests: mpsc::Receiver<Message>,
}

impl Jobs {
    /// The next one; `None` when every handle is gone.
    async fn next(&mut self) -> Option<Message> {
        tokio::select! {
            biased;
            Some(message) = self.drivers.recv() => Some(message),
            message = self.requests.recv() => message,
        }
    }

    /// The next one that is there already.
    fn waiting(&mut self) -> Option<Message> {
        self.drivers.try_recv().or_else(|_| self.requests.try_recv()).ok()
    }
}

async fn run(mut writer: Writer, mut jobs: Jobs) {
    let mut closing = None;
    while closing.is_none() {
        match jobs.next().await {
            Some(Message::Job(first)) => closing = writer.burst(first, &mut jobs).await,
            Some(Message::Close(done)) => closing = Some(done),
            None => break,
        }
    }
    // Drivers ignore closing connections: what they sent before is written too.
    while let Ok(Message::Job(job)) = jobs.drivers.try_recv() {
        writer.burst(job, &mut jobs).await;
    }
    if let Err(error) = writer.connection.close().await {
        tracing::warn!(%error, "the database did not close cleanly");
    }
    if let Some(done) = closing {
        let _ = done.send(());
    }
}

/// The connection that writes, and its health.
struct Writer {
    connection: SqliteConnection,
    newest: watch::Sender<i64>,
    committed: watch::Sender<u64>,
    commits: Commits,
    guard: Guard,
}

impl Writer {
    /// Commits a job, and waiting jobs as far as they fit; returns the sender of a request to close that arrived among them.
    async fn burst(&mut self, first: Job, jobs: &mut Jobs) -> Option<oneshot::Sender<()>> {
        let began = Instant::now();
        let mut closing = None;
        let (kept, failure) = noting(self.commit(first, || {
            if began.elapsed() >= SHARE || closing.is_some() {
                return None;
            }
            match jobs.waiting()? {
                Message::Job(job) => Some(job),
                Message::Close(done) => {
                    closing = Some(done);
                    None
                }
            }
        }))
        .await;
        self.commits.took.observe(began.elapsed().as_secs_f64());
        self.guard.report(kept == Some(true), failure);
        if kept.is_none() {
            self.commits.failed.inc();
        }
        closing
    }

    /// Runs jobs in one transaction; returns whether any of them was kept, and `None` if the transaction failed.
    async fn commit(&mut self, first: Job, mut next: impl FnMut() -> Option<Job>) -> Option<bool> {
        let mut answers = Vec::new();
        let mut kept = false;
        let connection = &mut self.connection;
        let result = async {
            self.guard.check()?;
            execute(connection, "BEGIN IMMEDIATE").await?;
            let mut job = Some(first);
            while let Some(run) = job.take() {
                let began = Instant::now();
                execute(connection, "SAVEPOINT job").await?;
                let ran = run(connection).await;
                if !ran.keep {
                    execute(connection, "ROLLBACK TO job").await?;
                }
                kept |= ran.keep;
                answers.push(ran.answer);
                execute(connection, "RELEASE job").await?;
                self.commits.held.observe(began.elapsed().as_secs_f64());
                if answers.len() < BURST {
                    job = next();
                }
            }
            let last = events::newest(connection).await?;
            // What was read until now no longer counts once readers see the commit; it is announced when it is made.
            self.committed.send_if_modified(|count| {
                *count += 1;
                false
            });
            execute(connection, "COMMIT").await?;
            // What was written to a file that nobody finds again is not kept.
            self.guard.check()?;
            Ok::<_, StoreError>(last)
        }
        .await;
        if let Ok(last) = &result {
            // Before anybody is answered: a caller with the answer finds its events in a stream that is up to date.
            self.newest.send_if_modified(|newest| std::mem::replace(newest, *last) != *last);
        }
        if let Err(error) = &result {
            if !matches!(error, StoreError::Lost(_)) {
                tracing::error!(%error, "a commit failed; nothing of it was kept");
            }
            // Fails when SQLite has rolled back by itself, which is what it is for.
            let _ = execute(connection, "ROLLBACK").await;
        }
        // Before anybody is answered, and after a failure as well: one that comes after the commit has changed what readers see.
        self.committed.send_modify(|count| *count += 1);
        for answer in answers {
            answer(result.as_ref().err().map(StoreError::again));
        }
        result.is_ok().then_some(kept)
    }
}

async fn execute(connection: &mut Db, sql: &'static str) -> Result<()> {
    sqlx::query(sql).execute(connection).await?;
    Ok(())
}
