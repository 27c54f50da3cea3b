//! Long lists: filtered and paginated on the server, with addresses that can be bookmarked and shared.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use form_urlencoded::Serializer;

use super::forms::{Form, FormErrors};
use super::frame::Frame;
use crate::http::problem::Problem;
use crate::service::ServiceError;
use crate::service::page::{Page, Paged};

/// Rows per page.
pub(super) const ROWS: u32 = 50;

/// The query of a list's address. An empty field of the filter means no filter.
pub(super) struct ListQuery {
    path: String,
    query: Form,
}

impl ListQuery {
    /// The value of a field; `None` if it is empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        Some(self.query.text(name)).filter(|text| !text.is_empty())
    }

    /// The query as it was written.
    pub(super) fn form(&self) -> &Form {
        &self.query
    }

    /// The parsed value of a field, or an error for that field.
    pub(super) fn parsed<T, E: std::fmt::Display>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ServiceError> {
        let read = self.text(name).map(parse).transpose();
        read.map_err(|error| ServiceError::field(&format!("/{name}"), error.to_string()))
    }

    /// The requested page of the list.
    pub(super) fn page(&self) -> Result<Page, ServiceError> {
        Page::parse(self.text("cursor"), Some(ROWS))
    }

    /// Returns true if this is the first page, which changes as things happen.
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

    /// The rows, or an error; errors of the filter's `fields` are shown beside them.
    pub(super) fn listing<T>(
        &self,
        found: Result<Paged<T>, ServiceError>,
        fields: &[&str],
    ) -> Result<Listing<T>, ServiceError> {
        let is_first = self.is_first();
        match found {
            Ok(Paged { items, next_cursor }) => {
                let (page_links, refused) = (self.page_links(next_cursor.as_deref()), FormErrors::default());
                Ok(Listing { rows: items, page_links, refused, is_first, problem: None })
            }
            Err(error @ ServiceError::Invalid(_)) => {
                let problem = Problem::from(error);
                let (page_links, refused) = (self.page_links(None), FormErrors::of(problem.clone(), fields));
                Ok(Listing { rows: Vec::new(), page_links, refused, is_first, problem: Some(problem) })
            }
            Err(error) => Err(error),
        }
    }

    /// Links to other pages.
    pub(super) fn page_links(&self, next_cursor: Option<&str>) -> PageLinks {
        let first = (!self.is_first()).then(|| self.at(None));
        PageLinks { first, next: next_cursor.map(|cursor| self.at(Some(cursor))) }
    }
}

/// A list: its rows, or the error of its filter or cursor.
pub(super) struct Listing<T> {
    pub(super) rows: Vec<T>,
    pub(super) page_links: PageLinks,
    pub(super) refused: FormErrors,
    /// True if it is the first page, which changes as things happen.
    is_first: bool,
    problem: Option<Problem>,
}

impl<T> Listing<T> {
    /// Converts each row.
    pub(super) fn map<U>(self, row: impl FnMut(T) -> U) -> Listing<U> {
        let Self { rows, page_links, refused, is_first, problem } = self;
        Listing { rows: rows.into_iter().map(row).collect(), page_links, refused, is_first, problem }
    }

    /// Returns true if the whole list is empty, and not only this page.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.is_first && self.refused.is_empty()
    }

    /// Makes the page live if new entries would change it.
    pub(super) fn framed(&self, frame: Frame) -> Frame {
        if self.is_first && self.refused.is_empty() { frame.live() } else { frame }
    }

    /// The problem of the response.
    pub(super) fn problem(&self) -> Option<Problem> {
        self.problem.clone()
    }
}

/// Links to other pages of a list.
pub(super) struct PageLinks {
    pub(super) first: Option<String>,
    pub(super) next: Option<String>,
}

impl PageLinks {
    /// Returns true if the list fits on one page.
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none() && self.next.is_none()
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ListQuery {
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
    fn next_page_keeps_the_filter() {
        let query = Form::parse(b"type=client.%2Cdaemon.&daemon=&cursor=old&who=a+b");
        let list_query = ListQuery { path: "/events".to_owned(), query };
        assert_eq!(list_query.at(Some("new=")), "/events?type=client.%2Cdaemon.&who=a+b&cursor=new%3D");
        assert_eq!(
            list_query.page_links(None).first.as_deref(),
            Some("/events?type=client.%2Cdaemon.&who=a+b")
        );
        let plain = ListQuery { path: "/events".to_owned(), query: Form::parse(b"daemon=") };
        assert_eq!(plain.at(None), "/events");
        assert!(plain.page_links(None).is_empty());
    }
}
