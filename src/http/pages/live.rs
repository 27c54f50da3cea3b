//! Notifies an open page that it is stale, so that it reloads itself.
//!
//! The page is rendered by the same handler each time: nothing is known here about its content, and a plain reload does the
//! same. Values such as memory change without an event, so pages are also marked stale every few seconds.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event as Message, Sse};
use futures_util::Stream;
use futures_util::stream;
use serde::Deserialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::domain::event::EventFilter;
use crate::http::extract::{Call, Query};
use crate::http::problem::Problem;
use crate::service::access::{InUse, Lifetime};
use crate::service::events::Following;

/// Longest time before a page is marked stale.
const FIGURES: Duration = Duration::from_secs(5);
/// Shortest time between two stale messages: events come in bursts.
const PAUSE: Duration = Duration::from_millis(300);
/// Time after which a browser reconnects.
const RETRY: Duration = Duration::from_secs(2);

/// Position at which to begin.
#[derive(Debug, Deserialize)]
pub(super) struct LiveQuery {
    /// The last event that the page shows.
    after: Option<i64>,
}

pub(super) async fn follow(
    Call { app, ctx }: Call,
    lifetime: Lifetime,
    Query(LiveQuery { after }): Query<LiveQuery>,
) -> Result<Sse<impl Stream<Item = Result<Message, Infallible>>>, Problem> {
    // A page from before a restore of the database may know later events.
    let after = after.map(|after| after.clamp(0, app.service.last_event()));
    let following = app.service.follow_events(&ctx, EventFilter::default(), after)?;
    let clock = app.service.clock();
    let in_use = lifetime.in_use(clock);
    let stop = app.stop.clone();
    let begin = PageUpdates {
        following,
        first: true,
        is_over: false,
        rests_until: Instant::now(),
        stop,
        clock,
        lifetime,
        _in_use: in_use,
    };
    Ok(Sse::new(stream::unfold(begin, PageUpdates::next)))
}

struct PageUpdates {
    following: Following,
    first: bool,
    /// True if the page was told that its session has ended.
    is_over: bool,
    /// Time until which no stale message follows the last one.
    rests_until: Instant,
    stop: CancellationToken,
    clock: Clock,
    lifetime: Lifetime,
    /// A session counts as used while a page is open.
    _in_use: InUse,
}

impl PageUpdates {
    async fn next(mut self) -> Option<(Result<Message, Infallible>, Self)> {
        if std::mem::take(&mut self.first) {
            return Some((Ok(Message::default().retry(RETRY).comment("following")), self));
        }
        if self.is_over {
            return None;
        }
        let (stop, lifetime) = (self.stop.clone(), self.lifetime.clone());
        tokio::select! {
            biased;
            () = stop.cancelled() => None,
            () = lifetime.over(self.clock) => {
                self.is_over = true;
                Some((Ok(Message::default().event("ended").data("now")), self))
            }
            stale = self.stale() => stale.then(|| (Ok(Message::default().event("stale").data("now")), self)),
        }
    }

    /// Waits until the page may be stale; false if the stream has to end.
    async fn stale(&mut self) -> bool {
        let figures = tokio::time::sleep(FIGURES);
        tokio::pin!(figures);
        tokio::select! {
            followed = self.following.next() => if followed.is_err() { return false },
            () = &mut figures => {}
        }
        // The first event of a burst is shown at once, and the rest of them together.
        while Instant::now() < self.rests_until {
            tokio::select! {
                () = tokio::time::sleep_until(self.rests_until) => {}
                followed = self.following.next() => if followed.is_err() { return false },
            }
        }
        self.rests_until = Instant::now() + PAUSE;
        true
    }
}
