//! The way through the unix socket: nothing is sent before it is known who listens there.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::ClientError;
use crate::host::trust::Trust;

/// A socket, and whose manager is believed behind it.
pub(super) struct Socket {
    path: PathBuf,
    trusted: Trust,
    /// The user who was found to listen.
    peer: OnceLock<u32>,
}

impl Socket {
    pub(super) fn new(path: &Path, trusted: Trust) -> Self {
        Self { path: path.to_owned(), trusted, peer: OnceLock::new() }
    }

    /// The user behind the socket; `None` before the first call.
    pub(super) fn peer(&self) -> Option<u32> {
        self.peer.get().copied()
    }

    /// Sends a request on a connection of its own, once the listener's user is known to be trusted.
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
        let failed = |error: hyper::Error| unreachable(error.to_string());
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        // It ends with its answer's body, and its errors are the body's.
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(failed)?;
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
        // One and the same for all requests: `run` decides by it whom the answer may name.
        if *self.peer.get_or_init(|| uid) != uid {
            return Err(ClientError::Address(format!(
                "{} is served by another user than a moment ago: run the command again",
                self.path.display()
            )));
        }
        Ok(())
    }
}
