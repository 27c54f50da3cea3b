//! Replays: all of them, and one step by step, with the ID on record next to the ID that was given.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use uuid::Uuid;

use super::diff::line;
use crate::domain::access::Actor;
use crate::domain::count::counted;
use crate::domain::layout::execution::Taken;
use crate::domain::layout::replay::{Replay, ReplayCause, Verdict};
use crate::domain::layout::{Change, Step};
use crate::http::AppState;
use crate::http::extract::Path;
use crate::http::pages::frame::{Frame, Place};
use crate::http::pages::lists::{Asked, Listing};
use crate::http::pages::words::{Moment, State as Stands, Tone};
use crate::http::pages::{listed, rendered};
use crate::http::problem::Problem;

#[derive(Template)]
#[template(path = "layouts/replays.html")]
struct ReplaysPage {
    frame: Frame,
    list: Listing<Replay>,
}

#[derive(Template)]
#[template(path = "layouts/replay.html")]
struct ReplayPage {
    frame: Frame,
    replay: Replay,
    rows: Vec<Row>,
    /// What was done beside the steps of the layout, and on the way back.
    others: Vec<Taken>,
    shares: Vec<ShareRow>,
}

/// A step of the layout, and what it gave.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    number: usize,
    what: String,
    expected: Option<String>,
    got: Option<String>,
    compared: Compared,
    /// Whether it is the first that gave something else.
    first: bool,
    taken: bool,
    /// Whether it was taken, or may have been, and nothing of it was kept.
    unrecorded: bool,
    trouble: Option<String>,
    duration_us: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compared {
    Same,
    Differs,
    /// One of both is not known.
    Nothing,
}

impl Row {
    fn stands(&self) -> Stands {
        match (self.compared, self.taken) {
            (Compared::Same, _) => Stands { word: "same", tone: Tone::Good },
            (Compared::Differs, _) if self.first => Stands { word: "first difference", tone: Tone::Bad },
            (Compared::Differs, _) => Stands { word: "differs", tone: Tone::Bad },
            (Compared::Nothing, true) if self.trouble.is_some() => Stands { word: "failed", tone: Tone::Bad },
            (Compared::Nothing, true) => Stands { word: "nothing to compare with", tone: Tone::Quiet },
            (Compared::Nothing, false) if self.unrecorded => {
                Stands { word: "not recorded", tone: Tone::Quiet }
            }
            (Compared::Nothing, false) => Stands { word: "not taken", tone: Tone::Quiet },
        }
    }

    /// Both IDs, each with the part that they have in common and the rest.
    fn apart(&self) -> [Option<(&str, &str)>; 2] {
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

/// What a client was to see in a partition of thread percentages, and what it saw.
struct ShareRow {
    partition: String,
    expected: Option<u32>,
    seen: Option<u32>,
}

impl ShareRow {
    fn differs(&self) -> bool {
        self.expected.is_some() && self.seen.is_some() && self.expected != self.seen
    }
}

/// The steps of the layout with what they gave, and what was done beside them.
fn rows(replay: &Replay, steps: Option<&[Step]>) -> (Vec<Row>, Vec<Taken>) {
    let of_step = |number: usize| replay.steps.iter().find(|taken| !taken.undo && taken.step == Some(number));
    let known = replay.expected.as_ref().map_or(0, Vec::len).max(steps.map_or(0, <[Step]>::len));
    let highest = replay.steps.iter().filter(|taken| !taken.undo).filter_map(|taken| taken.step).max();
    let mut differed = false;
    let row = |number: usize| {
        let taken = of_step(number);
        let expected = replay.expected.as_ref().and_then(|ids| ids.get(number)).map(ToString::to_string);
        let expected = expected.or_else(|| taken?.expected.as_ref().map(ToString::to_string));
        let got = taken.and_then(|taken| taken.id.as_ref()).map(ToString::to_string);
        let compared = match (&expected, &got) {
            (Some(expected), Some(got)) if expected == got => Compared::Same,
            (Some(_), Some(_)) => Compared::Differs,
            _ => Compared::Nothing,
        };
        let first = compared == Compared::Differs && !differed;
        differed |= first;
        let written = steps.and_then(|steps| steps.get(number)).map(line);
        let what = written.or_else(|| taken.map(told)).unwrap_or_else(|| "–".to_owned());
        Row {
            number: number + 1,
            what,
            expected,
            got,
            compared,
            first,
            taken: taken.is_some(),
            unrecorded: replay.lacks_steps(),
            trouble: taken.and_then(|taken| taken.trouble.clone()),
            duration_us: taken.map(|taken| taken.duration_us),
        }
    };
    let rows = (0..known.max(highest.map_or(0, |highest| highest + 1))).map(row).collect();
    let beside = |taken: &&Taken| taken.undo || taken.step.is_none();
    (rows, replay.steps.iter().filter(beside).cloned().collect())
}

/// What a command did, where the layout is not there any more.
fn told(taken: &Taken) -> String {
    let name = taken.partition.as_ref().map_or_else(|| "a partition".to_owned(), ToString::to_string);
    match taken.change {
        Change::Add => format!("add {name}: {}", counted(taken.chunks, "chunk")),
        Change::Remove => format!("remove {name}"),
    }
}

fn shares(replay: &Replay) -> Vec<ShareRow> {
    let mut rows: Vec<ShareRow> = Vec::new();
    for share in &replay.shares {
        let partition = share.partition.to_string();
        rows.push(ShareRow { partition, expected: Some(share.sms), seen: None });
    }
    for share in &replay.seen {
        let partition = share.partition.to_string();
        match rows.iter_mut().find(|row| row.partition == partition) {
            Some(row) => row.seen = Some(share.sms),
            None => rows.push(ShareRow { partition, expected: None, seen: Some(share.sms) }),
        }
    }
    rows
}

/// How a replay came out.
fn verdict(replay: &Replay) -> Stands {
    match replay.verdict {
        Verdict::Same if replay.lacks_steps() => {
            Stands { word: "ended, its steps were not recorded", tone: Tone::Warn }
        }
        Verdict::Pending => Stands { word: "under way", tone: Tone::Busy },
        Verdict::Same => Stands { word: "same as on record", tone: Tone::Good },
        Verdict::First => Stands { word: "first of its kind", tone: Tone::Good },
        Verdict::Differs => Stands { word: "differs", tone: Tone::Bad },
        Verdict::Failed => Stands { word: "failed", tone: Tone::Bad },
    }
}

fn cause(of: ReplayCause) -> &'static str {
    match of {
        ReplayCause::Asked => "somebody asked for it",
        ReplayCause::Restart => "the daemon was started again",
    }
}

/// Milliseconds, to a tenth.
fn milliseconds(us: u64) -> String {
    format!("{}.{} ms", us / 1000, us % 1000 / 100)
}

impl ReplaysPage {
    fn verdict(replay: &Replay) -> Stands {
        verdict(replay)
    }

    fn cause(replay: &Replay) -> &'static str {
        cause(replay.cause)
    }
}

impl ReplayPage {
    fn verdict(&self) -> Stands {
        verdict(&self.replay)
    }

    fn cause(&self) -> &'static str {
        cause(self.replay.cause)
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "templates call it with references")]
    fn took(us: &u64) -> String {
        milliseconds(*us)
    }

    fn told(taken: &Taken) -> String {
        told(taken)
    }
}

pub(super) async fn list(
    State(app): State<AppState>,
    actor: Actor,
    paging: Asked,
) -> Result<Response, Problem> {
    let found = async { app.service.replays(&actor, &paging.page()?).await };
    let list = paging.listing(found.await, &[])?;
    let frame = Frame::of(&app.service, &actor, Place::Replays, "Replays").await;
    let (frame, problem) = (list.framed(frame), list.problem());
    Ok(listed(&ReplaysPage { frame, list }, problem))
}

pub(super) async fn show(
    State(app): State<AppState>,
    actor: Actor,
    Path(id): Path<Uuid>,
) -> Result<Response, Problem> {
    let replay = app.service.replay_record(&actor, id).await?;
    // The layout may have been forgotten since; what was done is on record all the same.
    let version = app.service.layout_version(&actor, &replay.version_ref()).await.ok();
    let (rows, others) = rows(&replay, version.as_ref().map(|version| version.layout.steps.as_slice()));
    let title = format!("Replay of {}", replay.layout);
    let frame = Frame::of(&app.service, &actor, Place::Replays, &title).await;
    let frame = if replay.verdict == Verdict::Pending { frame.live() } else { frame };
    let shares = shares(&replay);
    Ok(rendered(&ReplayPage { frame, replay, rows, others, shares }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay() -> Replay {
        let taken = |step: Option<usize>, id: &str, undo: bool| {
            serde_json::json!({
                "step": step, "change": if undo { "remove" } else { "add" }, "gpu": "GPU-514466a0-8e68-f857-9f73-e438010e48cb",
                "partition": "web", "chunks": 7, "command": "sm_partition", "expected": null, "id": id, "sms": null,
                "undo": undo, "trouble": null, "duration_us": 1250,
            })
        };
        serde_json::from_value(serde_json::json!({
            "id": "0190d5a2-7b1c-7def-8123-456789abcdef", "daemon": "gpu1", "layout": "prod", "version": 1, "gpu_map": {},
            "cause": "asked", "operation": null, "expected": ["AAA", "ABC", "ABD", "EEE"], "provenance": null, "forced": [],
            "verdict": "differs", "error": null, "created_at": 0, "finished_at": null, "duration_us": null,
            "steps": [taken(Some(0), "AAA", false), taken(Some(1), "ABX", false), taken(Some(2), "Q", false), taken(None, "ABX", true)],
        }))
        .expect("a replay")
    }

    #[test]
    fn the_first_difference_is_marked_once_and_what_was_not_taken_is_told() {
        let (rows, others) = rows(&replay(), None);
        let words: Vec<&str> = rows.iter().map(|row| row.stands().word).collect();
        assert_eq!(words, ["same", "first difference", "differs", "not taken"]);
        assert_eq!(rows[1].apart(), [Some(("AB", "C")), Some(("AB", "X"))]);
        assert_eq!(rows[0].apart(), [Some(("AAA", "")), Some(("AAA", ""))]);
        assert_eq!(rows[2].apart()[1], Some(("", "Q")));
        assert_eq!((rows[3].expected.as_deref(), rows[3].what.as_str()), (Some("EEE"), "–"));
        assert_eq!((others.len(), milliseconds(1250)), (1, "1.2 ms".to_owned()));
    }

    #[test]
    fn missing_steps_are_not_called_the_same() {
        let whole = Replay { verdict: Verdict::Same, ..replay() };
        let lost = Replay { steps: Vec::new(), ..whole.clone() };
        assert_eq!(verdict(&lost).word, "ended, its steps were not recorded");
        let (rows, _) = rows(&lost, None);
        assert!(rows.iter().all(|row| row.stands().word == "not recorded"), "{rows:?}");
        let expected = whole.expected.clone().map(|ids| ids[..3].to_vec());
        assert_eq!(verdict(&Replay { expected, ..whole }).word, "same as on record");
    }
}
