//! Links by the names of tenants to their directories, which have short names of their own.
//!
//! A link is meant for mounting a directory. Processes are given the path to which it leads, since the path of a long name
//! would not fit into the address of a socket.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::domain::{TenantDirectory, TenantName};

/// Mode of the directory of the links: anybody who knows a name passes through it, and nobody else reads the names in it.
const MODE: u32 = 0o711;

fn links(root: &Path) -> PathBuf {
    root.with_file_name("by-name")
}

/// Makes the link of a tenant lead to its directory below `root`.
pub(super) fn link(root: &Path, tenant: &TenantName, directory: &TenantDirectory) -> io::Result<()> {
    let links = links(root);
    let (link, target) = (links.join(tenant.as_str()), root.join(directory.as_str()));
    if fs::read_link(&link).is_ok_and(|is| is == target) {
        return Ok(());
    }
    match DirBuilder::new().mode(MODE).create(&links) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let between = links.join(format!(".{directory}"));
    let _ = fs::remove_file(&between);
    symlink(target, &between)?;
    fs::rename(between, link)
}

/// Removes the links that do not lead to a tenant's directory.
pub(super) fn prune(root: &Path, is_known: impl Fn(&TenantDirectory) -> bool) {
    for link in fs::read_dir(links(root)).into_iter().flatten().flatten() {
        let Ok(target) = fs::read_link(link.path()) else { continue };
        let directory = target.file_name().and_then(|name| TenantDirectory::parse(name.to_str()?).ok());
        if directory.is_none_or(|directory| !is_known(&directory)) {
            let _ = fs::remove_file(link.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_follows_its_tenant_and_goes_with_it() {
        let home = tempfile::tempdir().expect("a directory");
        let root = home.path().join("tenants");
        let tenant = TenantName::parse("web").expect("a name");
        let [first, second] =
            ["0123456789", "9876543210"].map(|name| TenantDirectory::parse(name).expect("a name"));
        let leads_to = || fs::read_link(home.path().join("by-name/web")).ok();
        for directory in [&first, &first, &second] {
            link(&root, &tenant, directory).expect("linked");
            assert_eq!(leads_to(), Some(root.join(directory.as_str())));
        }
        prune(&root, |known| *known == second);
        assert!(leads_to().is_some());
        prune(&root, |known| *known == first);
        assert_eq!(leads_to(), None);
        assert_eq!(fs::read_dir(home.path().join("by-name")).expect("there").count(), 0);
    }
}
