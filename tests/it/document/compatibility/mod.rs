//! Changes of the API that break a client of the released one: an answer lacks what it had, or a request that was taken is refused.
//!
//! Additions break nothing, nor does a new value in an enumeration of answers, whose readers keep unknown words. A schema with a name
//! is compared once for requests and once for answers, and its changes are named after it.

mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value};

use super::{METHODS, expanded};

/// Compares two documents, and returns a line for each change that breaks a client of the first.
pub(super) fn breaking_changes(released: &Value, current: &Value) -> BTreeSet<String> {
    let (released, current) = (&expanded(released.clone()), &expanded(current.clone()));
    let mut comparison =
        Comparison { released, current, compared: BTreeSet::new(), changes: BTreeSet::new() };
    for (path, item) in entries(&released["paths"]) {
        for method in METHODS {
            let Some(before) = item.get(method) else { continue };
            let name = format!("{} {path}", method.to_uppercase());
            match current["paths"][path].get(method) {
                Some(after) => comparison.operation(&name, before, after),
                None => comparison.change(&name, "removed"),
            }
        }
    }
    comparison.changes
}

/// Compares changes with the list of accepted ones, and returns a line for each change that is not listed and each row that is wrong.
pub(super) fn objections(changes: &BTreeSet<String>, accepted: &BTreeMap<String, String>) -> Vec<String> {
    let unlisted = changes.iter().filter(|change| !accepted.contains_key(*change));
    let stale = accepted.keys().filter(|row| !changes.contains(*row));
    let unexplained = accepted.iter().filter(|(_, reason)| reason.trim().is_empty());
    unlisted
        .map(|change| format!("breaks clients: {change:?}"))
        .chain(stale.map(|row| format!("is accepted and no change: {row:?}")))
        .chain(unexplained.map(|(row, _)| format!("is accepted without a reason: {row:?}")))
        .collect()
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Direction {
    Request,
    Answer,
}

impl fmt::Display for Direction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Request => "request",
            Self::Answer => "answer",
        })
    }
}

struct Comparison<'a> {
    released: &'a Value,
    current: &'a Value,
    /// Pairs of alternatives that were compared: a schema may hold itself.
    compared: BTreeSet<[String; 2]>,
    changes: BTreeSet<String>,
}

impl Comparison<'_> {
    fn change(&mut self, at: &str, change: impl fmt::Display) {
        self.changes.insert(format!("{at}: {change}"));
    }

    fn operation(&mut self, name: &str, before: &Value, after: &Value) {
        if before["operationId"] != after["operationId"] {
            // Clients that were generated call the operation by it.
            self.change(name, format_args!("operationId is {} now", after["operationId"]));
        }
        let (old, new) = (parameters(before), parameters(after));
        for (parameter, before) in &old {
            let at = format!("{name}: {parameter}");
            let Some(after) = new.get(parameter) else {
                self.change(&at, "removed");
                continue;
            };
            self.schema(Direction::Request, &at, &before["schema"], &after["schema"]);
        }
        for (parameter, after) in &new {
            let was_required = old.get(parameter).is_some_and(|before| is_required(before));
            if is_required(after) && !was_required {
                self.change(&format!("{name}: {parameter}"), "required now");
            }
        }
        let (old, new) = (&before["requestBody"], &after["requestBody"]);
        if is_required(new) && !is_required(old) {
            self.change(&format!("{name} request"), "required now");
        }
        self.contents(Direction::Request, &format!("{name} request"), &old["content"], &new["content"]);
        for (status, before) in entries(&before["responses"]) {
            let at = format!("{name} answer {status}");
            match after["responses"].get(status) {
                Some(after) => {
                    for (header, _) in entries(&before["headers"]) {
                        if after["headers"].get(header).is_none() {
                            self.change(&at, format_args!("header {header} removed"));
                        }
                    }
                    self.contents(Direction::Answer, &at, &before["content"], &after["content"]);
                }
                // A problem that does not occur any more is missed by nobody.
                None if status.starts_with(['4', '5']) => {}
                None => self.change(&at, "removed"),
            }
        }
    }

    fn contents(&mut self, direction: Direction, at: &str, old: &Value, new: &Value) {
        for (media_type, before) in entries(old) {
            let at = format!("{at} {media_type}");
            match new.get(media_type) {
                Some(after) => self.schema(direction, &at, &before["schema"], &after["schema"]),
                None => self.change(&at, "removed"),
            }
        }
    }

    fn schema(&mut self, direction: Direction, at: &str, old: &Value, new: &Value) {
        let old = alternatives(self.released, direction, at, old);
        let new = alternatives(self.current, direction, at, new);
        let takes = |all: &[Alternative], kind: &str| {
            all.iter().any(|one| {
                one.kind == kind || one.kind == ANYTHING || (kind == "integer" && one.kind == "number")
            })
        };
        if direction == Direction::Answer {
            for after in new.iter().filter(|after| !takes(&old, &after.kind)) {
                self.change(at, format_args!("may be {} now", after.kind));
            }
        }
        for before in &old {
            match before.counterpart(&old, &new) {
                Some(after) => self.alternative(direction, before, after),
                None if direction == Direction::Answer => {}
                None if !takes(&new, &before.kind) => {
                    self.change(at, format_args!("{} is refused now", before.kind));
                }
                // A number where there was an integer.
                None if before.tag.is_empty() => {}
                None => self.change(at, format_args!("{} is refused now", before.tag)),
            }
        }
    }

    fn alternative(&mut self, direction: Direction, before: &Alternative, after: &Alternative) {
        if !self.compared.insert([before, after].map(|one| format!("{} {} {}", one.at, one.kind, one.tag))) {
            return;
        }
        let (at, old, new) = (&before.at, &before.schema, &after.schema);
        if direction == Direction::Request {
            self.narrowed(at, old, new);
            for field in required(new).difference(&required(old)) {
                self.change(&format!("{at}.{field}"), "required now");
            }
        } else {
            for field in required(old).difference(&required(new)) {
                if new["properties"].get(field).is_some() {
                    self.change(&format!("{at}.{field}"), "may be left out now");
                }
            }
        }
        let (old_format, new_format) = (old.get("format"), new.get("format"));
        let bound = if direction == Direction::Request { new_format } else { old_format };
        if old_format != new_format && bound.is_some() {
            self.change(at, "format changed");
        }
        for (field, before) in entries(&old["properties"]) {
            let at = format!("{at}.{field}");
            match new["properties"].get(field) {
                Some(after) => self.schema(direction, &at, before, after),
                None => self.change(&at, "removed"),
            }
        }
        for (keyword, suffix) in [("items", "[]"), ("additionalProperties", ".*"), ("propertyNames", " name")]
        {
            if old[keyword].is_object() && new[keyword].is_object() {
                self.schema(direction, &format!("{at}{suffix}"), &old[keyword], &new[keyword]);
            }
        }
    }

    /// Reports values that a request may no longer have.
    fn narrowed(&mut self, at: &str, old: &Value, new: &Value) {
        if let Some(now) = values(new) {
            match values(old) {
                Some(before) => {
                    for value in before.iter().filter(|value| !now.contains(value)) {
                        self.change(at, format_args!("{value} is refused now"));
                    }
                }
                None => self.change(at, "takes only some values now"),
            }
        }
        for (keyword, sign) in BOUNDS {
            let bound = |schema: &Value| schema[keyword].as_f64().map(|bound| bound * sign);
            if bound(new).is_some_and(|now| bound(old).is_none_or(|before| before < now)) {
                self.change(at, format_args!("{keyword} is {} now", new[keyword]));
            }
        }
        for keyword in ["pattern", "multipleOf", "uniqueItems"] {
            if new.get(keyword).is_some() && new[keyword] != old[keyword] {
                self.change(at, format_args!("{keyword} changed"));
            }
        }
        if new["additionalProperties"] == false && old["additionalProperties"] != false {
            self.change(at, "unknown fields are refused now");
        }
    }
}

/// Bounds of values; 1 where a larger one refuses more, and -1 where a smaller one does.
const BOUNDS: [(&str, f64); 8] = [
    ("minimum", 1.0),
    ("minLength", 1.0),
    ("minItems", 1.0),
    ("minProperties", 1.0),
    ("maximum", -1.0),
    ("maxLength", -1.0),
    ("maxItems", -1.0),
    ("maxProperties", -1.0),
];

/// The type of a schema that states none.
const ANYTHING: &str = "anything";

/// One of the forms that a value may have, of one type and without references.
struct Alternative {
    /// The path to it, from the schema with a name that holds it.
    at: String,
    kind: String,
    /// The name of the variant, by its field with one possible value or by its schema; empty where it has neither.
    tag: String,
    schema: Value,
}

impl Alternative {
    /// Finds the alternative that took this one's place.
    fn counterpart<'a>(&self, old: &[Self], new: &'a [Self]) -> Option<&'a Self> {
        let of_kind = |all: &'a [Self]| all.iter().filter(|one| one.kind == self.kind);
        let same = of_kind(new).find(|after| after.tag == self.tag);
        let is_only = old.iter().filter(|before| before.kind == self.kind).count() == 1;
        same.or_else(|| of_kind(new).next().filter(|_| is_only && of_kind(new).count() == 1))
    }
}

fn alternatives(document: &Value, direction: Direction, at: &str, schema: &Value) -> Vec<Alternative> {
    if let Some(name) = name(schema) {
        let mut inside =
            alternatives(document, direction, &format!("{direction} {name}"), target(document, schema));
        for one in inside.iter_mut().filter(|one| one.tag.is_empty()) {
            name.clone_into(&mut one.tag);
        }
        return inside;
    }
    if let Some(variants) = schema["oneOf"].as_array().or_else(|| schema["anyOf"].as_array()) {
        return variants.iter().flat_map(|one| alternatives(document, direction, at, one)).collect();
    }
    let schema = merged(document, schema);
    let kinds = match &schema["type"] {
        Value::String(kind) => vec![kind.clone()],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => vec![ANYTHING.to_owned()],
    };
    let tag = entries(&schema["properties"])
        .find_map(|(field, schema)| Some((field, values(schema).filter(|all| all.len() == 1)?)))
        .map(|(field, value)| format!("{field}={}", value[0]))
        .unwrap_or_default();
    let alternative =
        |kind| Alternative { at: at.to_owned(), kind, tag: tag.clone(), schema: schema.clone() };
    kinds.into_iter().map(alternative).collect()
}

/// Merges the fields of the parts that a schema consists of.
fn merged(document: &Value, schema: &Value) -> Value {
    let Some(parts) = schema["allOf"].as_array() else { return schema.clone() };
    let (mut properties, mut needed) = (Map::new(), BTreeSet::new());
    for part in parts {
        let part = merged(document, target(document, part));
        properties
            .extend(entries(&part["properties"]).map(|(field, schema)| (field.clone(), schema.clone())));
        needed.append(&mut required(&part));
    }
    serde_json::json!({"type": "object", "properties": properties, "required": needed})
}

fn target<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let Some(reference) = schema["$ref"].as_str() else { return schema };
    document.pointer(&reference[1..]).unwrap_or_else(|| panic!("{reference} leads nowhere"))
}

fn name(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

/// The possible values, where they are listed.
fn values(schema: &Value) -> Option<Vec<&Value>> {
    let only = schema.get("const").map(|value| vec![value]);
    only.or_else(|| Some(schema["enum"].as_array()?.iter().collect()))
}

fn required(schema: &Value) -> BTreeSet<String> {
    let fields = schema["required"].as_array().into_iter().flatten();
    fields.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn is_required(part: &Value) -> bool {
    part["required"] == true
}

fn parameters(operation: &Value) -> BTreeMap<String, &Value> {
    let words = |parameter: &Value, field: &str| parameter[field].as_str().unwrap_or_default().to_owned();
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    parameters.map(|one| (format!("{} parameter {}", words(one, "in"), words(one, "name")), one)).collect()
}

fn entries(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten()
}
