//! Two versions of a layout, line by line.

use similar::{Algorithm, ChangeTag, capture_diff_slices};

use crate::domain::layout::{Layout, text};

/// The lines of both versions in order, each with its class in the style sheet, which is also its label.
pub(super) fn lines(old: &Layout, new: &Layout) -> Vec<(&'static str, String)> {
    let texts = [old, new].map(text::write_layout);
    let [old, new] = texts.each_ref().map(|text| text.lines().collect::<Vec<_>>());
    let changes = capture_diff_slices(Algorithm::Lcs, &old, &new);
    let changes = changes.iter().flat_map(|change| change.iter_changes(&old, &new));
    let class = |tag| match tag {
        ChangeTag::Equal => "same",
        ChangeTag::Delete => "gone",
        ChangeTag::Insert => "new",
    };
    changes.map(|line| (class(line.tag()), line.value().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(partitions: &[(&str, u32)]) -> Layout {
        let step = |(partition, chunks): &(&str, u32)| serde_json::json!({"add": {"gpu": 0, "partition": partition, "chunks": chunks}});
        let steps: Vec<_> = partitions.iter().map(step).collect();
        serde_json::from_value(serde_json::json!({ "steps": steps })).expect("a layout")
    }

    #[test]
    fn changed_step_is_two_lines() {
        let lines = lines(&layout(&[("a", 7), ("b", 2)]), &layout(&[("a", 7), ("b", 3), ("c", 1)]));
        let classes: Vec<&str> = lines.iter().map(|(class, _)| *class).collect();
        assert_eq!(classes, ["same", "same", "same", "gone", "new", "new"]);
        assert_eq!(lines[3].1, "- add: {gpu: 0, partition: b, chunks: 2}");
        assert_eq!(lines[4].1, "- add: {gpu: 0, partition: b, chunks: 3}");
    }

    proptest::proptest! {
        #[test]
        fn each_side_is_whole(old in proptest::collection::vec(1u32..6, 0..20), new in proptest::collection::vec(1u32..6, 0..20)) {
            let of = |chunks: &[u32]| layout(&chunks.iter().map(|chunks| ("a", *chunks)).collect::<Vec<_>>());
            let (old, new) = (of(&old), of(&new));
            let lines = lines(&old, &new);
            let without = |class: &str| {
                let side = lines.iter().filter(|(other, _)| *other != class);
                side.flat_map(|(_, line)| [line.as_str(), "\n"]).collect::<String>()
            };
            proptest::prop_assert_eq!(without("new"), text::write_layout(&old));
            proptest::prop_assert_eq!(without("gone"), text::write_layout(&new));
            proptest::prop_assert_eq!(lines.iter().all(|(class, _)| *class == "same"), old == new);
        }
    }
}
