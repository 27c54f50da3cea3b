//! Requests over the unix socket: nothing is sent before the listener is verified.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::ClientError;
use crate::host::trust::Trust;

/// A socket, and the users trusted to run the manager.
pub(super) struct TrustedSocket {
    path: PathBuf,
    trusted: Trust,
    /// The user found to be listening.
    peer: OnceLock<u32>,
}

impl TrustedSocket {
    pub(super) fn new(path: &Path, trusted: Trust) -> Self {
        Self { path: path.to_owned(), trusted, peer: OnceLock::new() }
    }

    /// The user behind the socket; `None` before the first call.
    pub(super) fn peer(&self) -> Option<u32> {
        self.peer.get().copied()
    }

    /// Sends a request on a new connection, once the listener's user is trusted.
    pub(super) async fn send(&self, request: reqwest::Request) -> Result<reqwest::Response, ClientError> {
        let unreachable =
            |detail: String| ClientError::Unreachable { target: self.path.display().to_string(), detail };
        let stream = UnixStream::connect(&self.path).await.map_err(|error| unreachable(error.to_string()))?;
        self.check_peer(&stream)?;
        let mut request: hyper::Request<reqwest::Body> =
            request.try_into().map_err(|error: reqwest::Error| ClientError::Address(error.to_string()))?;
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() =
            path.parse().map_err(|error| ClientError::Address(format!("{path}: {error}")))?;
        request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| unreachable(error.to_string()))?;
        // It ends with the response body, which carries its errors.
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|error| ClientError::Interrupted {
            target: self.path.display().to_string(),
            detail: error.to_string(),
        })?;
        Ok(response.map(reqwest::Body::wrap).into())
    }

    fn check_peer(&self, stream: &UnixStream) -> Result<(), ClientError> {
        let peer = stream.peer_cred().map_err(|error| ClientError::Unreachable {
            target: self.path.display().to_string(),
            detail: error.to_string(),
        })?;
        let uid = peer.uid();
        if !self.trusted.includes(uid) {
            return Err(ClientError::Stranger { socket: self.path.clone(), uid });
        }
        // The same for all requests: `run` decides by it which user the answer may name.
        if *self.peer.get_or_init(|| uid) != uid {
            return Err(ClientError::Address(format!(
                "{} is now served by another user: run the command again",
                self.path.display()
            )));
        }
        Ok(())
    }
}
