//! Evaluation of the stored leases for a process that requests one.

use crate::domain::TenantName;
use crate::domain::client::{ClientId, Lease, LeaseKind, LeaseRecord};

/// The stored leases from the view of a process that requests one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JudgedLeases {
    /// The holders of leases of its tenant, including the process itself: one that is already a client needs no other slot.
    pub(super) of_tenant: Vec<ClientId>,
    /// The leases of all other processes.
    pub(super) others: Vec<Lease>,
    /// Holders that have ended.
    pub(super) dead: Vec<ClientId>,
    /// Evidence that the process is the tenant's: once it has taken a lease itself, that stays proven.
    pub(super) kind: LeaseKind,
    /// True if an operator records it, or has recorded it before.
    pub(super) by_operator: bool,
}

/// Judges the leases for a process that requests one of a tenant; fails with the other tenant if it holds a lease of another one.
pub(super) fn judge(
    records: Vec<LeaseRecord>,
    holder: ClientId,
    tenant: &TenantName,
    kind: LeaseKind,
    is_alive: impl Fn(ClientId) -> bool,
) -> Result<JudgedLeases, TenantName> {
    let mut judged = JudgedLeases {
        of_tenant: Vec::new(),
        others: Vec::new(),
        dead: Vec::new(),
        kind,
        by_operator: kind == LeaseKind::Recorded,
    };
    for LeaseRecord { lease, kind, by_operator, .. } in records {
        if !is_alive(lease.holder) {
            judged.dead.push(lease.holder);
        } else if lease.holder != holder {
            if lease.tenant == *tenant {
                judged.of_tenant.push(lease.holder);
            }
            judged.others.push(lease);
        } else if lease.tenant != *tenant {
            return Err(lease.tenant);
        } else {
            judged.by_operator |= by_operator;
            if kind == LeaseKind::Own {
                judged.kind = LeaseKind::Own;
            }
        }
    }
    judged.of_tenant.push(holder);
    Ok(judged)
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIS: ClientId = process(1);

    const fn process(pid: u32) -> ClientId {
        ClientId { pid, start_time: 5 }
    }

    fn name(text: &str) -> TenantName {
        TenantName::parse(text).expect("a name")
    }

    fn record(holder: ClientId, tenant: &str, kind: LeaseKind) -> LeaseRecord {
        LeaseRecord {
            lease: Lease { holder, tenant: name(tenant) },
            kind,
            by_operator: kind == LeaseKind::Recorded,
            command: String::new(),
            created_at: 1,
        }
    }

    #[test]
    fn leases_are_sorted_by_tenant_and_life() {
        let records = vec![
            record(process(2), "web", LeaseKind::Own),
            record(process(3), "batch", LeaseKind::Recorded),
            record(process(4), "web", LeaseKind::Own),
        ];
        let is_alive = |holder: ClientId| holder != process(4);
        let judged = judge(records.clone(), THIS, &name("web"), LeaseKind::Own, is_alive);
        let others = records[..2].iter().map(|record| record.lease.clone()).collect();
        let (of_tenant, dead) = (vec![process(2), THIS], vec![process(4)]);
        let expected = JudgedLeases { of_tenant, others, dead, kind: LeaseKind::Own, by_operator: false };
        assert_eq!(judged, Ok(expected));
    }

    #[test]
    fn lease_of_another_tenant_is_refused() {
        let records = vec![record(THIS, "batch", LeaseKind::Own)];
        assert_eq!(judge(records.clone(), THIS, &name("web"), LeaseKind::Own, |_| true), Err(name("batch")));
        let ended = judge(records, THIS, &name("web"), LeaseKind::Own, |_| false).expect("it has ended");
        assert_eq!(ended.dead, [THIS]);
    }

    #[test]
    fn repeated_lease_keeps_proof_and_record() {
        for (before, now) in [(LeaseKind::Own, LeaseKind::Recorded), (LeaseKind::Recorded, LeaseKind::Own)] {
            let judged = judge(vec![record(THIS, "web", before)], THIS, &name("web"), now, |_| true)
                .expect("its own tenant");
            assert_eq!((judged.kind, judged.by_operator), (LeaseKind::Own, true), "{before:?}");
            // It takes one place however often it asks, and is no other process to itself.
            assert_eq!((judged.of_tenant, judged.others), (vec![THIS], Vec::new()));
        }
        let again = vec![record(THIS, "web", LeaseKind::Recorded)];
        let judged = judge(again, THIS, &name("web"), LeaseKind::Recorded, |_| true).expect("its own tenant");
        assert_eq!((judged.kind, judged.by_operator), (LeaseKind::Recorded, true));
    }
}
