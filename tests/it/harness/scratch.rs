//! Where tests put what they write.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use tempfile::TempDir;

/// What all tests write at once, by far.
const ENOUGH: u64 = 1 << 30;

/// In memory where that can be: a disk that is slow to sync stops every process that writes to it, for longer than a
/// deadline, and the test sees a host that hangs. `MPS_MANAGER_TEST_DIR` names another place; keep it short, since the
/// path of a socket has 107 bytes at most.
static PLACE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let usable = access(memory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
        && statvfs(memory).is_ok_and(|disk| {
            !disk.f_flag.contains(StatVfsMountFlags::NOEXEC) && disk.f_bavail * disk.f_frsize >= ENOUGH
        });
    let usual = if usable { memory } else { Path::new("/tmp") };
    std::env::var_os("MPS_MANAGER_TEST_DIR").map_or_else(|| usual.to_owned(), PathBuf::from)
});

/// A directory of a test's own, which is removed with it.
pub(crate) fn directory(prefix: &str) -> TempDir {
    tempfile::Builder::new().prefix(prefix).rand_bytes(5).tempdir_in(&*PLACE).expect("a directory")
}

/// Copies a program. Another process makes the copy: a file that a fork of this one still has open for writing cannot be run.
pub(crate) fn install(from: &Path, to: &Path) {
    let copied = Command::new("install").arg("-m755").arg(from).arg(to).status().expect("install");
    assert!(copied.success(), "{} is not written", to.display());
}

/// Writes a program, which is a script.
pub(crate) fn install_script(path: &Path, script: &str) {
    let source = path.with_extension("source");
    fs::write(&source, script).expect("written");
    install(&source, path);
    fs::remove_file(source).expect("removed");
}
