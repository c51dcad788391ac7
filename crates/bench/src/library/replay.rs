//! Replays a trace through the client library, as a kernel would.

use std::ffi::CStr;
use std::time::{Duration, Instant};

use curt_client::Clock;
use curt_client::{Caller, OpenDirectory, Superblock};
use curt_types::FileKind;
use rustix::fs::FileType;
use rustix::io::Errno;

use super::kernel::{FollowLinks, SimulatedFile, SimulatedKernel};
use crate::replay::{Replay, ReplayOutcome, ReplayTarget};
use crate::trace::{TraceOperation, WorkloadTrace};
use crate::tree::WorkloadTree;

/// access(2)'s R_OK.
const READ_OK: u32 = 4;

enum SimulatedOpen {
    File(SimulatedFile),
    Directory(OpenDirectory),
}

struct LibraryTarget<'a> {
    kernel: SimulatedKernel<'a>,
    clock: &'a dyn Clock,
    before: &'a mut dyn FnMut(&TraceOperation),
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
    let target = LibraryTarget { kernel: SimulatedKernel::new(client, caller, clock), clock, before };
    Replay::on(target, trace, tree).run(Duration::ZERO, |_| ())
}

impl ReplayTarget for LibraryTarget<'_> {
    type Open = SimulatedOpen;

    fn before(&mut self, operation: &TraceOperation) {
        (self.before)(operation);
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn stat(&mut self, path: &CStr, follow: bool) -> Result<(FileType, u64), Errno> {
        let links = if follow { FollowLinks::Follow } else { FollowLinks::Keep };
        let attributes = self.kernel.stat(path.to_bytes(), links)?;
        let kind = match attributes.kind {
            FileKind::Regular => FileType::RegularFile,
            FileKind::Directory => FileType::Directory,
            FileKind::Symlink => FileType::Symlink,
            _ => FileType::Unknown,
        };
        Ok((kind, attributes.size))
    }

    fn access(&mut self, path: &CStr) -> Result<(), Errno> {
        self.kernel.access(path.to_bytes(), READ_OK)
    }

    fn readlink(&mut self, path: &CStr) -> Result<Vec<u8>, Errno> {
        self.kernel.readlink(path.to_bytes()).map(Vec::from)
    }

    fn open(&mut self, path: &CStr, directory: bool) -> Result<SimulatedOpen, Errno> {
        let path = path.to_bytes();
        if directory {
            return self.kernel.open_directory(path).map(SimulatedOpen::Directory);
        }
        // A directory is opened for reading as well; the traces do this for files only.
        self.kernel.open(path).map(SimulatedOpen::File)
    }

    fn read(&mut self, open: &mut SimulatedOpen, buffer: &mut [u8]) -> Result<usize, Errno> {
        let SimulatedOpen::File(file) = open else {
            return Err(Errno::ISDIR);
        };
        let bytes = self.kernel.read(file, buffer.len())?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn names(&mut self, open: &SimulatedOpen) -> Result<Vec<Vec<u8>>, Errno> {
        match open {
            SimulatedOpen::Directory(directory) => self.kernel.list(directory),
            SimulatedOpen::File(_) => Err(Errno::NOTDIR),
        }
    }

    fn close(&mut self, open: SimulatedOpen) {
        if let SimulatedOpen::File(file) = open {
            self.kernel.close(&file);
        }
    }
}
