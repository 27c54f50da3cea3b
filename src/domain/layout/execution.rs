//! Carries out a plan: pure; after each command it takes the daemon's answer and list.
//!
//! The effect of a command is decided by the list before and after it, never by its reply: MPS answers rc 0 to errors, a reply may be lost
//! on its way, and a removal has no known reply of success. So a lost reply is resolved as soon as the list can be read: exactly one new
//! partition is the one that was made, none means that nothing happened, and anything else means that another program is at work, which
//! stops everything.
//!
//! ```text
//!   forward ──each step as planned──────────────────────────► done
//!      │ a step failed, gave another ID, or another program interfered
//!      ▼
//!   back: what this run made is removed, what it removed is made again, in reverse ──► undone
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::plan::{Action, Plan, Reason, add_command, remove_command};
use super::record::{Degraded, ExecutedStep, Record, RecordedStep};
use super::{PartitionChange, ResolvedStep};
use crate::count::counted;
use crate::partitions::GpuPartitions;
use crate::{GpuUuid, PartitionId, PartitionName};

/// A move to come, or one that was made.
#[derive(Debug, Clone)]
struct PlannedMove {
    gpu: GpuUuid,
    partition: Option<PartitionName>,
    chunks: u32,
    change: PartitionChange,
    /// For a removal, the partition's ID, unless a step of this run makes it first. For an addition to come, the recorded ID, and for one
    /// that was made, the ID that it gave.
    id: Option<PartitionId>,
    /// The step of the layout that this move carries out.
    step: Option<usize>,
    /// True if the partition is restored when the run is undone.
    restorable: bool,
}

/// Number of times that a command is sent if each reply is lost and the list shows no effect.
const ATTEMPTS: u32 = 3;

/// A command to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its name; `None` for a partition that no layout of this manager made.
    pub partition: Option<PartitionName>,
    /// Its chunks.
    pub chunks: u32,
    /// The change to make.
    pub action: MoveAction,
}

/// The change that a move makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoveAction {
    /// Makes a partition, which is to have this ID if one is recorded.
    Add {
        /// The recorded ID.
        expected: Option<PartitionId>,
    },
    /// Removes the partition of that ID.
    Remove {
        /// The ID.
        id: PartitionId,
    },
}

impl Move {
    /// Returns the command, as the control daemon takes it.
    pub fn command(&self) -> String {
        match &self.action {
            MoveAction::Add { .. } => add_command(&self.gpu, self.chunks),
            MoveAction::Remove { id } => remove_command(&self.gpu, id),
        }
    }
}

/// Answer to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandAnswer {
    /// The daemon named the partition that it made.
    Named(PartitionId),
    /// The reply was empty.
    Silent,
    /// The daemon refused with this reply.
    Refused(String),
    /// No whole reply came; the command may have had an effect.
    Lost(String),
}

/// Cause of a run's failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LayoutFailureCause {
    /// A step gave another ID than the recorded one.
    OtherId {
        /// The step of the layout, counted from 0.
        step: usize,
        /// The partition.
        partition: PartitionName,
        /// The recorded ID.
        expected: PartitionId,
        /// The ID that it gave.
        got: PartitionId,
    },
    /// The daemon did not do a step.
    NotDone {
        /// The command.
        command: String,
        /// Its reply.
        reply: String,
    },
    /// Partitions came or went that no step of this run made or removed.
    Interference {
        /// The changes that were seen.
        seen: String,
    },
    /// The daemon could no longer be reached.
    Unreachable {
        /// The error.
        why: String,
    },
    /// Nothing was done, since the plan was blocked.
    Blocked {
        /// The blockers in words.
        why: String,
    },
}

impl std::fmt::Display for LayoutFailureCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OtherId { step, partition, expected, got } => {
                write!(
                    f,
                    "step {} gave partition {partition} the ID {got}, and {expected} is recorded",
                    step + 1
                )
            }
            Self::NotDone { command, reply } => write!(f, "the daemon did not do `{command}`: {reply}"),
            Self::Interference { seen } => {
                write!(f, "another program changes partitions of this daemon: {seen}")
            }
            Self::Unreachable { why } => write!(f, "the daemon could not be reached: {why}"),
            Self::Blocked { why } => write!(f, "{why}"),
        }
    }
}

/// Outcome of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionOutcome {
    /// Record of the partitions after the run: those of the layout if `cause` is `None`, otherwise those of before.
    pub record: Record,
    /// Partitions that are not as they should be.
    pub degraded: Vec<Degraded>,
    /// The reason for which the run was undone; `None` if it completed.
    pub cause: Option<LayoutFailureCause>,
    /// Every command that was sent.
    pub executed_steps: Vec<ExecutedStep>,
}

/// An ongoing run.
#[derive(Debug, Clone)]
pub struct Execution {
    steps: Vec<ResolvedStep>,
    base: Record,
    ahead: Vec<PlannedMove>,
    next: usize,
    attempts: u32,
    listed: Listing,
    /// The ID of each step of the layout, once it is known.
    ids: BTreeMap<usize, PartitionId>,
    done: Vec<PlannedMove>,
    executed_steps: Vec<ExecutedStep>,
    cause: Option<LayoutFailureCause>,
    degraded: Vec<Degraded>,
    over: bool,
}

/// Partitions by GPU and ID, with their chunks and SMs.
type Listing = BTreeMap<GpuUuid, BTreeMap<PartitionId, (u32, u32)>>;

impl Execution {
    /// Begins a plan that was made from these steps, this record and this list.
    pub fn new(plan: &Plan, steps: &[ResolvedStep], base: &Record, present: &[GpuPartitions]) -> Self {
        // The steps at the beginning have equal effects, so on each GPU the steps of the record are those of the layout, one for one.
        let mut ids = BTreeMap::new();
        for (number, step) in plan.taken.iter().filter_map(|number| Some((*number, steps.get(*number)?))) {
            let place = steps[..number].iter().filter(|other| other.gpu == step.gpu).count();
            let taken = base.0.iter().filter(|taken| taken.gpu == step.gpu).nth(place);
            ids.extend(taken.map(|taken| (number, taken.id.clone())));
        }
        let mut execution = Self {
            steps: steps.to_vec(),
            base: base.clone(),
            ahead: Vec::new(),
            next: 0,
            attempts: 0,
            listed: listing(present),
            ids,
            done: Vec::new(),
            executed_steps: Vec::new(),
            cause: None,
            degraded: Vec::new(),
            over: false,
        };
        execution.ahead = plan
            .steps
            .iter()
            .filter(|step| step.action != Action::Keep)
            .map(|step| PlannedMove {
                gpu: step.gpu.clone(),
                partition: step.partition.clone(),
                chunks: step.chunks,
                change: if step.action == Action::Add {
                    PartitionChange::Add
                } else {
                    PartitionChange::Remove
                },
                id: if step.action == Action::Add { step.expected.clone() } else { step.id.clone() },
                step: step.step,
                restorable: step.reason != Reason::CutShort,
            })
            .collect();
        execution.over = execution.ahead.is_empty();
        execution
    }

    /// Returns the next command; `None` when the run has ended.
    pub fn next(&self) -> Option<Move> {
        if self.over {
            return None;
        }
        let ahead = self.ahead.get(self.next)?;
        let action = match ahead.change {
            PartitionChange::Add => MoveAction::Add { expected: ahead.id.clone() },
            PartitionChange::Remove => MoveAction::Remove {
                id: ahead.id.clone().or_else(|| self.made_by(ahead.partition.as_ref(), ahead.step))?,
            },
        };
        Some(Move {
            gpu: ahead.gpu.clone(),
            partition: ahead.partition.clone(),
            chunks: ahead.chunks,
            action,
        })
    }

    /// Returns the ID of the partition that an earlier step of the layout made and this one removes.
    fn made_by(&self, partition: Option<&PartitionName>, step: Option<usize>) -> Option<PartitionId> {
        let (name, step) = (partition?, step?);
        let made = |(number, made): &(usize, &ResolvedStep)| {
            *number < step && made.change == PartitionChange::Add && made.partition == *name
        };
        let (number, _) = self.steps.iter().enumerate().find(made)?;
        self.ids.get(&number).cloned()
    }

    /// Returns true if the run failed and is being undone.
    pub fn is_undoing(&self) -> bool {
        self.cause.is_some()
    }

    /// Returns the number of commands that are done, and of all commands: those of the plan, or those that undo it.
    pub fn progress(&self) -> (usize, usize) {
        (self.next, self.ahead.len())
    }

    /// Returns the commands that were sent so far.
    pub fn executed_steps(&self) -> &[ExecutedStep] {
        &self.executed_steps
    }

    /// Takes the answer to the command that [`Execution::next`] gave, and the list after it.
    pub fn answered(&mut self, answer: &CommandAnswer, present: &[GpuPartitions], duration_us: u64) {
        let (Some(sent), Some(ahead)) = (self.next(), self.ahead.get(self.next).cloned()) else { return };
        let now = listing(present);
        let seen = compare(&self.listed, &now);
        self.listed = now;
        let judged = self.judge(&sent, answer, &seen);
        self.write_down(&sent, &ahead, &judged, duration_us);
        match judged {
            MoveVerdict::Again => self.attempts += 1,
            MoveVerdict::Done { id } => self.step_done(ahead, id),
            MoveVerdict::Failed(cause) if self.is_undoing() => self.undo_failed(&sent, &cause),
            MoveVerdict::Failed(cause) => self.turn_back(cause),
        }
    }

    /// Records that the daemon can no longer be reached: nothing more is sent.
    pub fn unreachable(&mut self, why: String) {
        let cause = LayoutFailureCause::Unreachable { why };
        self.cause.get_or_insert(cause);
        self.over = true;
    }

    fn judge(&self, sent: &Move, answer: &CommandAnswer, seen: &Changes) -> MoveVerdict {
        let failed = |reply: String| {
            MoveVerdict::Failed(LayoutFailureCause::NotDone { command: sent.command(), reply })
        };
        let nothing = match answer {
            CommandAnswer::Lost(_) if self.attempts + 1 < ATTEMPTS => MoveVerdict::Again,
            CommandAnswer::Lost(why) => {
                failed(format!("no reply, {ATTEMPTS} times, and nothing was done: {why}"))
            }
            CommandAnswer::Refused(reply) => failed(reply.clone()),
            CommandAnswer::Named(id) => failed(format!("it named {id}, which it does not list")),
            CommandAnswer::Silent => failed("its reply was empty, and nothing was done".to_owned()),
        };
        match (&sent.action, seen.came.as_slice(), seen.went.as_slice()) {
            (_, [], []) => nothing,
            (MoveAction::Add { .. }, [(gpu, id)], []) if *gpu == sent.gpu => {
                let chunks = self.listed.get(gpu).and_then(|ids| ids.get(id)).map(|(chunks, _)| *chunks);
                match answer {
                    CommandAnswer::Named(named) if named != id => {
                        let seen = format!("`{}` was answered {named}, and {id} is new", sent.command());
                        MoveVerdict::Failed(LayoutFailureCause::Interference { seen })
                    }
                    _ if chunks != Some(sent.chunks) => {
                        let seen = format!(
                            "`{}` is followed by {id} of {}",
                            sent.command(),
                            counted(chunks.unwrap_or(0), "chunk")
                        );
                        MoveVerdict::Failed(LayoutFailureCause::Interference { seen })
                    }
                    _ => MoveVerdict::Done { id: id.clone() },
                }
            }
            (MoveAction::Remove { id }, [], [(gpu, gone)]) if *gpu == sent.gpu && gone == id => {
                MoveVerdict::Done { id: id.clone() }
            }
            _ => MoveVerdict::Failed(LayoutFailureCause::Interference { seen: seen.words(&sent.command()) }),
        }
    }

    fn write_down(&mut self, sent: &Move, ahead: &PlannedMove, judged: &MoveVerdict, duration_us: u64) {
        let id = match judged {
            MoveVerdict::Done { id } => Some(id.clone()),
            _ => None,
        };
        let listed = id.as_ref().and_then(|id| self.listed.get(&sent.gpu)?.get(id));
        self.executed_steps.push(ExecutedStep {
            step: ahead.step,
            change: ahead.change,
            gpu: sent.gpu.clone(),
            partition: sent.partition.clone(),
            chunks: sent.chunks,
            command: sent.command(),
            expected: match &sent.action {
                MoveAction::Add { expected } => expected.clone(),
                MoveAction::Remove { .. } => None,
            },
            sms: listed.map(|(_, sms)| *sms),
            id,
            undo: self.is_undoing(),
            problem: match judged {
                MoveVerdict::Done { .. } => None,
                MoveVerdict::Again => Some("no reply, and nothing was done: sent again".to_owned()),
                MoveVerdict::Failed(cause) => Some(cause.to_string()),
            },
            duration_us,
        });
    }

    fn step_done(&mut self, ahead: PlannedMove, id: PartitionId) {
        self.attempts = 0;
        self.next += 1;
        self.over = self.next == self.ahead.len();
        let undoing = self.is_undoing();
        if let Some(step) = ahead.step.filter(|_| !undoing) {
            self.ids.insert(step, id.clone());
        }
        if !undoing {
            self.done.push(PlannedMove { id: Some(id.clone()), ..ahead.clone() });
        }
        let expected = ahead.id.filter(|expected| ahead.change == PartitionChange::Add && *expected != id);
        let Some(expected) = expected else { return };
        if let (Some(step), Some(partition), false) = (ahead.step, ahead.partition.clone(), undoing) {
            return self.turn_back(LayoutFailureCause::OtherId { step, partition, expected, got: id });
        }
        let (expected, got) = (Some(expected), Some(id));
        self.degraded.push(Degraded { gpu: ahead.gpu, partition: ahead.partition, expected, got, why: None });
    }

    /// Begins to undo the steps of this run, in reverse.
    fn turn_back(&mut self, cause: LayoutFailureCause) {
        self.cause = Some(cause);
        self.degraded.clear();
        self.attempts = 0;
        self.next = 0;
        self.ahead = self.done.iter().rev().filter_map(|done| self.opposite(done)).collect();
        self.over = self.ahead.is_empty();
    }

    /// Returns the move that undoes another, if it has to be undone.
    fn opposite(&self, done: &PlannedMove) -> Option<PlannedMove> {
        let back = |change| PlannedMove { change, step: None, ..done.clone() };
        let id = done.id.as_ref()?;
        match done.change {
            PartitionChange::Add => {
                let removed = self.in_this_run(done, PartitionChange::Remove);
                // Another program may have taken it away.
                let there = self.listed.get(&done.gpu).is_some_and(|ids| ids.contains_key(id));
                (there && !removed).then(|| back(PartitionChange::Remove))
            }
            PartitionChange::Remove => (done.restorable && !self.in_this_run(done, PartitionChange::Add))
                .then(|| back(PartitionChange::Add)),
        }
    }

    /// Returns true if a step of this run made this change to the same partition: one that came and went leaves nothing to undo.
    fn in_this_run(&self, done: &PlannedMove, change: PartitionChange) -> bool {
        done.step.is_some()
            && self.done.iter().any(|other| {
                other.change == change
                    && other.step.is_some()
                    && (&other.gpu, &other.partition) == (&done.gpu, &done.partition)
            })
    }

    fn undo_failed(&mut self, sent: &Move, cause: &LayoutFailureCause) {
        let (expected, got) = match &sent.action {
            MoveAction::Add { expected } => (expected.clone(), None),
            MoveAction::Remove { id } => (None, Some(id.clone())),
        };
        self.degraded.push(Degraded {
            gpu: sent.gpu.clone(),
            partition: sent.partition.clone(),
            expected,
            got,
            why: Some(cause.to_string()),
        });
        self.attempts = 0;
        self.next += 1;
        self.over = self.next == self.ahead.len();
    }

    /// Returns the outcome, once [`Execution::next`] returns `None`.
    pub fn outcome(self) -> ExecutionOutcome {
        let record = match &self.cause {
            None => self.of_layout(),
            Some(_) => self.of_before(),
        };
        ExecutionOutcome {
            record,
            degraded: self.degraded,
            cause: self.cause,
            executed_steps: self.executed_steps,
        }
    }

    fn of_layout(&self) -> Record {
        let id_of = |number: usize, step: &ResolvedStep| match step.change {
            PartitionChange::Add => self.ids.get(&number).cloned(),
            PartitionChange::Remove => {
                self.made_by(Some(&step.partition), Some(number)).or_else(|| self.ids.get(&number).cloned())
            }
        };
        let steps = self.steps.iter().enumerate().filter_map(|(number, step)| {
            Some(RecordedStep {
                gpu: step.gpu.clone(),
                partition: step.partition.clone(),
                chunks: step.chunks,
                change: step.change,
                id: id_of(number, step)?,
            })
        });
        Record(steps.collect())
    }

    /// Returns the record of before, with the IDs under which its partitions came back.
    fn of_before(&self) -> Record {
        let mut record = self.base.clone();
        for degraded in &self.degraded {
            let (Some(name), Some(expected), Some(got)) =
                (&degraded.partition, &degraded.expected, &degraded.got)
            else {
                continue;
            };
            let same = |step: &&mut RecordedStep| {
                step.partition == *name && step.gpu == degraded.gpu && step.id == *expected
            };
            for step in record.0.iter_mut().filter(same) {
                step.id = got.clone();
            }
        }
        record
    }
}

enum MoveVerdict {
    Done { id: PartitionId },
    Again,
    Failed(LayoutFailureCause),
}

/// Partitions that appeared and disappeared between two lists.
struct Changes {
    came: Vec<(GpuUuid, PartitionId)>,
    went: Vec<(GpuUuid, PartitionId)>,
}

impl Changes {
    fn words(&self, command: &str) -> String {
        let list = |what: &[(GpuUuid, PartitionId)]| {
            what.iter().map(|(gpu, id)| format!("{gpu}/{id}")).collect::<Vec<_>>().join(", ")
        };
        match (self.came.is_empty(), self.went.is_empty()) {
            (false, true) => format!("with `{command}` came {}", list(&self.came)),
            (true, _) => format!("with `{command}` went {}", list(&self.went)),
            (false, false) => {
                format!("with `{command}` came {} and went {}", list(&self.came), list(&self.went))
            }
        }
    }
}

fn compare(before: &Listing, now: &Listing) -> Changes {
    let missing = |from: &Listing, other: &Listing| {
        from.iter()
            .flat_map(|(gpu, ids)| ids.keys().map(move |id| (gpu, id)))
            .filter(|(gpu, id)| !other.get(*gpu).is_some_and(|ids| ids.contains_key(*id)))
            .map(|(gpu, id)| (gpu.clone(), id.clone()))
            .collect::<Vec<_>>()
    };
    Changes { came: missing(now, before), went: missing(before, now) }
}

fn listing(present: &[GpuPartitions]) -> Listing {
    present
        .iter()
        .map(|gpu| {
            let ids = gpu
                .partitions
                .iter()
                .map(|listed| (listed.id.clone(), (listed.chunks, listed.sms)))
                .collect();
            (gpu.gpu.clone(), ids)
        })
        .collect()
}
