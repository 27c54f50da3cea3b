//! A stream of events that is cut again and again: every event is received once, in order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Api, EventStream, Host, TIMEOUT, heavy, setting};

/// Kills of the manager, unless the environment says otherwise.
const KILLS: u64 = 1;
/// Cuts for each kill, and events that are written meanwhile.
const CUTS_A_KILL: usize = 10;
const EVENTS_A_KILL: usize = 400;
/// The writer that runs at the same time.
const WRITERS: u32 = 8;

/// Writes one tenant again and again, each time otherwise, until it is stopped.
fn write(api: &Api, number: u32, written: &AtomicUsize, stop: &AtomicBool) {
    let uid = rustix::process::geteuid().as_raw();
    for turn in 0u64.. {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let spec = json!({ "daemon": "gpu1", "uid": uid, "labels": { "turn": turn.to_string() } });
        let path = format!("/api/v1/tenants/writer{number}");
        match api.try_send(reqwest::Method::PUT, &path, &[], Some(spec.to_string())) {
            Ok(answer) if (200..300).contains(&answer.status) => {
                written.fetch_add(1, Ordering::Relaxed);
            }
            // The manager was killed, or is busy: what was not answered may have been written all the same.
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// What was received, however often the stream was cut.
#[derive(Default)]
struct Received {
    ids: Vec<i64>,
    by_type: BTreeMap<String, usize>,
    at: i64,
    mid_event: usize,
}

impl Received {
    fn take(&mut self, messages: Vec<crate::harness::Message>) {
        for message in messages {
            assert!(message.id >= self.at, "the place goes back from {} to {}", self.at, message.id);
            self.at = message.id;
            if let Some((kind, _)) = message.event {
                self.ids.push(message.id);
                *self.by_type.entry(kind).or_default() += 1;
            }
        }
    }

    /// Reads until so many events have come since, or for a while; says whether the stream is still there.
    fn read(&mut self, stream: &mut EventStream, events: usize) -> bool {
        let (before, began) = (self.ids.len(), Instant::now());
        while self.ids.len() < before + events && began.elapsed() < TIMEOUT {
            match stream.read(fastrand::usize(1..4000)) {
                Ok(messages) => self.take(messages),
                Err(_) => return false,
            }
        }
        true
    }

    /// Reads on, a few bytes at a time, until part of an event has come and the rest has not: a reader that keeps up
    /// with the writers gets whole events only, and would never be cut inside one.
    fn read_into_an_event(&mut self, stream: &mut EventStream) {
        while !stream.is_inside_an_event() {
            match stream.read(fastrand::usize(1..16)) {
                Ok(messages) => self.take(messages),
                Err(error) => panic!("the stream ends without being cut: {error}"),
            }
        }
        self.mid_event += 1;
    }
}

#[test]
fn cut_stream_gives_every_event_once_in_order() {
    let _turn = heavy();
    let most = usize::try_from(setting("MPS_MANAGER_STREAM_KILLS").unwrap_or(KILLS)).expect("a few");
    let (most_cuts, enough) = (most * CUTS_A_KILL, most * EVENTS_A_KILL);
    // As many requests as come: this is about the stream.
    let mut host = Host::configured("[limits]\nrequests_per_s = 0");
    let newest = |host: &Host| -> i64 {
        host.api().get("/api/v1/events?limit=1").ok()["items"][0]["id"].as_i64().expect("a number")
    };
    let mut received = Received { at: newest(&host), ..Received::default() };
    let first = received.at;
    let (written, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| {
            let (api, written, stop) = (host.api().clone(), Arc::clone(&written), Arc::clone(&stop));
            std::thread::spawn(move || write(&api, number, &written, &stop))
        })
        .collect();
    let mut cuts = 0;
    let mut kills = 0;
    while cuts < most_cuts {
        let opened = EventStream::open(&host.url(), &host.token(), "", Some(received.at));
        let Ok(Ok(mut stream)) = opened else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let events = fastrand::usize(1..2 * EVENTS_A_KILL / CUTS_A_KILL);
        received.read(&mut stream, events);
        // By closing the socket, wherever it is; a few times by killing the manager while the stream is read.
        if cuts % CUTS_A_KILL == CUTS_A_KILL - 1 {
            host.end_manager(Signal::KILL);
            while received.read(&mut stream, 1000) {}
            host.serve();
            kills += 1;
        } else if cuts % 2 == 0 {
            received.read_into_an_event(&mut stream);
        }
        drop(stream);
        cuts += 1;
    }
    while received.ids.len() < enough {
        let mut stream = host.stream("", Some(received.at));
        received.read(&mut stream, enough);
    }
    stop.store(true, Ordering::Release);
    for writer in writers {
        writer.join().expect("a writer ends");
    }
    // What was written last comes, too; and the list has the same.
    let last = newest(&host);
    let mut stream = host.stream("", Some(received.at));
    while received.at < last {
        assert!(received.read(&mut stream, 1));
    }
    let until = received.at;
    let expected: Vec<i64> = (first + 1..=until).collect();
    assert_eq!(received.ids, expected, "every event once, in order");
    let listed: Vec<i64> = host
        .events("")
        .iter()
        .filter_map(|event: &Value| event["id"].as_i64())
        .filter(|id| (first + 1..=until).contains(id))
        .collect();
    assert_eq!(listed, expected);
    assert!(received.ids.len() >= enough, "{} events", received.ids.len());
    let reported = received.by_type.get("tenant.changed").copied().unwrap_or_default()
        + received.by_type.get("tenant.created").copied().unwrap_or_default();
    assert!(reported >= written.load(Ordering::Relaxed), "every write that was answered has an event");
    assert_eq!((cuts, kills), (most_cuts, most));
    assert!(
        received.mid_event >= most_cuts / 2 - most,
        "{} cuts in the middle of an event",
        received.mid_event
    );
    println!(
        "{} events received once and in order over {cuts} cuts ({} in the middle of an event, {kills} by killing the manager): {:?}",
        received.ids.len(),
        received.mid_event,
        received.by_type
    );
}
