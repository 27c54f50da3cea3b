//! Names for the variants of unions, so that generated clients have a type for each and need not guess.

use serde_json::{Map, Value, json};

/// Gives each variant of a tagged union its own schema, and adds the mapping of words to schemas.
pub(super) fn name_variants(schemas: &mut Map<String, Value>) {
    let names: Vec<String> = schemas.keys().cloned().collect();
    // Those first that others are made of.
    for extended in [false, true] {
        for name in &names {
            let schema = &schemas[name];
            if schema.get("allOf").is_some() != extended {
                continue;
            }
            let Some(variants) = variants(schemas, schema) else { continue };
            let Some(words) = words(&variants) else { continue };
            let description = schema["description"].clone();
            let closed = words.tag.is_none();
            let (mut refs, mut mapping) = (Vec::new(), Map::new());
            for (word, mut variant) in words.words.iter().zip(variants) {
                if closed {
                    // The one field distinguishes it from the others, if there can be no second one.
                    variant["additionalProperties"] = json!(false);
                }
                let own = format!("{name}{}", pascal(word));
                let reference = format!("#/components/schemas/{own}");
                refs.push(json!({"$ref": reference}));
                mapping.insert(word.clone(), json!(reference));
                schemas.insert(own, variant);
            }
            let mut union = json!({"oneOf": refs, "description": description});
            if let Some(tag) = words.tag {
                union["discriminator"] = json!({"propertyName": tag, "mapping": mapping});
            }
            schemas.insert(name.clone(), union);
        }
    }
}

/// The variants of a union of objects, each as one object: of a plain one, and of one that adds fields to another.
fn variants(schemas: &Map<String, Value>, schema: &Value) -> Option<Vec<Value>> {
    if let Some(list) = schema.get("oneOf").and_then(Value::as_array) {
        let whole: Vec<Value> = list.iter().map(|variant| whole(schemas, variant)).collect();
        let objects = whole.iter().all(|variant| variant.get("properties").is_some());
        return (objects && whole.len() > 1).then_some(whole);
    }
    let parts = schema.get("allOf").and_then(Value::as_array)?;
    let union = parts.iter().find(|part| followed(schemas, part).get("oneOf").is_some())?;
    let base = variants(schemas, followed(schemas, union))?;
    let rest: Vec<Value> =
        parts.iter().filter(|part| *part != union).map(|part| whole(schemas, part)).collect();
    let extended = base.into_iter().map(|mut variant| {
        for part in &rest {
            extend(&mut variant, part);
        }
        variant
    });
    Some(extended.collect())
}

fn followed<'s>(schemas: &'s Map<String, Value>, schema: &'s Value) -> &'s Value {
    let name = schema.get("$ref").and_then(Value::as_str).and_then(|reference| reference.rsplit('/').next());
    name.and_then(|name| schemas.get(name)).unwrap_or(schema)
}

/// A schema with what it is put together of in one object.
fn whole(schemas: &Map<String, Value>, schema: &Value) -> Value {
    let schema = followed(schemas, schema);
    let Some(parts) = schema.get("allOf").and_then(Value::as_array) else { return schema.clone() };
    let mut object = json!({"type": "object"});
    for part in parts {
        extend(&mut object, &whole(schemas, part));
    }
    if let Some(description) = schema.get("description") {
        object["description"] = description.clone();
    }
    object
}

fn extend(object: &mut Value, part: &Value) {
    for (name, field) in part["properties"].as_object().into_iter().flatten() {
        object["properties"][name] = field.clone();
    }
    let required = part["required"].as_array().into_iter().flatten().cloned();
    let all =
        object["required"].as_array().into_iter().flatten().cloned().chain(required).collect::<Vec<_>>();
    if !all.is_empty() {
        object["required"] = Value::Array(all);
    }
    for keyword in ["description", "additionalProperties"] {
        if let (None, Some(value)) = (object.get(keyword), part.get(keyword)) {
            object[keyword] = value.clone();
        }
    }
}

/// What distinguishes the variants.
struct Discriminator {
    /// The field that holds the word; none where the word is the name of the only field.
    tag: Option<String>,
    words: Vec<String>,
}

fn words(variants: &[Value]) -> Option<Discriminator> {
    let fields = |variant: &Value| variant["properties"].as_object().cloned().unwrap_or_default();
    let only = |variant: &Value, tag: &str| -> Option<String> {
        let values = variant["properties"][tag]["enum"].as_array()?;
        (values.len() == 1).then(|| values[0].as_str().map(str::to_owned))?
    };
    for tag in fields(variants.first()?).keys() {
        if let Some(words) = variants.iter().map(|variant| only(variant, tag)).collect::<Option<Vec<_>>>() {
            return Some(Discriminator { tag: Some(tag.clone()), words });
        }
    }
    let single = |variant: &Value| -> Option<String> {
        let fields = fields(variant);
        (fields.len() == 1).then(|| fields.keys().next().cloned())?
    };
    let words = variants.iter().map(single).collect::<Option<Vec<_>>>()?;
    Some(Discriminator { tag: None, words })
}

/// `too_many_chunks` as `TooManyChunks`.
pub(super) fn pascal(word: &str) -> String {
    let capital = |part: &str| {
        let mut letters = part.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
    };
    word.split(['_', '-', '.']).map(capital).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_of_a_tagged_union_get_names() {
        let variant = |word: &str, field: &str| {
            json!({"type": "object", "required": ["kind"],
                "properties": {"kind": {"type": "string", "enum": [word]}, field: {"type": "integer"}}})
        };
        let mut schemas = Map::new();
        let part = json!({"type": "object", "required": ["kind"],
            "properties": {"kind": {"type": "string", "enum": ["own"]}}});
        schemas.insert("Own".into(), json!({"type": "object", "properties": {"size": {"type": "integer"}}}));
        let all = json!([variant("too_big", "by"), {"allOf": [{"$ref": "#/components/schemas/Own"}, part]}]);
        schemas.insert("Why".into(), json!({"oneOf": all, "description": "Why."}));
        let message =
            json!({"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}});
        schemas.insert("Reported".into(), json!({"allOf": [{"$ref": "#/components/schemas/Why"}, message]}));

        name_variants(&mut schemas);

        assert_eq!(schemas["Why"]["discriminator"]["propertyName"], "kind");
        let mapping = &schemas["Reported"]["discriminator"]["mapping"];
        assert_eq!(mapping["own"], "#/components/schemas/ReportedOwn");
        assert_eq!(schemas["WhyTooBig"]["properties"]["by"]["type"], "integer");
        let own = &schemas["ReportedOwn"];
        assert_eq!(own["required"], json!(["kind", "message"]));
        for field in ["kind", "message", "size"] {
            assert!(own["properties"].get(field).is_some(), "{own}");
        }
    }

    #[test]
    fn variants_of_one_field_are_closed() {
        let variant = |field: &str| json!({"type": "object", "required": [field], "properties": {field: {}}});
        let step = json!({"oneOf": [variant("add"), variant("remove")], "description": "A step."});
        let mut schemas = Map::from_iter([("Step".to_owned(), step)]);
        name_variants(&mut schemas);
        for name in ["StepAdd", "StepRemove"] {
            assert_eq!(schemas[name]["additionalProperties"], false, "{name}");
        }
        assert_eq!(schemas["Step"].get("discriminator"), None);
    }

    #[test]
    fn union_without_objects_is_unchanged() {
        let mut schemas = Map::new();
        schemas.insert("Size".into(), json!({"oneOf": [{"type": "integer"}, {"type": "string"}]}));
        let before = schemas.clone();
        name_variants(&mut schemas);
        assert_eq!(schemas, before);
    }
}
