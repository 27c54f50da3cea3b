//! Requests to the managers of other hosts.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::domain::HostName;
use crate::domain::saved_host::HostUrl;
use crate::domain::token::Secret;
use crate::service::{FieldError, ServiceError};

/// Longest wait for one host, whatever it is asked: a page waits for it.
pub const LONGEST: Duration = Duration::from_secs(6);

/// Says that a host gave no answer in that time.
pub fn no_answer(url: &HostUrl) -> String {
    format!("{url} did not answer within {} s", LONGEST.as_secs())
}

/// Everything that a request to a host needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLink {
    /// Its name here.
    pub name: HostName,
    /// Its address.
    pub url: HostUrl,
    /// Certificates to trust, as PEM; `None` for those of the system.
    pub ca: Option<String>,
    /// The token to use there.
    pub token: Secret,
}

/// A request to another host.
#[derive(Debug, Clone)]
pub struct RemoteRequest {
    /// Its method.
    pub method: &'static str,
    /// Its path and query.
    pub path: String,
    /// Its body; a GET has none.
    pub body: Option<Value>,
    /// Entity tag of what is changed; `None` for something new.
    pub if_match: Option<String>,
}

/// The answer of another host.
#[derive(Debug, Clone)]
pub struct RemoteAnswer {
    /// Its status.
    pub status: u16,
    /// Its entity tag.
    pub tag: Option<String>,
    /// Its body.
    pub body: Vec<u8>,
}

/// Connections to other hosts.
pub trait Remote: Send + Sync {
    /// Refuses a text without certificates that can be trusted.
    fn check_certificates(&self, pem: &str) -> Result<(), String>;

    /// Forgets what it keeps of a host.
    fn forget(&self, host: &HostName);

    /// Sends a request, and waits a few seconds for the answer; an error says why there is none.
    fn send(&self, host: HostLink, request: RemoteRequest) -> BoxFuture<'_, Result<RemoteAnswer, String>>;
}

/// Reason why another host did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// It gave no answer.
    #[error("{0}")]
    Unreachable(String),
    /// It refused the request.
    #[error("{detail}")]
    Refused {
        /// Its reason.
        detail: String,
        /// The fields that it names.
        errors: Vec<FieldError>,
    },
    /// Its answer is not one that this version knows.
    #[error("its answer cannot be read ({0}): it may have another version of mps-manager")]
    Unreadable(String),
}

impl RemoteError {
    /// Returns the reason with all that it names.
    pub fn in_full(&self) -> String {
        let Self::Refused { detail, errors } = self else { return self.to_string() };
        let more = errors.iter().filter(|error| !detail.contains(&error.detail));
        more.fold(detail.clone(), |text, error| format!("{text}; {}", error.detail))
    }

    /// Returns it as the error of a use case that needs that host.
    pub(super) fn on(self, host: &HostName) -> ServiceError {
        let detail = format!("{host}: {}", self.in_full());
        match self {
            Self::Refused { .. } => ServiceError::Conflict(detail),
            Self::Unreachable(_) | Self::Unreadable(_) => ServiceError::Unavailable(detail),
        }
    }
}

/// The items of a list.
#[derive(serde::Deserialize)]
pub(super) struct RemoteList<T> {
    pub(super) items: Vec<T>,
}

/// The part of a problem document that is shown.
#[derive(serde::Deserialize)]
struct ShownProblem {
    detail: String,
    #[serde(default)]
    errors: Vec<FieldError>,
}

/// A connection to one host.
pub(super) struct RemoteHost<'r> {
    pub(super) remote: &'r dyn Remote,
    pub(super) link: HostLink,
}

impl RemoteHost<'_> {
    /// Reads a resource.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, RemoteError> {
        self.send("GET", path, None, None).await.map(|(value, _)| value)
    }

    /// Sends a request; returns the answer with its entity tag.
    pub(super) async fn send<T: DeserializeOwned>(
        &self,
        method: &'static str,
        path: &str,
        body: Option<Value>,
        if_match: Option<String>,
    ) -> Result<(T, Option<String>), RemoteError> {
        let request = RemoteRequest { method, path: format!("/api/v1{path}"), body, if_match };
        let sent = self.remote.send(self.link.clone(), request).await;
        let RemoteAnswer { status, tag, body } = sent.map_err(RemoteError::Unreachable)?;
        if (200..300).contains(&status) {
            let value = serde_json::from_slice(&body);
            return Ok((value.map_err(|error| RemoteError::Unreadable(error.to_string()))?, tag));
        }
        Err(match serde_json::from_slice(&body) {
            Ok(ShownProblem { detail, errors }) => RemoteError::Refused { detail, errors },
            Err(_) => RemoteError::Unreadable(format!("status {status}")),
        })
    }
}
