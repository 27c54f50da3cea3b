//! Who calls: by a token, or by the peer's user on the unix socket.

#[cfg(test)]
mod fuzz;

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::audit::Asked;
use super::guard::cross_site_problem;
use super::problem::Problem;
use super::{AppState, audit};
use crate::domain::access::{Actor, Origin};
use crate::domain::throttle::{Held, Source};
use crate::domain::token::Secret;
use crate::metrics::wire::Limit;
use crate::service::ServiceError;
use crate::service::access::{Admission, Lifetime, LocalUser, SessionKey};
use crate::service::leases::LeaseCaller;
use crate::service::sessions::NewSession;
use crate::service::told::calling;

/// Longest text that is looked at as a token: far more than one has.
const LONGEST_TOKEN: usize = 256;

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub enum Peer {
    /// Over TCP, from this address; it has to show a token.
    Tcp(SocketAddr),
    /// Over the unix socket, as this user; `None` where the kernel does not tell.
    Unix(Option<LocalUser>),
}

impl Peer {
    /// The peer of a connection that was just accepted on the unix socket.
    pub fn local(socket: &tokio::net::UnixStream) -> Self {
        Self::Unix(LocalUser::connected(socket).ok())
    }

    /// Who asks for a lease.
    pub fn lease_caller(self) -> LeaseCaller {
        match self {
            Self::Tcp(_) => LeaseCaller::Remote,
            Self::Unix(user) => LeaseCaller::Local(user.and_then(|user| user.process)),
        }
    }

    /// Where it calls from.
    pub fn origin(self) -> Origin {
        match self {
            // An IPv4 address on an IPv6 socket is the same one.
            Self::Tcp(address) => Origin::Address(address.ip().to_canonical()),
            Self::Unix(_) => Origin::Socket,
        }
    }

    /// Who is held back when it fails.
    fn source(self) -> Source {
        match self {
            Self::Tcp(address) => Source::of(address.ip()),
            Self::Unix(user) => Source::User(user.map(|user| user.uid)),
        }
    }

    /// Whether many who have nothing to do with each other call as this peer.
    fn is_shared(self) -> bool {
        matches!(self, Self::Tcp(address) if address.ip().to_canonical().is_loopback())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Actor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // Every route that asks for it is behind `require`, which puts it there.
        let actor = parts.extensions.get::<Self>().cloned();
        actor.ok_or_else(|| ServiceError::Internal("nobody has said who calls".into()).into())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Lifetime {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let lifetime = parts.extensions.get::<Self>().cloned();
        lifetime.ok_or_else(|| ServiceError::Internal("nobody has said who calls".into()).into())
    }
}

/// What somebody shows of themselves.
enum Shown {
    /// Nothing.
    Nothing,
    /// A token, or what is to be one.
    Token(Secret),
    /// Something that is no token, and what is wrong with it.
    Wrong(&'static str),
}

fn shown(headers: &HeaderMap) -> Shown {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Shown::Nothing };
    if values.next().is_some() {
        return Shown::Wrong("the request has several Authorization headers: send one");
    }
    let Ok(text) = value.to_str() else {
        return Shown::Wrong("the Authorization header is not printable ASCII: send Bearer and the token");
    };
    let token = text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    match token.map(|(_, token)| token.trim()) {
        None => Shown::Wrong("the Authorization header is none of a token: send Bearer and the token"),
        Some("") => Shown::Wrong("the Authorization header has no token after Bearer"),
        Some(token) if token.len() > LONGEST_TOKEN => Shown::Wrong(
            "what the Authorization header has is too long for a token: send Bearer and the token",
        ),
        Some(token) => Shown::Token(Secret::shown(token)),
    }
}

/// Lets those through who are somebody; what they may do is asked by each use case.
pub(super) async fn require(
    State(state): State<AppState>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let access = state.service.access();
    let now = crate::clock::unix_ms();
    let headers = request.headers();
    let mut key = None;
    let admission = match (shown(headers), peer) {
        // A token that is shown must be right, also on the unix socket: a wrong one is a mistake to be told of.
        (Shown::Token(token), _) => match access.holder(&token, peer.origin(), now) {
            Some(admission) => admission,
            None => return failed(&state, peer, NOT_VALID).await,
        },
        (Shown::Wrong(why), _) => return failed(&state, peer, why).await,
        (Shown::Nothing, _) if let Some((admission, found)) = session(&state, peer, headers) => {
            if !request.method().is_safe()
                && let Err(problem) = same_site(headers)
            {
                return problem.into_response();
            }
            key = Some(found);
            admission
        }
        (Shown::Nothing, _) if state.auth.entrance.open_metrics && asks_for_metrics(&request) => {
            Admission::anybody(peer.origin())
        }
        (Shown::Nothing, Peer::Tcp(_)) if state.auth.cookies(headers).next().is_some() => {
            return failed(&state, peer, OVER).await;
        }
        (Shown::Nothing, Peer::Tcp(_)) => return unauthorized(NEEDED).into_response(),
        (Shown::Nothing, Peer::Unix(user)) => match user.and_then(|user| access.user(user)) {
            Some(admission) => admission,
            None => return unauthorized(&unmapped(user)).into_response(),
        },
    };
    let extensions = request.extensions_mut();
    extensions.insert(admission.actor);
    extensions.insert(admission.lifetime);
    extensions.insert(CurrentSession(key));
    next.run(request).await
}

/// Whether a request reads the metrics, and does nothing else.
fn asks_for_metrics(request: &Request) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD) && request.uri().path() == "/metrics"
}

/// Who sends a request that was refused before anybody asked.
pub(super) fn known(state: &AppState, peer: Peer, headers: &HeaderMap) -> Option<Actor> {
    let access = state.service.access();
    let admission = match (shown(headers), peer) {
        (Shown::Token(token), _) => access.holder(&token, peer.origin(), crate::clock::unix_ms()),
        (Shown::Nothing, _) if let Some((admission, _)) = session(state, peer, headers) => Some(admission),
        (Shown::Nothing, Peer::Unix(Some(user))) => access.user(user),
        (Shown::Wrong(_) | Shown::Nothing, _) => None,
    };
    admission.map(|admission| admission.actor)
}

/// The session that a request comes with, out of the cookie.
pub(super) fn session(state: &AppState, peer: Peer, headers: &HeaderMap) -> Option<(Admission, SessionKey)> {
    let (access, now) = (state.service.access(), crate::clock::unix_ms());
    state.auth.cookies(headers).find_map(|cookie| access.session(&cookie, peer.origin(), now))
}

/// Opens a session for whoever has just shown who they are, by this code if by one, and puts on record what comes of it.
pub(super) async fn log_in(
    state: &AppState,
    actor: &Actor,
    code: Option<&Secret>,
    asked: Asked,
    answer: impl FnOnce(NewSession) -> Response,
) -> Response {
    let opening = calling(actor.clone(), async {
        let opened = Box::pin(state.service.open_session(actor, code)).await;
        opened.map_or_else(|error| Problem::from(error).into_response(), answer)
    });
    audit::on_record(&state.service, &asked.about("session"), actor, opening).await
}

/// Refuses what a session would do without a word of the browser that a page of this server asked for it.
///
/// What the word is, the layer that looks at every request has seen to; here it must not be missing.
pub(super) fn same_site(headers: &HeaderMap) -> Result<(), Problem> {
    // An empty one says nothing, and that layer takes it for none.
    let says = |name: &str| headers.get(name).is_some_and(|value| !value.is_empty());
    if says("sec-fetch-site") || says("origin") {
        return Ok(());
    }
    Err(cross_site_problem())
}

const OVER: &str = "the session is over: log in again";
pub(super) const NOT_VALID: &str = "the token is not valid: it is mistyped, has expired, or was revoked. The admin token is in admin.token in \
                         the state directory, and `mps-manager token create` makes others";
const NEEDED: &str = "a token is needed: send Authorization: Bearer with one that `mps-manager token create` made, or with the content \
                      of admin.token in the state directory, or use the unix socket";

/// That nothing was granted to a user.
fn unmapped(user: Option<LocalUser>) -> String {
    let who = user.map_or_else(
        || "your user is not known".to_owned(),
        |user| format!("uid {} has no role here", user.uid),
    );
    format!(
        "{who}: have the host's admin add it, or one of its groups, to [access] in the configuration and restart the manager, \
         or send Authorization: Bearer with a token (the admin's is in admin.token in the state directory)"
    )
}

/// Answers a failed attempt, or holds it back.
///
/// A host's is refused with a time to wait. On loopback, where many users and programs share one address, it is
/// answered late instead: refusing would tell one that another fails. Whoever shows a valid token is never here.
pub(super) async fn failed(state: &AppState, peer: Peer, why: &str) -> Response {
    let held = state.service.access().failed(peer.source(), crate::clock::unix_ms());
    let Held::For(ms) = held else { return unauthorized(why).into_response() };
    let seconds = ms.max(0).unsigned_abs().div_ceil(1000);
    if peer.is_shared()
        && let Ok(_place) = state.auth.waiting.try_acquire()
    {
        tokio::time::sleep(LATE).await;
        return unauthorized(why).into_response();
    }
    let detail = format!(
        "too many attempts with tokens that are not valid: try again in {seconds} s; a valid token is taken at any time"
    );
    Problem::too_many("too-many-failures", Limit::Failures, "Too many failed attempts", detail, seconds)
        .into_response()
}

/// How late a failure on loopback is answered once there were too many.
const LATE: Duration = Duration::from_secs(1);
/// Failures that may be answered late at the same time: each holds a connection.
const WAITING: usize = 64;

/// How the server is reached.
#[derive(Debug, Clone)]
pub struct Entrance {
    /// The address that it listens on.
    pub address: SocketAddr,
    /// Whether it is reached by TLS.
    pub tls: bool,
    /// Names that it has on loopback, beside addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Whether anybody may read the metrics.
    pub open_metrics: bool,
}

/// What belongs to the way in and not to who comes.
#[derive(Debug)]
pub struct Authenticator {
    entrance: Entrance,
    /// Places for failures that are answered late.
    waiting: tokio::sync::Semaphore,
}

impl Authenticator {
    /// For a server that is reached like this.
    pub fn new(entrance: Entrance) -> Self {
        Self { entrance, waiting: tokio::sync::Semaphore::new(WAITING) }
    }

    /// Whether nobody but this host reaches it over TCP.
    pub(super) fn on_loopback(&self) -> bool {
        self.entrance.address.ip().to_canonical().is_loopback()
    }

    /// Whether a Host header may have this name.
    pub(super) fn is_called(&self, host: &str) -> bool {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        bare.parse::<std::net::IpAddr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || self.entrance.hosts.iter().any(|name| name.eq_ignore_ascii_case(host))
    }

    /// The name of the cookie. With TLS, browsers hold it to this host and to TLS by the prefix of its name.
    fn cookie_name(&self) -> &'static str {
        if self.entrance.tls { "__Host-mps_manager_session" } else { "mps_manager_session" }
    }

    /// The cookie of a session.
    pub(super) fn cookie(&self, secret: &Secret, max_age_s: i64) -> String {
        let secure = if self.entrance.tls { "; Secure" } else { "" };
        format!(
            "{}={}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}",
            self.cookie_name(),
            secret.reveal()
        )
    }

    /// What takes the cookie away.
    pub(super) fn no_cookie(&self) -> String {
        self.cookie(&Secret::shown(""), 0)
    }

    /// What the cookies of that name say. There may be several, since another server of this host may have set one, too;
    /// no more than a few are looked at.
    fn cookies(&self, headers: &HeaderMap) -> impl Iterator<Item = Secret> {
        let name = self.cookie_name();
        let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
        let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let named = pairs.filter(move |(key, value)| *key == name && !value.is_empty());
        named
            .take(COOKIES)
            .filter(|(_, value)| value.len() <= LONGEST_TOKEN)
            .map(|(_, value)| Secret::shown(value))
    }

    /// The address at which a code logs in.
    pub fn login_url(&self, code: &Secret) -> Secret {
        let scheme = if self.entrance.tls { "https" } else { "http" };
        Secret::shown(&format!("{scheme}://{}/login?code={}", self.entrance.address, code.reveal()))
    }
}

/// Cookies of our name that are looked at.
const COOKIES: usize = 4;

/// The session that a request came with; `None` for a token's or a user's.
#[derive(Debug, Clone, Copy)]
pub(super) struct CurrentSession(pub(super) Option<SessionKey>);

impl<S: Send + Sync> FromRequestParts<S> for CurrentSession {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let session = parts.extensions.get::<Self>().copied();
        session.ok_or_else(|| ServiceError::Internal("nobody has said who calls".into()).into())
    }
}

pub(super) fn unauthorized(detail: &str) -> Problem {
    Problem::new("unauthorized", StatusCode::UNAUTHORIZED, "No valid token", detail)
}
