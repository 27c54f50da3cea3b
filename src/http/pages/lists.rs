//! Long lists: filtered and paginated on the server, with addresses that can be bookmarked and shared.

use askama::Template;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::Response;
use form_urlencoded::Serializer;

use super::forms::{Form, FormErrors};
use super::frame::{Frame, Section};
use crate::domain::DaemonName;
use crate::domain::access::Role;
use crate::http::extract::Call;
use crate::http::problem::Problem;
use crate::service::ServiceError;
use crate::service::page::{Page, Paged};

/// Rows per page.
pub(super) const ROWS: u32 = 50;

/// The query of a list's address. An empty field of the filter means no filter.
#[derive(Clone)]
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

    /// The value of a field that is one of a few, or an error for that field.
    pub(super) fn one_of<T: Copy>(
        &self,
        name: &str,
        noun: &str,
        all: impl IntoIterator<Item = T>,
        word: impl Fn(T) -> &'static str,
    ) -> Result<Option<T>, ServiceError> {
        self.parsed(name, |text| {
            let listed = all.into_iter().find(|value| word(*value) == text);
            listed.ok_or_else(|| format!("{text:?} is not {noun}: choose one of the list"))
        })
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

    /// The address of the first page with some fields set to other values.
    pub(super) fn with(&self, fields: &[(&str, &str)]) -> String {
        let mut query = self.query.clone();
        for (name, value) in fields {
            query.replace(name, *value);
        }
        query.remove("cursor");
        Self { path: self.path.clone(), query }.at(None)
    }

    /// The page of a section with the rows that were found, or the error of its filter or cursor; errors of the filter's `fields` are
    /// shown beside them.
    pub(super) async fn list<T>(
        &self,
        call: &Call,
        section: Section,
        fields: &'static [&'static str],
        paged: impl Future<Output = Result<Paged<T>, ServiceError>>,
    ) -> Result<ListPage<T>, Problem> {
        let is_first = self.is_first();
        let (paged, refused) = match paged.await {
            Ok(paged) => (paged, FormErrors::default()),
            Err(error @ ServiceError::Invalid(_)) => {
                (Paged { items: Vec::new(), next_cursor: None }, FormErrors::of(error, fields))
            }
            Err(error) => return Err(error.into()),
        };
        let page_links = self.page_links(paged.next_cursor.as_deref());
        let mut frame = call.frame(section, section.label()).await;
        // New entries would change it, where they come by themselves.
        frame.live = is_first && refused.is_empty() && !matches!(section, Section::Audit | Section::Tokens);
        let list = Listing { rows: paged.items, page_links, refused, is_first };
        let address = self.at(self.text("cursor"));
        Ok(ListPage { frame, list, address, query: self.query.clone(), fields, daemons: Vec::new() })
    }

    /// Links to other pages.
    pub(super) fn page_links(&self, next_cursor: Option<&str>) -> PageLinks {
        let first = (!self.is_first()).then(|| self.at(None));
        PageLinks { first, next: next_cursor.map(|cursor| self.at(Some(cursor))) }
    }
}

/// A choice that narrows a list by one click.
pub(super) struct Facet {
    pub(super) label: &'static str,
    pub(super) href: String,
    pub(super) is_current: bool,
    /// The number of its rows, where it is known.
    pub(super) count: Option<usize>,
}

impl Facet {
    /// The choices for a field: their values and labels.
    pub(super) fn of(
        query: &ListQuery,
        field: &str,
        choices: impl IntoIterator<Item = (&'static str, &'static str)>,
    ) -> Vec<Self> {
        let facet = |(value, label)| Self {
            label,
            href: query.with(&[(field, value)]),
            is_current: query.text(field).unwrap_or_default() == value,
            count: None,
        };
        choices.into_iter().map(facet).collect()
    }
}

/// The rows of a list, and the errors of its filter.
pub(super) struct Listing<T> {
    pub(super) rows: Vec<T>,
    pub(super) page_links: PageLinks,
    pub(super) refused: FormErrors,
    /// True if it is the first page, which changes as things happen.
    is_first: bool,
}

impl<T> Listing<T> {
    /// Returns true if the whole list is empty, and not only this page.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.is_first && self.refused.is_empty()
    }
}

/// A page that lists things.
pub(super) struct ListPage<T> {
    pub(super) frame: Frame,
    pub(super) list: Listing<T>,
    /// Its address.
    pub(super) address: String,
    /// The query as it was written.
    pub(super) query: Form,
    /// The fields of the filter.
    fields: &'static [&'static str],
    /// The daemons that the filter offers.
    pub(super) daemons: Vec<DaemonName>,
}

impl<T> ListPage<T> {
    /// Returns true if any field of the filter is set.
    pub(super) fn is_filtered(&self) -> bool {
        self.fields.iter().any(|field| !self.query.text(field).is_empty())
    }

    /// Returns true if the user may see the host's daemons.
    pub(super) fn of_host(&self) -> bool {
        self.frame.may(Role::Viewer)
    }

    /// Lets the filter offer the daemons of the host, to users who may see them.
    pub(super) async fn with_daemons(mut self, call: &Call) -> Result<Self, Problem> {
        if self.of_host() {
            self.daemons = call.daemon_names().await?;
        }
        Ok(self)
    }

    /// Converts each row.
    pub(super) fn map<U>(self, row: impl FnMut(T) -> U) -> ListPage<U> {
        let Self { frame, list, address, query, fields, daemons } = self;
        let Listing { rows, page_links, refused, is_first } = list;
        let list = Listing { rows: rows.into_iter().map(row).collect(), page_links, refused, is_first };
        ListPage { frame, list, address, query, fields, daemons }
    }

    /// The response, with the status of the error of the filter.
    pub(super) fn answer<P: Template>(mut self, page: impl FnOnce(Self) -> P) -> Response {
        let refused = std::mem::take(&mut self.list.refused);
        refused.shown(|refused| page(Self { list: Listing { refused, ..self.list }, ..self }))
    }
}

/// Declares the template of a list, which has what [`ListPage`] has, and further fields.
macro_rules! list_page {
    ($page:ident, $template:literal, $row:ty $(, $field:ident: $type:ty)*) => {
        #[derive(askama::Template)]
        #[template(path = $template)]
        struct $page {
            page: $crate::http::pages::lists::ListPage<$row>,
            $($field: $type,)*
        }

        impl std::ops::Deref for $page {
            type Target = $crate::http::pages::lists::ListPage<$row>;

            fn deref(&self) -> &Self::Target {
                &self.page
            }
        }
    };
}

pub(super) use list_page;

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
impl ListQuery {
    /// The query of an address.
    pub(super) fn at_address(address: &str) -> Self {
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        Self { path: path.to_owned(), query: Form::parse(query.as_bytes()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_page_keeps_the_filter() {
        let list_query = ListQuery::at_address("/events?type=client.%2Cdaemon.&daemon=&cursor=old&who=a+b");
        assert_eq!(list_query.at(Some("new=")), "/events?type=client.%2Cdaemon.&who=a+b&cursor=new%3D");
        assert_eq!(
            list_query.page_links(None).first.as_deref(),
            Some("/events?type=client.%2Cdaemon.&who=a+b")
        );
        assert_eq!(
            list_query.with(&[("daemon", "gpu 0")]),
            "/events?type=client.%2Cdaemon.&who=a+b&daemon=gpu+0"
        );
        let plain = ListQuery::at_address("/events?daemon=");
        assert_eq!(plain.at(None), "/events");
        assert!(plain.page_links(None).is_empty());
    }
}
