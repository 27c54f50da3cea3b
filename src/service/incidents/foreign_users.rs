//! Looks for clients, and processes that wait, of users who are no tenant's of their daemon; writes events where there are some, and ends
//! those that lock tenants out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::DaemonName;
use crate::domain::attribution::AttributedBy;
use crate::domain::audit::Target;
use crate::domain::client::{ClientId, StoppedPolicy};
use crate::domain::daemon::Daemon;
use crate::domain::foreign_user::{ForeignUser, ForeignUserPolicy, has_business};
use crate::domain::incident::intruders::FOREIGN_USERS;
use crate::host::process;
use crate::service::access::context::RequestContext;
use crate::service::{Backend, Service, ServiceError, WriteOptions};

/// Interval between two searches: a tenant that is locked out has to be helped within two seconds.
const EVERY: Duration = Duration::from_millis(500);
/// Time after which the termination of a client that is still connected is requested again.
const AGAIN: Duration = Duration::from_secs(10);

/// Processes that use a daemon.
struct Attendance {
    daemon: Daemon,
    /// Clients of its tenants' users, and of other users that it admits.
    served: BTreeSet<ClientId>,
    foreign: Vec<ForeignUser>,
    /// Foreign clients that started before the daemon was adopted, or before the manager started.
    earlier: BTreeSet<ClientId>,
}

/// Clients that belonged to a tenant once. They may continue, as may those that started earlier: to terminate them would cost work that was
/// begun in good faith.
#[derive(Default)]
struct Admitted(BTreeSet<ClientId>);

impl Admitted {
    /// Updates the admitted clients, and returns the foreign ones that keep a daemon from serving its tenants.
    fn observe<'a>(&mut self, now: impl Iterator<Item = &'a Attendance>) -> BTreeSet<ClientId> {
        let (mut admitted, mut locking) = (BTreeSet::new(), BTreeSet::new());
        for at in now {
            let connected = at.foreign.iter().filter(|user| !user.waits).map(|user| user.process);
            let (left, others): (BTreeSet<ClientId>, BTreeSet<ClientId>) =
                connected.partition(|client| self.0.contains(client) || at.earlier.contains(client));
            admitted.extend(&at.served);
            admitted.extend(left);
            let spec = &at.daemon.spec;
            let is_locked = !spec.multi_user
                && !spec.is_observed()
                && spec.foreign_user_policy == ForeignUserPolicy::Terminate;
            locking.extend(others.into_iter().filter(|_| is_locked));
        }
        self.0 = admitted;
        locking
    }
}

impl Service {
    /// Looks at intervals, for as long as the store is open.
    pub async fn watch_foreign_users(self, backend: Arc<Backend>) {
        let mut tracker = backend.reported_intruders(&FOREIGN_USERS).await;
        let (mut admitted, began) = (Admitted::default(), backend.parts.clock.unix_ms());
        // Those whose end was requested, and when: a second request soon after would only wait for the first.
        let mut requested: BTreeMap<ClientId, Instant> = BTreeMap::new();
        loop {
            tokio::time::sleep(EVERY).await;
            let (mut next, mut locking) = (tracker.clone(), None);
            let compare = async {
                let attendance = backend.attendance(began).await?;
                locking = Some(admitted.observe(attendance.values()));
                let present = attendance.into_iter().map(|(name, at)| (name, at.foreign)).collect();
                Ok((next.observe(&present, true), next))
            };
            if !backend.record_changes(&mut tracker, "a user who is no tenant's", compare).await {
                return;
            }
            // What could not be compared says nothing of those whose end was requested.
            let Some(locking) = locking else { continue };
            requested.retain(|client, at| locking.contains(client) && at.elapsed() < AGAIN);
            for client in locking {
                if requested.insert(client, Instant::now()).is_none() {
                    let service = self.clone();
                    tokio::spawn(async move { service.end_foreign_user(client).await });
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
    /// Returns the processes at each daemon; `began` is the time at which this manager started.
    async fn attendance(&self, began: i64) -> Result<BTreeMap<DaemonName, Attendance>, ServiceError> {
        let (daemons, tenants) = (self.stored_daemons().await?, self.stored_tenants().await?);
        let me = self.parts.manager_uid;
        let is_of = |daemon: &Daemon, uid: u32| {
            let of_daemon = tenants.iter().filter(|tenant| tenant.spec.daemon == daemon.name);
            let others = (daemon.spec.any_user, daemon.spec.users.as_slice());
            has_business(uid, me, others, of_daemon.map(|tenant| tenant.spec.uid))
        };
        let observed = self.parts.fleet.of_each(|observed| {
            let clients = observed.clients.iter().map(|client| (client.id, client.uid, client.since));
            (clients.collect::<Vec<_>>(), observed.status.queue.clone())
        });
        let observed: BTreeMap<DaemonName, _> = observed.into_iter().collect();
        let is_unclear = daemons.iter().any(|daemon| {
            let mut clients = observed.get(&daemon.name).into_iter().flat_map(|(clients, _)| clients);
            clients.any(|(_, uid, _)| uid.is_none_or(|uid| !is_of(daemon, uid)))
        });
        // Only then it matters who was started for a tenant, which costs more to know.
        let attributed = if is_unclear { self.attributed().await? } else { Arc::default() };
        let leased = attributed.iter().filter(|client| client.attributed_by == AttributedBy::Lease);
        let leased: BTreeSet<ClientId> = leased.map(|client| client.id).collect();
        let nobody = (Vec::new(), Vec::new());
        let attendance = daemons.iter().map(|daemon| {
            let name = &daemon.name;
            let (mut served, mut foreign, mut earlier) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
            let (clients, queue) = observed.get(name).unwrap_or(&nobody);
            for &(client, uid, since) in clients {
                // Who was started for a tenant is its own, whichever user it has by now.
                let is_lease = leased.contains(&client);
                match uid {
                    // It is gone, or may not be read.
                    None if !is_lease => {}
                    Some(uid) if !is_lease && !is_of(daemon, uid) => {
                        if since < began.max(daemon.created_at) {
                            earlier.insert(client);
                        }
                        let program = process::program(client.pid);
                        foreign.push(ForeignUser { process: client, uid, program, waits: false });
                    }
                    _ => {
                        served.insert(client);
                    }
                }
            }
            for waiting in queue.iter().filter(|waiting| !is_of(daemon, waiting.uid)) {
                let living = waiting.waiting.iter().filter_map(|client| process::identify(client.pid));
                foreign.extend(living.map(|id| ForeignUser {
                    process: id.into(),
                    uid: waiting.uid,
                    program: process::program(id.pid),
                    waits: true,
                }));
            }
            (name.clone(), Attendance { daemon: daemon.clone(), served, foreign, earlier })
        });
        Ok(attendance.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::GpuUuid;
    use crate::domain::daemon::{DaemonSpec, Management};

    fn client(pid: u32) -> ClientId {
        ClientId { pid, start_time: 1 }
    }

    /// A daemon with these clients of its tenants, strangers of whom some wait, and strangers that had begun earlier.
    fn at(
        served: &[u32],
        foreign: &[(u32, bool)],
        earlier: &[u32],
        change: fn(&mut DaemonSpec),
    ) -> Attendance {
        let gpu = GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid");
        let mut spec = DaemonSpec::of(vec![gpu]);
        change(&mut spec);
        let name = DaemonName::parse("gpu0").expect("a name");
        let daemon = Daemon { name, spec, generation: 1, revision: 1, created_at: 0, updated_at: 0 };
        let foreign = foreign.iter().map(|(pid, waits)| ForeignUser {
            process: client(*pid),
            uid: 33,
            program: None,
            waits: *waits,
        });
        let clients = |pids: &[u32]| pids.iter().map(|pid| client(*pid)).collect();
        Attendance { daemon, served: clients(served), foreign: foreign.collect(), earlier: clients(earlier) }
    }

    #[test]
    fn only_those_who_came_as_strangers_are_ended() {
        let mut admitted = Admitted::default();
        let mut look = |served: &[u32], foreign: &[(u32, bool)], earlier: &[u32]| {
            let found = admitted.observe([at(served, foreign, earlier, |_| {})].iter());
            found.into_iter().map(|client| client.pid).collect::<Vec<_>>()
        };
        assert!(look(&[5], &[(1, false)], &[1]).is_empty(), "it was there before");
        assert_eq!(look(&[5], &[(1, false), (2, false), (3, true)], &[1]), [2], "one waits");
        assert!(look(&[], &[(1, false), (5, false)], &[1]).is_empty(), "it was a tenant's");
        assert_eq!(look(&[], &[(3, false), (5, false)], &[]), [3]);
    }

    #[test]
    fn nobody_is_ended_who_locks_nobody_out() {
        let changes: [fn(&mut DaemonSpec); 3] = [
            |spec| spec.multi_user = true,
            |spec| spec.management = Management::Observed,
            |spec| spec.foreign_user_policy = ForeignUserPolicy::Report,
        ];
        for change in changes {
            let mut admitted = Admitted::default();
            assert!(admitted.observe([at(&[], &[(2, false)], &[], change)].iter()).is_empty());
        }
    }
}
