//! Tells an open page that what it shows is stale, so that it asks for itself again.
//!
//! The page is rendered by the same handler each time: nothing about its content is known here, and what the script does
//! not do, a reload does. Beside what is in the journal, figures such as memory change without an event, so a page is
//! told so every few seconds, too.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event as Message, Sse};
use futures_util::Stream;
use futures_util::stream;
use tokio_util::sync::CancellationToken;

use crate::domain::access::Actor;
use crate::domain::event::EventFilter;
use crate::http::AppState;
use crate::http::problem::Problem;
use crate::service::access::{InUse, Lifetime};
use crate::service::events::{Followed, Following};

/// Longest time that a page shows figures without asking again.
const FIGURES: Duration = Duration::from_secs(5);
/// Shortest time between two askings: events come in bursts.
const PAUSE: Duration = Duration::from_millis(300);
/// How long a browser waits before it follows again.
const RETRY: Duration = Duration::from_secs(2);

pub(super) async fn follow(
    State(app): State<AppState>,
    actor: Actor,
    lifetime: Lifetime,
) -> Result<Sse<impl Stream<Item = Result<Message, Infallible>>>, Problem> {
    let following = app.service.follow_events(&actor, EventFilter::default(), None).await?;
    let in_use = lifetime.in_use();
    let begin = Telling { following, first: true, stop: app.stop, lifetime, _in_use: in_use };
    Ok(Sse::new(stream::unfold(begin, Telling::next)))
}

struct Telling {
    following: Following,
    first: bool,
    stop: CancellationToken,
    lifetime: Lifetime,
    /// A session is used as long as a page is open with it.
    _in_use: InUse,
}

impl Telling {
    async fn next(mut self) -> Option<(Result<Message, Infallible>, Self)> {
        if std::mem::take(&mut self.first) {
            return Some((Ok(Message::default().retry(RETRY).comment("following")), self));
        }
        let (stop, lifetime) = (self.stop.clone(), self.lifetime.clone());
        tokio::select! {
            biased;
            () = stop.cancelled() => None,
            () = lifetime.over() => None,
            stale = self.stale() => stale.then(|| (Ok(Message::default().event("stale").data("now")), self)),
        }
    }

    /// Waits until something may be otherwise; false where that cannot be told any more.
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

    /// Takes up what comes in the same breath.
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
