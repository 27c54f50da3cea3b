//! The partitions of a daemon.

use serde::Deserialize;
use utoipa::IntoParams;

use super::described::ConflictOnRead;
use super::{FreshQuery, List, PageQuery};
use crate::domain::DaemonName;
use crate::http::endpoint::RequiredRight;
use crate::http::extract::{Call, Path, Query};
use crate::http::problem::Answer;
use crate::service::layouts::PartitionView;

/// The page of a list, and the option to poll now.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FreshPageQuery {
    /// Answer from a poll that begins after this request; requests at the same time share one.
    #[serde(default)]
    fresh: bool,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// The most items to return, 1 to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// List the partitions of a daemon
#[utoipa::path(get, path = "/api/v1/daemons/{name}/partitions", operation_id = "list_partitions", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::View))),
    params(("name" = DaemonName, Path, description = "The name of the daemon."), FreshPageQuery),
    responses((status = 200, description = "The partitions of the layout in the order of its steps, then any others.", body = List<PartitionView>)))]
pub(super) async fn list(
    Call { app, ctx }: Call,
    Path(name): Path<DaemonName>,
    Query(FreshPageQuery { fresh, cursor, limit }): Query<FreshPageQuery>,
) -> Answer<List<PartitionView>> {
    let page = PageQuery { cursor, limit }.page()?;
    Ok(axum::Json(app.service.partitions(&ctx, &name, fresh, &page).await?.into()))
}

/// Get a partition of a daemon
///
/// 409 if several GPUs have a partition with this ID: use `<uuid>/<id>` then.
#[utoipa::path(get, path = "/api/v1/daemons/{name}/partitions/{partition}", operation_id = "get_partition", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::View))),
    params(
        ("name" = DaemonName, Path, description = "The name of the daemon."),
        ("partition" = String, Path, description = "The name of the partition in the layout, its ID, or `<uuid>/<id>`; percent-encoded."),
        FreshQuery,
    ),
    responses(
        (status = 200, description = "The partition.", body = PartitionView),
        ConflictOnRead,
    ))]
pub(super) async fn get(
    Call { app, ctx }: Call,
    Path((name, partition)): Path<(DaemonName, String)>,
    Query(query): Query<FreshQuery>,
) -> Answer<PartitionView> {
    Ok(axum::Json(app.service.partition(&ctx, &name, &partition, query.fresh).await?))
}
