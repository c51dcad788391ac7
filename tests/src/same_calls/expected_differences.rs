//! Expected differences between a mount and a local directory, because of NFSv3 or because the
//! server is another machine.
//!
//! This list is complete: any other difference is a fault. SEMANTICS.md documents the same.

use rustix::fs::{Access, SeekFrom};
use rustix::io::Errno;

use crate::call::{Actor, CallPath, NewTime, SystemCall};
use crate::test_directory::{CallAnswer, CallOutcome, StatSummary};

/// A call that is made on the mount only, because the protocol does not support it, and its allowed
/// results.
pub(crate) struct MountRefusal {
    matches: fn(&SystemCall) -> bool,
    pub(crate) says: &'static [Errno],
}

/// Calls that NFSv3 does not support. The first error is the mount's, others are the kernel's own.
pub(crate) const REFUSED: [MountRefusal; 3] = [
    // No procedure allocates or deallocates a part of a file.
    MountRefusal {
        matches: |call| matches!(call, SystemCall::Allocate { .. }),
        says: &[Errno::OPNOTSUPP, Errno::BADF, Errno::ISDIR, Errno::NODEV, Errno::SPIPE],
    },
    // No procedure supports extended attributes.
    MountRefusal {
        matches: |call| {
            matches!(
                call,
                SystemCall::SetAttribute { .. }
                    | SystemCall::GetAttribute { .. }
                    | SystemCall::ListAttributes { .. }
            )
        },
        says: &[
            Errno::OPNOTSUPP,
            Errno::NOENT,
            Errno::NOTDIR,
            Errno::ACCESS,
            Errno::LOOP,
            Errno::NAMETOOLONG,
            Errno::NODATA,
            Errno::PERM,
        ],
    },
    // RENAME always replaces.
    MountRefusal {
        matches: |call| matches!(call, SystemCall::Rename { flags, .. } if !flags.is_empty()),
        says: &[
            Errno::INVAL,
            Errno::NOENT,
            Errno::NOTDIR,
            Errno::ACCESS,
            Errno::LOOP,
            Errno::NAMETOOLONG,
            Errno::EXIST,
            Errno::BUSY,
            Errno::NOTEMPTY,
            Errno::PERM,
            Errno::ISDIR,
        ],
    },
];

impl MountRefusal {
    pub(crate) fn of(call: &SystemCall) -> Option<&'static Self> {
        REFUSED.iter().find(|row| (row.matches)(call))
    }
}

/// Calls that are not made, because later results would differ.
pub(crate) fn is_left_out(actor: Actor, call: &SystemCall) -> bool {
    let half = |access: NewTime, change: NewTime| {
        matches!((access, change), (NewTime::Now, NewTime::Omit) | (NewTime::Omit, NewTime::Now))
    };
    let is_user = actor == Actor::User;
    match *call {
        // The kernel sends no LOOKUP for ".", so search permission on the directory is not checked.
        _ if is_user && call.names().iter().any(|name| is_dot(name)) => true,
        SystemCall::Symlink { ref target, .. } => is_dot(target),
        // A user with write permission may set either time to the server's; locally, only both.
        SystemCall::Times { access, change, .. } | SystemCall::TimesOpen { access, change, .. } => {
            is_user && half(access, change)
        }
        // A change of nothing is not sent, and does not change the ctime.
        SystemCall::Owner { user: None, group: None, .. } => true,
        _ => false,
    }
}

fn is_dot(name: &CallPath) -> bool {
    name.0.split(|byte| *byte == b'/').next_back() == Some(b".")
}

/// A call and its context.
pub(crate) struct ComparedCall<'c> {
    pub(crate) call: &'c SystemCall,
    pub(crate) local: &'c CallOutcome,
    pub(crate) mount: &'c CallOutcome,
    /// The object of the call in the local directory.
    pub(crate) object: Option<&'c StatSummary>,
}

/// Results that may differ, with the reason.
const FORCED: [fn(&ComparedCall<'_>) -> bool; 5] = [
    // NFSv3 does not report holes: the whole file is data.
    |case| {
        let size = case.size();
        let expected = match case.call {
            SystemCall::Seek { to: SeekFrom::Data(at), .. } if *at < size => *at,
            SystemCall::Seek { to: SeekFrom::Hole(at), .. } if *at < size => size,
            _ => return false,
        };
        *case.mount == Ok(CallAnswer::Number(expected)) && matches!(case.local, Ok(_) | Err(Errno::NXIO))
    },
    // Positions in a directory depend on its file system.
    |case| matches!(case.call, SystemCall::Seek { .. }) && case.object.is_some_and(StatSummary::is_directory),
    // A call that fails for two reasons: names and types are checked by the client, permissions by
    // the server, so later.
    |case| {
        let rights = matches!(case.local, Err(Errno::ACCESS | Errno::PERM));
        let others = [
            Errno::ISDIR,
            Errno::NOTDIR,
            Errno::EXIST,
            Errno::NOTEMPTY,
            Errno::INVAL,
            Errno::NAMETOOLONG,
            Errno::BUSY,
            Errno::LOOP,
            Errno::ACCESS,
            Errno::PERM,
        ];
        let two_names = matches!(case.call, SystemCall::Rename { .. } | SystemCall::Link { .. });
        rights
            && matches!(case.mount, Err(errno) if others.contains(errno) || two_names && *errno == Errno::NOENT)
    },
    // To change a directory is to create and remove names in it, which also needs search
    // permission.
    |case| {
        let writes = matches!(case.call, SystemCall::Access { mode, .. } if mode.contains(Access::WRITE_OK));
        writes && *case.mount == Err(Errno::ACCESS) && case.object.is_some_and(StatSummary::is_directory)
    },
    // The kernel opens FIFOs and devices itself, and checks no permissions on a mount where the
    // server does.
    |case| {
        let is_open = matches!(case.call, SystemCall::Open { .. }) && *case.local == Err(Errno::ACCESS);
        is_open && case.object.is_some_and(StatSummary::is_special)
    },
];

impl ComparedCall<'_> {
    fn size(&self) -> u64 {
        self.object.map_or(0, |seen| u64::try_from(seen.size).unwrap_or(0))
    }
}

/// Whether the results differ only as expected.
pub(crate) fn is_expected_difference(case: &ComparedCall<'_>) -> bool {
    FORCED.iter().any(|row| row(case))
}
