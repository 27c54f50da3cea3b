//! Values of the rows that a query finds.

use sqlx::query::Map;
use sqlx::sqlite::SqliteRow;
use sqlx::{IntoArguments, Sqlite, SqliteConnection};

use super::StoreError;

/// All that it finds, in its order.
pub(super) async fn all<R, V, F, A>(
    db: &mut SqliteConnection,
    query: Map<'_, Sqlite, F, A>,
) -> Result<Vec<V>, StoreError>
where
    F: FnMut(SqliteRow) -> Result<R, sqlx::Error> + Send,
    R: Send + Unpin,
    A: IntoArguments<Sqlite> + Send,
    V: TryFrom<R, Error = StoreError>,
{
    query.fetch_all(db).await?.into_iter().map(V::try_from).collect()
}

/// The only one that it finds, if there is one.
pub(super) async fn one<R, V, F, A>(
    db: &mut SqliteConnection,
    query: Map<'_, Sqlite, F, A>,
) -> Result<Option<V>, StoreError>
where
    F: FnMut(SqliteRow) -> Result<R, sqlx::Error> + Send,
    R: Send + Unpin,
    A: IntoArguments<Sqlite> + Send,
    V: TryFrom<R, Error = StoreError>,
{
    query.fetch_optional(db).await?.map(V::try_from).transpose()
}
