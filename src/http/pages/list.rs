//! Long lists: their filters and their pages.

use super::AppState;
use crate::domain::access::Actor;
use crate::domain::{DaemonName, InvalidValue};
use crate::http::problem::Problem;
use crate::service::ServiceError;
use crate::service::page::{MAX_LIMIT, Page};

/// Items of a page.
const LIMIT: u32 = 50;

/// The page that a cursor names.
pub(super) fn page(cursor: Option<&str>) -> Result<Page, Problem> {
    Ok(Page::parse(cursor.filter(|cursor| !cursor.is_empty()), Some(LIMIT))?)
}

/// A name that a filter was given; none where it is empty.
pub(super) fn name<T: std::str::FromStr<Err = InvalidValue>>(text: &str) -> Result<Option<T>, Problem> {
    if text.is_empty() {
        return Ok(None);
    }
    let name =
        text.parse().map_err(|error: InvalidValue| ServiceError::field("/filter", error.to_string()))?;
    Ok(Some(name))
}

/// The daemons that a filter offers.
pub(super) async fn daemons(app: &AppState, actor: &Actor) -> Result<Vec<DaemonName>, Problem> {
    let all = Page { after: String::new(), limit: MAX_LIMIT };
    let daemons = app.service.daemons(actor, &all).await?.items;
    Ok(daemons.into_iter().map(|daemon| daemon.name).collect())
}

/// The ways to the other pages of a list.
pub(super) struct Pages {
    /// To the first one, from any other.
    pub(super) first: Option<String>,
    /// To the next one, where there is one.
    pub(super) next: Option<String>,
}

impl Pages {
    /// Of the list at this address, filtered by these.
    pub(super) fn of(path: &str, filters: &[(&str, &str)], is_later: bool, next: Option<String>) -> Self {
        let at = |cursor: Option<&str>| {
            let mut query = form_urlencoded::Serializer::new(String::new());
            query.extend_pairs(filters.iter().filter(|(_, value)| !value.is_empty()));
            if let Some(cursor) = cursor {
                query.append_pair("cursor", cursor);
            }
            match query.finish() {
                query if query.is_empty() => path.to_owned(),
                query => format!("{path}?{query}"),
            }
        };
        Self { first: is_later.then(|| at(None)), next: next.map(|cursor| at(Some(&cursor))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_keep_the_filters() {
        let pages = Pages::of("/tenants", &[("q", "a&b"), ("daemon", "")], true, Some("x=".to_owned()));
        assert_eq!(pages.first.as_deref(), Some("/tenants?q=a%26b"));
        assert_eq!(pages.next.as_deref(), Some("/tenants?q=a%26b&cursor=x%3D"));
        let only = Pages::of("/tenants", &[], false, None);
        assert!(only.first.is_none() && only.next.is_none());
    }
}
