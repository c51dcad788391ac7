//! Replays a trace and checks all results: below a directory by system calls, or through the client
//! library.
//!
//! Invariant: expected values are computed before the clock starts, so that a run measures the file
//! system and not the checks. The one exception is data, which are compared as they are read.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, RawDir, accessat, openat, readlinkat, statat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::content::ContentPattern;
use crate::trace::{ExpectedResult, PathOperation, TraceOpenId, TraceOperation, TracePathId, WorkloadTrace};
use crate::tree::{ResolvedPath, TreeEntry, TreeEntryKind, WorkloadTree};

/// Maximum number of described wrong results; all are counted.
const DESCRIBED_MAX: usize = 5;
/// Size of the buffer of getdents64(2).
const NAMES_BYTES: usize = 64 << 10;

/// The outcome of a replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplayOutcome {
    /// Operations performed ([`TraceOperation::operations`]).
    pub operations: u64,
    /// Number of results, sizes, names or bytes that differ from tree and trace.
    pub wrong: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Time from the first operation to the last, pauses included, in seconds.
    pub seconds: f64,
    /// The page views, if the trace has any.
    pub pages: Vec<PageView>,
    /// Descriptions of the first wrong results.
    pub described: Vec<String>,
}

/// One page view of a replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageView {
    /// Operations performed.
    pub operations: u64,
    /// Its duration in seconds, without the pause after it.
    pub seconds: f64,
}

/// The expected object of a path.
#[derive(Clone, Copy)]
enum ExpectedObject<'a> {
    Nothing,
    Directory(&'a str),
    File { size: u64, content: ContentPattern },
    Link(&'a str),
}

impl<'a> ExpectedObject<'a> {
    fn of(resolved: Option<ResolvedPath<'a>>) -> Self {
        match resolved {
            None => Self::Nothing,
            Some(ResolvedPath::Entry(TreeEntry { kind: TreeEntryKind::Link { target }, .. })) => {
                Self::Link(target)
            }
            Some(at) => match (at.file(), at.directory()) {
                (Some((size, content)), _) => Self::File { size, content },
                (None, Some(path)) => Self::Directory(path),
                (None, None) => Self::Nothing,
            },
        }
    }
}

/// Performs the system calls of a trace; the errors are theirs.
#[expect(clippy::missing_errors_doc, reason = "all return a system call's error")]
pub trait ReplayTarget {
    /// An open file or directory.
    type Open;

    /// Called before each operation.
    fn before(&mut self, _operation: &TraceOperation) {}

    /// The time.
    fn now(&self) -> Instant;

    /// Type and size.
    fn stat(&mut self, path: &CStr, follow: bool) -> Result<(FileType, u64), Errno>;

    /// Whether it may be read.
    fn access(&mut self, path: &CStr) -> Result<(), Errno>;

    /// The target of a symbolic link.
    fn readlink(&mut self, path: &CStr) -> Result<Vec<u8>, Errno>;

    /// Opens a file or directory for reading.
    fn open(&mut self, path: &CStr, directory: bool) -> Result<Self::Open, Errno>;

    /// Reads at the file's position.
    fn read(&mut self, open: &mut Self::Open, buffer: &mut [u8]) -> Result<usize, Errno>;

    /// All names of a directory except `.` and `..`.
    fn names(&mut self, open: &Self::Open) -> Result<Vec<Vec<u8>>, Errno>;

    /// Closes it.
    fn close(&mut self, open: Self::Open);
}

/// System calls below a directory.
#[derive(Debug)]
pub struct ReplayDirectory(OwnedFd);

impl ReplayTarget for ReplayDirectory {
    type Open = OwnedFd;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn stat(&mut self, path: &CStr, follow: bool) -> Result<(FileType, u64), Errno> {
        let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let stat = statat(&self.0, path, flags)?;
        Ok((FileType::from_raw_mode(stat.st_mode), u64::try_from(stat.st_size).unwrap_or(u64::MAX)))
    }

    fn access(&mut self, path: &CStr) -> Result<(), Errno> {
        accessat(&self.0, path, Access::READ_OK, AtFlags::empty())
    }

    fn readlink(&mut self, path: &CStr) -> Result<Vec<u8>, Errno> {
        readlinkat(&self.0, path, Vec::new()).map(CString::into_bytes)
    }

    fn open(&mut self, path: &CStr, directory: bool) -> Result<OwnedFd, Errno> {
        let kind = if directory { OFlags::DIRECTORY } else { OFlags::empty() };
        openat(&self.0, path, OFlags::RDONLY | OFlags::CLOEXEC | kind, Mode::empty())
    }

    fn read(&mut self, open: &mut OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(open, buffer)
    }

    fn names(&mut self, open: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
        let mut buffer = [MaybeUninit::uninit(); NAMES_BYTES];
        let mut entries = RawDir::new(open, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn close(&mut self, _open: OwnedFd) {}
}

/// An open file or directory of the trace.
struct ReplayOpenFile<'a, O> {
    open: O,
    known: ExpectedObject<'a>,
    path: TracePathId,
    position: u64,
}

/// A trace that is ready to be replayed.
pub struct Replay<'a, T: ReplayTarget = ReplayDirectory> {
    trace: &'a WorkloadTrace,
    tree: &'a WorkloadTree,
    target: T,
    /// By path: the expected object with links followed, and without the last one.
    followed: Vec<ExpectedObject<'a>>,
    unfollowed: Vec<ExpectedObject<'a>>,
    open: Vec<Option<ReplayOpenFile<'a, T::Open>>>,
    buffer: Vec<u8>,
    pages_max: usize,
    outcome: ReplayOutcome,
}

impl<'a> Replay<'a> {
    /// Opens the directory `top`, below which `tree` is.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn new(trace: &'a WorkloadTrace, tree: &'a WorkloadTree, top: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self::on(ReplayDirectory(openat(CWD, top, flags, Mode::empty())?), trace, tree))
    }
}

impl<'a, T: ReplayTarget> Replay<'a, T> {
    /// A replay on `target`, whose root is that of `tree`.
    pub(crate) fn on(target: T, trace: &'a WorkloadTrace, tree: &'a WorkloadTree) -> Self {
        let known = |follow| {
            (0..trace.paths_count())
                .map(move |path| ExpectedObject::of(tree.resolve(trace.path_at(path), follow)))
        };
        let count = |operation: &TraceOperation| {
            if let TraceOperation::Read { count, .. } = operation { *count } else { 0 }
        };
        let largest = trace.operations().iter().map(count).max().unwrap_or(0);
        Self {
            trace,
            tree,
            target,
            followed: known(true).collect(),
            unfollowed: known(false).collect(),
            open: (0..trace.open_ids_count()).map(|_| None).collect(),
            buffer: vec![0; largest as usize],
            pages_max: usize::MAX,
            outcome: ReplayOutcome::default(),
        }
    }

    /// Ends the replay after this many pages.
    #[must_use]
    pub fn pages(self, pages_max: usize) -> Self {
        Self { pages_max, ..self }
    }

    /// Performs all operations, with a pause between two pages. `page_done` is called at the end of
    /// each page.
    #[must_use]
    pub fn run(mut self, pause: Duration, mut page_done: impl FnMut(&PageView)) -> ReplayOutcome {
        let start = self.target.now();
        let (mut page_start, mut before) = (start, 0);
        let mut end_page = |run: &mut Self, since: Instant, before: u64| {
            if run.outcome.operations > before {
                let page = PageView {
                    operations: run.outcome.operations - before,
                    seconds: run.target.now().duration_since(since).as_secs_f64(),
                };
                page_done(&page);
                run.outcome.pages.push(page);
            }
        };
        for operation in self.trace.operations() {
            let is_page = matches!(operation, TraceOperation::Page);
            if is_page {
                end_page(&mut self, page_start, before);
                if self.outcome.pages.len() >= self.pages_max {
                    before = self.outcome.operations;
                    break;
                }
                if self.outcome.operations > before {
                    std::thread::sleep(pause);
                }
            }
            self.target.before(operation);
            if is_page {
                (page_start, before) = (self.target.now(), self.outcome.operations);
            }
            self.outcome.operations += operation.operations();
            match *operation {
                TraceOperation::Page => {}
                TraceOperation::Path { does, path, expected } => self.on_path(does, path, expected),
                TraceOperation::Read { open, count } => self.read(open, count),
                TraceOperation::List { open } => self.list(open),
                TraceOperation::Close { open } => {
                    if let Some(file) = self.open[open.index()].take() {
                        self.target.close(file.open);
                    }
                }
            }
        }
        end_page(&mut self, page_start, before);
        self.outcome.seconds = self.target.now().duration_since(start).as_secs_f64();
        self.outcome
    }

    fn on_path(&mut self, does: PathOperation, path: TracePathId, expected: ExpectedResult) {
        let name = self.trace.path_for_system_call(path);
        let result = match does {
            PathOperation::Stat => self.stat(does, path, true),
            PathOperation::Lstat => self.stat(does, path, false),
            PathOperation::Access => self.target.access(name),
            PathOperation::Readlink => self.target.readlink(name).map(|target| {
                if !matches!(self.unfollowed[path.index()], ExpectedObject::Link(wanted) if target == wanted.as_bytes()) {
                    self.wrong(does, path, &"another target");
                }
            }),
            PathOperation::OpenFile(open) => self.open(open, path, false),
            PathOperation::OpenDirectory(open) => self.open(open, path, true),
        };
        if result.err() != errno(expected) {
            let got: &dyn fmt::Display = if let Err(error) = &result { error } else { &"ok" };
            self.wrong(does, path, &format_args!("wanted {}, got {got}", expected.word()));
        }
    }

    fn open(&mut self, open: TraceOpenId, path: TracePathId, directory: bool) -> Result<(), Errno> {
        let opened = self.target.open(self.trace.path_for_system_call(path), directory)?;
        let known = self.followed[path.index()];
        self.open[open.index()] = Some(ReplayOpenFile { open: opened, known, path, position: 0 });
        Ok(())
    }

    /// Compares the result of a stat with the tree.
    fn stat(&mut self, does: PathOperation, path: TracePathId, follow: bool) -> Result<(), Errno> {
        let (is, size) = self.target.stat(self.trace.path_for_system_call(path), follow)?;
        let known = if follow { &self.followed } else { &self.unfollowed }[path.index()];
        let right = match known {
            ExpectedObject::Directory(_) => is == FileType::Directory,
            ExpectedObject::File { size: wanted, .. } => is == FileType::RegularFile && size == wanted,
            ExpectedObject::Link(target) => is == FileType::Symlink && size == target.len() as u64,
            ExpectedObject::Nothing => false,
        };
        if !right {
            self.wrong(does, path, &format_args!("it is {is:?} of {size} bytes"));
        }
        Ok(())
    }

    fn read(&mut self, open: TraceOpenId, count: u32) {
        // A failed open was counted; operations on it count as wrong as well.
        let Some(file) = &mut self.open[open.index()] else {
            return self.nothing_open("read");
        };
        if count == 0 {
            return;
        }
        let path = file.path;
        let ExpectedObject::File { size, content } = file.known else {
            return self.wrong("read", path, &"the tree has no file there");
        };
        let wanted = u64::from(count).min(size.saturating_sub(file.position));
        match self.target.read(&mut file.open, &mut self.buffer[..count as usize]) {
            Err(error) => self.wrong("read", path, &error),
            Ok(got) => {
                let position = file.position;
                file.position += got as u64;
                self.outcome.bytes += got as u64;
                if got as u64 != wanted {
                    self.wrong("read", path, &format_args!("{got} bytes at {position}, wanted {wanted}"));
                }
                if let Some(at) = content.first_wrong(position, &self.buffer[..got]) {
                    self.wrong("read", path, &format_args!("a wrong byte at {}", position + at as u64));
                }
            }
        }
    }

    fn list(&mut self, open: TraceOpenId) {
        let Some(directory) = &self.open[open.index()] else {
            return self.nothing_open("list");
        };
        let path = directory.path;
        let ExpectedObject::Directory(at) = directory.known else {
            return self.wrong("list", path, &"the tree has no directory there");
        };
        match self.target.names(&directory.open) {
            Err(error) => self.wrong("list", path, &error),
            Ok(names) => {
                let wanted: BTreeSet<_> = self
                    .tree
                    .children(at)
                    .into_iter()
                    .flatten()
                    .map(|child| child.name().as_bytes().to_vec())
                    .collect();
                // The number is compared as well: a name that is listed twice is wrong.
                if names.len() != wanted.len() || names.into_iter().collect::<BTreeSet<_>>() != wanted {
                    self.wrong("list", path, &"other names");
                }
            }
        }
    }

    fn nothing_open(&mut self, does: &str) {
        self.outcome.wrong += 1;
        if self.outcome.described.len() < DESCRIBED_MAX {
            self.outcome.described.push(format!("{does}: its open had failed"));
        }
    }

    fn wrong(&mut self, does: impl fmt::Debug, path: TracePathId, what: &dyn fmt::Display) {
        self.outcome.wrong += 1;
        if self.outcome.described.len() < DESCRIBED_MAX {
            self.outcome.described.push(format!("{does:?} {}: {what}", self.trace.path(path)));
        }
    }
}

/// The errno of an expectation; `None`: success.
fn errno(expected: ExpectedResult) -> Option<Errno> {
    match expected {
        ExpectedResult::Success => None,
        ExpectedResult::NotFound => Some(Errno::NOENT),
        ExpectedResult::Invalid => Some(Errno::INVAL),
        ExpectedResult::NotDirectory => Some(Errno::NOTDIR),
        ExpectedResult::AccessDenied => Some(Errno::ACCESS),
        ExpectedResult::TooManyLinks => Some(Errno::LOOP),
    }
}

#[cfg(test)]
mod tests;
