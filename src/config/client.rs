//! `/etc/mps-manager/client.toml`: which users the command line trusts behind a manager's socket.

use std::path::Path;

use serde::Deserialize;

use crate::host::trust::{Content, Trust};
use crate::host::user::number_of_user;

/// Where it is read from; it may be missing.
pub const CLIENT_CONFIG: &str = "/etc/mps-manager/client.toml";

/// The file; root's alone, since it says which users root's commands trust.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientConfig {
    /// The user that the manager of this host runs as, by name or number.
    manager_user: Option<UserName>,
}

/// A user as people write one.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum UserName {
    Number(u32),
    Name(String),
}

/// The users whose manager is trusted: root, the caller, and those that the file names.
pub fn trusted_managers() -> Result<Trust, String> {
    trusted_by(Path::new(CLIENT_CONFIG))
}

fn trusted_by(file: &Path) -> Result<Trust, String> {
    let own = Trust::own();
    if Trust::root().check(file, Content::File).map_err(|error| error.to_string())?.is_none() {
        return Ok(own);
    }
    let refused = |why: String| format!("{} is refused: {why}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| refused(error.to_string()))?;
    let config: ClientConfig = toml::from_str(&text).map_err(|error| refused(error.to_string()))?;
    Ok(match config.manager_user {
        None => own,
        Some(UserName::Number(uid)) => own.and(uid),
        Some(UserName::Name(name)) => match name.parse() {
            Ok(uid) => own.and(uid),
            Err(_) => own.and(number_of_user(&name).map_err(|why| refused(format!("manager_user: {why}")))?),
        },
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use super::*;

    #[test]
    fn the_client_file_names_one_more_user() {
        let directory = tempfile::tempdir_in("/tmp").expect("a directory");
        let file = directory.path().join("client.toml");
        assert!(!trusted_by(&file).expect("none").includes(65_534));
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: the file has to be root's");
            return;
        }
        for (text, uid) in [
            ("manager_user = 65534", 65_534),
            ("manager_user = \"65534\"", 65_534),
            ("manager_user = \"root\"", 0),
        ] {
            fs::write(&file, text).expect("written");
            assert!(trusted_by(&file).expect("read").includes(uid), "{text}");
        }
        for (text, word) in [
            ("manager_user = -1", "manager_user"),
            ("manager_user = \"no such user\"", "no such user"),
            ("user = 0", "user"),
        ] {
            fs::write(&file, text).expect("written");
            let message = trusted_by(&file).expect_err(text);
            assert!(message.contains(word) && message.contains("client.toml"), "{message}");
        }
        fs::write(&file, "manager_user = 65534").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("mode");
        assert!(trusted_by(&file).expect_err("anybody's").contains("chmod go-w"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("mode");
        chown(&file, Some(65_534), None).expect("given away");
        assert!(trusted_by(&file).expect_err("another's").contains("belongs to uid 65534"));
    }
}
