use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use super::*;
use crate::domain::TenantName;
use crate::domain::daemon::Incarnation;
use crate::domain::maintenance::MaintenanceState;
use crate::host::process::identify;
use crate::supervisor::driver::compute_mode::tests::context;
use crate::supervisor::reconcile::daemon::tests::desired;
use crate::supervisor::tests::TwoGpus;

struct Host {
    home: tempfile::TempDir,
    fleet: Fleet,
}

fn host() -> Host {
    let home = tempfile::tempdir_in("/tmp").expect("directory");
    let fleet = Fleet::new(context(Arc::new(TwoGpus::away()), home.path()));
    Host { home, fleet }
}

const DIRECTORY: &str = "aaaaaaaaaa";

/// Returns the desired state of a daemon of one tenant, as of a commit.
fn committed(revision: i64, generation: i64) -> Desired {
    let directory = TenantDirectory::parse(DIRECTORY).expect("ten digits");
    let name = TenantName::parse("web").expect("name");
    let directories = BTreeMap::from([(directory, DirectoryTenant { name, uid: 0 })]);
    Desired { revision, generation, settings_since: generation, directories, ..desired() }
}

impl Host {
    /// Leaves a link of an earlier manager to the socket of a living control process, which is this process.
    fn leave_link(&self) -> (UnixListener, RememberedDaemon) {
        let pipe = self.home.path().join("daemons/gpu0/pipe");
        let directory = self.home.path().join("tenants").join(DIRECTORY);
        for path in [&pipe, &directory] {
            fs::create_dir_all(path).expect("made");
        }
        let listener = UnixListener::bind(pipe.join("control")).expect("bound");
        fs::hard_link(pipe.join("control"), directory.join("control")).expect("linked");
        let process = identify(std::process::id()).expect("alive");
        let incarnation = Incarnation {
            token: "token".into(),
            boot_id: "boot".into(),
            process: Some((process.pid, process.start_time)),
            pipe_inode: None,
            applied: 1,
            home: None,
        };
        (listener, RememberedDaemon::of(incarnation))
    }

    /// Reports whether the tenant's socket exists, and whether it is the daemon's.
    fn socket(&self) -> (bool, bool) {
        let inode = |path: &Path| fs::symlink_metadata(self.home.path().join(path)).ok().map(|it| it.ino());
        let shown = inode(&Path::new("tenants").join(DIRECTORY).join("control"));
        (shown.is_some(), shown == inode(Path::new("daemons/gpu0/pipe/control")))
    }

    fn generation(&self) -> Option<i64> {
        self.fleet.get(&desired().name).map(|handle| handle.generation())
    }
}

const OPEN: (bool, bool) = (true, true);
const CLOSED: (bool, bool) = (true, false);

// No driver runs here before the end: nothing is waited for.
#[tokio::test]
async fn publish_closes_what_is_no_longer_admitted() {
    let host = host();
    let (_listener, earlier) = host.leave_link();
    host.fleet.publish(committed(1, 1), Some(earlier));
    assert_eq!(host.socket(), OPEN);
    let closing: [fn(&mut Desired); 3] = [
        |desired| desired.schedulable = false,
        |desired| desired.maintenance = Some(MaintenanceState::Draining),
        |desired| desired.running = false,
    ];
    let mut generation = 1;
    for close in closing {
        let mut closed = committed(1, generation + 1);
        close(&mut closed);
        host.fleet.publish(closed, None);
        assert_eq!(host.socket(), CLOSED, "generation {}", generation + 1);
        generation += 2;
        host.fleet.publish(committed(1, generation), None);
        assert_eq!(host.socket(), OPEN, "generation {generation}");
    }
    let deleted = Desired { directories: BTreeMap::new(), ..committed(1, generation + 1) };
    host.fleet.publish(deleted, None);
    assert_eq!(host.socket(), CLOSED);
}

#[tokio::test]
async fn stale_publish_never_beats_a_new_daemon() {
    let host = host();
    host.fleet.publish(committed(3, 7), None);
    // The daemon is created again before the driver of the previous one was ended.
    host.fleet.publish(committed(5, 1), None);
    let handle = host.fleet.get(&desired().name).expect("published");
    assert_eq!((handle.generation(), handle.desired().settings_since), (1, 1));
    host.fleet.publish(committed(4, 8), None);
    assert_eq!(host.generation(), Some(1));

    host.fleet.forget(&desired().name, Some(4));
    host.fleet.publish(committed(4, 8), None);
    assert_eq!(host.generation(), None, "its daemon was deleted");
    host.fleet.publish(committed(5, 1), None);
    host.fleet.publish(committed(4, 9), None);
    assert_eq!(host.generation(), Some(1));
    host.fleet.publish(committed(5, 2), None);
    assert_eq!(host.generation(), Some(2));
}

#[tokio::test]
async fn daemon_without_a_plan_refuses_clients() {
    let host = host();
    let (_listener, earlier) = host.leave_link();
    let planned = committed(1, 1);
    host.fleet.refuse_clients(&planned.name, &planned.directories);
    assert_eq!(host.socket(), CLOSED);
    host.fleet.publish(planned.clone(), Some(earlier));
    let open = Desired { generation: 2, ..planned.clone() };
    host.fleet.publish(open, None);
    let before = host.socket();
    host.fleet.refuse_clients(&planned.name, &planned.directories);
    assert_eq!(host.socket(), before, "its driver sees to it");
}
