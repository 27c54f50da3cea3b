//! Looks for clients, and processes that wait, of users who are no tenant's of their daemon; writes events where there are some, and ends
//! those that lock tenants out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::domain::DaemonName;
use crate::domain::attribution::AttributedBy;
use crate::domain::audit::Target;
use crate::domain::client::{ClientId, StoppedPolicy};
use crate::domain::daemon::Daemon;
use crate::domain::foreign_user::{ForeignUser, ForeignUserPolicy};
use crate::domain::incident::IncidentKind;
use crate::domain::incident::intruders::IntruderTracker;
use crate::host::process;
use crate::service::access::context::RequestContext;
use crate::service::{Backend, Service, ServiceError, WriteOptions};
use crate::store::StoreError;

/// How often it looks: a tenant that is locked out is to be helped within two seconds.
const EVERY: Duration = Duration::from_millis(500);

/// Who is at a daemon.
struct Attendance {
    daemon: Daemon,
    /// Whether its clients are known.
    is_read: bool,
    /// Clients of its tenants' users, and of others who may be there.
    served: BTreeSet<ClientId>,
    foreign: Vec<ForeignUser>,
}

/// Clients that are left to work: those of a daemon that was just adopted, or that were a tenant's once.
#[derive(Default)]
struct Admitted(BTreeMap<DaemonName, BTreeSet<ClientId>>);

impl Admitted {
    /// Takes who is there now; gives those who came as strangers and keep a daemon from serving its tenants.
    fn observe(
        &mut self,
        now: &BTreeMap<DaemonName, Attendance>,
        reported: &IntruderTracker,
    ) -> Vec<ClientId> {
        self.0.retain(|name, _| now.contains_key(name));
        let mut locking = Vec::new();
        for (name, at) in now.iter().filter(|(_, at)| at.is_read) {
            let connected = at.foreign.iter().filter(|user| !user.waits).map(|user| user.process);
            let connected: BTreeSet<ClientId> = connected.collect();
            let admitted = self.0.entry(name.clone()).or_insert_with(|| {
                connected.iter().copied().filter(|client| !reported.reports(name, *client)).collect()
            });
            admitted.retain(|client| connected.contains(client));
            admitted.extend(&at.served);
            let spec = &at.daemon.spec;
            let is_locked = !spec.multi_user
                && !spec.is_observed()
                && spec.foreign_user_policy == ForeignUserPolicy::Terminate;
            locking.extend(connected.into_iter().filter(|client| is_locked && !admitted.contains(client)));
        }
        locking
    }
}

impl Service {
    /// Looks at intervals, for as long as the store is open.
    pub async fn watch_foreign_users(self, backend: Arc<Backend>) {
        let mut tracker = backend.reported_intruders(IncidentKind::ForeignUser).await;
        let mut admitted = Admitted::default();
        // Those whose end was requested: a second request would only wait for the first.
        let mut ended = BTreeSet::new();
        loop {
            tokio::time::sleep(EVERY).await;
            if backend.is_read_only() || backend.parts.store.is_sealed() {
                continue;
            }
            let found = match backend.attendance().await {
                Ok(found) => found,
                Err(error) => {
                    tracing::debug!(%error, "the users of clients could not be compared with those of tenants");
                    continue;
                }
            };
            let locking: BTreeSet<ClientId> = admitted.observe(&found, &tracker).into_iter().collect();
            let mut next = tracker.clone();
            let present = found.iter().map(|(name, at)| (name.clone(), at.foreign.clone())).collect();
            match backend.append_events(next.observe(&present, true)).await {
                Ok(()) => tracker = next,
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!(%error, "a user who is no tenant's could not be recorded"),
            }
            ended.retain(|client| locking.contains(client));
            for client in locking {
                if ended.insert(client) {
                    self.end_foreign_user(client).await;
                }
            }
        }
    }

    async fn end_foreign_user(&self, client: ClientId) {
        let target = Target::Other(format!("clients/{client}"));
        let ctx = RequestContext::of_manager(self.clock(), "end_foreign_user", target);
        match self.terminate(&ctx, client, StoppedPolicy::Kill, WriteOptions::default()).await {
            Ok(_) => {
                tracing::warn!(%client, "ending a client of a user who is no tenant's: it locks the tenants of its daemon out");
            }
            Err(ServiceError::NotFound { .. }) => {}
            Err(error) => {
                tracing::warn!(%client, %error, "a client of a user who is no tenant's could not be ended");
            }
        }
    }
}

impl Backend {
    /// Who is at each daemon.
    async fn attendance(&self) -> Result<BTreeMap<DaemonName, Attendance>, ServiceError> {
        let (daemons, tenants) = (self.stored_daemons().await?, self.stored_tenants().await?);
        let me = self.parts.manager_uid;
        let is_of = |daemon: &Daemon, uid: u32| {
            let mut of_daemon = tenants.iter().filter(|tenant| tenant.spec.daemon == daemon.name);
            let spec = &daemon.spec;
            // Root administers it, and so does whoever runs it.
            let is_known = uid == 0 || uid == me || spec.any_user || spec.users.contains(&uid);
            is_known || of_daemon.any(|tenant| tenant.spec.uid == uid)
        };
        let clients = self.attributed().await?;
        let observed: BTreeMap<DaemonName, _> = self.parts.fleet.observed().into_iter().collect();
        let found = daemons.iter().map(|daemon| {
            let name = &daemon.name;
            let (mut served, mut foreign) = (BTreeSet::new(), Vec::new());
            for client in clients.iter().filter(|client| client.daemon == *name) {
                // Who was started for a tenant is its own, whichever user it has by now.
                let is_lease = client.attributed_by == AttributedBy::Lease;
                match client.uid.filter(|uid| !is_lease && !is_of(daemon, *uid)) {
                    None => drop(served.insert(client.id)),
                    Some(uid) => {
                        let program = process::program(client.pid);
                        foreign.push(ForeignUser { process: client.id, uid, program, waits: false });
                    }
                }
            }
            let status = observed.get(name).map(|seen| &seen.status);
            let queue = status.map(|status| status.queue.as_slice()).unwrap_or_default();
            for waiting in queue.iter().filter(|waiting| !is_of(daemon, waiting.uid)) {
                let living = waiting.waiting.iter().filter_map(|client| process::identify(client.pid));
                foreign.extend(living.map(|id| ForeignUser {
                    process: id.into(),
                    uid: waiting.uid,
                    program: process::program(id.pid),
                    waits: true,
                }));
            }
            let is_read = status.is_some_and(|status| status.effective.is_some());
            (name.clone(), Attendance { daemon: daemon.clone(), is_read, served, foreign })
        });
        Ok(found.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::GpuUuid;
    use crate::domain::daemon::DaemonSpec;

    fn gpu0() -> DaemonName {
        DaemonName::parse("gpu0").expect("a name")
    }

    fn client(pid: u32) -> ClientId {
        ClientId { pid, start_time: 1 }
    }

    fn at(
        is_read: bool,
        served: &[u32],
        foreign: &[(u32, bool)],
        change: impl Fn(&mut DaemonSpec),
    ) -> BTreeMap<DaemonName, Attendance> {
        let gpu = GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid");
        let mut spec = DaemonSpec::of(vec![gpu]);
        change(&mut spec);
        let daemon = Daemon { name: gpu0(), spec, generation: 1, revision: 1, created_at: 0, updated_at: 0 };
        let foreign = foreign.iter().map(|(pid, waits)| ForeignUser {
            process: client(*pid),
            uid: 33,
            program: None,
            waits: *waits,
        });
        let served = served.iter().map(|pid| client(*pid)).collect();
        BTreeMap::from([(gpu0(), Attendance { daemon, is_read, served, foreign: foreign.collect() })])
    }

    #[test]
    fn only_those_who_came_as_strangers_are_ended() {
        let (mut admitted, nobody) = (Admitted::default(), IntruderTracker::default());
        let mut look = |is_read, served: &[u32], foreign: &[(u32, bool)]| {
            admitted.observe(&at(is_read, served, foreign, |_| {}), &nobody)
        };
        assert!(look(false, &[], &[(1, false)]).is_empty(), "nothing is known yet");
        assert!(look(true, &[5], &[(1, false)]).is_empty(), "it was there before the daemon was adopted");
        assert_eq!(look(true, &[5], &[(1, false), (2, false), (3, true)]), [client(2)], "one waits");
        assert!(look(true, &[], &[(1, false), (5, false)]).is_empty(), "it was a tenant's");
        assert_eq!(look(true, &[], &[(3, false)]), [client(3)]);
        assert_eq!(look(true, &[], &[(1, false)]), [client(1)], "another process of that number");
    }

    #[test]
    fn reported_ones_are_strangers_to_the_next_manager() {
        let before = IntruderTracker::with([(gpu0(), BTreeSet::from([client(1)]))]);
        let now = at(true, &[], &[(1, false), (2, false)], |_| {});
        assert_eq!(Admitted::default().observe(&now, &before), [client(1)]);
    }

    #[test]
    fn nobody_is_ended_who_locks_nobody_out() {
        let changes: [fn(&mut DaemonSpec); 3] = [
            |spec| spec.multi_user = true,
            |spec| spec.management = crate::domain::daemon::Management::Observed,
            |spec| spec.foreign_user_policy = ForeignUserPolicy::Report,
        ];
        for change in changes {
            let (mut admitted, nobody) = (Admitted::default(), IntruderTracker::default());
            assert!(admitted.observe(&at(true, &[], &[], change), &nobody).is_empty());
            assert!(admitted.observe(&at(true, &[], &[(2, false)], change), &nobody).is_empty());
        }
    }
}
