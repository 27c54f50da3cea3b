//! Targets of forms, as the audit log names them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::domain::audit::Target;

/// The targets of the forms whose paths do not name them, by route.
#[derive(Debug, Clone, Default)]
pub(super) struct FormTargets(pub(super) Arc<HashMap<&'static str, &'static str>>);

impl FormTargets {
    /// The target of a form in the terms of the corresponding API request, so that a search for a target finds both.
    pub(super) fn of(&self, route: &str) -> Option<Target> {
        self.0.get(route).map(|target| Target::Other((*target).to_owned()))
    }
}
