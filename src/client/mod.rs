//! The API client of the command line: over the unix socket, or over a URL with a token.

mod error;
mod socket;
mod stream;
mod tls;

use std::path::Path;

use reqwest::header::{ACCEPT, CONTENT_TYPE, ETAG, IF_MATCH, IF_NONE_MATCH};
use reqwest::redirect::Policy;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::error::ClientError;
use self::socket::TrustedSocket;
pub use self::stream::Stream;
use crate::host::trust::Trust;
use crate::http::api::List;

/// Longest answer that is read, in bytes: a list of 1000 tenants has a few MiB.
const LONGEST_ANSWER: usize = 64 << 20;
/// Longest answer of another host to its like, in bytes.
const LONGEST_OF_A_HOST: usize = 4 << 20;

/// A connection to a server.
pub struct Client {
    /// Builds requests, and sends them if there is no socket.
    http: reqwest::Client,
    socket: Option<TrustedSocket>,
    base: String,
    target: String,
    token: Option<String>,
    longest: usize,
}

impl Client {
    /// Over the unix socket: the server identifies the caller by user, and the caller trusts a server of a `trusted` user.
    pub fn over_socket(socket: &Path, trusted: Trust) -> Result<Self, ClientError> {
        let http = tls::none().no_proxy().build().map_err(|error| ClientError::Address(error.to_string()))?;
        Ok(Self {
            http,
            target: socket.display().to_string(),
            socket: Some(TrustedSocket::new(socket, trusted)),
            base: "http://localhost".into(),
            token: None,
            longest: LONGEST_ANSWER,
        })
    }

    /// Returns true if it speaks to a manager of this host, over its socket.
    pub fn is_of_this_host(&self) -> bool {
        self.socket.is_some()
    }

    /// The user of the listener, once something was sent; `None` over a URL.
    pub fn peer(&self) -> Option<u32> {
        self.socket.as_ref().and_then(TrustedSocket::peer)
    }

    /// Adds a token, for a user of this host without a grant.
    #[must_use]
    pub fn with_token(self, token: Option<String>) -> Self {
        Self { token, ..self }
    }

    /// Over a URL with a token; over TLS its certificate is verified with those of `ca_file`, or the system's.
    pub fn over_url(url: &str, token: Option<String>, ca_file: Option<&Path>) -> Result<Self, ClientError> {
        Self::connecting(url, token, || {
            ca_file.map_or_else(|| Ok(tls::trusting_system()), tls::trusting_file)
        })
    }

    /// Over a URL with a token; over TLS its certificate is verified with those of a PEM text, or the system's.
    pub fn trusting(url: &str, token: Option<String>, pem: Option<&str>) -> Result<Self, ClientError> {
        let client = Self::connecting(url, token, || {
            match pem {
            None => Ok(tls::trusting_system()),
            Some(pem) => tls::trusting(pem).map_err(|why| {
                ClientError::Address(format!("these are no certificates that can be trusted: {why}; paste the PEM text of the authority"))
            }),
        }
        })?;
        Ok(Self { longest: LONGEST_OF_A_HOST, ..client })
    }

    /// Over a URL. It follows no redirection, which could take the token elsewhere.
    fn connecting(
        url: &str,
        token: Option<String>,
        tls: impl FnOnce() -> Result<reqwest::ClientBuilder, ClientError>,
    ) -> Result<Self, ClientError> {
        let parsed = reqwest::Url::parse(url)
            .map_err(|error| ClientError::Address(format!("{url:?} is not a URL: {error}")))?;
        let http = match parsed.scheme() {
            "https" => tls()?,
            "http" => tls::none(),
            _ => {
                return Err(ClientError::Address(format!(
                    "{url:?} is neither an https:// nor an http:// URL"
                )));
            }
        };
        let http = http.no_proxy().redirect(Policy::none()).build();
        let http = http.map_err(|error| ClientError::Address(reason(&error)))?;
        let base = url.trim_end_matches('/').to_owned();
        Ok(Self { http, socket: None, base, target: url.to_owned(), token, longest: LONGEST_ANSWER })
    }

    /// Sends a request with a JSON body, for what has this entity tag or, without one, for something new; returns the answer whatever its
    /// status, with its entity tag.
    pub async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        if_match: Option<&str>,
    ) -> Result<(StatusCode, Option<String>, Vec<u8>), ClientError> {
        let is_new = method == Method::PUT && if_match.is_none();
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.json(body);
        }
        request = match if_match {
            Some(tag) => request.header(IF_MATCH, tag),
            None if is_new => request.header(IF_NONE_MATCH, "*"),
            None => request,
        };
        let response = self.respond(request).await?;
        Ok((response.status(), tag(&response), self.body(response).await?))
    }

    /// Sends a GET.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(self.request(Method::GET, path)).await
    }

    /// Reads the first items of a list, page by page.
    pub async fn list<T: DeserializeOwned>(&self, path: &str, most: usize) -> Result<Vec<T>, ClientError> {
        let mut items = Vec::new();
        let mut cursor = String::new();
        loop {
            let joint = if path.contains('?') { '&' } else { '?' };
            let limit = (most - items.len()).clamp(1, 1000);
            let page: List<T> = self.get(&format!("{path}{joint}limit={limit}{cursor}")).await?;
            items.extend(page.items);
            match page.next_cursor {
                Some(next) if items.len() < most => cursor = format!("&cursor={next}"),
                _ => return Ok(items),
            }
        }
    }

    /// Sends a POST.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.call(self.request(Method::POST, path).json(body)).await
    }

    /// Sends a DELETE whose answer is empty.
    pub async fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.accepted(self.request(Method::DELETE, path)).await.map(drop)
    }

    /// Sends a DELETE that is refused if the entity tag has changed.
    pub async fn delete_tagged(&self, path: &str, tag: &str) -> Result<(), ClientError> {
        self.accepted(self.request(Method::DELETE, path).header(IF_MATCH, tag)).await.map(drop)
    }

    /// Sends a POST whose answer is empty.
    pub async fn post_empty(&self, path: &str) -> Result<(), ClientError> {
        self.accepted(self.request(Method::POST, path).json(&serde_json::json!({}))).await.map(drop)
    }

    /// Sends a DELETE whose answer has a body, such as an operation.
    pub async fn delete_with_answer<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(self.request(Method::DELETE, path)).await
    }

    /// Reads something that may not exist, with its entity tag.
    pub async fn get_tagged<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> Result<Option<(T, String)>, ClientError> {
        let response = self.respond(self.request(Method::GET, path)).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let response = self.checked(response).await?;
        let tag = tag(&response).unwrap_or_else(|| "*".to_owned());
        Ok(Some((self.read(response).await?, tag)))
    }

    /// Sends a PUT. It is refused if the resource no longer has this entity tag or, without a tag, if it exists already.
    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        tag: Option<&str>,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let request = self.request(Method::PUT, path).json(body);
        self.call(match tag {
            Some(tag) => request.header(IF_MATCH, tag),
            None => request.header(IF_NONE_MATCH, "*"),
        })
        .await
    }

    /// Sends text that is not JSON.
    pub async fn send_text<T: DeserializeOwned>(
        &self,
        path: &str,
        media_type: &str,
        text: String,
    ) -> Result<T, ClientError> {
        self.call(self.request(Method::POST, path).header(CONTENT_TYPE, media_type).body(text)).await
    }

    /// Sends a PUT of text that is not JSON, with a condition if an entity tag is given; returns the answer with its status and entity tag.
    pub async fn put_text<T: DeserializeOwned>(
        &self,
        path: &str,
        media_type: &str,
        text: String,
        if_match: Option<&str>,
    ) -> Result<(StatusCode, T, Option<String>), ClientError> {
        let mut request = self.request(Method::PUT, path).header(CONTENT_TYPE, media_type).body(text);
        if let Some(tag) = if_match {
            request = request.header(IF_MATCH, tag);
        }
        let response = self.accepted(request).await?;
        let (status, tag) = (response.status(), tag(&response));
        Ok((status, self.read(response).await?, tag))
    }

    /// Requests text of this media type.
    pub async fn text(&self, method: Method, path: &str, media_type: &str) -> Result<String, ClientError> {
        let response = self.accepted(self.request(method, path).header(ACCEPT, media_type)).await?;
        String::from_utf8(self.body(response).await?).map_err(unreadable)
    }

    /// Sends a GET and returns the response whatever its status, since the status is part of the answer.
    pub async fn get_any<T: DeserializeOwned>(&self, path: &str) -> Result<(StatusCode, T), ClientError> {
        let response = self.respond(self.request(Method::GET, path)).await?;
        Ok((response.status(), self.read(response).await?))
    }

    /// Opens a stream of server-sent events.
    pub async fn stream(&self, path: &str) -> Result<Stream, ClientError> {
        let request = self.request(Method::GET, path).header(ACCEPT, "text/event-stream");
        Ok(Stream::new(self.accepted(request).await?, self.target.clone()))
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn call<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        let response = self.accepted(request).await?;
        self.read(response).await
    }

    /// Sends a request; returns a successful response, or the refusal as an error.
    async fn accepted(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let response = self.respond(request).await?;
        self.checked(response).await
    }

    async fn respond(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let failed = |error: reqwest::Error| self.unreachable(&error);
        match &self.socket {
            None => request.send().await.map_err(failed),
            Some(socket) => socket.send(request.build().map_err(failed)?).await,
        }
    }

    /// Returns a successful response, or the refusal as an error.
    async fn checked(&self, response: Response) -> Result<Response, ClientError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = self.body(response).await?;
        if status == StatusCode::UNAUTHORIZED && self.socket.is_none() && self.token.is_none() {
            return Err(ClientError::NoToken { target: self.target.clone() });
        }
        Err(match serde_json::from_slice(&bytes) {
            Ok(problem) => ClientError::Refused(Box::new(problem)),
            Err(_) => ClientError::Unreadable(format!("status {status}")),
        })
    }

    async fn body(&self, mut response: Response) -> Result<Vec<u8>, ClientError> {
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(|error| self.unreachable(&error))? {
            if body.len() + part.len() > self.longest {
                return Err(unreadable(format!("it is longer than {} bytes", self.longest)));
            }
            body.extend_from_slice(&part);
        }
        Ok(body)
    }

    async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T, ClientError> {
        serde_json::from_slice(&self.body(response).await?).map_err(unreadable)
    }

    fn unreachable(&self, error: &reqwest::Error) -> ClientError {
        let detail = reason(error);
        // The error of rustls for an answer that is not TLS.
        if self.base.starts_with("https://") && detail.contains("InvalidContentType") {
            let http = self.base.replacen("https://", "http://", 1);
            return ClientError::Address(format!("{} speaks http, not https: use {http}", self.target));
        }
        let target = self.target.clone();
        if error.is_connect() || error.is_builder() {
            ClientError::Unreachable { target, detail }
        } else {
            ClientError::Interrupted { target, detail }
        }
    }
}

/// Returns the entity tag of an answer.
fn tag(response: &Response) -> Option<String> {
    Some(response.headers().get(ETAG)?.to_str().ok()?.to_owned())
}

fn unreadable(error: impl std::fmt::Display) -> ClientError {
    ClientError::Unreadable(error.to_string())
}

/// Returns the reason for which a call failed: reqwest's message names only the URL, and the reason is in its innermost source.
fn reason(error: &reqwest::Error) -> String {
    let mut detail = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        detail = inner.to_string();
        source = inner.source();
    }
    detail
}
