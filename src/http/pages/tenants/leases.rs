//! The leases of a tenant: shown on its page, and revoked.

use askama::Template;
use axum::response::{IntoResponse as _, Redirect};

use super::super::frame::{Frame, Section};
use super::super::rendered;
use crate::domain::TenantName;
use crate::domain::access::Right;
use crate::domain::client::{ClientId, LeaseKind};
use crate::http::extract::{Call, Path};
use crate::http::problem::Reply;
use crate::service::tenants::leases::HeldLease;

/// Returns the kind of a lease in a word or two.
pub(in crate::http::pages) fn kind(kind: LeaseKind) -> &'static str {
    match kind {
        LeaseKind::Own => "its own",
        LeaseKind::Recorded => "recorded",
    }
}

#[derive(Template)]
#[template(path = "lease_revoke.html")]
struct LeaseRevokePage {
    frame: Frame,
    tenant: TenantName,
    lease: HeldLease,
}

pub(super) async fn confirm_revoke(
    Call { app, ctx }: Call,
    Path((tenant, id)): Path<(TenantName, ClientId)>,
) -> Reply {
    ctx.require(Right::UseTenant(&tenant))?;
    let lease = app.service.held_lease(&ctx, &tenant, id).await?;
    let title = format!("Revoke the lease of process {}", id.pid);
    let frame = Frame::of(&app.service, &ctx, Section::Tenants, &title).await;
    Ok(rendered(&LeaseRevokePage { frame, tenant, lease }))
}

pub(super) async fn revoke(
    Call { app, ctx }: Call,
    Path((tenant, id)): Path<(TenantName, ClientId)>,
) -> Reply {
    app.service.revoke_lease(&ctx, tenant.clone(), id, false).await?;
    Ok(Redirect::to(&format!("/tenants/{tenant}#leases")).into_response())
}
