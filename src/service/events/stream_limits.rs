//! Limits on long-lived streams: a total, and a share for each reader.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::access::Actor;

/// One reader may have one in this many of the slots.
const SHARE: usize = 4;

/// The slots.
#[derive(Debug)]
pub(in crate::service) struct StreamLimits {
    all: Arc<Semaphore>,
    /// The most that one reader may have.
    share: usize,
    taken: Mutex<HashMap<String, usize>>,
}

/// A slot, freed when dropped.
#[derive(Debug)]
pub(in crate::service) struct StreamSlot {
    places: Arc<StreamLimits>,
    reader: String,
    _permit: OwnedSemaphorePermit,
}

/// Why no slot is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum LimitReached {
    /// All are in use.
    All,
    /// The reader has its share.
    Share(usize),
}

impl StreamLimits {
    /// With a total of `all` slots.
    pub(in crate::service) fn new(all: usize) -> Arc<Self> {
        let share = (all / SHARE).max(1);
        Arc::new(Self { all: Arc::new(Semaphore::new(all)), share, taken: Mutex::default() })
    }

    /// Takes a slot for an actor. All users of one tenant are one reader, however many tokens they have.
    pub(in crate::service) fn take(self: &Arc<Self>, actor: &Actor) -> Result<StreamSlot, LimitReached> {
        let reader = match actor.scope() {
            Some(_) => actor.grant.to_string(),
            None => actor.subject.to_string(),
        };
        let mut taken = self.taken();
        if taken.get(&reader).is_some_and(|count| *count >= self.share) {
            return Err(LimitReached::Share(self.share));
        }
        let permit = Arc::clone(&self.all).try_acquire_owned().map_err(|_| LimitReached::All)?;
        *taken.entry(reader.clone()).or_default() += 1;
        Ok(StreamSlot { places: Arc::clone(self), reader, _permit: permit })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        // A panic elsewhere leaves the numbers as they were before or after one change, which is consistent.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if let Some(count) = taken.get_mut(&self.reader) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.reader);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::access::{Grant, Origin, Subject};
    use crate::domain::token::TokenId;

    fn actor(id: u8, grant: &str) -> Actor {
        let subject = Subject::Token { id: TokenId::new([id; 8]), name: "t".parse().expect("a name") };
        Actor { subject, grant: Grant::parse(grant).expect("a grant"), origin: Origin::Socket }
    }

    #[test]
    fn tokens_of_a_tenant_share_a_quarter() {
        let places = StreamLimits::new(8);
        let web = places.take(&actor(1, "tenant:web")).expect("a place");
        let again = places.take(&actor(2, "tenant:web")).expect("a place");
        assert_eq!(places.take(&actor(3, "tenant:web")).err(), Some(LimitReached::Share(2)));
        let viewers: Vec<StreamSlot> = (1..=3)
            .flat_map(|id| (0..2).map(move |_| id))
            .map_while(|id| places.take(&actor(id, "viewer")).ok())
            .collect();
        assert_eq!(viewers.len(), 6, "each token of the host is a reader of its own");
        assert_eq!(places.take(&actor(4, "viewer")).err(), Some(LimitReached::All));
        drop(web);
        let batch = places.take(&actor(5, "tenant:batch"));
        assert!(batch.is_ok() && places.take(&actor(1, "tenant:web")).is_err());
        drop((batch, again, viewers));
        assert!(places.taken().is_empty(), "nothing is kept of those who left");
    }

    #[test]
    fn every_reader_gets_at_least_one_slot() {
        let places = StreamLimits::new(1);
        let first = places.take(&actor(1, "viewer")).expect("a place");
        assert_eq!(places.take(&actor(2, "viewer")).err(), Some(LimitReached::All));
        drop(first);
        assert!(places.take(&actor(2, "viewer")).is_ok());
    }
}
