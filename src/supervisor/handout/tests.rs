use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use super::*;
use crate::host::process::identify;

const PATIENCE: Duration = Duration::from_secs(30);

struct Host {
    home: tempfile::TempDir,
    handouts: Arc<Handouts>,
    daemon: DaemonName,
}

fn host() -> Host {
    let home = tempfile::tempdir_in("/tmp").expect("directory");
    let handouts = Handouts::new(home.path(), PATIENCE);
    Host { home, handouts, daemon: DaemonName::parse("gpu0").expect("name") }
}

fn directory(name: &str) -> TenantDirectory {
    TenantDirectory::parse(name).expect("ten digits")
}

fn tenants(names: &[&str]) -> BTreeMap<TenantDirectory, TenantName> {
    names.iter().map(|name| (directory(name), TenantName::parse("web").expect("name"))).collect()
}

impl Host {
    /// A socket as of a control process, which this process is.
    fn control(&self) -> (UnixListener, ControlSocket) {
        let pipe = self.home.path().join("pipe");
        let _ = fs::remove_dir_all(&pipe);
        fs::create_dir(&pipe).expect("made");
        let listener = UnixListener::bind(pipe.join(SOCKET)).expect("bound");
        let identity = identify(std::process::id()).expect("alive");
        (listener, ControlSocket { identity, pipe, foreign: false })
    }

    fn set(&self, names: &[&str], handout: Handout) {
        self.set_as_of(0, names, handout);
    }

    fn set_as_of(&self, generation: i64, names: &[&str], handout: Handout) {
        let directories = tenants(names);
        let tenants = DaemonTenants { daemon: &self.daemon, generation, directories: &directories };
        self.handouts.set_handout(&tenants, handout);
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

#[tokio::test]
async fn announced_tenant_outlives_an_older_generation() {
    let host = host();
    let (_listener, control) = host.control();
    host.set_as_of(1, &[A], Handout::Open(control.clone()));
    let directories = tenants(&[A, B]);
    host.handouts.announce(&DaemonTenants { daemon: &host.daemon, generation: 2, directories: &directories });
    // The driver still acts on what was desired before.
    host.set_as_of(1, &[A], Handout::Open(control.clone()));
    let shown = |name: &str| host.handouts.inner().doors.get(&directory(name)).map(|door| door.shown.clone());
    assert_eq!(shown(B), Some(Handout::Wait));
    host.set_as_of(2, &[A, B], Handout::Open(control.clone()));
    assert!(host.is_open(B, &control));
    host.set_as_of(3, &[A], Handout::Open(control.clone()));
    assert_eq!(shown(B), Some(Handout::Refuse));
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
    tokio::time::timeout(PATIENCE, closed).await.expect("closed by the death alone");
    assert!(host.handouts.daemon_died(&host.daemon, identity).is_some(), "it was measured");
    host.set(&[A], Handout::Open(dying));
    assert!(!host.is_open(A, &control), "its driver did not know yet");
    child.wait().expect("reaped");
}

#[tokio::test]
async fn next_manager_keeps_only_links_that_lead_somewhere() {
    let host = host();
    let (_listener, control) = host.control();
    host.set(&[A], Handout::Open(control.clone()));
    let next = Host {
        handouts: Handouts::new(host.home.path(), PATIENCE),
        daemon: host.daemon.clone(),
        home: tempfile::tempdir().expect("directory"),
    };
    let directories = tenants(&[A]);
    let of_next = DaemonTenants { daemon: &next.daemon, generation: 0, directories: &directories };
    next.handouts.begin(&of_next, Some(control.clone()));
    assert!(host.is_open(A, &control), "the daemon lives");
    let gone =
        ControlSocket { identity: Identity { pid: control.identity.pid, start_time: 1 }, ..control.clone() };
    let last = Handouts::new(host.home.path(), PATIENCE);
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
    assert_eq!(refused.reason, "TenantDirectoryUnsafe");
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
    assert_eq!(host.handouts.client_directory(&directory(A)).expect_err("ours").reason, "OtherFileSystem");
    host.set(&[A], Handout::Open(ControlSocket { foreign: true, ..ours }));
    let given = host.handouts.client_directory(&directory(A)).expect("the daemon's own");
    assert_eq!(given.path, elsewhere.path());
    assert!(given.shared.is_some_and(|why| why.contains("file system")), "no container is given it");
}

#[tokio::test]
async fn directory_of_a_deleted_tenant_stays_while_held() {
    let host = host();
    let (_listener, control) = host.control();
    host.set(&[A, B], Handout::Open(control.clone()));
    host.set(&[B], Handout::Open(control.clone()));
    assert!(!host.is_open(A, &control) && host.path(A).join(SOCKET).exists(), "a placeholder");
    let mut holder =
        std::process::Command::new("sleep").arg("600").env(PIPE_ENV, host.path(A)).spawn().expect("sleep");
    // Not before its environment is its own.
    while !having(PIPE_ENV).iter().any(|(id, _)| id.pid == holder.id()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let known = BTreeSet::from([directory(B)]);
    host.handouts.collect(&known);
    assert!(host.path(A).join(SOCKET).exists(), "a process has it");
    holder.kill().expect("killed");
    holder.wait().expect("reaped");
    host.handouts.collect(&known);
    assert!(!host.path(A).exists());
    assert!(host.is_open(B, &control), "another tenant's is left alone");
}
