//! The fields of a spec in one table: options of `set`, words of `--unset`, and places in the spec.

use clap::builder::PossibleValuesParser;
use serde::Serialize;
use serde_json::Value;

use super::change::UnsetField;

/// Defines the options of a spec from rows of help, name, type, path in the spec, arguments of clap, and the word of `--unset` if the
/// field may be left out. Rows at the end have only that word and a path.
macro_rules! spec_fields {
    (
        $(#[$doc:meta])* $name:ident {
            $($(#[$help:meta])+ $field:ident: $type:ty, $path:expr, ($($arg:tt)*) $(, unset $word:literal)?;)+
            $(unset $only:literal, $only_path:expr;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, clap::Args)]
        pub(in crate::cli) struct $name {
            $($(#[$help])+ #[arg($($arg)*)] pub(in crate::cli) $field: $type,)+
        }

        impl $name {
            /// Words of `--unset`.
            pub(in crate::cli) const UNSET: &'static [$crate::cli::change::UnsetField] =
                &[$($(($word, &$path),)?)+ $(($only, &$only_path),)*];

            /// Sets the fields that were given.
            pub(in crate::cli) fn add_to(&self, fields: &mut $crate::cli::change::SpecFields) {
                $(fields.set(&$path, $crate::cli::spec_fields::given(&self.$field));)+
            }
        }
    };
}
pub(super) use spec_fields;

/// Returns the value of an option, if it was given; several objects are one.
pub(super) fn given(value: &impl Serialize) -> Option<Value> {
    match serde_json::to_value(value).expect("options hold nothing that JSON cannot") {
        Value::Null => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Array(items) if items.iter().all(Value::is_object) => {
            let fields = items.into_iter().filter_map(|item| item.as_object().cloned());
            Some(Value::Object(fields.flatten().collect()))
        }
        value => Some(value),
    }
}

/// Parses the words of `--unset`.
pub(super) fn unset_words(fields: &[UnsetField]) -> PossibleValuesParser {
    PossibleValuesParser::new(fields.iter().map(|(word, _)| *word))
}
