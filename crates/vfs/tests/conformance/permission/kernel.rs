//! The operations by system calls, in a process with the caller's ids.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use curt_vfs::FsCred;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, Uid};

use super::Operation::*;
use super::{Case, EXACTLY, Operation, Outcome};

/// The operation by the kernel, on a thread with the caller's ids only.
pub(super) fn by_kernel(top: &Path, case: &Case, caller: &FsCred<'_>, operation: Operation) -> Outcome {
    let path = |name: &str| top.join(name);
    let directory = |name: &str| std::fs::create_dir(path(name)).unwrap();
    std::fs::create_dir(top).unwrap();
    directory("o");
    std::os::unix::fs::chown(path("o"), Some(0), Some(0)).unwrap();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    mode(&path("o"), 0o777);
    directory("d");
    directory("d/e");
    for (name, file_mode) in
        [("d/f", case.file_mode), ("d/g", case.file_mode), ("d/e", case.file_mode | 0o111)]
    {
        if name != "d/e" {
            std::fs::write(path(name), "").unwrap();
        }
        std::os::unix::fs::chown(path(name), Some(case.file_uid), Some(case.file_gid)).unwrap();
        mode(&path(name), file_mode);
    }
    std::os::unix::fs::chown(path("d"), Some(case.directory_uid), Some(1000)).unwrap();
    mode(&path("d"), case.directory_mode);
    let open = |name: &str| {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(path(name), flags, Mode::empty()).unwrap()
    };
    let (d, f, other) = (open("d"), open("d/f"), open("o"));
    let errno = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                become_caller(caller, operation)
                    .and_then(|()| system_call(caller, operation, (&d, &f, &other)))
            })
            .join()
    });
    let triple = |status: rustix::fs::Stat| (status.st_mode & 0o7777, status.st_uid, status.st_gid);
    let file = rustix::fs::fstat(&f).ok().filter(|status| status.st_nlink > 0).map(triple);
    let made = rustix::fs::statat(&d, "new", AtFlags::SYMLINK_NOFOLLOW).ok().map(triple);
    Outcome { errno: errno.unwrap().err(), file, made }
}

/// Sets only this thread's ids to the caller's; root keeps its capabilities, except the one with
/// which suid bits survive a write, because no write through a server may have this effect.
fn become_caller(caller: &FsCred<'_>, operation: Operation) -> rustix::io::Result<()> {
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let groups: Vec<Gid> = caller.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    let (uid, gid) = (Uid::from_raw(caller.uid), Gid::from_raw(caller.gid));
    set_thread_groups(&groups)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    if caller.privileged {
        let held = capabilities(None)?;
        let withheld = match operation {
            Write | Truncate => CapabilitySet::FSETID,
            _ => CapabilitySet::empty(),
        };
        set_capabilities(None, CapabilitySets { effective: held.permitted.difference(withheld), ..held })?;
    }
    Ok(())
}

fn system_call(
    caller: &FsCred<'_>,
    operation: Operation,
    (d, f, other): (&OwnedFd, &OwnedFd, &OwnedFd),
) -> rustix::io::Result<()> {
    let proc = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
    let open = |fd, flags: OFlags| rustix::fs::open(proc(fd), flags | OFlags::CLOEXEC, Mode::empty());
    let mode = Mode::from_raw_mode(0o6771);
    let times = |tv_sec, tv_nsec| {
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(f, c"", &times, AtFlags::EMPTY_PATH)
    };
    let access = |right| rustix::fs::accessat(CWD, proc(f), right, AtFlags::EACCESS);
    let chown = |uid, gid| rustix::fs::chownat(f, c"", uid, gid, AtFlags::EMPTY_PATH);
    match operation {
        Lookup => rustix::fs::statat(d, "f", AtFlags::SYMLINK_NOFOLLOW).map(|_| ()),
        List => open(d, OFlags::RDONLY | OFlags::DIRECTORY).map(|_| ()),
        Read => open(f, OFlags::RDONLY).map(|_| ()),
        Write => rustix::io::pwrite(open(f, OFlags::WRONLY)?.as_fd(), b"x", 0).map(|_| ()),
        Truncate => rustix::fs::ftruncate(open(f, OFlags::WRONLY)?, 3),
        Chmod => rustix::fs::chmodat(CWD, proc(f), Mode::from_raw_mode(0o6711), AtFlags::empty()),
        ChownToOneself => chown(Some(Uid::from_raw(caller.uid)), None),
        ChgrpToOneself => chown(None, Some(Gid::from_raw(caller.gid))),
        TouchNow => times(0, UTIME_NOW),
        TouchExactly => times(EXACTLY, 0),
        Create => {
            rustix::fs::openat(d, "new", OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, mode).map(|_| ())
        }
        MakeDirectory => rustix::fs::mkdirat(d, "new", mode),
        MakeSymlink => rustix::fs::symlinkat("f", d, "new"),
        MakeFifo => rustix::fs::mknodat(d, "new", FileType::Fifo, mode, 0),
        MakeDevice => {
            rustix::fs::mknodat(d, "new", FileType::CharacterDevice, mode, rustix::fs::makedev(1, 3))
        }
        Remove => rustix::fs::unlinkat(d, "f", AtFlags::empty()),
        RemoveDirectory => rustix::fs::unlinkat(d, "e", AtFlags::REMOVEDIR),
        Rename => rustix::fs::renameat(d, "f", other, "new"),
        RenameOver => rustix::fs::renameat(d, "f", d, "g"),
        MoveDirectory => rustix::fs::renameat(d, "e", other, "e"),
        Link => rustix::fs::linkat(CWD, proc(f), d, "new", AtFlags::SYMLINK_FOLLOW),
        AccessRead => access(rustix::fs::Access::READ_OK),
        AccessWrite => access(rustix::fs::Access::WRITE_OK),
        AccessExecute => access(rustix::fs::Access::EXEC_OK),
    }
}
