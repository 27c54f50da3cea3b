//! Who the caller is.

use serde::{Deserialize, Serialize};

use crate::domain::access::{Grant, Right};
use crate::service::access::context::RequestContext;
use crate::service::{Service, ServiceError};

/// Who the caller is, and what it may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WhoamiView {
    /// Name of the caller.
    #[schema(example = "token 0123456789abcdef (ci)")]
    pub subject: String,
    /// What the caller may do: a role, or `tenant:` and the name of a tenant.
    #[schema(value_type = String, example = "operator")]
    pub grant: Grant,
    /// Where the call comes from: an address, or `socket`.
    #[schema(example = "127.0.0.1")]
    pub origin: String,
}

impl Service {
    /// Who the caller is.
    pub fn whoami(&self, ctx: &RequestContext) -> Result<WhoamiView, ServiceError> {
        ctx.require(Right::ViewOwn)?;
        Ok(WhoamiView {
            subject: ctx.actor.subject.to_string(),
            grant: ctx.actor.grant.clone(),
            origin: ctx.actor.origin.to_string(),
        })
    }
}
