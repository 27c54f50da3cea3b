//! Access of users to this program's own directories and files: for the owner, and for further users by a POSIX ACL.
//!
//! Users are named in an ACL and are never made owners: an owner may change the mode, and the content of a directory. The ACL is the
//! kernel's attribute (acl(5), and `posix_acl_xattr.h` of the kernel for its form): a version, then for each entry a tag, its permissions
//! and its user.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;

const ATTRIBUTE: &str = "system.posix_acl_access";
const VERSION: u32 = 2;
/// User of an entry that names no user.
const NOBODY: u32 = u32::MAX;
/// The tags of entries: the owner, a user, the owning group, a group, the mask of all but the owner and others, and all others.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;
/// The rights to search a directory and to read a file.
const SEARCH: u16 = 1;
const READ: u16 = 4;
/// The right to search for all, in a mode.
const PASSED_BY_ALL: u32 = 0o011;
/// The longest attribute that the kernel keeps.
const LONGEST: usize = 64 * 1024;

/// Access of users to a directory or a file, beside that of its owner and root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathAccess {
    /// Permissions of the owner.
    own: u16,
    /// Permission of `users`, or of everybody.
    right: u16,
    users: Vec<u32>,
    /// True if everybody has the permission.
    everyone: bool,
}

/// Access for the owner only.
pub static PRIVATE: PathAccess = PathAccess { own: 0o7, right: SEARCH, users: Vec::new(), everyone: false };
/// Access for everybody to pass through a directory; only the owner lists the names in it.
pub static PASSED: PathAccess = PathAccess { own: 0o7, right: SEARCH, users: Vec::new(), everyone: true };

impl PathAccess {
    /// Makes access for these users to pass through a directory; users that pass anyway need not be named.
    pub fn passed_by(users: impl IntoIterator<Item = u32>, everyone: bool) -> Self {
        Self { users: others(users), everyone, ..PRIVATE.clone() }
    }

    /// Makes access for these users to read a file that nobody writes.
    pub fn read_by(users: impl IntoIterator<Item = u32>) -> Self {
        Self { own: READ, right: READ, users: others(users), everyone: false }
    }

    /// Applies the access to a path unless it has it; false if the file system has no ACLs: then everybody passes through the directory,
    /// and only the owner reads the file.
    pub fn keep(&self, path: &Path) -> io::Result<bool> {
        if self.is_held(path) {
            return Ok(true);
        }
        let mode = self.mode();
        if self.has_no_acl() {
            match removexattr(path, ATTRIBUTE) {
                Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
                Err(error) => return Err(error.into()),
            }
            return fs::set_permissions(path, Permissions::from_mode(mode)).map(|()| true);
        }
        match setxattr(path, ATTRIBUTE, &self.acl(), XattrFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOTSUP) => {
                let open = if self.right == SEARCH { PASSED_BY_ALL } else { 0 };
                fs::set_permissions(path, Permissions::from_mode(mode | open)).map(|()| false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns true if a path has this access.
    pub fn is_held(&self, path: &Path) -> bool {
        if self.has_no_acl() {
            // An ACL with users shows in the bits of the group, too.
            return fs::symlink_metadata(path).is_ok_and(|is| is.mode() & 0o7777 == self.mode());
        }
        let acl = self.acl();
        attribute(path, acl.len()).is_ok_and(|is| is == acl)
    }

    fn has_no_acl(&self) -> bool {
        self.everyone || self.users.is_empty()
    }

    fn mode(&self) -> u32 {
        u32::from(self.own) << 6 | if self.everyone { PASSED_BY_ALL } else { 0 }
    }

    /// Returns the entries, in the order that the kernel requires: by tag, then by user. The kernel sets the mode by them.
    fn acl(&self) -> Vec<u8> {
        let users = self.users.iter().map(|uid| (USER, self.right, *uid));
        let mut acl = VERSION.to_le_bytes().to_vec();
        let own = std::iter::once((OWNER, self.own, NOBODY));
        let rest = [(OWNING_GROUP, 0, NOBODY), (MASK, self.right, NOBODY), (OTHERS, 0, NOBODY)];
        for (tag, permissions, uid) in own.chain(users).chain(rest) {
            acl.extend(u16::to_le_bytes(tag));
            acl.extend(u16::to_le_bytes(permissions));
            acl.extend(u32::to_le_bytes(uid));
        }
        acl
    }
}

/// Sorts users, each once, without root and this process's own user.
fn others(users: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let me = rustix::process::geteuid().as_raw();
    let mut users: Vec<u32> = users.into_iter().filter(|uid| *uid != 0 && *uid != me).collect();
    users.sort_unstable();
    users.dedup();
    users
}

/// Returns true if a user of these groups, who does not own the directory, may pass by its ACL; `None` if it has no ACL.
pub fn passes_by_acl(directory: &Path, group: u32, uid: u32, groups: &[u32]) -> Option<bool> {
    let acl = attribute(directory, LONGEST).ok()?;
    let number = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
    let id = |entry: &[u8]| u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
    let entries = acl.get(4..)?.chunks_exact(8).map(|entry| (number(entry), number(&entry[2..]), id(entry)));
    let entries: Vec<(u16, u16, u32)> = entries.collect();
    let of =
        |wanted: u16| entries.iter().find(|(tag, ..)| *tag == wanted).map(|(_, permissions, _)| *permissions);
    let mask = of(MASK).unwrap_or(0o7);
    if let Some((_, permissions, _)) = entries.iter().find(|(tag, _, of)| *tag == USER && *of == uid) {
        return Some(permissions & mask & SEARCH != 0);
    }
    let is_theirs = |tag: u16, of: u32| match tag {
        OWNING_GROUP => groups.contains(&group),
        GROUP => groups.contains(&of),
        _ => false,
    };
    let mut matching = entries.iter().filter(|(tag, _, of)| is_theirs(*tag, *of)).peekable();
    if matching.peek().is_some() {
        return Some(matching.any(|(_, permissions, _)| permissions & mask & SEARCH != 0));
    }
    Some(of(OTHERS).unwrap_or(0) & SEARCH != 0)
}

fn attribute(path: &Path, room: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; room];
    let length = getxattr(path, ATTRIBUTE, &mut bytes[..])?;
    bytes.truncate(length);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    /// Returns true if the kernel lets a user reach a file in a directory.
    fn reaches(directory: &Path, uid: u32) -> bool {
        let file = directory.join("file");
        as_user(uid, || fs::metadata(&file).is_ok())
    }

    fn as_user(uid: u32, look: impl Fn() -> bool + Sync) -> bool {
        std::thread::scope(|scope| {
            let look = || {
                let user = rustix::thread::Uid::from_raw(uid);
                let group = rustix::thread::Gid::from_raw(uid);
                rustix::thread::set_thread_groups(&[]).expect("root may");
                rustix::thread::set_thread_res_gid(group, group, group).expect("root may");
                rustix::thread::set_thread_res_uid(user, user, user).expect("root may");
                look()
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
            let access = |users: &[u32], everyone| PathAccess::passed_by(users.iter().copied(), everyone);
            for (wanted, who) in [
                (access(&[], false), vec![]),
                (access(&[1234, 65_534, 1234, 0], false), vec![1234, 65_534]),
                (access(&[65_534], false), vec![65_534]),
                (access(&[33], true), vec![33, 1234, 65_534]),
                (access(&[33], false), vec![33]),
                (access(&[], false), vec![]),
            ] {
                for _ in 0..2 {
                    assert!(wanted.keep(&directory).expect("kept"), "{home} has ACLs");
                    let pass: Vec<u32> =
                        [33, 1234, 65_534].into_iter().filter(|uid| reaches(&directory, *uid)).collect();
                    assert_eq!(pass, who, "{home} {wanted:?}");
                    assert!(fs::read_dir(&directory).is_ok(), "root does");
                }
                let has_acl = !wanted.users.is_empty() && !wanted.everyone;
                let by_acl = |uid, groups: &[u32]| passes_by_acl(&directory, 0, uid, groups);
                assert_eq!(by_acl(33, &[33]), has_acl.then(|| wanted.users.contains(&33)));
                assert_eq!(by_acl(7, &[0]), has_acl.then_some(false), "the owning group may nothing");
            }
        }
    }

    #[test]
    fn file_is_read_by_its_user_alone() {
        if !is_root() {
            return;
        }
        let top = tempfile::tempdir().expect("a directory");
        fs::set_permissions(top.path(), Permissions::from_mode(0o711)).expect("mode");
        let file = top.path().join("file");
        fs::write(&file, "x").expect("written");
        PathAccess::read_by([1234]).keep(&file).expect("kept");
        let reads = |uid| as_user(uid, || fs::read(&file).is_ok());
        let writes = |uid| as_user(uid, || fs::File::options().append(true).open(&file).is_ok());
        assert_eq!([reads(1234), reads(33)], [true, false]);
        assert!(
            !writes(1234)
                && !as_user(1234, || fs::set_permissions(&file, Permissions::from_mode(0o600)).is_ok())
        );
    }

    #[test]
    fn file_system_without_acls_is_told() {
        let top = tempfile::tempdir().expect("a directory");
        let access = PathAccess::passed_by([1], false);
        // A missing path has no ACL, and neither has a directory of /proc.
        access.keep(&top.path().join("none")).expect_err("it is not there");
        assert!(attribute(Path::new("/proc/self"), LONGEST).is_err());
    }
}
