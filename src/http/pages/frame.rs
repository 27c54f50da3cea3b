//! The frame of every page: navigation, the user, the host, and whether it is simulated.

use super::assets::Assets;
use crate::domain::access::{Grant, Principal, Role};
use crate::http::extract::Call;
use crate::service::Service;
use crate::service::host::HostIdentity;

/// The section of the console that a page belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Overview,
    Hosts,
    Gpus,
    Daemons,
    Tenants,
    Clients,
    Layouts,
    Replays,
    Operations,
    Events,
    Incidents,
    Timeline,
    Audit,
    Tokens,
    Settings,
    Api,
    /// None of them.
    Elsewhere,
}

impl Section {
    /// Its name in the menu, which is the title of its list.
    pub(super) fn label(self) -> &'static str {
        let sections = MENU.iter().flat_map(|(_, sections)| *sections);
        sections.into_iter().find(|(section, ..)| *section == self).map_or("", |(_, _, label, _)| label)
    }
}

/// The groups of the menu with their sections; each has the role on the host that its link takes; `None` is for all users.
const MENU: [(&str, &[MenuSection]); 4] = [
    (
        "Host",
        &[
            (Section::Overview, "/", "Overview", None),
            (Section::Hosts, "/hosts", "Hosts", Some(Role::Viewer)),
            (Section::Gpus, "/gpus", "GPUs", Some(Role::Viewer)),
            (Section::Daemons, "/daemons", "Daemons", Some(Role::Viewer)),
        ],
    ),
    (
        "Sharing",
        &[
            (Section::Tenants, "/tenants", "Tenants", None),
            (Section::Clients, "/clients", "Clients", None),
            (Section::Layouts, "/layouts", "Layouts", Some(Role::Viewer)),
            (Section::Replays, "/replays", "Replays", Some(Role::Viewer)),
        ],
    ),
    (
        "What happened",
        &[
            (Section::Incidents, "/incidents", "Incidents", None),
            (Section::Timeline, "/timeline", "Timeline", Some(Role::Viewer)),
            (Section::Operations, "/operations", "Operations", None),
            (Section::Events, "/events", "Events", None),
            (Section::Audit, "/audit", "Audit", Some(Role::Admin)),
        ],
    ),
    (
        "Administration",
        &[
            (Section::Tokens, "/tokens", "Tokens", Some(Role::Admin)),
            (Section::Settings, "/settings", "Settings", None),
            (Section::Api, "/docs", "API", None),
        ],
    ),
];

/// A section, its address, its label, and the least role that sees it.
type MenuSection = (Section, &'static str, &'static str, Option<Role>);

/// A group of the menu.
pub(super) struct MenuGroup {
    pub(super) label: &'static str,
    pub(super) links: Vec<MenuLink>,
}

/// A link of the menu.
#[derive(Debug, Clone, Copy)]
pub(super) struct MenuLink {
    pub(super) href: &'static str,
    pub(super) label: &'static str,
    /// True if this is the section of the page.
    pub(super) is_current: bool,
    /// True if the number of open incidents stands beside it.
    pub(super) has_badge: bool,
}

impl MenuLink {
    /// The name of its picture.
    pub(super) fn icon(&self) -> String {
        self.label.to_lowercase()
    }
}

/// A link to what something is about, or to where it can be handled.
pub(super) struct PageLink {
    pub(super) href: String,
    pub(super) label: String,
}

impl PageLink {
    pub(super) fn new(href: impl Into<String>, label: impl Into<String>) -> Self {
        Self { href: href.into(), label: label.into() }
    }
}

/// The frame of a page without a session, which reveals as little as possible.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outside {
    pub(super) assets: Assets,
    /// True if the host is simulated.
    pub(super) simulated: bool,
}

impl Outside {
    pub(super) async fn of(service: &Service) -> Self {
        Self { assets: Assets, simulated: service.without_permit().simulated().await.is_some() }
    }
}

/// The frame of a page.
pub(super) struct Frame {
    pub(super) title: String,
    /// The menu, as far as the user may see its pages.
    pub(super) menu: Vec<MenuGroup>,
    /// Number of open incidents.
    pub(super) open_incidents: u64,
    pub(super) who: String,
    /// A short form, for narrow screens.
    pub(super) called: String,
    pub(super) grant: Grant,
    pub(super) host: HostIdentity,
    pub(super) assets: Assets,
    /// True if the page shows the present state, and follows it.
    pub(super) live: bool,
    /// The last event that it shows.
    pub(super) last_event: i64,
}

impl Call {
    /// The frame of a page in this section, for the logged-in user.
    pub(super) async fn frame(&self, place: Section, title: impl Into<String>) -> Frame {
        let Self { app, ctx } = self;
        // A menu without a number is better than no page.
        let open_incidents = app.service.open_incidents(ctx).await.unwrap_or_default();
        Frame {
            title: title.into(),
            menu: menu(&ctx.actor.grant, place),
            open_incidents,
            who: ctx.actor.subject.to_string(),
            called: match &ctx.actor.subject {
                Principal::Token { name, .. } => name.to_string(),
                other => other.to_string(),
            },
            grant: ctx.actor.grant.clone(),
            host: app.service.without_permit().host_identity(ctx).await,
            assets: Assets,
            live: false,
            last_event: ctx.last_event,
        }
    }
}

impl Frame {
    /// Makes the page follow the present state.
    pub(super) fn live(self) -> Self {
        Self { live: true, ..self }
    }

    /// Returns true if the user has at least this role on the host; actions that need a higher one are not offered.
    pub(super) fn may(&self, least: Role) -> bool {
        host_role(&self.grant).is_some_and(|role| role >= least)
    }

    /// Returns true if actions of operators are offered.
    pub(super) fn operates(&self) -> bool {
        self.may(Role::Operator)
    }

    /// Returns true if the user may terminate clients: those of the host, or those of the user's tenant.
    pub(super) fn terminates(&self) -> bool {
        self.operates() || self.grant.tenant().is_some()
    }

    /// Returns true if actions of admins are offered.
    pub(super) fn administers(&self) -> bool {
        self.may(Role::Admin)
    }
}

/// The menu of a user on a page of this section.
pub(super) fn menu(grant: &Grant, place: Section) -> Vec<MenuGroup> {
    let role = host_role(grant);
    let group = |(label, sections): &(&'static str, &[MenuSection])| {
        let seen = sections.iter().filter(|(.., least)| least.is_none() || role >= *least);
        let link = |(of, href, label, _): &MenuSection| MenuLink {
            href,
            label,
            is_current: *of == place,
            has_badge: *of == Section::Incidents,
        };
        MenuGroup { label, links: seen.map(link).collect() }
    };
    MENU.iter().map(group).filter(|group| !group.links.is_empty()).collect()
}

fn host_role(grant: &Grant) -> Option<Role> {
    match grant {
        Grant::Host(role) => Some(*role),
        Grant::Tenant(_) => None,
    }
}
