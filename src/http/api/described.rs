//! Parameters and responses that several operations share, described once for the document.

use std::collections::BTreeMap;

use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::schema::{Object, Type};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Required};
use utoipa::{IntoParams, IntoResponses};

use crate::http::extract::Idempotency;

/// `If-Match` of [`Conditions`](crate::http::extract::Conditions), for a write of something that exists.
pub(super) struct IfMatch;

/// `If-None-Match` of [`Conditions`](crate::http::extract::Conditions), for a write that may create something.
pub(super) struct IfNoneMatch;

/// The answers to an action that an operation carries out: accepted, or the result of a dry run.
pub(super) struct OperationAccepted;

/// The problem that something does not exist, if that does not follow from the path.
pub(super) struct NotFound;

/// The problem of an answer in several forms: the caller accepts none of them.
pub(super) struct NotAcceptable;

/// The problem of a read that has no answer in the current state of the host.
pub(super) struct ConflictOnRead;

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
            "Write only if this is the current entity tag, as the `ETag` of a read gave it. `*`: only if the resource exists.",
        )
    }
}

impl IntoParams for IfNoneMatch {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        header("If-None-Match", "`*`: write only if the resource does not exist yet.")
    }
}

impl IntoParams for Idempotency {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        header(
            "Idempotency-Key",
            "A request that is repeated with the same key within a day is done once, and answered as the first time. Without effect where the \
             request changes nothing.",
        )
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
            with("200", "A dry run: the operation as it would be."),
            with("202", "The operation that does it; read it until it has ended."),
        ])
    }
}

/// A reference to one of the problems that the document has among its components.
fn problem(status: &str, name: &str) -> BTreeMap<String, RefOr<Response>> {
    BTreeMap::from([(status.to_owned(), Ref::from_response_name(name).into())])
}

impl IntoResponses for NotFound {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problem("404", "NotFound")
    }
}

impl IntoResponses for NotAcceptable {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problem("406", "NotAcceptable")
    }
}

impl IntoResponses for ConflictOnRead {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problem("409", "ConflictOnRead")
    }
}
