//! One of the directories of the calls, with its open files.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use curt_tests::sys::{FileMapping, fcntl_lock};
use rustix::fs::{
    self, AtFlags, CWD, Mode, RawDir, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags,
};
use rustix::io::Errno;

use crate::call::{LockChange, LockKind, NewTime, SLOTS, SystemCall};

/// Prefix of silly-renamed files.
const SILLY: &[u8] = b".nfs";
/// The name of an extended attribute, and its value.
const ATTRIBUTE: (&str, &[u8]) = ("user.same-calls", b"value");
/// Number of bytes read by one call of an interrupted listing: enough for one name of any length.
const LISTED_BYTES: usize = 320;

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallAnswer {
    Done,
    Number(u64),
    Bytes(Vec<u8>),
    Names(Vec<Vec<u8>>),
    /// Compared field by field.
    Stat(Box<StatSummary>),
    /// An invariant was violated.
    Wrong(String),
}

pub(crate) type CallOutcome = Result<CallAnswer, Errno>;

/// The comparable part of a result of stat(2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StatSummary {
    pub(crate) inode: u64,
    pub(crate) mode: u32,
    pub(crate) links: u64,
    pub(crate) owner: (u32, u32),
    pub(crate) size: i64,
    pub(crate) device: u64,
    pub(crate) blocks: i64,
    /// atime, mtime and ctime in seconds and nanoseconds.
    pub(crate) times: [(i64, i64); 3],
}

impl StatSummary {
    pub(crate) fn is_directory(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }

    /// Whether it is a FIFO, a device or a socket.
    pub(crate) fn is_special(&self) -> bool {
        !self.is_directory() && !self.is_regular() && self.mode & 0o170_000 != 0o120_000
    }

    pub(crate) fn is_regular(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }
}

impl From<Stat> for StatSummary {
    fn from(stat: Stat) -> Self {
        let time = |seconds, nanoseconds| (seconds, i64::try_from(nanoseconds).unwrap_or(-1));
        Self {
            inode: stat.st_ino,
            mode: stat.st_mode,
            links: stat.st_nlink,
            owner: (stat.st_uid, stat.st_gid),
            size: stat.st_size,
            device: stat.st_rdev,
            blocks: stat.st_blocks,
            times: [
                time(stat.st_atime, stat.st_atime_nsec),
                time(stat.st_mtime, stat.st_mtime_nsec),
                time(stat.st_ctime, stat.st_ctime_nsec),
            ],
        }
    }
}

/// A directory and its open files.
pub(crate) struct TestDirectory {
    top: PathBuf,
    slots: [Option<OwnedFd>; SLOTS],
}

impl TestDirectory {
    pub(crate) fn new(top: &Path) -> Self {
        Self { top: top.to_owned(), slots: [const { None }; SLOTS] }
    }

    pub(crate) fn close(&mut self, slot: usize) {
        self.slots[slot] = None;
    }

    /// The object at `path`, without following a link.
    pub(crate) fn look(&self, path: &[u8]) -> Option<StatSummary> {
        fs::lstat(self.at(path)).ok().map(StatSummary::from)
    }

    /// The object at `path`, following links.
    pub(crate) fn look_behind(&self, path: &[u8]) -> Option<StatSummary> {
        fs::stat(self.at(path)).ok().map(StatSummary::from)
    }

    /// The open object.
    pub(crate) fn look_open(&self, slot: usize) -> Option<StatSummary> {
        fs::fstat(self.slots[slot].as_ref()?).ok().map(StatSummary::from)
    }

    /// "" is an empty path for the system calls, and here.
    fn at(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() {
            return PathBuf::new();
        }
        // `join` would drop a trailing slash.
        let mut whole = self.top.as_os_str().as_bytes().to_vec();
        whole.push(b'/');
        whole.extend(path);
        PathBuf::from(OsStr::from_bytes(&whole))
    }

    fn file(&self, slot: usize) -> Result<&OwnedFd, Errno> {
        self.slots[slot].as_ref().ok_or(Errno::BADF)
    }

    /// Makes the call.
    pub(crate) fn perform(&mut self, call: &SystemCall) -> CallOutcome {
        match call {
            SystemCall::Open { slot, path, flags, mode } => {
                let file = fs::open(self.at(&path.0), *flags, Mode::from_raw_mode(*mode))?;
                self.slots[*slot] = Some(file);
                Ok(CallAnswer::Done)
            }
            SystemCall::Close { slot } => {
                self.close(*slot);
                Ok(CallAnswer::Done)
            }
            _ if call.slot().is_some() => self.perform_on_file(call),
            _ => self.perform_on_path(call),
        }
    }

    fn perform_on_file(&self, call: &SystemCall) -> CallOutcome {
        match *call {
            SystemCall::Write { slot, bytes } => count(rustix::io::write(self.file(slot)?, &bytes.make())?),
            SystemCall::WriteAt { slot, offset, bytes } => {
                count(rustix::io::pwrite(self.file(slot)?, &bytes.make(), offset)?)
            }
            SystemCall::Read { slot, length } => {
                read(length, |bytes| rustix::io::read(self.file(slot)?, bytes))
            }
            SystemCall::ReadAt { slot, offset, length } => {
                read(length, |bytes| rustix::io::pread(self.file(slot)?, bytes, offset))
            }
            SystemCall::MapWrite { .. } | SystemCall::MapRead { .. } => self.perform_mapped(call),
            SystemCall::SetLength { slot, length } => done(fs::ftruncate(self.file(slot)?, length)),
            SystemCall::Seek { slot, to } => fs::seek(self.file(slot)?, to).map(CallAnswer::Number),
            SystemCall::Allocate { slot, flags, offset, length } => {
                done(fs::fallocate(self.file(slot)?, flags, offset, length))
            }
            SystemCall::CopyRange { from, mut offset, to, mut to_offset, length } => {
                let (from, to) = (self.file(from)?, self.file(to)?);
                count(fs::copy_file_range(from, Some(&mut offset), to, Some(&mut to_offset), length)?)
            }
            SystemCall::Sync { slot, data_only: true } => done(fs::fdatasync(self.file(slot)?)),
            SystemCall::Sync { slot, data_only: false } => done(fs::fsync(self.file(slot)?)),
            SystemCall::StatOpen { slot } => fs::fstat(self.file(slot)?).map(stat),
            SystemCall::ModeOpen { slot, mode } => {
                done(fs::fchmod(self.file(slot)?, Mode::from_raw_mode(mode)))
            }
            SystemCall::TimesOpen { slot, access, change } => {
                done(fs::futimens(self.file(slot)?, &timestamps(access, change)))
            }
            SystemCall::ListOpen { slot } => {
                let file = self.file(slot)?;
                fs::seek(file, fs::SeekFrom::Start(0))?;
                let mut names = Vec::new();
                list(file, usize::MAX, &mut names)?;
                Ok(sorted(names))
            }
            SystemCall::Lock { slot, kind, change, first, length } => {
                done(lock(self.file(slot)?, kind, change, (first, length)))
            }
            SystemCall::TestLock { slot, kind, exclusive, first, length } => {
                let command = if kind == LockKind::Process { libc::F_GETLK } else { libc::F_OFD_GETLK };
                let lock_type = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                let found = fcntl_lock(self.file(slot)?, command, range_of(lock_type, first, length));
                let is_free = found.map_err(errno)?.l_type == lock_type_of(libc::F_UNLCK);
                Ok(CallAnswer::Number(u64::from(is_free)))
            }
            _ => unreachable!("the others are about a path"),
        }
    }

    fn perform_mapped(&self, call: &SystemCall) -> CallOutcome {
        match *call {
            SystemCall::MapWrite { slot, offset, bytes, synced } => {
                let bytes = bytes.make();
                let Some((mapping, length)) = self.map(slot, offset, bytes.len())? else {
                    return Ok(CallAnswer::Done);
                };
                mapping.write(&bytes[..length]);
                if synced {
                    mapping.sync().map_err(errno)?;
                }
                Ok(CallAnswer::Done)
            }
            SystemCall::MapRead { slot, offset, length } => {
                let mapping = self.map(slot, offset, length)?;
                Ok(CallAnswer::Bytes(mapping.map_or_else(Vec::new, |(mapping, _)| mapping.read())))
            }
            _ => unreachable!("the others do not map"),
        }
    }

    fn perform_on_path(&self, call: &SystemCall) -> CallOutcome {
        let at = |name: &crate::call::CallPath| self.at(&name.0);
        match call {
            SystemCall::MakeDirectory { path, mode } => done(fs::mkdir(at(path), Mode::from_raw_mode(*mode))),
            SystemCall::RemoveDirectory { path } => done(fs::rmdir(at(path))),
            SystemCall::Unlink { path } => done(fs::unlink(at(path))),
            SystemCall::Rename { from, to, flags } => {
                done(fs::renameat_with(CWD, at(from), CWD, at(to), *flags))
            }
            SystemCall::Link { from, to, flags } => done(fs::linkat(CWD, at(from), CWD, at(to), *flags)),
            // A target is text, and the same in both directories.
            SystemCall::Symlink { target, path } => done(fs::symlink(OsStr::from_bytes(&target.0), at(path))),
            SystemCall::ReadLink { path } => {
                Ok(CallAnswer::Bytes(fs::readlink(at(path), Vec::new())?.into_bytes()))
            }
            SystemCall::MakeNode { path, kind, mode } => {
                let (kind, mode) = (fs::FileType::from_raw_mode(*kind), Mode::from_raw_mode(*mode));
                done(fs::mknodat(CWD, at(path), kind, mode, fs::makedev(1, 3)))
            }
            SystemCall::Mode { path, mode } => done(fs::chmod(at(path), Mode::from_raw_mode(*mode))),
            SystemCall::Owner { path, user, group, flags } => {
                let (user, group) = (user.map(fs::Uid::from_raw), group.map(fs::Gid::from_raw));
                done(fs::chownat(CWD, at(path), user, group, *flags))
            }
            SystemCall::Times { path, access, change, flags } => {
                done(fs::utimensat(CWD, at(path), &timestamps(*access, *change), *flags))
            }
            SystemCall::Stat { path, flags } => fs::statat(CWD, at(path), *flags).map(stat),
            SystemCall::Access { path, mode } => done(fs::accessat(CWD, at(path), *mode, AtFlags::empty())),
            SystemCall::List { path } => {
                let mut names = Vec::new();
                list(directory(&at(path))?, usize::MAX, &mut names)?;
                Ok(sorted(names))
            }
            SystemCall::ListWhileChanging { path } if path.0.is_empty() => Err(Errno::NOENT),
            SystemCall::ListWhileChanging { path } => list_while_changing(&at(path)),
            SystemCall::FileSystem { path } => {
                let said = fs::statfs(at(path))?;
                Ok(CallAnswer::Number(u64::try_from(said.f_namelen).unwrap_or(0)))
            }
            SystemCall::SetAttribute { path } => {
                done(fs::setxattr(at(path), ATTRIBUTE.0, ATTRIBUTE.1, XattrFlags::empty()))
            }
            SystemCall::GetAttribute { path } => {
                read(100, |bytes| fs::getxattr(at(path), ATTRIBUTE.0, bytes))
            }
            SystemCall::ListAttributes { path } => read(1000, |bytes| fs::listxattr(at(path), bytes)),
            _ => unreachable!("the others are about an open file"),
        }
    }

    /// Maps the part of the range that is within the file; `None` if there is none.
    fn map(&self, slot: usize, offset: usize, length: usize) -> Result<Option<(FileMapping, usize)>, Errno> {
        let file = self.file(slot)?;
        let size = usize::try_from(fs::fstat(file)?.st_size).unwrap_or(0);
        let length = length.min(size.saturating_sub(offset));
        if length == 0 {
            return Ok(None);
        }
        let mapping = FileMapping::new(file, offset, length).map_err(errno)?;
        Ok(Some((mapping, length)))
    }
}

/// Reads a directory while names are created and removed. Names that exist throughout must be
/// returned once; others at most once.
fn list_while_changing(path: &Path) -> CallOutcome {
    let own = |number: usize| path.join(format!("while-listing-{number}"));
    let mode = Mode::from_raw_mode(0o755);
    for number in 0..6 {
        fs::mkdir(own(number), mode)?;
    }
    let mut before = Vec::new();
    list(directory(path)?, usize::MAX, &mut before)?;
    let reader = directory(path)?;
    let mut told = Vec::new();
    list(&reader, 2, &mut told)?;
    fs::rmdir(own(0))?;
    fs::rename(own(1), own(6))?;
    fs::mkdir(own(7), mode)?;
    list(&reader, usize::MAX, &mut told)?;
    for number in 2..8 {
        fs::rmdir(own(number))?;
    }
    let moving =
        |name: &[u8]| [0, 1, 6, 7].iter().any(|number| name == format!("while-listing-{number}").as_bytes());
    told.sort();
    let twice = told.windows(2).find(|pair| pair[0] == pair[1]);
    let missing = before.iter().find(|name| !moving(name) && !told.contains(name));
    let unknown = told.iter().find(|name| !moving(name) && !before.contains(name));
    let shown = |name: &Vec<u8>| name.escape_ascii().to_string();
    Ok(match (twice, missing, unknown) {
        (Some(pair), _, _) => CallAnswer::Wrong(format!("{} was told twice", shown(&pair[0]))),
        (_, Some(name), _) => CallAnswer::Wrong(format!("{} was not told", shown(name))),
        (_, _, Some(name)) => CallAnswer::Wrong(format!("{} was told and is not there", shown(name))),
        (None, None, None) => CallAnswer::Done,
    })
}

fn directory(path: &Path) -> Result<OwnedFd, Errno> {
    fs::open(path, fs::OFlags::RDONLY | fs::OFlags::DIRECTORY | fs::OFlags::CLOEXEC, Mode::empty())
}

/// Adds at least `most` names if there are so many, without . and .. and silly-renamed files.
fn list(directory: impl AsFd, most: usize, names: &mut Vec<Vec<u8>>) -> Result<(), Errno> {
    let mut buffer = [const { MaybeUninit::uninit() }; LISTED_BYTES];
    let mut entries = RawDir::new(directory, &mut buffer);
    let mut count = 0;
    // All names of a received buffer are consumed.
    while count < most || !entries.is_buffer_empty() {
        let Some(entry) = entries.next() else { break };
        let name = entry?.file_name().to_bytes().to_vec();
        count += 1;
        if name != b"." && name != b".." && !name.starts_with(SILLY) {
            names.push(name);
        }
    }
    Ok(())
}

fn sorted(mut names: Vec<Vec<u8>>) -> CallAnswer {
    names.sort();
    CallAnswer::Names(names)
}

fn lock(file: &OwnedFd, kind: LockKind, change: LockChange, range: (i64, i64)) -> Result<(), Errno> {
    if kind == LockKind::Flock {
        let operation = match change {
            LockChange::Shared => fs::FlockOperation::NonBlockingLockShared,
            LockChange::Exclusive => fs::FlockOperation::NonBlockingLockExclusive,
            LockChange::Unlocked => fs::FlockOperation::NonBlockingUnlock,
        };
        return fs::flock(file, operation);
    }
    let command = if kind == LockKind::Process { libc::F_SETLK } else { libc::F_OFD_SETLK };
    let lock_type = match change {
        LockChange::Shared => libc::F_RDLCK,
        LockChange::Exclusive => libc::F_WRLCK,
        LockChange::Unlocked => libc::F_UNLCK,
    };
    fcntl_lock(file, command, range_of(lock_type, range.0, range.1)).map(drop).map_err(errno)
}

fn range_of(lock_type: i32, first: i64, length: i64) -> libc::flock {
    libc::flock {
        l_type: lock_type_of(lock_type),
        l_whence: lock_type_of(libc::SEEK_SET),
        l_start: first,
        l_len: length,
        l_pid: 0,
    }
}

fn lock_type_of(number: i32) -> i16 {
    i16::try_from(number).expect("a small constant")
}

fn done(result: Result<(), Errno>) -> CallOutcome {
    result.map(|()| CallAnswer::Done)
}

fn count(bytes: usize) -> CallOutcome {
    Ok(CallAnswer::Number(bytes as u64))
}

fn stat(stat: Stat) -> CallAnswer {
    CallAnswer::Stat(Box::new(stat.into()))
}

fn read(length: usize, call: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) -> CallOutcome {
    let mut bytes = vec![0; length];
    let got = call(&mut bytes)?;
    bytes.truncate(got);
    Ok(CallAnswer::Bytes(bytes))
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn timestamps(access: NewTime, change: NewTime) -> Timestamps {
    let one = |time| match time {
        NewTime::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        NewTime::Omit => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        NewTime::At { seconds, nanoseconds } => Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
    };
    Timestamps { last_access: one(access), last_modification: one(change) }
}
