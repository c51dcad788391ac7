//! Replays a trace through the client library, as a kernel would, and checks all results.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use curt_client::Clock;
use curt_client::{Caller, OpenDirectory, Superblock};
use curt_types::{Attributes, FileKind};
use rustix::io::Errno;

use super::kernel::{FollowLinks, SimulatedFile, SimulatedKernel};
use crate::replay::{DESCRIBED_MAX, PageView, ReplayOutcome, errno};
use crate::trace::{PathOperation, TraceOpenId, TraceOperation, TracePathId, WorkloadTrace};
use crate::tree::{self, ResolvedPath, WorkloadTree};

/// access(2)'s R_OK.
const READ_OK: u32 = 4;

enum SimulatedOpen {
    File(SimulatedFile),
    Directory(OpenDirectory),
}

struct LibraryReplay<'a> {
    kernel: SimulatedKernel<'a>,
    trace: &'a WorkloadTrace,
    tree: &'a WorkloadTree,
    open: HashMap<usize, (SimulatedOpen, TracePathId, u64)>,
    outcome: ReplayOutcome,
}

/// Replays `trace` on the root of `client`, below which `tree` is, with the credential of `caller`.
/// `before` is called before each operation, to advance the clock.
#[must_use]
pub fn replay(
    client: &Superblock,
    caller: &Caller,
    clock: &dyn Clock,
    trace: &WorkloadTrace,
    tree: &WorkloadTree,
    before: &mut dyn FnMut(&TraceOperation),
) -> ReplayOutcome {
    let kernel = SimulatedKernel::new(client, caller, clock);
    let mut run =
        LibraryReplay { kernel, trace, tree, open: HashMap::new(), outcome: ReplayOutcome::default() };
    let start = clock.now();
    let (mut page_start, mut done) = (start, 0);
    for operation in trace.operations() {
        if matches!(operation, TraceOperation::Page) {
            run.end_page(&mut done, clock.now().duration_since(page_start).as_secs_f64());
        }
        before(operation);
        if matches!(operation, TraceOperation::Page) {
            page_start = clock.now();
        }
        run.perform(operation);
    }
    run.end_page(&mut done, clock.now().duration_since(page_start).as_secs_f64());
    run.outcome.seconds = clock.now().duration_since(start).as_secs_f64();
    run.outcome
}

impl LibraryReplay<'_> {
    fn end_page(&mut self, done: &mut u64, seconds: f64) {
        let operations = self.outcome.operations - *done;
        if operations > 0 {
            self.outcome.pages.push(PageView { operations, seconds });
        }
        *done = self.outcome.operations;
    }

    fn perform(&mut self, operation: &TraceOperation) {
        self.outcome.operations += operation.operations();
        match *operation {
            TraceOperation::Page => {}
            TraceOperation::Path { does, path, expected } => {
                let result = self.on_path(does, path);
                if result.err() != errno(expected) {
                    self.wrong(path, format_args!("{does:?}: wanted {}, got {result:?}", expected.word()));
                }
            }
            TraceOperation::Read { open, count } => self.read(open, count),
            TraceOperation::List { open } => self.list(open),
            TraceOperation::Close { open } => {
                if let Some((SimulatedOpen::File(file), ..)) = self.open.remove(&open.index()) {
                    self.kernel.close(&file);
                }
            }
        }
    }

    fn on_path(&mut self, does: PathOperation, path: TracePathId) -> Result<(), Errno> {
        let trace = self.trace;
        let text = trace.path(path).as_bytes();
        match does {
            PathOperation::Stat => {
                let attributes = self.kernel.stat(text, FollowLinks::Follow)?;
                self.compare(path, &attributes, true);
            }
            PathOperation::Lstat => {
                let attributes = self.kernel.stat(text, FollowLinks::Keep)?;
                self.compare(path, &attributes, false);
            }
            PathOperation::Access => self.kernel.access(text, READ_OK)?,
            PathOperation::Readlink => {
                let target = self.kernel.readlink(text)?;
                let wanted = match self.tree.resolve(trace.path(path), false) {
                    Some(ResolvedPath::Entry(entry)) => match &entry.kind {
                        tree::TreeEntryKind::Link { target } => target.as_bytes(),
                        tree::TreeEntryKind::File { .. } | tree::TreeEntryKind::Directory => b"",
                    },
                    Some(ResolvedPath::Top) | None => b"",
                };
                if *target != *wanted {
                    self.wrong(path, format_args!("another target"));
                }
            }
            PathOperation::OpenFile(open) => {
                // A directory is opened for reading as well; the traces do this for files only.
                let file = self.kernel.open(text)?;
                self.open.insert(open.index(), (SimulatedOpen::File(file), path, 0));
            }
            PathOperation::OpenDirectory(open) => {
                let directory = self.kernel.open_directory(text)?;
                self.open.insert(open.index(), (SimulatedOpen::Directory(directory), path, 0));
            }
        }
        Ok(())
    }

    fn compare(&mut self, path: TracePathId, attributes: &Attributes, follow: bool) {
        let right = match self.tree.resolve(self.trace.path(path), follow) {
            None => false,
            Some(at) => match (at.file(), at.directory(), at) {
                (Some((size, _)), ..) => attributes.kind == FileKind::Regular && attributes.size == size,
                (None, Some(_), _) => attributes.kind == FileKind::Directory,
                (None, None, ResolvedPath::Entry(entry)) => match &entry.kind {
                    tree::TreeEntryKind::Link { target } => {
                        attributes.kind == FileKind::Symlink && attributes.size == target.len() as u64
                    }
                    tree::TreeEntryKind::File { .. } | tree::TreeEntryKind::Directory => false,
                },
                (None, None, ResolvedPath::Top) => false,
            },
        };
        if !right {
            self.wrong(path, format_args!("it is {:?} of {} bytes", attributes.kind, attributes.size));
        }
    }

    fn read(&mut self, open: TraceOpenId, count: u32) {
        if count == 0 {
            return;
        }
        let Some((SimulatedOpen::File(file), path, position)) = self.open.get_mut(&open.index()) else {
            return self.nothing_open("read");
        };
        let (path, at) = (*path, *position);
        let resolved = self.tree.resolve(self.trace.path(path), true).and_then(ResolvedPath::file);
        let Some((size, content)) = resolved else {
            return self.wrong(path, format_args!("read: the tree has no file there"));
        };
        let wanted = u64::from(count).min(size.saturating_sub(at));
        match self.kernel.read(file, count as usize) {
            Err(error) => self.wrong(path, format_args!("read: {error}")),
            Ok(bytes) => {
                let got = bytes.len() as u64;
                *position += got;
                self.outcome.bytes += got;
                if got != wanted {
                    self.wrong(path, format_args!("read: {got} bytes at {at}, wanted {wanted}"));
                }
                if let Some(wrong) = content.first_wrong(at, &bytes) {
                    self.wrong(path, format_args!("read: a wrong byte at {}", at + wrong as u64));
                }
            }
        }
    }

    fn list(&mut self, open: TraceOpenId) {
        let Some((SimulatedOpen::Directory(directory), path, _)) = self.open.get(&open.index()) else {
            return self.nothing_open("list");
        };
        let path = *path;
        let at = self.tree.resolve(self.trace.path(path), true).and_then(ResolvedPath::directory);
        let Some(at) = at else {
            return self.wrong(path, format_args!("list: the tree has no directory there"));
        };
        match self.kernel.list(directory) {
            Err(error) => self.wrong(path, format_args!("list: {error}")),
            Ok(names) => {
                let children = self.tree.children(at).into_iter().flatten();
                let wanted: BTreeSet<_> = children.map(|child| child.name().as_bytes().to_vec()).collect();
                if names.len() != wanted.len() || names.into_iter().collect::<BTreeSet<_>>() != wanted {
                    self.wrong(path, format_args!("list: other names"));
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

    fn wrong(&mut self, path: TracePathId, what: fmt::Arguments<'_>) {
        self.outcome.wrong += 1;
        if self.outcome.described.len() < DESCRIBED_MAX {
            self.outcome.described.push(format!("{}: {what}", self.trace.path(path)));
        }
    }
}
