//! The table of permissions: six callers, each operation, many modes. The results of a `Vfs` are
//! compared with those of the kernel for a process with the caller's ids, in an equal directory.
//! Two exceptions are specific to NFS and listed in [`Operation::may_beyond_the_kernel`].

mod kernel;
mod ours;

use curt_vfs::{FsCred, HandleChoice};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::thread::UnshareFlags;

use crate::trees::{Tree, is_root, local, memory, tmpfs};

const CALLERS: [FsCred<'static>; 6] = [
    FsCred::ROOT,
    FsCred { uid: 1000, gid: 1000, groups: &[], privileged: false },
    FsCred { uid: 1001, gid: 1000, groups: &[], privileged: false },
    FsCred { uid: 1002, gid: 1002, groups: &[7, 1000], privileged: false },
    FsCred { uid: 1003, gid: 1003, groups: &[8, 9], privileged: false },
    FsCred { uid: 65534, gid: 65534, groups: &[], privileged: false },
];

/// The caller's operation on the file `f`, or in its directory `d`.
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
    /// The owner of a file may read, write and truncate it whatever its mode, and callers with
    /// execute permission may read it.
    fn may_beyond_the_kernel(self, caller: &FsCred<'_>, case: &Case) -> bool {
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

/// Modes of the directory and of the file: each alone with full permission on the other, and mixed
/// ones.
fn cases() -> Vec<Case> {
    let directories = [0o777, 0o755, 0o1777, 0o2777, 0o3775, 0o500, 0o300, 0o070, 0o030, 0o005, 0o003, 0o000];
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

/// The result: the error, or the attributes of `f` and of the new object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
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
        // The deciding code is the same as with the kernel's handles: each case costs a transaction
        // here.
        compare(|| local("by table", tmpfs(), HandleChoice::Table), 6);
    }
}

fn compare(tree: impl Fn() -> Tree + Sync, step: usize) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Other tests set their own umask.
            #[expect(deprecated, reason = "nothing of this thread depends on what is no longer shared")]
            rustix::thread::unshare(UnshareFlags::FS).unwrap();
            rustix::process::umask(Mode::empty());
            compare_here(&tree, step);
        });
    });
}

fn compare_here(tree: &dyn Fn() -> Tree, step: usize) {
    let twin = tempfile::Builder::new().prefix("curt-twin").tempdir_in(tmpfs()).unwrap();
    std::fs::set_permissions(twin.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let tree = tree();
    let (mut tried, mut wrong) = (0, Vec::new());
    for (number, case) in cases().iter().enumerate().step_by(step) {
        for (column, caller) in CALLERS.iter().enumerate() {
            for operation in OPERATIONS {
                let name = format!("{number}-{column}-{operation:?}");
                let kernel = kernel::by_kernel(&twin.path().join(&name), case, caller, operation);
                let ours = std::thread::scope(|scope| {
                    // On its own thread, because it changes the thread's credentials.
                    scope.spawn(|| ours::by_vfs(&tree, &name, case, caller, operation)).join().unwrap()
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
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(tried > 10_000 / step, "{tried}");
}
