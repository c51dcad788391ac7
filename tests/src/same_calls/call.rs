//! A system call for both directories.

use std::fmt;

use curt_tests::random::Random;
use rustix::fs::{Access, AtFlags, FallocateFlags, OFlags, RenameFlags, SeekFrom};

use crate::names::shown;

/// Maximum number of open files.
pub(crate) const SLOTS: usize = 8;
/// Maximum number of bytes of one call.
pub(crate) const CALL_BYTES: usize = 12 << 10;

/// The caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Actor {
    Root,
    User,
}

/// A new time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewTime {
    Now,
    Omit,
    At { seconds: i64, nanoseconds: i64 },
}

/// The owner of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// The process (`F_SETLK`).
    Process,
    /// The open file description (`F_OFD_SETLK`).
    OpenFile,
    /// The open file description (flock(2)); all bytes.
    Flock,
}

/// The change of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockChange {
    Shared,
    Exclusive,
    Unlocked,
}

/// A path with a readable Debug format.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct CallPath(pub(crate) Vec<u8>);

impl fmt::Debug for CallPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&shown(&self.0))
    }
}

/// Bytes to write: a number of bytes from a seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeededBytes {
    seed: u64,
    length: usize,
}

impl SeededBytes {
    pub(crate) fn draw(random: &mut Random) -> Self {
        Self { seed: random.number(), length: random.below(CALL_BYTES) }
    }

    pub(crate) fn make(self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        Random::new(self.seed).fill(&mut bytes);
        bytes
    }
}

/// A system call, or a sequence of calls.
#[derive(Clone, Debug)]
pub(crate) enum SystemCall {
    Open {
        slot: usize,
        path: CallPath,
        flags: OFlags,
        mode: u32,
    },
    Close {
        slot: usize,
    },
    Write {
        slot: usize,
        bytes: SeededBytes,
    },
    WriteAt {
        slot: usize,
        offset: u64,
        bytes: SeededBytes,
    },
    Read {
        slot: usize,
        length: usize,
    },
    ReadAt {
        slot: usize,
        offset: u64,
        length: usize,
    },
    MapWrite {
        slot: usize,
        offset: usize,
        bytes: SeededBytes,
        synced: bool,
    },
    MapRead {
        slot: usize,
        offset: usize,
        length: usize,
    },
    SetLength {
        slot: usize,
        length: u64,
    },
    Seek {
        slot: usize,
        to: SeekFrom,
    },
    Allocate {
        slot: usize,
        flags: FallocateFlags,
        offset: u64,
        length: u64,
    },
    CopyRange {
        from: usize,
        offset: u64,
        to: usize,
        to_offset: u64,
        length: usize,
    },
    Sync {
        slot: usize,
        data_only: bool,
    },
    StatOpen {
        slot: usize,
    },
    ModeOpen {
        slot: usize,
        mode: u32,
    },
    TimesOpen {
        slot: usize,
        access: NewTime,
        change: NewTime,
    },
    ListOpen {
        slot: usize,
    },
    /// Without waiting.
    Lock {
        slot: usize,
        kind: LockKind,
        change: LockChange,
        first: i64,
        length: i64,
    },
    /// Whether the range could be locked (`F_GETLK`, `F_OFD_GETLK`).
    TestLock {
        slot: usize,
        kind: LockKind,
        exclusive: bool,
        first: i64,
        length: i64,
    },
    MakeDirectory {
        path: CallPath,
        mode: u32,
    },
    RemoveDirectory {
        path: CallPath,
    },
    Unlink {
        path: CallPath,
    },
    Rename {
        from: CallPath,
        to: CallPath,
        flags: RenameFlags,
    },
    Link {
        from: CallPath,
        to: CallPath,
        flags: AtFlags,
    },
    Symlink {
        target: CallPath,
        path: CallPath,
    },
    ReadLink {
        path: CallPath,
    },
    MakeNode {
        path: CallPath,
        kind: u32,
        mode: u32,
    },
    Mode {
        path: CallPath,
        mode: u32,
    },
    Owner {
        path: CallPath,
        user: Option<u32>,
        group: Option<u32>,
        flags: AtFlags,
    },
    Times {
        path: CallPath,
        access: NewTime,
        change: NewTime,
        flags: AtFlags,
    },
    Stat {
        path: CallPath,
        flags: AtFlags,
    },
    Access {
        path: CallPath,
        mode: Access,
    },
    List {
        path: CallPath,
    },
    ListWhileChanging {
        path: CallPath,
    },
    FileSystem {
        path: CallPath,
    },
    SetAttribute {
        path: CallPath,
    },
    GetAttribute {
        path: CallPath,
    },
    ListAttributes {
        path: CallPath,
    },
}

impl SystemCall {
    /// The paths that the kernel walks.
    pub(crate) fn names(&self) -> Vec<&CallPath> {
        match self {
            Self::Rename { from, to, .. } | Self::Link { from, to, .. } => vec![from, to],
            Self::Open { path, .. }
            | Self::MakeDirectory { path, .. }
            | Self::RemoveDirectory { path }
            | Self::Unlink { path }
            | Self::Symlink { path, .. }
            | Self::ReadLink { path }
            | Self::MakeNode { path, .. }
            | Self::Mode { path, .. }
            | Self::Owner { path, .. }
            | Self::Times { path, .. }
            | Self::Stat { path, .. }
            | Self::Access { path, .. }
            | Self::List { path }
            | Self::ListWhileChanging { path }
            | Self::FileSystem { path }
            | Self::SetAttribute { path }
            | Self::GetAttribute { path }
            | Self::ListAttributes { path } => vec![path],
            _ => Vec::new(),
        }
    }

    /// The open file of the call.
    pub(crate) fn slot(&self) -> Option<usize> {
        match *self {
            Self::Open { slot, .. }
            | Self::Close { slot }
            | Self::Write { slot, .. }
            | Self::WriteAt { slot, .. }
            | Self::Read { slot, .. }
            | Self::ReadAt { slot, .. }
            | Self::MapWrite { slot, .. }
            | Self::MapRead { slot, .. }
            | Self::SetLength { slot, .. }
            | Self::Seek { slot, .. }
            | Self::Allocate { slot, .. }
            | Self::Sync { slot, .. }
            | Self::StatOpen { slot }
            | Self::ModeOpen { slot, .. }
            | Self::TimesOpen { slot, .. }
            | Self::ListOpen { slot }
            | Self::Lock { slot, .. }
            | Self::TestLock { slot, .. } => Some(slot),
            Self::CopyRange { to, .. } => Some(to),
            _ => None,
        }
    }
}
