//! What each page of the console costs the server with thousands of tenants and events.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Instant;

use serde_json::json;
use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::host::TIMEOUT;
use crate::server::Server;
use crate::{Table, median, millis};

const TENANTS: i64 = 5000;
const EVENTS: i64 = 50_000;
/// Each page is requested so many times.
const ROUNDS: usize = 100;
/// At most so long at the 95th percentile, in milliseconds.
const BOUND: f64 = 20.0;

/// What is measured, by its row in the table and its address.
const PAGES: [(&str, &str); 28] = [
    ("overview", "/"),
    ("GPUs", "/gpus"),
    ("a GPU", "/gpus/0"),
    ("a GPU with partitions", "/gpus/1"),
    ("daemons", "/daemons"),
    ("a daemon", "/daemons/gpu0"),
    ("a daemon with a layout", "/daemons/gpu1"),
    ("a daemon's form", "/daemons/gpu0/edit"),
    ("before a restart", "/daemons/gpu0/restart"),
    ("a daemon's log", "/daemons/gpu0/logs"),
    ("tenants", "/tenants"),
    ("tenants, searched", "/tenants?q=t04&daemon=gpu0"),
    ("a tenant", "/tenants/demo"),
    ("a tenant's form", "/tenants/demo/edit"),
    ("a new tenant's form", "/tenants/-/new"),
    ("before a tenant is deleted", "/tenants/t02500/delete"),
    ("clients", "/clients"),
    ("layouts", "/layouts"),
    ("a layout", "/layouts/prod"),
    ("a layout's editor", "/layouts/prod/edit"),
    ("a layout's plan", "/layouts/prod/apply?daemon=gpu1"),
    ("replays", "/replays"),
    ("operations", "/operations"),
    ("events", "/events"),
    ("events, filtered", "/events?type=client.connected&tenant=t00042"),
    ("audit", "/audit"),
    ("tokens", "/tokens"),
    ("settings", "/settings"),
];

pub(crate) fn pages(directory: &Path, table: &mut Table) {
    let (server, _) = Server::start_as(directory, "h200x16");
    server.wait_ready();
    server.in_static_mode("gpu1");
    let steps = json!([
        {"add": {"gpu": 1, "partition": "web", "chunks": 7}},
        {"add": {"gpu": 1, "partition": "batch", "chunks": 5}},
    ]);
    server.send("PUT", "/api/v1/layouts/prod", &json!({"layout": {"steps": steps}}).to_string());
    server.operation("/api/v1/layouts/prod/apply", r#"{"daemon":"gpu1"}"#);
    fill(&server);
    // A change of a daemon makes the manager read all of its tenants.
    server.post("/api/v1/daemons/gpu0/cordon");
    server.post("/api/v1/daemons/gpu0/uncordon");
    server.wait_ready();
    let _clients = server.clients(["demo", "t00001", "t00002", "t00003"]);
    // A host that has had its tenants for a while: each gets a file of its own, which takes seconds for so many at once.
    let files = server.directory.join("run/env");
    server.eventually("every tenant has its file", || {
        let count = fs::read_dir(&files).map_or(0, Iterator::count);
        i64::try_from(count).is_ok_and(|count| count >= TENANTS).then_some(())
    });
    let browser = Browser::log_in(&server);
    for (what, path) in PAGES {
        let mut times = Vec::with_capacity(ROUNDS);
        let mut size = 0;
        for _ in 0..ROUNDS {
            let began = Instant::now();
            let (status, length) = browser.get(path);
            times.push(millis(began.elapsed()));
            assert_eq!(status, 200, "{path}");
            size = length;
        }
        times.sort_by(f64::total_cmp);
        let p95 = times[ROUNDS * 95 / 100 - 1];
        println!("{what}: median {:.1} ms, 95th percentile {p95:.1} ms, {size} bytes", median(times));
        table.row(what, p95, Some(BOUND));
    }
    table.row("resident memory after all of them, MB", server.resident_mb(), None);
}

/// Writes tenants and events by the thousand, beside what the host has.
fn fill(server: &Server) {
    let database = server.directory.join("state/mps-manager.db");
    let work = async {
        let options = SqliteConnectOptions::new().filename(database).busy_timeout(TIMEOUT).foreign_keys(true);
        let mut db = SqliteConnection::connect_with(&options).await.expect("the database");
        // Like the tenant that the simulated host begins with, each with a limit out of some, and a label.
        sqlx::query(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?1)
             INSERT INTO tenants (name, daemon, spec, generation, daemon_generation, created_at, updated_at, events_visible_from, directory)
             SELECT printf('t%05d', n), daemon,
                    json_set(spec, '$.device_memory_limit', (n % 16 + 1) * 1048576 * 256, '$.labels', json_object('team', 'team' || (n % 40))),
                    1, daemon_generation, created_at, updated_at, 1, lower(hex(randomblob(5)))
             FROM tenants, numbers WHERE name = 'demo'",
        )
        .bind(TENANTS)
        .execute(&mut db)
        .await
        .expect("tenants");
        sqlx::query(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?1)
             INSERT INTO events (at, type, severity, daemon, tenant, client, subject, cause, message, details)
             SELECT at + n, type, severity, 'gpu' || (n % 2), printf('t%05d', n % 5000), n || '-' || n,
                    json_set(subject, '$.daemon', 'gpu' || (n % 2), '$.tenant', printf('t%05d', n % 5000)),
                    cause, message, details
             FROM (SELECT * FROM events WHERE type = 'daemon.ready' LIMIT 1), numbers",
        )
        .bind(EVENTS)
        .execute(&mut db)
        .await
        .expect("events");
        db.close().await.expect("closed");
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work);
}

/// A user who is logged in.
struct Browser {
    address: SocketAddr,
    cookie: String,
}

impl Browser {
    fn log_in(server: &Server) -> Self {
        let mut browser = Self { address: server.address, cookie: String::new() };
        let body = json!({"token": server.token()}).to_string();
        let length = body.len();
        let head = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
        let answer = browser.ask("POST /api/v1/session", &head, &body);
        let answer = String::from_utf8_lossy(&answer);
        let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
        cookie.split(';').next().expect("a pair").clone_into(&mut browser.cookie);
        browser
    }

    /// A page as a browser requests it: its status, and its bytes as they are sent, head included.
    fn get(&self, path: &str) -> (u16, usize) {
        let head = format!("Cookie: {}\r\nAccept-Encoding: gzip\r\n", self.cookie);
        let answer = self.ask(&format!("GET {path}"), &head, "");
        let status =
            String::from_utf8_lossy(&answer[..20]).split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.expect("a status"), answer.len())
    }

    fn ask(&self, line: &str, head: &str, body: &str) -> Vec<u8> {
        let mut socket = TcpStream::connect(self.address).expect("it listens");
        socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        let host = self.address;
        write!(socket, "{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{head}\r\n{body}")
            .expect("sent");
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).expect("an answer");
        answer
    }
}
