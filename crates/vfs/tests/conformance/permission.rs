//! The table of permissions: six callers, every operation, many modes. What a `Vfs` says is compared with what the kernel
//! tells a process that has the caller's ids, in a directory that is made alike. Two exceptions are NFS's own and listed
//! in [`Operation::may_beyond_the_kernel`].

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use curt_vfs::{
    Access, Caller, CreateMode, Device, HandleChoice, NodeHandle, SetAttributes, SetTime, Special, Stability,
    Time, Vfs, Visit, Wanted,
};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, Uid};
use rustix::io::Errno;

use crate::trees::{Tree, is_root, local, memory, tmpfs};

const CALLERS: [Caller<'static>; 6] = [
    Caller::ROOT,
    Caller {
        uid: 1000,
        gid: 1000,
        groups: &[],
        privileged: false,
    },
    Caller {
        uid: 1001,
        gid: 1000,
        groups: &[],
        privileged: false,
    },
    Caller {
        uid: 1002,
        gid: 1002,
        groups: &[7, 1000],
        privileged: false,
    },
    Caller {
        uid: 1003,
        gid: 1003,
        groups: &[8, 9],
        privileged: false,
    },
    Caller {
        uid: 65534,
        gid: 65534,
        groups: &[],
        privileged: false,
    },
];

/// What the caller does with the file `f`, or in the directory `d` that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Lookup,
    List,
    Read,
    Write,
    Truncate,
    Chmod,
    ChownToOneself,
    ChgrpToOneself,
    TouchNow,
    TouchExactly,
    Create,
    MakeDirectory,
    MakeSymlink,
    MakeFifo,
    MakeDevice,
    Remove,
    RemoveDirectory,
    Rename,
    RenameOver,
    MoveDirectory,
    Link,
    AccessRead,
    AccessWrite,
    AccessExecute,
}

use Operation::*;

const OPERATIONS: [Operation; 24] = [
    Lookup,
    List,
    Read,
    Write,
    Truncate,
    Chmod,
    ChownToOneself,
    ChgrpToOneself,
    TouchNow,
    TouchExactly,
    Create,
    MakeDirectory,
    MakeSymlink,
    MakeFifo,
    MakeDevice,
    Remove,
    RemoveDirectory,
    Rename,
    RenameOver,
    MoveDirectory,
    Link,
    AccessRead,
    AccessWrite,
    AccessExecute,
];

const EXACTLY: i64 = 1_000_000_000;

impl Operation {
    /// The owner of a file reads, writes and truncates it whatever its mode, and who executes reads.
    fn may_beyond_the_kernel(self, caller: &Caller<'_>, case: &Case) -> bool {
        let owner = caller.uid == case.file_uid;
        let class = if owner {
            case.file_mode >> 6
        } else if caller.in_group(case.file_gid) {
            case.file_mode >> 3
        } else {
            case.file_mode
        };
        match self {
            Read => owner || class & 1 != 0,
            Write | Truncate | TouchNow => owner,
            _ => false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    directory_mode: u32,
    directory_uid: u32,
    file_mode: u32,
    file_uid: u32,
    file_gid: u32,
}

/// Modes of the directory with those of the file: each alone against an open counterpart, and mixed ones.
fn cases() -> Vec<Case> {
    let directories = [
        0o777, 0o755, 0o1777, 0o2777, 0o3775, 0o500, 0o300, 0o070, 0o030, 0o005, 0o003, 0o000,
    ];
    let files = [
        0o644, 0o666, 0o000, 0o400, 0o200, 0o100, 0o040, 0o020, 0o010, 0o004, 0o002, 0o001, 0o6755, 0o2646,
        0o4777,
    ];
    let case = |directory_mode, directory_uid, file_mode, file_uid, file_gid| Case {
        directory_mode,
        directory_uid,
        file_mode,
        file_uid,
        file_gid,
    };
    let mut cases = Vec::new();
    for directory in directories {
        for uid in [1000, 1003] {
            cases.push(case(directory, uid, 0o644, 1000, 1000));
        }
        cases.push(case(directory, 1000, 0o666, 1003, 1000));
    }
    for file in files {
        cases.push(case(0o777, 0, file, 1000, 1000));
        cases.push(case(0o777, 0, file, 1000, 2222));
        cases.push(case(0o1777, 0, file, 1003, 1000));
    }
    cases
}

/// What came of it: the error, or else what `f` and what was made are like.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Result {
    errno: Option<Errno>,
    file: Option<(u32, u32, u32)>,
    made: Option<(u32, u32, u32)>,
}

#[test]
fn memory_decides_as_the_kernel_does() {
    if is_root() {
        compare(memory, 1);
    }
}

#[test]
fn a_local_tree_by_handle_decides_as_the_kernel_does() {
    if is_root() {
        compare(|| local("by handle", tmpfs(), HandleChoice::Kernel), 1);
    }
}

#[test]
fn a_local_tree_by_table_decides_as_the_kernel_does() {
    if is_root() {
        // The code that decides is the same as by handle: each case costs a transaction here.
        compare(|| local("by table", tmpfs(), HandleChoice::Table), 6);
    }
}

fn compare(tree: impl Fn() -> Tree, step: usize) {
    rustix::process::umask(Mode::empty());
    let twin = tempfile::Builder::new()
        .prefix("curt-twin")
        .tempdir_in(tmpfs())
        .unwrap();
    std::fs::set_permissions(twin.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let tree = tree();
    let (mut tried, mut wrong) = (0, Vec::new());
    for (number, case) in cases().iter().enumerate().step_by(step) {
        for (column, caller) in CALLERS.iter().enumerate() {
            for operation in OPERATIONS {
                let name = format!("{number}-{column}-{operation:?}");
                let kernel = by_kernel(&twin.path().join(&name), case, caller, operation);
                let ours = std::thread::scope(|scope| {
                    // On a thread of its own: it changes whom the thread works as.
                    scope
                        .spawn(|| by_vfs(&tree, &name, case, caller, operation))
                        .join()
                        .unwrap()
                });
                let excused = kernel.errno.is_some()
                    && ours.errno.is_none()
                    && operation.may_beyond_the_kernel(caller, case);
                tried += 1;
                if kernel != ours && !excused {
                    wrong.push(format!(
                        "{operation:?} by {caller:?} in {case:?}:\n  kernel {kernel:?}\n  ours   {ours:?}"
                    ));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {tried}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(tried > 10_000 / step, "{tried}");
}

/// `d` with the file `f`, the file `g`, the empty directory `e`, and beside `d` the open directory `o`.
fn by_vfs(tree: &Tree, name: &str, case: &Case, caller: &Caller<'_>, operation: Operation) -> Result {
    let vfs = &*tree.vfs;
    let root = Caller::ROOT;
    let plain = SetAttributes::with_mode(0o777);
    let make_directory = |directory: &NodeHandle, name: &[u8]| {
        vfs.make_directory(&root, directory, name, &plain)
            .value
            .unwrap()
            .node
            .handle
    };
    let make_file = |directory: &NodeHandle, name: &[u8]| {
        vfs.create(&root, directory, name, CreateMode::Guarded(&plain))
            .value
            .unwrap()
            .node
            .handle
    };
    let top = make_directory(&tree.root(), name.as_bytes());
    let other = make_directory(&top, b"o");
    let d = make_directory(&top, b"d");
    let (f, g, e) = (make_file(&d, b"f"), make_file(&d, b"g"), make_directory(&d, b"e"));
    let give = |node: &NodeHandle, uid, gid, mode| {
        let owner = SetAttributes {
            uid: Some(uid),
            gid: Some(gid),
            ..SetAttributes::default()
        };
        tree.set(&root, node, &owner).value.unwrap();
        tree.set(&root, node, &SetAttributes::with_mode(mode))
            .value
            .unwrap();
    };
    for node in [&f, &g] {
        give(node, case.file_uid, case.file_gid, case.file_mode);
    }
    give(&e, case.file_uid, case.file_gid, case.file_mode | 0o111);
    give(&d, case.directory_uid, 1000, case.directory_mode);
    let value = act(vfs, caller, operation, (&d, &f, &other));
    let errno = value.err().map(|error| error.errno().unwrap());
    let triple = |node: curt_vfs::Attributes| (node.mode, node.uid, node.gid);
    let made = vfs
        .lookup(&root, &d, b"new")
        .value
        .ok()
        .map(|node| triple(node.attributes));
    Result {
        errno,
        file: vfs.attributes(&f).ok().map(triple),
        made,
    }
}

fn act(
    vfs: &dyn Vfs,
    caller: &Caller<'_>,
    operation: Operation,
    (d, f, other): (&NodeHandle, &NodeHandle, &NodeHandle),
) -> std::result::Result<(), curt_vfs::Error> {
    let set = |set: &SetAttributes| vfs.set_attributes(caller, f, set, None).value;
    let access = |right| match vfs.access(caller, f, right).value {
        Ok(granted) if granted == right => Ok(()),
        Ok(_) => Err(Errno::ACCESS.into()),
        Err(error) => Err(error),
    };
    let nothing = SetAttributes::default();
    let mode = SetAttributes::with_mode(0o6771);
    let special = |special| {
        vfs.make_special(caller, d, b"new", special, &mode)
            .value
            .map(|_| ())
    };
    let time = SetTime::To(Time {
        seconds: EXACTLY,
        nanoseconds: 0,
    });
    match operation {
        Lookup => vfs.lookup(caller, d, b"f").value.map(|_| ()),
        List => vfs
            .read_directory(caller, d, 0, Wanted::Names, &mut |_| Visit::Continue)
            .value
            .map(|_| ()),
        Read => vfs.read(caller, f, 0, 1, &mut Vec::new()).value.map(|_| ()),
        Write => vfs
            .write(caller, f, 0, b"x", Stability::Unstable)
            .value
            .map(|_| ()),
        Truncate => set(&SetAttributes {
            size: Some(3),
            ..nothing
        }),
        Chmod => set(&SetAttributes::with_mode(0o6711)),
        ChownToOneself => set(&SetAttributes {
            uid: Some(caller.uid),
            ..nothing
        }),
        ChgrpToOneself => set(&SetAttributes {
            gid: Some(caller.gid),
            ..nothing
        }),
        TouchNow => set(&SetAttributes {
            atime: SetTime::Now,
            mtime: SetTime::Now,
            ..nothing
        }),
        TouchExactly => set(&SetAttributes {
            atime: time,
            mtime: time,
            ..nothing
        }),
        Create => vfs
            .create(caller, d, b"new", CreateMode::Guarded(&mode))
            .value
            .map(|_| ()),
        MakeDirectory => vfs.make_directory(caller, d, b"new", &mode).value.map(|_| ()),
        MakeSymlink => vfs.make_symlink(caller, d, b"new", b"f", &mode).value.map(|_| ()),
        MakeFifo => special(Special::Fifo),
        MakeDevice => special(Special::CharacterDevice(Device { major: 1, minor: 3 })),
        Remove => vfs.remove(caller, d, b"f").value,
        RemoveDirectory => vfs.remove_directory(caller, d, b"e").value,
        Rename => vfs.rename(caller, d, b"f", other, b"new").value,
        RenameOver => vfs.rename(caller, d, b"f", d, b"g").value,
        MoveDirectory => vfs.rename(caller, d, b"e", other, b"e").value,
        Link => vfs.link(caller, f, d, b"new").directory.value,
        AccessRead => access(Access::READ),
        AccessWrite => access(Access::MODIFY),
        AccessExecute => access(Access::EXECUTE),
    }
}

/// The same by the kernel, on a thread that has the caller's ids and nothing else.
fn by_kernel(top: &Path, case: &Case, caller: &Caller<'_>, operation: Operation) -> Result {
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
    for (name, file_mode) in [
        ("d/f", case.file_mode),
        ("d/g", case.file_mode),
        ("d/e", case.file_mode | 0o111),
    ] {
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
    let file = rustix::fs::fstat(&f)
        .ok()
        .filter(|status| status.st_nlink > 0)
        .map(triple);
    let made = rustix::fs::statat(&d, "new", AtFlags::SYMLINK_NOFOLLOW)
        .ok()
        .map(triple);
    Result {
        errno: errno.unwrap().err(),
        file,
        made,
    }
}

/// Gives this thread, and no other, the ids of the caller; root keeps its capabilities, but for the one that would let suid
/// bits survive a write: nobody's write through a server may do that.
fn become_caller(caller: &Caller<'_>, operation: Operation) -> rustix::io::Result<()> {
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
        set_capabilities(
            None,
            CapabilitySets {
                effective: held.permitted.difference(withheld),
                ..held
            },
        )?;
    }
    Ok(())
}

fn system_call(
    caller: &Caller<'_>,
    operation: Operation,
    (d, f, other): (&OwnedFd, &OwnedFd, &OwnedFd),
) -> rustix::io::Result<()> {
    let proc = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
    let open = |fd, flags: OFlags| rustix::fs::open(proc(fd), flags | OFlags::CLOEXEC, Mode::empty());
    let mode = Mode::from_raw_mode(0o6771);
    let times = |tv_sec, tv_nsec| {
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
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
        MakeDevice => rustix::fs::mknodat(
            d,
            "new",
            FileType::CharacterDevice,
            mode,
            rustix::fs::makedev(1, 3),
        ),
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
