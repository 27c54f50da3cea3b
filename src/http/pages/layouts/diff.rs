//! Two versions of a layout side by side.

use similar::{Algorithm, DiffTag};

use super::draft::names;
use crate::domain::count::counted;
use crate::domain::layout::{Layout, LayoutStep};

/// Difference of a line between two versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineChange {
    Same,
    Changed,
    Gone,
    New,
}

impl LineChange {
    /// Its class in the style sheet, which is also its label.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Changed => "changed",
            Self::Gone => "gone",
            Self::New => "new",
        }
    }
}

/// A line of both versions, or of one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DiffRow {
    pub(super) kind: LineChange,
    pub(super) left: Option<String>,
    pub(super) right: Option<String>,
}

/// A step in one line.
pub(super) fn line(step: &LayoutStep) -> String {
    match step {
        LayoutStep::Add(add) => {
            let chunks = counted(add.chunks, "chunk");
            let tenants =
                if add.tenants.is_empty() { String::new() } else { format!(" for {}", names(&add.tenants)) };
            format!("add {} on GPU {}: {chunks}{tenants}", add.partition, add.gpu)
        }
        LayoutStep::Remove(remove) => format!("remove {}", remove.partition),
    }
}

fn lines(layout: &Layout) -> Vec<String> {
    let head = [
        format!("enforcement: {}", layout.enforcement.as_str()),
        format!("product: {}", layout.sku.as_deref().unwrap_or("any")),
    ];
    head.into_iter().chain(layout.steps.iter().map(line)).collect()
}

/// The lines of both versions in order; a replaced line shares its row with its replacement.
pub(super) fn rows(left: &Layout, right: &Layout) -> Vec<DiffRow> {
    let (left, right) = (lines(left), lines(right));
    let mut rows = Vec::new();
    for operation in similar::capture_diff_slices(Algorithm::Lcs, &left, &right) {
        let (tag, old, new) = operation.as_tag_tuple();
        for row in 0..old.len().max(new.len()) {
            let left = left[old.clone()].get(row).cloned();
            let right = right[new.clone()].get(row).cloned();
            let kind = match (tag, &left, &right) {
                (DiffTag::Equal, ..) => LineChange::Same,
                (_, _, None) => LineChange::Gone,
                (_, None, _) => LineChange::New,
                _ => LineChange::Changed,
            };
            rows.push(DiffRow { kind, left, right });
        }
    }
    rows
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
    fn replaced_lines_share_a_row() {
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
            let side = |of: fn(&DiffRow) -> Option<String>| rows.iter().filter_map(of).collect::<Vec<_>>();
            proptest::prop_assert_eq!(side(|row| row.left.clone()), lines(&left));
            proptest::prop_assert_eq!(side(|row| row.right.clone()), lines(&right));
            let identical = rows.iter().all(|row| row.kind == LineChange::Same);
            proptest::prop_assert_eq!(identical, left == right);
        }
    }
}
