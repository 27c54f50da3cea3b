//! Host files as text: YAML and JSON.

use serde::Deserialize;

use super::{HostFile, VERSION};
use crate::domain::json::{self, InvalidJsonValue, Unreadable};
use crate::domain::layout::Invalid;
use crate::domain::layout::text::LayoutFormat;
use crate::domain::{InvalidValue, shortened_to};

/// Characters of a refusal that shows the lines around its place, and says twice what is expected there.
const WITH_SNIPPET: usize = 1600;

#[derive(Deserialize)]
struct Versioned {
    version: String,
}

/// Reads a host file; what is wrong in it on any host is refused with its place.
///
/// The version is read first, since a newer one may have fields that this one refuses.
pub fn read(text: &str, format: LayoutFormat) -> Result<HostFile, Vec<Invalid>> {
    let (versioned, file): (Result<Versioned, _>, Result<HostFile, _>) = match format {
        LayoutFormat::Yaml => (from_yaml(text), from_yaml(text)),
        LayoutFormat::Json => (from_json(text), from_json(text)),
    };
    if let Ok(Versioned { version }) = versioned {
        check_version(&version).map_err(|reason| vec![Invalid { pointer: "/version".into(), reason }])?;
    }
    let file = file.map_err(|error| vec![error])?;
    let wrong = file.check();
    if wrong.is_empty() { Ok(file) } else { Err(wrong) }
}

fn from_yaml<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Invalid> {
    serde_saphyr::from_str(text).map_err(|error| unreadable(String::new(), error.to_string()))
}

fn from_json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Invalid> {
    json::read(text.as_bytes()).map_err(|error| match error {
        Unreadable::Malformed(why) => unreadable(String::new(), format!("it is not JSON: {why}")),
        Unreadable::Refused(InvalidJsonValue { pointer, detail }) => unreadable(pointer, detail),
    })
}

fn unreadable(pointer: String, why: String) -> Invalid {
    Invalid {
        pointer,
        reason: InvalidValue(format!("the host file cannot be read: {}", shortened_to(WITH_SNIPPET, why))),
    }
}

/// Refuses the shape of another version.
fn check_version(version: &str) -> Result<(), InvalidValue> {
    if version == VERSION {
        return Ok(());
    }
    let number = |text: &str| text.strip_prefix('v').and_then(|digits| digits.parse::<u32>().ok());
    let newer = number(version).zip(number(VERSION)).is_some_and(|(given, known)| given > known);
    let shown: String = version.chars().take(40).collect();
    Err(InvalidValue(if newer {
        format!("the host file is of version {shown}, and this manager reads {VERSION}: use a newer manager")
    } else {
        format!("{shown:?} is no version of a host file: write {VERSION}")
    }))
}

/// Writes what is exported.
pub fn write(exported: &super::ExportedHost, format: LayoutFormat) -> String {
    match format {
        LayoutFormat::Yaml => {
            let text = serde_saphyr::to_string(exported).expect("a host file is plain data");
            format!("{MODELINE}\n{text}")
        }
        LayoutFormat::Json => serde_json::to_string_pretty(exported).expect("a host file is plain data"),
    }
}

/// The first line of a host file: editors find the schema by it.
const MODELINE: &str = "# yaml-language-server: $schema=host-v1.schema.json";
