//! Reads types from a tree.

use std::collections::HashSet;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer as _, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::Number;

use super::{InvalidJsonValue, Node, cut, one_of, quoted};

impl Node {
    /// Returns the value as a refusal shows it.
    fn shown(&self) -> String {
        match self {
            Self::Null | Self::Removed => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Text(text) | Self::Word(text) => quoted(text),
            Self::List(_) => "a list".to_owned(),
            Self::Object(_) => "an object".to_owned(),
        }
    }

    fn not(&self, wanted: impl fmt::Display) -> InvalidJsonValue {
        InvalidJsonValue::not(&self.shown(), wanted)
    }

    /// Returns the value as a whole number; `2.0` is one, as in JSON Schema.
    fn whole(&self) -> Option<i128> {
        match self {
            Self::Number(number) => whole(number),
            // As a number is written in JSON: no sign but a minus.
            Self::Word(text) if !text.starts_with('+') => text.parse().ok(),
            _ => None,
        }
    }
}

fn whole(number: &Number) -> Option<i128> {
    if let Some(value) = number.as_i64() {
        return Some(value.into());
    }
    if let Some(value) = number.as_u64() {
        return Some(value.into());
    }
    let value = number.as_f64()?;
    // Past 2^53 a float is no whole number that anybody wrote.
    #[allow(clippy::cast_possible_truncation, reason = "bounded above")]
    (value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0).then_some(value as i128)
}

macro_rules! whole_numbers {
    ($($method:ident $type:ident $visit:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidJsonValue> {
            let whole = self.whole();
            match whole.map(|value| (value, $type::try_from(value))) {
                Some((_, Ok(value))) => visitor.$visit(value),
                // The bounds of a setting are its own, and narrower than those of its type.
                Some((value, Err(_))) if value < 0 => Err(self.not("a whole number that is not negative")),
                Some(_) => Err(self.not("a smaller whole number")),
                None => Err(self.not("a whole number")),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Node {
    type Error = InvalidJsonValue;

    whole_numbers! {
        deserialize_u8 u8 visit_u8
        deserialize_u16 u16 visit_u16
        deserialize_u32 u32 visit_u32
        deserialize_u64 u64 visit_u64
        deserialize_i8 i8 visit_i8
        deserialize_i16 i16 visit_i16
        deserialize_i32 i32 visit_i32
        deserialize_i64 i64 visit_i64
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidJsonValue> {
        match self {
            Self::Null | Self::Removed => visitor.visit_unit(),
            Self::Bool(value) => visitor.visit_bool(value),
            Self::Number(number) => match whole(&number) {
                Some(value) => match (u64::try_from(value), i64::try_from(value)) {
                    (Ok(value), _) => visitor.visit_u64(value),
                    (_, Ok(value)) => visitor.visit_i64(value),
                    _ => Err(InvalidJsonValue::invalid_value(Unexpected::Other("number"), &visitor)),
                },
                None => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
            Self::Text(text) | Self::Word(text) => visitor.visit_string(text),
            Self::List(items) => visitor.visit_seq(Items { items: items.into_iter(), index: 0 }),
            Self::Object(mut fields) => {
                refuse_repeated_names(&fields)?;
                fields.retain(|(_, value)| *value != Self::Removed);
                visitor.visit_map(Fields { fields: fields.into_iter(), value: None })
            }
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidJsonValue> {
        match &self {
            Self::Bool(value) => visitor.visit_bool(*value),
            Self::Word(text) if text == "true" => visitor.visit_bool(true),
            Self::Word(text) if text == "false" => visitor.visit_bool(false),
            _ => Err(self.not("true or false")),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidJsonValue> {
        let value = match &self {
            Self::Number(number) => number.as_f64(),
            Self::Word(text) => text.parse().ok().filter(|value: &f64| value.is_finite()),
            _ => None,
        };
        value.map_or_else(|| Err(self.not("a number")), |value| visitor.visit_f64(value))
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidJsonValue> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidJsonValue> {
        match self {
            Self::Text(text) | Self::Word(text) => visitor.visit_string(text),
            node => Err(node.not("a text")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidJsonValue> {
        self.deserialize_str(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidJsonValue> {
        match self {
            Self::List(_) => self.deserialize_any(visitor),
            node => Err(node.not("a list")),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, InvalidJsonValue> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, InvalidJsonValue> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidJsonValue> {
        match self {
            Self::Object(_) => self.deserialize_any(visitor),
            node => Err(node.not("an object")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, InvalidJsonValue> {
        if let Self::Object(fields) = &self
            && let Some((name, _)) =
                fields.iter().find(|(name, value)| *value == Self::Removed && !names.contains(&name.as_str()))
        {
            return Err(InvalidJsonValue::unknown_field(name, names).inside(name));
        }
        self.deserialize_map(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidJsonValue> {
        match self {
            Self::Null | Self::Removed => visitor.visit_none(),
            node => visitor.visit_some(node),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, InvalidJsonValue> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, InvalidJsonValue> {
        let wanted = one_of(variants);
        let is_variant = |name: &str| variants.contains(&name);
        let chosen = match self {
            Self::Text(name) | Self::Word(name) if is_variant(&name) => Chosen { name, value: None, wanted },
            Self::Object(mut fields) if fields.len() == 1 && is_variant(&fields[0].0) => {
                let (name, value) = fields.remove(0);
                Chosen { name, value: Some(value), wanted }
            }
            node => return Err(node.not(wanted)),
        };
        visitor.visit_enum(chosen)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidJsonValue> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! { i128 u128 char bytes byte_buf unit unit_struct identifier }
}

/// Refuses a name that occurs twice: a map would keep its last value and silently drop the others.
fn refuse_repeated_names(fields: &[(String, Node)]) -> Result<(), InvalidJsonValue> {
    let mut names = HashSet::with_capacity(fields.len());
    match fields.iter().find(|(name, _)| !names.insert(name.as_str())) {
        Some((name, _)) => {
            Err(InvalidJsonValue::new(format_args!("{} is given twice: give it once", cut(name)))
                .inside(name))
        }
        None => Ok(()),
    }
}

struct Items {
    items: std::vec::IntoIter<Node>,
    index: usize,
}

impl<'de> SeqAccess<'de> for Items {
    type Error = InvalidJsonValue;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, InvalidJsonValue> {
        let Some(item) = self.items.next() else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        seed.deserialize(item).map(Some).map_err(|refusal| refusal.inside(&index.to_string()))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct Fields {
    fields: std::vec::IntoIter<(String, Node)>,
    value: Option<(String, Node)>,
}

impl<'de> MapAccess<'de> for Fields {
    type Error = InvalidJsonValue;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, InvalidJsonValue> {
        let Some((name, value)) = self.fields.next() else { return Ok(None) };
        // Names of fields, and numbers where numbers are keys.
        let key = seed.deserialize(Node::Word(name.clone())).map_err(|refusal| refusal.inside(&name))?;
        self.value = Some((name, value));
        Ok(Some(key))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, InvalidJsonValue> {
        let Some((name, value)) = self.value.take() else {
            return Err(InvalidJsonValue::new("a value was requested before its name"));
        };
        seed.deserialize(value).map_err(|refusal| refusal.inside(&name))
    }
}

/// A variant that was chosen, with the value under its name.
struct Chosen {
    name: String,
    value: Option<Node>,
    /// Values that would be accepted instead.
    wanted: String,
}

impl<'de> EnumAccess<'de> for Chosen {
    type Error = InvalidJsonValue;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), InvalidJsonValue> {
        let name: serde::de::value::StrDeserializer<'_, InvalidJsonValue> =
            self.name.as_str().into_deserializer();
        let variant = seed.deserialize(name)?;
        Ok((variant, self))
    }
}

impl Chosen {
    fn with<T>(self, read: impl FnOnce(Node) -> Result<T, InvalidJsonValue>) -> Result<T, InvalidJsonValue> {
        match self.value {
            Some(value) => read(value).map_err(|refusal| refusal.inside(&self.name)),
            None => {
                let wanted = format!("an object with the field {}", self.name);
                Err(InvalidJsonValue::not(&quoted(&self.name), wanted))
            }
        }
    }
}

impl<'de> VariantAccess<'de> for Chosen {
    type Error = InvalidJsonValue;

    fn unit_variant(self) -> Result<(), InvalidJsonValue> {
        match self.value {
            None | Some(Node::Null) => Ok(()),
            Some(_) => Err(InvalidJsonValue::not("an object", self.wanted)),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, InvalidJsonValue> {
        self.with(|value| seed.deserialize(value))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, InvalidJsonValue> {
        self.with(|value| value.deserialize_seq(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, InvalidJsonValue> {
        self.with(|value| value.deserialize_map(visitor))
    }
}
