//! Whether a schema still takes what it took, or still gives only what it gave.
//!
//! A keyword that is not known here counts as broken wherever it changes: a rule is added before it is used.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::rules::{entries, text};

/// Which way a value goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    /// To the server: whatever was taken must still be.
    Request,
    /// From the server: nothing may come that could not come before, but for further fields.
    Answer,
}

/// Two documents, and the pairs of schemas that are being compared or were.
pub(super) struct Comparison<'d> {
    pub(super) old: &'d Value,
    pub(super) new: &'d Value,
    seen: BTreeSet<(String, String, Direction)>,
}

/// What says nothing about which values are valid.
const WORDS: [&str; 9] = [
    "description",
    "title",
    "example",
    "examples",
    "deprecated",
    "$comment",
    "discriminator",
    "externalDocs",
    "xml",
];
/// What `compare_keywords` has a rule for.
const RULES: [&str; 11] = [
    "type",
    "enum",
    "const",
    "required",
    "properties",
    "additionalProperties",
    "items",
    "oneOf",
    "anyOf",
    "allOf",
    "$ref",
];
const LOWER: [&str; 5] = ["minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"];
const UPPER: [&str; 5] = ["maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"];
/// Restrictions of which it cannot be told which of two is the tighter.
const OPAQUE: [&str; 5] = ["pattern", "format", "multipleOf", "propertyNames", "uniqueItems"];

impl<'d> Comparison<'d> {
    pub(super) fn new(old: &'d Value, new: &'d Value) -> Self {
        Self { old, new, seen: BTreeSet::new() }
    }

    /// Adds a line for each break.
    pub(super) fn compare(
        &mut self,
        at: &str,
        old: &Value,
        new: &Value,
        direction: Direction,
        found: &mut Vec<String>,
    ) {
        if let (Some(before), Some(after)) = (old["$ref"].as_str(), new["$ref"].as_str())
            && !self.seen.insert((before.to_owned(), after.to_owned(), direction))
        {
            // Told where it was met first; a schema within itself ends here too.
            return;
        }
        let old = flat(self.old, old);
        let new = flat(self.new, new);
        let (before, after) = (variants(&old), variants(&new));
        if before.len() == 1 && after.len() == 1 {
            let (before, after) = (flat(self.old, &before[0]), flat(self.new, &after[0]));
            self.keywords(at, &before, &after, direction, found);
            return;
        }
        // What was taken has to be taken by some variant; what comes has to be one that came before.
        let (each, others) = match direction {
            Direction::Request => (&before, &after),
            Direction::Answer => (&after, &before),
        };
        for one in each {
            let fits = others.iter().any(|other| {
                let (before, after) = match direction {
                    Direction::Request => (one, other),
                    Direction::Answer => (other, one),
                };
                let mut breaks = Vec::new();
                // A trial has a memory of its own: what it met is not yet told.
                let mut trial = Comparison { old: self.old, new: self.new, seen: self.seen.clone() };
                trial.compare(at, before, after, direction, &mut breaks);
                breaks.is_empty()
            });
            if !fits {
                let words = match direction {
                    Direction::Request => "is not taken as it was",
                    Direction::Answer => "is new or wider",
                };
                found.push(format!("{at}: variant {} {words}", name_of(one)));
            }
        }
    }

    fn keywords(
        &mut self,
        at: &str,
        old: &Value,
        new: &Value,
        direction: Direction,
        found: &mut Vec<String>,
    ) {
        types(at, old, new, direction, found);
        values(at, old, new, direction, found);
        bounds(at, old, new, direction, found);
        let request = direction == Direction::Request;
        for keyword in OPAQUE {
            let (before, after) = (old.get(keyword), new.get(keyword));
            // Taking a restriction away widens; putting one in narrows.
            let harmless = if request { after.is_none() } else { before.is_none() };
            if before != after && !harmless {
                found.push(format!("{at}: {keyword} {} is now {}", shown(before), shown(after)));
            }
        }
        if request && old.get("default") != new.get("default") {
            let (before, after) = (shown(old.get("default")), shown(new.get("default")));
            found.push(format!("{at}: default {before} is now {after}"));
        }
        let known = |keyword: &str| {
            [&WORDS[..], &RULES[..], &LOWER[..], &UPPER[..], &OPAQUE[..], &["default"]]
                .concat()
                .contains(&keyword)
                || keyword.starts_with("x-")
        };
        let keys: BTreeSet<&str> = entries(old).chain(entries(new)).map(|(key, _)| key).collect();
        for keyword in keys.into_iter().filter(|keyword| !known(keyword)) {
            if old.get(keyword) != new.get(keyword) {
                found.push(format!("{at}: {keyword} changed, and no rule says whether that breaks"));
            }
        }
        self.fields(at, old, new, direction, found);
        if let (Some(before), Some(after)) = (old.get("items"), new.get("items")) {
            self.compare(&format!("{at}[]"), before, after, direction, found);
        }
        if request && old.get("items").is_none() && new.get("items").is_some() {
            found.push(format!("{at}: items are restricted now"));
        }
    }

    fn fields(&mut self, at: &str, old: &Value, new: &Value, direction: Direction, found: &mut Vec<String>) {
        let required = |schema: &Value| -> BTreeSet<String> {
            let names = schema["required"].as_array().cloned().unwrap_or_default();
            names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
        };
        let (before, after) = (required(old), required(new));
        match direction {
            Direction::Request => {
                for name in after.difference(&before) {
                    found.push(format!("{at}.{name} is required now"));
                }
            }
            Direction::Answer => {
                for name in before.difference(&after) {
                    found.push(format!("{at}.{name} may be missing now"));
                }
            }
        }
        for (name, before) in entries(&old["properties"]) {
            match new["properties"].get(name) {
                None => found.push(format!("{at}.{name} is gone")),
                Some(after) => {
                    self.compare(&format!("{at}.{name}"), before, after, direction, found);
                }
            }
        }
        let (before, after) = (&old["additionalProperties"], &new["additionalProperties"]);
        match (direction, before, after) {
            (Direction::Request, Value::Bool(false), _)
            | (_, Value::Null | Value::Bool(true), Value::Null | Value::Bool(true)) => {}
            (Direction::Request, _, Value::Bool(false)) => {
                found.push(format!("{at}: unknown fields are refused now"));
            }
            (_, Value::Object(_), Value::Object(_)) => {
                self.compare(&format!("{at}.*"), before, after, direction, found);
            }
            (Direction::Request, _, Value::Object(_)) => {
                found.push(format!("{at}: further fields are restricted now"));
            }
            (Direction::Answer, Value::Object(_), _) => {
                found.push(format!("{at}: further fields may be anything now"));
            }
            _ => {}
        }
    }
}

/// The schema itself: references followed, and what `allOf` says of one object put together.
fn flat<'s>(document: &Value, schema: &'s Value) -> Cow<'s, Value> {
    let Some(fields) = schema.as_object() else { return Cow::Borrowed(schema) };
    if !fields.contains_key("$ref") && !fields.contains_key("allOf") {
        return Cow::Borrowed(schema);
    }
    let mut whole = Map::new();
    let reference = fields.get("$ref").and_then(Value::as_str).map(|reference| {
        let pointer = reference.strip_prefix('#').expect("a reference into the document");
        document.pointer(pointer).unwrap_or_else(|| panic!("{reference} leads nowhere"))
    });
    let parts = fields.get("allOf").and_then(Value::as_array).into_iter().flatten();
    for part in reference.into_iter().chain(parts) {
        merge(&mut whole, &flat(document, part));
    }
    let mut own = fields.clone();
    own.remove("$ref");
    own.remove("allOf");
    merge(&mut whole, &Value::Object(own));
    Cow::Owned(Value::Object(whole))
}

fn merge(whole: &mut Map<String, Value>, part: &Value) {
    for (key, value) in entries(part) {
        match (whole.get_mut(key), value) {
            (Some(Value::Object(fields)), Value::Object(more)) if key == "properties" => {
                fields.extend(more.clone());
            }
            (Some(Value::Array(names)), Value::Array(more)) if key == "required" => {
                names.extend(more.iter().cloned());
            }
            _ => {
                whole.insert(key.to_owned(), value.clone());
            }
        }
    }
}

/// What a schema is one of; one that is no union is one of itself, and one that may be `null` of two.
fn variants(schema: &Value) -> Vec<Value> {
    for keyword in ["oneOf", "anyOf"] {
        if let Some(list) = schema.get(keyword).and_then(Value::as_array) {
            let mut all: Vec<Value> = list.iter().flat_map(variants).collect();
            all.dedup();
            return all;
        }
    }
    match schema.get("type").and_then(Value::as_array) {
        Some(types) if types.len() > 1 => types
            .iter()
            .map(|one| {
                if one == "null" {
                    return json!({"type": "null"});
                }
                let mut variant = schema.clone();
                variant["type"] = one.clone();
                variant
            })
            .collect(),
        _ => vec![schema.clone()],
    }
}

fn name_of(variant: &Value) -> String {
    if let Some(reference) = variant["$ref"].as_str() {
        return reference.rsplit('/').next().unwrap_or_default().to_owned();
    }
    let tag = entries(&variant["properties"]).find_map(|(key, field)| {
        let only = field["enum"].as_array().filter(|values| values.len() == 1)?;
        Some(format!("{key} = {}", only[0]))
    });
    tag.unwrap_or_else(|| match &variant["type"] {
        Value::Null => variant.to_string(),
        name => text(name).to_owned(),
    })
}

/// The types of a schema; one that names none takes all.
fn types(at: &str, old: &Value, new: &Value, direction: Direction, found: &mut Vec<String>) {
    let all = ["null", "boolean", "object", "array", "number", "integer", "string"];
    let of = |schema: &Value| -> BTreeSet<String> {
        let named: Vec<&str> = match &schema["type"] {
            Value::String(name) => vec![name],
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            _ => all.to_vec(),
        };
        let whole = named.contains(&"number").then_some("integer");
        named.into_iter().chain(whole).map(str::to_owned).collect()
    };
    let (before, after) = (of(old), of(new));
    let broken = match direction {
        Direction::Request => !before.is_subset(&after),
        Direction::Answer => !after.is_subset(&before),
    };
    if broken {
        found.push(format!("{at}: type {} is now {}", shown(old.get("type")), shown(new.get("type"))));
    }
}

fn values(at: &str, old: &Value, new: &Value, direction: Direction, found: &mut Vec<String>) {
    let of = |schema: &Value| -> Option<Vec<Value>> {
        if let Some(one) = schema.get("const") {
            return Some(vec![one.clone()]);
        }
        schema.get("enum").and_then(Value::as_array).cloned()
    };
    let within = |few: &[Value], many: &[Value]| few.iter().all(|value| many.contains(value));
    let broken = match (direction, of(old), of(new)) {
        (Direction::Request, Some(before), Some(after)) => !within(&before, &after),
        (Direction::Answer, Some(before), Some(after)) => !within(&after, &before),
        (Direction::Request, None, Some(_)) | (Direction::Answer, Some(_), None) => true,
        _ => false,
    };
    if broken {
        found.push(format!("{at}: enum {} is now {}", shown(old.get("enum")), shown(new.get("enum"))));
    }
}

fn bounds(at: &str, old: &Value, new: &Value, direction: Direction, found: &mut Vec<String>) {
    for (keywords, sign) in [(LOWER, 1.0), (UPPER, -1.0)] {
        for keyword in keywords {
            let of = |schema: &Value| {
                schema.get(keyword).and_then(Value::as_f64).map_or(f64::NEG_INFINITY, |bound| bound * sign)
            };
            // The greater, the tighter.
            let (before, after) = (of(old), of(new));
            let broken = match direction {
                Direction::Request => after > before,
                Direction::Answer => after < before,
            };
            if broken {
                let (before, after) = (shown(old.get(keyword)), shown(new.get(keyword)));
                found.push(format!("{at}: {keyword} {before} is now {after}"));
            }
        }
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "(none)".to_owned(), ToString::to_string)
}
