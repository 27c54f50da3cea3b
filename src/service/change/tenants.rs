//! Tenants within a change: as they were loaded, and as they will be. Only those that the change touches are copied, since there may
//! be thousands.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::domain::TenantName;
use crate::domain::tenant::{Tenant, named};

/// Tenants by name.
#[derive(Debug, Clone, Default)]
pub(in crate::service) struct StagedTenants {
    /// As they were loaded, by name.
    loaded: Arc<Vec<Tenant>>,
    /// Those that may differ; `None` for one that is deleted.
    touched: BTreeMap<TenantName, Option<Tenant>>,
}

/// A tenant that a change has touched, which may be the same as before.
pub(super) struct TouchedTenant<'t> {
    pub(super) name: &'t TenantName,
    pub(super) before: Option<&'t Tenant>,
    pub(super) after: Option<&'t Tenant>,
}

impl TouchedTenant<'_> {
    /// Returns true if its spec was written or it came or went, so that its daemon has to follow.
    pub(super) fn has_new_generation(&self) -> bool {
        self.before.map(|before| before.generation) != self.after.map(|after| after.generation)
    }
}

impl StagedTenants {
    /// Tenants as they were loaded, in the order of their names.
    pub(super) fn of(loaded: Arc<Vec<Tenant>>) -> Self {
        Self { loaded, touched: BTreeMap::new() }
    }

    /// A tenant as it was loaded.
    pub(super) fn loaded(&self, name: &TenantName) -> Option<&Tenant> {
        named(&self.loaded, name)
    }

    /// A tenant as it will be.
    pub(in crate::service) fn get(&self, name: &TenantName) -> Option<&Tenant> {
        match self.touched.get(name) {
            Some(touched) => touched.as_ref(),
            None => self.loaded(name),
        }
    }

    /// A tenant to be changed.
    pub(in crate::service) fn get_mut(&mut self, name: &TenantName) -> Option<&mut Tenant> {
        if !self.touched.contains_key(name) {
            let loaded = self.loaded(name)?.clone();
            self.touched.insert(name.clone(), Some(loaded));
        }
        self.touched.get_mut(name)?.as_mut()
    }

    /// Adds a tenant, or replaces the one of its name.
    pub(super) fn insert(&mut self, tenant: Tenant) {
        self.touched.insert(tenant.name.clone(), Some(tenant));
    }

    /// Deletes a tenant.
    pub(in crate::service) fn remove(&mut self, name: &TenantName) {
        self.touched.insert(name.clone(), None);
    }

    /// The tenants as they will be, by name.
    pub(in crate::service) fn values(&self) -> impl Iterator<Item = &Tenant> {
        // Both are in the order of their names.
        let (mut loaded, mut touched) = (self.loaded.iter().peekable(), self.touched.iter().peekable());
        std::iter::from_fn(move || {
            loop {
                let Some(&(name, after)) = touched.peek() else { return loaded.next() };
                if let Some(untouched) = loaded.next_if(|tenant| tenant.name < *name) {
                    return Some(untouched);
                }
                loaded.next_if(|tenant| tenant.name == *name);
                touched.next();
                if after.is_some() {
                    return after.as_ref();
                }
            }
        })
    }

    /// The tenants that may differ from what was loaded.
    pub(super) fn touched(&self) -> impl Iterator<Item = TouchedTenant<'_>> {
        self.touched.iter().map(|(name, after)| TouchedTenant {
            name,
            before: self.loaded(name),
            after: after.as_ref(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tenant;

    fn staged(names: &[&str]) -> StagedTenants {
        let one = |name: &&str| tenant(name, r#"{"daemon":"gpu0","uid":0}"#);
        StagedTenants::of(Arc::new(names.iter().map(one).collect()))
    }

    fn names(tenants: &StagedTenants) -> Vec<&str> {
        tenants.values().map(|tenant| tenant.name.as_str()).collect()
    }

    #[test]
    fn new_and_deleted_keep_the_order_of_names() {
        let mut tenants = staged(&["b", "d", "f"]);
        for name in ["a", "e", "g"] {
            tenants.insert(tenant(name, r#"{"daemon":"gpu0","uid":0}"#));
        }
        let name = |name| TenantName::parse(name).expect("a name");
        tenants.remove(&name("d"));
        tenants.remove(&name("g"));
        tenants.get_mut(&name("b")).expect("there").draining = true;
        assert_eq!(names(&tenants), ["a", "b", "e", "f"]);
        assert!(tenants.get(&name("d")).is_none() && tenants.get_mut(&name("d")).is_none());
        assert!(tenants.get(&name("b")).expect("there").draining);
        tenants.insert(tenant("d", r#"{"daemon":"gpu1","uid":0}"#));
        tenants.remove(&name("f"));
        tenants.remove(&name("unknown"));
        assert_eq!(names(&tenants), ["a", "b", "d", "e"]);
        assert_eq!(tenants.get(&name("d")).expect("there again").spec.daemon.as_str(), "gpu1");
    }

    #[test]
    fn only_touched_tenants_may_differ() {
        let mut tenants = staged(&["batch", "web"]);
        let web = TenantName::parse("web").expect("a name");
        assert_eq!(tenants.touched().count(), 0);
        assert!(tenants.get_mut(&TenantName::parse("gone").expect("a name")).is_none());
        tenants.get_mut(&web).expect("there").draining = true;
        let touched: Vec<_> = tenants.touched().collect();
        let [touched] = touched.as_slice() else { panic!("{} are touched", touched.len()) };
        assert_eq!(touched.name, &web);
        assert!(!touched.before.expect("there").draining && touched.after.expect("there").draining);
        assert!(!touched.has_new_generation(), "its spec is the same");
    }
}
