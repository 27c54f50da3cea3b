//! The bounds of connections, each with real sockets: what is slow, large or too much is turned away, and others are served.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::io::retry_on_intr;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Host, Served, eventually, heavy, setting};

/// Longer than anything that is waited for here.
const TIMEOUT: Duration = Duration::from_secs(60);

fn address(host: &Served) -> SocketAddr {
    host.url().split_once("://").expect("a URL").1.parse().expect("an address")
}

fn connect(host: &Served) -> TcpStream {
    let stream = TcpStream::connect(address(host)).expect("connected");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    stream.set_write_timeout(Some(TIMEOUT)).expect("a timeout");
    stream
}

/// From another address of this machine than everybody else.
fn connect_from(host: &Served, from: [u8; 4]) -> TcpStream {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)
        .expect("a socket");
    rustix::net::bind(&socket, &SocketAddr::from((from, 0))).expect("an address of this machine");
    rustix::net::connect(&socket, &address(host)).expect("connected");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    stream
}

fn get(host: &Served, path: &str, fields: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n{fields}\r\n",
        host.token()
    )
}

/// Reads on when a signal ended the read, as one does that has a timeout.
fn read(stream: &TcpStream, buffer: &mut [u8]) -> std::io::Result<usize> {
    Ok(retry_on_intr(|| rustix::io::read(stream, &mut *buffer))?)
}

/// One answer of a connection that stays open.
fn answer(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") {
        assert_eq!(
            read(stream, &mut byte).expect("an answer in time"),
            1,
            "{}",
            String::from_utf8_lossy(&text)
        );
        text.push(byte[0]);
    }
    let head = String::from_utf8(text).expect("text");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a length"))];
    stream.read_exact(&mut body).expect("a body in time");
    head + &String::from_utf8(body).expect("text")
}

/// Everything up to the end of the connection, which has to come from the server.
fn rest(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut some = [0; 4096];
    loop {
        match read(stream, &mut some) {
            Ok(0) => break,
            Ok(read) => text.extend_from_slice(&some[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("the connection stays open: {error}"),
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The problem that an answer holds.
fn problem(answer: &str) -> Value {
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.contains("application/problem+json"), "{answer}");
    serde_json::from_str(body).expect("a problem")
}

#[test]
fn slow_request_head_times_out() {
    let host = Host::configured("[limits]\nheader_timeout_s = 1");
    let mut silent = connect(&host);
    let mut slow = connect(&host);
    let began = Instant::now();
    // A byte now and then does not help.
    for byte in get(&host, "/api/v1/host", "").bytes() {
        if slow.write_all(&[byte]).is_err() || began.elapsed() > TIMEOUT {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(began.elapsed() < TIMEOUT, "it may send forever");
    assert_eq!(rest(&mut slow), "");
    assert_eq!(rest(&mut silent), "");
    assert_eq!(host.api().get("/readyz").status, 200);
}

#[test]
fn idle_connection_is_closed_active_one_kept() {
    let host = Host::configured("[limits]\nidle_timeout_s = 2");
    let (mut idle, mut busy) = (connect(&host), connect(&host));
    for stream in [&mut idle, &mut busy] {
        stream.write_all(get(&host, "/healthz", "").as_bytes()).expect("sent");
        assert!(answer(stream).starts_with("HTTP/1.1 200"));
    }
    let began = Instant::now();
    // Longer than a connection may rest.
    while began.elapsed() < Duration::from_secs(4) {
        busy.write_all(get(&host, "/healthz", "").as_bytes()).expect("sent");
        assert!(answer(&mut busy).starts_with("HTTP/1.1 200"));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(rest(&mut idle), "");
}

#[test]
fn oversized_request_head_is_refused() {
    let host = Host::configured("[limits]\nheader_bytes = 8192\nheaders = 32");
    let refused = |fields: String| {
        let mut stream = connect(&host);
        stream.write_all(get(&host, "/api/v1/host", &fields).as_bytes()).expect("sent");
        let answered = answer(&mut stream);
        assert!(answered.starts_with("HTTP/1.1 431 "), "{answered}");
        answered
    };
    let large = refused(format!("x-large: {}\r\n", "a".repeat(8192)));
    let reported = problem(&large);
    assert_eq!(reported["type"], "urn:mps-manager:problem:head-too-large");
    assert!(
        reported["detail"].as_str().is_some_and(|detail| detail.contains("limits.header_bytes")),
        "{reported}"
    );
    let fields = |count: usize| "x: 1\r\n".repeat(count);
    let many = problem(&refused(fields(40)));
    assert!(many["detail"].as_str().is_some_and(|detail| detail.contains("limits.headers")), "{many}");
    // Past twice of either nothing of it is kept, and there are no words.
    assert!(refused(fields(100)).ends_with("\r\n\r\n"));
    assert!(refused(format!("x-large: {}\r\n", "a".repeat(20_000))).ends_with("\r\n\r\n"));
}

#[test]
fn slow_request_body_times_out() {
    let host = Host::configured("[limits]\nbody_timeout_s = 2");
    let mut stream = connect(&host);
    let head = format!(
        "PUT /api/v1/tenants/slow HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: 10000\r\n\r\n",
        host.token()
    );
    stream.write_all(head.as_bytes()).expect("sent");
    stream.set_nonblocking(true).expect("non-blocking");
    let began = Instant::now();
    let mut first = [0; 1];
    // Without a pause, and so slowly that it takes minutes.
    while stream.peek(&mut first).is_err() {
        assert!(began.elapsed() < TIMEOUT, "the body may come forever");
        let _ = stream.write_all(b" ");
        std::thread::sleep(Duration::from_millis(100));
    }
    stream.set_nonblocking(false).expect("blocking");
    let answered = answer(&mut stream);
    assert!(answered.starts_with("HTTP/1.1 408 "), "{answered}");
    let reported = problem(&answered);
    assert_eq!(reported["type"], "urn:mps-manager:problem:body-too-slow");
    assert!(
        reported["detail"].as_str().is_some_and(|detail| detail.contains("limits.body_timeout_s")),
        "{reported}"
    );
    assert_eq!(host.api().get("/api/v1/tenants/slow").status, 404);
}

#[test]
fn caller_that_reads_nothing_is_disconnected() {
    let host = Host::configured("[limits]\nwrite_timeout_s = 1");
    let mut stream = connect(&host);
    let request = get(&host, "/openapi.json", "");
    // Until there is no room left in the buffers of either side: then the connection ends, and so does this.
    let began = Instant::now();
    while stream.write_all(request.as_bytes()).is_ok() {
        assert!(began.elapsed() < TIMEOUT, "it may ask forever");
    }
    assert_eq!(host.api().get("/readyz").status, 200);
}

#[test]
fn unread_http_2_response_ends_its_connection() {
    let host = Host::configured("[limits]\nwrite_timeout_s = 1\nrequests_per_s = 0");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for path in ["/openapi.json", "/api/v1/events/stream"] {
        runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address(&host)).await.expect("connected");
            // Pings are answered all the while; of the answers nothing may be sent.
            let mut builder = h2::client::Builder::new();
            let (client, connection) = builder
                .initial_window_size(0)
                .handshake::<_, axum::body::Bytes>(stream)
                .await
                .expect("HTTP/2");
            let ended = tokio::spawn(connection);
            let mut client = client.ready().await.expect("ready");
            let token = format!("Bearer {}", host.token());
            let uri = format!("http://localhost{path}");
            let request = http::Request::get(uri).header("authorization", token).body(()).expect("a request");
            let (response, _) = client.send_request(request, true).expect("sent");
            // Kept, since a request whose answer is dropped is taken back.
            let answer = response.await.expect("an answer");
            assert_eq!(answer.status(), 200);
            let ended = tokio::time::timeout(TIMEOUT, ended).await;
            assert!(ended.is_ok(), "{path} is kept for a caller who takes nothing of it");
        });
    }
    // And who takes it slowly, a window at a time, gets all of it.
    let taken = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address(&host)).await.expect("connected");
        let builder = h2::client::Builder::new();
        let (client, connection) = builder.handshake::<_, axum::body::Bytes>(stream).await.expect("HTTP/2");
        tokio::spawn(connection);
        let mut client = client.ready().await.expect("ready");
        let request = http::Request::get("http://localhost/openapi.json").body(()).expect("a request");
        let (response, _) = client.send_request(request, true).expect("sent");
        let mut body = response.await.expect("an answer").into_body();
        let mut taken = Vec::new();
        while let Some(piece) = body.data().await {
            let piece = piece.expect("the stream continues");
            taken.extend_from_slice(&piece);
            tokio::time::sleep(Duration::from_millis(40)).await;
            body.flow_control().release_capacity(piece.len()).expect("a window");
        }
        taken
    });
    assert_eq!(taken, host.api().get("/openapi.json").text.as_bytes());
}

#[test]
fn operator_connects_when_tcp_is_full() {
    let host = Host::configured("[limits]\nconnections = 8\nconnections_per_address = 4");
    // The harness keeps one of 127.0.0.1 open.
    let held: Vec<TcpStream> = (0..4).map(|_| connect_from(&host, [127, 0, 0, 2])).collect();
    let mut fifth = connect_from(&host, [127, 0, 0, 2]);
    let reported = rest(&mut fifth);
    // A client that does not read before it writes may get no more than the end of the connection.
    assert!(reported.is_empty() || problem(&reported)["status"] == 503, "{reported}");
    let more: Vec<TcpStream> = (0..4).map(|_| connect_from(&host, [127, 0, 0, 3])).collect();
    let mut asked = connect_from(&host, [127, 0, 0, 4]);
    let _ = asked.write_all(get(&host, "/healthz", "").as_bytes());
    assert!(!rest(&mut asked).starts_with("HTTP/1.1 200"), "the ninth");
    let socket = host.api().over(&host.runtime("api.sock"));
    assert_eq!(socket.get("/api/v1/host").status, 200);
    drop((held, more));
    eventually("there is room again", || {
        let mut stream = connect_from(&host, [127, 0, 0, 2]);
        stream.write_all(get(&host, "/healthz", "connection: close\r\n").as_bytes()).ok()?;
        rest(&mut stream).starts_with("HTTP/1.1 200").then_some(())
    });
}

#[test]
fn rate_limit_spares_operators() {
    let mut host = Host::new("[limits]\nrequests_per_s = 1\nrequest_burst = 20");
    host.serve();
    let socket = host.api().over(&host.runtime("api.sock"));
    let refused = eventually("there are too many", || {
        let answer = host.api().get("/api/v1/host");
        (answer.status != 200).then_some(answer)
    });
    refused.problem(429, "too-many-requests");
    let wait: u64 = refused.header("retry-after").expect("a time").parse().expect("seconds");
    assert!((1..=2).contains(&wait), "{wait}");
    for _ in 0..50 {
        assert_eq!(socket.get("/api/v1/host").status, 200);
    }
    std::thread::sleep(Duration::from_secs(wait));
    assert_eq!(host.api().get("/api/v1/host").status, 200, "after the time of Retry-After");
}

#[test]
fn http_2_has_bounds_of_its_own() {
    let host = Host::configured("[limits]\nstreams = 7\nrequests_per_s = 0\nheader_timeout_s = 1");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address(&host)).await.expect("connected");
        let (client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
        let ended = tokio::spawn(connection);
        let mut client = client.ready().await.expect("ready");
        let request = || {
            let uri = format!("http://localhost{}", "/api/v1/host");
            let token = format!("Bearer {}", host.token());
            http::Request::get(uri).header("authorization", token).body(()).expect("a request")
        };
        let (response, _) = client.send_request(request(), true).expect("sent");
        assert_eq!(response.await.expect("an answer").status(), 200);
        assert_eq!(client.current_max_send_streams(), 7);
        // Rapid reset: each is cancelled before it was processed.
        let began = Instant::now();
        while let Ok(mut ready) = client.clone().ready().await {
            assert!(began.elapsed() < TIMEOUT, "it may reset forever");
            let Ok((_, mut sender)) = ready.send_request(request(), false) else { break };
            sender.send_reset(h2::Reason::CANCEL);
            // So that it is sent, and not taken back on this side.
            tokio::task::yield_now().await;
        }
        let _ = ended.await.expect("it ended");
    });
    assert_eq!(host.api().get("/readyz").status, 200);
}

/// Memory of the manager, in bytes.
fn resident(host: &Host) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.manager_pid())).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// A flood of everything that could be kept, once.
fn flood(host: &Served) {
    let half_open: Vec<TcpStream> = (0..2000)
        .map(|number: u16| {
            let [high, low] = number.to_be_bytes();
            let mut stream = connect_from(host, [127, 1, high, low]);
            let _ = stream.write_all(b"GET /api/v1/host HTTP/1.1\r\nx-half: ");
            stream
        })
        .collect();
    // Those above the bound were turned away; the others hold their places.
    let socket = host.api().over(&host.runtime("api.sock"));
    assert_eq!(socket.get("/api/v1/host").status, 200);
    drop(half_open);
    let deep = format!("{{\"labels\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let fields = format!("x-many: {}\r\n", "a".repeat(200)).repeat(2000);
    let head = get(host, "/api/v1/host", &fields);
    eventually("there is room again", || (host.api().get("/healthz").status == 200).then_some(()));
    // A new connection is turned away, with 503 or without a word, until enough of those that were dropped have ended.
    let put = |body: &str| {
        let send =
            || host.api().try_send(reqwest::Method::PUT, "/api/v1/tenants/deep", &[], Some(body.to_owned()));
        eventually("a connection is admitted", || send().ok().filter(|answer| answer.status != 503)).status
    };
    for _ in 0..20 {
        assert_eq!(put(r#"{"labels": {"a": 1}}"#), 422);
        let refused = put(&deep);
        assert!((400..500).contains(&refused), "{refused}");
        let mut stream = connect(host);
        let _ = stream.write_all(head.as_bytes());
        assert!(!rest(&mut stream).starts_with("HTTP/1.1 200"));
    }
}

/// What a manager may have more after floods than before, a third of what one flood needs at once: pages of its program that floods are the
/// first to need, and pieces of freed memory too small to be given back.
const KEPT: u64 = 8 << 20;

/// Floods, after as many before them, that add less than 1 MiB, which is 100 bytes of each of their connections.
const LEVEL: usize = 5;

#[test]
fn floods_leave_no_memory_behind() {
    let _turn = heavy();
    let host = Host::ready();
    let mut after = vec![resident(&host)];
    for round in 1..=setting("MPS_MANAGER_FLOODS").unwrap_or(3) {
        flood(&host);
        let at_once = resident(&host);
        after.push(eventually("what the flood needed is given back", || {
            let now = resident(&host);
            (now < after[0] + KEPT).then_some(now)
        }));
        eprintln!(
            "round {round}: {} KiB at once, {} KiB after",
            at_once / 1024,
            after[after.len() - 1] / 1024
        );
    }
    if let Some(before) = after.len().checked_sub(LEVEL + 1).filter(|before| *before >= LEVEL) {
        let grown = after[after.len() - 1].saturating_sub(after[before]);
        assert!(grown < 1 << 20, "it grows with each round: {after:?} bytes");
    }
    assert_eq!(host.api().get("/readyz").status, 200);
}

#[test]
fn shutdown_ends_connections_after_running_requests() {
    let mut host = Host::configured("[limits]\nheader_timeout_s = 2");
    let mut idle = connect(&host);
    idle.write_all(get(&host, "/healthz", "").as_bytes()).expect("sent");
    assert!(answer(&mut idle).starts_with("HTTP/1.1 200"));
    let mut half = connect(&host);
    half.write_all(b"GET /heal").expect("sent");
    assert_eq!(host.end_manager(Signal::TERM), Some(0));
    assert_eq!((rest(&mut idle), rest(&mut half)), (String::new(), String::new()));
    assert!(!host.log().contains("some requests did not end"), "{}", host.log());
}
