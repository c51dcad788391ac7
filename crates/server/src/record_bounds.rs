//! The maximum length of each procedure's record: its longest arguments and the longest header. So a client that announces a
//! mebibyte for a GETATTR is refused before the bytes arrive.

use curt_proto::{mount3, nfs3};
use curt_rpc::server::{CALL_HEADER_MAX, ProgramBounds, RecordBounds};

/// A handle with its length.
const HANDLE: usize = 4 + nfs3::FILE_HANDLE_MAX;
/// A name with its length and padding; a link's target is no longer.
const NAME: usize = 4 + nfs3::FILENAME_MAX + 1;
/// A path of the MOUNT protocol with its length.
const MOUNT_PATH: usize = 4 + mount3::PATH_MAX;
/// `sattr3` with everything set: mode, uid, gid, size, and two times.
const SETTABLE: usize = 3 * 8 + 12 + 2 * 12;

const _: () = assert!(nfs3::PATH_MAX == nfs3::FILENAME_MAX && nfs3::PATH_MAX % 4 == 3);

/// The bounds of the programs that an [`NfsService`](crate::NfsService) answers.
#[must_use]
pub fn record_bounds() -> RecordBounds {
    let all = nfs3::Procedure::ALL.iter();
    let nfs = ProgramBounds {
        program: nfs3::PROGRAM,
        procedures: all
            .map(|procedure| CALL_HEADER_MAX + arguments_max(*procedure))
            .collect(),
    };
    let mount = ProgramBounds {
        program: mount3::PROGRAM,
        procedures: vec![CALL_HEADER_MAX + MOUNT_PATH; MOUNT_PROCEDURES],
    };
    RecordBounds::new(vec![nfs, mount])
}

/// NULL, MNT, DUMP, UMNT, UMNTALL, EXPORT.
const MOUNT_PROCEDURES: usize = 6;

/// The most bytes that a procedure's arguments have (RFC 1813 section 3.3).
const fn arguments_max(procedure: nfs3::Procedure) -> usize {
    use nfs3::Procedure;
    match procedure {
        Procedure::Null => 0,
        Procedure::Getattr
        | Procedure::Readlink
        | Procedure::Fsstat
        | Procedure::Fsinfo
        | Procedure::Pathconf => HANDLE,
        Procedure::Access => HANDLE + 4,
        // The guard is a time, or none.
        Procedure::Setattr => HANDLE + SETTABLE + 12,
        Procedure::Lookup | Procedure::Remove | Procedure::Rmdir => HANDLE + NAME,
        Procedure::Read | Procedure::Commit => HANDLE + 12,
        // Offset, count, stability, and the length of the data.
        Procedure::Write => HANDLE + 20 + nfs3::DATA_MAX,
        // How to create, and the attributes (a verifier is shorter).
        Procedure::Create => HANDLE + NAME + 4 + SETTABLE,
        Procedure::Mkdir => HANDLE + NAME + SETTABLE,
        Procedure::Symlink => HANDLE + NAME + SETTABLE + NAME,
        // The type, and a device's number.
        Procedure::Mknod => HANDLE + NAME + 4 + SETTABLE + 8,
        Procedure::Rename => 2 * (HANDLE + NAME),
        Procedure::Link => 2 * HANDLE + NAME,
        // Cookie, verifier, count.
        Procedure::Readdir => HANDLE + 20,
        Procedure::ReaddirPlus => HANDLE + 24,
    }
}
