//! Two versions of a layout side by side.

use super::draft::names;
use crate::domain::count::counted;
use crate::domain::layout::{Layout, Step};

/// How a line of one version stands to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Same,
    Changed,
    Gone,
    New,
}

impl Kind {
    /// Its class in the style sheet.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Changed => "changed",
            Self::Gone => "gone",
            Self::New => "new",
        }
    }

    /// Its word.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Changed => "changed",
            Self::Gone => "gone",
            Self::New => "new",
        }
    }
}

/// A line of both, or of one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) kind: Kind,
    pub(super) left: Option<String>,
    pub(super) right: Option<String>,
}

/// What a step says, in a line.
pub(super) fn line(step: &Step) -> String {
    match step {
        Step::Add(add) => {
            let chunks = counted(add.chunks, "chunk");
            let tenants =
                if add.tenants.is_empty() { String::new() } else { format!(" for {}", names(&add.tenants)) };
            format!("add {} on GPU {}: {chunks}{tenants}", add.partition, add.gpu)
        }
        Step::Remove(remove) => format!("remove {}", remove.partition),
    }
}

fn lines(layout: &Layout) -> Vec<String> {
    let head = [
        format!("enforcement: {}", layout.enforcement.as_str()),
        format!("product: {}", layout.sku.as_deref().unwrap_or("any")),
    ];
    head.into_iter().chain(layout.steps.iter().map(line)).collect()
}

/// The lines of both in their order; what stands in for what is in one row.
pub(super) fn rows(left: &Layout, right: &Layout) -> Vec<Row> {
    let (left, right) = (lines(left), lines(right));
    // How many lines both have in common from each place on.
    let mut common = vec![vec![0u16; right.len() + 1]; left.len() + 1];
    for l in (0..left.len()).rev() {
        for r in (0..right.len()).rev() {
            common[l][r] = if left[l] == right[r] {
                common[l + 1][r + 1] + 1
            } else {
                common[l + 1][r].max(common[l][r + 1])
            };
        }
    }
    let (mut rows, mut gone, mut new) = (Vec::new(), Vec::new(), Vec::new());
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if l < left.len() && r < right.len() && left[l] == right[r] {
            settle(&mut rows, &mut gone, &mut new);
            rows.push(Row { kind: Kind::Same, left: Some(left[l].clone()), right: Some(right[r].clone()) });
            (l, r) = (l + 1, r + 1);
        } else if r == right.len() || (l < left.len() && common[l + 1][r] >= common[l][r + 1]) {
            gone.push(left[l].clone());
            l += 1;
        } else {
            new.push(right[r].clone());
            r += 1;
        }
    }
    settle(&mut rows, &mut gone, &mut new);
    rows
}

/// Puts what is gone beside what is new in its place.
fn settle(rows: &mut Vec<Row>, gone: &mut Vec<String>, new: &mut Vec<String>) {
    let mut new = new.drain(..);
    for left in gone.drain(..) {
        let right = new.next();
        let kind = if right.is_some() { Kind::Changed } else { Kind::Gone };
        rows.push(Row { kind, left: Some(left), right });
    }
    rows.extend(new.map(|right| Row { kind: Kind::New, left: None, right: Some(right) }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(steps: &[&str]) -> Layout {
        let step = |text: &&str| match text.split_once(' ') {
            Some((partition, chunks)) => {
                format!(r#"{{"add": {{"gpu": 0, "partition": "{partition}", "chunks": {chunks}}}}}"#)
            }
            None => format!(r#"{{"remove": {{"partition": "{text}"}}}}"#),
        };
        let steps: Vec<String> = steps.iter().map(step).collect();
        serde_json::from_str(&format!(r#"{{"steps": [{}]}}"#, steps.join(","))).expect("a layout")
    }

    #[test]
    fn what_changed_stands_in_one_row_and_the_order_is_kept() {
        let rows = rows(&layout(&["a 7", "b 2", "c 5"]), &layout(&["a 7", "b 3", "c 5", "b", "d 1"]));
        let kinds: Vec<&str> = rows.iter().map(|row| row.kind.class()).collect();
        assert_eq!(kinds, ["same", "same", "same", "changed", "same", "new", "new"]);
        assert_eq!(rows[3].left.as_deref(), Some("add b on GPU 0: 2 chunks"));
        assert_eq!(rows[3].right.as_deref(), Some("add b on GPU 0: 3 chunks"));
        assert_eq!(rows[5].right.as_deref(), Some("remove b"));
    }

    proptest::proptest! {
        #[test]
        fn each_side_is_whole(left in proptest::collection::vec(0u8..6, 0..20), right in proptest::collection::vec(0u8..6, 0..20)) {
            let of = |numbers: &[u8]| {
                let names: Vec<String> = numbers.iter().map(|number| format!("p{number} 1")).collect();
                layout(&names.iter().map(String::as_str).collect::<Vec<_>>())
            };
            let (left, right) = (of(&left), of(&right));
            let rows = rows(&left, &right);
            let side = |of: fn(&Row) -> Option<String>| rows.iter().filter_map(of).collect::<Vec<_>>();
            proptest::prop_assert_eq!(side(|row| row.left.clone()), lines(&left));
            proptest::prop_assert_eq!(side(|row| row.right.clone()), lines(&right));
            let identical = rows.iter().all(|row| row.kind == Kind::Same);
            proptest::prop_assert_eq!(identical, left == right);
        }
    }
}
