//! Where a mount answers otherwise than a local directory because NFSv3 has no words for it, or
//! because it is another machine that answers.
//!
//! This is all of it: whatever else differs is a fault. SEMANTICS.md says the same to whoever uses
//! a mount.

use rustix::fs::{Access, SeekFrom};
use rustix::io::Errno;

use crate::call::{Actor, CallPath, NewTime, SystemCall};
use crate::test_directory::{CallAnswer, CallOutcome, StatSummary};

/// A call that is made on the mount alone, for the protocol has none like it, and what it may say
/// there.
pub(crate) struct MountRefusal {
    matches: fn(&SystemCall) -> bool,
    pub(crate) says: &'static [Errno],
}

/// The calls that have no words in NFSv3. The first error is the mount's own word, others are the
/// kernel's about what it sees itself.
pub(crate) const REFUSED: [MountRefusal; 3] = [
    // No procedure allocates or gives back a part of a file.
    MountRefusal {
        matches: |call| matches!(call, SystemCall::Allocate { .. }),
        says: &[
            Errno::OPNOTSUPP,
            Errno::BADF,
            Errno::ISDIR,
            Errno::NODEV,
            Errno::SPIPE,
        ],
    },
    // No procedure knows extended attributes.
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
    // RENAME replaces, always.
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

/// Calls that are not made, for they would go on otherwise ever after.
pub(crate) fn is_left_out(actor: Actor, call: &SystemCall) -> bool {
    let half = |access: NewTime, change: NewTime| {
        matches!(
            (access, change),
            (NewTime::Now, NewTime::Omit) | (NewTime::Omit, NewTime::Now)
        )
    };
    let is_user = actor == Actor::User;
    match *call {
        // The kernel looks no name up for ".", and so nobody asks whether the caller may search the
        // directory.
        _ if is_user && call.names().iter().any(|name| is_dot(name)) => true,
        SystemCall::Symlink { ref target, .. } => is_dot(target),
        // Who may write a file may set either of its times to the server's; locally, only both.
        SystemCall::Times { access, change, .. } | SystemCall::TimesOpen { access, change, .. } => {
            is_user && half(access, change)
        }
        // A change of nothing is not sent, and no new ctime comes of it.
        SystemCall::Owner {
            user: None,
            group: None,
            ..
        } => true,
        _ => false,
    }
}

fn is_dot(name: &CallPath) -> bool {
    name.0.split(|byte| *byte == b'/').next_back() == Some(b".")
}

/// What is known of a call beside its answers.
pub(crate) struct ComparedCall<'c> {
    pub(crate) call: &'c SystemCall,
    pub(crate) local: &'c CallOutcome,
    pub(crate) mount: &'c CallOutcome,
    /// What the call is about, in the local world.
    pub(crate) object: Option<&'c StatSummary>,
}

/// Answers that may differ, with the reason.
const FORCED: [fn(&ComparedCall<'_>) -> bool; 5] = [
    // Nobody says where a file's holes are: all of it is data.
    |case| {
        let size = case.size();
        let expected = match case.call {
            SystemCall::Seek {
                to: SeekFrom::Data(at),
                ..
            } if *at < size => *at,
            SystemCall::Seek {
                to: SeekFrom::Hole(at),
                ..
            } if *at < size => size,
            _ => return false,
        };
        *case.mount == Ok(CallAnswer::Number(expected)) && matches!(case.local, Ok(_) | Err(Errno::NXIO))
    },
    // Positions in a directory are what its file system makes of them.
    |case| matches!(case.call, SystemCall::Seek { .. }) && case.object.is_some_and(StatSummary::is_directory),
    // A call that fails for two reasons: names and kinds are looked at here, rights at the server,
    // so after them.
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
    // To change a directory is to make and remove names in it, which takes the right to search it
    // as well.
    |case| {
        let writes = matches!(case.call, SystemCall::Access { mode, .. } if mode.contains(Access::WRITE_OK));
        writes && *case.mount == Err(Errno::ACCESS) && case.object.is_some_and(StatSummary::is_directory)
    },
    // The kernel opens FIFOs and devices by itself, and checks no rights on a mount that leaves
    // them to the server.
    |case| {
        let is_open = matches!(case.call, SystemCall::Open { .. }) && *case.local == Err(Errno::ACCESS);
        is_open && case.object.is_some_and(StatSummary::is_special)
    },
];

impl ComparedCall<'_> {
    fn size(&self) -> u64 {
        self.object
            .map_or(0, |seen| u64::try_from(seen.size).unwrap_or(0))
    }
}

/// Whether the answers differ only as they have to.
pub(crate) fn is_expected_difference(case: &ComparedCall<'_>) -> bool {
    FORCED.iter().any(|row| row(case))
}
