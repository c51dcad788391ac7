//! The operations of a workload's trace, in order.
//!
//! The format is described in `workloads/README.md`. Each distinct path is stored once.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io::{self, BufRead};

/// The expected result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedResult {
    /// Success.
    Success,
    /// ENOENT.
    NotFound,
    /// EINVAL (readlink of an object that is not a link).
    Invalid,
    /// ENOTDIR.
    NotDirectory,
    /// EACCES.
    AccessDenied,
    /// ELOOP.
    TooManyLinks,
}

impl ExpectedResult {
    /// The results and their words in traces.
    pub const WORDS: [(Self, &'static str); 6] = [
        (Self::Success, "ok"),
        (Self::NotFound, "ENOENT"),
        (Self::Invalid, "EINVAL"),
        (Self::NotDirectory, "ENOTDIR"),
        (Self::AccessDenied, "EACCES"),
        (Self::TooManyLinks, "ELOOP"),
    ];

    /// The result's word in traces.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(expected, _)| *expected == self).map_or("", |(_, word)| word)
    }

    fn parse(word: &str) -> Result<Self, &'static str> {
        let found = Self::WORDS.iter().find(|(_, known)| *known == word);
        found.map(|(expected, _)| *expected).ok_or("the result is no known word")
    }
}

/// The number of a path of a trace; [`WorkloadTrace::path`] returns the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TracePathId(u32);

impl TracePathId {
    /// Its index in the trace, below [`WorkloadTrace::paths_count`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The id of an open file of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceOpenId(u32);

impl TraceOpenId {
    /// Its index in the trace, below [`WorkloadTrace::open_ids_count`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An operation on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathOperation {
    /// stat(2).
    Stat,
    /// lstat(2).
    Lstat,
    /// access(2) with R_OK.
    Access,
    /// readlink(2).
    Readlink,
    /// open(2) for reading.
    OpenFile(TraceOpenId),
    /// open(2) of a directory.
    OpenDirectory(TraceOpenId),
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceOperation {
    /// An operation on a path.
    Path {
        /// The operation.
        does: PathOperation,
        /// The path.
        path: TracePathId,
        /// The expected result.
        expected: ExpectedResult,
    },
    /// Reads the next bytes of an open file; 0: the recorded program found the end, which needs no
    /// request and is not performed.
    Read {
        /// The open file.
        open: TraceOpenId,
        /// Number of bytes.
        count: u32,
    },
    /// Reads all names of an open directory.
    List {
        /// The open directory.
        open: TraceOpenId,
    },
    /// Closes an open file or directory.
    Close {
        /// The open file or directory.
        open: TraceOpenId,
    },
    /// A new page view begins; not an operation.
    Page,
}

impl TraceOperation {
    /// The number of operations that it counts for: a list reads the names, and finds the end.
    #[must_use]
    pub fn operations(&self) -> u64 {
        match self {
            Self::Path { .. } | Self::Read { .. } | Self::Close { .. } => 1,
            Self::List { .. } => 2,
            Self::Page => 0,
        }
    }
}

/// Why a trace could not be parsed.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The lines could not be read.
    #[error("the trace cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A line is malformed.
    #[error("line {line} of the trace: {why}")]
    Line {
        /// The line number, from 1.
        line: usize,
        /// The error.
        why: &'static str,
    },
}

/// A trace.
#[derive(Debug, Default)]
pub struct WorkloadTrace {
    operations: Vec<TraceOperation>,
    paths: Vec<CString>,
    open_ids_count: usize,
}

/// Maximum open id of a trace.
const OPEN_IDS_MAX: u32 = 1 << 24;

impl WorkloadTrace {
    /// Parses the lines of a trace. Reads, lists and closes must refer to an open id of an earlier
    /// line.
    ///
    /// # Errors
    /// Malformed lines.
    pub fn parse(lines: impl BufRead) -> Result<Self, TraceError> {
        let mut parser = TraceParser::default();
        for (number, line) in lines.lines().enumerate() {
            let operation = parser.line(&line?).map_err(|why| TraceError::Line { line: number + 1, why })?;
            parser.trace.operations.push(operation);
        }
        Ok(parser.trace)
    }

    /// All operations in order.
    #[must_use]
    pub fn operations(&self) -> &[TraceOperation] {
        &self.operations
    }

    /// Number of operations ([`TraceOperation::operations`]).
    #[must_use]
    pub fn operations_count(&self) -> u64 {
        self.operations.iter().map(TraceOperation::operations).sum()
    }

    /// The path's text.
    #[must_use]
    pub fn path(&self, path: TracePathId) -> &str {
        self.path_at(path.index())
    }

    /// The text of the path whose [`TracePathId::index`] is `index`; `""` if there is none.
    #[must_use]
    pub fn path_at(&self, index: usize) -> &str {
        self.paths.get(index).and_then(|path| path.to_str().ok()).unwrap_or_default()
    }

    /// The path for system calls.
    #[must_use]
    pub fn path_for_system_call(&self, path: TracePathId) -> &CStr {
        &self.paths[path.index()]
    }

    /// Number of paths; [`TracePathId`]s count from 0.
    #[must_use]
    pub fn paths_count(&self) -> usize {
        self.paths.len()
    }

    /// All open ids are below this.
    #[must_use]
    pub fn open_ids_count(&self) -> usize {
        self.open_ids_count
    }
}

#[derive(Default)]
struct TraceParser {
    trace: WorkloadTrace,
    known_paths: HashMap<String, TracePathId>,
    /// By open id: whether it is open.
    open: Vec<bool>,
}

impl TraceParser {
    fn line(&mut self, line: &str) -> Result<TraceOperation, &'static str> {
        if line == "page" {
            return Ok(TraceOperation::Page);
        }
        let (does, rest) = line.split_once(' ').ok_or("it has one word only")?;
        match does {
            "stat" => self.on_path(PathOperation::Stat, rest),
            "lstat" => self.on_path(PathOperation::Lstat, rest),
            "access" => self.on_path(PathOperation::Access, rest),
            "readlink" => self.on_path(PathOperation::Readlink, rest),
            "open" => self.open(rest),
            "read" => {
                let (open, count) = rest.split_once(' ').ok_or("a read needs a number of bytes")?;
                Ok(TraceOperation::Read {
                    open: self.opened(open)?,
                    count: count.parse().map_err(|_| "no number of bytes")?,
                })
            }
            "list" => Ok(TraceOperation::List { open: self.opened(rest)? }),
            "close" => {
                let open = self.opened(rest)?;
                self.open[open.index()] = false;
                Ok(TraceOperation::Close { open })
            }
            _ => Err("the operation is not known"),
        }
    }

    /// `PATH RESULT`, where the path may contain spaces.
    fn on_path(&mut self, does: PathOperation, rest: &str) -> Result<TraceOperation, &'static str> {
        let (path, result) = rest.rsplit_once(' ').ok_or("a path and a result are needed")?;
        Ok(TraceOperation::Path { does, path: self.path(path)?, expected: ExpectedResult::parse(result)? })
    }

    /// `ID PATH r|dir RESULT`
    fn open(&mut self, rest: &str) -> Result<TraceOperation, &'static str> {
        let (id, rest) = rest.split_once(' ').ok_or("an open needs an id")?;
        let (rest, result) = rest.rsplit_once(' ').ok_or("an open needs a result")?;
        let (path, mode) = rest.rsplit_once(' ').ok_or("an open needs a mode")?;
        let number: u32 = id.parse().map_err(|_| "the id is no number")?;
        if number >= OPEN_IDS_MAX {
            return Err("the id is too large");
        }
        let open = TraceOpenId(number);
        let does = match mode {
            "r" => PathOperation::OpenFile(open),
            "dir" => PathOperation::OpenDirectory(open),
            _ => return Err("the mode is neither r nor dir"),
        };
        let expected = ExpectedResult::parse(result)?;
        if self.open.len() <= open.index() {
            self.open.resize(open.index() + 1, false);
        }
        if self.open[open.index()] {
            return Err("the id is open already");
        }
        self.open[open.index()] = expected == ExpectedResult::Success;
        self.trace.open_ids_count = self.open.len();
        Ok(TraceOperation::Path { does, path: self.path(path)?, expected })
    }

    fn opened(&self, id: &str) -> Result<TraceOpenId, &'static str> {
        let open = TraceOpenId(id.parse().map_err(|_| "the id is no number")?);
        if self.open.get(open.index()) == Some(&true) { Ok(open) } else { Err("nothing is open by that id") }
    }

    fn path(&mut self, path: &str) -> Result<TracePathId, &'static str> {
        if let Some(&known) = self.known_paths.get(path) {
            return Ok(known);
        }
        if path.is_empty() || path.starts_with('/') {
            return Err("the path is not one below the tree");
        }
        let id = TracePathId(u32::try_from(self.trace.paths.len()).map_err(|_| "there are too many paths")?);
        self.trace.paths.push(CString::new(path).map_err(|_| "the path has a NUL")?);
        self.known_paths.insert(path.to_owned(), id);
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

    use super::*;

    #[test]
    fn every_kind_of_line_is_understood() {
        let text = "page\nstat a ok\nlstat b c ENOENT\naccess a ok\nreadlink a EINVAL\nopen 1 a r ok\nread 1 42\n\
                    open 2 b c dir ok\nlist 2\nclose 2\nclose 1\nopen 3 no r ENOTDIR\n";
        let trace = WorkloadTrace::parse(text.as_bytes()).unwrap();
        assert_eq!(trace.operations().len(), 12);
        assert_eq!(trace.operations_count(), 12); // page counts for none, list for two
        assert_eq!(trace.paths_count(), 3);
        assert_eq!(trace.open_ids_count(), 4);
        let TraceOperation::Path { does, path, expected } = trace.operations()[2] else {
            panic!("lstat is no path operation")
        };
        assert_eq!(
            (does, trace.path(path), expected),
            (PathOperation::Lstat, "b c", ExpectedResult::NotFound)
        );
        assert_eq!(trace.operations()[6], TraceOperation::Read { open: TraceOpenId(1), count: 42 });
    }

    #[test]
    fn lines_that_make_no_sense_are_refused() {
        for bad in [
            "stat",
            "stat a",
            "stat a fine",
            "open 1 a w ok",
            "open x a r ok",
            "open 99999999 a r ok",
            "read 1 5",
            "close 0",
            "list 7",
            "open 1 a r ok\nopen 1 a r ok",
            "open 1 a r ENOENT\nread 1 3",
            "open 1 a r ok\nread 1 many",
            "stat /etc ok",
            "stat  ok",
            "leap a ok",
        ] {
            assert!(WorkloadTrace::parse(bad.as_bytes()).is_err(), "{bad:?} was accepted");
        }
    }
}
