//! Words and shapes that all pages share: states with their tone, amounts with their units, times.

use std::fmt;

use crate::clock::unix_ms;
use crate::domain::audit::Outcome;
use crate::domain::daemon::{Condition, DaemonStatus, Phase};
use crate::domain::event::Severity;
use crate::domain::gpu::ComputeMode;
use crate::domain::layout::status::LayoutState;
use crate::domain::operation::OperationState;
use crate::domain::tenant::EnforcedBy;
use crate::domain::token::TokenState;
use crate::domain::verification::{ComparisonVerdict, VerificationOutcome};

/// How something stands, for the eye: never told by colour alone, since each has a sign of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tone {
    /// Something does not work.
    Bad,
    /// Somebody should know.
    Warn,
    /// On its way.
    Busy,
    /// As it should be.
    Good,
    /// Nothing to say.
    Quiet,
}

impl Tone {
    /// Its class in the style sheet.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Bad => "bad",
            Self::Warn => "warn",
            Self::Busy => "busy",
            Self::Good => "good",
            Self::Quiet => "quiet",
        }
    }
}

/// A word for how something stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    pub(super) word: &'static str,
    pub(super) tone: Tone,
}

const fn state(word: &'static str, tone: Tone) -> State {
    State { word, tone }
}

/// How a daemon stands; `None` is one that nobody drives.
pub(super) fn daemon(status: Option<&DaemonStatus>) -> State {
    match status {
        // Nothing is on its way where somebody else's settings are to stay.
        Some(status) if status.phase == Phase::Applying && status.drift.present => {
            state("drifted", Tone::Warn)
        }
        status => phase(status.map(|status| status.phase)),
    }
}

fn phase(phase: Option<Phase>) -> State {
    match phase {
        None => state("not driven", Tone::Bad),
        Some(Phase::Unknown) => state("not looked at yet", Tone::Busy),
        Some(Phase::Starting) => state("starting", Tone::Busy),
        Some(Phase::Applying) => state("applying", Tone::Busy),
        Some(Phase::Ready) => state("ready", Tone::Good),
        Some(Phase::Wedged) => state("wedged", Tone::Bad),
        Some(Phase::BackOff) => state("waiting to start again", Tone::Warn),
        Some(Phase::CrashLoop) => state("crash loop", Tone::Bad),
        Some(Phase::Stopping) => state("stopping", Tone::Busy),
        Some(Phase::Stopped) => state("stopped", Tone::Quiet),
        Some(Phase::Blocked) => state("blocked", Tone::Bad),
        Some(Phase::Observed) => state("observed", Tone::Good),
        Some(Phase::Absent) => state("absent", Tone::Warn),
    }
}

/// How much an event matters.
pub(super) fn severity(severity: Severity) -> State {
    match severity {
        Severity::Info => state("info", Tone::Quiet),
        Severity::Warning => state("warning", Tone::Warn),
        Severity::Error => state("error", Tone::Bad),
        Severity::Critical => state("critical", Tone::Bad),
    }
}

/// How an operation stands.
pub(super) fn operation(of: OperationState) -> State {
    match of {
        OperationState::Pending => state("waiting", Tone::Busy),
        OperationState::Running => state("running", Tone::Busy),
        OperationState::Succeeded => state("succeeded", Tone::Good),
        OperationState::Failed => state("failed", Tone::Bad),
        OperationState::Cancelled => state("called off", Tone::Quiet),
    }
}

/// What a verification came to.
pub(super) fn verification(of: VerificationOutcome) -> State {
    match of {
        VerificationOutcome::Verified => state("verified", Tone::Good),
        VerificationOutcome::Differs => state("differs", Tone::Bad),
        VerificationOutcome::NotVerified => state("not verified", Tone::Warn),
    }
}

/// Whether what a client saw fits.
pub(super) fn verdict(of: ComparisonVerdict) -> State {
    match of {
        ComparisonVerdict::Holds => state("holds", Tone::Good),
        ComparisonVerdict::Differs => state("differs", Tone::Bad),
        ComparisonVerdict::NotSeen => state("not seen", Tone::Quiet),
    }
}

/// What came of an attempt.
pub(super) fn outcome(of: Outcome) -> State {
    match of {
        Outcome::Done => state("done", Tone::Good),
        Outcome::Refused => state("refused", Tone::Warn),
        Outcome::Failed => state("failed", Tone::Bad),
    }
}

/// Whether a token lets anybody in.
pub(super) fn token(of: TokenState) -> State {
    match of {
        TokenState::Active => state("active", Tone::Good),
        TokenState::Expired => state("expired", Tone::Quiet),
        TokenState::Revoked => state("revoked", Tone::Quiet),
    }
}

/// How a layout stands on a daemon.
pub(super) fn layout(of: LayoutState) -> State {
    match of {
        LayoutState::Pending => state("pending", Tone::Busy),
        LayoutState::Applying => state("applying", Tone::Busy),
        LayoutState::Applied => state("applied", Tone::Good),
        LayoutState::Drifted => state("drifted", Tone::Warn),
        LayoutState::Degraded => state("degraded", Tone::Warn),
        LayoutState::Failed => state("failed", Tone::Bad),
    }
}

/// Whether something is ready, by its condition `Ready`.
pub(super) fn ready(conditions: &[Condition]) -> State {
    match conditions.iter().find(|condition| condition.kind == "Ready") {
        Some(ready) if ready.status => state("ready", Tone::Good),
        Some(ready) if ready.reason == "AwaitingReadBack" => state("applying", Tone::Busy),
        Some(_) => state("not ready", Tone::Warn),
        None => state("unknown", Tone::Quiet),
    }
}

/// What makes a value hold; `None` where that is not known yet.
pub(super) fn enforced_by(of: Option<EnforcedBy>) -> State {
    match of {
        Some(EnforcedBy::Server) => state("the server", Tone::Good),
        Some(EnforcedBy::Environment) => state("the environment alone", Tone::Warn),
        Some(EnforcedBy::None) => state("nothing: there is no limit", Tone::Quiet),
        None => state("not known", Tone::Quiet),
    }
}

/// A number of bytes, short for the eye and whole on hover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Amount(pub(super) u64);

const UNITS: [(u64, &str); 3] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")];

impl Amount {
    /// To the byte.
    pub(super) fn exact(self) -> String {
        format!("{} bytes", grouped(self.0))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((unit, name)) = UNITS.into_iter().find(|(unit, _)| self.0 >= *unit) else {
            return match self.0 {
                0 => f.write_str("0 MiB"),
                bytes if bytes < 1 << 10 => write!(f, "{bytes} B"),
                bytes => write!(f, "{} KiB", bytes >> 10),
            };
        };
        // Rounded to a tenth, in integers: a limit of 4 GiB must not read as one of 3.9.
        let tenths = (u128::from(self.0) * 10 + u128::from(unit) / 2) / u128::from(unit);
        match (tenths / 10, tenths % 10) {
            (whole, 0) => write!(f, "{whole} {name}"),
            (whole, tenth) => write!(f, "{whole}.{tenth} {name}"),
        }
    }
}

/// A number with a thin space between its thousands.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 2);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push('\u{2009}');
        }
        grouped.push(digit);
    }
    grouped
}

/// A moment: in UTC as it leaves here, and in the reader's zone where a script runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment(pub(super) i64);

impl Moment {
    fn timestamp(self) -> jiff::Timestamp {
        jiff::Timestamp::from_millisecond(self.0).unwrap_or_default()
    }

    /// For programs, and exactly: `2026-11-22T06:10:05.123Z`.
    pub(super) fn machine(self) -> String {
        self.timestamp().strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.timestamp().strftime("%Y-%m-%d %H:%M:%S UTC"))
    }
}

/// How long something took or takes, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lasting(pub(super) i64);

impl Lasting {
    /// From one moment to another, which is now where it is not over.
    pub(super) fn between(from: i64, to: Option<i64>) -> Self {
        Self(to.unwrap_or_else(unix_ms).saturating_sub(from).max(0))
    }

    /// To the millisecond.
    pub(super) fn exact(self) -> String {
        format!("{} ms", grouped(self.0.unsigned_abs()))
    }
}

impl fmt::Display for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1000;
        let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
        match (days, hours, minutes) {
            (0, 0, 0) if self.0 < 1000 => write!(f, "{} ms", self.0),
            (0, 0, 0) if seconds < 10 => write!(f, "{}.{} s", seconds, self.0 % 1000 / 100),
            (0, 0, 0) => write!(f, "{seconds} s"),
            (0, 0, _) => write!(f, "{minutes} min {:02} s", seconds % 60),
            (0, _, _) => write!(f, "{hours} h {minutes:02} min"),
            _ => write!(f, "{days} d {hours:02} h"),
        }
    }
}

/// A part of a whole on a bar, in percent of the bar's length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Share {
    pub(super) from: f64,
    pub(super) length: f64,
}

/// Memory on one bar: what is used, what is promised, and all there is. The bar is as long as the greatest of them, so
/// that what is promised beyond the whole can be seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gauge {
    pub(super) used: Amount,
    pub(super) promised: Amount,
    pub(super) total: Amount,
}

impl Gauge {
    pub(super) fn new(used: u64, promised: u64, total: u64) -> Self {
        Self { used: Amount(used), promised: Amount(promised), total: Amount(total) }
    }

    /// Whether more is promised than there is.
    pub(super) fn is_overcommitted(&self) -> bool {
        self.promised.0 > self.total.0
    }

    /// How much more is promised than there is.
    pub(super) fn over(&self) -> Amount {
        Amount(self.promised.0.saturating_sub(self.total.0))
    }

    pub(super) fn used_share(&self) -> Share {
        self.share(0, self.used.0)
    }

    pub(super) fn promised_share(&self) -> Share {
        self.share(0, self.promised.0.min(self.total.0))
    }

    /// The part that is promised and not there.
    pub(super) fn over_share(&self) -> Share {
        self.share(self.total.0, self.over().0)
    }

    /// Where the whole ends on the bar.
    pub(super) fn end(&self) -> f64 {
        self.share(0, self.total.0).length
    }

    #[allow(clippy::cast_precision_loss, reason = "a place on a bar")]
    fn share(&self, from: u64, length: u64) -> Share {
        let longest = self.total.0.max(self.promised.0).max(self.used.0).max(1) as f64;
        let percent = |bytes: u64| (bytes as f64 / longest * 10_000.0).round() / 100.0;
        Share { from: percent(from), length: percent(length) }
    }
}

/// A compute mode, as `nvidia-smi` words it.
pub(super) fn compute_mode(mode: ComputeMode) -> &'static str {
    match mode {
        ComputeMode::Default => "default",
        ComputeMode::ExclusiveProcess => "exclusive process",
        ComputeMode::Prohibited => "prohibited",
    }
}

/// A word or a dash, for what is not known.
pub(super) fn or_dash<T: fmt::Display>(value: Option<T>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_rounded_to_a_tenth_and_never_lose_their_unit() {
        for (bytes, shown) in [
            (0, "0 MiB"),
            (512, "512 B"),
            (2048, "2 KiB"),
            (1 << 20, "1 MiB"),
            (512 << 20, "512 MiB"),
            (4 << 30, "4 GiB"),
            ((4 << 30) - 1, "4 GiB"),
            (3_758_096_384, "3.5 GiB"),
            (150_109_880_320, "139.8 GiB"),
            (1 << 40, "1 TiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(Amount(bytes).to_string(), shown, "{bytes}");
        }
        assert_eq!(Amount(4_294_967_296).exact(), "4\u{2009}294\u{2009}967\u{2009}296 bytes");
    }

    #[test]
    fn moments_are_told_in_utc() {
        let moment = Moment(1_795_328_405_123);
        assert_eq!(moment.to_string(), "2026-11-22 06:20:05 UTC");
        assert_eq!(moment.machine(), "2026-11-22T06:20:05.123Z");
        assert_eq!(Moment(i64::MAX).to_string(), "1970-01-01 00:00:00 UTC");
    }

    #[test]
    fn a_time_that_passed_is_told_as_exactly_as_its_length_needs() {
        for (ms, shown) in [
            (0, "0 ms"),
            (840, "840 ms"),
            (1_840, "1.8 s"),
            (9_999, "9.9 s"),
            (10_000, "10 s"),
            (185_000, "3 min 05 s"),
            (3_600_000, "1 h 00 min"),
            (90_000_000, "1 d 01 h"),
        ] {
            assert_eq!(Lasting(ms).to_string(), shown);
        }
        assert_eq!(Lasting(12_345).exact(), "12\u{2009}345 ms");
        assert_eq!(Lasting::between(5_000, Some(4_000)), Lasting(0), "a clock that was set back");
    }

    #[test]
    fn what_is_promised_beyond_the_whole_stands_behind_its_end() {
        let gauge = Gauge::new(25, 150, 100);
        assert!(gauge.is_overcommitted());
        assert_eq!(gauge.over(), Amount(50));
        assert!((gauge.end() - 66.67).abs() < 1e-9);
        assert_eq!(gauge.used_share(), Share { from: 0.0, length: 16.67 });
        assert_eq!(gauge.promised_share(), Share { from: 0.0, length: 66.67 });
        assert_eq!(gauge.over_share(), Share { from: 66.67, length: 33.33 });
        let empty = Gauge::new(0, 0, 0);
        assert_eq!(empty.used_share(), Share { from: 0.0, length: 0.0 });
    }
}
