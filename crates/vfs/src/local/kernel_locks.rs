//! Locks of the kernel on files of a local tree: open file description locks (fcntl(2),
//! `F_OFD_SETLK`), on a descriptor of its own for each file, because closing a descriptor of the
//! file cache must not release them.

use std::os::fd::{AsFd, OwnedFd};

use curt_types::{ByteRange, FileKind, LockType};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::credentials::FsIdentity;
use super::data::reopen;
use super::sys::{FcntlLock, ofd_get_lock, ofd_set_lock};
use super::{LocalVfs, attributes_of};
use crate::caller::FsCred;
use crate::error::Error;
use crate::handle::NodeHandle;
use crate::kernel_locks::{KernelLockError, KernelLocks, ProcessLock};

/// Locked files have at most this part of the descriptors of the process: each has one. Clients
/// would otherwise leave none for connections.
const DESCRIPTOR_SHARE: u64 = 4;

/// Maximum number of files of all trees that may have locks of the kernel at a time. The caller
/// counts them.
#[must_use]
pub fn kernel_locked_files_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / DESCRIPTOR_SHARE).unwrap_or(usize::MAX)
}

/// The locks of one file.
struct OfdLocks {
    file: OwnedFd,
    /// Read locks take the place of write locks, which need a descriptor open for writing. No
    /// client can write to the file through this server.
    is_read_only: bool,
}

impl LocalVfs {
    /// Opens a file for locks, with the server's own rights: the caller's were checked before.
    pub(super) fn open_locks(&self, node: &NodeHandle) -> Result<Box<dyn KernelLocks>, Error> {
        let object = self.resolve(node)?;
        if attributes_of(object.as_fd())?.kind != FileKind::Regular {
            return Err(Errno::INVAL.into());
        }
        if let FsIdentity::Anybody = self.identity {
            self.identity.switch_to(&FsCred::ROOT)?;
        }
        // Not blocking: another process may have a lease on the file.
        let open = |mode: OFlags| match reopen(object.as_fd(), mode | OFlags::NONBLOCK) {
            // If descriptors run out, cached ones are closed.
            Err(Errno::MFILE | Errno::NFILE) => {
                self.open_caches.release_all();
                reopen(object.as_fd(), mode | OFlags::NONBLOCK)
            }
            opened => opened,
        };
        let (file, is_read_only) = match open(OFlags::RDWR) {
            // A read-only file system, a program that is running, a file of another user.
            Err(Errno::ROFS | Errno::TXTBSY | Errno::ACCESS | Errno::PERM) => (open(OFlags::RDONLY)?, true),
            opened => (opened?, false),
        };
        Ok(Box::new(OfdLocks { file, is_read_only }))
    }
}

/// The range as the kernel describes it: start and length, 0 for "to the end". Files end at 2^63-1;
/// `None` for a range beyond.
fn fcntl_range(range: ByteRange) -> Option<FcntlLock> {
    let start = i64::try_from(range.first()).ok()?;
    let last = i64::try_from(range.last()).ok().filter(|last| *last < i64::MAX);
    let length = last.map_or(0, |last| last - start + 1);
    Some(FcntlLock { lock_type: None, start, length, process: 0 })
}

fn byte_range(lock: &FcntlLock) -> ByteRange {
    let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
    ByteRange::of_length(unsigned(lock.start), unsigned(lock.length)).unwrap_or(ByteRange::WHOLE)
}

impl KernelLocks for OfdLocks {
    fn set(&mut self, range: ByteRange, lock_type: Option<LockType>) -> Result<(), KernelLockError> {
        let Some(lock) = fcntl_range(range) else { return Ok(()) };
        let possible = |lock_type| if self.is_read_only { LockType::Read } else { lock_type };
        let lock = FcntlLock { lock_type: lock_type.map(possible), ..lock };
        match ofd_set_lock(self.file.as_fd(), &lock) {
            Ok(()) => Ok(()),
            Err(Errno::AGAIN | Errno::ACCESS) => Err(KernelLockError::Conflict),
            Err(errno) => Err(KernelLockError::Failed(errno.into())),
        }
    }

    fn test(&self, range: ByteRange, lock_type: LockType) -> Result<Option<ProcessLock>, Error> {
        let Some(lock) = fcntl_range(range) else { return Ok(None) };
        let found = ofd_get_lock(self.file.as_fd(), &FcntlLock { lock_type: Some(lock_type), ..lock })?;
        Ok(found.lock_type.map(|lock_type| ProcessLock {
            // -1: the lock belongs to an open file description.
            process: u32::try_from(found.process).unwrap_or(0),
            lock_type,
            range: byte_range(&found),
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::io::{BufRead, BufReader, Write};
    use std::path::Path;
    use std::process::{Child, ChildStdout, Command, Stdio};

    use super::*;
    use crate::{LocalOptions, Vfs};

    /// A process that locks the file with fcntl(2), range by range, on request.
    struct Locker {
        child: Child,
        answers: BufReader<ChildStdout>,
    }

    const LOCKER: &str = "
import fcntl, sys
file = open(sys.argv[1], 'r+')
for line in sys.stdin:
    kind, start, length = line.split()
    try:
        fcntl.lockf(file, getattr(fcntl, kind) | fcntl.LOCK_NB, int(length), int(start))
        print('done', flush=True)
    except OSError:
        print('refused', flush=True)
";

    impl Locker {
        fn new(path: &Path) -> Self {
            let mut child = Command::new("python3")
                .args(["-c", LOCKER])
                .arg(path)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let answers = BufReader::new(child.stdout.take().unwrap());
            Self { child, answers }
        }

        fn call(&mut self, kind: &str, start: u64, length: u64) -> String {
            let mut requests = self.child.stdin.as_ref().unwrap();
            writeln!(requests, "{kind} {start} {length}").unwrap();
            let mut answer = String::new();
            self.answers.read_line(&mut answer).unwrap();
            answer.trim().to_owned()
        }
    }

    impl Drop for Locker {
        fn drop(&mut self) {
            drop(self.child.stdin.take());
            let _ = self.child.wait();
        }
    }

    fn bytes(first: u64, last: u64) -> ByteRange {
        ByteRange::new(first, last).unwrap()
    }

    fn tree(directory: &Path) -> LocalVfs {
        LocalVfs::open(directory, &LocalOptions::default()).unwrap()
    }

    // SEMANTICS: lockd-13.
    #[test]
    fn the_servers_locks_and_those_of_processes_exclude_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "data").unwrap();
        let vfs = tree(directory.path());
        let node = vfs.lookup(&FsCred::ROOT, &vfs.root(), b"file").value.unwrap().handle;
        let mut locks = vfs.open_kernel_locks(&node).unwrap();
        let mut other = Locker::new(&path);

        locks.set(bytes(10, 19), Some(LockType::Write)).unwrap();
        assert_eq!(other.call("LOCK_SH", 19, 1), "refused");
        assert_eq!(other.call("LOCK_EX", 20, 10), "done");
        assert!(matches!(locks.set(bytes(15, 20), Some(LockType::Read)), Err(KernelLockError::Conflict)));
        let holder = locks.test(bytes(0, u64::MAX), LockType::Read).unwrap().unwrap();
        assert_eq!(holder.process, other.child.id());
        assert_eq!((holder.lock_type, holder.range), (LockType::Write, bytes(20, 29)));
        locks.set(bytes(10, 14), None).unwrap();
        locks.set(bytes(15, 19), Some(LockType::Read)).unwrap();
        assert_eq!(other.call("LOCK_EX", 10, 5), "done");
        assert_eq!(other.call("LOCK_SH", 15, 5), "done");
        assert_eq!(other.call("LOCK_EX", 15, 1), "refused");

        // A second description of this process is another owner.
        let second = vfs.open_kernel_locks(&node).unwrap();
        let holder = second.test(bytes(15, 15), LockType::Write).unwrap().unwrap();
        assert!([0, other.child.id()].contains(&holder.process));
        // Closing other descriptors of the file releases nothing.
        drop(second);
        vfs.release_all();
        assert_eq!(other.call("LOCK_EX", 15, 1), "refused");
        drop(locks);
        assert_eq!(other.call("LOCK_EX", 0, 0), "done");
    }

    #[test]
    fn the_kernel_knows_offsets_up_to_63_bits() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "").unwrap();
        let vfs = tree(directory.path());
        let node = vfs.lookup(&FsCred::ROOT, &vfs.root(), b"file").value.unwrap().handle;
        let mut locks = vfs.open_kernel_locks(&node).unwrap();
        let other = vfs.open_kernel_locks(&node).unwrap();
        let last = i64::MAX.cast_unsigned();
        for (range, kernel) in [
            (bytes(last + 1, u64::MAX), None),
            (bytes(last, last), Some(bytes(last, u64::MAX))),
            (bytes(last - 1, last - 1), Some(bytes(last - 1, last - 1))),
            (bytes(5, last + 7), Some(bytes(5, u64::MAX))),
            (ByteRange::WHOLE, Some(ByteRange::WHOLE)),
        ] {
            locks.set(range, Some(LockType::Write)).unwrap();
            let found = other.test(ByteRange::WHOLE, LockType::Read).unwrap();
            assert_eq!(found.map(|lock| lock.range), kernel, "{range:?}");
            locks.set(ByteRange::WHOLE, None).unwrap();
        }
    }

    #[test]
    fn only_regular_files_have_locks() {
        let directory = tempfile::tempdir().unwrap();
        let vfs = tree(directory.path());
        let refused = vfs.open_kernel_locks(&vfs.root()).map(drop);
        assert_eq!(refused, Err(Error::Os(Errno::INVAL)));
    }
}
