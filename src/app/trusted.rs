//! The manager's own directories and files, checked before any of them is used: by `serve`, `restore` and `doctor`.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use super::{DATABASE, StartupError, refused, seed};
use crate::config::Config;
use crate::domain::TenantDirectory;
use crate::host::trust::{Content, Trust, Untrusted};
use crate::mps::process::LONGEST_PATH;
use crate::service::hosts::HOSTS_KEY;
use crate::store::audit_head::AUDIT_HEAD;
use crate::supervisor::tenants_directory;

/// The files of a state directory. Who can read the token is admin; who can read the lock can hold it.
const STATE: [(&str, Content); 8] = [
    ("lock", Content::Secret),
    ("admin.token", Content::Secret),
    (HOSTS_KEY, Content::Secret),
    (DATABASE, Content::File),
    ("mps-manager.db-wal", Content::File),
    ("mps-manager.db-shm", Content::File),
    (AUDIT_HEAD, Content::File),
    (seed::SEEDING, Content::File),
];
/// In a runtime directory, the one in which there is one for each daemon, the one in which there is one for each tenant, the one with a
/// link for each tenant, and the one with a file for each.
const DAEMONS: &str = "daemons";
const TENANTS: &str = "tenants";
const LINKS: &str = "by-name";
const ENVIRONMENTS: &str = "env";

/// Refuses directories that cannot be used, or that others could change.
pub(super) fn check_directories(config: &Config) -> Result<(), StartupError> {
    check_length(&config.runtime_dir)?;
    let trust = Trust::own();
    check_state(&config.state_dir, &trust).map_err(refused)?;
    check_runtime(&config.runtime_dir, &trust).map_err(refused)
}

/// Refuses a runtime directory in which no tenant's directory would fit, nor a daemon with the shortest name.
pub(super) fn check_length(runtime_dir: &Path) -> Result<(), StartupError> {
    let daemon = runtime_dir.join("daemons/x/pipe").as_os_str().len();
    let tenant = tenants_directory(runtime_dir).as_os_str().len() + 1 + TenantDirectory::LENGTH;
    let longest = daemon.max(tenant);
    if longest <= LONGEST_PATH {
        return Ok(());
    }
    Err(StartupError(format!(
        "the runtime directory {} is too long: a pipe directory in it would have {longest} bytes or more, and the path of a \
         socket leaves room for {LONGEST_PATH}; give a shorter one with --runtime-dir",
        runtime_dir.display()
    )))
}

/// Makes the runtime directory where it is missing.
pub(super) fn make_runtime_directory(path: &Path) -> Result<(), StartupError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(|error| {
        StartupError(format!(
            "the runtime directory {} cannot be made: {error}; give another with --runtime-dir",
            path.display()
        ))
    })
}

/// Refuses a state directory, or a file in it, that others could change.
pub(super) fn check_state(directory: &Path, trust: &Trust) -> Result<(), Untrusted> {
    match trust.check(directory, Content::Directory)? {
        Some(metadata) if metadata.is_dir() => {}
        // Nothing is in it; its user reports what is wrong.
        _ => return Ok(()),
    }
    for (name, content) in STATE {
        trust.check(&directory.join(name), content)?;
    }
    Ok(())
}

/// Refuses a runtime directory that others could change, or that leads elsewhere by a link in it.
pub(super) fn check_runtime(directory: &Path, trust: &Trust) -> Result<(), Untrusted> {
    match trust.check(directory, Content::Directory)? {
        Some(metadata) if metadata.is_dir() => {}
        _ => return Ok(()),
    }
    trust.check_no_link(&directory.join("api.sock"), Content::Socket)?;
    for name in [DAEMONS, TENANTS, LINKS, ENVIRONMENTS] {
        let all = directory.join(name);
        trust.check_no_link(&all, Content::Directory)?;
    }
    // What is wrong with one tenant's directory is said of that tenant, which gets nothing until it is mended.
    for entry in std::fs::read_dir(directory.join(DAEMONS)).into_iter().flatten().flatten() {
        trust.check_no_link(&entry.path(), Content::Directory)?;
    }
    Ok(())
}
