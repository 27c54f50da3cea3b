//! Conditions of daemons and tenants that need attention, each listed once.

use std::collections::BTreeSet;

use super::condition::{Condition, ReasonOutlook};
use super::{DaemonName, TenantName};

/// Text of a refusal between a tenant's name and the reason.
const REFUSED: &str = " gets no new processes: ";

/// A condition that needs attention, with all tenants that have it.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionItem<'a> {
    /// The daemon that it is about.
    pub daemon: &'a DaemonName,
    /// The tenants of the daemon that have it; none for a condition of the daemon itself.
    pub tenants: Vec<&'a TenantName>,
    /// The condition.
    pub condition: &'a Condition,
    /// Its message, without the tenant's name where it begins with that.
    pub message: &'a str,
}

/// Returns the conditions that need attention, those of daemons first.
///
/// A daemon's condition is not repeated for its tenants, nor a message for the same daemon or tenant. Conditions of tenants that end by
/// themselves within moments are left out.
pub fn attention_items<'a>(
    daemons: impl IntoIterator<Item = (&'a DaemonName, &'a [Condition])>,
    tenants: impl IntoIterator<Item = (&'a TenantName, &'a DaemonName, &'a [Condition])>,
) -> Vec<AttentionItem<'a>> {
    let mut found: Vec<AttentionItem<'a>> = Vec::new();
    let mut of_daemons = BTreeSet::new();
    for (daemon, conditions) in daemons {
        for condition in conditions.iter().filter(|condition| condition.needs_attention()) {
            of_daemons.insert((daemon, condition.reason));
            let message = condition.message.as_str();
            // The message of a fault is often also that of the daemon's `Ready` condition.
            if found.iter().all(|known| known.daemon != daemon || known.message != message) {
                found.push(AttentionItem { daemon, tenants: Vec::new(), condition, message });
            }
        }
    }
    for (tenant, daemon, conditions) in tenants {
        for condition in conditions.iter().filter(|condition| condition.needs_attention()) {
            let (kind, reason) = (condition.kind, condition.reason);
            // A reason that passes within moments, or that the daemon's own condition shows, is left out.
            let is_left_out = matches!(reason.outlook(), ReasonOutlook::Passes | ReasonOutlook::OfDaemon);
            if is_left_out || of_daemons.contains(&(daemon, reason)) {
                continue;
            }
            let message = without_name(&condition.message, tenant);
            let is_said = |known: &AttentionItem<'_>| {
                (known.daemon, known.message) == (daemon, message)
                    && (known.tenants.is_empty() || known.tenants.contains(&tenant))
            };
            if found.iter().any(is_said) {
                continue;
            }
            // One item for what several tenants of a daemon have in common.
            let is_same = |known: &&mut AttentionItem<'_>| {
                (known.daemon, known.condition.kind, known.condition.reason, known.message)
                    == (daemon, kind, reason, message)
            };
            match found.iter_mut().find(is_same) {
                Some(known) => known.tenants.push(tenant),
                None => found.push(AttentionItem { daemon, tenants: vec![tenant], condition, message }),
            }
        }
    }
    found
}

/// Returns the message that a tenant gets no new processes, with the reason.
pub fn refusal(tenant: &TenantName, why: &str) -> String {
    format!("tenant {tenant}{REFUSED}{why}")
}

/// Returns the message without the tenant's name, for display next to that name.
fn without_name<'m>(message: &'m str, tenant: &TenantName) -> &'m str {
    let rest = message.strip_prefix("tenant ").and_then(|rest| rest.strip_prefix(tenant.as_str()));
    rest.and_then(|rest| rest.strip_prefix(REFUSED)).unwrap_or(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::{ConditionReason, ConditionType};

    fn tenant(name: &str) -> TenantName {
        TenantName::parse(name).expect("a name")
    }

    fn daemon() -> DaemonName {
        DaemonName::parse("gpu0").expect("a name")
    }

    fn not_ready(reason: ConditionReason, message: &str) -> Condition {
        Condition::new(ConditionType::Ready, false, reason, message)
    }

    #[test]
    fn message_does_not_repeat_the_tenant() {
        let message = refusal(&tenant("a-b"), "its layout is not in force");
        assert_eq!(message, "tenant a-b gets no new processes: its layout is not in force");
        assert_eq!(without_name(&message, &tenant("a-b")), "its layout is not in force");
        for other in ["a", "b"] {
            assert_eq!(without_name(&message, &tenant(other)), message);
        }
    }

    #[test]
    fn tenants_share_what_they_have_in_common() {
        let (gpu0, batch, web) = (daemon(), tenant("batch"), tenant("web"));
        let own = |name| [not_ready(ConditionReason::PartitionInUse, &refusal(name, "it is held"))];
        let (one, other) = (own(&batch), own(&web));
        let found = attention_items([], [(&batch, &gpu0, &one[..]), (&web, &gpu0, &other[..])]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].tenants.as_slice(), found[0].message), (&[&batch, &web][..], "it is held"));
    }

    #[test]
    fn reasons_of_the_daemon_are_not_repeated() {
        let (gpu0, web) = (daemon(), tenant("web"));
        let of_daemon = [
            not_ready(ConditionReason::Wedged, "it does not answer"),
            Condition::new(
                ConditionType::ServerFault,
                true,
                ConditionReason::ServerFault,
                "it does not answer",
            ),
        ];
        let own = [
            not_ready(ConditionReason::DaemonNotReady, "daemon gpu0: it does not answer"),
            not_ready(ConditionReason::ServerFault, "daemon gpu0: a fault"),
        ];
        let found = attention_items([(&gpu0, &of_daemon[..])], [(&web, &gpu0, &own[..])]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].tenants.is_empty() && found[0].condition == &of_daemon[0]);
    }

    #[test]
    fn passing_and_repeated_conditions_are_left_out() {
        let (gpu0, web) = (daemon(), tenant("web"));
        let of_daemon = [not_ready(ConditionReason::Starting, "it is being started")];
        let own = [
            not_ready(ConditionReason::AwaitingReadBack, "daemon gpu0 is applying its limits"),
            not_ready(ConditionReason::DirectoryUnreachable, "user 7 cannot reach it"),
            Condition::new(
                ConditionType::ClientSocket,
                false,
                ConditionReason::SocketNotHandedOut,
                "user 7 cannot reach it",
            ),
        ];
        let found = attention_items([(&gpu0, &of_daemon[..])], [(&web, &gpu0, &own[..])]);
        let shown: Vec<_> = found.iter().map(|item| (item.tenants.len(), item.condition)).collect();
        assert_eq!(shown, [(0, &of_daemon[0]), (1, &own[1])]);
    }
}
