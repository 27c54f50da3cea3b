//! Describes errors in a YAML text in the words of this program instead of the parser's.

use std::borrow::Cow;

use serde_saphyr::{Error, MessageFormatter, UserMessageFormatter};

/// Renders a refusal: the sentence with its place, and the lines around it with a caret. `beginning` is the advice for an empty text.
pub(super) fn rendered(error: &Error, beginning: &str, text: &str) -> String {
    let says_something =
        text.lines().map(str::trim).any(|line| !line.is_empty() && !line.starts_with('#') && line != "---");
    if !says_something {
        return format!("it is empty: {beginning}");
    }
    let sentence = Words.format_message(error.without_snippet());
    let rendered = error.render_with_formatter(&Words);
    // The parser writes the sentence above the lines and once more beside the caret.
    let lines = rendered.lines().map(|line| match line.strip_suffix(sentence.as_ref()) {
        Some(marked) if marked.trim_end().ends_with('^') => marked.trim_end(),
        _ => line,
    });
    let lines = lines.collect::<Vec<_>>().join("\n");
    // Which stands in a sentence that says already that the text cannot be read.
    lines.strip_prefix("error: ").unwrap_or(&lines).to_owned()
}

struct Words;

impl MessageFormatter for Words {
    fn format_message<'a>(&self, error: &'a Error) -> Cow<'a, str> {
        let words = match error {
            Error::DuplicateMappingKey { key: Some(key), .. } => {
                format!("{key} is given twice: give it once")
            }
            Error::DuplicateMappingKey { key: None, .. } => "a name is given twice: give it once".to_owned(),
            Error::Eof { .. } => "the text ends here, and something is missing".to_owned(),
            Error::MultipleDocuments { .. } => {
                "a second document begins here: give one document, without `---` in it".to_owned()
            }
            Error::Unexpected { expected, .. } if expected.contains("mapping") => {
                "fields are expected here, as in `name: value`".to_owned()
            }
            Error::Unexpected { expected, .. } if expected.contains("sequence") => {
                "a list is expected here, as in `[a, b]`".to_owned()
            }
            Error::InvalidScalar { ty, .. } => match *ty {
                "boolean" => "true or false is expected here".to_owned(),
                unsigned if unsigned.starts_with('u') => "a whole number from 0 is expected here".to_owned(),
                signed if signed.starts_with('i') => "a whole number is expected here".to_owned(),
                _ => "a number is expected here".to_owned(),
            },
            Error::NullIntoString { .. } => "a text is expected here, and there is none".to_owned(),
            Error::SerdeUnknownField { field, expected, .. } if expected.is_empty() => {
                format!("unknown field {field}: this takes no fields")
            }
            Error::SerdeUnknownField { field, expected, .. } => {
                format!("unknown field {field}: this takes {}", expected.join(", "))
            }
            Error::SerdeMissingField { field, .. } => {
                format!("the field {field} is missing: it is required")
            }
            Error::SerdeUnknownVariant { variant, expected, .. } => {
                format!("{variant:?} is not accepted here: give one of {}", expected.join(", "))
            }
            Error::SerdeInvalidType { unexpected, expected, .. }
            | Error::SerdeInvalidValue { unexpected, expected, .. } => {
                format!("{unexpected} is not accepted here: give {expected}")
            }
            error => return UserMessageFormatter.format_message(error),
        };
        Cow::Owned(words)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::format::SOURCE;
    use super::*;

    fn refusal(text: &str) -> String {
        let read = serde_saphyr::from_str::<BTreeMap<String, BTreeMap<String, u32>>>(text);
        rendered(&read.expect_err("refused"), "begin it", text)
    }

    #[test]
    fn repeated_name_is_said_once() {
        let message = refusal("a:\n  x: 1\n  x: 2\n");
        assert_eq!(message.matches("x is given twice: give it once").count(), 1, "{message}");
        assert!(message.contains('^') && !message.contains("Options"), "{message}");
    }

    #[test]
    fn place_is_shown_with_one_error() {
        let message = refusal("a:\n  x: nobody\n");
        assert!(message.starts_with("line 2 column 6: a whole number from 0 is"), "{message}");
        assert!(message.contains(&format!("--> {SOURCE}:2:6")) && !message.contains("error:"), "{message}");
    }

    #[test]
    fn parsers_words_are_not_shown() {
        assert!(refusal("a: [1]\n").contains("fields are expected here"), "{}", refusal("a: [1]\n"));
        for empty in ["", "\n", "# nothing yet\n---\n"] {
            let read = serde_saphyr::from_str::<u32>(empty).expect_err("refused");
            assert_eq!(rendered(&read, "begin it", empty), "it is empty: begin it");
        }
    }
}
