//! Places for what lasts, as streams of events: so many for all, and a share for each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::access::Actor;

/// Of the places, one in so many may be one reader's.
const SHARE: usize = 4;

/// The places.
#[derive(Debug)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    /// The most that one reader may have.
    share: usize,
    taken: Mutex<HashMap<String, usize>>,
}

/// A place; dropped, it is free.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    reader: String,
    _permit: OwnedSemaphorePermit,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// Every one is taken.
    All,
    /// The reader has as many as one may have.
    Share(usize),
}

impl Places {
    /// So many for all.
    pub(super) fn new(all: usize) -> Arc<Self> {
        let share = (all / SHARE).max(1);
        Arc::new(Self { all: Arc::new(Semaphore::new(all)), share, taken: Mutex::default() })
    }

    /// Takes a place for an actor. All who are bound to one tenant are one reader, however many tokens they have.
    pub(super) fn take(self: &Arc<Self>, actor: &Actor) -> Result<Place, Full> {
        let reader = match actor.scope() {
            Some(_) => actor.grant.to_string(),
            None => actor.subject.to_string(),
        };
        let mut taken = self.taken();
        if taken.get(&reader).is_some_and(|count| *count >= self.share) {
            return Err(Full::Share(self.share));
        }
        let permit = Arc::clone(&self.all).try_acquire_owned().map_err(|_| Full::All)?;
        *taken.entry(reader.clone()).or_default() += 1;
        Ok(Place { places: Arc::clone(self), reader, _permit: permit })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        // A panic elsewhere leaves the numbers as they were before or after one place: both are whole.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
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
    fn each_reader_has_a_quarter_at_most_and_all_tokens_of_a_tenant_are_one_reader() {
        let places = Places::new(8);
        let web = places.take(&actor(1, "tenant:web")).expect("a place");
        let again = places.take(&actor(2, "tenant:web")).expect("a place");
        assert_eq!(places.take(&actor(3, "tenant:web")).err(), Some(Full::Share(2)));
        let viewers: Vec<Place> = (1..=3)
            .flat_map(|id| (0..2).map(move |_| id))
            .map_while(|id| places.take(&actor(id, "viewer")).ok())
            .collect();
        assert_eq!(viewers.len(), 6, "each token of the host is a reader of its own");
        assert_eq!(places.take(&actor(4, "viewer")).err(), Some(Full::All));
        drop(web);
        let batch = places.take(&actor(5, "tenant:batch"));
        assert!(batch.is_ok() && places.take(&actor(1, "tenant:web")).is_err());
        drop((batch, again, viewers));
        assert!(places.taken().is_empty(), "nothing is kept of those who left");
    }

    #[test]
    fn however_few_there_are_each_reader_may_have_one() {
        let places = Places::new(1);
        let first = places.take(&actor(1, "viewer")).expect("a place");
        assert_eq!(places.take(&actor(2, "viewer")).err(), Some(Full::All));
        drop(first);
        assert!(places.take(&actor(2, "viewer")).is_ok());
    }
}
