//! Who may pass through a directory: its owner, and further users by a POSIX ACL.
//!
//! A user who is let through gets the right to search and no other: what is in the directory, and may be written in it, is its
//! owner's business. The ACL is the kernel's attribute (acl(5), and `posix_acl_xattr.h` of the kernel for its form): a version,
//! then for each entry a tag, its permissions and its user.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;

const ATTRIBUTE: &str = "system.posix_acl_access";
const VERSION: u32 = 2;
/// The user of an entry that is about none.
const NOBODY: u32 = u32::MAX;
const SEARCH: u16 = 1;
/// The same right for all, in a mode.
const PASSED_BY_ALL: u32 = 0o011;
/// Room for the entries of an attribute that is compared.
const LONGEST: usize = 64 * 1024;

/// Who may do what with a directory, beside root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryAccess {
    /// Its owner; `None` leaves it whoever it is.
    pub owner: Option<u32>,
    /// What its owner may do, as the first digit of a mode.
    pub own: u16,
    /// Users who may pass.
    pub users: Vec<u32>,
    /// Whether everybody may.
    pub everyone: bool,
}

/// Nobody but its owner, whoever that is, reads it or passes.
pub static PRIVATE: DirectoryAccess =
    DirectoryAccess { owner: None, own: 0o7, users: Vec::new(), everyone: false };
/// Everybody passes, and nobody else reads the names in it.
pub static PASSED: DirectoryAccess =
    DirectoryAccess { owner: None, own: 0o7, users: Vec::new(), everyone: true };

impl DirectoryAccess {
    /// Makes a directory so, unless it is; false where its file system has no ACLs, so that everybody may pass in place of the users.
    pub fn keep(&self, directory: &Path) -> io::Result<bool> {
        let found = fs::symlink_metadata(directory)?;
        let passed = if self.everyone { PASSED_BY_ALL } else { 0 };
        let mode = u32::from(self.own) << 6 | passed;
        let is_owned = self.owner.is_none_or(|owner| owner == found.uid());
        if !is_owned {
            lchown(directory, self.owner, None)?;
        }
        if self.everyone || self.users.is_empty() {
            // An ACL of users shows in the bits of the group, too.
            if !is_owned || found.mode() & 0o7777 != mode {
                match removexattr(directory, ATTRIBUTE) {
                    Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
                    Err(error) => return Err(error.into()),
                }
                fs::set_permissions(directory, Permissions::from_mode(mode))?;
            }
            return Ok(true);
        }
        let acl = self.acl();
        if attribute(directory).is_ok_and(|is| is == acl) {
            return Ok(true);
        }
        match setxattr(directory, ATTRIBUTE, &acl, XattrFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOTSUP) => {
                fs::set_permissions(directory, Permissions::from_mode(mode | PASSED_BY_ALL)).map(|()| false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Its entries, in the order that the kernel wants them: by tag, then by user. It sets the mode by them.
    fn acl(&self) -> Vec<u8> {
        let mut users = self.users.clone();
        users.sort_unstable();
        users.dedup();
        let users = users.into_iter().map(|uid| (0x02, SEARCH, uid));
        let mut acl = VERSION.to_le_bytes().to_vec();
        let own = std::iter::once((0x01, self.own, NOBODY));
        let (group, mask, others) = ((0x04, 0, NOBODY), (0x10, SEARCH, NOBODY), (0x20, 0, NOBODY));
        for (tag, permissions, uid) in own.chain(users).chain([group, mask, others]) {
            acl.extend(u16::to_le_bytes(tag));
            acl.extend(u16::to_le_bytes(permissions));
            acl.extend(u32::to_le_bytes(uid));
        }
        acl
    }
}

/// Whether a user may pass by the ACL of a directory; `None` where it says nothing of that user.
pub fn passes_by_acl(directory: &Path, uid: u32) -> Option<bool> {
    let acl = attribute(directory).ok()?;
    let entries = acl.get(4..)?.chunks_exact(8);
    let number = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
    let permissions = |entry: &[u8]| number(&entry[2..]);
    let mask = entries.clone().find(|entry| number(entry) == 0x10).map_or(0o7, permissions);
    let theirs =
        entries.into_iter().find(|entry| number(entry) == 0x02 && entry[4..] == uid.to_le_bytes())?;
    Some(permissions(theirs) & mask & SEARCH != 0)
}

fn attribute(directory: &Path) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; LONGEST];
    let length = getxattr(directory, ATTRIBUTE, &mut bytes[..])?;
    bytes.truncate(length);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    /// Whether a user may open what is in a directory, as the kernel says.
    fn reaches(directory: &Path, uid: u32) -> bool {
        let file = directory.join("file");
        std::thread::scope(|scope| {
            let look = || {
                let user = rustix::thread::Uid::from_raw(uid);
                let group = rustix::thread::Gid::from_raw(uid);
                rustix::thread::set_thread_groups(&[]).expect("root may");
                rustix::thread::set_thread_res_gid(group, group, group).expect("root may");
                rustix::thread::set_thread_res_uid(user, user, user).expect("root may");
                fs::metadata(&file).is_ok()
            };
            scope.spawn(look).join().expect("no panic")
        })
    }

    fn all(home: &str) -> tempfile::TempDir {
        let top = tempfile::tempdir_in(home).expect("a directory");
        fs::set_permissions(top.path(), Permissions::from_mode(0o711)).expect("mode");
        let directory = top.path().join("closed");
        fs::create_dir(&directory).expect("made");
        fs::write(directory.join("file"), "x").expect("written");
        top
    }

    #[test]
    fn only_those_who_are_named_pass() {
        if !is_root() {
            return;
        }
        for home in ["/tmp", "/dev/shm"] {
            let top = all(home);
            let directory = top.path().join("closed");
            let access = |owner, own, users: &[u32], everyone| DirectoryAccess {
                owner: Some(owner),
                own,
                users: users.to_vec(),
                everyone,
            };
            for (wanted, who) in [
                (access(0, 7, &[], false), vec![]),
                (access(0, 7, &[1234, 65_534, 1234], false), vec![1234, 65_534]),
                (access(0, 7, &[65_534], false), vec![65_534]),
                (access(1234, 5, &[], false), vec![1234]),
                (access(1234, 5, &[33], false), vec![33, 1234]),
                (access(0, 7, &[33], true), vec![33, 1234, 65_534]),
                (access(0, 7, &[], false), vec![]),
            ] {
                for _ in 0..2 {
                    assert!(wanted.keep(&directory).expect("kept"), "{home} has ACLs");
                    let pass: Vec<u32> =
                        [33, 1234, 65_534].into_iter().filter(|uid| reaches(&directory, *uid)).collect();
                    assert_eq!(pass, who, "{home} {wanted:?}");
                    assert!(fs::read_dir(&directory).is_ok(), "root does");
                }
                let named = wanted.users.contains(&33) && !wanted.everyone;
                assert_eq!(passes_by_acl(&directory, 33), named.then_some(true));
            }
        }
    }

    #[test]
    fn file_system_without_acls_is_told() {
        let top = tempfile::tempdir().expect("a directory");
        let access = DirectoryAccess { owner: None, own: 7, users: vec![1], everyone: false };
        // One has none that is not there, and /proc has none for its directories.
        access.keep(&top.path().join("none")).expect_err("it is not there");
        assert!(attribute(Path::new("/proc/self")).is_err());
    }
}
