//! What drivers have to tell, on its way to the database: a bounded queue, so that no driver ever waits for a disk.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::domain::client::{ClientFacts, ClientId};
use crate::domain::event::NewEvent;
use crate::domain::{DaemonName, FilePlace};

/// Entries that may wait; what comes while there are so many is counted and lost.
const WAITING: usize = 4096;

/// Something that a driver tells of.
#[derive(Debug, Clone)]
pub enum Note {
    /// This happened.
    Happened(Box<NewEvent>),
    /// A process became a client, as a look found.
    Came(Box<ClientFacts>),
    /// A client is one no more; what its leaving follows on, if not on itself.
    Left(ClientId, Option<crate::domain::event::EventType>),
    /// A process came and went while nobody looked, as server.log tells.
    Visited(Visit),
    /// server.log was read so far, and everything that it tells of is in this entry or in an earlier one.
    ReadTo(FilePlace),
}

/// A client that server.log alone tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visit {
    /// Its process ID.
    pub pid: u32,
    /// The server that let it in.
    pub server: u32,
    /// When it came, in unix milliseconds, by the log.
    pub came: Option<i64>,
    /// When it left.
    pub left: Option<i64>,
}

/// What a driver tells of at one time; it is written in one transaction.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The daemon.
    pub daemon: DaemonName,
    /// When, in unix milliseconds.
    pub at: i64,
    /// What happened, in this order.
    pub notes: Vec<Note>,
}

/// What the queue gives.
#[derive(Debug, Clone)]
pub enum Item {
    /// What a driver tells of.
    Entry(Entry),
    /// What the manager itself tells of, and could not write at once.
    Event {
        /// When, in unix milliseconds.
        at: i64,
        /// What happened.
        event: Box<NewEvent>,
    },
    /// That what followed here was lost, since nothing could be written.
    Lost {
        /// How many notes.
        count: u64,
        /// When the first of them was told, in unix milliseconds.
        from: i64,
        /// When the last of them was.
        until: i64,
    },
}

/// The way from the drivers to whoever writes; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<VecDeque<Item>>,
    closed: AtomicBool,
    wake: Notify,
}

impl Journal {
    /// Tells of something; never waits.
    pub fn tell(&self, entry: Entry) {
        if entry.notes.is_empty() {
            return;
        }
        let (notes, at) = (u64::try_from(entry.notes.len()).unwrap_or(u64::MAX), entry.at);
        self.push(Item::Entry(entry), notes, at);
    }

    /// Tells of something for the manager itself.
    pub fn say(&self, event: NewEvent, at: i64) {
        self.push(Item::Event { at, event: Box::new(event) }, 1, at);
    }

    fn push(&self, item: Item, notes: u64, at: i64) {
        let mut queue = self.queue();
        if queue.len() < WAITING {
            queue.push_back(item);
        } else {
            match queue.back_mut() {
                Some(Item::Lost { count, until, .. }) => {
                    *count += notes;
                    *until = at;
                }
                _ => queue.push_back(Item::Lost { count: notes, from: at, until: at }),
            }
        }
        drop(queue);
        self.shared.wake.notify_one();
    }

    /// Takes up to `most` items, in their order; waits for one, and gives none once it is closed and empty.
    pub async fn take(&self, most: usize) -> Vec<Item> {
        loop {
            let waiting = self.shared.wake.notified();
            {
                let mut queue = self.queue();
                if !queue.is_empty() || self.is_closed() {
                    let some = most.min(queue.len());
                    return queue.drain(..some).collect();
                }
            }
            waiting.await;
        }
    }

    /// Lets whoever takes items end once there are none.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.wake.notify_one();
    }

    /// Whether nothing more comes.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Item>> {
        // A panic elsewhere leaves the queue as it was before or after one item: both are whole.
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::{EventType, Subject};

    fn entry(at: i64) -> Entry {
        let daemon = DaemonName::parse("gpu0").expect("a name");
        let event = NewEvent::new(EventType::DaemonReady, Subject::daemon(&daemon), "ready");
        Entry { daemon, at, notes: vec![Note::Happened(Box::new(event))] }
    }

    #[tokio::test]
    async fn what_is_too_much_is_counted_where_it_is_missing() {
        let journal = Journal::default();
        let waiting = i64::try_from(WAITING).expect("small");
        for at in 0..waiting + 3 {
            journal.tell(entry(at));
        }
        let first = journal.take(1).await;
        assert!(matches!(&first[..], [Item::Entry(entry)] if entry.at == 0));
        // Room for one more would not be at the end of what is missing: it is missing, too.
        journal.tell(entry(9_999));
        let rest = journal.take(usize::MAX).await;
        assert_eq!(rest.len(), WAITING);
        let Some(Item::Lost { count, from, until }) = rest.last() else {
            panic!("nothing is said to be lost")
        };
        assert_eq!((*count, *from, *until), (4, waiting, 9_999));
        journal.tell(entry(10_000));
        assert!(matches!(&journal.take(9).await[..], [Item::Entry(_)]), "it is whole again");
        journal.close();
        assert!(journal.take(9).await.is_empty());
    }
}
