//! A read from memory beside a bare route that answers with the same bytes.

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
const CACHED: &str = "/api/v1/daemons/gpu0";

/// The same 32 callers of a daemon and of the bare route, by turns, each server on the same CPU and all callers on another.
pub(crate) fn bare(directory: &Path, table: &mut Table) {
    let cpus = Cpus::two();
    let server = cpus.start(directory);
    let body = server.ask("GET", CACHED, "").text;
    let bare = cpus.on_the_servers(|| serve(Bytes::from(body)));
    let caller = |address| Caller::of(address, &server.token(), CALLERS, &[CACHED]);
    let (cached, bare) = (caller(server.address), caller(bare));
    let rounds: Vec<(Latency, Latency)> = cpus.call(async {
        for caller in [&cached, &bare] {
            caller.busy(ROUND).await;
        }
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push((cached.busy(ROUND).await, bare.busy(ROUND).await));
        }
        rounds
    });
    let column = |part: fn(&(Latency, Latency)) -> f64| median(rounds.iter().map(part).collect());
    table.row("32 callers of one daemon: requests a second", column(|(cached, _)| cached.per_second), None);
    table.row("the same: p99, ms", column(|(cached, _)| cached.p99), None);
    table.row(
        "a bare route with the same bytes: requests a second",
        column(|(_, bare)| bare.per_second),
        None,
    );
    table.row("the same: p99, ms", column(|(_, bare)| bare.p99), None);
    table.row(
        "**requests a second of the bare route as a multiple of the daemon's**",
        column(|(cached, bare)| bare.per_second / cached.per_second),
        Some(2.5),
    );
    table.row(
        "**p99 of the daemon as a multiple of the bare route's**",
        column(|(cached, bare)| cached.p99 / bare.p99),
        Some(3.0),
    );
    table.row("requests that were lost", f64::from(cached.lost() + bare.lost()), Some(0.0));
}

/// Serves one route on threads that stay where this is called.
fn serve(body: Bytes) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("non-blocking");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let route = get(move || std::future::ready(([(CONTENT_TYPE, "application/json")], body.clone())));
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            let served = axum::serve(listener, axum::Router::new().route(CACHED, route)).await;
            served.expect("it serves forever");
        });
    });
    address
}
