//! Directories watched for changes (inotify), without polling.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use super::readable;

/// Some directories that are watched together.
#[derive(Debug)]
pub struct Watch {
    fd: AsyncFd<OwnedFd>,
    /// The inode that each had when it was taken, and the watch that it got.
    covered: BTreeMap<PathBuf, (u64, i32)>,
}

impl Watch {
    /// Watches nothing yet.
    pub fn new() -> io::Result<Self> {
        let fd = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Self { fd: readable(fd)?, covered: BTreeMap::new() })
    }

    /// Watches a directory: what is written, made, renamed or removed in it, and its own end.
    ///
    /// One that was replaced since the last call is watched again; for one that was not, this costs a `stat`. A directory
    /// that was removed and made again may have its old inode: its end is known once [`changed`](Self::changed) has
    /// reported it.
    pub fn cover(&mut self, directory: &Path) -> io::Result<()> {
        let inode = std::fs::metadata(directory)?.ino();
        if self.covered.get(directory).is_some_and(|(covered, _)| *covered == inode) {
            return Ok(());
        }
        let events = WatchFlags::MODIFY
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let watch = add_watch(self.fd.get_ref(), directory, events)?;
        self.covered.insert(directory.to_owned(), (inode, watch));
        Ok(())
    }

    /// Completes when something has happened since the last call; it forgets what that was.
    pub async fn changed(&mut self) {
        loop {
            if self.drain() {
                return;
            }
            let Ok(mut ready) = self.fd.readable().await else { return std::future::pending().await };
            ready.clear_ready();
        }
    }

    /// Takes all events; says whether there were any. A directory that ended or went elsewhere is covered no longer.
    fn drain(&mut self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(self.fd.get_ref(), &mut buffer);
        let mut any = false;
        loop {
            match reader.next() {
                Ok(event) => {
                    any = true;
                    let (watch, flags) = (event.wd(), event.events());
                    if flags.intersects(ReadFlags::IGNORED | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
                        self.covered.retain(|_, (_, covered)| *covered != watch);
                    }
                    if flags.contains(ReadFlags::MOVE_SELF) {
                        // It would go on telling of the directory under its new name.
                        let _ = remove_watch(self.fd.get_ref(), watch);
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return any,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    async fn changes(watch: &mut Watch) {
        tokio::time::timeout(Duration::from_secs(30), watch.changed()).await.expect("noticed");
    }

    #[tokio::test]
    async fn directory_changes_are_noticed_after_replacement() {
        let home = tempfile::tempdir().expect("directory");
        let directory = home.path().join("log");
        fs::create_dir(&directory).expect("made");
        let mut watch = Watch::new().expect("inotify");
        watch.cover(&directory).expect("watched");
        assert!(!watch.drain(), "nothing has happened");
        fs::write(directory.join("a"), "1").expect("written");
        changes(&mut watch).await;
        while watch.drain() {}
        fs::write(directory.join("a"), "2").expect("written");
        changes(&mut watch).await;
        while watch.drain() {}
        fs::rename(&directory, home.path().join("old")).expect("renamed");
        changes(&mut watch).await;
        fs::create_dir(&directory).expect("made again");
        watch.cover(&directory).expect("watched again");
        while watch.drain() {}
        fs::write(directory.join("b"), "1").expect("written");
        changes(&mut watch).await;
        fs::remove_dir_all(&directory).expect("removed");
        assert!(watch.cover(&directory).is_err(), "there is none");
        changes(&mut watch).await;
    }
    #[tokio::test]
    async fn recreated_directory_is_watched_again() {
        // ext4 gives the new one the inode of the old, which tmpfs and others do not: either way it is watched.
        let home = tempfile::tempdir().expect("directory");
        let directory = home.path().join("log");
        fs::create_dir(&directory).expect("made");
        let mut watch = Watch::new().expect("inotify");
        for _ in 0..3 {
            watch.cover(&directory).expect("watched");
            fs::remove_dir(&directory).expect("removed");
            fs::create_dir(&directory).expect("made again");
            let inode = fs::metadata(&directory).expect("there").ino();
            // What the kernel does where it gives the same inode again.
            for (covered, _) in watch.covered.values_mut() {
                *covered = inode;
            }
            watch.cover(&directory).expect("nothing is known yet");
            changes(&mut watch).await;
            watch.cover(&directory).expect("watched again");
            while watch.drain() {}
            fs::write(directory.join("a"), "1").expect("written");
            changes(&mut watch).await;
            while watch.drain() {}
            fs::remove_file(directory.join("a")).expect("removed");
            changes(&mut watch).await;
        }
    }
}
