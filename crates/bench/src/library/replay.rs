//! Performs a trace through the client library, as a kernel would, and checks everything that comes back.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use curt_client::environment::Clock;
use curt_client::plan::{Attributes, Kind};
use curt_client::{Caller, Client, OpenDirectory};
use rustix::io::Errno;

use super::kernel::{Kernel, KernelFile, Links};
use crate::replay::{DESCRIBED_MAX, Outcome, Page, errno};
use crate::trace::{OpenId, Operation, PathId, PathOperation, Trace};
use crate::tree::{self, Resolved, Tree};

/// access(2)'s R_OK.
const READ_OK: u32 = 4;

enum Open {
    File(KernelFile),
    Directory(OpenDirectory),
}

struct Run<'a> {
    kernel: Kernel<'a>,
    trace: &'a Trace,
    tree: &'a Tree,
    open: HashMap<usize, (Open, PathId, u64)>,
    outcome: Outcome,
}

/// Performs `trace` on the root of `client`, below which `tree` is, on behalf of `caller`. `before` is called before each
/// operation, to let time pass or pause.
#[must_use]
pub fn replay(
    (client, caller): (&Client, &Caller),
    clock: &dyn Clock,
    (trace, tree): (&Trace, &Tree),
    before: &mut dyn FnMut(&Operation),
) -> Outcome {
    let kernel = Kernel::new(client, caller, clock);
    let mut run = Run {
        kernel,
        trace,
        tree,
        open: HashMap::new(),
        outcome: Outcome::default(),
    };
    let start = clock.now();
    let (mut page_start, mut done) = (start, 0);
    for operation in trace.operations() {
        if matches!(operation, Operation::Page) {
            run.end_page(&mut done, clock.now().duration_since(page_start).as_secs_f64());
        }
        before(operation);
        if matches!(operation, Operation::Page) {
            page_start = clock.now();
        }
        run.perform(operation);
    }
    run.end_page(&mut done, clock.now().duration_since(page_start).as_secs_f64());
    run.outcome.seconds = clock.now().duration_since(start).as_secs_f64();
    run.outcome
}

impl Run<'_> {
    fn end_page(&mut self, done: &mut u64, seconds: f64) {
        let operations = self.outcome.operations - *done;
        if operations > 0 {
            self.outcome.pages.push(Page { operations, seconds });
        }
        *done = self.outcome.operations;
    }

    fn perform(&mut self, operation: &Operation) {
        self.outcome.operations += operation.operations();
        match *operation {
            Operation::Page => {}
            Operation::Path { does, path, expected } => {
                let result = self.on_path(does, path);
                if result.err() != errno(expected) {
                    self.wrong(
                        path,
                        format_args!("{does:?}: wanted {}, got {result:?}", expected.word()),
                    );
                }
            }
            Operation::Read { open, count } => self.read(open, count),
            Operation::List { open } => self.list(open),
            Operation::Close { open } => {
                if let Some((Open::File(file), ..)) = self.open.remove(&open.index()) {
                    self.kernel.close(&file);
                }
            }
        }
    }

    fn on_path(&mut self, does: PathOperation, path: PathId) -> Result<(), Errno> {
        let trace = self.trace;
        let text = trace.path(path).as_bytes();
        match does {
            PathOperation::Stat => {
                let attributes = self.kernel.stat(text, Links::Follow)?;
                self.compare(path, &attributes, true);
            }
            PathOperation::Lstat => {
                let attributes = self.kernel.stat(text, Links::Keep)?;
                self.compare(path, &attributes, false);
            }
            PathOperation::Access => self.kernel.access(text, READ_OK)?,
            PathOperation::Readlink => {
                let target = self.kernel.readlink(text)?;
                let wanted = match self.tree.resolve(trace.path(path), false) {
                    Some(Resolved::Entry(entry)) => match &entry.kind {
                        tree::Kind::Link { target } => target.as_bytes(),
                        tree::Kind::File { .. } | tree::Kind::Directory => b"",
                    },
                    Some(Resolved::Top) | None => b"",
                };
                if *target != *wanted {
                    self.wrong(path, format_args!("another target"));
                }
            }
            PathOperation::OpenFile(open) => {
                // A directory is opened for reading as well; the traces do so for files alone.
                let file = self.kernel.open(text)?;
                self.open.insert(open.index(), (Open::File(file), path, 0));
            }
            PathOperation::OpenDirectory(open) => {
                let directory = self.kernel.open_directory(text)?;
                self.open
                    .insert(open.index(), (Open::Directory(directory), path, 0));
            }
        }
        Ok(())
    }

    fn compare(&mut self, path: PathId, attributes: &Attributes, follow: bool) {
        let right = match self.tree.resolve(self.trace.path(path), follow) {
            None => false,
            Some(at) => match (at.file(), at.directory(), at) {
                (Some((size, _)), ..) => attributes.kind == Kind::Regular && attributes.size == size,
                (None, Some(_), _) => attributes.kind == Kind::Directory,
                (None, None, Resolved::Entry(entry)) => match &entry.kind {
                    tree::Kind::Link { target } => {
                        attributes.kind == Kind::Symlink && attributes.size == target.len() as u64
                    }
                    tree::Kind::File { .. } | tree::Kind::Directory => false,
                },
                (None, None, Resolved::Top) => false,
            },
        };
        if !right {
            self.wrong(
                path,
                format_args!("it is {:?} of {} bytes", attributes.kind, attributes.size),
            );
        }
    }

    fn read(&mut self, open: OpenId, count: u32) {
        if count == 0 {
            return;
        }
        let Some((Open::File(file), path, position)) = self.open.get_mut(&open.index()) else {
            return self.nothing_open("read");
        };
        let (path, at) = (*path, *position);
        let resolved = self
            .tree
            .resolve(self.trace.path(path), true)
            .and_then(Resolved::file);
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

    fn list(&mut self, open: OpenId) {
        let Some((Open::Directory(directory), path, _)) = self.open.get(&open.index()) else {
            return self.nothing_open("list");
        };
        let path = *path;
        let at = self
            .tree
            .resolve(self.trace.path(path), true)
            .and_then(Resolved::directory);
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
            self.outcome
                .described
                .push(format!("{does}: its open had failed"));
        }
    }

    fn wrong(&mut self, path: PathId, what: fmt::Arguments<'_>) {
        self.outcome.wrong += 1;
        if self.outcome.described.len() < DESCRIBED_MAX {
            self.outcome
                .described
                .push(format!("{}: {what}", self.trace.path(path)));
        }
    }
}
