//! Server-sent events, as they come.

use super::ClientError;

/// Longest line of a stream, in bytes.
const LONGEST: usize = 1 << 20;

/// A message of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// Where a stream goes on after it.
    pub id: Option<String>,
    /// What it tells; `None` for one that only says where the stream is.
    pub data: Option<String>,
}

/// A stream that is read.
pub struct Stream {
    response: reqwest::Response,
    target: String,
    lines: Lines,
}

impl Stream {
    pub(super) fn new(response: reqwest::Response, target: String) -> Self {
        Self { response, target, lines: Lines::default() }
    }

    /// The next message; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Message>, ClientError> {
        loop {
            if let Some(message) = self.lines.message()? {
                return Ok(Some(message));
            }
            let chunk = self.response.chunk().await.map_err(|error| ClientError::Unreachable {
                target: self.target.clone(),
                detail: error.to_string(),
            })?;
            match chunk {
                Some(chunk) => self.lines.bytes.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }
}

/// What has come and is no whole message yet.
#[derive(Debug, Default)]
struct Lines {
    bytes: Vec<u8>,
    message: Message,
}

impl Lines {
    fn message(&mut self) -> Result<Option<Message>, ClientError> {
        while let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() {
                let message = std::mem::take(&mut self.message);
                if message != Message::default() {
                    return Ok(Some(message));
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => self.message.id = Some(value.to_owned()),
                "data" => match &mut self.message.data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                    None => self.message.data = Some(value.to_owned()),
                },
                // Comments, the type, which is in the data, and what a newer server may say.
                _ => {}
            }
        }
        if self.bytes.len() > LONGEST {
            return Err(ClientError::Unreadable(format!("a line of more than {LONGEST} bytes")));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_however_they_are_cut() {
        let text = ": hello\nretry: 1000\nid: 3\n\nid: 4\nevent: daemon.died\ndata: {\"a\":\ndata: 1}\n\n: still here\n\n";
        let message =
            |id: &str, data: Option<&str>| Message { id: Some(id.to_owned()), data: data.map(str::to_owned) };
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let mut seen = Vec::new();
            for part in text.as_bytes().chunks(size) {
                lines.bytes.extend_from_slice(part);
                while let Some(message) = lines.message().expect("read") {
                    seen.push(message);
                }
            }
            assert_eq!(seen, [message("3", None), message("4", Some("{\"a\":\n1}"))], "{size}");
        }
        let mut lines = Lines { bytes: vec![b'x'; LONGEST + 1], ..Lines::default() };
        assert!(lines.message().is_err());
    }
}
