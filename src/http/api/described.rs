//! What many operations have in common, described once for the document: headers of conditions and the answers of whatever
//! takes time.

use std::collections::BTreeMap;

use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::schema::{Object, Type};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Required};
use utoipa::{IntoParams, IntoResponses};

use crate::http::extract::Idempotency;

/// `If-Match` of [`Conditions`](crate::http::extract::Conditions), where what is written exists.
pub(super) struct IfMatch;

/// `If-None-Match` of [`Conditions`](crate::http::extract::Conditions), where something may be created.
pub(super) struct IfNoneMatch;

/// The answers of an action that an operation does: accepted, or what a dry run shows of it.
pub(super) struct OperationAccepted;

fn header(name: &str, description: &str) -> Vec<Parameter> {
    let parameter = ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(description))
        .schema(Some(Object::with_type(Type::String)));
    vec![parameter.build()]
}

impl IntoParams for IfMatch {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        header(
            "If-Match",
            "Only if this is its entity tag now, as the `ETag` of a read said; `*`: only if it exists",
        )
    }
}

impl IntoParams for IfNoneMatch {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        header("If-None-Match", "`*`: only if it does not exist yet")
    }
}

impl IntoParams for Idempotency {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        header("Idempotency-Key", "A repeated request with the same key is done once")
    }
}

impl IntoResponses for OperationAccepted {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let with = |status: &str, description: &str| {
            let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("Operation"))).build();
            let response = ResponseBuilder::new().description(description).content("application/json", body);
            (status.to_owned(), response.build().into())
        };
        BTreeMap::from([
            with("200", "A dry run: the operation as it would be"),
            with("202", "The operation that does it"),
        ])
    }
}
