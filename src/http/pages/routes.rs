//! Routes of pages, each declared with what its form changes.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::routing::MethodRouter;

use crate::domain::audit::Target;
use crate::http::AppState;

/// The targets of the forms whose paths do not name them, by route.
#[derive(Debug, Clone, Default)]
pub(in crate::http) struct FormTargets(Arc<HashMap<&'static str, &'static str>>);

impl FormTargets {
    /// The target of a form in the terms of the corresponding API request, so that a search for a target finds both.
    pub(in crate::http) fn of(&self, route: &str) -> Option<Target> {
        self.0.get(route).map(|target| Target::Other((*target).to_owned()))
    }
}

/// Pages, and the targets of their forms.
#[derive(Default)]
pub(super) struct PageRoutes {
    router: Router<AppState>,
    targets: HashMap<&'static str, &'static str>,
}

impl PageRoutes {
    pub(super) fn route(self, path: &str, methods: MethodRouter<AppState>) -> Self {
        Self { router: self.router.route(path, methods), ..self }
    }

    /// A page whose form changes this target, which its path does not name as the API's does.
    pub(super) fn form_route(
        mut self,
        path: &'static str,
        target: &'static str,
        methods: MethodRouter<AppState>,
    ) -> Self {
        self.targets.insert(path, target);
        self.route(path, methods)
    }

    pub(super) fn merge(mut self, other: impl Into<Self>) -> Self {
        let Self { router, targets } = other.into();
        self.targets.extend(targets);
        Self { router: self.router.merge(router), ..self }
    }

    pub(super) fn into_parts(self) -> (Router<AppState>, FormTargets) {
        (self.router, FormTargets(Arc::new(self.targets)))
    }
}

impl From<Router<AppState>> for PageRoutes {
    fn from(router: Router<AppState>) -> Self {
        Self { router, targets: HashMap::new() }
    }
}
