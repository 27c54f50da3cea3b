//! What needs attention of tenants, as far as their daemons do not report it already.

use std::collections::BTreeSet;

use super::attention::{Attention, RemedyLink};
use crate::domain::DaemonName;
use crate::domain::condition::{Condition, ConditionReason, ConditionType};
use crate::domain::count::enumerated;
use crate::http::pages::daemons::DaemonSummary;
use crate::http::pages::format::Tone;
use crate::service::tenants::TenantView;

/// A condition that tenants of a daemon have in common.
struct SharedCondition<'a> {
    daemon: &'a DaemonName,
    names: Vec<&'a str>,
    condition: &'a Condition,
    /// Its message, without the tenant's name.
    message: &'a str,
}

/// The conditions of tenants that need attention, once for all tenants of a daemon that have them.
pub(super) fn of_tenants(daemons: &[DaemonSummary], tenants: &[TenantView]) -> Vec<Attention> {
    let of_daemons: BTreeSet<(&str, ConditionReason)> = daemons
        .iter()
        .flat_map(|row| {
            let conditions = row.daemon.status.iter().flat_map(|status| &status.conditions);
            let bad = conditions.filter(|condition| condition.needs_attention());
            bad.map(move |condition| (row.daemon.name.as_str(), condition.reason))
        })
        .collect();
    let mut found: Vec<SharedCondition<'_>> = Vec::new();
    for tenant in tenants {
        let daemon = &tenant.spec.daemon;
        let own = tenant.status.conditions.iter().filter(|condition| condition.needs_attention());
        for condition in own {
            let reason = condition.reason;
            if is_passing(reason) || of_daemons.contains(&(daemon.as_str(), reason)) {
                continue;
            }
            let message = without_name(&condition.message, tenant.name.as_str());
            let same = |known: &&mut SharedCondition<'_>| {
                (known.daemon, known.condition.kind, known.condition.reason, known.message)
                    == (daemon, condition.kind, reason, message)
            };
            match found.iter_mut().find(same) {
                Some(known) => known.names.push(tenant.name.as_str()),
                None => {
                    found.push(SharedCondition {
                        daemon,
                        names: vec![tenant.name.as_str()],
                        condition,
                        message,
                    });
                }
            }
        }
    }
    found.iter().map(attention).collect()
}

/// Whether a reason is the daemon's, which is shown for itself, or ends by itself within moments.
fn is_passing(reason: ConditionReason) -> bool {
    matches!(reason, ConditionReason::DaemonNotReady | ConditionReason::AwaitingReadBack)
}

fn attention(shared: &SharedCondition<'_>) -> Attention {
    let (who, remedy) = match shared.names.as_slice() {
        [name] => (format!("tenant {name}"), RemedyLink::new(format!("/tenants/{name}"), "Show tenant")),
        names => {
            let list = format!("/tenants?daemon={}", shared.daemon);
            (format!("tenants {}", enumerated(names)), RemedyLink::new(list, "Show tenants"))
        }
    };
    let what = match shared.condition.kind {
        ConditionType::Ready => format!("No new processes for {who}"),
        ConditionType::LimitWeakened => format!("Only the environment holds the memory limit of {who}"),
        ConditionType::LimitBelowContext => {
            format!("The memory limit of {who} leaves no room for a CUDA context")
        }
        ConditionType::ShareBelowMinimum => {
            format!("The share of {who} is below what MPS gives every client")
        }
        kind => format!("{kind}: {who}"),
    };
    Attention { tone: Tone::Warn, what, why: shared.message.to_owned(), remedy }
}

/// The reason in a message about a tenant that is named beside it.
fn without_name<'m>(message: &'m str, tenant: &str) -> &'m str {
    let rest = message.strip_prefix("tenant ").and_then(|rest| rest.strip_prefix(tenant));
    rest.and_then(|rest| rest.strip_prefix(" gets no new processes: ")).unwrap_or(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared<'a>(
        daemon: &'a DaemonName,
        names: &[&'a str],
        condition: &'a Condition,
    ) -> SharedCondition<'a> {
        SharedCondition { daemon, names: names.to_vec(), condition, message: &condition.message }
    }

    #[test]
    fn weakened_tenants_share_one_row() {
        let daemon = DaemonName::parse("gpu0").expect("a name");
        let condition = Condition::new(
            ConditionType::LimitWeakened,
            true,
            ConditionReason::NeighbourWithoutLimit,
            "tenant free has no memory limit",
        );
        let one = attention(&shared(&daemon, &["web"], &condition));
        assert_eq!(one.what, "Only the environment holds the memory limit of tenant web");
        assert_eq!(one.remedy.href, "/tenants/web");
        let both = attention(&shared(&daemon, &["batch", "web"], &condition));
        assert_eq!(both.what, "Only the environment holds the memory limit of tenants batch and web");
        assert_eq!(both.remedy.href, "/tenants?daemon=gpu0");
        assert_eq!(both.why, "tenant free has no memory limit");
    }

    #[test]
    fn reason_does_not_repeat_the_tenant() {
        let message = "tenant a-b gets no new processes: its daemon is cordoned";
        assert_eq!(without_name(message, "a-b"), "its daemon is cordoned");
        assert_eq!(without_name(message, "a"), message);
    }
}
