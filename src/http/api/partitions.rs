//! The partitions of a daemon.

use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{FreshQuery, List, PageQuery};
use crate::domain::DaemonName;
use crate::domain::access::Actor;
use crate::http::AppState;
use crate::http::extract::{Path, Query};
use crate::http::problem::{Problem, ReadProblems};
use crate::service::layouts::PartitionView;

/// Which page, and whether to look now.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FreshPageQuery {
    /// Answer from a look that begins after this request; all who ask at once share it.
    #[serde(default)]
    fresh: bool,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
    /// Most items, 1 to 1000; 100 without it.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// The partitions of a daemon
#[utoipa::path(get, path = "/api/v1/daemons/{name}/partitions", operation_id = "list_partitions", tag = "daemons",
    params(("name" = DaemonName, Path, description = "The daemon"), FreshPageQuery),
    responses((status = 200, description = "Those of its layout, in the order in which they are made, then others", body = List<PartitionView>), ReadProblems))]
pub(super) async fn list(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    Query(FreshPageQuery { fresh, cursor, limit }): Query<FreshPageQuery>,
) -> Result<axum::Json<List<PartitionView>>, Problem> {
    let page = PageQuery { cursor, limit }.page()?;
    Ok(axum::Json(app.service.partitions(&actor, &name, fresh, &page).await?.into()))
}

/// One partition of a daemon
#[utoipa::path(get, path = "/api/v1/daemons/{name}/partitions/{partition}", operation_id = "get_partition", tag = "daemons",
    params(
        ("name" = DaemonName, Path, description = "The daemon"),
        ("partition" = String, Path, description = "Its name in the layout, its ID, or `<uuid>/<id>`; percent-encoded"),
        FreshQuery,
    ),
    responses(
        (status = 200, description = "The partition", body = PartitionView),
        (status = 409, description = "Several partitions have this ID: name one as `<uuid>/<id>`",
            body = Problem, content_type = "application/problem+json"),
        ReadProblems,
    ))]
pub(super) async fn get(
    State(app): State<AppState>,
    actor: Actor,
    Path((name, partition)): Path<(DaemonName, String)>,
    Query(query): Query<FreshQuery>,
) -> Result<axum::Json<PartitionView>, Problem> {
    Ok(axum::Json(app.service.partition(&actor, &name, &partition, query.fresh).await?))
}
