//! The API as the command line uses it: over the unix socket, or over a URL with a token.

use std::fmt::Write as _;
use std::path::Path;

use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::http::problem::Problem;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server cannot be reached.
    #[error("{target} cannot be reached: {detail}; is `mps-manager serve` running?")]
    Unreachable {
        /// Where it was looked for.
        target: String,
        /// What happened.
        detail: String,
    },
    /// The server refused.
    #[error("{}", describe(.0))]
    Refused(Box<Problem>),
    /// The answer is not what this version expects.
    #[error("the server's answer cannot be read: {0}; is it of the same version?")]
    Unreadable(String),
    /// The address is not one.
    #[error("{0}")]
    Address(String),
}

fn describe(problem: &Problem) -> String {
    let mut text = format!("{}: {}", problem.title, problem.detail);
    for error in &problem.errors {
        if error.detail != problem.detail {
            let _ = write!(text, "\n  {}: {}", error.pointer, error.detail);
        }
    }
    text
}

/// A way to a server.
pub struct Client {
    http: reqwest::Client,
    base: String,
    target: String,
    token: Option<String>,
}

impl Client {
    /// Over the unix socket: the server knows the caller by the user.
    pub fn over_socket(socket: &Path) -> Result<Self, ClientError> {
        let http = reqwest::Client::builder()
            .unix_socket(socket)
            .no_proxy()
            .build()
            .map_err(|error| ClientError::Address(error.to_string()))?;
        Ok(Self { http, base: "http://localhost".into(), target: socket.display().to_string(), token: None })
    }

    /// Over a URL, with a token.
    pub fn over_url(url: &str, token: Option<String>) -> Result<Self, ClientError> {
        let parsed = reqwest::Url::parse(url)
            .map_err(|error| ClientError::Address(format!("{url:?} is not a URL: {error}")))?;
        if parsed.scheme() != "http" {
            return Err(ClientError::Address(format!(
                "{url:?} is not an http:// URL, the only kind this version serves"
            )));
        }
        let http = reqwest::Client::builder()
            .no_proxy()
            .build()
            .map_err(|error| ClientError::Address(error.to_string()))?;
        Ok(Self { http, base: url.trim_end_matches('/').to_owned(), target: url.to_owned(), token })
    }

    /// Reads.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, None::<&()>).await
    }

    /// Asks for something to be done.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.call(Method::POST, path, Some(body)).await
    }

    /// Reads the answer, whatever its status, where the status is part of it.
    pub async fn get_any<T: DeserializeOwned>(&self, path: &str) -> Result<(StatusCode, T), ClientError> {
        let (status, bytes) = self.send(Method::GET, path, None::<&()>).await?;
        let value =
            serde_json::from_slice(&bytes).map_err(|error| ClientError::Unreadable(error.to_string()))?;
        Ok((status, value))
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let (status, bytes) = self.send(method, path, body).await?;
        if status.is_success() {
            return serde_json::from_slice(&bytes)
                .map_err(|error| ClientError::Unreadable(error.to_string()));
        }
        match serde_json::from_slice(&bytes) {
            Ok(problem) => Err(ClientError::Refused(Box::new(problem))),
            Err(_) => Err(ClientError::Unreadable(format!("status {status}"))),
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<(StatusCode, Vec<u8>), ClientError> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let unreachable = |error: reqwest::Error| {
            // reqwest's own words name the URL only; the reason is in the source.
            let mut detail = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(inner) = source {
                detail = inner.to_string();
                source = inner.source();
            }
            ClientError::Unreachable { target: self.target.clone(), detail }
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(unreachable)?;
        Ok((status, bytes.to_vec()))
    }
}
