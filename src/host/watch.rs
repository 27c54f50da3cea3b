//! Directories watched for changes (inotify), without looking at them again and again.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use super::readable;

/// Some directories that are watched together.
#[derive(Debug)]
pub struct Watch {
    fd: AsyncFd<OwnedFd>,
    /// The inode that each had when it was taken.
    covered: BTreeMap<PathBuf, u64>,
}

impl Watch {
    /// Watches nothing yet.
    pub fn new() -> io::Result<Self> {
        let fd = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Self { fd: readable(fd)?, covered: BTreeMap::new() })
    }

    /// Watches a directory: what is written, made, renamed or removed in it, and its own end.
    ///
    /// One that was replaced since the last call is taken anew; for one that was not, this costs a `stat`.
    pub fn cover(&mut self, directory: &Path) -> io::Result<()> {
        let inode = std::fs::metadata(directory)?.ino();
        if self.covered.get(directory) == Some(&inode) {
            return Ok(());
        }
        let events = WatchFlags::MODIFY
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        add_watch(self.fd.get_ref(), directory, events)?;
        self.covered.insert(directory.to_owned(), inode);
        Ok(())
    }

    /// Completes when something has happened since the last call; it forgets what that was.
    pub async fn changed(&self) {
        loop {
            let Ok(mut ready) = self.fd.readable().await else { return std::future::pending().await };
            if self.drain() {
                return;
            }
            ready.clear_ready();
        }
    }

    /// Takes all events; says whether there were any.
    fn drain(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(self.fd.get_ref(), &mut buffer);
        let mut any = false;
        loop {
            match reader.next() {
                Ok(_) => any = true,
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

    async fn changes(watch: &Watch) {
        tokio::time::timeout(Duration::from_secs(30), watch.changed()).await.expect("noticed");
    }

    #[tokio::test]
    async fn what_is_written_made_or_removed_is_noticed_also_after_the_directory_was_replaced() {
        let home = tempfile::tempdir().expect("directory");
        let directory = home.path().join("log");
        fs::create_dir(&directory).expect("made");
        let mut watch = Watch::new().expect("inotify");
        watch.cover(&directory).expect("watched");
        assert!(!watch.drain(), "nothing has happened");
        fs::write(directory.join("a"), "1").expect("written");
        changes(&watch).await;
        while watch.drain() {}
        fs::write(directory.join("a"), "2").expect("written");
        changes(&watch).await;
        while watch.drain() {}
        fs::rename(&directory, home.path().join("old")).expect("renamed");
        changes(&watch).await;
        fs::create_dir(&directory).expect("made again");
        watch.cover(&directory).expect("watched anew");
        while watch.drain() {}
        fs::write(directory.join("b"), "1").expect("written");
        changes(&watch).await;
        fs::remove_dir_all(&directory).expect("removed");
        assert!(watch.cover(&directory).is_err(), "there is none");
        changes(&watch).await;
    }
}
