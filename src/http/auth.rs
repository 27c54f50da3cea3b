//! Who calls: the admin token over TCP, or the peer's user on the unix socket.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::AppState;
use super::problem::Problem;
use crate::domain::access::{Actor, Grant, Origin, Role, Subject};
use crate::service::ServiceError;

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub enum Peer {
    /// Over TCP, from this address; it has to show a token.
    Tcp(SocketAddr),
    /// Over the unix socket, as this user; `None` where the kernel does not tell.
    Unix(Option<u32>),
}

impl Peer {
    pub(super) fn origin(self) -> Origin {
        match self {
            // An IPv4 address on an IPv6 socket is the same one.
            Self::Tcp(address) => Origin::Address(address.ip().to_canonical()),
            Self::Unix(_) => Origin::Socket,
        }
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

/// Knows the admin token by its digest.
pub struct Authenticator {
    digest: [u8; 32],
    manager_uid: u32,
}

impl Authenticator {
    /// Takes the token once; only its digest is kept.
    pub fn new(token: &str, manager_uid: u32) -> Self {
        Self { digest: Sha256::digest(token.as_bytes()).into(), manager_uid }
    }

    fn is_admin_token(&self, token: &str) -> bool {
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        digest.ct_eq(&self.digest).into()
    }

    fn admin_user(&self, peer: Peer) -> Option<Subject> {
        match peer {
            Peer::Unix(Some(uid)) if uid == 0 || uid == self.manager_uid => Some(Subject::User(uid)),
            _ => None,
        }
    }
}

/// Lets administrators through.
pub(super) async fn require(
    State(state): State<AppState>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let shown = request.headers().get(header::AUTHORIZATION);
    let token = shown.and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let subject = match (shown, token) {
        // A token that is shown must be right, also on the unix socket: a wrong one is a mistake to be told of.
        (Some(_), Some(token)) => state.auth.is_admin_token(token).then_some(Subject::AdminToken),
        (Some(_), None) => None,
        (None, _) => state.auth.admin_user(peer),
    };
    let shown = shown.is_some();
    if let Some(subject) = subject {
        let actor = Actor { subject, grant: Grant::Host(Role::Admin), origin: peer.origin() };
        request.extensions_mut().insert(actor);
        return next.run(request).await;
    }
    let detail = if shown {
        "the token is not valid: the admin token is in admin.token in the state directory"
    } else {
        "a token is needed: send Authorization: Bearer with the content of admin.token in the state directory, or use the unix socket as root or as the manager's user"
    };
    Problem::new("unauthorized", StatusCode::UNAUTHORIZED, "No valid token", detail).into_response()
}
