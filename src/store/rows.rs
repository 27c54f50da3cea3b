//! Statements, and the conditions of queries.

use sqlx::{Encode, QueryBuilder, Sqlite, Type};

/// Runs a statement with its values.
macro_rules! execute {
    ($db:expr, $sql:literal $(, $value:expr)*) => {
        sqlx::query!($sql $(, $value)*).execute(&mut *$db).await.map(drop).map_err($crate::store::StoreError::from)
    };
}

/// Runs a statement with its values; true if it changed a row.
macro_rules! changes {
    ($db:expr, $sql:literal $(, $value:expr)*) => {
        sqlx::query!($sql $(, $value)*)
            .execute(&mut *$db)
            .await
            .map(|done| done.rows_affected() > 0)
            .map_err($crate::store::StoreError::from)
    };
}

pub(super) use {changes, execute};

/// Adds a condition on a value to a query that has one, if the value is given.
///
/// Conditions are written out only for the filters that are set, so that SQLite may choose an index by them.
pub(super) fn condition<'t, T>(query: &mut QueryBuilder<Sqlite>, condition: &str, value: Option<T>)
where
    T: Encode<'t, Sqlite> + Type<Sqlite>,
{
    let Some(value) = value else { return };
    let (before, after) = condition.split_once('?').unwrap_or((condition, ""));
    query.push(" AND ").push(before).push_bind(value).push(after);
}
