//! The files themselves: each is written beside its place and renamed into it, so that a reader finds a whole one or none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::domain::TenantName;
use crate::domain::environment::cdi::{self, CdiDirectory};
use crate::host::access::{self, PathAccess};
use crate::host::trust::{Content, Trust};

/// Mode of both directories: engines read the specifications of other programs in one, and a user who knows a tenant's name passes through
/// the other, whose names are not secret.
const DIRECTORY_MODE: u32 = 0o755;
/// Suffixes of the names of environment files, and of unfinished files.
const ENVIRONMENT: &str = ".env";
const UNFINISHED: &str = ".new";

/// Contents that the files should have; by default none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct EngineFiles {
    /// The CDI specification; `None` if it would have no device.
    pub(super) specification: Option<String>,
    /// The tenants that have a device in the specification.
    pub(super) devices: BTreeSet<TenantName>,
    /// The environment of each tenant, for systemd, and its user.
    pub(super) environments: BTreeMap<TenantName, (u32, String)>,
    /// The generation of each tenant that its environment reflects.
    pub(super) generations: BTreeMap<TenantName, i64>,
}

/// Writes the files, one set at a time, until it is closed; clones are one writer.
#[derive(Debug, Clone)]
pub(in crate::service) struct EngineFileWriter {
    cdi: Option<CdiDirectory>,
    environments: PathBuf,
    is_closed: Arc<Mutex<bool>>,
    /// The tenants with a device in the specification as last written, and those in the files with their generations.
    listed: watch::Sender<(BTreeSet<TenantName>, BTreeMap<TenantName, i64>)>,
    /// Wakes the task that updates the files, because a caller waits for them.
    requested: Arc<Notify>,
    /// Numbers of the last update of the files that was begun, and of the last one that was finished.
    passes: watch::Sender<(u64, u64)>,
}

impl EngineFileWriter {
    /// Creates a writer that keeps the specification in a CDI directory, if there is one, and environments in a runtime directory.
    pub(in crate::service) fn new(cdi: Option<CdiDirectory>, runtime_dir: &Path) -> Self {
        Self {
            cdi,
            environments: runtime_dir.join("env"),
            is_closed: Arc::default(),
            listed: watch::Sender::default(),
            requested: Arc::default(),
            passes: watch::Sender::default(),
        }
    }

    /// Updates the files; returns a message with the remedy for each part that failed. Blocks.
    pub(super) fn keep(&self, files: &EngineFiles) -> Vec<String> {
        let is_closed = self.is_closed.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_closed { Vec::new() } else { self.write(files) }
    }

    /// Removes the files, and writes none from now on; waits until a write in progress has ended. Blocks.
    pub(super) fn close(&self) -> Vec<String> {
        let mut is_closed = self.is_closed.lock().unwrap_or_else(PoisonError::into_inner);
        *is_closed = true;
        self.write(&EngineFiles::default())
    }

    /// Returns true if a tenant has a device in the specification.
    pub(super) fn lists(&self, tenant: &TenantName) -> bool {
        self.listed.borrow().0.contains(tenant)
    }

    /// Requests an update of the files, and waits until they have this generation of a tenant.
    pub(super) async fn await_tenant(&self, tenant: &TenantName, generation: i64, longest: Duration) {
        let is_so = |(_, files): &(BTreeSet<_>, BTreeMap<_, i64>)| {
            files.get(tenant).is_some_and(|written| *written >= generation)
        };
        let mut listed = self.listed.subscribe();
        if is_so(&listed.borrow()) {
            return;
        }
        self.requested.notify_one();
        // What comes of it, the caller sees.
        let _ = timeout(longest, listed.wait_for(is_so)).await;
    }

    /// Requests an update of the files, and waits until it is finished.
    pub(super) async fn await_pass(&self, longest: Duration) {
        let mut passes = self.passes.subscribe();
        let (begun, _) = *passes.borrow();
        self.requested.notify_one();
        let _ = timeout(longest, passes.wait_for(|(_, done)| *done > begun)).await;
    }

    /// Records that an update of the files begins, or that it is finished.
    pub(super) fn pass(&self, is_done: bool) {
        self.passes.send_modify(|(begun, done)| if is_done { *done = *begun } else { *begun += 1 });
    }

    /// Waits until a caller requests an update of the files.
    pub(super) async fn requested(&self) {
        self.requested.notified().await;
    }

    fn write(&self, files: &EngineFiles) -> Vec<String> {
        let specification = files.specification.as_deref();
        let specification = self.cdi.as_ref().map(|directory| keep_specification(directory, specification));
        let environments = keep_environments(&self.environments, &files.environments);
        let is_written = matches!(specification, Some(Ok(())));
        let devices = if is_written { files.devices.clone() } else { BTreeSet::new() };
        let has_failed = environments.is_err() || matches!(specification, Some(Err(_)));
        let generations = if has_failed { BTreeMap::new() } else { files.generations.clone() };
        self.listed.send_replace((devices, generations));
        specification.into_iter().chain([environments]).filter_map(Result::err).collect()
    }
}

fn keep_specification(directory: &CdiDirectory, text: Option<&str>) -> Result<(), String> {
    let CdiDirectory { path, is_default } = directory;
    let (shown, file) = (path.display(), path.join(cdi::FILE));
    let other = "or name another as cdi_dir in the configuration (\"off\" for none)";
    if !is_default && !path.is_dir() {
        return Err(format!(
            "the CDI directory {shown} is not there, so container engines are given no tenant: make it (mkdir -m 755 {shown}), {other}"
        ));
    }
    Trust::own().check(path, Content::Directory).map_err(|untrusted| {
        format!(
            "container engines are given no tenant, since others could change what they read: {untrusted}"
        )
    })?;
    let Some(text) = text else {
        return remove(&file).map_err(|error| {
            format!(
                "{} cannot be removed ({error}), so container engines still find tenants that take no new processes: remove it",
                file.display()
            )
        });
    };
    let made = if *is_default { make_directory(path) } else { Ok(()) };
    made.and_then(|()| replace(&file, text, None)).map_err(|error| {
        format!(
            "{} cannot be written ({error}), so container engines are not given the tenants as they are: see that the manager may \
             write in {shown} and that the disk has room, {other}",
            file.display()
        )
    })
}

fn keep_environments(directory: &Path, desired: &BTreeMap<TenantName, (u32, String)>) -> Result<(), String> {
    let failed = |error: io::Error| {
        format!(
            "the environment files in {} cannot be kept ({error}), so units are not given the tenants as they are: see that the \
             runtime directory has room and belongs to the manager",
            directory.display()
        )
    };
    if !desired.is_empty() {
        make_directory(directory).map_err(failed)?;
    }
    let checked = Trust::own().check_no_link(directory, Content::Directory);
    if checked.map_err(|untrusted| untrusted.to_string())?.is_none() {
        return Ok(());
    }
    access::PASSED.keep(directory).map_err(failed)?;
    let names: BTreeSet<String> = desired.keys().map(|tenant| format!("{tenant}{ENVIRONMENT}")).collect();
    for entry in fs::read_dir(directory).map_err(failed)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_ours = name.trim_end_matches(UNFINISHED).ends_with(ENVIRONMENT);
        if is_ours && !names.contains(&name) {
            remove(&entry.path()).map_err(failed)?;
        }
    }
    // One that cannot be written does not keep the others from it.
    let written = desired.iter().map(|(tenant, (uid, text))| {
        let file = directory.join(format!("{tenant}{ENVIRONMENT}"));
        replace(&file, text, Some(*uid))
    });
    written.fold(Ok(()), io::Result::and).map_err(failed)
}

fn make_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Err(_) => Ok(()),
        // The umask may have taken bits away.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(DIRECTORY_MODE)),
    }
}

/// Puts a file with this text in its place, unless it is there; where that fails, the one before goes: it is no longer true.
///
/// Those who start units and containers read it as root, and so may this `user`: limits and sockets are nobody else's business.
fn replace(path: &Path, text: &str, user: Option<u32>) -> io::Result<()> {
    let access = PathAccess::read_by(user);
    let has_length = |metadata: fs::Metadata| metadata.is_file() && metadata.len() == text.len() as u64;
    if fs::symlink_metadata(path).is_ok_and(has_length)
        && fs::read(path).is_ok_and(|content| content == text.as_bytes())
    {
        return access.keep(path).map(drop);
    }
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(UNFINISHED);
    let unfinished = path.with_file_name(name);
    let _ = fs::remove_file(&unfinished);
    let written = File::options().write(true).create_new(true).mode(0o600).open(&unfinished);
    let written = written.and_then(|mut file| file.write_all(text.as_bytes()));
    let written = written.and_then(|()| access.keep(&unfinished));
    let placed = written.and_then(|_| fs::rename(&unfinished, path));
    if placed.is_err() {
        let _ = fs::remove_file(&unfinished);
        let _ = fs::remove_file(path);
    }
    placed
}

/// Removes a file that may be gone; on a file system that is read-only too, where one that is gone is no error either.
fn remove(path: &Path) -> io::Result<()> {
    let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    if fs::symlink_metadata(path).is_err_and(|error| is_gone(&error)) {
        return Ok(());
    }
    fs::remove_file(path).or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Place {
        home: tempfile::TempDir,
        writer: EngineFileWriter,
    }

    impl Place {
        /// A directory of specifications that is named `cdi`.
        fn new(is_default: bool) -> Self {
            let home = tempfile::tempdir().expect("directory");
            let cdi = CdiDirectory { path: home.path().join("cdi"), is_default };
            let writer = EngineFileWriter::new(Some(cdi), home.path());
            Self { home, writer }
        }

        fn read(&self, file: &str) -> Option<String> {
            fs::read_to_string(self.home.path().join(file)).ok()
        }

        fn names(&self, directory: &str) -> Vec<String> {
            let entries = fs::read_dir(self.home.path().join(directory)).into_iter().flatten().flatten();
            let mut names: Vec<String> =
                entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort_unstable();
            names
        }
    }

    fn files(specification: Option<&str>, tenants: &[(&str, &str)]) -> EngineFiles {
        let environment = |(tenant, text): &(&str, &str)| {
            (
                TenantName::parse(tenant).expect("a name"),
                (rustix::process::geteuid().as_raw(), (*text).to_owned()),
            )
        };
        EngineFiles {
            devices: BTreeSet::new(),
            specification: specification.map(str::to_owned),
            environments: tenants.iter().map(environment).collect(),
            generations: BTreeMap::new(),
        }
    }

    fn none() -> Vec<String> {
        Vec::new()
    }

    #[test]
    fn files_follow_the_tenants() {
        let place = Place::new(true);
        let keep = |files: &EngineFiles| place.writer.keep(files);
        assert_eq!(keep(&files(Some("one"), &[("a", "A=1"), ("b", "B=1")])), none());
        assert_eq!(place.read("cdi/mps-manager.json").as_deref(), Some("one"));
        assert_eq!(place.names("env"), ["a.env", "b.env"]);
        for (file, mode) in [("env", 0o711), ("env/a.env", 0o400), ("cdi/mps-manager.json", 0o400)] {
            let is = fs::metadata(place.home.path().join(file)).expect("there").permissions().mode();
            assert_eq!(is & 0o7777, mode, "{file}");
        }
        assert_eq!(keep(&files(Some("two"), &[("b", "B=2")])), none());
        assert_eq!(place.read("cdi/mps-manager.json").as_deref(), Some("two"));
        assert_eq!((place.read("env/a.env"), place.read("env/b.env").as_deref()), (None, Some("B=2")));
        assert_eq!(place.names("cdi"), ["mps-manager.json"], "nothing unfinished");
        assert_eq!(keep(&EngineFiles::default()), none());
        assert_eq!((place.names("cdi"), place.names("env")), (none(), none()));
    }

    #[test]
    fn removed_file_is_written_again() {
        let place = Place::new(true);
        let desired = files(Some("one"), &[("a", "A=1")]);
        place.writer.keep(&desired);
        fs::remove_file(place.home.path().join("cdi/mps-manager.json")).expect("removed");
        fs::write(place.home.path().join("env/a.env"), "A=9").expect("written");
        assert_eq!(place.writer.keep(&desired), none());
        assert_eq!(place.read("cdi/mps-manager.json").as_deref(), Some("one"));
        assert_eq!(place.read("env/a.env").as_deref(), Some("A=1"));
    }

    #[test]
    fn files_of_others_are_left_alone() {
        let place = Place::new(true);
        for directory in ["cdi", "env"] {
            fs::create_dir(place.home.path().join(directory)).expect("made");
        }
        fs::write(place.home.path().join("cdi/nvidia.yaml"), "x").expect("written");
        fs::write(place.home.path().join("env/notes.txt"), "x").expect("written");
        fs::write(place.home.path().join("env/.old.env.new"), "x").expect("written");
        assert_eq!(place.writer.keep(&EngineFiles::default()), none());
        assert_eq!(
            (place.names("cdi"), place.names("env")),
            (vec!["nvidia.yaml".into()], vec!["notes.txt".into()])
        );
    }

    #[test]
    fn named_directory_that_is_missing_is_a_problem() {
        let place = Place::new(false);
        for desired in [files(Some("one"), &[("a", "A=1")]), EngineFiles::default()] {
            let problems = place.writer.keep(&desired);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].contains("is not there") && problems[0].contains("mkdir"), "{problems:?}");
            assert!(!place.home.path().join("cdi").exists(), "it may be misspelt");
        }
        place.writer.keep(&files(Some("one"), &[("a", "A=1")]));
        assert_eq!(place.read("env/a.env").as_deref(), Some("A=1"), "the rest is kept all the same");
        fs::create_dir(place.home.path().join("cdi")).expect("made");
        assert_eq!(place.writer.keep(&files(Some("one"), &[])), none());
        assert_eq!(place.read("cdi/mps-manager.json").as_deref(), Some("one"));
    }

    #[test]
    fn file_that_cannot_be_placed_is_a_problem() {
        let place = Place::new(true);
        fs::create_dir_all(place.home.path().join("cdi/mps-manager.json")).expect("made");
        let problems = place.writer.keep(&files(Some("one"), &[]));
        assert!(problems.len() == 1 && problems[0].contains("cannot be written"), "{problems:?}");
        assert_eq!(place.names("cdi"), ["mps-manager.json"], "nothing unfinished is left");
        let problems = place.writer.keep(&EngineFiles::default());
        assert!(problems.len() == 1 && problems[0].contains("cannot be removed"), "{problems:?}");
    }

    #[test]
    fn directory_others_may_write_is_refused() {
        let place = Place::new(true);
        let cdi = place.home.path().join("cdi");
        fs::create_dir(&cdi).expect("made");
        fs::set_permissions(&cdi, Permissions::from_mode(0o777)).expect("mode");
        let problems = place.writer.keep(&files(Some("one"), &[]));
        assert!(problems.len() == 1 && problems[0].contains("others could change"), "{problems:?}");
        assert_eq!(place.names("cdi"), none());
        symlink("/tmp", place.home.path().join("env")).expect("link");
        let problems = place.writer.keep(&files(None, &[("a", "A=1")]));
        assert!(problems.iter().any(|problem| problem.contains("symbolic link")), "{problems:?}");
        assert!(!Path::new("/tmp/a.env").exists());
    }

    #[test]
    fn closed_writer_leaves_nothing() {
        let place = Place::new(true);
        place.writer.keep(&files(Some("one"), &[("a", "A=1")]));
        assert_eq!(place.writer.close(), none());
        let late = place.writer.clone();
        assert_eq!(late.keep(&files(Some("one"), &[("a", "A=1")])), none());
        assert_eq!((place.names("cdi"), place.names("env")), (none(), none()));
    }
}
