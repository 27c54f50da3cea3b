//! Strategies and a runner for the property tests of parsers; compiled for tests only.
//!
//! An input is random bytes, words of the grammar in any order, or a sample (a recording, most often) with a few edits. One
//! input in [`LONG_EVERY`] is as long as the longest that its parser gets, so that a parser whose time grows with the square of
//! its input is found. `PROPTEST_CASES` says how many inputs a test gets, and `PROPTEST_RNG_SEED` which ones.
//! `docs/fuzzing.md` lists the parsers.

use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngSeed, TestRunner};

/// One input of this many is a long one.
const LONG_EVERY: u32 = 128;
/// The most processor time that any input may take, in any build: many times the time of the slowest, and far below the time of
/// quadratic work on [`LONGEST`] bytes.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// The longest reply, piece of a log and body that any parser gets, in bytes.
const LONGEST: usize = 1 << 20;
/// Replacements of numbers in samples.
const NUMBERS: [&str; 16] = [
    "0",
    "-1",
    "-0",
    "+1",
    "007",
    "1e9",
    "0x10",
    "1.5",
    "255",
    "65536",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775808",
    "18446744073709551616",
    "99999999999999999999999999",
];
/// Bytes that parsers trip over.
const ODD: [&[u8]; 11] = [
    b"\0",
    b" ",
    b"\n",
    b"\r\n",
    b"\xff",
    b"\xc3",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xa8",
    b"\x1b[2J",
    b"  ",
    b"\t",
];

/// Bytes for a parser, shown as text.
#[derive(Clone)]
struct Input(Vec<u8>);

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes: b\"{}\"", self.0.len(), self.0[..self.0.len().min(2000)].escape_ascii())
    }
}

/// Inputs of a parser: samples of what it accepts, words of its grammar, and the length of the longest.
pub(crate) struct Inputs {
    samples: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
    longest: usize,
}

impl Inputs {
    /// Makes inputs like these samples, and inputs of these words.
    pub(crate) fn new<S: AsRef<[u8]>>(samples: impl IntoIterator<Item = S>, words: &[&str]) -> Self {
        let samples = samples.into_iter().map(|sample| sample.as_ref().to_vec()).collect();
        Self { samples, words: words.iter().map(|word| word.as_bytes().to_vec()).collect(), longest: LONGEST }
    }

    /// Limits the length of the longest inputs, for a parser whose caller has such a limit.
    pub(crate) fn at_most(mut self, bytes: usize) -> Self {
        self.longest = bytes;
        self
    }

    /// Checks `property` with every input. The property panics where it does not hold, and returns true if the parser accepted the input: a
    /// test whose inputs are all refused has parsed nothing.
    pub(crate) fn check(&self, property: impl Fn(&[u8]) -> bool) {
        let accepted = Cell::new(false);
        let in_time = |Input(bytes): &Input| {
            let before = processor_time();
            accepted.set(property(bytes) || accepted.get());
            let took = processor_time().saturating_sub(before);
            assert!(took <= TIME_LIMIT, "takes {took:?}");
        };
        let cases = Config::default().cases;
        run(cases, self.ordinary(), in_time);
        run(cases.div_ceil(LONG_EVERY), self.long(), in_time);
        assert!(accepted.get(), "every input was refused");
    }

    /// Checks as [`Inputs::check`] does, for parsers of text: bytes that are no UTF-8 come as U+FFFD.
    pub(crate) fn check_text(&self, property: impl Fn(&str) -> bool) {
        self.check(|input| property(&String::from_utf8_lossy(input)));
    }

    fn ordinary(&self) -> impl Strategy<Value = Input> + use<> {
        let edits = vec((any::<Index>(), self.edit()), 0..6);
        let edited = (select(self.samples.clone()), edits).prop_map(|(mut input, edits)| {
            for (at, edit) in edits {
                edit.apply(&mut input, at);
            }
            input
        });
        let words = vec(self.word(), 0..24).prop_map(|words| words.concat());
        let longest = self.longest;
        prop_oneof![1 => vec(any::<u8>(), 0..200), 1 => words, 6 => edited].prop_map(move |mut input| {
            input.truncate(longest);
            Input(input)
        })
    }

    fn long(&self) -> impl Strategy<Value = Input> + use<> {
        let longest = self.longest;
        (self.ordinary(), any::<[Index; 2]>(), any::<Index>()).prop_map(
            move |(Input(mut input), piece, at)| {
                let piece = input[range(piece, input.len())].to_vec();
                if !piece.is_empty() {
                    let at = at.index(input.len() + 1);
                    let filler = piece.into_iter().cycle().take(longest.saturating_sub(input.len()));
                    input.splice(at..at, filler);
                }
                Input(input)
            },
        )
    }

    fn word(&self) -> impl Strategy<Value = Vec<u8>> + use<> {
        let odd = select(&ODD[..]).prop_map(<[u8]>::to_vec);
        let number = select(&NUMBERS[..]).prop_map(|number| number.as_bytes().to_vec());
        prop_oneof![1 => vec(any::<u8>(), 0..4), 1 => number, 1 => odd, 4 => select(self.words.clone())]
    }

    fn edit(&self) -> impl Strategy<Value = Edit> + use<> {
        let part = (select(self.samples.clone()), any::<[Index; 2]>())
            .prop_map(|(sample, part)| sample[range(part, sample.len())].to_vec());
        let with = prop_oneof![2 => Just(Vec::new()), 4 => self.word(), 2 => part];
        let length = prop_oneof![3 => Just(0), 3 => 1_usize..8, 1 => Just(usize::MAX)];
        prop_oneof![
            6 => (length, with).prop_map(|(length, with)| Edit::Replace { length, with }),
            1 => select(&NUMBERS[..]).prop_map(Edit::Number),
            1 => any::<Index>().prop_map(Edit::SwapLines),
            1 => any::<Index>().prop_map(Edit::RepeatLine),
            1 => Just(Edit::RemoveLine),
        ]
    }
}

/// A change of a sample at some place.
#[derive(Debug, Clone)]
enum Edit {
    /// Overwrites as many bytes with these.
    Replace {
        length: usize,
        with: Vec<u8>,
    },
    /// Overwrites the next number with this.
    Number(&'static str),
    /// Swaps a line with this one.
    SwapLines(Index),
    /// Inserts this line once more.
    RepeatLine(Index),
    RemoveLine,
}

impl Edit {
    fn apply(self, input: &mut Vec<u8>, at: Index) {
        let start = at.index(input.len() + 1);
        match self {
            Self::Replace { length, with } => {
                let end = start.saturating_add(length).min(input.len());
                input.splice(start..end, with);
            }
            Self::Number(number) => {
                let Some(digits) = input[start..].iter().position(u8::is_ascii_digit) else { return };
                let start = start + digits;
                let length = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                input.splice(start..start + length, number.bytes());
            }
            _ if input.is_empty() => {}
            of_lines => {
                let mut lines: Vec<&[u8]> = input.split_inclusive(|byte| *byte == b'\n').collect();
                let count = lines.len();
                let at = at.index(count);
                match of_lines {
                    Self::SwapLines(other) => lines.swap(at, other.index(count)),
                    Self::RepeatLine(other) => lines.insert(at, lines[other.index(count)]),
                    _ => drop(lines.remove(at)),
                }
                *input = lines.concat();
            }
        }
    }
}

fn range(ends: [Index; 2], length: usize) -> Range<usize> {
    let [one, other] = ends.map(|end| end.index(length + 1));
    one.min(other)..one.max(other)
}

/// Checks `property` with values of a strategy: most often that a printed value is read back as it was.
pub(crate) fn values<S: Strategy>(strategy: S, property: impl Fn(&S::Value)) {
    run(Config::default().cases, strategy, property);
}

fn run<S: Strategy>(cases: u32, strategy: S, property: impl Fn(&S::Value)) {
    let mut config = Config { cases, failure_persistence: None, ..Config::default() };
    if config.rng_seed == RngSeed::Random {
        // One seed for all runs, so that two versions of the code are judged by the same inputs.
        config.rng_seed = RngSeed::Fixed(1);
    }
    let checked = TestRunner::new(config).run(&strategy, |value| {
        property(&value);
        Ok(())
    });
    checked.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Returns the processor time of this thread; wall time would count other programs of a busy machine.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("readable");
    Duration::from_nanos(text.split(' ').next().and_then(|word| word.parse().ok()).expect("a time"))
}

mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn parser_that_panics_is_found() {
        let checked = catch_unwind(|| {
            Inputs::new(["GPU-1 5 10"], &["GPU-"]).check(|input| {
                assert!(!input.windows(5).any(|window| window == b"GPU--"), "a planted fault");
                true
            });
        });
        let failure = *checked.expect_err("found").downcast::<String>().expect("a message");
        assert!(failure.contains("a planted fault") && failure.contains("GPU--"), "{failure}");
    }

    #[test]
    fn parser_that_takes_nothing_is_found() {
        assert!(catch_unwind(|| Inputs::new(["x"], &["y"]).check(|_| false)).is_err());
    }

    #[test]
    fn inputs_are_no_longer_than_their_bound() {
        let inputs = Inputs::new(["one\ntwo 17\nthree\n"], &["word"]).at_most(100);
        let seen = Cell::new(0);
        inputs.check(|input| {
            seen.set(seen.get().max(input.len()));
            true
        });
        assert_eq!(seen.get(), 100);
    }
}
