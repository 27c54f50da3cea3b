//! Values as columns hold them.
//!
//! A query names the type of a column in its alias, as `content AS "layout: AsJson<Layout>"`, and gets the value of the domain.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde::de::value::StrDeserializer;
use sqlx::error::BoxDynError;
use sqlx::sqlite::{SqliteTypeInfo, SqliteValueRef};
use sqlx::{Decode, Sqlite, Type};

use super::{Result, StoreError};
use crate::domain::token::Digest;

/// A name, an ID or a word, in a column as it is.
#[derive(Debug)]
pub(super) struct AsText<T>(pub(super) T);

/// A value in a column as JSON.
#[derive(Debug)]
pub(super) struct AsJson<T>(pub(super) T);

impl<T> Type<Sqlite> for AsText<T> {
    fn type_info() -> SqliteTypeInfo {
        <str as Type<Sqlite>>::type_info()
    }
}

impl<T> Type<Sqlite> for AsJson<T> {
    fn type_info() -> SqliteTypeInfo {
        <str as Type<Sqlite>>::type_info()
    }
}

impl<'r, T: Deserialize<'r>> Decode<'r, Sqlite> for AsText<T> {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        let text = StrDeserializer::<serde::de::value::Error>::new(<&str as Decode<Sqlite>>::decode(value)?);
        T::deserialize(text).map(Self).map_err(unreadable::<T>)
    }
}

impl<'r, T: DeserializeOwned> Decode<'r, Sqlite> for AsJson<T> {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        serde_json::from_str(<&str as Decode<Sqlite>>::decode(value)?).map(Self).map_err(unreadable::<T>)
    }
}

/// A digest, in a column of bytes.
#[derive(Debug)]
pub(super) struct StoredDigest(pub(super) Digest);

impl Type<Sqlite> for StoredDigest {
    fn type_info() -> SqliteTypeInfo {
        <[u8] as Type<Sqlite>>::type_info()
    }
}

impl<'r> Decode<'r, Sqlite> for StoredDigest {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        Ok(Self(Digest::stored(<&[u8] as Decode<Sqlite>>::decode(value)?)?))
    }
}

impl From<StoredDigest> for Digest {
    fn from(column: StoredDigest) -> Self {
        column.0
    }
}

/// Names the type of a value that cannot be read.
fn unreadable<T>(error: impl std::fmt::Display) -> BoxDynError {
    format!("{}: {error}", std::any::type_name::<T>()).into()
}

/// Lets queries that are read into a struct convert these columns to its fields.
macro_rules! fields {
    ($($column:ident: $($value:ty),+;)+) => {
        $($(impl From<$column<$value>> for $value {
            fn from(column: $column<$value>) -> Self {
                column.0
            }
        })+)+
    };
}

fields! {
    AsText: uuid::Uuid, crate::domain::DaemonName, crate::domain::LayoutName, crate::domain::TokenName, crate::domain::access::Grant,
        crate::domain::maintenance::MaintenanceState, crate::domain::operation::OperationState,
        crate::domain::token::TokenId;
    AsJson: crate::domain::daemon::DaemonSpec, Vec<crate::domain::DaemonName>, Vec<crate::domain::GpuUuid>, crate::domain::incident::Incident, crate::domain::layout::Layout,
        crate::domain::operation::OperationRequest;
}

/// Reads JSON that this program wrote.
pub(super) fn from_json<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T> {
    parsed(what, serde_json::from_str(text))
}

/// Writes a value as the JSON that [`from_json`] reads.
pub(super) fn to_json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("specs and requests hold nothing that JSON cannot")
}

/// Reads a number or name that this program wrote.
pub(super) fn parsed<T, E: std::fmt::Display>(what: &'static str, value: Result<T, E>) -> Result<T> {
    value.map_err(|error| StoreError::Corrupt { what, detail: error.to_string() })
}
