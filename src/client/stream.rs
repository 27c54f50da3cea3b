//! Server-sent events of the API.

use futures_util::StreamExt as _;
pub use sse_stream::Sse;
use sse_stream::{Error, SseStream};

use super::ClientError;

/// An open stream.
pub struct Stream {
    events: SseStream<reqwest::Body>,
    target: String,
}

impl Stream {
    pub(super) fn new(response: reqwest::Response, target: String) -> Self {
        Self { events: SseStream::new(response.into()), target }
    }

    /// The next message, which may contain only a position to continue from; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Sse>, ClientError> {
        let Some(message) = self.events.next().await else { return Ok(None) };
        message.map(Some).map_err(|error| match error {
            Error::Body(error) => {
                ClientError::Unreachable { target: self.target.clone(), detail: error.to_string() }
            }
            error => ClientError::Unreadable(error.to_string()),
        })
    }
}
