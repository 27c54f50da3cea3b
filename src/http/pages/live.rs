//! Notifies an open page that it is stale, so that it reloads itself.
//!
//! The page is rendered by the same handler each time: nothing is known here about its content, and a plain reload does the
//! same. Values such as memory change without an event, so pages are also marked stale every few seconds.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event as Message, Sse};
use futures_util::Stream;
use futures_util::stream;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::domain::event::EventFilter;
use crate::http::AppState;
use crate::http::problem::Problem;
use crate::service::access::context::RequestContext;
use crate::service::access::{InUse, Lifetime};
use crate::service::events::{Followed, Following};

/// Longest time before a page is marked stale.
const FIGURES: Duration = Duration::from_secs(5);
/// Shortest time between two stale messages: events come in bursts.
const PAUSE: Duration = Duration::from_millis(300);
/// How long a browser waits before it reconnects.
const RETRY: Duration = Duration::from_secs(2);

pub(super) async fn follow(
    State(app): State<AppState>,
    ctx: RequestContext,
    lifetime: Lifetime,
) -> Result<Sse<impl Stream<Item = Result<Message, Infallible>>>, Problem> {
    let following = app.service.follow_events(&ctx, EventFilter::default(), None)?;
    let clock = app.service.clock();
    let in_use = lifetime.in_use(clock);
    let stop = app.stop.clone();
    let begin = PageUpdates { following, first: true, stop, clock, lifetime, _in_use: in_use };
    Ok(Sse::new(stream::unfold(begin, PageUpdates::next)))
}

struct PageUpdates {
    following: Following,
    first: bool,
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
        let (stop, lifetime) = (self.stop.clone(), self.lifetime.clone());
        tokio::select! {
            biased;
            () = stop.cancelled() => None,
            () = lifetime.over(self.clock) => None,
            stale = self.stale() => stale.then(|| (Ok(Message::default().event("stale").data("now")), self)),
        }
    }

    /// Waits until the page may be stale; false if the stream has to end.
    async fn stale(&mut self) -> bool {
        let figures = tokio::time::sleep(FIGURES);
        tokio::pin!(figures);
        tokio::select! {
            followed = self.following.next() => match followed {
                Ok(Followed::Event(_) | Followed::Nothing(_)) => self.rest().await,
                Err(_) => false,
            },
            () = &mut figures => true,
        }
    }

    /// Waits for the rest of a burst.
    async fn rest(&mut self) -> bool {
        let pause = tokio::time::sleep(PAUSE);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => return true,
                followed = self.following.next() => if followed.is_err() { return false },
            }
        }
    }
}
