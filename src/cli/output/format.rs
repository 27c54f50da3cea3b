//! The formats of every result.

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::print::line;

/// Format in which a result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum OutputFormat {
    /// Columns that fit the terminal
    Table,
    /// A table with more columns, never cut
    Wide,
    /// The server's answer
    Json,
    /// The server's answer as YAML
    Yaml,
    /// Names or IDs alone, one per line
    Name,
}

/// The option for the format.
#[derive(Debug, Clone, Copy, Args)]
pub(in crate::cli) struct OutputArgs {
    /// Output format: table, wide, json, yaml or name
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        value_enum,
        default_value = "table",
        hide_possible_values = true,
        hide_default_value = true
    )]
    pub(in crate::cli) format: OutputFormat,
}

impl OutputFormat {
    /// Returns true for the formats that print one document for programs instead of lines.
    pub(in crate::cli) fn is_structured(self) -> bool {
        matches!(self, Self::Json | Self::Yaml)
    }

    /// Returns true for the formats that people read.
    pub(in crate::cli) fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }

    /// Prints a value as JSON or YAML; false if another format is wanted.
    pub(in crate::cli) fn print_value(self, value: &impl Serialize) -> bool {
        match self {
            Self::Json => line!("{:#}", as_json(value)),
            Self::Yaml => line!("{}", as_yaml(&as_json(value)).trim_end()),
            Self::Table | Self::Wide | Self::Name => return false,
        }
        true
    }

    /// Prints the result of a change: a sentence, the name of what was changed, or the value.
    pub(in crate::cli) fn announce(self, sentence: &str, name: &str, value: &impl Serialize) {
        match self {
            Self::Table | Self::Wide => line!("{sentence}"),
            Self::Name => line!("{name}"),
            Self::Json | Self::Yaml => drop(self.print_value(value)),
        }
    }
}

fn as_json(value: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(value).expect("answers of the API hold nothing that JSON cannot")
}

fn as_yaml(value: &serde_json::Value) -> String {
    serde_saphyr::to_string(value).expect("JSON is plain data")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_printed_as_yaml() {
        let value = serde_json::json!({"name": "web", "gpus": [0, 1], "uid": null, "on": "yes"});
        let text = as_yaml(&value);
        assert_eq!(serde_saphyr::from_str::<serde_json::Value>(&text).expect("YAML"), value);
        assert!(text.contains("\nname: web\n"), "{text}");
    }
}
