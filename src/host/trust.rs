//! Trust in files and directories: nobody but their owner may change them, and the owner is trusted.
//!
//! A path is as safe as the weakest directory on the way to it: a user who may rename an entry there decides where the rest of the path
//! leads. So each directory is checked from `/` down, through every symbolic link. A directory that everybody may write is accepted with
//! the sticky bit, as `/tmp` has it: there nobody renames the entries of other users. ACLs are not read.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::process::geteuid;

/// Most symbolic links on the way to one path; the kernel gives up at as many.
const LINKS: u32 = 40;
/// Write permission of group and others.
const WRITE: u32 = 0o022;
/// The bit that keeps the users of a directory from renaming each other's files.
const STICKY: u32 = 0o1000;

/// Reason why a path is not trusted, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} {problem}: {remedy}", path.display())]
pub struct Untrusted {
    /// The file or directory that has to be mended; it may be one on the way to the path that was checked.
    pub path: PathBuf,
    /// Description of the fault.
    pub problem: String,
    /// Remedy, with the command.
    pub remedy: String,
}

/// Expected object at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A directory, which others may read.
    Directory,
    /// A file that others may read.
    File,
    /// A file that nobody but its owner may read.
    Secret,
    /// A file that nobody but its owner and its group may read, as a private key.
    GroupSecret,
    /// A socket: the process at the other end decides who may connect.
    Socket,
}

impl Content {
    /// Returns the permission bits that it must not have.
    fn forbidden(self) -> u32 {
        match self {
            Self::Directory | Self::File => WRITE,
            Self::Secret => 0o077,
            Self::GroupSecret => 0o027,
            Self::Socket => 0,
        }
    }
}

/// Reads a text on which root acts: root reads it only if nobody but root and the user of sudo can change it; others read any file they
/// may.
pub fn read_text(path: &Path) -> io::Result<String> {
    if geteuid().is_root() {
        let before_sudo = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
        let trust = before_sudo.map_or_else(Trust::own, |uid| Trust::own().and(uid));
        trust.check(path, Content::File).map_err(io::Error::other)?;
    }
    fs::read_to_string(path)
}

/// The users that are trusted.
#[derive(Debug, Clone)]
pub struct Trust {
    uids: Vec<u32>,
}

impl Trust {
    /// Trusts root, and the user of this process.
    pub fn own() -> Self {
        Self::root().and(geteuid().as_raw())
    }

    /// Trusts root alone.
    pub fn root() -> Self {
        Self { uids: vec![0] }
    }

    /// Adds one more trusted user.
    #[must_use]
    pub fn and(mut self, uid: u32) -> Self {
        if !self.uids.contains(&uid) {
            self.uids.push(uid);
        }
        self
    }

    /// Returns true if a user is trusted.
    pub fn includes(&self, uid: u32) -> bool {
        self.uids.contains(&uid)
    }

    /// Checks a path and all directories on the way to it; returns the object there, and `None` if nothing exists there yet.
    ///
    /// If the path does not exist, the directories that do are still checked.
    pub fn check(&self, path: &Path, content: Content) -> Result<Option<Metadata>, Untrusted> {
        self.follow(path, content, true)
    }

    /// Checks a path as [`check`](Self::check) does, and refuses it if it is a symbolic link itself.
    pub fn check_no_link(&self, path: &Path, content: Content) -> Result<Option<Metadata>, Untrusted> {
        self.follow(path, content, false)
    }

    fn follow(&self, path: &Path, content: Content, links: bool) -> Result<Option<Metadata>, Untrusted> {
        let absolute = std::path::absolute(path).map_err(|error| unreadable(path, &error))?;
        let mut reached = PathBuf::from("/");
        let mut rest = parts(&absolute);
        let mut followed = 0;
        self.check_on_the_way(&reached, &metadata(&reached)?)?;
        while let Some(part) = rest.pop() {
            if part == ".." {
                reached.pop();
                continue;
            }
            let next = reached.join(&part);
            let entry = match fs::symlink_metadata(&next) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                other => other.map_err(|error| unreadable(&next, &error))?,
            };
            if entry.is_symlink() {
                if rest.is_empty() && reached.starts_with("/proc") {
                    // `/proc/PID/fd/N` leads to an open file, whatever path its link shows.
                    return self.check_end(&next, metadata(&next)?, content).map(Some);
                }
                if rest.is_empty() && !links {
                    return Err(Untrusted {
                        remedy: format!("remove it (rm {})", next.display()),
                        problem: "is a symbolic link, and no link is followed there".into(),
                        path: next,
                    });
                }
                self.check_owner(&next, &entry)?;
                followed += 1;
                let target = fs::read_link(&next).map_err(|error| unreadable(&next, &error))?;
                if followed > LINKS {
                    return Err(unreadable(&next, &"it leads through too many symbolic links"));
                }
                if target.is_absolute() {
                    reached = PathBuf::from("/");
                }
                rest.extend(parts(&target));
            } else if rest.is_empty() {
                return self.check_end(&next, entry, content).map(Some);
            } else {
                self.check_on_the_way(&next, &entry)?;
                reached = next;
            }
        }
        // The path, or the end of a link, is a directory that was checked on the way.
        let directory = metadata(&reached)?;
        self.check_end(&reached, directory, content).map(Some)
    }

    fn check_owner(&self, path: &Path, metadata: &Metadata) -> Result<(), Untrusted> {
        if self.includes(metadata.uid()) {
            return Ok(());
        }
        let name = |uid: &u32| if *uid == 0 { "root".to_owned() } else { format!("uid {uid}") };
        let owners: Vec<String> = self.uids.iter().map(name).collect();
        // The last one is the caller, unless that is root.
        let owner = self.uids.last().copied().unwrap_or(0);
        let follow = if metadata.is_symlink() { "-h " } else { "" };
        Err(Untrusted {
            path: path.to_owned(),
            problem: format!("belongs to uid {} and must belong to {}", metadata.uid(), owners.join(" or ")),
            remedy: format!("chown {follow}{owner} {}, or choose another place", path.display()),
        })
    }

    fn check_on_the_way(&self, path: &Path, metadata: &Metadata) -> Result<(), Untrusted> {
        self.check_owner(path, metadata)?;
        if metadata.mode() & WRITE == 0 || metadata.mode() & STICKY != 0 {
            return Ok(());
        }
        Err(Untrusted {
            path: path.to_owned(),
            problem: format!(
                "can be written by others (mode {:o}), who can rename what is in it",
                metadata.mode() & 0o7777
            ),
            remedy: format!("chmod go-w {}, or choose another place", path.display()),
        })
    }

    fn check_end(&self, path: &Path, metadata: Metadata, content: Content) -> Result<Metadata, Untrusted> {
        self.check_owner(path, &metadata)?;
        let loose = metadata.mode() & content.forbidden();
        // Data that is written to /dev/null reaches nobody.
        if loose == 0 || metadata.file_type().is_char_device() {
            return Ok(metadata);
        }
        let mode = metadata.mode() & 0o7777;
        let shown = path.display();
        let (problem, remedy) = match content {
            Content::Secret | Content::GroupSecret if loose & !WRITE != 0 => (
                format!("can be used by others (mode {mode:03o})"),
                format!("chmod 600 {shown}, and replace it if others may have read it"),
            ),
            Content::Secret | Content::GroupSecret => {
                (format!("can be written by others (mode {mode:03o})"), format!("chmod 600 {shown}"))
            }
            _ => (format!("can be written by others (mode {mode:o})"), format!("chmod go-w {shown}")),
        };
        Err(Untrusted { path: path.to_owned(), problem, remedy })
    }
}

/// Returns the parts of a path in reverse, without `/` and `.`.
fn parts(path: &Path) -> Vec<OsString> {
    let named = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    let mut named: Vec<OsString> = named.collect();
    named.reverse();
    named
}

fn metadata(path: &Path) -> Result<Metadata, Untrusted> {
    fs::metadata(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> Untrusted {
    Untrusted {
        path: path.to_owned(),
        problem: format!("cannot be checked ({why})"),
        remedy: "run this as a user who may, or choose another place".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    struct TestDirectory(tempfile::TempDir);

    impl TestDirectory {
        fn new() -> Self {
            Self(tempfile::tempdir_in("/tmp").expect("a directory"))
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn file(&self, name: &str, bits: u32) -> PathBuf {
            let path = self.path(name);
            fs::write(&path, "").expect("written");
            mode(&path, bits);
            path
        }

        fn directory(&self, name: &str, bits: u32) -> PathBuf {
            let path = self.path(name);
            fs::create_dir_all(&path).expect("made");
            mode(&path, bits);
            path
        }
    }

    fn mode(path: &Path, bits: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(bits)).expect("mode");
    }

    fn refused(path: &Path, content: Content) -> String {
        Trust::own().check(path, content).expect_err("refused").to_string()
    }

    #[test]
    fn modes_open_to_others_are_refused() {
        use Content::{Directory, File, GroupSecret, Secret, Socket};
        let place = TestDirectory::new();
        for (content, good, bad) in [
            (File, vec![0o600, 0o644], vec![0o664, 0o646, 0o666]),
            (Secret, vec![0o600, 0o400], vec![0o640, 0o604, 0o620]),
            (GroupSecret, vec![0o600, 0o640], vec![0o604, 0o644, 0o620, 0o660]),
            (Socket, vec![0o666], vec![]),
            (Directory, vec![0o755, 0o700], vec![0o775, 0o777, 0o1777]),
        ] {
            for bits in good {
                let metadata = Trust::own().check(&place.file("a", bits), content).expect("trusted");
                assert_eq!(metadata.expect("there").mode() & 0o7777, bits);
            }
            for bits in bad {
                let message = refused(&place.file("a", bits), content);
                assert!(
                    message.contains(&format!("mode {bits:o}")) && message.contains("chmod"),
                    "{message}"
                );
            }
        }
    }

    #[test]
    fn a_parent_that_others_may_change_is_refused() {
        let place = TestDirectory::new();
        let parent = place.directory("parent", 0o755);
        place.directory("parent/inner", 0o755);
        let file = place.file("parent/inner/file", 0o600);
        Trust::own().check(&file, Content::Secret).expect("trusted");
        mode(&parent, 0o777);
        let message = refused(&file, Content::Secret);
        assert!(message.contains(&format!("chmod go-w {}", parent.display())), "{message}");
        refused(&place.path("parent/none/at/all"), Content::File);
        mode(&parent, 0o1777);
        Trust::own().check(&file, Content::Secret).expect("nobody renames it");
    }

    #[test]
    fn missing_path_is_trusted() {
        let place = TestDirectory::new();
        assert!(Trust::own().check(&place.path("a/b/c"), Content::Directory).expect("trusted").is_none());
    }

    #[test]
    fn links_are_followed_and_their_ends_judged() {
        let place = TestDirectory::new();
        let file = place.file("file", 0o600);
        let (direct, relative) = (place.path("direct"), place.path("relative"));
        symlink(&file, &direct).expect("link");
        place.directory("inner", 0o755);
        symlink("inner/../file", &relative).expect("link");
        for link in [&direct, &relative] {
            assert!(Trust::own().check(link, Content::Secret).expect("trusted").is_some());
            let message = Trust::own().check_no_link(link, Content::Secret).expect_err("a link").to_string();
            assert!(message.contains("is a symbolic link") && message.contains("rm "), "{message}");
        }
        mode(&file, 0o666);
        assert!(refused(&direct, Content::File).starts_with(&format!("{} can be", file.display())));
        let round = place.path("round");
        symlink(&round, &round).expect("link");
        assert!(refused(&round, Content::File).contains("too many symbolic links"));
    }

    #[test]
    fn owners_other_than_root_and_me_are_refused() {
        if !geteuid().is_root() {
            eprintln!("SKIPPED: only root can give files away");
            return;
        }
        let place = TestDirectory::new();
        let file = place.file("file", 0o600);
        chown(&file, Some(65_534), None).expect("given away");
        let message = refused(&file, Content::Secret);
        assert!(message.contains("belongs to uid 65534") && message.contains("chown 0 "), "{message}");
        Trust::own().and(65_534).check(&file, Content::Secret).expect("trusted");
        let parent = place.directory("parent", 0o755);
        let inner = place.file("parent/inner", 0o600);
        chown(&parent, Some(65_534), None).expect("given away");
        assert!(refused(&inner, Content::Secret).contains("parent belongs to uid 65534"));
        // A link of another program may lead anywhere.
        let link = place.path("link");
        symlink(place.file("mine", 0o600), &link).expect("link");
        std::os::unix::fs::lchown(&link, Some(65_534), None).expect("given away");
        assert!(refused(&link, Content::Secret).contains("chown -h 0 "));
    }

    #[test]
    fn an_open_file_is_judged_by_itself() {
        let place = TestDirectory::new();
        let open = fs::File::open(place.file("file", 0o600)).expect("opened");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
        assert!(Trust::own().check(Path::new(&path), Content::Secret).expect("trusted").is_some());
    }
}
