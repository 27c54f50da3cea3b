//! The admin token, made at the first start and kept in the state directory.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::{StartupError, refused};
use crate::domain::token::Secret;

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
    let path: PathBuf = state_dir.join("admin.token");
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(refused)?;
    let token = hex::encode(bytes);
    // Under another name first: a manager that is killed here must not leave a file that holds half a token.
    let unfinished = path.with_extension("new");
    let _ = std::fs::remove_file(&unfinished);
    std::fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)
        .and_then(|mut file| writeln!(file, "{token}").and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&unfinished, &path))
        .map_err(|error| StartupError(format!("{}: {error}", path.display())))?;
    Ok(Secret::shown(&token))
}
