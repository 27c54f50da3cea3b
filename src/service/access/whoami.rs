//! Identity of the caller.

use serde::{Deserialize, Serialize};

use crate::domain::access::{Grant, Right};
use crate::service::access::context::RequestContext;
use crate::service::{Result, Service};

/// The caller and its rights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WhoamiView {
    /// Name of the caller.
    #[schema(example = "token 0123456789abcdef (ci)")]
    pub subject: String,
    /// Role of the caller, or `tenant:` with the name of its tenant.
    #[schema(value_type = String, example = "operator")]
    pub grant: Grant,
    /// Where the call comes from: an address, or `socket`.
    #[schema(example = "127.0.0.1")]
    pub origin: String,
}

impl Service {
    /// Returns the name, rights and origin of the caller.
    pub fn whoami(&self, ctx: &RequestContext) -> Result<WhoamiView> {
        ctx.require(Right::ViewOwn)?;
        Ok(WhoamiView {
            subject: ctx.actor.subject.to_string(),
            grant: ctx.actor.grant.clone(),
            origin: ctx.actor.origin.to_string(),
        })
    }
}
