//! The order of a list, by the column that its address names. A list is sorted before it is cut into pages.

use super::lists::{ListQuery, ROWS};
use crate::service::ServiceError;
use crate::service::page::Paged;

/// A value of a row, by which a column sorts. In either direction the rows without a value come last.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SortValue {
    Number(i64),
    Text(String),
    Missing,
}

impl SortValue {
    pub(super) fn number(of: Option<impl TryInto<i64>>) -> Self {
        of.map_or(Self::Missing, |number| Self::Number(number.try_into().unwrap_or(i64::MAX)))
    }

    pub(super) fn text(of: Option<String>) -> Self {
        of.map_or(Self::Missing, Self::Text)
    }
}

/// Columns by which a list can be sorted: their names in the address, and the value of a row.
pub(super) type SortColumns<'c, T> = &'c [(&'static str, fn(&T) -> SortValue)];

/// The order of a list, and the addresses of its other orders.
pub(super) struct Sorting(Option<ListQuery>);

impl Sorting {
    pub(super) fn of(query: &ListQuery) -> Self {
        Self(Some(query.clone()))
    }

    /// The order of a list that its reader cannot change.
    pub(super) fn fixed() -> Self {
        Self(None)
    }

    /// The direction in which a column sorts the list, as `aria-sort` names it.
    pub(super) fn direction(&self, column: &str) -> Option<&'static str> {
        let query = self.0.as_ref().filter(|query| query.text("sort") == Some(column))?;
        Some(if is_descending(query) { "descending" } else { "ascending" })
    }

    /// The address of the list in the next order by a column: numbers begin with the largest, texts with A; then the other direction, and
    /// then the order that the list has by itself.
    pub(super) fn href(&self, column: &str, is_number: bool) -> Option<String> {
        let order = |descending| if descending { "desc" } else { "asc" };
        let (sort, order) = match self.direction(column) {
            None => (column, order(is_number)),
            Some(now) if (now == "descending") == is_number => (column, order(!is_number)),
            Some(_) => ("", ""),
        };
        Some(self.0.as_ref()?.with(&[("sort", sort), ("order", order)]))
    }
}

fn is_descending(query: &ListQuery) -> bool {
    query.text("order") == Some("desc")
}

impl ListQuery {
    /// Returns true if the address names a column to sort by.
    pub(super) fn is_sorted(&self) -> bool {
        self.text("sort").is_some()
    }

    /// Sorts rows as the address asks for; refuses a column that the list does not sort by.
    pub(super) fn sort<T>(&self, rows: &mut [T], columns: SortColumns<'_, T>) -> Result<(), ServiceError> {
        let column = self.one_of("sort", "a column to sort by", columns, |column| column.0)?;
        let Some((_, value)) = column else { return Ok(()) };
        rows.sort_by_cached_key(value);
        if is_descending(self) {
            let valued = rows.partition_point(|row| value(row) != SortValue::Missing);
            rows[..valued].reverse();
        }
        Ok(())
    }

    /// Sorts all rows, and cuts them to the page that the address asks for.
    pub(super) fn sorted_page<T>(
        &self,
        mut rows: Vec<T>,
        columns: SortColumns<'_, T>,
    ) -> Result<Paged<T>, ServiceError> {
        self.sort(&mut rows, columns)?;
        let page = self.page()?;
        let before = page.key::<usize>()?.unwrap_or(0);
        let most = ROWS as usize;
        let rows = rows.into_iter().skip(before).take(most + 1).collect();
        Ok(page.cut(rows, |_| (before + most).to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: SortColumns<'static, (&str, Option<u64>)> = &[
        ("name", |(name, _)| SortValue::Text((*name).to_owned())),
        ("memory", |(_, memory)| SortValue::number(*memory)),
    ];

    fn sorted(address: &str) -> Result<Vec<&'static str>, ServiceError> {
        let mut rows = vec![("b", Some(10)), ("c", None), ("a", Some(9))];
        ListQuery::at_address(address).sort(&mut rows, COLUMNS)?;
        Ok(rows.into_iter().map(|(name, _)| name).collect())
    }

    #[test]
    fn missing_values_come_last() {
        for (address, order) in [
            ("/list", ["b", "c", "a"]),
            ("/list?sort=name", ["a", "b", "c"]),
            ("/list?sort=memory", ["a", "b", "c"]),
            ("/list?sort=memory&order=desc", ["b", "a", "c"]),
        ] {
            assert_eq!(sorted(address).expect("a column"), order, "{address}");
        }
        assert!(sorted("/list?sort=colour").is_err());
    }

    #[test]
    fn third_click_restores_the_order() {
        let next = |address: &str, column: &str, is_number| {
            Sorting::of(&ListQuery::at_address(address)).href(column, is_number).expect("an address")
        };
        let (first, second) = ("/list?q=w&sort=memory&order=desc", "/list?q=w&sort=memory&order=asc");
        assert_eq!(next("/list?q=w&cursor=x", "memory", true), first);
        assert_eq!(next(first, "memory", true), second);
        assert_eq!(next(second, "memory", true), "/list?q=w");
        assert_eq!(next(first, "name", false), "/list?q=w&sort=name&order=asc");
        assert_eq!(Sorting::of(&ListQuery::at_address(first)).direction("memory"), Some("descending"));
        assert_eq!(Sorting::fixed().href("memory", true), None);
    }

    #[test]
    fn sorted_pages_follow_each_other() {
        let rows: Vec<(&str, Option<u64>)> = (0..120).map(|number| ("x", Some(number))).collect();
        let mut address = "/list?sort=memory&order=desc".to_owned();
        let mut seen = Vec::new();
        loop {
            let query = ListQuery::at_address(&address);
            let page = query.sorted_page(rows.clone(), COLUMNS).expect("a page");
            seen.extend(page.items.into_iter().filter_map(|(_, number)| number));
            let Some(cursor) = page.next_cursor else { break };
            address = query.at(Some(&cursor));
        }
        assert_eq!(seen, (0..120).rev().collect::<Vec<_>>());
    }
}
