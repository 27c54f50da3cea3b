//! The API as any HTTP client sees it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::{Router, body};
use mps_manager::http::auth::Peer;
use reqwest::Method;
use serde_json::Value;
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

/// A way to the API; clones share the connections.
#[derive(Clone)]
pub(crate) struct Api {
    transport: Transport,
    runtime: Arc<Runtime>,
    target: Arc<Mutex<(String, Option<String>)>>,
}

/// The address that a manager without sockets is reached at, and that its callers have.
pub(super) const LOCAL: &str = "127.0.0.1:8640";

/// How requests get there.
#[derive(Clone)]
enum Transport {
    Sockets(reqwest::Client),
    /// Straight into a router of this process.
    Router(Router),
}

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) text: String,
    headers: Vec<(String, String)>,
}

impl Api {
    pub(super) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        // What is compiled in has no provider of its own; a second call finds it there.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Long enough for every answer, and short of for ever.
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(120));
        // What a certificate is worth is for tests of TLS to say.
        let http = http.tls_danger_accept_invalid_certs(true);
        let transport = Transport::Sockets(http.build().expect("a client"));
        Self { transport, runtime: Arc::new(runtime.expect("a runtime")), target: Arc::default() }
    }

    /// The API of a router that lives on this runtime.
    pub(super) fn of_router(router: Router, runtime: Arc<Runtime>, token: &str) -> Self {
        let target = Arc::new(Mutex::new((String::new(), Some(token.to_owned()))));
        Self { transport: Transport::Router(router), runtime, target }
    }

    pub(super) fn aim(&self, url: &str, token: &str) {
        *self.target.lock().expect("unpoisoned") = (url.to_owned(), Some(token.to_owned()));
    }

    /// The token that it is called with.
    pub(super) fn token(&self) -> Option<String> {
        self.target.lock().expect("unpoisoned").1.clone()
    }

    /// The same API as somebody else sees it.
    pub(crate) fn with_token(&self, token: Option<&str>) -> Self {
        let url = self.target.lock().expect("unpoisoned").0.clone();
        Self { target: Arc::new(Mutex::new((url, token.map(str::to_owned)))), ..self.clone() }
    }

    /// Another server, which wants no token.
    pub(crate) fn at(&self, url: &str) -> Self {
        Self { target: Arc::new(Mutex::new((url.to_owned(), None))), ..self.clone() }
    }

    /// The same API through the unix socket, without a token.
    pub(crate) fn over(&self, socket: &std::path::Path) -> Self {
        let http = reqwest::Client::builder().no_proxy().unix_socket(socket).build().expect("a client");
        let target = Arc::new(Mutex::new(("http://localhost".into(), None)));
        Self { transport: Transport::Sockets(http), target, ..self.clone() }
    }

    /// Sends text as it is, as JSON, to a manager that answers.
    pub(crate) fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<String>,
    ) -> Answer {
        self.try_send(method, path, headers, body).expect("the manager answers")
    }

    /// Sends text as it is, as JSON, to a manager that may die meanwhile.
    pub(crate) fn try_send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<String>,
    ) -> Result<Answer, reqwest::Error> {
        let (url, token) = self.target.lock().expect("unpoisoned").clone();
        let mut request = http::Request::builder().method(method).uri(format!("{url}{path}"));
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
            match &self.transport {
                Transport::Sockets(client) => {
                    let response = client.execute(request.try_into()?).await?;
                    let (status, headers) = (response.status(), response.headers().clone());
                    Ok(Answer::new(status, &headers, response.text().await?))
                }
                Transport::Router(router) => {
                    let mut request = request.map(body::Body::from);
                    request.headers_mut().entry("host").or_insert(LOCAL.try_into().expect("a host"));
                    let peer = Peer::Tcp(LOCAL.parse().expect("an address"));
                    request.extensions_mut().insert(ConnectInfo(peer));
                    let Ok(response) = router.clone().oneshot(request).await;
                    let (parts, body) = response.into_parts();
                    let bytes = body::to_bytes(body, usize::MAX).await.expect("a body");
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    Ok(Answer::new(parts.status, &parts.headers, text))
                }
            }
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
        let place = accepted.header("location").expect("a place to look at").to_owned();
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

    /// The answer to these bytes, on a connection of their own that they ask to be closed; of a stream, what comes before it.
    pub(crate) fn to_bytes(url: &str, request: &[u8]) -> Self {
        let mut stream = TcpStream::connect(url.replace("http://", "")).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        stream.write_all(request).expect("sent");
        let mut answer = BufReader::new(stream);
        let (mut status, mut headers, mut line) = (0, Vec::new(), String::new());
        while answer.read_line(&mut line).expect("a line") > 2 {
            match line.trim_end().split_once(": ") {
                Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.to_owned())),
                None => status = line[9..12].parse().expect("a status"),
            }
            line.clear();
        }
        let mut answered = Self { status, text: String::new(), headers };
        if answered.header("content-type") != Some("text/event-stream") {
            let mut body = Vec::new();
            answer.read_to_end(&mut body).expect("a body");
            answered.text = String::from_utf8_lossy(&body).into_owned();
        }
        answered
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The body of an answer that must be a success.
    pub(crate) fn ok(&self) -> Value {
        assert!((200..300).contains(&self.status), "{} {}", self.status, self.text);
        self.json()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
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
