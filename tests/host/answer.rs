//! An answer over HTTP.

use std::io::{BufRead as _, BufReader, Read, Write};

use serde_json::Value;

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) text: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Answer {
    /// The answer to these bytes, on a connection of their own that they ask to be closed; of a stream, what comes before it.
    pub(crate) fn to_bytes_over(mut stream: impl Read + Write, request: &[u8]) -> Self {
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
}
