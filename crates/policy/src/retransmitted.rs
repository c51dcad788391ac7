//! The meaning of an error for a retransmitted call.
//!
//! Calls that change names are not idempotent (RFC 1813 §4.5). If the server has executed one and
//! the reply was lost, it answers the retransmission with EXIST or NOENT, unless its duplicate
//! request cache contains the first call. A cache in memory is lost when the server is killed. So
//! after such an error the client looks up the current state, and decides here whether its own call
//! produced it.
//!
//! An error is overruled only if the server was probably restarted after the first transmission: it
//! closed the connection at once, or later and its host refused a new one. While it runs, its
//! duplicate request cache answers, or the call is executed for the first time.
//!
//! The slots of a session take the place of that cache (RFC 8881 §2.10.6). There an error is
//! overruled only if the session in which the call was sent first is lost.
//!
//! The time of the change shows which client made it. The first transmission was executed between
//! its sending and the loss of its connection, by the server's clock. The offset of that clock is
//! known from answered changes of this client; without any, no error is overruled. Another client
//! can still have made the same change: created the name in that interval, with the same
//! credential; or removed it before, where the directory has changed since. SEMANTICS.md documents
//! this.

use core::time::Duration;

use curt_types::{FileKind, Timestamp};

use crate::{attributes::CachingAttributes, time::MonotonicTime};

/// S_ISGID: an object created in a directory with this bit may inherit it.
const SET_GID: u32 = 0o2000;

/// The offset of the server's clock from ours in nanoseconds: lower and upper bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockOffset(Option<OffsetBounds>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OffsetBounds {
    least: i128,
    most: i128,
}

impl ClockOffset {
    /// Absorbs the ctime of a change of this client that was sent and answered at these moments.
    /// The resolution of the server's clock is at most `step`.
    pub fn learn(
        &mut self,
        ctime: Timestamp,
        sent_at: MonotonicTime,
        received_at: MonotonicTime,
        step: Duration,
    ) {
        let ctime = i128::from(ctime.as_nanoseconds());
        let shown = OffsetBounds {
            least: ctime - i128::from(received_at.nanoseconds()),
            most: ctime + nanoseconds(step) - i128::from(sent_at.nanoseconds()),
        };
        let narrowed = self.0.map(|known| OffsetBounds {
            least: known.least.max(shown.least),
            most: known.most.min(shown.most),
        });
        // Clocks drift and are set: then only the newest bounds are valid.
        self.0 = Some(narrowed.filter(|both| both.least <= both.most).unwrap_or(shown));
    }

    /// The interval in which a call sent at `sent_at` can have been executed before `lost_at`, with
    /// the tolerance `slack`; `None` if the offset is unknown.
    #[must_use]
    pub fn execution(
        &self,
        sent_at: MonotonicTime,
        lost_at: MonotonicTime,
        slack: Duration,
    ) -> Option<ExecutionInterval> {
        self.0.map(|offset| ExecutionInterval {
            from: i128::from(sent_at.nanoseconds()) + offset.most - nanoseconds(slack),
            until: i128::from(lost_at.nanoseconds()) + offset.most,
        })
    }
}

fn nanoseconds(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX / 2)
}

/// The interval in which the first transmission was executed, if it was, by the server's clock in
/// nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutionInterval {
    from: i128,
    until: i128,
}

impl ExecutionInterval {
    /// Whether the first transmission can have made a change at `time`, and no earlier call can.
    #[must_use]
    pub fn includes(&self, time: Timestamp) -> bool {
        self.is_followed_by(time) && i128::from(time.as_nanoseconds()) <= self.until
    }

    /// Whether a change at `time` was made by the first transmission or later.
    #[must_use]
    pub fn is_followed_by(&self, time: Timestamp) -> bool {
        i128::from(time.as_nanoseconds()) >= self.from
    }
}

/// The object to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewObject {
    /// Its type.
    pub kind: FileKind,
    /// Its mode.
    pub mode: u32,
    /// The uid of the caller.
    pub uid: u32,
    /// The gid of the caller.
    pub gid: u32,
}

/// The object that now has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentObject {
    /// Its attributes.
    pub attributes: CachingAttributes,
    /// Its link count.
    pub links: u32,
    /// When it was last modified.
    pub mtime: Timestamp,
    /// When it was last changed.
    pub ctime: Timestamp,
    /// The text of a symbolic link, or the type and numbers of a special file, are as requested.
    pub is_same: bool,
}

/// Whether CREATE, MKDIR, SYMLINK or MKNOD, answered with EXIST, created the object itself.
/// `directory_gid`: the group of the directory, which some servers assign to new objects.
#[must_use]
pub fn is_own_object(
    wanted: &NewObject,
    found: &CurrentObject,
    directory_gid: u32,
    execution: &ExecutionInterval,
) -> bool {
    let CurrentObject { attributes, links, mtime, ctime, is_same } = *found;
    let is_mode_same = match wanted.kind {
        FileKind::Directory => (attributes.mode ^ wanted.mode) & !SET_GID == 0,
        // The mode of a symbolic link has no effect, and servers return various values.
        FileKind::Symlink => true,
        _ => attributes.mode == wanted.mode,
    };
    let is_unused = match wanted.kind {
        // Some file systems do not count links of directories.
        FileKind::Directory => links <= 2,
        FileKind::Regular => links == 1 && attributes.size == 0,
        _ => links == 1,
    };
    let is_owner_same = attributes.uid == wanted.uid && [wanted.gid, directory_gid].contains(&attributes.gid);
    let is_alike = attributes.kind == wanted.kind && is_same && is_mode_same && is_owner_same;
    // A directory's mtime is that of its last change of a name; ctime cannot be set.
    is_alike && is_unused && execution.includes(mtime) && execution.includes(ctime)
}

/// The link count of an object before a call and now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinksChange {
    /// Before; `None` if not known.
    pub before: Option<u32>,
    /// Now.
    pub now: u32,
    /// The ctime now, which each link and each removal of one changes.
    pub ctime: Timestamp,
}

/// Whether LINK, answered with EXIST, created the link itself. `is_same`: the name leads to the
/// file that was to be linked.
#[must_use]
pub fn is_own_link(is_same: bool, links: &LinksChange, execution: &ExecutionInterval) -> bool {
    let is_one_more = links.before.is_some_and(|before| before.checked_add(1) == Some(links.now));
    is_same && is_one_more && execution.includes(links.ctime)
}

/// The remaining links of an object whose name was to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemainingLinks {
    /// The server has no such object, or no name of it.
    Nothing,
    /// Other names are left.
    Links(LinksChange),
    /// The server does not report it.
    Unknown,
}

/// Whether REMOVE or RMDIR, answered with NOENT, removed the name itself. The name was known to
/// lead to the object. `directory_mtime` is when the directory's names last changed.
#[must_use]
pub fn is_own_removal(
    remains: &RemainingLinks,
    directory_mtime: Timestamp,
    execution: &ExecutionInterval,
) -> bool {
    let is_object_changed = match remains {
        RemainingLinks::Nothing => true,
        RemainingLinks::Links(links) => {
            let is_one_less = links.before.is_some_and(|before| before.checked_sub(1) == Some(links.now));
            is_one_less && execution.includes(links.ctime)
        }
        RemainingLinks::Unknown => false,
    };
    is_object_changed && execution.is_followed_by(directory_mtime)
}

/// Whether RENAME, answered with NOENT for the old name, renamed the object itself: the object of
/// the old name now has the new one (`is_there`), and did not have it before (`was_there`). `ctime`
/// is that of the object, which file systems set at a rename (POSIX allows it; ext4, XFS, Btrfs and
/// tmpfs do). `directory_mtime` is when the names of the target directory last changed.
#[must_use]
pub fn is_own_rename(
    is_there: bool,
    was_there: bool,
    ctime: Timestamp,
    directory_mtime: Timestamp,
    execution: &ExecutionInterval,
) -> bool {
    is_there && !was_there && execution.includes(ctime) && execution.is_followed_by(directory_mtime)
}
