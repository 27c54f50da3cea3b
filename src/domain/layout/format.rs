//! Documents that begin with their version, read from YAML or JSON.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Invalid;
use super::yaml_words::rendered;
use crate::json::{self, InvalidJsonValue, Unreadable};
use crate::{InvalidValue, shortened_to};

/// Format of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayoutFormat {
    /// YAML, and therefore JSON too.
    #[default]
    Yaml,
    /// JSON.
    Json,
}

api_words!(LayoutFormat: Yaml "yaml", Json "json");

/// Name of the text in lines that show a place in it.
pub const SOURCE: &str = "<input>";

#[derive(Deserialize)]
struct Versioned {
    version: String,
}

/// A kind of document that begins with its version.
#[derive(Debug, Clone, Copy)]
pub struct DocumentKind {
    /// Name of the document in messages.
    pub noun: &'static str,
    /// The supported version.
    pub version: &'static str,
    /// Most characters of a refusal; larger for documents whose refusals show the lines around the error.
    pub longest_refusal: usize,
}

impl DocumentKind {
    /// Reads a document.
    ///
    /// The version is read first, since a newer one may have fields that this one refuses.
    pub fn read<T: DeserializeOwned>(&self, text: &str, format: LayoutFormat) -> Result<T, Invalid> {
        if let Ok(Versioned { version }) = self.parse(text, format) {
            self.check_version(&version).map_err(|reason| Invalid { pointer: "/version".into(), reason })?;
        }
        self.parse(text, format)
    }

    /// Refuses a document of another version.
    pub fn check_version(&self, version: &str) -> Result<(), InvalidValue> {
        if version == self.version {
            return Ok(());
        }
        let number = |text: &str| text.strip_prefix('v').and_then(|digits| digits.parse::<u32>().ok());
        let newer = number(version).zip(number(self.version)).is_some_and(|(given, valid)| given > valid);
        let shown: String = version.chars().take(40).collect();
        let Self { noun, version: valid, .. } = self;
        Err(InvalidValue(if newer {
            format!("the {noun} is of version {shown}, and this manager reads {valid}: use a newer manager")
        } else {
            format!("{shown:?} is not a version of a {noun}: write {valid}")
        }))
    }

    fn parse<T: DeserializeOwned>(&self, text: &str, format: LayoutFormat) -> Result<T, Invalid> {
        let refused = |pointer: String, why: String| {
            let why = shortened_to(self.longest_refusal, why);
            Invalid { pointer, reason: InvalidValue(format!("the {} cannot be read: {why}", self.noun)) }
        };
        match format {
            LayoutFormat::Yaml => serde_saphyr::from_str(text).map_err(|error| {
                let beginning = format!("begin the {} with `version: {}`", self.noun, self.version);
                refused(String::new(), rendered(&error, &beginning, text))
            }),
            LayoutFormat::Json => json::read(text.as_bytes()).map_err(|error| match error {
                Unreadable::Malformed(why) => refused(String::new(), format!("it is not JSON: {why}")),
                Unreadable::Refused(InvalidJsonValue { pointer, detail }) => refused(pointer, detail),
            }),
        }
    }
}
