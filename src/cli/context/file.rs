//! `$XDG_CONFIG_HOME/mps-manager/contexts.toml`: the caller's own, since tokens may be in it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::host::trust::{Content, Trust};

/// All saved contexts.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::cli) struct SavedContexts {
    /// The one in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) current: Option<String>,
    /// Each by its name.
    #[serde(default)]
    pub(in crate::cli) contexts: BTreeMap<String, SavedContext>,
}

/// Connection to a server: its address, and the files for its TLS and its token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::cli) struct SavedContext {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) ca_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) runtime_dir: Option<PathBuf>,
}

/// Returns the path of the file; `None` for a user without a home.
fn path() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = variable("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let directory = directory.or_else(|| variable("HOME").map(|home| home.join(".config")))?;
    Some(directory.join("mps-manager/contexts.toml"))
}

/// The path for messages.
pub(super) fn shown_path() -> String {
    path().map_or_else(|| "contexts.toml".to_owned(), |path| path.display().to_string())
}

impl SavedContexts {
    /// Reads the file, if there is one; one that others could have written or read is refused.
    pub(in crate::cli) fn read() -> Result<Self, String> {
        path().map_or_else(|| Ok(Self::default()), |path| Self::read_from(&path))
    }

    fn read_from(path: &Path) -> Result<Self, String> {
        let metadata = Trust::own().check(path, Content::Secret).map_err(|error| error.to_string())?;
        if metadata.is_none() {
            return Ok(Self::default());
        }
        let refused = |why: String| format!("{} cannot be used: {why}", path.display());
        let text = fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        toml::from_str(&text).map_err(|error| refused(error.to_string()))
    }

    /// Replaces the file.
    pub(super) fn write(&self) -> Result<(), String> {
        let path = path().ok_or("there is no place for contexts: set HOME or XDG_CONFIG_HOME")?;
        self.write_to(&path)
    }

    fn write_to(&self, path: &Path) -> Result<(), String> {
        let refused = |error: std::io::Error| format!("{} cannot be written: {error}", path.display());
        let text = toml::to_string(self).map_err(|error| error.to_string())?;
        let directory = path.parent().expect("a file in a directory");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(refused)?;
        let new = directory.join(format!(".contexts.toml.{}", std::process::id()));
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
        let written = file.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, path)
        });
        written.map_err(|error| {
            let _ = fs::remove_file(&new);
            refused(error)
        })
    }

    /// The named context, or the one in use; `None` if none is in use.
    pub(in crate::cli) fn find(&self, name: Option<&str>) -> Result<Option<&SavedContext>, String> {
        let Some(name) = name.or(self.current.as_deref()) else { return Ok(None) };
        self.contexts.get(name).map(Some).ok_or_else(|| {
            let names: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            if names.is_empty() {
                format!("there is no context {name:?}: save one with `mps-manager context add`")
            } else {
                format!("there is no context {name:?}: there is {}", names.join(", "))
            }
        })
    }
}

impl SavedContext {
    /// Its token; the file with it must be the caller's own too.
    pub(in crate::cli) fn token(&self) -> Result<Option<String>, String> {
        let Some(file) = &self.token_file else { return Ok(self.token.clone()) };
        let metadata = Trust::own().check(file, Content::Secret).map_err(|error| error.to_string())?;
        if metadata.is_none() {
            return Err(format!("there is no {}, which the context names as its token file", file.display()));
        }
        let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(Some(text.trim().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    #[test]
    fn contexts_are_kept_in_a_private_file() {
        let directory = tempfile::tempdir_in("/tmp").expect("a directory");
        let path = directory.path().join("mps-manager/contexts.toml");
        assert_eq!(SavedContexts::read_from(&path), Ok(SavedContexts::default()));
        let lab = SavedContext { url: Some("https://gpu7:8640".into()), ..SavedContext::default() };
        let mut saved = SavedContexts { current: Some("lab".into()), ..SavedContexts::default() };
        saved.contexts.insert("lab".into(), lab.clone());
        saved.write_to(&path).expect("written");
        assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o777, 0o600);
        let read = SavedContexts::read_from(&path).expect("read");
        assert_eq!(read.find(None), Ok(Some(&lab)));
        assert!(read.find(Some("prod")).expect_err("unknown").ends_with("there is lab"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("mode");
        assert!(SavedContexts::read_from(&path).expect_err("readable by all").contains("chmod 600"));
    }

    #[test]
    fn token_is_read_from_its_file() {
        let directory = tempfile::tempdir_in("/tmp").expect("a directory");
        let file = directory.path().join("token");
        let context = SavedContext { token_file: Some(file.clone()), ..SavedContext::default() };
        assert!(context.token().expect_err("missing").contains("token file"));
        fs::write(&file, "mpsm_1_2\n").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("mode");
        assert_eq!(context.token(), Ok(Some("mpsm_1_2".into())));
    }
}
