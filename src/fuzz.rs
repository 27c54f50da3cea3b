//! Inputs for parsers of what comes from outside, at whatever volume is asked for; compiled for tests only.
//!
//! An input is random bytes, words of the grammar in any order, or a sample (a recording, most often) with a few
//! mutations. `MPS_MANAGER_FUZZ` says how many inputs a test gets and `MPS_MANAGER_SEED` which; an input that a property
//! does not hold for is made as short as it goes and shown with its seed. `docs/fuzzing.md` lists the parsers.
//!
//! Why not proptest or bolero: a value tree or a driver for each input costs more than most of these parsers do, and at ten
//! million inputs for each parser that is hours. proptest stays where an input has structure that is worth shrinking.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use fastrand::Rng;

/// Inputs of a test unless `MPS_MANAGER_FUZZ` says otherwise.
const INPUTS: u64 = 4000;
/// One input of this many is made long, and a few of the first ones, so that a parser whose time grows with the square of
/// its input is found.
const RARELY: u64 = 20_000;
/// How long a long input is, in bytes: as long as the longest reply, piece of a log and body that any parser gets.
const LONG: usize = 1 << 20;
/// The most processor time that any input may take, in any build.
///
/// Many times what the slowest takes, and far below what quadratic work on [`LONG`] bytes would.
const PATIENCE: Duration = Duration::from_secs(10);
/// What numbers are replaced by.
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
const ODD: [&[u8]; 10] =
    [b"\0", b"\n", b"\r\n", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\x1b[2J", b"  ", b"\t"];

/// What inputs are made of.
pub(crate) struct Inputs {
    samples: Vec<Vec<u8>>,
    words: Vec<String>,
    long: usize,
}

impl Inputs {
    /// Inputs like these samples, and made of these words.
    pub(crate) fn new<S: AsRef<[u8]>>(samples: impl IntoIterator<Item = S>, words: &[&str]) -> Self {
        let samples: Vec<Vec<u8>> = samples.into_iter().map(|sample| sample.as_ref().to_vec()).collect();
        assert!(!samples.is_empty(), "mutations need something to begin with");
        Self { samples, words: words.iter().map(ToString::to_string).collect(), long: LONG }
    }

    /// The same with the longest inputs no longer than that: whoever hands the parser its input has such a bound.
    pub(crate) fn at_most(mut self, bytes: usize) -> Self {
        self.long = bytes;
        self
    }

    /// Holds `property` to every input. It panics where it does not hold, and says whether the input was taken for good:
    /// a test whose inputs are all refused, or all taken, has shown half of nothing.
    pub(crate) fn check(&self, property: impl Fn(&[u8]) -> bool) {
        run(|number, rng| self.make(number, rng), shorter, |input| show(input), |input| property(input));
    }

    /// As [`Inputs::check`], for parsers of text: bytes that are none come as U+FFFD.
    pub(crate) fn check_text(&self, property: impl Fn(&str) -> bool) {
        self.check(|input| property(&String::from_utf8_lossy(input)));
    }

    fn make(&self, number: u64, rng: &mut Rng) -> Vec<u8> {
        let mut input = match rng.u8(..8) {
            0 => bytes(rng, 200),
            1 => {
                let mut input = Vec::new();
                for _ in 0..rng.usize(..24) {
                    self.word(rng, &mut input);
                }
                input
            }
            // As it is: what follows a sample that was taken is more than what follows one that was not.
            2 => self.sample(rng).to_vec(),
            _ => {
                let mut input = self.sample(rng).to_vec();
                for _ in 0..rng.usize(1..6) {
                    self.mutate(rng, &mut input);
                }
                input
            }
        };
        if (number.is_multiple_of(RARELY) || (number < INPUTS && number.is_multiple_of(500)))
            && !input.is_empty()
        {
            let piece = range(rng, input.len());
            let piece = if piece.is_empty() { input.clone() } else { input[piece].to_vec() };
            let at = rng.usize(..=input.len());
            let tail = input.split_off(at);
            while input.len() + tail.len() < self.long {
                input.extend_from_slice(&piece);
            }
            input.extend(tail);
        }
        input.truncate(self.long);
        input
    }

    fn sample(&self, rng: &mut Rng) -> &[u8] {
        &self.samples[rng.usize(..self.samples.len())]
    }

    fn word(&self, rng: &mut Rng, input: &mut Vec<u8>) {
        match rng.u8(..8) {
            0 => input.extend(bytes(rng, 4)),
            1 => input.extend_from_slice(NUMBERS[rng.usize(..NUMBERS.len())].as_bytes()),
            2 => input.extend_from_slice(ODD[rng.usize(..ODD.len())]),
            3 => input.push(b' '),
            _ if self.words.is_empty() => input.push(rng.u8(b' '..=b'~')),
            _ => input.extend_from_slice(self.words[rng.usize(..self.words.len())].as_bytes()),
        }
    }

    fn mutate(&self, rng: &mut Rng, input: &mut Vec<u8>) {
        let at = rng.usize(..=input.len());
        match rng.u8(..10) {
            0 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
            1 if at < input.len() => input[at] = rng.u8(b' '..=b'~'),
            2 => drop(input.drain(range(rng, input.len()))),
            3 => {
                let piece = input[range(rng, input.len())].to_vec();
                input.splice(at..at, piece);
            }
            4 => input.truncate(at),
            5 => {
                let other = self.sample(rng);
                let piece = other[range(rng, other.len())].to_vec();
                input.splice(range(rng, input.len()), piece);
            }
            6 => number(rng, input),
            7 => lines(rng, input),
            _ => {
                let mut word = Vec::new();
                self.word(rng, &mut word);
                input.splice(at..at, word);
            }
        }
    }
}

/// Holds `property` to values that `make` makes of random numbers: what is printed is read back, most often.
pub(crate) fn values<T: std::fmt::Debug>(make: impl Fn(&mut Rng) -> T, property: impl Fn(&T)) {
    let holds = |value: &T| {
        property(value);
        // Nothing here is to be refused.
        true
    };
    run(|_, rng| make(rng), |_, _| None, |value| format!("{value:?}"), holds);
}

/// Up to `most` random bytes.
pub(crate) fn bytes(rng: &mut Rng, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; rng.usize(..=most)];
    rng.fill(&mut bytes);
    bytes
}

/// Up to `most` printable characters, each of them allowed by `which`.
pub(crate) fn text(rng: &mut Rng, most: usize, which: impl Fn(char) -> bool) -> String {
    let length = rng.usize(..=most);
    std::iter::repeat_with(|| if rng.u8(..16) == 0 { rng.char('¡'..='ￜ') } else { rng.char(' '..='~') })
        .filter(|letter| which(*letter))
        .take(length)
        .collect()
}

fn range(rng: &mut Rng, length: usize) -> Range<usize> {
    let (one, other) = (rng.usize(..=length), rng.usize(..=length));
    // Most pieces are short.
    let end = if rng.bool() { one.max(other) } else { (one.min(other) + 8).min(length) };
    one.min(other)..end
}

/// Replaces one number.
fn number(rng: &mut Rng, input: &mut Vec<u8>) {
    let from = rng.usize(..=input.len());
    let Some(start) = input[from..].iter().position(u8::is_ascii_digit) else { return };
    let start = from + start;
    let length = input[start..].iter().take_while(|b| b.is_ascii_digit()).count();
    let other = NUMBERS[rng.usize(..NUMBERS.len())].bytes();
    input.splice(start..start + length, other);
}

/// Puts one line where another one is, or takes it away.
fn lines(rng: &mut Rng, input: &mut Vec<u8>) {
    let mut all: Vec<&[u8]> = input.split_inclusive(|b| *b == b'\n').collect();
    if all.len() < 2 {
        return;
    }
    let (one, other) = (rng.usize(..all.len()), rng.usize(..all.len()));
    match rng.u8(..3) {
        0 => all.swap(one, other),
        1 => drop(all.remove(one)),
        _ => all.insert(one, all[other]),
    }
    *input = all.concat();
}

/// Runs one test of this module.
fn run<T>(
    make: impl Fn(u64, &mut Rng) -> T,
    shorter: impl Fn(&T, usize) -> Option<Vec<T>>,
    show: impl Fn(&T) -> String,
    property: impl Fn(&T) -> bool,
) {
    let inputs = setting("MPS_MANAGER_FUZZ").unwrap_or(INPUTS);
    let seed = setting("MPS_MANAGER_SEED").unwrap_or(1);
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let holds = |input: &T| catch_unwind(AssertUnwindSafe(|| property(input)));
    let (started, mut slowest, mut taken) = (Instant::now(), Duration::ZERO, 0_u64);
    for input in 0..inputs {
        let mut rng = Rng::with_seed(seed.wrapping_shl(40) ^ input);
        let value = make(input, &mut rng);
        let begun = Instant::now();
        match holds(&value) {
            Ok(good) => taken += u64::from(good),
            Err(cause) => {
                std::panic::set_hook(Box::new(|_| ()));
                let least = shortest(value, &shorter, |input| holds(input).is_err());
                drop(std::panic::take_hook());
                eprintln!(
                    "fuzz: {name}: input {input} of MPS_MANAGER_SEED={seed}, shortened: {}",
                    show(&least)
                );
                property(&least);
                std::panic::resume_unwind(cause);
            }
        }
        let mut took = begun.elapsed();
        if took > PATIENCE {
            // A busy machine takes the processor away in between, so its time alone is counted.
            let before = processor_time();
            property(&value);
            took = processor_time().saturating_sub(before);
        }
        assert!(took <= PATIENCE, "{name}: {} takes {took:?}", show(&value));
        slowest = slowest.max(took);
    }
    eprintln!(
        "fuzz: {name}: {inputs} inputs, seed {seed}, {:.1} s, slowest {:.3} ms, {:.1} % taken",
        started.elapsed().as_secs_f64(),
        slowest.as_secs_f64() * 1000.0,
        f64::from(u32::try_from(taken).unwrap_or(u32::MAX)) * 100.0
            / f64::from(u32::try_from(inputs).unwrap_or(u32::MAX)),
    );
    assert!(inputs < 1000 || taken > 0, "{name}: every input was refused, so nothing was parsed");
}

/// How long this thread has had a processor.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("readable");
    Duration::from_nanos(text.split(' ').next().and_then(|word| word.parse().ok()).expect("a time"))
}

/// Makes an input shorter as long as it still fails.
fn shortest<T>(mut input: T, shorter: impl Fn(&T, usize) -> Option<Vec<T>>, fails: impl Fn(&T) -> bool) -> T {
    let mut parts = 2;
    while let Some(candidates) = shorter(&input, parts) {
        match candidates.into_iter().find(|candidate| fails(candidate)) {
            Some(found) => (input, parts) = (found, 2),
            None => parts *= 2,
        }
    }
    input
}

/// The input without each one of `parts` equal parts; `None` when the parts would be less than a byte.
#[allow(clippy::ptr_arg, reason = "passed where an input is of any type")]
fn shorter(input: &Vec<u8>, parts: usize) -> Option<Vec<Vec<u8>>> {
    if input.is_empty() || parts > 2 * input.len() {
        return None;
    }
    let size = input.len().div_ceil(parts).max(1);
    let without = |at: usize| {
        let end = (at + size).min(input.len());
        [&input[..at], &input[end..]].concat()
    };
    Some((0..input.len()).step_by(size).map(without).collect())
}

fn show(input: &[u8]) -> String {
    let shown = input[..input.len().min(2000)].escape_ascii();
    format!("{} bytes: b\"{shown}\"", input.len())
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.replace('_', "").parse().unwrap_or_else(|_| panic!("{name} is {text:?}: give a number")))
}

mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn an_input_that_fails_is_made_as_short_as_it_goes() {
        let long = b"a long text with an x and a y in it, and more behind them".to_vec();
        let fails = |input: &Vec<u8>| input.contains(&b'x') && input.contains(&b'y');
        assert_eq!(shortest(long, shorter, fails), b"xy");
    }

    #[test]
    fn a_parser_that_panics_is_found() {
        let inputs = Inputs::new(["GPU-1 5 10"], &["GPU-"]);
        let seen = Cell::new(0_u32);
        let found = catch_unwind(AssertUnwindSafe(|| {
            inputs.check(|input| {
                seen.set(seen.get() + 1);
                assert!(!input.windows(5).any(|window| window == b"GPU--"), "a planted fault");
                true
            });
        }));
        assert!(found.is_err(), "in {} inputs", seen.get());
    }

    #[test]
    fn a_seed_gives_the_same_inputs_again_and_another_one_others() {
        let inputs = Inputs::new(["one\ntwo 17\nthree\n"], &["word"]);
        let all = |seed: u64| -> Vec<Vec<u8>> {
            (0..50).map(|input| inputs.make(input, &mut Rng::with_seed(seed + input))).collect()
        };
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(1000));
        let short = Inputs::new(["x"], &[]).at_most(100);
        assert!((0..20_000).all(|seed| short.make(seed, &mut Rng::with_seed(seed)).len() <= 100));
    }
}
