//! Reads that share one delimiter, since their replies can be distinguished by their form.
//!
//! A delimiter after each command is two lines more in control.log, and one more exchange. A reply of exactly one line
//! ends the one before it if no line of that can be taken for it. A reply of another form, a refusal for one, is left
//! to the caller, who reads the commands one by one.

use super::super::command::Command;

/// Number of lines in a reply that is no refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    One,
    AtMostOne,
    Any,
}

/// Form of each line of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplyLineKind {
    /// `511`
    Number,
    /// `100.0`
    Decimal,
    /// `4G`
    Size,
    /// `ACTIVE`
    Word,
}

impl ReplyLineKind {
    fn is(self, text: &str) -> bool {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match self {
            Self::Number => digits(text),
            Self::Decimal => text.split_once('.').is_some_and(|(whole, rest)| digits(whole) && digits(rest)),
            Self::Size => {
                let number = text.strip_suffix(['K', 'M', 'G', 'T']);
                number.is_some_and(|number| digits(number.strip_prefix('-').unwrap_or(number)))
            }
            Self::Word => !text.is_empty() && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'),
        }
    }
}

fn shape(command: &Command) -> Option<(Count, ReplyLineKind)> {
    Some(match command {
        Command::GetServerList => (Count::Any, ReplyLineKind::Number),
        Command::GetDefaultThreadPercentage | Command::GetThreadPercentage { .. } => {
            (Count::One, ReplyLineKind::Decimal)
        }
        Command::GetDefaultPriority => (Count::One, ReplyLineKind::Number),
        Command::GetDefaultMemoryLimit { .. } | Command::GetMemoryLimit { .. } => {
            (Count::AtMostOne, ReplyLineKind::Size)
        }
        Command::GetServerStatus { .. } => (Count::One, ReplyLineKind::Word),
        _ => return None,
    })
}

/// Returns true if the replies of these commands can be distinguished without delimiters between them.
pub(super) fn can_share(commands: &[Command]) -> bool {
    let shapes: Option<Vec<_>> = commands.iter().map(shape).collect();
    shapes.is_some_and(|shapes| {
        shapes.windows(2).all(|pair| match pair {
            [(Count::One, _), _] => true,
            [(_, line), (next, after)] => *next == Count::One && line != after,
            _ => true,
        })
    })
}

/// The reply of each command; `None` where they cannot be distinguished.
pub(super) fn split(commands: &[Command], reply: &[u8]) -> Option<Vec<Vec<u8>>> {
    let text = std::str::from_utf8(reply).ok()?;
    let mut lines = text.lines().peekable();
    let mut replies = Vec::with_capacity(commands.len());
    for command in commands {
        let (count, line) = shape(command)?;
        let most = if count == Count::Any { usize::MAX } else { 1 };
        let mut own = String::new();
        let mut taken = 0;
        while taken < most
            && let Some(next) = lines.next_if(|next| line.is(next))
        {
            own.push_str(next);
            own.push('\n');
            taken += 1;
        }
        if count == Count::One && taken != 1 {
            return None;
        }
        replies.push(own.into_bytes());
    }
    lines.next().is_none().then_some(replies)
}

#[cfg(test)]
mod tests {
    use super::super::super::command::DeviceSelector;
    use super::*;

    fn defaults() -> [Command; 4] {
        [
            Command::GetServerList,
            Command::GetDefaultThreadPercentage,
            Command::GetDefaultMemoryLimit { device: DeviceSelector::Ordinal(0) },
            Command::GetDefaultPriority,
        ]
    }

    fn replies(text: &str) -> Option<Vec<String>> {
        let replies = split(&defaults(), text.as_bytes())?;
        Some(replies.into_iter().map(|reply| String::from_utf8(reply).expect("text")).collect())
    }

    #[test]
    fn replies_are_split_by_their_lines() {
        assert!(can_share(&defaults()));
        assert_eq!(replies("511\n100.0\n4G\n0\n").expect("split"), ["511\n", "100.0\n", "4G\n", "0\n"]);
        assert_eq!(replies("100.0\n1\n").expect("split"), ["", "100.0\n", "", "1\n"]);
        assert_eq!(replies("511\n512\n33.3\n17179869183G\n0\n").expect("split")[0], "511\n512\n");
    }

    #[test]
    fn unexpected_replies_are_not_split() {
        for text in [
            "",
            "511\n100.0\n4G\n",
            "511\n100.0\n4G\n0\nmore\n",
            "511\n100.0\n4G\n4G\n0\n",
            "Insufficient privileges for UID 7.\n100.0\n0\n",
            "511\n\n100.0\n4G\n0\n",
            "511\n100.0\nnothing\n0\n",
        ] {
            assert_eq!(replies(text), None, "{text:?}");
        }
        assert_eq!(split(&defaults(), b"\xff"), None);
    }

    #[test]
    fn only_replies_that_end_each_other_share() {
        let memory =
            |ordinal| Command::GetMemoryLimit { server: 511, device: DeviceSelector::Ordinal(ordinal) };
        assert!(!can_share(&[memory(0), memory(1)]), "one line may be either's");
        assert!(!can_share(&[Command::GetServerList, Command::GetDefaultPriority]), "both are numbers");
        assert!(!can_share(&[Command::Ps { server: None }]));
        assert!(!can_share(&[Command::StartServer { uid: 0, mlopart: false }]));
        let server = [
            Command::GetThreadPercentage { server: 511 },
            memory(0),
            Command::GetServerStatus { server: 511 },
        ];
        assert!(can_share(&server));
        assert_eq!(split(&server, b"100.0\nACTIVE\n").expect("split").len(), 3);
        assert_eq!(split(&server, b"Server 511 not found\nServer 511 not found\n"), None);
    }
}
