//! One sentence on the changes of a plan: which partitions stay, grow, come and go, and how many clients have to stop first.

use std::collections::BTreeSet;

use super::blocked::Blocked;
use super::plan::{Action, Plan, PlannedStep};
use crate::PartitionName;
use crate::client::ClientId;
use crate::count::counted;

/// Partitions of one group that are named one by one.
const NAMED: usize = 3;

/// A partition that the plan changes or keeps, with its SMs before and after.
struct Fate<'p> {
    name: &'p PartitionName,
    before: Option<u32>,
    after: Option<u32>,
    is_kept: bool,
}

impl Fate<'_> {
    /// Describes the change; `None` for a partition that stays, or that comes and goes within the plan.
    fn change(&self) -> Option<String> {
        let Self { name, before, after, is_kept } = self;
        match (before, after) {
            _ if *is_kept => None,
            (None, None) => None,
            (None, Some(after)) => Some(format!("{name} is added with {}", sms(*after))),
            (Some(_), None) => Some(format!("{name} is removed")),
            (Some(before), Some(after)) if before == after => {
                Some(format!("{name} is recreated with the same {}", sms(*after)))
            }
            (Some(before), Some(after)) => {
                let way = if before < after { "grows" } else { "shrinks" };
                Some(format!("{name} {way} from {before} to {}", sms(*after)))
            }
        }
    }
}

/// Returns the sentence on a plan.
pub fn summary(plan: &Plan) -> String {
    if plan.is_empty() && plan.blocked.is_empty() {
        return "Nothing to do".to_owned();
    }
    let fates = fates(&plan.steps);
    let kept: Vec<&Fate<'_>> = fates.iter().filter(|fate| fate.is_kept).collect();
    let mut parts = match kept.as_slice() {
        [] => Vec::new(),
        few if few.len() <= NAMED => few
            .iter()
            .map(|fate| format!("{} keeps its {}", fate.name, sms(fate.after.unwrap_or(0))))
            .collect(),
        many => vec![format!("{} partitions stay as they are", many.len())],
    };
    let changes: Vec<String> = fates.iter().filter_map(Fate::change).collect();
    let more = changes.len().saturating_sub(2 * NAMED);
    parts.extend(changes.into_iter().take(2 * NAMED));
    if more > 0 {
        parts.push(format!("{} change as well", counted(more, "more partition")));
    }
    let strange = plan.steps.iter().filter(|step| step.action == Action::Remove && step.partition.is_none());
    match strange.count() {
        0 => {}
        1 => parts.push("1 partition that no layout made is removed".to_owned()),
        several => parts.push(format!("{several} partitions that no layout made are removed")),
    }
    let mut clients: BTreeSet<&ClientId> = BTreeSet::new();
    for blocked in &plan.blocked {
        match blocked {
            Blocked::InUse { clients: holders, .. } => clients.extend(holders),
            Blocked::TooManyChunks { partition, .. } => parts.push(format!("{partition} does not fit")),
            Blocked::MadeAgain { .. } | Blocked::NotListed { .. } | Blocked::OwnShare(_) => {}
        }
    }
    if !clients.is_empty() {
        parts.push(format!("{} must stop first", counted(clients.len(), "client")));
    }
    parts.join("; ")
}

/// Returns what becomes of each named partition, in the order of the steps.
fn fates(steps: &[PlannedStep]) -> Vec<Fate<'_>> {
    let mut fates: Vec<Fate<'_>> = Vec::new();
    for step in steps {
        let Some(name) = &step.partition else { continue };
        let at = fates.iter().position(|fate| fate.name == name).unwrap_or_else(|| {
            fates.push(Fate { name, before: None, after: None, is_kept: false });
            fates.len() - 1
        });
        let fate = &mut fates[at];
        match step.action {
            Action::Keep => {
                (fate.before, fate.after, fate.is_kept) = (Some(step.sms), Some(step.sms), true);
            }
            Action::Add => fate.after = Some(step.sms),
            // One that an earlier step kept or made goes after all.
            Action::Remove if fate.after.take().is_some() => fate.is_kept = false,
            Action::Remove => fate.before = Some(step.sms),
        }
    }
    fates
}

fn sms(of: u32) -> String {
    counted(of, "SM")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(steps: &[(&str, &str, u32)]) -> String {
        let chunks = serde_json::json!({"free": 0, "used": 0});
        let steps: Vec<serde_json::Value> = steps
            .iter()
            .map(|(action, partition, sms)| {
                serde_json::json!({
                    "action": action, "reason": "layout", "step": 0, "gpu": "GPU-514466a0-8e68-f857-9f73-e438010e48cb",
                    "partition": Some(partition).filter(|name| !name.is_empty()), "chunks": sms / 8, "sms": sms, "id": null,
                    "expected": null, "before": chunks, "after": chunks, "clients": [],
                })
            })
            .collect();
        let plan = serde_json::json!({"steps": steps, "taken": [], "gpus": [], "blocked": []});
        summary(&serde_json::from_value(plan).expect("a plan"))
    }

    #[test]
    fn each_partition_has_its_fate() {
        assert_eq!(
            said(&[("keep", "web", 56), ("remove", "batch", 40), ("add", "batch", 48)]),
            "web keeps its 56 SMs; batch grows from 40 to 48 SMs"
        );
        assert_eq!(
            said(&[("remove", "spare", 8), ("remove", "old", 16), ("add", "spare", 8), ("add", "new", 24)]),
            "spare is recreated with the same 8 SMs; old is removed; new is added with 24 SMs"
        );
        assert_eq!(said(&[("remove", "a", 24), ("add", "a", 16)]), "a shrinks from 24 to 16 SMs");
        assert_eq!(said(&[("keep", "web", 56)]), "Nothing to do");
    }

    #[test]
    fn partition_that_comes_and_goes_is_left_out() {
        assert_eq!(
            said(&[("add", "gap", 16), ("add", "web", 8), ("remove", "gap", 16)]),
            "web is added with 8 SMs"
        );
        assert_eq!(
            said(&[("keep", "a", 8), ("remove", "a", 8)]),
            "a is removed",
            "a kept one that goes later"
        );
    }

    #[test]
    fn many_partitions_are_counted() {
        let kept =
            [("keep", "a", 8), ("keep", "b", 8), ("keep", "c", 8), ("keep", "d", 8), ("remove", "", 8)];
        assert_eq!(said(&kept), "4 partitions stay as they are; 1 partition that no layout made is removed");
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let added: Vec<(&str, &str, u32)> = names.iter().map(|name| ("add", *name, 8)).collect();
        assert!(said(&added).ends_with("f is added with 8 SMs; 2 more partitions change as well"));
    }

    #[test]
    fn clients_that_must_stop_are_counted_once() {
        let blocked = |id: &str, clients: &[&str]| {
            let gpu = "GPU-514466a0-8e68-f857-9f73-e438010e48cb";
            serde_json::json!({"kind": "in_use", "partition": null, "gpu": gpu, "id": id, "clients": clients})
        };
        let blocked = [blocked("AA", &["7-1", "8-1"]), blocked("AB", &["8-1"])];
        let plan = serde_json::json!({"steps": [], "taken": [], "gpus": [], "blocked": blocked});
        assert_eq!(summary(&serde_json::from_value(plan).expect("a plan")), "2 clients must stop first");
    }
}
