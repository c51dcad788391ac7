//! The text of exports(5): lines of a path and its clients, each with options.
//!
//! Blanks separate words, except in double quotes. A backslash and three octal digits are a byte; a
//! backslash at the end of a line continues it; `#` at the beginning of a word begins a comment.
//! The parser never guesses: an unknown word is an error with its file and line, and the line is
//! ignored.

use std::fmt::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use curt_proto::mount3::PATH_MAX;

use super::clients::ClientSpec;
use super::escape::{self, escape};
use super::option_table::OptionListParser;
use super::options::Options;

/// Maximum number of clients of all exports together; it bounds the size of a reply to EXPORT.
pub const EXPORTS_MAX: usize = 16_384;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLine {
    /// The file.
    pub file: Arc<Path>,
    /// The line's number, from 1; 0 for the file as a whole.
    pub line: usize,
}

impl fmt::Display for FileLine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(formatter, "{}", self.file.display()),
            line => write!(formatter, "{}:{line}", self.file.display()),
        }
    }
}

/// The options of one client for one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportsEntry {
    /// The path, which is absolute.
    pub path: Vec<u8>,
    /// The client.
    pub client: ClientSpec,
    /// Its options.
    pub options: Options,
    /// The position in the file.
    pub place: FileLine,
}

impl fmt::Display for ExportsEntry {
    /// An equivalent line of exports(5).
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}({})", escape(&self.path), self.client, self.options)
    }
}

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The line is served, but perhaps not as intended.
    Warning,
    /// The line cannot be served.
    Error,
}

/// A problem in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportsProblem {
    /// Its severity.
    pub severity: Severity,
    /// Its position.
    pub place: FileLine,
    /// The word that causes it, if there is one.
    pub word: String,
    /// The error and its remedy.
    pub message: String,
}

impl fmt::Display for ExportsProblem {
    /// `FILE:LINE: error: WORD: MESSAGE`: one line without control characters, whatever the names
    /// of the file and the word.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        let mut line = escape::EscapedLine(formatter);
        write!(line, "{}: {severity}: ", self.place)?;
        if !self.word.is_empty() {
            write!(line, "{}: ", self.word)?;
        }
        line.write_str(&self.message)
    }
}

/// The parsed contents of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedExports {
    /// The exports, in the order of the files.
    pub entries: Vec<ExportsEntry>,
    /// The problems.
    pub problems: Vec<ExportsProblem>,
}

impl ParsedExports {
    /// Whether there is an error: a line that cannot be served.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// Parses the text of a file and adds its entries.
    pub fn read(&mut self, file: &Path, text: &[u8]) {
        ExportsParser { rest: text, place: FileLine { file: file.into(), line: 1 }, parsed: self }.run();
    }
}

#[cfg(test)]
mod tests;

/// A file that is being parsed.
struct ExportsParser<'t, 'p> {
    rest: &'t [u8],
    place: FileLine,
    parsed: &'p mut ParsedExports,
}

/// Characters other than blanks that end a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WordEnd {
    Nowhere,
    AtParenthesis,
}

/// Error: the rest of the line cannot be parsed.
struct UnusableLine;

impl ExportsParser<'_, '_> {
    fn run(mut self) {
        while !self.rest.is_empty() {
            let before = self.parsed.entries.len();
            if self.line().is_err() {
                // A partly parsed line would not be served as intended.
                self.parsed.entries.truncate(before);
                while !matches!(self.next(), None | Some(b'\n')) {}
            }
        }
    }

    /// Parses one line with its continuation lines.
    fn line(&mut self) -> Result<(), UnusableLine> {
        self.skip_blanks();
        if self.at_end_of_line() {
            return Ok(());
        }
        let path = self.word(WordEnd::Nowhere)?;
        let path = self.path(path)?;
        let mut defaults = Options::default();
        let mut clients = 0;
        let mut bare: Option<String> = None;
        loop {
            self.skip_blanks();
            if self.at_end_of_line() {
                break;
            }
            if self.peek() == Some(b'-') {
                let list = self.word(WordEnd::Nowhere)?;
                let words = list.get(1..).unwrap_or_default();
                self.take_words(&mut defaults, words.split(|byte| *byte == b',').map(<[u8]>::to_vec))?;
                continue;
            }
            bare = self.client(&path, &defaults, bare)?;
            clients += 1;
        }
        if clients == 0 {
            self.nobody_is_named(path, defaults);
        }
        Ok(())
    }

    /// Adds a path without a client, which exportfs accepts. The line is consumed already.
    fn nobody_is_named(&mut self, path: Vec<u8>, defaults: Options) {
        let message = "no client is given: exported to every client with the default options; write * if this is intended";
        self.add_problem(Severity::Warning, &escape(&path), message);
        // Report it if there is no room for the entry.
        let _ = self.add(path, ClientSpec::Anyone, defaults);
    }

    fn path(&mut self, path: Vec<u8>) -> Result<Vec<u8>, UnusableLine> {
        let shown = escape(&path);
        if !path.starts_with(b"/") {
            return self.refuse(&shown, "expected an absolute path at the beginning of the line");
        }
        if path.contains(&0) {
            return self.refuse(&shown, "a path cannot contain NUL");
        }
        if super::table::components(&path).any(|part| part == b"..") {
            return self.refuse(&shown, "write the path without ..");
        }
        let parts: Vec<&[u8]> = super::table::components(&path).collect();
        let whole = [b"/".as_slice(), &parts.join(&b'/')].concat();
        if whole.len() > PATH_MAX {
            return self.refuse(&shown, "longer than the 1024 bytes that clients can mount");
        }
        Ok(whole)
    }

    /// Parses a client and its options. `bare` is the previous client, if it had none. Returns this
    /// client, if it has none.
    fn client(
        &mut self,
        path: &[u8],
        defaults: &Options,
        bare: Option<String>,
    ) -> Result<Option<String>, UnusableLine> {
        let word = self.word(WordEnd::AtParenthesis)?;
        let shown = String::from_utf8_lossy(&word).into_owned();
        let client = match std::str::from_utf8(&word).map(ClientSpec::parse) {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => return self.refuse(&shown, &error.to_string()),
            Err(_) => return self.refuse(&shown, "expected a host, a network, a pattern, @netgroup or *"),
        };
        let mut options = defaults.clone();
        let has_options = self.peek() == Some(b'(');
        if has_options {
            if let Some(bare) = bare.filter(|_| shown.is_empty()) {
                let message = "the blank before ( makes these the options of every client, and leaves this client with the defaults; \
                               write them without a blank between";
                self.add_problem(Severity::Warning, &bare, message);
            }
            self.next();
            let words = self.list()?;
            self.take_words(&mut options, words.into_iter())?;
        }
        self.add(path.to_vec(), client, options)?;
        Ok((!has_options).then_some(shown))
    }

    fn add(&mut self, path: Vec<u8>, client: ClientSpec, options: Options) -> Result<(), UnusableLine> {
        if self.parsed.entries.len() == EXPORTS_MAX {
            let message =
                format!("more than {EXPORTS_MAX} clients of all exports together: use networks or netgroups");
            return self.refuse(&client.to_string(), &message);
        }
        let place = self.place.clone();
        self.parsed.entries.push(ExportsEntry { path, client, options, place });
        Ok(())
    }

    fn take_words(
        &mut self,
        options: &mut Options,
        words: impl Iterator<Item = Vec<u8>>,
    ) -> Result<(), UnusableLine> {
        let mut parser = OptionListParser::new(options);
        for word in words.filter(|word| !word.is_empty()) {
            let shown = String::from_utf8_lossy(&word).into_owned();
            match parser.take(&word) {
                Ok(None) => {}
                Ok(Some(remark)) => self.add_problem(Severity::Warning, &shown, remark),
                Err(message) => return self.refuse(&shown, &message),
            }
        }
        Ok(())
    }

    /// A word up to a blank, without its quotes and escapes. In quotes, blanks and characters that
    /// end a word are kept.
    fn word(&mut self, ends: WordEnd) -> Result<Vec<u8>, UnusableLine> {
        let mut word = Vec::new();
        let mut quoted = false;
        loop {
            match self.peek() {
                None | Some(b'\n') if quoted => {
                    return self.refuse("\"", "the quote does not end on this line");
                }
                None | Some(b'\n') => break,
                Some(b'"') => quoted = !quoted,
                Some(b' ' | b'\t' | b'\r') if !quoted => break,
                Some(b'(') if !quoted && ends == WordEnd::AtParenthesis => break,
                Some(byte) => self.push(&mut word, byte),
            }
            self.next();
        }
        Ok(word)
    }

    /// The words of a list of options, up to its end.
    fn list(&mut self) -> Result<Vec<Vec<u8>>, UnusableLine> {
        let mut words = vec![Vec::new()];
        let mut quoted = false;
        loop {
            match self.peek() {
                None | Some(b'\n') => return self.refuse("(", "the ( has no ) on this line"),
                Some(b'"') => quoted = !quoted,
                Some(b')') if !quoted => break,
                Some(b',') if !quoted => words.push(Vec::new()),
                Some(b' ' | b'\t' | b'\r') if !quoted => {}
                Some(byte) => {
                    let mut word = words.pop().unwrap_or_default();
                    self.push(&mut word, byte);
                    words.push(word);
                }
            }
            self.next();
        }
        self.next();
        Ok(words)
    }

    /// Adds a byte to a word, or the byte that a backslash and three octal digits encode.
    fn push(&mut self, word: &mut Vec<u8>, byte: u8) {
        if byte == b'\\'
            && let Some([_, high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7']) =
                self.rest.first_chunk()
        {
            word.push((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'));
            // The caller consumes the last of the four.
            self.rest = &self.rest[3..];
        } else {
            word.push(byte);
        }
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r')) {
            self.next();
        }
    }

    /// Whether the line ends here, perhaps with a comment. If so, the end is consumed.
    fn at_end_of_line(&mut self) -> bool {
        match self.peek() {
            None => true,
            Some(b'\n') => {
                self.next();
                true
            }
            Some(b'#') => {
                while !matches!(self.next(), None | Some(b'\n')) {}
                true
            }
            Some(_) => false,
        }
    }

    /// The next byte; a continued end of line counts as a blank.
    fn peek(&self) -> Option<u8> {
        match self.rest {
            [b'\\', b'\n', ..] | [b'\\', b'\r', b'\n', ..] => Some(b' '),
            rest => rest.first().copied(),
        }
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        let passed = match self.rest {
            [b'\\', b'\n', ..] => 2,
            [b'\\', b'\r', b'\n', ..] => 3,
            _ => 1,
        };
        if passed > 1 || byte == b'\n' {
            self.place.line += 1;
        }
        self.rest = &self.rest[passed..];
        Some(byte)
    }

    fn add_problem(&mut self, severity: Severity, word: &str, message: &str) {
        self.parsed.problems.push(ExportsProblem {
            severity,
            place: self.place.clone(),
            word: word.to_owned(),
            message: message.to_owned(),
        });
    }

    fn refuse<T>(&mut self, word: &str, message: &str) -> Result<T, UnusableLine> {
        self.add_problem(Severity::Error, word, message);
        Err(UnusableLine)
    }
}
