//! Reads JSON and queries into types, with refusals that name the place, the value and the values that would be accepted.
//!
//! A text is read into a tree first, so that invalid JSON is distinguished from JSON with an invalid value. The tree is then read
//! into the type, which states its expectation: so a refusal speaks of whole numbers and lists, and not of the types of a
//! programming language. A name that occurs twice in an object is refused, whether it is that of a field or a key of a map.

mod reader;

use std::fmt;

use serde::de::{self, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use super::shortened;

/// A JSON value, or a word of a query.
#[derive(Debug, Clone, PartialEq)]
enum Node {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
    /// A value in a query, whose type is the one that it can be read as.
    Word(String),
    /// A value that a merge patch has removed.
    Removed,
}

impl Node {
    fn with_nulls_removed(self) -> Self {
        match self {
            Self::Null => Self::Removed,
            Self::List(items) => Self::List(items.into_iter().map(Self::with_nulls_removed).collect()),
            Self::Object(fields) => {
                let field = |(name, value): (String, Self)| (name, value.with_nulls_removed());
                Self::Object(fields.into_iter().map(field).collect())
            }
            other => other,
        }
    }
}

/// Reason why a text could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is no JSON.
    #[error("the body is not JSON: {0}")]
    Malformed(String),
    /// It is JSON, and a value in it is refused.
    #[error("{}", .0.detail)]
    Refused(InvalidJsonValue),
}

/// A value that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidJsonValue {
    /// The JSON pointer to it.
    pub pointer: String,
    /// Explanation of the refusal, with the values that would be accepted.
    pub detail: String,
}

/// Reads a JSON text.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, Unreadable> {
    let node: Node = serde_json::from_slice(text).map_err(|error| {
        let text = error.to_string();
        let refused = |detail: &str| {
            Unreadable::Refused(InvalidJsonValue { pointer: String::new(), detail: detail.to_owned() })
        };
        // Both are valid JSON beyond the limits of the parser.
        if text.starts_with("recursion limit exceeded") {
            return refused("lists and objects are nested more than 127 deep: nothing here needs as much");
        }
        if text.starts_with("number out of range") {
            return refused("a number is out of range: no number here is as large");
        }
        Unreadable::Malformed(text)
    })?;
    T::deserialize(node).map_err(Unreadable::Refused)
}

/// Reads a value that a merge patch has made: null is what it removed, which is left out of a map, and a default for a field.
pub fn read_merged<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, InvalidJsonValue> {
    let node: Node = serde_json::from_value(value).map_err(InvalidJsonValue::new)?;
    T::deserialize(node.with_nulls_removed())
}

/// Reads the pairs of a query into a type with a field for each name.
pub fn read_query<T: DeserializeOwned>(
    pairs: impl IntoIterator<Item = (String, String)>,
) -> Result<T, InvalidJsonValue> {
    let fields = pairs.into_iter().map(|(name, value)| (name, Node::Word(value)));
    T::deserialize(Node::Object(fields.collect()))
}

impl InvalidJsonValue {
    fn new(detail: impl fmt::Display) -> Self {
        Self { pointer: String::new(), detail: shortened(detail.to_string()) }
    }

    /// Moves the refusal into an object or a list that has the value under this name or index.
    fn inside(mut self, name: &str) -> Self {
        self.pointer.insert_str(0, &name.replace('~', "~0").replace('/', "~1"));
        self.pointer.insert(0, '/');
        self.pointer = shortened(self.pointer);
        self
    }

    fn not(shown: &str, wanted: impl fmt::Display) -> Self {
        Self::new(format_args!("{shown} is not accepted here: give {wanted}"))
    }
}

impl fmt::Display for InvalidJsonValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for InvalidJsonValue {}

impl de::Error for InvalidJsonValue {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message)
    }

    fn invalid_type(value: de::Unexpected<'_>, wanted: &dyn de::Expected) -> Self {
        Self::not(&unexpected(value), wanted)
    }

    fn invalid_value(value: de::Unexpected<'_>, wanted: &dyn de::Expected) -> Self {
        Self::not(&unexpected(value), wanted)
    }

    fn invalid_length(length: usize, wanted: &dyn de::Expected) -> Self {
        Self::new(format_args!("a list of {length} is not accepted here: give {wanted}"))
    }

    fn unknown_variant(variant: &str, accepted: &'static [&'static str]) -> Self {
        Self::not(&quoted(variant), one_of(accepted))
    }

    fn unknown_field(field: &str, fields: &'static [&'static str]) -> Self {
        let takes = if fields.is_empty() {
            "this takes no fields".to_owned()
        } else {
            format!("this takes {}", fields.join(", "))
        };
        Self::new(format_args!("unknown field {}: {takes}", cut(field)))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(format_args!("the field {field} is missing: it is required")).inside(field)
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self::new(format_args!("{field} is given twice: give it once")).inside(field)
    }
}

/// Returns the field that is missing, from the text of a refusal.
pub fn missing_field(detail: &str) -> Option<&str> {
    detail.strip_prefix("the field ")?.strip_suffix(" is missing: it is required")
}

fn one_of(accepted: &[&str]) -> String {
    let accepted: Vec<String> = accepted.iter().map(|word| format!("{word:?}")).collect();
    match accepted.as_slice() {
        [] => "nothing".to_owned(),
        [only] => only.clone(),
        [first, second] => format!("{first} or {second}"),
        [rest @ .., last] => format!("one of {} and {last}", rest.join(", ")),
    }
}

fn quoted(text: &str) -> String {
    format!("{:?}", cut(text))
}

/// Returns the beginning of a text of any length.
fn cut(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn unexpected(value: de::Unexpected<'_>) -> String {
    match value {
        de::Unexpected::Bool(value) => value.to_string(),
        de::Unexpected::Unsigned(value) => value.to_string(),
        de::Unexpected::Signed(value) => value.to_string(),
        de::Unexpected::Float(value) => value.to_string(),
        de::Unexpected::Char(value) => quoted(value.encode_utf8(&mut [0; 4])),
        de::Unexpected::Str(text) => quoted(text),
        de::Unexpected::Unit | de::Unexpected::Option => "null".to_owned(),
        de::Unexpected::Seq => "a list".to_owned(),
        de::Unexpected::Map => "an object".to_owned(),
        _ => "this value".to_owned(),
    }
}

impl<'de> de::Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tree;

        impl<'de> Visitor<'de> for Tree {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }

            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
                Ok(Node::Bool(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
                Ok(Node::Number(value.into()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
                Ok(Node::Number(value.into()))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Node, E> {
                Number::from_f64(value).map(Node::Number).ok_or_else(|| E::custom("number out of range"))
            }

            fn visit_str<E>(self, text: &str) -> Result<Node, E> {
                Ok(Node::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Node, E> {
                Ok(Node::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(Node::List(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Node, A::Error> {
                let mut object = Vec::new();
                while let Some(field) = fields.next_entry()? {
                    object.push(field);
                }
                Ok(Node::Object(object))
            }
        }

        deserializer.deserialize_any(Tree)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Colour {
        Red,
        Green,
        Blue,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Shape {
        Circle { radius: u8 },
        Line(Vec<i64>),
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Thing {
        size: u32,
        #[serde(default)]
        colour: Option<Colour>,
        #[serde(default)]
        shapes: Vec<Shape>,
        #[serde(default)]
        ratio: Option<f64>,
        #[serde(default)]
        on: bool,
        #[serde(default)]
        names: BTreeMap<u32, String>,
        #[serde(default)]
        any: serde_json::Value,
    }

    fn refusal(text: &str) -> (String, String) {
        match read::<Thing>(text.as_bytes()) {
            Err(Unreadable::Refused(InvalidJsonValue { pointer, detail })) => (pointer, detail),
            result => panic!("{text}: {result:?}"),
        }
    }

    #[test]
    fn whole_documents_are_read() {
        let text = r#"{"size": 2.0, "colour": "green", "shapes": [{"circle": {"radius": 7}}, {"line": [-1, 2]}],
            "ratio": 3, "on": true, "names": {"1": "a"}, "any": {"x": [1, null, "y"]}}"#;
        let thing: Thing = read(text.as_bytes()).expect("read");
        assert_eq!(
            (thing.size, thing.colour, thing.ratio, thing.on),
            (2, Some(Colour::Green), Some(3.0), true)
        );
        assert_eq!(thing.shapes, [Shape::Circle { radius: 7 }, Shape::Line(vec![-1, 2])]);
        assert_eq!(thing.any, serde_json::json!({"x": [1, null, "y"]}));
        let null: Thing = read(br#"{"size": 0, "colour": null}"#).expect("read");
        assert_eq!(null.colour, None);
    }

    #[test]
    fn wrong_values_are_named_with_their_place() {
        let colours = r#"is not accepted here: give one of "red", "green" and "blue""#;
        let whole = "is not accepted here: give a whole number";
        for (text, pointer, detail) in [
            (r#"{"size": 1, "colour": 3}"#, "/colour", format!("3 {colours}")),
            (r#"{"size": 1, "colour": "pink"}"#, "/colour", format!("\"pink\" {colours}")),
            (r#"{"size": 1, "colour": []}"#, "/colour", format!("a list {colours}")),
            (r#"{"size": 1, "colour": {"red": 1}}"#, "/colour", format!("an object {colours}")),
            (r#"{"size": "1"}"#, "/size", format!("\"1\" {whole}")),
            (r#"{"size": -1}"#, "/size", format!("-1 {whole} that is not negative")),
            (r#"{"size": 1.5}"#, "/size", format!("1.5 {whole}")),
            (
                r#"{"size": 4294967296}"#,
                "/size",
                "4294967296 is not accepted here: give a smaller whole number".into(),
            ),
            (r#"{"size": null}"#, "/size", format!("null {whole}")),
            (r#"{"size": 1, "on": 1}"#, "/on", "1 is not accepted here: give true or false".into()),
            (r#"{"size": 1, "ratio": "x"}"#, "/ratio", "\"x\" is not accepted here: give a number".into()),
            (r#"{"size": 1, "shapes": 5}"#, "/shapes", "5 is not accepted here: give a list".into()),
            (
                r#"{"size": 1, "shapes": [{"circle": {"radius": 300}}]}"#,
                "/shapes/0/circle/radius",
                "300 is not accepted here: give a smaller whole number".into(),
            ),
            (
                r#"{"size": 1, "shapes": [{"square": {}}]}"#,
                "/shapes/0",
                "an object is not accepted here: give \"circle\" or \"line\"".into(),
            ),
            (r#"{"size": 1, "names": {"a/b": ""}}"#, "/names/a~1b", {
                "\"a/b\" is not accepted here: give a whole number".into()
            }),
            (r#"{"size": 1, "size": 2}"#, "/size", "size is given twice: give it once".into()),
            (
                r#"{"size": 1, "names": {"1": "a", "2": "b", "1": "c"}}"#,
                "/names/1",
                "1 is given twice: give it once".into(),
            ),
            (
                r#"{"size": 1, "any": {"x": {"y": 1, "y": 1}}}"#,
                "/any/x/y",
                "y is given twice: give it once".into(),
            ),
            (r"{}", "/size", "the field size is missing: it is required".into()),
            (r"[]", "", "a list is not accepted here: give an object".into()),
            (r"7", "", "7 is not accepted here: give an object".into()),
        ] {
            assert_eq!(refusal(text), (pointer.to_owned(), detail), "{text}");
        }
        let (pointer, detail) = refusal(r#"{"size": 1, "weight": 2}"#);
        assert_eq!(pointer, "/weight");
        assert!(detail.starts_with("unknown field weight: this takes size, colour"), "{detail}");
        assert_eq!(missing_field(&refusal("{}").1), Some("size"));
    }

    #[test]
    fn text_that_is_no_json_is_malformed() {
        for text in ["", "{", "{} {}", "{'size': 1}", "{\"size\": 1,}", "\u{feff}{}", "\"\\ud800\"", "01"] {
            let read = read::<Thing>(text.as_bytes());
            assert!(matches!(read, Err(Unreadable::Malformed(_))), "{text}: {read:?}");
        }
        let deep = format!("{{\"any\": {}{}}}", "[".repeat(9999), "]".repeat(9999));
        assert!(refusal(&deep).1.contains("nested more than 127 deep"));
        assert!(refusal("{\"size\": 1e999}").1.contains("out of range"));
    }

    #[test]
    fn query_values_are_read_by_field_type() {
        let pairs = |text: &str| -> Vec<(String, String)> {
            let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let thing: Thing = read_query(pairs("size=7&colour=blue&on=true&ratio=1.5")).expect("read");
        assert_eq!(
            (thing.size, thing.colour, thing.on, thing.ratio),
            (7, Some(Colour::Blue), true, Some(1.5))
        );
        for (query, pointer) in [
            ("size=x", "/size"),
            ("size=1e2", "/size"),
            ("size=+1", "/size"),
            ("size=1&size=1", "/size"),
            ("size=1&on=yes", "/on"),
            ("size=1&colour=pink", "/colour"),
            ("size=1&pages=2", "/pages"),
            ("on=true", "/size"),
        ] {
            let refused = read_query::<Thing>(pairs(query)).expect_err(query);
            assert_eq!(refused.pointer, pointer, "{query}");
        }
    }
}
