//! Requests, counted by the route's template: an unknown path adds no series.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Upper bounds of what an answer takes, in seconds: a read from memory is in the first, an operation's acceptance in the middle.
const SECONDS: [f64; 9] = [0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1.0, 10.0, 60.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    route: String,
    method: &'static str,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: String,
    method: &'static str,
}

/// Counts of requests; clones count together.
#[derive(Debug, Clone)]
pub struct Http {
    answered: Family<Answered, Counter>,
    took: Family<Route, Histogram, fn() -> Histogram>,
}

impl Default for Http {
    fn default() -> Self {
        let buckets: fn() -> Histogram = || Histogram::new(SECONDS);
        Self { answered: Family::default(), took: Family::new_with_constructor(buckets) }
    }
}

impl Http {
    /// A request was answered. `route` is the template, as `/api/v1/tenants/{name}`, or nothing where there is no such path.
    pub fn answered(&self, route: Option<&str>, method: &str, status: u16, took: Duration) {
        let method = known(method);
        let route = route.unwrap_or("none").to_owned();
        let status = match status / 100 {
            1 => "1xx",
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            _ => "5xx",
        };
        self.took.get_or_create(&Route { route: route.clone(), method }).observe(took.as_secs_f64());
        self.answered.get_or_create(&Answered { route, method, status }).inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "http_requests",
            "Requests that were answered, by route, method and class of status",
            self.answered.clone(),
        );
        registry.register_with_unit(
            "http_request_duration",
            "Time from a request's head to the head of its answer, by route and method",
            Unit::Seconds,
            self.took.clone(),
        );
    }
}

/// The methods that are in use; a caller may invent others.
fn known(method: &str) -> &'static str {
    match method {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}
