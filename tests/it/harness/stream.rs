//! A stream of events as it comes over the wire, which may be cut anywhere.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use rustix::io::retry_on_intr;
use serde_json::Value;

use super::{Served, TIMEOUT};

/// A message of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Message {
    pub(crate) id: i64,
    /// The type and the event; `None` where the stream only says where it is.
    pub(crate) event: Option<(String, Value)>,
}

/// A stream that is read.
pub(crate) struct EventStream {
    socket: TcpStream,
    /// What has come and is no whole message yet.
    bytes: Vec<u8>,
}

impl EventStream {
    /// Asks in HTTP/1.0, so that what comes is the stream and nothing around it; the status and the answer where it is refused.
    pub(crate) fn open(
        url: &str,
        token: &str,
        query: &str,
        last: Option<i64>,
    ) -> std::io::Result<Result<Self, (u16, String)>> {
        Self::open_as(url, &format!("Authorization: Bearer {token}"), query, last)
    }

    /// The same with the secret of this header.
    pub(crate) fn open_as(
        url: &str,
        credential: &str,
        query: &str,
        last: Option<i64>,
    ) -> std::io::Result<Result<Self, (u16, String)>> {
        let mut socket = TcpStream::connect(url.trim_start_matches("http://"))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        let last = last.map(|last| format!("Last-Event-ID: {last}\r\n")).unwrap_or_default();
        write!(socket, "GET /api/v1/events/stream{query} HTTP/1.0\r\n{credential}\r\n{last}\r\n")?;
        let mut bytes = Vec::new();
        let head = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                let rest = bytes.split_off(end + 4);
                break String::from_utf8_lossy(&std::mem::replace(&mut bytes, rest)).into_owned();
            }
            take(&mut socket, &mut bytes, 4096)?;
        };
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        if status == 200 {
            return Ok(Ok(Self { socket, bytes }));
        }
        let mut rest = String::new();
        socket.read_to_string(&mut rest)?;
        Ok(Err((status, String::from_utf8_lossy(&bytes).into_owned() + &rest)))
    }

    /// Takes up to so many bytes and gives the messages that are whole; an error is the end of the stream.
    pub(crate) fn read(&mut self, most: usize) -> std::io::Result<Vec<Message>> {
        take(&mut self.socket, &mut self.bytes, most)?;
        Ok(std::iter::from_fn(|| self.whole()).filter_map(|text| message(&text)).collect())
    }

    /// The text of the first message of what has come, if it is whole.
    fn whole(&mut self) -> Option<String> {
        let end = self.bytes.windows(2).position(|two| two == b"\n\n")?;
        let text: Vec<u8> = self.bytes.drain(..end + 2).collect();
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    /// Whether what has come ends in the middle of an event.
    pub(crate) fn is_inside_an_event(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// The next event that is asked for.
    pub(crate) fn next(&mut self) -> Value {
        loop {
            // Several may have come with the head.
            while let Some(text) = self.whole() {
                if let Some((_, event)) = message(&text).and_then(|message| message.event) {
                    return event;
                }
            }
            take(&mut self.socket, &mut self.bytes, 1).expect("the stream continues");
        }
    }
}

fn take(socket: &mut TcpStream, bytes: &mut Vec<u8>, most: usize) -> std::io::Result<()> {
    let mut buffer = vec![0; most];
    // A signal ends a read that has a timeout; `Read::read` does not go on by itself.
    match retry_on_intr(|| rustix::io::read(&mut *socket, &mut buffer[..]))? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        some => {
            bytes.extend_from_slice(&buffer[..some]);
            Ok(())
        }
    }
}

fn message(text: &str) -> Option<Message> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let id = field("id")?.parse().expect("a number");
    let event = field("event").map(|kind| {
        let data: Value = serde_json::from_str(field("data").expect("data")).expect("JSON");
        assert_eq!(data["id"], id);
        assert_eq!(data["type"], *kind);
        (kind.to_owned(), data)
    });
    Some(Message { id, event })
}

impl Served {
    /// Follows events from now on, or from the one after `last`.
    pub(crate) fn stream(&self, query: &str, last: Option<i64>) -> EventStream {
        let opened = EventStream::open(&self.url(), &self.token(), query, last).expect("the manager answers");
        opened.unwrap_or_else(|(status, output)| panic!("{status}: {output}"))
    }

    /// Events, the oldest first.
    pub(crate) fn events(&self, query: &str) -> Vec<Value> {
        let mut events = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.api().get(&format!("/api/v1/events?order=oldest&limit=1000{query}{cursor}")).ok();
            events.extend(page["items"].as_array().expect("items").iter().cloned());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return events,
            }
        }
    }
}
