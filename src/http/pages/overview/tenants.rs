//! Conditions of tenants that need attention, as far as their daemons do not report them already.

use super::attention::Attention;
use crate::domain::attention::{AttentionItem, attention_items};
use crate::domain::condition::ConditionType;
use crate::domain::count::enumerated;
use crate::http::pages::daemons::DaemonSummary;
use crate::http::pages::format::Tone;
use crate::http::pages::frame::PageLink;
use crate::service::page::Paged;
use crate::service::tenants::TenantConditions;

/// The conditions of tenants that need attention, once for all tenants of a daemon that have them; and that there are tenants of whom
/// this was not looked up.
pub(super) fn of_tenants(daemons: &[DaemonSummary], tenants: &Paged<TenantConditions>) -> Vec<Attention> {
    let daemons = daemons.iter().map(|row| {
        let conditions = row.daemon.status.as_ref().map_or(&[][..], |status| &status.conditions);
        (&row.daemon.name, conditions)
    });
    let items = attention_items(
        daemons,
        tenants.items.iter().map(|tenant| (&tenant.name, &tenant.daemon, &tenant.conditions[..])),
    );
    let looked_up = tenants.items.len();
    let last = tenants.items.last().filter(|_| tenants.next_cursor.is_some());
    let rest = last.map(|last| Attention {
        tone: Tone::Quiet,
        what: format!("Only the first {looked_up} tenants were looked up"),
        why: format!("the tenants after {} may need attention too: their list shows it", last.name),
        remedy: PageLink::new("/tenants", "Show tenants"),
    });
    items.iter().filter(|item| !item.tenants.is_empty()).map(attention).chain(rest).collect()
}

fn attention(item: &AttentionItem<'_>) -> Attention {
    let names: Vec<&str> = item.tenants.iter().map(|tenant| tenant.as_str()).collect();
    let (who, remedy) = match names.as_slice() {
        [name] => (format!("tenant {name}"), PageLink::new(format!("/tenants/{name}"), "Show tenant")),
        names => {
            let list = format!("/tenants?daemon={}", item.daemon);
            (format!("tenants {}", enumerated(names)), PageLink::new(list, "Show tenants"))
        }
    };
    let what = match item.condition.kind {
        ConditionType::Ready => format!("No new processes for {who}"),
        ConditionType::LimitWeakened => format!("Only the environment holds the memory limit of {who}"),
        ConditionType::LimitBelowContext => {
            format!("The memory limit of {who} leaves no room for a CUDA context")
        }
        ConditionType::ShareBelowMinimum => {
            format!("The share of {who} is below what MPS gives every client")
        }
        ConditionType::ClientsAboveMaximum => format!("More clients are connected than {who} may have"),
        kind => format!("{}: {who}", kind.words()),
    };
    Attention { tone: Tone::Warn, what, why: item.message.to_owned(), remedy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::condition::{Condition, ConditionReason};
    use crate::domain::{DaemonName, TenantName};

    #[test]
    fn weakened_tenants_share_one_row() {
        let name = |name| TenantName::parse(name).expect("a name");
        let (daemon, batch, web) = (DaemonName::parse("gpu0").expect("a name"), name("batch"), name("web"));
        let condition = Condition::new(
            ConditionType::LimitWeakened,
            true,
            ConditionReason::NeighbourWithoutLimit,
            "tenant free has no memory limit",
        );
        let item = |tenants| {
            let message = condition.message.as_str();
            AttentionItem { daemon: &daemon, tenants, condition: &condition, message }
        };
        let one = attention(&item(vec![&web]));
        assert_eq!(one.what, "Only the environment holds the memory limit of tenant web");
        assert_eq!(one.remedy.href, "/tenants/web");
        let both = attention(&item(vec![&batch, &web]));
        assert_eq!(both.what, "Only the environment holds the memory limit of tenants batch and web");
        assert_eq!(both.remedy.href, "/tenants?daemon=gpu0");
        assert_eq!(both.why, "tenant free has no memory limit");
    }
}
