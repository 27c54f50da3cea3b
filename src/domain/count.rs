//! Numbers with the noun that they count, as people write them.

/// Formats a number with its noun, in the singular or the plural: `1 chunk`, `2 chunks`, `3 processes`.
pub fn counted(count: impl TryInto<u64>, noun: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    if count == 1 { format!("1 {noun}") } else { format!("{count} {}", plural(noun)) }
}

/// Lists names for a sentence: `a`, `a and b`, `a, b and c`.
pub fn enumerated(names: &[impl AsRef<str>]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match names.as_slice() {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Joins items, each in words, with a separator.
pub fn joined(items: impl IntoIterator<Item = impl std::fmt::Display>, separator: &str) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(separator)
}

/// Most items that a text names.
const NAMED: usize = 4;

/// Joins the first few of some items, each in words, and adds the number of further ones; `more` are only counted.
pub fn first_few(items: impl ExactSizeIterator<Item = String>, more: usize, separator: &str) -> String {
    let more = items.len().saturating_sub(NAMED) + more;
    let mut named: Vec<String> = items.take(NAMED).collect();
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    named.join(separator)
}

/// Returns the plural of a regular English noun.
fn plural(noun: &str) -> String {
    let sibilant = ["s", "x", "ch", "sh"].iter().any(|end| noun.ends_with(end));
    match noun.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{stem}ies"),
        _ if sibilant => format!("{noun}es"),
        _ => format!("{noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_enumerated() {
        let words = ["", "a", "a and b", "a, b and c"];
        for (count, words) in words.into_iter().enumerate() {
            assert_eq!(enumerated(&["a", "b", "c"][..count]), words);
        }
    }

    #[test]
    fn nouns_agree_with_their_numbers() {
        let cases: [(u64, &str, &str); 7] = [
            (0, "chunk", "0 chunks"),
            (1, "chunk", "1 chunk"),
            (2, "process", "2 processes"),
            (1, "process", "1 process"),
            (3, "day", "3 days"),
            (2, "copy", "2 copies"),
            (2, "GPU", "2 GPUs"),
        ];
        for (count, noun, words) in cases {
            assert_eq!(counted(count, noun), words);
        }
    }
}
