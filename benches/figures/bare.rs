//! Reads from memory beside a bare route that answers with the same bytes.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;

use crate::callers::{Caller, Cpus, Latency};
use crate::{Table, median};

const CALLERS: usize = 32;
const ROUNDS: usize = 8;
const ROUND: Duration = Duration::from_secs(3);
const TENANTS: usize = 200;
/// What is read, and in which words.
static READS: [(&str, [&str; 1]); 4] = [
    ("one daemon", ["/api/v1/daemons/gpu0"]),
    ("one tenant", ["/api/v1/tenants/tenant7"]),
    ("one GPU", ["/api/v1/gpus/0"]),
    ("200 tenants", ["/api/v1/tenants?limit=200"]),
];

/// For each read the same 32 callers of it and of the bare route, by turns, each server on the same CPU and all callers on another.
pub(crate) fn bare(directory: &Path, table: &mut Table) {
    let cpus = Cpus::two();
    let server = cpus.start(directory);
    for number in 0..TENANTS {
        let spec = r#"{"daemon":"gpu0","uid":UID,"device_memory_limit":"1G","max_clients":2}"#;
        server.put(&format!("/api/v1/tenants/tenant{number}"), spec);
    }
    server.wait_ready();
    for (what, paths) in &READS {
        let body = server.ask("GET", paths[0], "").text;
        let bare = cpus.on_the_servers(|| serve(paths[0], Bytes::from(body)));
        let caller = |address| Caller::of(address, &server.token(), CALLERS, paths);
        let (read, bare) = (caller(server.address), caller(bare));
        let rounds: Vec<(Latency, Latency)> = cpus.call(async {
            for caller in [&read, &bare] {
                caller.busy(ROUND).await;
            }
            let mut rounds = Vec::new();
            for _ in 0..ROUNDS {
                rounds.push((read.busy(ROUND).await, bare.busy(ROUND).await));
            }
            rounds
        });
        let column = |part: fn(&(Latency, Latency)) -> f64| median(rounds.iter().map(part).collect());
        table.row(
            format!("32 callers of {what}: requests a second"),
            column(|(read, _)| read.per_second),
            None,
        );
        table.row("the same: p99, ms", column(|(read, _)| read.p99), None);
        table.row(
            "a bare route with the same bytes: requests a second",
            column(|(_, bare)| bare.per_second),
            None,
        );
        table.row("the same: p99, ms", column(|(_, bare)| bare.p99), None);
        table.row(
            format!("**requests a second of the bare route as a multiple of those of {what}**"),
            column(|(read, bare)| bare.per_second / read.per_second),
            Some(2.5),
        );
        table.row(
            format!("**p99 of {what} as a multiple of the bare route's**"),
            column(|(read, bare)| read.p99 / bare.p99),
            Some(3.0),
        );
        table.row("requests that were lost", f64::from(read.lost() + bare.lost()), Some(0.0));
    }
}

/// Serves one route on threads that stay where this is called.
fn serve(path: &'static str, body: Bytes) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("non-blocking");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let route = get(move || std::future::ready(([(CONTENT_TYPE, "application/json")], body.clone())));
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            let (path, _) = path.split_once('?').unwrap_or((path, ""));
            let served = axum::serve(listener, axum::Router::new().route(path, route)).await;
            served.expect("it serves forever");
        });
    });
    address
}
