//! Shell scripts by which partitions are made by hand, read as layouts.
//!
//! No shell runs: a script is taken only where it can be seen on its face that each of its additions is done once, and in
//! which order. Whatever else mentions `sm_partition` is refused with its line, since a layout that is not what the script
//! does would be found out on a GPU, if at all.
//!
//! ```text
//!   script ──words and operators──► commands ──┬─ sm_partition add 0 7
//!                                              ├─ echo, printf: its arguments
//!                                              └─ any: its here-document, line by line, or its here-string
//! ```

use std::collections::{BTreeMap, VecDeque};

use super::{AddStep, Enforcement, Layout, MAX_STEPS, Role, Step};
use crate::domain::{InvalidValue, PartitionName};

/// The word that this is all about.
const COMMAND: &str = "sm_partition";
/// The command that ends the daemon, and with it the partitions.
const QUIT: &str = "quit";
/// The most of a line that a refusal shows, in characters.
const SHOWN: usize = 200;
/// How the text of a here-document is marked among the words.
const FED: &str = "a here-document";

/// Makes a layout of the `sm_partition add` lines of a shell script.
///
/// A device by number is the role of that number; devices by UUID are roles in the order in which they appear. Partitions are
/// called `part_1`, `part_2` and so on, as a script has no names for them. What cannot be understood is refused with its
/// line, and so are additions that may be done never or several times, and removals, whose ID would be one of that machine.
pub fn read(script: &str) -> Result<Layout, InvalidValue> {
    let mut reader = Reader { script, ..Reader::default() };
    let tokens = tokens(script).map_err(|(line, why)| reader.refused(line, why))?;
    reader.all(&tokens)?;
    if reader.steps.is_empty() {
        return Err(InvalidValue("there is no line with `sm_partition add GPU CHUNKS` in the script".into()));
    }
    let layout = Layout { enforcement: Enforcement::Static, sku: None, steps: reader.steps };
    layout.check().map_err(|invalid| invalid.reason)?;
    Ok(layout)
}

/// A piece of a script, with the line on which it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(Word),
    /// `;`, `|`, `&&`, `(` and so on; a line's end is `\n`.
    Operator(&'static str, usize),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Word {
    text: String,
    line: usize,
    /// Whether any of it is quoted: then it is no keyword, and blanks may be in it.
    quoted: bool,
    /// Whether it goes to a command as its input.
    fed: bool,
}

impl Word {
    fn is(&self, bare: &str) -> bool {
        !self.quoted && !self.fed && self.text == bare
    }
}

/// Something that a script opened and has not closed yet.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// The word that opened it.
    word: &'static str,
    /// Whether it need not be reached.
    conditional: bool,
}

/// What a script does, as far as it was read.
#[derive(Default)]
struct Reader<'s> {
    script: &'s str,
    roles: BTreeMap<String, Role>,
    steps: Vec<Step>,
    inside: Vec<Open>,
    /// Whether the next command depends on how the one before it ended.
    conditional: bool,
    /// Whether the pipeline under way has an addition.
    adds: bool,
    /// Where the daemon was ended after an addition.
    ended: Option<usize>,
}

impl Reader<'_> {
    fn refused(&self, line: usize, why: &str) -> InvalidValue {
        let text = self.script.lines().nth(line.saturating_sub(1)).unwrap_or_default().trim();
        let mut shown: String = text.chars().take(SHOWN).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        InvalidValue(format!("line {line}: {why}: {shown}"))
    }

    fn all(&mut self, tokens: &[Token]) -> Result<(), InvalidValue> {
        let mut command: Vec<&Word> = Vec::new();
        // Whether a line goes on with the next one, as after `&&`.
        let mut goes_on = false;
        let mut last = 1;
        for (at, token) in tokens.iter().enumerate() {
            match token {
                Token::Word(word) => {
                    (goes_on, last) = (false, word.line);
                    let is_first = command.iter().all(|word| word.fed);
                    if !(is_first && self.keyword(word, &tokens[at + 1..])?) {
                        command.push(word);
                    }
                }
                Token::Operator(operator, line) => {
                    self.command(&std::mem::take(&mut command))?;
                    if !(goes_on && *operator == "\n") {
                        self.operator(operator, *line)?;
                        goes_on = matches!(*operator, "&&" | "||" | "|");
                    }
                }
            }
        }
        self.command(&command)?;
        match self.inside.last() {
            None => Ok(()),
            Some(open) => Err(self.refused(last, &format!("the script ends inside `{}`", open.word))),
        }
    }

    fn open(&mut self, word: &'static str) {
        let conditional = std::mem::take(&mut self.conditional);
        self.inside.push(Open { word, conditional });
    }

    fn close(&mut self) {
        self.conditional = self.inside.pop().is_some_and(|open| open.conditional);
    }

    fn is_inside(&self, word: &str) -> bool {
        self.inside.last().is_some_and(|open| open.word == word)
    }

    /// Follows what opens and closes; whether the word, which comes first in a command, was such.
    fn keyword(&mut self, word: &Word, next: &[Token]) -> Result<bool, InvalidValue> {
        const OPEN: [&str; 8] = ["for", "select", "while", "until", "if", "case", "function", "{"];
        if word.quoted || word.fed {
            return Ok(false);
        }
        if let Some(open) = OPEN.into_iter().find(|open| word.is(open)) {
            self.open(open);
            return Ok(true);
        }
        let named = self.is_inside("function");
        let defined = matches!(next, [Token::Operator("(", _), Token::Operator(")", _), ..]);
        if named || defined {
            if !named {
                self.open("function");
            }
            return Ok(true);
        }
        let closes: &[&str] = match word.text.as_str() {
            "done" => &["for", "select", "while", "until"],
            "fi" => &["if"],
            "esac" => &["case"],
            "}" => &["{"],
            "do" | "then" | "else" | "elif" | "!" | "time" => return Ok(true),
            _ => return Ok(false),
        };
        if !closes.iter().any(|open| self.is_inside(open)) {
            return Err(self.refused(word.line, &format!("`{}` closes nothing", word.text)));
        }
        self.close();
        // The body of a function is all of it.
        if self.is_inside("function") {
            self.close();
        }
        Ok(true)
    }

    fn operator(&mut self, operator: &'static str, line: usize) -> Result<(), InvalidValue> {
        match operator {
            "(" => self.open("("),
            ")" if self.is_inside("(") => {
                self.close();
                return Ok(());
            }
            // The end of a case's pattern is none of ours.
            "|" | ")" => return Ok(()),
            "||" => self.conditional = true,
            "&&" => self.conditional |= !self.adds,
            "&" if self.adds => {
                let why = "done in the background, so nobody knows in which order: leave the & out";
                return Err(self.refused(line, why));
            }
            _ => self.conditional = false,
        }
        self.adds = false;
        Ok(())
    }

    /// A command with its words and what is fed to it.
    fn command(&mut self, words: &[&Word]) -> Result<(), InvalidValue> {
        let Some(about) = words.iter().find(|word| word.text.contains(COMMAND)) else {
            let quits = words.iter().find(|word| word.text.lines().any(is_quit));
            if let Some(word) = quits.filter(|_| !self.steps.is_empty()) {
                self.ended = Some(word.line);
            }
            return Ok(());
        };
        if let Some(open) = self.inside.iter().find(|open| !["{", "("].contains(&open.word)) {
            let why = format!(
                "inside `{}`, so it may be done never or several times: write each addition on a line of its own",
                open.word
            );
            return Err(self.refused(about.line, &why));
        }
        if self.conditional || self.inside.iter().any(|open| open.conditional) {
            let why = "done only if another command succeeds, or fails: write it on a line of its own";
            return Err(self.refused(about.line, why));
        }
        self.adds = true;
        let (fed, given): (Vec<&Word>, Vec<&Word>) = words.iter().copied().partition(|word| word.fed);
        let texts: Vec<&str> = given.iter().map(|word| word.text.as_str()).collect();
        let options = given.iter().skip(1).take_while(|word| word.text.starts_with('-')).count();
        match given.as_slice() {
            [first, ..] if first.is(COMMAND) => self.add(&texts, first.line)?,
            [first, rest @ ..] if first.is("echo") => match &rest[options..] {
                [word] => {
                    let escapes = rest[..options].iter().any(|option| option.text.contains('e'));
                    self.lines(word, escapes)?;
                }
                [first, ..] if first.is(COMMAND) => self.add(&texts[1 + options..], first.line)?,
                _ => return Err(self.unclear(about)),
            },
            [first, format, rest @ ..] if first.is("printf") && format.text == "%s\\n" => {
                for word in rest.iter().filter(|word| word.text.contains(COMMAND)) {
                    self.lines(word, false)?;
                }
            }
            [first, word] if first.is("printf") => self.lines(word, true)?,
            [_, ..] if given.iter().all(|word| !word.text.contains(COMMAND)) => {}
            _ => return Err(self.unclear(about)),
        }
        for word in fed.into_iter().filter(|word| word.text.contains(COMMAND)) {
            self.lines(word, false)?;
        }
        Ok(())
    }

    fn unclear(&self, word: &Word) -> InvalidValue {
        let why = "it is not clear what becomes of it: hand it to the control program by echo, printf '%s\\n' or a here-document";
        self.refused(word.line, why)
    }

    /// Text that the control program reads line by line; with `escapes`, a line may end with `\\n` too.
    fn lines(&mut self, word: &Word, escapes: bool) -> Result<(), InvalidValue> {
        for (number, text) in (word.line..).zip(word.text.lines()) {
            for line in text.split(if escapes { "\\n" } else { "\n" }) {
                if line.contains(COMMAND) {
                    self.add(&line.split_whitespace().collect::<Vec<_>>(), number)?;
                } else if is_quit(line) && !self.steps.is_empty() {
                    self.ended = Some(number);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, words: &[&str], line: usize) -> Result<(), InvalidValue> {
        if let Some(ended) = self.ended {
            let why =
                format!("done after the daemon was ended on line {ended}, with the partitions made before");
            return Err(self.refused(line, &why));
        }
        let (device, chunks) = match words {
            [COMMAND, "add", device, chunks] => (*device, *chunks),
            [COMMAND, "add", _, _, more, ..] => {
                let more: String = more.chars().take(40).collect();
                let why = format!("{more:?} is one word too many after the number of chunks");
                return Err(self.refused(line, &why));
            }
            [COMMAND, "rm", ..] => {
                let why =
                    "a removal names an ID of that machine: write the layout with steps of its own instead";
                return Err(self.refused(line, why));
            }
            _ => return Err(self.refused(line, "only `sm_partition add GPU CHUNKS` is understood")),
        };
        if self.steps.len() == MAX_STEPS {
            return Err(self.refused(line, &format!("a layout has at most {MAX_STEPS} steps")));
        }
        let chunks: u32 =
            chunks.parse().map_err(|_| self.refused(line, "the number of chunks is no number"))?;
        let gpu = role(&mut self.roles, device).map_err(|why| self.refused(line, why))?;
        let partition = PartitionName::parse(&format!("part_{}", self.steps.len() + 1))?;
        self.steps.push(Step::Add(AddStep { gpu, partition, chunks, tenants: Vec::new() }));
        Ok(())
    }
}

fn is_quit(line: &str) -> bool {
    line.split_whitespace().next() == Some(QUIT)
}

fn role(roles: &mut BTreeMap<String, Role>, device: &str) -> Result<Role, &'static str> {
    let by_uuid = device.starts_with("GPU-");
    if roles.keys().any(|known| known.starts_with("GPU-") != by_uuid) {
        return Err("devices are named by number and by UUID: use one of the two throughout");
    }
    let next = Role::try_from(roles.len()).unwrap_or(Role::MAX);
    let role = if by_uuid {
        *roles.get(device).unwrap_or(&next)
    } else {
        device.parse().map_err(|_| "the device is neither a number nor a UUID")?
    };
    roles.insert(device.to_owned(), role);
    Ok(role)
}

type Unreadable = (usize, &'static str);

/// Takes a script apart; where it cannot, the line and why.
fn tokens(script: &str) -> Result<Vec<Token>, Unreadable> {
    let mut lexer = Lexer { rest: script.chars().collect(), line: 1, found: Vec::new(), awaited: Vec::new() };
    while lexer.token()? {}
    match lexer.awaited.first() {
        None => Ok(lexer.found),
        Some(awaited) => Err((awaited.line, UNENDED)),
    }
}

/// What is wrong where a here-document goes on to the end of the script.
const UNENDED: &str = "a here-document without its end";

struct Lexer {
    rest: VecDeque<char>,
    line: usize,
    found: Vec<Token>,
    /// The here-documents that begin with the next line.
    awaited: Vec<Awaited>,
}

/// A here-document that was named and has not begun.
struct Awaited {
    /// The line that ends it.
    end: String,
    /// Whether tabs before a line are none of it.
    tabs: bool,
    /// The line on which it was named.
    line: usize,
    /// Its place among what was found.
    place: usize,
}

impl Lexer {
    fn next(&mut self) -> Option<char> {
        let letter = self.rest.pop_front();
        self.line += usize::from(letter == Some('\n'));
        letter
    }

    fn takes(&mut self, text: &str) -> bool {
        let is_next = text.chars().enumerate().all(|(at, letter)| self.rest.get(at) == Some(&letter));
        if is_next {
            self.rest.drain(..text.len());
        }
        is_next
    }

    fn blanks(&mut self) {
        while self.takes(" ") || self.takes("\t") || self.takes("\r") {}
    }

    /// Reads on; whether there was anything.
    fn token(&mut self) -> Result<bool, Unreadable> {
        const OPERATORS: [&str; 11] = [";;&", ";;", ";&", "&&", "||", "|&", ";", "&", "|", "(", ")"];
        self.blanks();
        let line = self.line;
        match self.rest.front() {
            None => return Ok(false),
            Some('#') => {
                while self.rest.front().is_some_and(|letter| *letter != '\n') {
                    self.next();
                }
                return Ok(true);
            }
            Some('\n') => {
                self.next();
                self.here_documents()?;
                self.found.push(Token::Operator("\n", line));
                return Ok(true);
            }
            Some(_) => {}
        }
        if self.takes("\\\n") {
            self.line += 1;
            return Ok(true);
        }
        if self.redirected()? {
            return Ok(true);
        }
        if let Some(operator) = OPERATORS.into_iter().find(|operator| self.takes(operator)) {
            self.found.push(Token::Operator(if operator == "|&" { "|" } else { operator }, line));
            return Ok(true);
        }
        let word = self.word()?;
        let descriptor = !word.quoted && word.text.chars().all(|letter| letter.is_ascii_digit());
        // As in `2>&1`.
        if !(descriptor && matches!(self.rest.front(), Some('<' | '>'))) {
            self.found.push(Token::Word(word));
        }
        Ok(true)
    }

    /// Input and output of a command: files are passed over, text is kept.
    fn redirected(&mut self) -> Result<bool, Unreadable> {
        const FILES: [&str; 9] = ["&>>", "&>", "<>", ">>", ">|", ">&", "<&", ">", "<"];
        let line = self.line;
        if self.takes("<<<") {
            self.blanks();
            let word = self.word()?;
            self.found.push(Token::Word(Word { fed: true, ..word }));
        } else if self.takes("<<") {
            let tabs = self.takes("-");
            self.blanks();
            let end = self.word()?;
            self.awaited.push(Awaited { end: end.text, tabs, line, place: self.found.len() });
            // Its place among the words of its command.
            self.found.push(Token::Word(Word { text: FED.into(), line, quoted: true, fed: true }));
        } else if FILES.into_iter().any(|operator| self.takes(operator)) {
            // Another program's output or input is a `(` here.
            self.blanks();
            if self.rest.front() != Some(&'(') {
                self.word()?;
            }
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn word(&mut self) -> Result<Word, Unreadable> {
        let mut word = Word { line: self.line, ..Word::default() };
        while let Some(letter) = self.rest.front().copied() {
            match letter {
                ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>' => break,
                '\'' | '"' => {
                    word.quoted = true;
                    self.next();
                    self.quoted(letter, &mut word)?;
                }
                '\\' => {
                    self.next();
                    match self.next() {
                        Some('\n') | None => {}
                        Some(letter) => {
                            word.quoted = true;
                            word.text.push(letter);
                        }
                    }
                }
                letter => {
                    self.next();
                    word.text.push(letter);
                }
            }
        }
        Ok(word)
    }

    fn quoted(&mut self, quote: char, word: &mut Word) -> Result<(), Unreadable> {
        let from = self.line;
        loop {
            match self.next() {
                None => return Err((from, "a quotation without its end")),
                Some(letter) if letter == quote => return Ok(()),
                Some('\\') if quote == '"' && matches!(self.rest.front(), Some('"' | '\\' | '$' | '`')) => {
                    word.text.extend(self.next());
                }
                Some(letter) => word.text.push(letter),
            }
        }
    }

    /// The texts that begin here, each put in its place.
    fn here_documents(&mut self) -> Result<(), Unreadable> {
        for Awaited { end, tabs, line: named, place } in std::mem::take(&mut self.awaited) {
            let begins = self.line;
            let mut text = String::new();
            loop {
                if self.rest.is_empty() {
                    return Err((named, UNENDED));
                }
                let mut line = String::new();
                while let Some(letter) = self.next().filter(|letter| *letter != '\n') {
                    line.push(letter);
                }
                let shown = if tabs { line.trim_start_matches('\t') } else { &line };
                if shown.trim_end_matches('\r') == end {
                    break;
                }
                text.push_str(shown);
                text.push('\n');
            }
            if let Some(Token::Word(word)) = self.found.get_mut(place) {
                (word.text, word.line) = (text, begins);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
