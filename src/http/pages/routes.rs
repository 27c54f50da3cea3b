//! Routes of pages, each declared with what its form changes.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::routing::MethodRouter;

use crate::http::AppState;
use crate::http::form_targets::FormTargets;

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
