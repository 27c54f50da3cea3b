use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;

use super::policy::{NO_OTHERS, NONE_DRAINING};
use super::*;
use crate::domain::condition::ConditionReason;
use crate::host::process::{having, identify};
use crate::mps::process::PIPE_ENV;

const TIMEOUT: Duration = Duration::from_secs(30);

struct Host {
    home: tempfile::TempDir,
    handouts: Arc<Handouts>,
    daemon: DaemonName,
    generation: Cell<i64>,
}

fn host() -> Host {
    let home = tempfile::tempdir_in("/tmp").expect("directory");
    let handouts = Handouts::new(home.path(), TIMEOUT, Clock::system());
    Host { home, handouts, daemon: name("gpu0"), generation: Cell::new(0) }
}

fn name(daemon: &str) -> DaemonName {
    DaemonName::parse(daemon).expect("name")
}

fn version(generation: i64) -> DesiredVersion {
    DesiredVersion { revision: 1, generation }
}

fn directory(name: &str) -> TenantDirectory {
    TenantDirectory::parse(name).expect("ten digits")
}

fn tenants(names: &[&str]) -> BTreeMap<TenantDirectory, DirectoryTenant> {
    let tenant = || DirectoryTenant { name: TenantName::parse("web").expect("name"), uid: 0 };
    names.iter().map(|name| (directory(name), tenant())).collect()
}

impl Host {
    /// Makes the socket of a control process, which is this process.
    fn control(&self) -> (UnixListener, ControlSocket) {
        self.control_of(&self.daemon)
    }

    fn control_of(&self, daemon: &DaemonName) -> (UnixListener, ControlSocket) {
        let pipe = self.home.path().join(daemon.as_str());
        let _ = fs::remove_dir_all(&pipe);
        fs::create_dir(&pipe).expect("made");
        let listener = UnixListener::bind(pipe.join(SOCKET)).expect("bound");
        let identity = identify(std::process::id()).expect("alive");
        (listener, ControlSocket { identity, pipe, foreign: false })
    }

    /// Announces these tenants, and applies the handout of their driver.
    fn set(&self, names: &[&str], handout: Handout) {
        self.generation.set(self.generation.get() + 1);
        self.announce(&self.daemon, self.generation.get(), names);
        self.drive(&self.daemon, self.generation.get(), handout);
    }

    fn announce(&self, daemon: &DaemonName, generation: i64, names: &[&str]) {
        self.announce_if(true, daemon, generation, names);
    }

    fn announce_if(&self, admits: bool, daemon: &DaemonName, generation: i64, names: &[&str]) {
        self.announce_draining(admits, daemon, generation, names, &[]);
    }

    fn announce_draining(
        &self,
        admits: bool,
        daemon: &DaemonName,
        generation: i64,
        names: &[&str],
        draining: &[&str],
    ) {
        let directories = tenants(names);
        let version = version(generation);
        let directories = &directories;
        let draining = &draining.iter().map(|name| directory(name)).collect();
        self.handouts.announce(&DaemonTenants {
            daemon,
            version,
            admits,
            directories,
            others: &NO_OTHERS,
            draining,
        });
    }

    fn drive(&self, daemon: &DaemonName, generation: i64, handout: Handout) {
        self.handouts.set_handout(daemon, version(generation), handout);
    }

    fn shown(&self, name: &str) -> Option<Handout> {
        self.handouts.inner().entries.get(&directory(name)).map(|entry| entry.shown.clone())
    }

    fn has_placeholder(&self, name: &str) -> bool {
        let inode = directory::inode(&self.path(name).join(SOCKET));
        let inner = self.handouts.inner();
        let placed = inner.entries.get(&directory(name)).and_then(|entry| entry.placed.as_ref());
        placed.is_some_and(|placed| Some(placed.inode) == inode)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.handouts.root().join(name)
    }

    fn is_open(&self, name: &str, control: &ControlSocket) -> bool {
        directory::is_linked(&control.pipe.join(SOCKET), &self.path(name))
    }
}

const A: &str = "aaaaaaaaaa";
const B: &str = "bbbbbbbbbb";
/// Directory used by one test only: processes of any test hold a directory if its name is in their environment.
const C: &str = "cccccccccc";
/// Directory of a job that has ended.
const ENDED: &str = "dddddddddd";

#[tokio::test]
async fn announced_tenant_outlives_an_older_generation() {
    let host = host();
    let (_listener, control) = host.control();
    host.announce(&host.daemon, 1, &[A]);
    host.drive(&host.daemon, 1, Handout::Open(control.clone()));
    host.announce(&host.daemon, 2, &[A, B]);
    // The driver still acts on the earlier desired state.
    host.drive(&host.daemon, 1, Handout::Open(control.clone()));
    assert!(host.is_open(A, &control) && host.shown(B) == Some(Handout::Wait));
    // A state that was committed earlier is published late.
    host.announce(&host.daemon, 1, &[A]);
    host.drive(&host.daemon, 2, Handout::Open(control.clone()));
    assert!(host.is_open(A, &control) && host.is_open(B, &control));
}

#[tokio::test]
async fn commit_closes_before_the_driver_reads_it() {
    let host = host();
    let (_listener, control) = host.control();
    host.announce(&host.daemon, 1, &[A, B]);
    host.drive(&host.daemon, 1, Handout::Open(control.clone()));
    // A tenant is deleted.
    host.announce(&host.daemon, 2, &[A]);
    assert!(host.is_open(A, &control) && host.shown(B) == Some(Handout::Refuse) && host.has_placeholder(B));
    // The daemon is cordoned, and its driver sits in a session.
    host.announce_if(false, &host.daemon, 3, &[A]);
    assert!(host.shown(A) == Some(Handout::Refuse) && host.has_placeholder(A));
    for stale in [Handout::Open(control.clone()), Handout::Unchanged, Handout::Wait] {
        host.drive(&host.daemon, 1, stale);
        assert!(host.shown(A) == Some(Handout::Refuse) && host.has_placeholder(A));
    }
    // It is uncordoned: the directory opens at once, as the driver left it.
    host.drive(&host.daemon, 3, Handout::Open(control.clone()));
    assert!(host.has_placeholder(A));
    host.announce(&host.daemon, 4, &[A]);
    assert!(host.is_open(A, &control) && host.has_placeholder(B));
}

#[tokio::test]
async fn moved_tenant_is_never_the_old_daemons() {
    let host = host();
    let (old, new) = (name("gpu0"), name("gpu1"));
    let ((_one, left), (_other, joined)) = (host.control_of(&old), host.control_of(&new));
    for (daemon, tenants) in [(&old, &[A][..]), (&new, &[B])] {
        host.announce(daemon, 1, tenants);
    }
    host.drive(&old, 1, Handout::Open(left.clone()));
    host.drive(&new, 1, Handout::Open(joined.clone()));
    host.announce(&new, 2, &[A, B]);
    host.announce(&old, 2, &[]);
    assert!(host.shown(A) == Some(Handout::Wait) && host.has_placeholder(A));
    // Both drivers are in the middle of a turn that began before.
    host.drive(&old, 1, Handout::Open(left.clone()));
    host.drive(&new, 1, Handout::Open(joined.clone()));
    assert!(host.has_placeholder(A));
    host.drive(&new, 2, Handout::Open(joined.clone()));
    for stale in [Handout::Open(left.clone()), Handout::Wait, Handout::Refuse] {
        host.drive(&old, 1, stale.clone());
        assert!(host.is_open(A, &joined), "{stale:?}");
    }
    host.handouts.forget(&old);
    assert!(host.is_open(A, &joined));
}

#[tokio::test]
async fn moved_tenant_opens_once_old_daemon_releases_it() {
    let host = host();
    let (old, new) = (name("gpu0"), name("gpu1"));
    let ((_one, left), (_other, joined)) = (host.control_of(&old), host.control_of(&new));
    host.announce(&old, 1, &[A]);
    host.drive(&old, 1, Handout::Open(left.clone()));
    host.announce(&new, 1, &[A]);
    host.drive(&new, 1, Handout::Open(joined.clone()));
    assert!(host.is_open(A, &left), "still the old daemon's");
    host.announce(&old, 2, &[]);
    assert!(host.is_open(A, &joined));
}

#[tokio::test]
async fn tenant_is_closed_until_its_daemon_is_opened() {
    let host = host();
    let (_listener, control) = host.control();
    host.set(&[A], Handout::Unchanged);
    assert!(host.path(A).join(SOCKET).exists() && !host.is_open(A, &control), "a placeholder");
    host.set(&[A], Handout::Open(control.clone()));
    assert!(host.is_open(A, &control));
    let entries: Vec<_> =
        fs::read_dir(host.path(A)).expect("there").flatten().map(|one| one.file_name()).collect();
    assert_eq!(entries, ["control"]);
    // A tenant that comes while settings are applied waits; the others go on.
    host.set(&[A, B], Handout::Unchanged);
    assert!(host.is_open(A, &control) && !host.is_open(B, &control));
    host.set(&[A, B], Handout::Open(control.clone()));
    assert!(host.is_open(B, &control));
    host.set(&[A, B], Handout::Refuse);
    assert!(!host.is_open(A, &control) && !host.is_open(B, &control));
    assert_eq!(host.handouts.client_directory(&directory(A)).expect("usable").path, host.path(A));
}

#[tokio::test]
async fn dead_control_process_is_never_opened() {
    let host = host();
    let (_listener, control) = host.control();
    let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("sleep");
    let identity = identify(child.id()).expect("alive");
    let dying = ControlSocket { identity, ..control.clone() };
    host.set(&[A], Handout::Open(dying.clone()));
    assert!(host.is_open(A, &control));
    child.kill().expect("killed");
    let closed = async {
        while host.is_open(A, &control) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, closed).await.expect("closed by the death alone");
    assert!(host.handouts.daemon_died(&host.daemon, identity).is_some(), "it was measured");
    host.set(&[A], Handout::Open(dying));
    assert!(!host.is_open(A, &control), "its driver did not know yet");
    child.wait().expect("reaped");
}

#[tokio::test]
async fn drained_tenant_is_closed_until_undrained() {
    let host = host();
    let (_listener, control) = host.control();
    host.set(&[A, B], Handout::Open(control.clone()));
    host.announce_draining(true, &host.daemon, 2, &[A, B], &[A]);
    assert!(host.has_placeholder(A) && host.shown(A) == Some(Handout::Refuse));
    assert!(host.is_open(B, &control), "the other tenant");
    host.drive(&host.daemon, 2, Handout::Open(control.clone()));
    assert!(host.has_placeholder(A), "whatever its driver says");
    host.handouts.finish(&directory(A));
    // The next manager finds this state, which keeps the others' links.
    let next = Handouts::new(host.home.path(), TIMEOUT, Clock::system());
    let of_next = DaemonTenants {
        others: &NO_OTHERS,
        daemon: &host.daemon,
        version: version(1),
        admits: true,
        directories: &tenants(&[A, B]),
        draining: &BTreeSet::from([directory(A)]),
    };
    next.begin(&of_next, Some(control.clone()));
    assert!(host.is_open(B, &control) && !host.is_open(A, &control));
    host.announce(&host.daemon, 3, &[A, B]);
    assert!(host.is_open(A, &control));
    assert!(!host.handouts.inner().entries[&directory(A)].is_finished, "it may have processes again");
}

#[tokio::test]
async fn next_manager_keeps_only_links_that_lead_somewhere() {
    let host = host();
    let (_listener, control) = host.control();
    host.set(&[A], Handout::Open(control.clone()));
    let next = Host {
        handouts: Handouts::new(host.home.path(), TIMEOUT, Clock::system()),
        daemon: host.daemon.clone(),
        generation: Cell::new(0),
        home: tempfile::tempdir().expect("directory"),
    };
    let directories = tenants(&[A]);
    let of_next = DaemonTenants {
        others: &NO_OTHERS,
        daemon: &next.daemon,
        version: version(1),
        admits: true,
        directories: &directories,
        draining: &NONE_DRAINING,
    };
    next.handouts.begin(&of_next, Some(control.clone()));
    assert!(host.is_open(A, &control), "the daemon lives");
    let gone =
        ControlSocket { identity: Identity { pid: control.identity.pid, start_time: 1 }, ..control.clone() };
    let last = Handouts::new(host.home.path(), TIMEOUT, Clock::system());
    last.begin(&of_next, Some(gone));
    assert!(!host.is_open(A, &control), "the daemon is dead");
}

#[tokio::test]
async fn unsafe_directory_hands_nothing_out() {
    let host = host();
    let (_listener, control) = host.control();
    host.set(&[A], Handout::Open(control.clone()));
    fs::set_permissions(host.path(A), fs::Permissions::from_mode(0o777)).expect("mode");
    let refused = host.handouts.client_directory(&directory(A)).expect_err("writable by others");
    assert_eq!(refused.reason, ConditionReason::TenantDirectoryUnsafe);
    assert_eq!(host.handouts.status(&directory(A)).problem, Some(refused));
    fs::set_permissions(host.path(A), fs::Permissions::from_mode(0o755)).expect("mode");
    host.handouts.client_directory(&directory(A)).expect("mended");
    assert!(host.is_open(A, &control) && host.handouts.status(&directory(A)).problem.is_none());
}

#[tokio::test]
async fn adopted_daemon_elsewhere_keeps_its_own_directory() {
    let host = host();
    let elsewhere = tempfile::tempdir_in("/dev/shm").expect("directory");
    let dev = |path: &Path| fs::metadata(path).expect("there").dev();
    if dev(host.home.path()) == dev(elsewhere.path()) {
        return;
    }
    let _listener = UnixListener::bind(elsewhere.path().join(SOCKET)).expect("bound");
    let identity = identify(std::process::id()).expect("alive");
    let ours = ControlSocket { identity, pipe: elsewhere.path().to_owned(), foreign: false };
    host.set(&[A], Handout::Open(ours.clone()));
    assert_eq!(
        host.handouts.client_directory(&directory(A)).expect_err("ours").reason,
        ConditionReason::OtherFileSystem
    );
    host.set(&[A], Handout::Open(ControlSocket { foreign: true, ..ours }));
    let given = host.handouts.client_directory(&directory(A)).expect("the daemon's own");
    assert_eq!(given.path, elsewhere.path());
    assert!(given.shared.is_some_and(|why| why.contains("file system")), "no container is given it");
}

#[tokio::test]
async fn directory_of_a_deleted_tenant_stays_while_held() {
    let host = host();
    let (_listener, control) = host.control();
    host.set(&[A, B, ENDED], Handout::Open(control.clone()));
    host.set(&[B], Handout::Open(control.clone()));
    assert!(!host.is_open(A, &control) && host.path(A).join(SOCKET).exists(), "a placeholder");
    let mut holder =
        std::process::Command::new("sleep").arg("600").env(PIPE_ENV, host.path(A)).spawn().expect("sleep");
    // The holder's environment is its own only once it runs.
    while !having(PIPE_ENV).iter().any(|(id, _)| id.pid == holder.id()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let known = BTreeSet::from([directory(B)]);
    host.handouts.collect_after(&known, Duration::ZERO);
    assert!(host.path(A).join(SOCKET).exists(), "a process has it");
    holder.kill().expect("killed");
    holder.wait().expect("reaped");
    host.handouts.finish(&directory(ENDED));
    host.handouts.collect(&known);
    assert!(host.has_placeholder(A), "a shell may have its path, which no process shows");
    assert!(!host.path(ENDED).exists(), "only one job had it, which has ended");
    host.handouts.collect_after(&known, Duration::ZERO);
    assert!(!host.path(A).exists());
    assert!(host.is_open(B, &control), "another tenant's is left alone");
}

#[tokio::test]
async fn deleted_tenants_directory_with_files_keeps_placeholder() {
    let host = host();
    let (_listener, control) = host.control();
    host.set(&[C], Handout::Open(control));
    host.set(&[], Handout::Unchanged);
    let other = host.path(C).join("core");
    fs::write(&other, "").expect("written");
    for _ in 0..2 {
        host.handouts.collect_after(&BTreeSet::new(), Duration::ZERO);
        assert!(host.has_placeholder(C) && other.exists());
    }
    let stays =
        |host: &Host| host.handouts.inner().entries.get(&directory(C)).and_then(|entry| entry.stays.clone());
    assert!(stays(&host).is_some_and(|why| why.contains("core")), "{:?}", stays(&host));
    fs::remove_file(&other).expect("removed");
    host.handouts.collect_after(&BTreeSet::new(), Duration::ZERO);
    assert!(!host.path(C).exists() && stays(&host).is_none());
}

#[tokio::test]
async fn earlier_managers_link_is_closed_without_a_plan() {
    let host = host();
    let (listener, control) = host.control();
    host.set(&[A], Handout::Open(control.clone()));
    drop(listener);
    let next = Handouts::new(host.home.path(), TIMEOUT, Clock::system());
    let directories = tenants(&[A]);
    let refused = DaemonTenants::refused(&host.daemon, &directories);
    next.announce(&refused);
    assert!(!host.is_open(A, &control) && host.path(A).join(SOCKET).exists());
    // It can be planned later.
    let (_listener, control) = host.control();
    next.begin(&DaemonTenants { version: version(1), admits: true, ..refused }, Some(control.clone()));
    next.set_handout(&host.daemon, version(1), Handout::Open(control.clone()));
    next.announce(&refused);
    assert!(host.is_open(A, &control));
}

#[tokio::test]
async fn open_directories_change_with_the_handout() {
    let host = host();
    let (_listener, control) = host.control();
    let mut changes = host.handouts.changes();
    let open = || host.handouts.open_directories().into_keys().collect::<Vec<_>>();
    let mut has_changed = || {
        let has_changed = changes.has_changed().expect("it is handed out still");
        changes.mark_unchanged();
        has_changed
    };
    assert!(!has_changed() && open().is_empty());
    host.set(&[A, B], Handout::Open(control.clone()));
    assert!(has_changed());
    assert_eq!(open(), [directory(A), directory(B)]);
    host.set(&[A, B], Handout::Open(control.clone()));
    assert!(!has_changed(), "as it was");
    host.set(&[B], Handout::Unchanged);
    assert!(has_changed());
    assert_eq!(open(), [directory(B)]);
    assert_eq!(host.handouts.daemon_died(&host.daemon, control.identity).map(|_| ()), Some(()));
    assert!(has_changed() && open().is_empty(), "its daemon is dead");
    host.set(&[B], Handout::Open(control));
    assert!(has_changed());
    host.announce_if(false, &host.daemon, host.generation.get() + 1, &[B]);
    assert!(has_changed() && open().is_empty(), "it takes no clients");
}

#[tokio::test]
async fn checks_of_many_directories_take_turns() {
    let names = ["1111111111", "2222222222", "3333333333", "4444444444", "5555555555"];
    let host = host();
    host.set(&names, Handout::Wait);
    for name in names {
        fs::remove_file(host.path(name).join(SOCKET)).expect("another program removes it");
    }
    let repaired = || names.iter().filter(|name| host.has_placeholder(name)).count();
    for (count, is_left) in [(2, true), (4, true), (5, false)] {
        host.handouts.check_tenants(&host.daemon, 2);
        assert_eq!((repaired(), host.handouts.has_unchecked(&host.daemon)), (count, is_left));
    }
    // One that had a problem does not wait for its turn.
    let last = host.path(names[4]);
    fs::remove_dir_all(&last).expect("removed");
    fs::write(&last, "").expect("in the way");
    host.handouts.check_tenants(&host.daemon, names.len());
    assert_eq!(repaired(), 4);
    fs::remove_file(&last).expect("out of the way");
    host.handouts.check_tenants(&host.daemon, 0);
    assert_eq!(repaired(), 5);
}
