use super::{LATEST, Noun};
use crate::cli::output::{ListField, TableCell, age, word};
use crate::domain::PartitionId;
use crate::domain::layout::replay::{Replay, Verdict};

type Field = ListField<Replay>;

/// Replays of layouts.
pub(in crate::cli) static REPLAY: Noun<Replay> = Noun {
    candidate: |replay| Some((replay.id.to_string(), format!("{} on {}", replay.layout, replay.daemon))),
    candidates: LATEST,
    ..Noun::new(
        ["replay", "replays", "/api/v1/replays"],
        |replay| replay.id.to_string(),
        &[
            Field::both("REPLAY", "Replay", |replay| replay.id.to_string().into()),
            Field::column("LAYOUT", |replay| format!("{} v{}", replay.layout, replay.version).into()),
            Field::detail("Layout", |replay| format!("{} version {}", replay.layout, replay.version).into()),
            Field::both("DAEMON", "Daemon", |replay| replay.daemon.as_str().into()).rank(2),
            Field::both("CAUSE", "Cause", |replay| word(replay.cause).into()).rank(5),
            Field::both("RESULT", "Result", |replay| TableCell::state(replay.verdict.as_str())),
            Field::both("IDS", "IDs as recorded", |replay| ids(replay).into()).rank(1),
            Field::both("AGE", "Age", |replay| age(replay.created_at).into()).rank(4),
            Field::rows(|replay| {
                let id = |id: Option<&PartitionId>| id.map_or_else(|| "-".to_owned(), ToString::to_string);
                let steps = replay.steps.iter();
                steps.map(|step| ("Step", format!("{}: {}", step.command, id(step.id.as_ref())))).collect()
            }),
            Field::both("ERROR", "Error", |replay| TableCell::optional(replay.error.as_deref()))
                .cut()
                .rank(3)
                .if_known(),
        ],
    )
};

/// Returns the number of IDs that are as recorded, out of all, as `3/4`; `-` for a first replay, which has none to compare with.
fn ids(replay: &Replay) -> String {
    let (same, expected) = replay.identical_steps();
    match replay.verdict {
        Verdict::First => "-".into(),
        _ => format!("{same}/{expected}"),
    }
}
