//! Replays: the list, and one step by step, with recorded and actual IDs.

use askama::Template;
use uuid::Uuid;

use super::gpu_kind::{self, LayoutPreview};
use super::replays;
use crate::domain::count::counted;
use crate::domain::layout::record::ExecutedStep;
use crate::domain::layout::replay::{Replay, ReplayCause, Verdict};
use crate::domain::layout::{LayoutStep, PartitionChange};
use crate::http::extract::{Call, Path};
use crate::http::pages::format::{Badge, Moment, Tone};
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::lists::{ListQuery, list_page};
use crate::http::pages::rendered;
use crate::http::problem::Reply;

list_page!(ReplaysPage, "layouts/replays.html", Replay);

#[derive(Template)]
#[template(path = "layouts/replay.html")]
struct ReplayPage {
    frame: Frame,
    replay: Replay,
    rows: Vec<ReplayStepRow>,
    /// Commands beside the steps of the layout, and those that undid them.
    others: Vec<ExecutedStep>,
    shares: Vec<ReplayShareRow>,
    /// The partitions that its steps make.
    picture: LayoutPreview,
}

/// A step of the layout, and its result.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReplayStepRow {
    number: usize,
    what: String,
    expected: Option<String>,
    got: Option<String>,
    /// True if both IDs are the same; `None` if one of them is unknown.
    is_same: Option<bool>,
    /// True if it is the first difference.
    first: bool,
    executed: bool,
    /// True if the replay has the recorded IDs, but no record of all its steps.
    unrecorded: bool,
    problem: Option<String>,
    duration_us: Option<u64>,
}

impl ReplayStepRow {
    fn badge(&self) -> Badge {
        match (self.is_same, self.executed) {
            (Some(true), _) => Badge::new("same", Tone::Good),
            (Some(false), _) if self.first => Badge::new("first difference", Tone::Bad),
            (Some(false), _) => Badge::of("differs"),
            (None, true) if self.problem.is_some() => Badge::of("failed"),
            (None, true) => Badge::new("nothing to compare with", Tone::Quiet),
            (None, false) if self.unrecorded => Badge::new("not recorded", Tone::Quiet),
            (None, false) => Badge::new("not run", Tone::Quiet),
        }
    }

    /// Both IDs, each split into the common part and the rest.
    fn split_ids(&self) -> [Option<(&str, &str)>; 2] {
        let common = match (&self.expected, &self.got) {
            (Some(expected), Some(got)) if expected != got => {
                let same = expected.char_indices().zip(got.chars()).take_while(|((_, a), b)| a == b);
                same.last().map_or(0, |((at, c), _)| at + c.len_utf8())
            }
            _ => usize::MAX,
        };
        [&self.expected, &self.got].map(|id| id.as_deref().map(|id| id.split_at(common.min(id.len()))))
    }
}

/// SMs that a client should see in a partition of thread percentages, and those that it saw.
struct ReplayShareRow {
    partition: String,
    expected: Option<u32>,
    seen: Option<u32>,
}

impl ReplayShareRow {
    fn differs(&self) -> bool {
        self.expected.is_some() && self.seen.is_some() && self.expected != self.seen
    }
}

/// The steps of the layout with their results, and the other commands.
fn rows(replay: &Replay, steps: Option<&[LayoutStep]>) -> (Vec<ReplayStepRow>, Vec<ExecutedStep>) {
    let of_step = |number: usize| replay.steps.iter().find(|taken| !taken.undo && taken.step == Some(number));
    let count = replay.expected.as_ref().map_or(0, Vec::len).max(steps.map_or(0, <[LayoutStep]>::len));
    let highest = replay.steps.iter().filter(|taken| !taken.undo).filter_map(|taken| taken.step).max();
    let mut differed = false;
    let row = |number: usize| {
        let taken = of_step(number);
        let expected = replay.expected.as_ref().and_then(|ids| ids.get(number)).map(ToString::to_string);
        let expected = expected.or_else(|| taken?.expected.as_ref().map(ToString::to_string));
        let got = taken.and_then(|taken| taken.id.as_ref()).map(ToString::to_string);
        let is_same = expected.as_ref().zip(got.as_ref()).map(|(expected, got)| expected == got);
        let first = is_same == Some(false) && !differed;
        differed |= first;
        let written = steps.and_then(|steps| steps.get(number)).map(ToString::to_string);
        let what = written.or_else(|| taken.map(describe)).unwrap_or_else(|| "–".to_owned());
        ReplayStepRow {
            number: number + 1,
            what,
            expected,
            got,
            is_same,
            first,
            executed: taken.is_some(),
            unrecorded: replay.lacks_steps(),
            problem: taken.and_then(|taken| taken.problem.clone()),
            duration_us: taken.map(|taken| taken.duration_us),
        }
    };
    let rows = (0..count.max(highest.map_or(0, |highest| highest + 1))).map(row).collect();
    let beside = |taken: &&ExecutedStep| taken.undo || taken.step.is_none();
    (rows, replay.steps.iter().filter(beside).cloned().collect())
}

/// A command, if the layout no longer exists.
fn describe(taken: &ExecutedStep) -> String {
    let name = taken.partition.as_ref().map_or_else(|| "a partition".to_owned(), ToString::to_string);
    match taken.change {
        PartitionChange::Add => format!("add {name}: {}", counted(taken.chunks, "chunk")),
        PartitionChange::Remove => format!("remove {name}"),
    }
}

fn shares(replay: &Replay) -> Vec<ReplayShareRow> {
    let mut rows: Vec<ReplayShareRow> = Vec::new();
    for share in &replay.shares {
        let partition = share.partition.to_string();
        rows.push(ReplayShareRow { partition, expected: Some(share.sms), seen: None });
    }
    for share in &replay.seen {
        let partition = share.partition.to_string();
        match rows.iter_mut().find(|row| row.partition == partition) {
            Some(row) => row.seen = Some(share.sms),
            None => rows.push(ReplayShareRow { partition, expected: None, seen: Some(share.sms) }),
        }
    }
    rows
}

/// The result of a replay.
pub(in crate::http::pages) fn verdict(replay: &Replay) -> Badge {
    match replay.verdict {
        Verdict::Same if replay.lacks_steps() => Badge::new("ended, its steps were not recorded", Tone::Warn),
        Verdict::Pending => Badge::of("running"),
        Verdict::Same => Badge::new("same as recorded", Tone::Good),
        Verdict::First => Badge::new("first of its kind", Tone::Good),
        Verdict::Differs => Badge::of("differs"),
        Verdict::Failed => Badge::of("failed"),
    }
}

/// Milliseconds, to a tenth.
fn milliseconds(us: u64) -> String {
    format!("{}.{} ms", us / 1000, us % 1000 / 100)
}

pub(super) async fn list(call: Call, query: ListQuery) -> Reply {
    let replays = async { call.app.service.replays(&call.ctx, &query.page()?).await };
    Ok(query.list(&call, Section::Replays, &[], replays).await?.answer(|page| ReplaysPage { page }))
}

pub(super) async fn show(call: Call, Path(id): Path<Uuid>) -> Reply {
    let Call { app, ctx } = &call;
    let replay = app.service.replay_record(ctx, id).await?;
    // The layout may have been deleted since; the record remains.
    let version = app.service.layout_version(ctx, &replay.version_ref()).await.ok();
    let (rows, others) = rows(&replay, version.as_ref().map(|version| version.layout.steps.as_slice()));
    let frame = call.frame(Section::Replays, format!("Replay of {}", replay.layout)).await;
    let frame = if replay.verdict == Verdict::Pending { frame.live() } else { frame };
    let (shares, gpu_kinds) = (shares(&replay), gpu_kind::all(&call).await?);
    let picture =
        version.map(|version| LayoutPreview::of(&version.layout, replay.daemon.as_str(), &gpu_kinds));
    let picture = picture.unwrap_or_default();
    Ok(rendered(&ReplayPage { frame, replay, rows, others, shares, picture }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay() -> Replay {
        let taken = |step: Option<usize>, id: &str, undo: bool| {
            serde_json::json!({
                "step": step, "change": if undo { "remove" } else { "add" }, "gpu": "GPU-514466a0-8e68-f857-9f73-e438010e48cb",
                "partition": "web", "chunks": 7, "command": "sm_partition", "expected": null, "id": id, "sms": null,
                "undo": undo, "problem": null, "duration_us": 1250,
            })
        };
        serde_json::from_value(serde_json::json!({
            "id": "0190d5a2-7b1c-7def-8123-456789abcdef", "daemon": "gpu1", "layout": "prod", "version": 1, "gpu_map": {},
            "cause": "requested", "operation": null, "expected": ["AAA", "ABC", "ABD", "EEE"], "provenance": null, "forced": [],
            "verdict": "differs", "error": null, "created_at": "2026-11-25T05:03:49.123Z", "finished_at": null, "duration_us": null,
            "steps": [taken(Some(0), "AAA", false), taken(Some(1), "ABX", false), taken(Some(2), "Q", false), taken(None, "ABX", true)],
        }))
        .expect("a replay")
    }

    #[test]
    fn first_difference_is_marked_once() {
        let (rows, others) = rows(&replay(), None);
        let words: Vec<&str> = rows.iter().map(|row| row.badge().word).collect();
        assert_eq!(words, ["same", "first difference", "differs", "not run"]);
        assert_eq!(rows[1].split_ids(), [Some(("AB", "C")), Some(("AB", "X"))]);
        assert_eq!(rows[0].split_ids(), [Some(("AAA", "")), Some(("AAA", ""))]);
        assert_eq!(rows[2].split_ids()[1], Some(("", "Q")));
        assert_eq!((rows[3].expected.as_deref(), rows[3].what.as_str()), (Some("EEE"), "–"));
        assert_eq!((others.len(), milliseconds(1250)), (1, "1.2 ms".to_owned()));
    }

    #[test]
    fn missing_steps_are_not_called_the_same() {
        let whole = Replay { verdict: Verdict::Same, ..replay() };
        let lost = Replay { steps: Vec::new(), ..whole.clone() };
        assert_eq!(verdict(&lost).word, "ended, its steps were not recorded");
        let (rows, _) = rows(&lost, None);
        assert!(rows.iter().all(|row| row.badge().word == "not recorded"), "{rows:?}");
        let expected = whole.expected.clone().map(|ids| ids[..3].to_vec());
        assert_eq!(verdict(&Replay { expected, ..whole }).word, "same as recorded");
    }
}
