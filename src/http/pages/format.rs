//! Values as pages show them: badges for states, amounts with their units, times.

use std::fmt;

use crate::domain::DeviceMemoryLimit;
use crate::domain::condition::{self, Condition, ReasonOutlook};
use crate::domain::daemon::{DaemonStatus, Phase};
use crate::domain::gpu::ComputeMode;
use crate::domain::operation::OperationState;
use crate::domain::tenant::EnforcedBy;
pub(super) use crate::words::Tone;

/// A state as a page shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Badge {
    pub(super) word: &'static str,
    pub(super) tone: Tone,
}

impl Badge {
    pub(super) const fn new(word: &'static str, tone: Tone) -> Self {
        Self { word, tone }
    }

    /// Returns the badge of a state, whose word decides the tone.
    pub(super) fn of(word: &'static str) -> Self {
        let tone = Tone::of(word);
        debug_assert!(tone.is_some(), "{word}");
        Self { word, tone: tone.unwrap_or(Tone::Quiet) }
    }

    /// Returns the word as people write it.
    pub(super) fn words(&self) -> String {
        self.word.replace('_', " ")
    }
}

/// Returns the badge for the state of a daemon; `None` stands for one that the manager does not manage at present.
pub(super) fn daemon(status: Option<&DaemonStatus>) -> Badge {
    Badge::of(match status {
        None => "not_known",
        // An observed daemon's settings are not expected to change.
        Some(status) if status.phase == Phase::Applying && status.drift.present => "drifted",
        Some(status) if status.phase == Phase::Unknown => "not_polled_yet",
        Some(status) if status.phase == Phase::BackOff => "waiting_to_start_again",
        Some(status) => status.phase.as_str(),
    })
}

/// Returns the badge for the state of an operation.
pub(super) fn operation(of: OperationState) -> Badge {
    Badge::of(if of == OperationState::Pending { "waiting" } else { of.as_str() })
}

/// Returns the badge for readiness, according to the condition `Ready`.
pub(super) fn ready(conditions: &[Condition]) -> Badge {
    match condition::ready(conditions) {
        Some(ready) if ready.status => Badge::of("ready"),
        Some(ready) if ready.reason.outlook() == ReasonOutlook::Passes => Badge::of("applying"),
        Some(_) => Badge::new("not ready", Tone::Warn),
        None => Badge::of("unknown"),
    }
}

/// Returns the badge for the enforcer of a value; `None` stands for an unknown one.
pub(super) fn enforced_by(of: Option<EnforcedBy>) -> Badge {
    match of {
        Some(EnforcedBy::Server) => Badge::new("the server", Tone::Good),
        Some(EnforcedBy::Environment) => Badge::new("the environment only", Tone::Warn),
        Some(EnforcedBy::None) => Badge::new("no limit", Tone::Quiet),
        None => Badge::of("unknown"),
    }
}

/// A number of bytes, rounded, and exact on hover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Amount(pub(super) u64);

/// The amounts of several GPUs, each once where they follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Amounts(Vec<Amount>);

impl Amounts {
    /// The sizes of a memory limit.
    pub(super) fn of(limit: &DeviceMemoryLimit) -> Self {
        let mut amounts: Vec<Amount> = limit.sizes().map(|limit| Amount(limit.bytes())).collect();
        amounts.dedup();
        Self(amounts)
    }

    /// The exact numbers of bytes.
    pub(super) fn exact(&self) -> String {
        self.0.iter().map(|amount| amount.exact()).collect::<Vec<_>>().join(" / ")
    }
}

impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amounts: Vec<String> = self.0.iter().map(Amount::to_string).collect();
        f.write_str(&amounts.join(" / "))
    }
}

const UNITS: [(u64, &str); 3] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")];

impl Amount {
    /// The exact number of bytes.
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

/// A number with thin spaces between thousands.
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

/// A time: sent in UTC, and shown in the reader's time zone by a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment(pub(super) i64);

impl Moment {
    fn timestamp(self) -> jiff::Timestamp {
        jiff::Timestamp::from_millisecond(self.0).unwrap_or_default()
    }

    /// Exact, for programs: `2026-11-22T06:10:05.123Z`.
    pub(super) fn machine(self) -> String {
        self.timestamp().strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.timestamp().strftime("%Y-%m-%d %H:%M:%S UTC"))
    }
}

/// A line of an MPS log with its timestamp, in the host's time zone.
pub(super) struct Stamped<'a> {
    pub(super) before: &'a str,
    /// The time as written in the log.
    pub(super) text: &'a str,
    pub(super) at: Moment,
    pub(super) after: &'a str,
}

impl<'a> Stamped<'a> {
    /// `[2026-11-22 06:20:05.123 Control  4711] …`; `None` for a line without a time.
    pub(super) fn of(line: &'a str) -> Option<Self> {
        const LENGTH: usize = "2026-11-22 06:20:05.123".len();
        let rest = line.strip_prefix('[')?;
        let (text, after) = rest.split_at_checked(LENGTH)?;
        let at: jiff::civil::DateTime = text.parse().ok()?;
        let at = at.to_zoned(jiff::tz::TimeZone::system()).ok()?.timestamp().as_millisecond();
        Some(Self { before: &line[..1], text, at: Moment(at), after })
    }
}

/// A duration in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lasting(pub(super) i64);

impl Lasting {
    /// Creates the duration from one time to another.
    pub(super) fn between(from: i64, to: i64) -> Self {
        Self(to.saturating_sub(from).max(0))
    }

    /// Returns the exact duration in milliseconds.
    pub(super) fn exact(self) -> String {
        format!("{} ms", grouped(self.0.unsigned_abs()))
    }
}

impl fmt::Display for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded, as in the sentences of incidents.
        let (tenths, seconds) = (self.0.saturating_add(50) / 100, self.0.saturating_add(500) / 1000);
        let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
        match (days, hours, minutes) {
            (0, 0, 0) if self.0 < 1000 => write!(f, "{} ms", self.0),
            (0, 0, 0) if tenths < 100 => write!(f, "{}.{} s", tenths / 10, tenths % 10),
            (0, 0, 0) => write!(f, "{seconds} s"),
            (0, 0, _) => write!(f, "{minutes} min {:02} s", seconds % 60),
            (0, _, _) => write!(f, "{hours} h {minutes:02} min"),
            _ => write!(f, "{days} d {hours:02} h"),
        }
    }
}

/// Memory on one bar: used, sum of the limits, and total. The bar is as long as the largest, so that limits beyond the total are
/// visible.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gauge {
    pub(super) used: Amount,
    pub(super) limits: Amount,
    pub(super) total: Amount,
    /// Most that the limits may add up to, if that differs from the total.
    pub(super) capacity: Option<Amount>,
}

impl Gauge {
    pub(super) fn new(used: u64, limits: u64, total: u64) -> Self {
        Self { used: Amount(used), limits: Amount(limits), total: Amount(total), capacity: None }
    }

    /// Adds the most that the limits may add up to.
    #[must_use]
    pub(super) fn with_capacity(self, capacity: Option<u64>) -> Self {
        let capacity = capacity.map(Amount).filter(|capacity| *capacity != self.total);
        Self { capacity, ..self }
    }

    /// Returns true if the limits add up to more than the total.
    pub(super) fn is_overcommitted(&self) -> bool {
        self.limits.0 > self.total.0
    }

    /// The sum of the limits as far as there is memory for it.
    pub(super) fn limits_within(&self) -> Amount {
        self.limits.min(self.total)
    }

    /// Returns the amount by which the sum of the limits exceeds the total.
    pub(super) fn over(&self) -> Amount {
        Amount(self.limits.0.saturating_sub(self.total.0))
    }

    /// The length of an amount on the bar, in percent.
    #[allow(clippy::cast_precision_loss, reason = "a place on a bar")]
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "as templates call it")]
    pub(super) fn share(&self, of: &Amount) -> f64 {
        let longest = self.total.0.max(self.limits.0).max(self.used.0).max(1) as f64;
        (of.0 as f64 / longest * 10_000.0).round() / 100.0
    }
}

/// A compute mode, as `nvidia-smi` calls it.
pub(super) fn compute_mode(mode: ComputeMode) -> String {
    mode.as_str().replace('_', " ")
}

/// A value, or other words if there is none.
pub(super) fn or(otherwise: &str, value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| otherwise.to_owned(), |value| value.to_string())
}

/// A value, or a dash if it is unknown.
pub(super) fn or_dash(value: Option<impl fmt::Display>) -> String {
    or("–", value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::audit::AuditOutcome;
    use crate::domain::event::Severity;
    use crate::domain::layout::status::LayoutState;
    use crate::domain::token::TokenState;
    use crate::domain::verification::{ComparisonVerdict, VerificationOutcome};

    #[test]
    fn amounts_are_rounded_to_a_tenth() {
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
    fn times_are_in_utc() {
        let moment = Moment(1_795_328_405_123);
        assert_eq!(moment.to_string(), "2026-11-22 06:20:05 UTC");
        assert_eq!(moment.machine(), "2026-11-22T06:20:05.123Z");
        assert_eq!(Moment(i64::MAX).to_string(), "1970-01-01 00:00:00 UTC");
    }

    #[test]
    fn log_line_is_split_after_its_time() {
        let line = "[2026-11-22 06:20:05.123 Control  4711] Starting";
        let stamped = Stamped::of(line).expect("a time");
        assert_eq!(format!("{}{}{}", stamped.before, stamped.text, stamped.after), line);
        assert_eq!(stamped.at.0 % 60_000, 5_123, "zones differ by whole minutes");
        for other in [
            "",
            "[",
            "NEW SERVER 4711: Ready",
            "[2026-11-22 06:20:05.1é3 Control 4711]",
            "[2026-13-22 06:20:05.123 x",
        ] {
            assert!(Stamped::of(other).is_none(), "{other}");
        }
    }

    #[test]
    fn durations_have_adaptive_precision() {
        for (ms, shown) in [
            (0, "0 ms"),
            (840, "840 ms"),
            (1_840, "1.8 s"),
            (1_860, "1.9 s"),
            (9_940, "9.9 s"),
            (9_960, "10 s"),
            (10_600, "11 s"),
            (59_700, "1 min 00 s"),
            (185_000, "3 min 05 s"),
            (3_600_000, "1 h 00 min"),
            (90_000_000, "1 d 01 h"),
        ] {
            assert_eq!(Lasting(ms).to_string(), shown);
        }
        assert_eq!(Lasting(12_345).exact(), "12\u{2009}345 ms");
        assert_eq!(Lasting::between(5_000, 4_000), Lasting(0), "a clock that was set back");
    }

    #[test]
    fn overcommitted_memory_extends_the_bar() {
        let gauge = Gauge::new(25, 150, 100);
        assert!(gauge.is_overcommitted());
        assert_eq!(gauge.over(), Amount(50));
        let shares =
            [gauge.total, gauge.used, gauge.limits_within(), gauge.over()].map(|of| gauge.share(&of));
        assert_eq!(shares.map(|share| share.to_string()), ["66.67", "16.67", "66.67", "33.33"]);
        let empty = Gauge::new(0, 0, 0);
        assert!(empty.share(&empty.used).abs() < 1e-9);
    }

    #[test]
    fn every_state_has_a_tone() {
        let words = [
            &Phase::ALL.map(Phase::as_str)[..],
            &Severity::ALL.map(Severity::as_str),
            &OperationState::ALL.map(OperationState::as_str),
            &VerificationOutcome::ALL.map(VerificationOutcome::as_str),
            &ComparisonVerdict::ALL.map(ComparisonVerdict::as_str),
            &AuditOutcome::ALL.map(AuditOutcome::as_str),
            &TokenState::ALL.map(TokenState::as_str),
            &LayoutState::ALL.map(LayoutState::as_str),
        ];
        // These have words of their own.
        let words = words.concat().into_iter().filter(|word| *word != "back_off");
        for word in words {
            assert_eq!(Badge::of(word).word, word);
        }
        assert_eq!(Badge::of("crash_loop").words(), "crash loop");
    }
}
