//! What stands around every page: where one is, who one is, which host this is, and whether it is real.

use super::assets::Assets;
use crate::domain::access::{Actor, Grant, Role, Subject};
use crate::service::Service;
use crate::service::host::Nameplate;

/// The part of the console that a page belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Overview,
    Gpus,
    Daemons,
    Tenants,
    Clients,
    Layouts,
    Replays,
    Operations,
    Events,
    Faults,
    Audit,
    Tokens,
    Settings,
    /// In none of them.
    Elsewhere,
}

/// Who is shown the way to a place.
#[derive(Clone, Copy)]
enum For {
    Everybody,
    /// Those who have at least this role on the host.
    Host(Role),
}

/// The places in the order of the menu.
const PLACES: [(Place, &str, &str, For); 13] = [
    (Place::Overview, "/", "Overview", For::Everybody),
    (Place::Gpus, "/gpus", "GPUs", For::Host(Role::Viewer)),
    (Place::Daemons, "/daemons", "Daemons", For::Host(Role::Viewer)),
    (Place::Tenants, "/tenants", "Tenants", For::Everybody),
    (Place::Clients, "/clients", "Clients", For::Everybody),
    (Place::Layouts, "/layouts", "Layouts", For::Host(Role::Viewer)),
    (Place::Replays, "/replays", "Replays", For::Host(Role::Viewer)),
    (Place::Operations, "/operations", "Operations", For::Everybody),
    (Place::Events, "/events", "Events", For::Everybody),
    (Place::Faults, "/faults", "Faults", For::Host(Role::Viewer)),
    (Place::Audit, "/audit", "Audit", For::Host(Role::Admin)),
    (Place::Tokens, "/tokens", "Tokens", For::Host(Role::Admin)),
    (Place::Settings, "/settings", "Settings", For::Everybody),
];

/// A way to a place.
pub(super) struct Way {
    pub(super) href: &'static str,
    pub(super) label: &'static str,
    pub(super) current: bool,
}

/// What stands around a page for somebody who is not logged in, and is told as little as they need.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outside {
    pub(super) assets: Assets,
    /// Whether the host is simulated.
    pub(super) simulated: bool,
}

impl Outside {
    pub(super) async fn of(service: &Service) -> Self {
        Self { assets: Assets, simulated: service.simulated().await.is_some() }
    }
}

/// What stands around a page.
pub(super) struct Frame {
    pub(super) title: String,
    pub(super) ways: Vec<Way>,
    pub(super) who: String,
    /// The same in short, for where there is little room.
    pub(super) called: String,
    pub(super) grant: Grant,
    pub(super) host: Nameplate,
    pub(super) assets: Assets,
    /// Whether the page shows what is now, and is to follow it.
    pub(super) live: bool,
}

impl Frame {
    /// Around a page of this place, for whoever is logged in.
    pub(super) async fn of(service: &Service, actor: &Actor, place: Place, title: &str) -> Self {
        let role = host_role(&actor.grant);
        let ways = PLACES.iter().filter(|(_, _, _, shown_to)| match shown_to {
            For::Everybody => true,
            For::Host(least) => role.is_some_and(|role| role >= *least),
        });
        let way = |(of, href, label, _): &(Place, &'static str, &'static str, For)| Way {
            href,
            label,
            current: *of == place,
        };
        Self {
            title: title.to_owned(),
            ways: ways.map(way).collect(),
            who: actor.subject.to_string(),
            called: match &actor.subject {
                Subject::Token { name, .. } => name.to_string(),
                other => other.to_string(),
            },
            grant: actor.grant.clone(),
            host: service.nameplate(actor).await,
            assets: Assets,
            live: false,
        }
    }

    /// The same around a page that shows what is now.
    pub(super) fn live(self) -> Self {
        Self { live: true, ..self }
    }

    /// Whether whoever is logged in has at least this role on the host: what they cannot do is not offered.
    pub(super) fn may(&self, least: Role) -> bool {
        host_role(&self.grant).is_some_and(|role| role >= least)
    }

    /// Whether operators' actions are offered.
    pub(super) fn operates(&self) -> bool {
        self.may(Role::Operator)
    }

    /// Whether admins' actions are offered.
    pub(super) fn administers(&self) -> bool {
        self.may(Role::Admin)
    }
}

fn host_role(grant: &Grant) -> Option<Role> {
    match grant {
        Grant::Host(role) => Some(*role),
        Grant::Tenant(_) => None,
    }
}
