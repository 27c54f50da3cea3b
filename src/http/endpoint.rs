//! Declarations of a handler about its endpoint, beside its route: the required right, and the effect of an `Idempotency-Key`.
//!
//! A handler declares both as extensions of its operation: `extensions(("x-right" = json!(RequiredRight::View)))`. The router, its
//! middleware, the API's document and the tests read them from there, so that no endpoint is listed twice.

use axum::http::Method;
use serde::{Deserialize, Serialize};
use utoipa::openapi::path::{Operation, Paths};

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
pub(super) struct Endpoint<'d> {
    pub(super) method: Method,
    pub(super) route: &'d str,
    pub(super) operation: &'d Operation,
}

impl Endpoint<'_> {
    /// Returns the right that it requires.
    pub(super) fn right(&self) -> RequiredRight {
        self.declared(RIGHT).unwrap_or_else(|| panic!("{} {} declares no {RIGHT}", self.method, self.route))
    }

    /// Returns the effect of an `Idempotency-Key`; `None` if the handler reads the key itself, or for a method other than POST.
    pub(super) fn key_policy(&self) -> Option<KeyPolicy> {
        self.declared(KEY_POLICY)
    }

    fn declared<T: for<'v> Deserialize<'v>>(&self, extension: &str) -> Option<T> {
        T::deserialize(self.operation.extensions.as_ref()?.get(extension)?).ok()
    }
}

/// The operations of the API.
pub(super) fn endpoints(operations: &Paths) -> impl Iterator<Item = Endpoint<'_>> {
    operations.paths.iter().flat_map(|(route, item)| {
        let operations = [
            (Method::GET, &item.get),
            (Method::PUT, &item.put),
            (Method::PATCH, &item.patch),
            (Method::POST, &item.post),
            (Method::DELETE, &item.delete),
        ];
        operations.into_iter().filter_map(move |(method, operation)| {
            Some(Endpoint { method, route, operation: operation.as_ref()? })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::api;

    #[test]
    fn every_endpoint_declares_its_right() {
        let operations = api::routes().operations;
        let mut known = 0;
        for endpoint in endpoints(&operations) {
            let needs_no_token = matches!(endpoint.right(), RequiredRight::Public | RequiredRight::LogIn);
            assert_eq!(
                endpoint.operation.security.is_some(),
                needs_no_token,
                "{} {}",
                endpoint.method,
                endpoint.route
            );
            known += 1;
        }
        assert!(known > 70, "{known}");
    }
}
