//! Names: the nearest one to a name that nothing has, and those that newer versions of MPS take for the same.

use super::Service;
use super::access::context::RequestContext;
use super::error::{Result, ServiceError, conflict};
use crate::domain::access::Right;
use crate::store;

impl Service {
    /// A tenant, a daemon or a layout whose name is nearly this one, for host users.
    pub async fn similar_name(&self, ctx: &RequestContext, kind: &str, name: &str) -> Option<String> {
        let backend = self.with(&ctx.require(Right::View).ok()?);
        let names: Vec<String> = match kind {
            "tenant" => backend.stored_tenants().await.ok()?.iter().map(|one| one.name.to_string()).collect(),
            "daemon" => backend.stored_daemons().await.ok()?.iter().map(|one| one.name.to_string()).collect(),
            "layout" => {
                let mut reader = backend.parts.store.read().await.ok()?;
                let layouts = store::layouts::page(&mut reader, "", 500).await.ok()?;
                layouts.into_iter().map(|one| one.name.to_string()).collect()
            }
            _ => return None,
        };
        let nearest =
            names.into_iter().map(|stored| (strsim::damerau_levenshtein(&stored, name), stored)).min()?;
        (nearest.0 <= (name.chars().count() / 3).clamp(1, 3)).then_some(nearest.1)
    }
}

/// Refuses a new name that differs from one that is there only in hyphens and underscores.
pub(super) async fn refuse_namesake(db: &mut sqlx::SqliteConnection, kind: &str, name: &str) -> Result<()> {
    let taken = store::namesakes::namesake(db, kind, name).await?;
    taken.map_or(Ok(()), |taken| Err(namesake_refusal(kind, &taken, name)))
}

pub(super) fn namesake_refusal(kind: &str, taken: &str, name: &str) -> ServiceError {
    conflict!(
        "there is a {kind} {taken} already, and a name that differs from it only in hyphens and underscores is taken for the same by \
         newer versions of MPS: choose another name than {name}"
    )
}
