//! Record of the end of the audit, kept in a small file outside of the database.
//!
//! SQLite does not notice that its log was removed while no process had the database open: it serves the rest, and the audit verifies,
//! since it was cut at the same place. The file records a row that was on the disk, so a database without this row has lost what was
//! written since.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::{Db, audit};
use crate::domain::audit::Head;
use crate::host::durable_file;

/// The file's name in the state directory.
pub const AUDIT_HEAD: &str = "audit.head";

/// The file with the last row of the audit.
#[derive(Debug, Clone)]
pub struct AuditHead {
    path: PathBuf,
}

/// A database whose audit does not have the recorded row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncated {
    /// The row that was on the disk.
    pub known: Head,
    /// The last row of the audit.
    pub found: Head,
}

impl AuditHead {
    /// Returns the file of a state directory; it need not exist.
    pub fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join(AUDIT_HEAD) }
    }

    /// Returns true if a row was recorded.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Reads the recorded row; `None` if there is no file, and `InvalidData` if its content is malformed.
    pub fn read(&self) -> io::Result<Option<Head>> {
        match fs::read_to_string(&self.path) {
            Ok(text) => parse(&text).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Records a row: it is on the disk once this returns, and a crash leaves either this row or the one before.
    pub fn write(&self, head: &Head) -> io::Result<()> {
        durable_file::replace(&self.path, format!("{} {}\n", head.id, head.hash).as_bytes())
    }

    /// Removes the file.
    pub fn forget(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Checks that a database has the recorded row with the recorded hash.
pub async fn compare(db: &mut Db, recorded: &Head) -> super::Result<Result<(), Truncated>> {
    let head = audit::head(&mut *db).await?;
    if recorded.id == 0 || audit::has(db, recorded).await? {
        return Ok(Ok(()));
    }
    Ok(Err(Truncated { known: recorded.clone(), found: head }))
}

fn parse(text: &str) -> Option<Head> {
    let (id, hash) = text.trim_end().split_once(' ')?;
    let plain = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then_some(Head { id: id.parse().ok().filter(|id| *id >= 0)?, hash: hash.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::*;
    use crate::domain::access::Actor;
    use crate::domain::audit::{AttemptedAction, Target};
    use crate::store::audit::AuditResult;

    #[test]
    fn a_head_is_written_and_read_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = AuditHead::in_directory(directory.path());
        assert!(!file.exists() && file.read().expect("none").is_none());
        for id in [1, 20] {
            let head = Head { id, hash: "ab".repeat(32) };
            file.write(&head).expect("written");
            assert_eq!(file.read().expect("read"), Some(head));
        }
        for text in ["", "7", "x ab", "-1 ab", "7 zz", "7 abcd"] {
            fs::write(&file.path, text).expect("written");
            let error = file.read().expect_err("no head");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{text:?}");
        }
        file.forget().expect("removed");
        file.forget().expect("nothing to remove");
        assert!(!file.exists());
    }

    #[tokio::test]
    async fn truncated_audit_log_is_detected() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(&directory.path().join("test.db"), 0).await.expect("a store");
        let attempt =
            AttemptedAction::of(&Actor::manager(), None, "test".into(), Target::Other("test".into()));
        for _ in 0..2 {
            let attempt = attempt.clone();
            let written: super::super::Result<()> = store
                .commit(move |db| {
                    Box::pin(async move {
                        audit::append(db, &attempt, AuditResult::default(), 7).await?;
                        Ok(())
                    })
                })
                .await;
            written.expect("written");
        }
        let mut db = store.read().await.expect("a reader");
        let head = audit::head(&mut db).await.expect("a head");
        assert_eq!(head.id, 2);
        let lost =
            |id: i64, hash: &str| Truncated { known: Head { id, hash: hash.into() }, found: head.clone() };
        for (known, expected) in [
            (head.clone(), Ok(())),
            (Head::genesis(), Ok(())),
            (Head { id: 3, hash: "ab".into() }, Err(lost(3, "ab"))),
            (Head { id: 1, hash: "ab".into() }, Err(lost(1, "ab"))),
        ] {
            assert_eq!(compare(&mut db, &known).await.expect("compared"), expected);
        }
    }
}
