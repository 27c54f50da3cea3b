//! Rows of the audit log that one sentence describes: `Slurm made 12 tenants, 9 have ended`.

use std::collections::{BTreeMap, BTreeSet};

use super::sentence::{Deed, WITH_HOST_FILE, actor_words, tenant_of};
use super::{AuditOutcome, AuditRecord};
use crate::count::counted;
use crate::workload::Workload;

/// Changes by one actor that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeGroup {
    /// The actor, as rows name it.
    pub actor: String,
    /// The scheduler whose jobs or pods the tenants are for; it is named instead of the actor.
    pub scheduler: Option<&'static str>,
    /// The changes in words.
    pub deed: Deed,
    /// The target, where all rows have the same.
    pub target: Option<String>,
    /// Time of the newest row.
    pub at: i64,
    /// Number of rows.
    pub rows: usize,
}

impl ChangeGroup {
    /// Returns the author of the changes in words.
    pub fn author(&self, user_name: impl Fn(u32) -> Option<String>) -> String {
        self.scheduler.map_or_else(|| actor_words(&self.actor, user_name), str::to_owned)
    }

    /// Returns the group as a sentence.
    pub fn sentence(&self, user_name: impl Fn(u32) -> Option<String>) -> String {
        format!("{} {}", self.author(user_name), self.deed)
    }
}

/// Key that rows which belong together have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
enum GroupKey {
    /// Tenants, or the leases of a tenant, that an actor made and deleted.
    Lives { actor: String, scheduler: Option<&'static str>, leases_of: Option<String> },
    /// Daemons that an actor created by one action, as for each GPU of a host.
    Created { actor: String, action: String },
    /// Repeats of an action on a target, such as several edits of a tenant.
    Repeated { actor: String, action: String, target: String },
}

impl GroupKey {
    fn of(row: &AuditRecord) -> Self {
        let actor = row.actor.clone();
        let is_life = row.before.is_none() != row.after.is_none();
        match row.kind() {
            "tenants" if is_life => {
                let scheduler = row.workload().map(|workload| match workload {
                    Workload::Container { .. } => "Kubernetes",
                    Workload::Job { .. } => "Slurm",
                });
                Self::Lives { actor, scheduler, leases_of: None }
            }
            "leases" if is_life => {
                Self::Lives { actor, scheduler: None, leases_of: tenant_of(row).map(String::from) }
            }
            // Others were adopted.
            "daemons" if row.deed().verb == "created" => Self::Created { actor, action: row.action.clone() },
            _ => Self::Repeated { actor, action: row.action.clone(), target: row.target.clone() },
        }
    }
}

/// Groups the rows of what was done, which come newest first; so do the groups, by their newest rows.
pub fn what_changed(rows: &[AuditRecord]) -> Vec<ChangeGroup> {
    let mut groups: Vec<(GroupKey, Vec<&AuditRecord>)> = Vec::new();
    for row in rows.iter().filter(|row| row.outcome == AuditOutcome::Done) {
        let key = GroupKey::of(row);
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, of_key)) => of_key.push(row),
            None => groups.push((key, vec![row])),
        }
    }
    groups.into_iter().filter_map(|(key, rows)| group(&key, &rows)).collect()
}

fn group(key: &GroupKey, rows: &[&AuditRecord]) -> Option<ChangeGroup> {
    let (newest, oldest) = (*rows.first()?, *rows.last()?);
    let (scheduler, deed) = match key {
        _ if rows.len() == 1 => (None, newest.deed()),
        GroupKey::Lives { scheduler, leases_of, .. } => (*scheduler, lives(rows, leases_of.as_deref())),
        GroupKey::Created { .. } => (None, created(rows)),
        GroupKey::Repeated { .. } => (None, repeated(newest, oldest, rows.len())),
    };
    let target = rows.iter().all(|row| row.target == newest.target).then(|| newest.target.clone());
    Some(ChangeGroup {
        actor: newest.actor.clone(),
        scheduler,
        deed,
        target,
        at: newest.at,
        rows: rows.len(),
    })
}

/// Describes the creation of daemons, of which one may have been created again.
fn created(rows: &[&AuditRecord]) -> Deed {
    let daemons: BTreeSet<&str> = rows.iter().map(|row| row.target.as_str()).collect();
    let with_file = rows.iter().all(|row| row.deed().rest.ends_with(WITH_HOST_FILE));
    let rest = if with_file { WITH_HOST_FILE } else { "" };
    Deed::new("created", counted(daemons.len(), "daemon"), rest)
}

/// Describes what became of tenants or leases: how many were made, and how many of these have ended.
fn lives(rows: &[&AuditRecord], leases_of: Option<&str>) -> Deed {
    let mut by_target: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for row in rows {
        let (made, ended) = by_target.entry(&row.target).or_default();
        *(if row.after.is_some() { made } else { ended }) += 1;
    }
    let made: usize = by_target.values().map(|(made, _)| made).sum();
    let of_these: usize = by_target.values().map(|(made, ended)| made.min(ended)).sum();
    let others = by_target.values().map(|(_, ended)| ended).sum::<usize>() - of_these;
    let noun = if leases_of.is_some() { "lease" } else { "tenant" };
    let of = leases_of.map(|tenant| format!(" of {tenant}")).unwrap_or_default();
    if made == 0 {
        return Deed::new("ended", format!("{}{of}", counted(others, noun)), "");
    }
    let ended = match of_these {
        0 => String::new(),
        1 if made == 1 => ", which has ended".to_owned(),
        all if all == made => ", which have ended".to_owned(),
        1 => ", 1 has ended".to_owned(),
        some => format!(", {some} have ended"),
    };
    let others =
        if others == 0 { String::new() } else { format!(", and ended {}", counted(others, "other")) };
    Deed::new("made", format!("{}{of}", counted(made, noun)), format!("{ended}{others}"))
}

/// Describes repeated changes of an object by the difference between its first and its last state.
fn repeated(newest: &AuditRecord, oldest: &AuditRecord, times: usize) -> Deed {
    let net = AuditRecord { before: oldest.before.clone(), ..newest.clone() };
    let is_edit = newest.before.is_some() && newest.after.is_some();
    let deed = if is_edit && net.before == net.after {
        Deed::new("changed", newest.deed().object, "and set it back")
    } else {
        net.deed()
    };
    let often = match times {
        _ if is_edit => format!(", in {}", counted(times, "change")),
        2 => " twice".to_owned(),
        times => format!(" {times} times"),
    };
    Deed { rest: format!("{}{often}", deed.rest).trim_start().to_owned(), ..deed }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sentence::tests::row;
    use super::*;

    fn sentences(rows: &[AuditRecord]) -> Vec<String> {
        let newest_first: Vec<AuditRecord> = rows.iter().rev().cloned().collect();
        what_changed(&newest_first).iter().map(|group| group.sentence(|_| None)).collect()
    }

    fn job(number: usize, is_made: bool) -> AuditRecord {
        let spec = json!({ "daemon": "gpu0", "labels": { "slurm-job": number.to_string() } });
        let (before, after) = if is_made { (None, Some(spec)) } else { (Some(spec), None) };
        row("uid 0", "PUT /api/v1/tenants/{name}", &format!("tenants/job-{number}"), before, after)
    }

    #[test]
    fn jobs_of_a_scheduler_are_counted() {
        let made = (0..12).map(|number| job(number, true));
        let ended = (0..9).map(|number| job(number, false));
        let rows: Vec<AuditRecord> = made.chain(ended).collect();
        assert_eq!(sentences(&rows), ["Slurm made 12 tenants, 9 have ended"]);
        assert_eq!(sentences(&rows[..2]), ["Slurm made 2 tenants"]);
        assert_eq!(sentences(&rows[12..14]), ["Slurm ended 2 tenants"]);
        assert_eq!(sentences(&rows[10..14]), ["Slurm made 2 tenants, and ended 2 others"]);
        assert_eq!(sentences(&[job(1, true), job(1, false)]), ["Slurm made 1 tenant, which has ended"]);
        // One row is a sentence of its own, with its actor.
        assert_eq!(sentences(&rows[..1]), ["user 0 created tenant job-0 on gpu0 for job 0"]);
    }

    #[test]
    fn created_daemons_are_counted() {
        let daemon = |index: usize, is_made: bool| {
            let spec = Some(json!({ "gpus": [format!("GPU-{index}")] }));
            let (before, after) = if is_made { (None, spec) } else { (spec, None) };
            let target = format!("daemons/gpu{index}");
            row("manager", "PUT /api/v1/daemons/{name}", &target, before, after)
        };
        let rows = [daemon(0, true), daemon(1, true), daemon(1, false), daemon(1, true)];
        assert_eq!(sentences(&rows), ["the manager created 2 daemons", "the manager deleted daemon gpu1"]);
        assert_eq!(sentences(&rows[..1]), ["the manager created daemon gpu0 on 1 GPU"]);
        let adopted =
            |row: AuditRecord| AuditRecord { action: "POST /foreign-daemons/{id}/adopt".to_owned(), ..row };
        assert_eq!(
            sentences(&[adopted(daemon(0, true)), adopted(daemon(1, true))]),
            ["the manager adopted daemon gpu1", "the manager adopted daemon gpu0"]
        );
        let of_file = |row: AuditRecord| AuditRecord { action: "PUT /api/v1/host/spec".to_owned(), ..row };
        let mixed = [daemon(0, true), of_file(daemon(1, true)), of_file(daemon(2, true))];
        assert_eq!(
            sentences(&mixed),
            ["the manager created 2 daemons, with the host file", "the manager created daemon gpu0 on 1 GPU"]
        );
    }

    #[test]
    fn leases_are_counted_by_tenant() {
        let lease = |tenant: &str, pid: u32, is_made: bool| {
            let (before, after) = if is_made {
                (None, Some(json!({ "pid": pid })))
            } else {
                (Some(json!({ "pid": pid })), None)
            };
            let target = format!("tenants/{tenant}/leases/{pid}-7");
            row(
                "token 0123456789abcdef (slurm)",
                "POST /api/v1/tenants/{name}/leases",
                &target,
                before,
                after,
            )
        };
        let rows = [
            lease("web", 1, true),
            lease("demo", 2, true),
            lease("web", 3, true),
            lease("web", 4, true),
            lease("web", 1, false),
        ];
        assert_eq!(
            sentences(&rows),
            ["slurm made 3 leases of web, 1 has ended", "slurm made a lease of tenant demo"]
        );
    }

    #[test]
    fn edits_of_a_target_become_one() {
        let limit = |gib: u64| Some(json!({ "daemon": "gpu0", "device_memory_limit": gib << 30 }));
        let edit = |actor: &str, before: u64, after: u64| {
            row(actor, "PUT /api/v1/tenants/{name}", "tenants/web", limit(before), limit(after))
        };
        let rows = [edit("uid 7", 1, 2), edit("admin token", 2, 3), edit("uid 7", 3, 4)];
        let [ada, admin] = [
            "user 7 gave tenant web 4 GiB instead of 1 GiB, in 2 changes",
            "admin gave tenant web 3 GiB instead of 2 GiB",
        ];
        assert_eq!(sentences(&rows), [ada, admin]);
        let back = [edit("uid 7", 1, 2), edit("uid 7", 2, 1)];
        assert_eq!(sentences(&back), ["user 7 changed tenant web and set it back, in 2 changes"]);
        let verify = row("uid 7", "POST /api/v1/tenants/{name}/verify", "tenants/web", None, None);
        assert_eq!(
            sentences(&[verify.clone(), verify.clone(), verify]),
            ["user 7 verified tenant web 3 times"]
        );
        let refused = AuditRecord { outcome: AuditOutcome::Refused, ..edit("uid 7", 1, 2) };
        assert!(sentences(&[refused]).is_empty());
    }
}
