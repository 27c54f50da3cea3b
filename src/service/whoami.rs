//! Who one is to this manager.

use serde::{Deserialize, Serialize};

use super::{Service, ServiceError};
use crate::domain::access::{Actor, Grant, Right};

/// Who one is, and what one may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WhoamiView {
    /// By what one is known.
    #[schema(example = "token 0123456789abcdef (ci)")]
    pub subject: String,
    /// What one may do: a role, or `tenant:` and the name of a tenant.
    #[schema(value_type = String, example = "operator")]
    pub grant: Grant,
    /// From where one calls: an address, or `socket`.
    #[schema(example = "127.0.0.1")]
    pub origin: String,
}

impl Service {
    /// Who one is.
    #[allow(clippy::unused_async, reason = "as every use case is called")]
    pub async fn whoami(&self, actor: &Actor) -> Result<WhoamiView, ServiceError> {
        actor.may(Right::ViewOwn)?;
        Ok(WhoamiView {
            subject: actor.subject.to_string(),
            grant: actor.grant.clone(),
            origin: actor.origin.to_string(),
        })
    }
}
