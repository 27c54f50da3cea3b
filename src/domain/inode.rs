//! The identity of a file or a directory, which a later one of the same name does not have.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

/// The inode of a file or a directory, with its time of creation: a file system may reuse the number of a removed file for the next one
/// (ext4 does so at once).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inode {
    /// Its number.
    pub number: u64,
    /// Time of its creation, in unix nanoseconds; `None` if the file system does not keep it.
    pub born: Option<i64>,
}

impl From<&Metadata> for Inode {
    fn from(metadata: &Metadata) -> Self {
        let born = metadata.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        Self { number: metadata.ino(), born: born.and_then(|born| i64::try_from(born.as_nanos()).ok()) }
    }
}

impl Inode {
    /// Returns true if it is the recorded one. Only the numbers are compared if one of the two has no time.
    pub fn is_same(self, remembered: Self) -> bool {
        self.number == remembered.number
            && self.born.zip(remembered.born).is_none_or(|(now, before)| now == before)
    }
}

impl std::fmt::Display for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.born {
            Some(born) => {
                write!(f, "{} made at {}.{:09}", self.number, born / 1_000_000_000, born % 1_000_000_000)
            }
            None => write!(f, "{}", self.number),
        }
    }
}

/// Position up to which a file was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePlace {
    /// The file.
    pub inode: Inode,
    /// Number of bytes that were read.
    pub offset: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reused_inode_is_another_directory() {
        let inode = |number, born| Inode { number, born };
        assert!(inode(7, Some(1)).is_same(inode(7, Some(1))));
        assert!(!inode(7, Some(2)).is_same(inode(7, Some(1))));
        assert!(!inode(8, Some(1)).is_same(inode(7, Some(1))));
        // A file system that keeps no time.
        assert!(inode(7, Some(2)).is_same(inode(7, None)));
        assert!(!inode(8, Some(2)).is_same(inode(7, None)));
        assert_eq!(inode(7, Some(1_500_000_000)).to_string(), "7 made at 1.500000000");
    }
}
