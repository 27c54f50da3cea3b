//! The document as the content of a page, which the server sends at `/docs`: text, so that it needs no script and can be searched and printed.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::METHODS;

/// The content of the page of a document.
pub fn page(document: &Value) -> String {
    let text = |pointer: &str| escape(document.pointer(pointer).and_then(Value::as_str).unwrap_or_default());
    let by_tag: Vec<(&Value, Vec<Operation>)> =
        items(&document["tags"]).map(|tag| (tag, operations(document, &tag["name"]))).collect();
    let (mut contents, mut main) = (String::new(), String::new());
    for (tag, operations) in by_tag.iter().filter(|(_, operations)| !operations.is_empty()) {
        let name = tag["name"].as_str().unwrap_or_default();
        let _ = write!(contents, "<h2><a href=\"#tag-{name}\">{name}</a></h2>\n<ul>\n");
        let what = words(&tag["description"]);
        let _ = write!(
            main,
            "<section aria-labelledby=\"tag-{name}\">\n<h2 id=\"tag-{name}\">{name}</h2>\n{what}"
        );
        for one in operations {
            let _ = writeln!(contents, "<li><a href=\"#{}\">{}</a></li>", one.id(), one.summary());
            main.push_str(&one.section(document));
        }
        contents.push_str("</ul>\n");
        main.push_str("</section>\n");
    }
    let answers: Vec<String> = entries(&document["components"]["responses"])
        .map(|(name, answer)| {
            let types = items(&answer["x-problem-types"]).filter_map(Value::as_str);
            let types: Vec<String> = types.map(|one| format!("<code>{}</code>", escape(one))).collect();
            let what = words(&answer["description"]);
            format!("<h3 id=\"answer-{name}\">{name}</h3>\n{what}<p>{}</p>\n", types.join(", "))
        })
        .collect();
    let schemas: Vec<String> = entries(&document["components"]["schemas"])
        .map(|(name, schema)| {
            let what = words(&schema["description"]);
            format!("<h3 id=\"schema-{name}\">{name}</h3>\n{what}{}", definition(schema))
        })
        .collect();
    let (answers, schemas) = (answers.concat(), schemas.concat());
    let (title, version, about) = (text("/info/title"), text("/info/version"), text("/info/description"));
    format!(
        "<header>
<h1>{title} API <span class=\"quiet\">{version}</span></h1>
<p>{about}</p>
<p><a href=\"/openapi.json\">OpenAPI 3.1</a> · <a href=\"/openapi-3.0.json\">OpenAPI 3.0</a></p>
</header>
<nav aria-label=\"Contents\">
{contents}<h2><a href=\"#answers\">Errors</a></h2>
<h2><a href=\"#schemas\">Schemas</a></h2>
</nav>
<div>
{main}<section aria-labelledby=\"answers\">
<h2 id=\"answers\">Errors</h2>
<p>Each is a problem document (RFC 9457) of one of the types below it.</p>
{answers}</section>
<section aria-labelledby=\"schemas\">
<h2 id=\"schemas\">Schemas</h2>
{schemas}</section>
</div>
"
    )
}

struct Operation<'a> {
    method: &'static str,
    path: &'a str,
    fields: &'a Value,
}

fn operations<'a>(document: &'a Value, tag: &Value) -> Vec<Operation<'a>> {
    let of_path = |(path, item): (&'a String, &'a Value)| {
        METHODS
            .into_iter()
            .filter_map(move |method| Some(Operation { method, path, fields: item.get(method)? }))
    };
    let all = entries(&document["paths"]).flat_map(of_path);
    all.filter(|one| items(&one.fields["tags"]).next() == Some(tag)).collect()
}

impl Operation<'_> {
    fn id(&self) -> &str {
        self.fields["operationId"].as_str().unwrap_or_default()
    }

    fn summary(&self) -> String {
        inline(self.fields["summary"].as_str().unwrap_or_default())
    }

    fn section(&self, document: &Value) -> String {
        let (id, method, path) = (self.id(), self.method.to_uppercase(), escape(self.path));
        let mut html = format!(
            "<article aria-labelledby=\"{id}\">\n<h3 id=\"{id}\">{}</h3>\n<p><code class=\"request\">{method} {path}</code></p>\n{}",
            self.summary(),
            words(&self.fields["description"])
        );
        if let Some(right) = self.fields["x-right"].as_str() {
            let _ = writeln!(html, "<p>Right: {right}.</p>");
        }
        let parameters: Vec<&Value> =
            items(&self.fields["parameters"]).map(|one| resolved(document, one)).collect();
        if !parameters.is_empty() {
            let rows = parameters.into_iter().map(|one| {
                let required = one["required"].as_bool().unwrap_or_default();
                let place = one["in"].as_str().unwrap_or_default();
                [
                    named(&one["name"], required),
                    place.to_owned(),
                    kind(&one["schema"]),
                    words(&one["description"]),
                ]
            });
            html.push_str(&table("Parameters", ["Parameter", "In", "Type", "Description"], rows));
        }
        for (media_type, content) in entries(&self.fields["requestBody"]["content"]) {
            let _ = writeln!(html, "<p>Body (<code>{media_type}</code>): {}.</p>", kind(&content["schema"]));
        }
        let (good, bad): (Vec<_>, Vec<_>) =
            entries(&self.fields["responses"]).partition(|(status, _)| status.as_str() < "400");
        let rows = good.into_iter().map(|(status, answer)| {
            let answer = resolved(document, answer);
            let bodies: Vec<String> = entries(&answer["content"])
                .map(|(media_type, content)| {
                    format!("<code>{media_type}</code>: {}", kind(&content["schema"]))
                })
                .collect();
            [status.clone(), bodies.join("<br>"), words(&answer["description"])]
        });
        html.push_str(&table("Answers", ["Status", "Body", "Description"], rows));
        let errors: Vec<String> = bad
            .into_iter()
            .map(|(status, answer)| match referred(answer) {
                Some(name) => format!("<a href=\"#answer-{name}\">{status}</a>"),
                None => format!("{status} ({})", inline(answer["description"].as_str().unwrap_or_default())),
            })
            .collect();
        if !errors.is_empty() {
            let _ = writeln!(html, "<p>Errors: {}.</p>", errors.join(", "));
        }
        html + "</article>\n"
    }
}

/// The fields of a schema, its values or its variants.
fn definition(schema: &Value) -> String {
    let parts: Vec<&Value> = items(&schema["allOf"]).chain([schema]).collect();
    let of_own = |part: &Value| -> Vec<[String; 3]> {
        let required: Vec<&Value> = items(&part["required"]).collect();
        entries(&part["properties"])
            .map(|(name, field)| {
                let name = Value::String(name.clone());
                let about = [&field["description"], &field["oneOf"][0]["description"]];
                let about = about.into_iter().find(|one| one.is_string()).unwrap_or(&Value::Null);
                [named(&name, required.contains(&&name)), kind(field), words(about)]
            })
            .collect()
    };
    let rows: Vec<[String; 3]> = parts.iter().flat_map(|part| of_own(part)).collect();
    let others: Vec<String> =
        items(&schema["allOf"]).filter(|part| part.get("properties").is_none()).map(kind).collect();
    let others =
        if others.is_empty() { String::new() } else { format!("<p>All of {}.</p>\n", others.join(", ")) };
    match rows.is_empty() {
        true if schema["type"] == "object"
            && schema.get("additionalProperties").is_none_or(|more| *more == false) =>
        {
            format!("{others}<p>An object without fields.</p>\n")
        }
        true => format!("{others}<p>{}</p>\n", kind(schema)),
        false => others + &table("Fields", ["Field", "Type", "Description"], rows.into_iter()),
    }
}

/// The type of a value in words.
fn kind(schema: &Value) -> String {
    if let Some(name) = referred(schema) {
        return format!("<a href=\"#schema-{name}\">{name}</a>");
    }
    if let Some(constant) = schema.get("const") {
        return format!("<code>{}</code>", escape(&constant.to_string()));
    }
    let all = |key: &str| -> Vec<String> { items(&schema[key]).map(kind).collect() };
    if schema.get("oneOf").is_some() {
        return all("oneOf").join(" or ");
    }
    if schema.get("allOf").is_some() {
        return all("allOf").join(" with ");
    }
    if schema.get("enum").is_some() {
        let values = items(&schema["enum"]).map(|one| format!("<code>{}</code>", escape(&one.to_string())));
        return values.collect::<Vec<_>>().join(" or ");
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(only) => vec![only],
        several => items(several).filter_map(Value::as_str).collect(),
    };
    let types: Vec<String> = types
        .into_iter()
        .map(|name| match name {
            "array" => format!("list of {}", kind(&schema["items"])),
            "object" if schema["additionalProperties"].is_object() => {
                format!("map to {}", kind(&schema["additionalProperties"]))
            }
            "string" if schema["format"].is_string() => schema["format"].as_str().unwrap_or(name).to_owned(),
            _ => name.to_owned() + &bounds(schema),
        })
        .collect();
    if types.is_empty() { "anything".to_owned() } else { types.join(" or ") }
}

fn bounds(schema: &Value) -> String {
    let bound = |key: &str| schema.get(key).map(Value::to_string);
    match (bound("minimum").filter(|least| least != "0"), bound("maximum")) {
        (Some(least), Some(most)) => format!(", {least} to {most}"),
        (None, Some(most)) => format!(", at most {most}"),
        (Some(least), None) => format!(", at least {least}"),
        (None, None) => String::new(),
    }
}

fn table<const N: usize>(name: &str, columns: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let cells = |cells: &[String; N]| {
        let [first, rest @ ..] = cells.as_slice() else { return String::new() };
        let labelled = |(cell, column): (&String, &&str)| format!("<td data-label=\"{column}\">{cell}</td>");
        let rest: Vec<String> = rest.iter().zip(&columns[1..]).map(labelled).collect();
        format!("<tr><th scope=\"row\">{first}</th>{}</tr>\n", rest.concat())
    };
    let head: String = columns.map(|column| format!("<th scope=\"col\">{column}</th>")).concat();
    let rows = rows.map(|row| cells(&row)).collect::<Vec<_>>().concat();
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"{name}\">\n<table>\n<thead><tr>{head}</tr></thead>\n\
         <tbody>\n{rows}</tbody>\n</table>\n</div>\n"
    )
}

fn named(name: &Value, required: bool) -> String {
    let name = escape(name.as_str().unwrap_or_default());
    if required { format!("<code>{name}</code> (required)") } else { format!("<code>{name}</code>") }
}

/// The paragraphs of a description.
fn words(description: &Value) -> String {
    let text = description.as_str().unwrap_or_default();
    let paragraphs = text.split("\n\n").filter(|one| !one.is_empty());
    paragraphs.map(|one| format!("<p>{}</p>\n", inline(one))).collect::<Vec<_>>().concat()
}

/// A text whose code is marked by backticks.
fn inline(text: &str) -> String {
    let mark = |(number, part): (usize, &str)| match number % 2 {
        0 => escape(part),
        _ => format!("<code>{}</code>", escape(part)),
    };
    text.split('`').enumerate().map(mark).collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// The name of the component that a value refers to.
fn referred(value: &Value) -> Option<&str> {
    value["$ref"].as_str()?.rsplit('/').next()
}

fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let pointer = value["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    pointer.and_then(|pointer| document.pointer(pointer)).unwrap_or(value)
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_are_named_with_their_bounds() {
        for (schema, expected) in [
            (
                json!({"$ref": "#/components/schemas/TenantName"}),
                "<a href=\"#schema-TenantName\">TenantName</a>",
            ),
            (json!({"type": ["string", "null"]}), "string or null"),
            (json!({"type": "integer", "minimum": 1, "maximum": 60}), "integer, 1 to 60"),
            (json!({"type": "integer", "minimum": 0}), "integer"),
            (json!({"type": "array", "items": {"type": "string", "format": "uuid"}}), "list of uuid"),
            (json!({"type": "object", "additionalProperties": {"type": "boolean"}}), "map to boolean"),
            (
                json!({"oneOf": [{"const": "<a>"}, {"type": "null"}]}),
                "<code>&quot;&lt;a>&quot;</code> or null",
            ),
            (json!({}), "anything"),
        ] {
            assert_eq!(kind(&schema), expected);
        }
    }

    #[test]
    fn text_of_a_description_is_no_markup() {
        let text = json!("Give `<uuid>/<id>`, not <b>.\n\nThen go on.");
        let html = words(&text);
        assert_eq!(html, "<p>Give <code>&lt;uuid>/&lt;id></code>, not &lt;b>.</p>\n<p>Then go on.</p>\n");
    }
}
