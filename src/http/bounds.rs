//! Limits on requests: the size of a head, and the rate of each caller.
//!
//! Each caller has a burst of `request_burst`, then `requests_per_s`. That is checked twice: by address before authentication,
//! and by actor after it.

use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};

use super::peer::Peer;
use super::problem::{Problem, ProblemKind};
use crate::config::Limits;
use crate::domain::access::{Actor, Origin};
use crate::metrics::wire::Limit;
use crate::service::limits::{CallerSource, Rate, whole_seconds};

/// A caller whose requests are counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum RateLimitedCaller {
    Source(CallerSource),
    Actor(String),
}

impl RateLimitedCaller {
    fn limit(&self) -> Limit {
        match self {
            Self::Source(CallerSource::Network(_)) => Limit::Address,
            Self::Source(CallerSource::User(_)) => Limit::User,
            Self::Actor(_) => Limit::Actor,
        }
    }
}

/// The request rates of callers.
pub struct Rates {
    rate: Option<Rate<RateLimitedCaller>>,
    manager_uid: u32,
}

impl Rates {
    /// Creates counters with these limits; on the unix socket `manager_uid` and root are not counted, so that an operator always gets
    /// through.
    pub fn new(limits: &Limits, manager_uid: u32) -> Self {
        let rate = (limits.requests_per_s > 0)
            .then(|| Rate::new(limits.request_burst, Duration::from_secs(1) / limits.requests_per_s));
        Self { rate, manager_uid }
    }

    /// Counts a request of an actor; users of the unix socket were counted as peers.
    pub(super) fn of_actor(&self, actor: &Actor) -> Result<(), TooMany> {
        match actor.origin {
            Origin::Address(_) => self.count(&RateLimitedCaller::Actor(actor.subject.to_string())),
            _ => Ok(()),
        }
    }

    /// Counts a request of an address, or of a user of this host.
    pub(super) fn of_peer(&self, peer: Peer) -> Result<(), TooMany> {
        match peer.source() {
            CallerSource::User(uid) if uid.is_none_or(|uid| uid == 0 || uid == self.manager_uid) => Ok(()),
            source => self.count(&RateLimitedCaller::Source(source)),
        }
    }

    fn count(&self, caller: &RateLimitedCaller) -> Result<(), TooMany> {
        let Some(rate) = &self.rate else { return Ok(()) };
        rate.take(caller).map_err(|wait| TooMany { of: caller.limit(), wait })
    }
}

/// The rate was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMany {
    /// The kind of caller.
    pub of: Limit,
    /// Time until a retry can succeed.
    pub wait: Duration,
}

impl TooMany {
    /// The 429 response.
    pub fn into_response(self, limits: &Limits) -> Response {
        let seconds = whole_seconds(self.wait);
        let detail = format!(
            "more than {} requests a second of one {} (limits.requests_per_s): try again in {seconds} s",
            limits.requests_per_s,
            self.of.as_str()
        );
        Problem::too_many(ProblemKind::TooManyRequests, self.of, detail, seconds).into_response()
    }
}

/// Refuses a head that is too large, as a problem document. One twice as large never gets here.
pub(super) fn large_head(limits: &Limits, request: &Request) -> Option<Response> {
    let fields = request.headers().len();
    let bytes: usize = request.uri().path().len()
        + request.uri().query().map_or(0, str::len)
        + request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>();
    let over = |is: usize, most: u32| usize::try_from(most).is_ok_and(|most| is > most);
    let detail = if over(fields, limits.headers) {
        format!("the request has {fields} header fields, and {} is the most (limits.headers)", limits.headers)
    } else if over(bytes, limits.header_bytes) {
        format!(
            "the request's target and header fields have {bytes} bytes, and {} is the most (limits.header_bytes)",
            limits.header_bytes
        )
    } else {
        return None;
    };
    let problem = Problem::new(ProblemKind::HeadTooLarge, format!("{detail}: send fewer and shorter ones"));
    Some(problem.into_response())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use axum::http::header;

    use super::*;
    use crate::domain::access::{Grant, Principal, Role};
    use crate::service::access::LocalUser;
    use axum::http::StatusCode;

    fn tcp(address: &str) -> Peer {
        Peer::Tcp((address.parse::<IpAddr>().expect("an address"), 1).into())
    }

    #[test]
    fn callers_have_separate_bursts_and_operators_none() {
        let limits = Limits { requests_per_s: 1, request_burst: 3, ..Limits::default() };
        let rates = Rates::new(&limits, 1000);
        for _ in 0..3 {
            assert_eq!(rates.of_peer(tcp("192.0.2.1")), Ok(()));
        }
        let refused = rates.of_peer(tcp("192.0.2.1")).expect_err("the fourth");
        assert_eq!(refused.of, Limit::Address);
        assert!(refused.wait <= Duration::from_secs(1), "{refused:?}");
        let answer = refused.into_response(&limits);
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer.headers()[header::RETRY_AFTER], "1");
        assert_eq!(rates.of_peer(tcp("192.0.2.2")), Ok(()), "another address");
        let address = "192.0.2.3".parse().expect("an address");
        let local = |uid| Peer::Unix(Some(LocalUser { uid, gid: uid, pid: None, process: None }));
        let actor =
            |origin| Actor { subject: Principal::AdminToken, grant: Grant::Host(Role::Admin), origin };
        for _ in 0..3 {
            assert_eq!(rates.of_actor(&actor(Origin::Address(address))), Ok(()), "for itself");
        }
        assert_eq!(
            rates.of_actor(&actor(Origin::Address(address))).expect_err("the fourth").of,
            Limit::Actor
        );
        assert_eq!(rates.of_actor(&actor(Origin::Socket)), Ok(()));
        for _ in 0..100 {
            assert_eq!(rates.of_peer(local(0)), Ok(()));
            assert_eq!(rates.of_peer(local(1000)), Ok(()));
        }
        let user = || rates.of_peer(local(1001));
        assert_eq!([user(), user(), user()], [Ok(()); 3]);
        assert_eq!(user().expect_err("the fourth").of, Limit::User);
    }

    #[test]
    fn zero_rate_is_unlimited() {
        let rates = Rates::new(&Limits { requests_per_s: 0, request_burst: 1, ..Limits::default() }, 1000);
        for _ in 0..100 {
            assert_eq!(rates.of_peer(tcp("192.0.2.1")), Ok(()));
        }
    }
}
