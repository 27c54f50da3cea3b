//! Declarations of a handler about its endpoint, beside its route: the required right, and the effect of an `Idempotency-Key`.
//!
//! A handler declares both as extensions of its operation: `extensions(("x-right" = json!(RequiredRight::View)))`. A test writes them to the
//! API's document, from which build.rs makes [`ENDPOINTS`] for the layers, so that no endpoint is listed twice.

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use serde::{Deserialize, Serialize};

/// The extension that names the right that an operation requires.
pub const RIGHT: &str = "x-right";
/// The extension that states the effect of `Idempotency-Key`, if the handler does not read that header itself.
pub const KEY_POLICY: &str = "x-idempotency-key";

/// The right that an operation requires of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequiredRight {
    /// None: it needs no token.
    Public,
    /// A valid token in the body.
    LogIn,
    /// Any valid token: the operation is about the caller itself.
    OwnAccount,
    /// Any valid token: the answer lists what the caller may see.
    OwnItems,
    /// To see the host.
    View,
    /// To operate daemons and clients.
    Operate,
    /// To change what the host is to be.
    Administer,
    /// To see the tenant in the path.
    ViewTenant,
    /// To use the tenant in the path.
    UseTenant,
    /// To see the client in the path.
    ViewClient,
    /// To end the client in the path.
    EndClient,
    /// To see the event in the path.
    ViewEvent,
    /// To see the incident in the path.
    ViewIncident,
    /// To see the operation in the path.
    ViewOperation,
}

/// Effect of an `Idempotency-Key` on a POST whose handler does not read it itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyPolicy {
    /// The answer is stored after it was given: for operations of several steps, or those that can be done twice with the same effect.
    StoreAnswer,
    /// Nothing: the operation changes nothing, or its effect is the same when it is done twice.
    NoEffect,
    /// The request is refused: its answer holds a secret, which is stored nowhere.
    Refuse,
}

/// One operation of the API.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) method: Method,
    pub(super) route: &'static str,
    /// The right that it requires.
    pub(super) right: RequiredRight,
    /// The effect of an `Idempotency-Key`; `None` if the handler reads the key itself, or for a method other than POST.
    pub(super) key_policy: Option<KeyPolicy>,
    pub(super) takes_query: bool,
    pub(super) takes_if_match: bool,
    pub(super) takes_if_none_match: bool,
}

/// The operations of the API as the checked-in document has them, which a test keeps equal to the handlers' declarations. Declaring them at
/// every start would cost time, and code for each description.
pub(super) static ENDPOINTS: &[Endpoint] = include!(concat!(env!("OUT_DIR"), "/endpoints.rs"));

static BY_ROUTE: LazyLock<HashMap<(&Method, &str), &Endpoint>> = LazyLock::new(|| {
    ENDPOINTS.iter().map(|endpoint| ((&endpoint.method, endpoint.route), endpoint)).collect()
});

impl Endpoint {
    /// Returns the endpoint of a method and a route; that of GET for HEAD.
    pub(super) fn at(method: &Method, route: &str) -> Option<&'static Self> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        BY_ROUTE.get(&(method, route)).copied()
    }

    /// Returns the endpoint of a request; `None` for those beside the API.
    pub(super) fn of(request: &Request) -> Option<&'static Self> {
        Self::at(request.method(), request.extensions().get::<MatchedPath>()?.as_str())
    }
}

#[cfg(test)]
mod tests {
    use utoipa::openapi::RefOr;
    use utoipa::openapi::path::ParameterIn;

    use super::*;
    use crate::http::api;

    #[test]
    fn rows_are_those_the_handlers_declare() {
        let declared = api::declared();
        let mut count = 0;
        for (route, item) in &declared.paths.paths {
            let operations = [
                (Method::GET, &item.get),
                (Method::PUT, &item.put),
                (Method::PATCH, &item.patch),
                (Method::POST, &item.post),
                (Method::DELETE, &item.delete),
            ];
            for (method, operation) in operations {
                let Some(operation) = operation else { continue };
                let endpoint = Endpoint::at(&method, route).expect("a row");
                let extension =
                    |name: &str| operation.extensions.as_ref().and_then(|all| all.get(name).cloned());
                assert_eq!(extension(RIGHT), serde_json::to_value(endpoint.right).ok(), "{method} {route}");
                let policy = endpoint.key_policy.and_then(|policy| serde_json::to_value(policy).ok());
                assert_eq!(extension(KEY_POLICY), policy, "{method} {route}");
                let needs_no_token = matches!(endpoint.right, RequiredRight::Public | RequiredRight::LogIn);
                assert_eq!(operation.security.is_some(), needs_no_token, "{method} {route}");
                let takes = |place: &ParameterIn, name: &str| {
                    let mut parameters = operation.parameters.iter().flatten();
                    parameters.any(|parameter| match parameter {
                        RefOr::T(one) => one.parameter_in == *place && (name.is_empty() || one.name == name),
                        RefOr::Ref(_) => unreachable!("handlers declare parameters whole"),
                    })
                };
                let if_none_match = method == Method::GET || endpoint.takes_if_none_match;
                let inputs = [endpoint.takes_query, endpoint.takes_if_match, if_none_match];
                let declared = [
                    takes(&ParameterIn::Query, ""),
                    takes(&ParameterIn::Header, "If-Match"),
                    // The document states it for each conditional read, which is no condition of a write.
                    method == Method::GET || takes(&ParameterIn::Header, "If-None-Match"),
                ];
                assert_eq!(inputs, declared, "{method} {route}");
                count += 1;
            }
        }
        assert_eq!(count, ENDPOINTS.len());
        assert!(count > 70, "{count}");
    }
}
