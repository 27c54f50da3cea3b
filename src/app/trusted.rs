//! The manager's own files, judged before any of them is used: `serve`, `restore` and `doctor` ask the same.

use std::path::Path;

use super::DATABASE;
use crate::host::trust::{Content, Trust, Untrusted};
use crate::store::audit_head::AUDIT_HEAD;

/// The files of a state directory. Who can read the token is admin; who can read the lock can hold it.
const STATE: [(&str, Content); 7] = [
    ("lock", Content::Secret),
    ("admin.token", Content::Secret),
    (DATABASE, Content::File),
    ("mps-manager.db-wal", Content::File),
    ("mps-manager.db-shm", Content::File),
    (AUDIT_HEAD, Content::File),
    (super::FURNISHING, Content::File),
];
/// In a runtime directory, the one in which there is one for each daemon, and the one in which there is one for each tenant.
const DAEMONS: &str = "daemons";
const TENANTS: &str = "tenants";

/// Refuses a state directory, or a file in it, that others could change.
pub(super) fn check_state(directory: &Path, trust: &Trust) -> Result<(), Untrusted> {
    match trust.check(directory, Content::Directory)? {
        Some(found) if found.is_dir() => {}
        // Nothing is in it; whoever uses it says what is wrong.
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
        Some(found) if found.is_dir() => {}
        _ => return Ok(()),
    }
    trust.check_no_link(&directory.join("api.sock"), Content::Socket)?;
    for name in [DAEMONS, TENANTS] {
        let all = directory.join(name);
        trust.check_no_link(&all, Content::Directory)?;
    }
    // What is wrong with one tenant's directory is said of that tenant, which gets nothing until it is mended.
    for entry in std::fs::read_dir(directory.join(DAEMONS)).into_iter().flatten().flatten() {
        trust.check_no_link(&entry.path(), Content::Directory)?;
    }
    Ok(())
}
