//! Long lists: filtered and cut into pages on the server, with addresses that can be kept and sent to somebody.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use form_urlencoded::Serializer;

use super::forms::Form;
use crate::http::problem::Problem;
use crate::service::ServiceError;
use crate::service::page::Page;

/// Rows of a list on a page.
pub(super) const ROWS: u32 = 50;

/// What the address of a list asks for. A field that is left empty in the form of its filter asks for nothing.
pub(super) struct Asked {
    path: String,
    query: Form,
}

impl Asked {
    /// What is asked of this field; `None` where it is empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        Some(self.query.text(name)).filter(|text| !text.is_empty())
    }

    /// What was asked, as it was written.
    pub(super) fn form(&self) -> &Form {
        &self.query
    }

    /// The same as a type reads it; what it refuses is said of the field.
    pub(super) fn parsed<T, E: std::fmt::Display>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ServiceError> {
        let read = self.text(name).map(parse).transpose();
        read.map_err(|error| ServiceError::field(&format!("/{name}"), error.to_string()))
    }

    /// The page of the list that is asked for.
    pub(super) fn page(&self) -> Result<Page, ServiceError> {
        Page::parse(self.text("cursor"), Some(ROWS))
    }

    /// Whether this is the first page, which changes as things happen.
    pub(super) fn is_first(&self) -> bool {
        self.text("cursor").is_none()
    }

    /// The address of another page with the same filter.
    pub(super) fn at(&self, cursor: Option<&str>) -> String {
        let mut query = Serializer::new(String::new());
        for (name, value) in self.query.pairs() {
            if name != "cursor" && !value.is_empty() {
                query.append_pair(name, value);
            }
        }
        if let Some(cursor) = cursor {
            query.append_pair("cursor", cursor);
        }
        match query.finish() {
            query if query.is_empty() => self.path.clone(),
            query => format!("{}?{query}", self.path),
        }
    }

    /// The ways to other pages, where there are any.
    pub(super) fn ways(&self, next_cursor: Option<&str>) -> Ways {
        let first = (!self.is_first()).then(|| self.at(None));
        Ways { first, next: next_cursor.map(|cursor| self.at(Some(cursor))) }
    }
}

/// Where the list goes on.
pub(super) struct Ways {
    pub(super) first: Option<String>,
    pub(super) next: Option<String>,
}

impl Ways {
    /// Whether the list is on one page.
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none() && self.next.is_none()
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = Form::parse(parts.uri.query().unwrap_or_default().as_bytes());
        Ok(Self { path: parts.uri.path().to_owned(), query })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_has_the_same_filter_and_no_empty_field() {
        let query = Form::parse(b"type=client.%2Cdaemon.&daemon=&cursor=old&who=a+b");
        let asked = Asked { path: "/events".to_owned(), query };
        assert_eq!(asked.at(Some("new=")), "/events?type=client.%2Cdaemon.&who=a+b&cursor=new%3D");
        assert_eq!(asked.ways(None).first.as_deref(), Some("/events?type=client.%2Cdaemon.&who=a+b"));
        let plain = Asked { path: "/events".to_owned(), query: Form::parse(b"daemon=") };
        assert_eq!(plain.at(None), "/events");
        assert!(plain.ways(None).is_empty());
    }
}
