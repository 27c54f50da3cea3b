//! The leases of a tenant: shown on its page, and revoked.

use askama::Template;
use axum::response::{IntoResponse as _, Redirect};

use super::super::frame::{Frame, Section};
use super::super::rendered;
use crate::domain::TenantName;
use crate::domain::access::Right;
use crate::domain::client::ClientId;
use crate::http::extract::{Call, Path};
use crate::http::problem::Reply;
use crate::service::tenants::leases::HeldLease;

#[derive(Template)]
#[template(path = "lease_revoke.html")]
struct LeaseRevokePage {
    frame: Frame,
    tenant: TenantName,
    lease: HeldLease,
}

pub(super) async fn confirm_revoke(call: Call, Path((tenant, id)): Path<(TenantName, ClientId)>) -> Reply {
    let Call { app, ctx } = &call;
    ctx.require(Right::UseTenant(&tenant))?;
    let lease = app.service.held_lease(ctx, &tenant, id).await?;
    let title = format!("Revoke the lease of process {}", id.pid);
    let frame = call.frame(Section::Tenants, &title).await;
    Ok(rendered(&LeaseRevokePage { frame, tenant, lease }))
}

pub(super) async fn revoke(
    Call { app, ctx }: Call,
    Path((tenant, id)): Path<(TenantName, ClientId)>,
) -> Reply {
    app.service.revoke_lease(&ctx, tenant.clone(), id, false).await?;
    Ok(Redirect::to(&format!("/tenants/{tenant}#leases")).into_response())
}
