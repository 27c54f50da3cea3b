//! Files whose content survives a crash, and that only this user can read.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Puts a file with this content in its place, for one caller at a time: it is on the disk once this returns, and after a crash the file
/// has either this content or the one before.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let unfinished = path.with_file_name(name);
    let _ = fs::remove_file(&unfinished);
    let written = File::options().write(true).create_new(true).mode(0o600).open(&unfinished);
    let written = written.and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()));
    if let Err(error) = written.and_then(|()| fs::rename(&unfinished, path)) {
        let _ = fs::remove_file(&unfinished);
        return Err(error);
    }
    sync_directory(path)
}

/// Writes the directory of a file to the disk, so that the file has its name after a crash.
pub fn sync_directory(file: &Path) -> io::Result<()> {
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn file_is_private_and_replaced_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("key");
        // Left by a crash.
        fs::write(directory.path().join("key.new"), "half").expect("written");
        for content in ["one", "another"] {
            replace(&path, content.as_bytes()).expect("replaced");
            assert_eq!(fs::read_to_string(&path).expect("read"), content);
            assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 1);
        assert!(replace(&directory.path().join("none/key"), b"").is_err());
    }
}
