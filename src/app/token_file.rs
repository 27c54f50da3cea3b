//! The admin token, made at the first start and kept in the state directory.

use std::path::Path;

use super::{StartupError, refused};
use crate::domain::token::Secret;
use crate::host::durable_file;

/// Reads the admin token; `None` before the first start has made it.
pub(super) fn read(state_dir: &Path) -> Result<Option<Secret>, StartupError> {
    let path = state_dir.join("admin.token");
    match std::fs::read_to_string(&path) {
        Ok(text) if text.trim().len() >= 32 => Ok(Some(Secret::shown(text.trim()))),
        Ok(_) => {
            Err(StartupError(format!("{} holds no token: delete it, and a new one is made", path.display())))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StartupError(format!("{}: {error}", path.display()))),
    }
}

/// Makes the admin token.
pub(super) fn create(state_dir: &Path) -> Result<Secret, StartupError> {
    let path = state_dir.join("admin.token");
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(refused)?;
    let token = hex::encode(bytes);
    durable_file::replace(&path, format!("{token}\n").as_bytes())
        .map_err(|error| StartupError(format!("{}: {error}", path.display())))?;
    Ok(Secret::shown(&token))
}
