//! The API as any HTTP client sees it.

use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::{Router, body};
use mps_manager::http::peer::Peer;
use reqwest::Method;
use serde_json::Value;
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

use crate::host::Answer;

/// A way to the API; clones share the connections.
#[derive(Clone)]
pub(crate) struct Api {
    http: reqwest::Client,
    runtime: Arc<Runtime>,
    target: Arc<Mutex<Target>>,
}

/// Where requests go, and with which token.
#[derive(Clone, Default)]
struct Target {
    url: String,
    token: Option<String>,
    /// The router of a manager in this process, which requests go straight into.
    router: Option<Router>,
}

/// The address of callers that come straight to the router.
const LOCAL: &str = "127.0.0.1:1";

impl Api {
    pub(super) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Self::on(Arc::new(runtime.expect("a runtime")))
    }

    /// An API whose requests run on this runtime.
    pub(super) fn on(runtime: Arc<Runtime>) -> Self {
        // What is compiled in has no provider of its own; a second call finds it there.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Long enough for every answer, and short of forever.
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(120));
        // What a certificate is worth is for tests of TLS to say.
        let http = http.tls_danger_accept_invalid_certs(true).build().expect("a client");
        Self { http, runtime, target: Arc::default() }
    }

    /// Sends requests to this address from now on, or straight into the router of the manager that is reached there.
    pub(super) fn aim(&self, url: &str, token: &str, router: Option<Router>) {
        let target = Target { url: url.to_owned(), token: Some(token.to_owned()), router };
        *self.target.lock().expect("unpoisoned") = target;
    }

    fn target(&self) -> Target {
        self.target.lock().expect("unpoisoned").clone()
    }

    /// Where it is reached over TCP.
    pub(super) fn url(&self) -> String {
        self.target().url
    }

    /// The token that it is called with.
    pub(super) fn token(&self) -> Option<String> {
        self.target().token
    }

    /// The same API for another caller.
    pub(crate) fn with_token(&self, token: Option<&str>) -> Self {
        let target = Target { token: token.map(str::to_owned), ..self.target() };
        Self { target: Arc::new(Mutex::new(target)), ..self.clone() }
    }

    /// Another server, which wants no token.
    pub(crate) fn at(&self, url: &str) -> Self {
        let target = Target { url: url.to_owned(), ..Target::default() };
        Self { target: Arc::new(Mutex::new(target)), ..self.clone() }
    }

    /// The same API through the unix socket, without a token.
    pub(crate) fn over(&self, socket: &std::path::Path) -> Self {
        let http = reqwest::Client::builder().no_proxy().unix_socket(socket).build().expect("a client");
        Self { http, ..self.at("http://localhost") }
    }

    /// Sends text as it is, as JSON, to a manager that answers.
    pub(crate) fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<String>,
    ) -> Answer {
        let first = self.try_send(method.clone(), path, headers, body.clone());
        match first {
            // A manager that begins anew, as once the driver is here, may close a kept connection as a question is sent on it.
            Err(_) if method == Method::GET => self.try_send(method, path, headers, body),
            answer => answer,
        }
        .expect("the manager answers")
    }

    /// Sends text as it is, as JSON, to a manager that may die meanwhile.
    pub(crate) fn try_send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<String>,
    ) -> Result<Answer, reqwest::Error> {
        let Target { url, token, router } = self.target();
        // A router gets what a server sends it.
        let base = if router.is_some() { "" } else { &url };
        let mut request = http::Request::builder().method(method).uri(format!("{base}{path}"));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let named = headers.iter().any(|(name, _)| *name == "content-type");
        if body.is_some() && !named {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.unwrap_or_default()).expect("a request");
        self.runtime.block_on(async {
            let Some(router) = router else {
                let response = self.http.execute(request.try_into()?).await?;
                let (status, headers) = (response.status(), response.headers().clone());
                return Ok(Answer::new(status, &headers, response.text().await?));
            };
            let mut request = request.map(body::Body::from);
            let host = url.split("://").last().unwrap_or_default();
            request.headers_mut().entry("host").or_insert(host.try_into().expect("a host"));
            request.extensions_mut().insert(ConnectInfo(Peer::Tcp(LOCAL.parse().expect("an address"))));
            let Ok(response) = router.oneshot(request).await;
            let (parts, body) = response.into_parts();
            let bytes = body::to_bytes(body, usize::MAX).await.expect("a body");
            Ok(Answer::new(parts.status, &parts.headers, String::from_utf8_lossy(&bytes).into_owned()))
        })
    }

    /// Sends text of another kind than JSON.
    pub(crate) fn send_text(&self, method: Method, path: &str, mime: &str, text: String) -> Answer {
        self.send(method, path, &[("content-type", mime)], Some(text))
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], None)
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::PUT, path, &[], Some(body.to_string()))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, &[], Some(body.to_string()))
    }

    pub(crate) fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, &[], None)
    }

    pub(crate) fn tenant(&self, name: &str, spec: &Value) -> Answer {
        self.put(&format!("/api/v1/tenants/{name}"), spec)
    }

    /// Waits for an accepted operation and gives it.
    pub(crate) fn outcome(&self, accepted: &Answer) -> Value {
        assert_eq!(accepted.status, 202, "{}", accepted.text);
        let place = accepted.header("location").expect("the address of the operation").to_owned();
        super::eventually("the operation ends", || {
            let operation = self.get(&place).ok();
            let state = operation["state"].as_str().expect("a state").to_owned();
            (!matches!(state.as_str(), "pending" | "running")).then_some(operation)
        })
    }

    /// Waits for an accepted operation, which must succeed.
    pub(crate) fn succeeds(&self, accepted: &Answer) -> Value {
        let operation = self.outcome(accepted);
        assert_eq!(operation["state"], "succeeded", "{operation}");
        operation
    }
}

impl Answer {
    fn new(status: http::StatusCode, headers: &http::HeaderMap, text: String) -> Self {
        let text_of = |value: &http::HeaderValue| value.to_str().unwrap_or("").to_owned();
        let headers = headers.iter().map(|(name, value)| (name.to_string(), text_of(value))).collect();
        Self { status: status.as_u16(), text, headers }
    }

    /// The answer to these bytes, as [`Self::to_bytes_over`] gives it.
    pub(crate) fn to_bytes(url: &str, request: &[u8]) -> Self {
        let stream = TcpStream::connect(url.replace("http://", "")).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        Self::to_bytes_over(stream, request)
    }

    /// The revision that the entity tag names, as a tag of its own: that of a read has more than the revision in it.
    pub(crate) fn revision(&self) -> String {
        let tag = self.header("etag").expect("an entity tag");
        tag.split_once('-').map_or_else(|| tag.to_owned(), |(revision, _)| format!("{revision}\""))
    }

    /// The names of all headers, in order.
    pub(crate) fn header_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// The problem that an answer must be: of this status and kind, with words for the caller.
    pub(crate) fn problem(&self, status: u16, kind: &str) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let problem = self.json();
        assert_eq!(problem["type"], format!("urn:mps-manager:problem:{kind}"), "{problem}");
        assert_eq!(problem["status"], status);
        assert!(!problem["title"].as_str().expect("a title").is_empty());
        assert!(!problem["detail"].as_str().expect("a detail").is_empty());
        problem
    }
}
