//! Text from other programs, made safe for a terminal, a log or a page: control characters are spelled out.
//!
//! Command lines, names and messages of processes may contain anything. Printed unchanged, an escape sequence changes a
//! terminal's title or colours, and a line break forges a row.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns true for a character that a terminal or a page does not simply show.
pub fn is_control(c: char) -> bool {
    // Beside control characters these are other line separators, characters that change the direction of text, and invisible ones,
    // except variation selectors, which colour emoji need.
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns true for a line of a caller's text that may be stored and shown: at most `most` characters, all of them visible.
pub fn is_shown(text: &str, most: usize) -> bool {
    text.chars().count() <= most && !text.chars().any(is_control)
}

fn spelled(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(|c| is_control(c) && !is_kept(c)) {
        return Cow::Borrowed(text);
    }
    let mut spelled = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_control(c) && !is_kept(c) {
            // Spelled as in JSON, so that JSON stays valid.
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(spelled, "\\u{unit:04x}");
            }
        } else {
            spelled.push(c);
        }
    }
    Cow::Owned(spelled)
}

/// Spells out control characters in one line or cell, line breaks and tabs included, as `\u001b`.
pub fn printable(text: &str) -> Cow<'_, str> {
    spelled(text, |_| false)
}

/// Spells out control characters in several lines, except line breaks and tabs.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    spelled(text, |c| matches!(c, '\n' | '\t'))
}

/// Spells out control characters in a log line, except tabs and the escape character, which the logger uses for its own colours and
/// spells out in its arguments.
pub fn printable_log_line(text: &str) -> Cow<'_, str> {
    spelled(text, |c| matches!(c, '\u{1b}' | '\t'))
}

/// Replaces control characters in a page, except white space, by their symbols, as ␛.
pub fn with_symbols(page: &str) -> Cow<'_, str> {
    let is_shown = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t');
    if page.chars().all(is_shown) {
        return Cow::Borrowed(page);
    }
    let symbol = |c: char| match u32::from(c) {
        _ if is_shown(c) => c,
        code @ 0..0x20 => char::from_u32(0x2400 + code).unwrap_or('\u{fffd}'),
        0x7f => '\u{2421}',
        _ => '\u{fffd}',
    };
    Cow::Owned(page.chars().map(symbol).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "\u{1b}]0;pwned\u{7}\u{1b}[31mRED\r\nforged\trow\u{9b}1m\u{202e}x\u{7f}";

    #[test]
    fn control_characters_are_spelled_out() {
        let shown =
            "\\u001b]0;pwned\\u0007\\u001b[31mRED\\u000d\\u000aforged\\u0009row\\u009b1m\\u202ex\\u007f";
        assert_eq!(printable(HOSTILE), shown);
        assert!(printable_lines(HOSTILE).ends_with("RED\\u000d\nforged\trow\\u009b1m\\u202ex\\u007f"));
        assert!(printable_log_line("a\u{1b}[0m\nb").ends_with("a\u{1b}[0m\\u000ab"));
        assert!(matches!(printable("größe 8 GiB – ok"), Cow::Borrowed(_)));
    }

    #[test]
    fn invisible_characters_are_not_shown() {
        for hostile in [
            "\u{1b}",
            "\n",
            "\u{202e}",
            "\u{2066}",
            "\u{61c}",
            "\u{200b}",
            "\u{34f}",
            "\u{115f}",
            "\u{17b4}",
            "\u{2800}",
            "\u{3164}",
            "\u{e0100}",
            "\u{200d}",
            "\u{2060}",
            "\u{feff}",
            "\u{ad}",
            "\u{e0041}",
        ] {
            let text = format!("a{hostile}b");
            assert!(!is_shown(&text, 253), "{hostile:?}");
            let json = format!("\"{}\"", printable(&text));
            assert!(
                json.is_ascii() && serde_json::from_str::<String>(&json).is_ok_and(|read| read == text),
                "{json}"
            );
        }
        for plain in ["", "größe 8 GiB – ok", "東京", "שלום", "a\u{301}", "🚀"] {
            assert!(is_shown(plain, 253), "{plain}");
        }
        assert!(is_shown("東京", 2) && !is_shown("東京駅", 2));
    }

    #[test]
    fn json_stays_json() {
        let text = serde_json::to_string_pretty(&serde_json::json!({ "command": HOSTILE })).expect("JSON");
        let shown = printable_lines(&text).into_owned();
        assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{shown}");
        let read: serde_json::Value = serde_json::from_str(&shown).expect("still JSON");
        assert_eq!(read["command"], HOSTILE);
    }

    #[test]
    fn pages_show_symbols_for_control_characters() {
        assert_eq!(with_symbols("<p>\u{1b}[31m\u{0}\u{7f}\u{9b}</p>\r\n\t"), "<p>␛[31m␀␡\u{fffd}</p>\r\n\t");
        assert!(matches!(with_symbols("<p>a</p>\n"), Cow::Borrowed(_)));
    }
}
