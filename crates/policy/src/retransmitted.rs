//! What the refusal of a call means that was sent more than once.
//!
//! The calls that change names cannot be repeated (RFC 1813 §4.5): the server that has executed
//! one, and whose reply was lost, refuses the copy with EXIST or NOENT, unless its reply cache
//! remembers the first. A cache in memory is lost when the server is killed. So after such a
//! refusal the client asks what is there, and decides here whether that is its own work.
//!
//! A refusal is overruled only if the server was probably restarted after the first copy was sent:
//! it ended the connection at once, or later and its host refused another one. As long as it runs,
//! its reply cache answers, or the call is executed for the first time.
//!
//! What shows whose work it is, is the time of the change. The first copy was executed between its
//! sending and the loss of its connection, by the server's clock. How far that differs from ours is
//! known from changes of our own whose replies came; without any, no refusal is overruled. Another
//! client can still have done the same: made it in that interval, with the same credential; or
//! removed it before, where the directory has changed since. SEMANTICS.md says so.

use core::time::Duration;

use curt_types::{ChangeStamp, FileKind, Timestamp};

use crate::{facts::Facts, time::Moment};

/// S_ISGID: what is made in a directory that has it may inherit it.
const SET_GID: u32 = 0o2000;

/// By how much the server's clock is ahead of ours: nanoseconds, at least and at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockOffset(Option<OffsetBounds>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OffsetBounds {
    least: i128,
    most: i128,
}

impl ClockOffset {
    /// A change of our own, sent and answered at these moments, left this ctime. The server's clock
    /// has steps of `step` at most.
    pub fn learn(&mut self, ctime: Timestamp, sent_at: Moment, received_at: Moment, step: Duration) {
        let ctime = i128::from(ctime.as_nanoseconds());
        let shown = OffsetBounds {
            least: ctime - i128::from(received_at.nanoseconds()),
            most: ctime + nanoseconds(step) - i128::from(sent_at.nanoseconds()),
        };
        let narrowed = self.0.map(|known| OffsetBounds {
            least: known.least.max(shown.least),
            most: known.most.min(shown.most),
        });
        // Clocks drift apart, and are set: then only what was shown last holds.
        self.0 = Some(narrowed.filter(|both| both.least <= both.most).unwrap_or(shown));
    }

    /// When a call that was sent at `sent_at` can have been executed before `lost_at`, to `slack`;
    /// `None` if that is not known.
    #[must_use]
    pub fn execution(&self, sent_at: Moment, lost_at: Moment, slack: Duration) -> Option<Execution> {
        self.0.map(|offset| Execution {
            from: i128::from(sent_at.nanoseconds()) + offset.most - nanoseconds(slack),
            until: i128::from(lost_at.nanoseconds()) + offset.most,
        })
    }
}

fn nanoseconds(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX / 2)
}

/// When the first copy of a call was executed, if it was, by the server's clock in nanoseconds
/// since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution {
    from: i128,
    until: i128,
}

impl Execution {
    /// Whether the first copy can have changed something at `time`, and nothing before it can.
    #[must_use]
    pub fn includes(&self, time: Timestamp) -> bool {
        self.is_followed_by(time) && i128::from(time.as_nanoseconds()) <= self.until
    }

    /// Whether a change at `time` came with the first copy or after it.
    #[must_use]
    pub fn is_followed_by(&self, time: Timestamp) -> bool {
        i128::from(time.as_nanoseconds()) >= self.from
    }
}

/// What was to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewObject {
    /// Its type.
    pub kind: FileKind,
    /// Its mode.
    pub mode: u32,
    /// Who makes it.
    pub uid: u32,
    /// Their group.
    pub gid: u32,
}

/// What now has the name that was to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundObject {
    /// Its attributes.
    pub facts: Facts,
    /// Its links.
    pub links: u32,
    /// A link's text, a special file's type and numbers are as wanted.
    pub is_same: bool,
}

/// Whether CREATE, MKDIR, SYMLINK or MKNOD, told that the name exists, has itself made what has it.
/// `directory_gid`: the group of the directory, which some servers give to what is made in it.
#[must_use]
pub fn is_own_object(
    wanted: &NewObject,
    found: &FoundObject,
    directory_gid: u32,
    execution: &Execution,
) -> bool {
    let FoundObject { facts, links, is_same } = *found;
    // A server with a change attribute has sessions, whose slots answer a repeated call (RFC 8881
    // §2.10.6): nothing has to be found out.
    let ChangeStamp::Times { mtime, ctime } = facts.stamp else {
        return false;
    };
    let is_mode_same = match wanted.kind {
        FileKind::Directory => (facts.mode ^ wanted.mode) & !SET_GID == 0,
        // Nobody minds it, and servers say what they like.
        FileKind::Symlink => true,
        _ => facts.mode == wanted.mode,
    };
    let is_unused = match wanted.kind {
        // Some file systems count no links of directories.
        FileKind::Directory => links <= 2,
        FileKind::Regular => links == 1 && facts.size == 0,
        _ => links == 1,
    };
    let is_owner_same = facts.uid == wanted.uid && [wanted.gid, directory_gid].contains(&facts.gid);
    let is_alike = facts.kind == wanted.kind && is_same && is_mode_same && is_owner_same;
    // A directory's mtime is that of its last name's change, and ctime nobody can set.
    is_alike && is_unused && execution.includes(mtime) && execution.includes(ctime)
}

/// An object and its links, as they were believed to be before a call and as they are now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinksChange {
    /// Before; `None` if not known.
    pub before: Option<u32>,
    /// Now.
    pub now: u32,
    /// The ctime now, which each link and each removal of one changes.
    pub ctime: Timestamp,
}

/// Whether LINK, told that the name exists, has itself made that link: `is_same`, the name leads to
/// the file that was to be linked.
#[must_use]
pub fn is_own_link(is_same: bool, links: &LinksChange, execution: &Execution) -> bool {
    let is_one_more = links.before.is_some_and(|before| before.checked_add(1) == Some(links.now));
    is_same && is_one_more && execution.includes(links.ctime)
}

/// What is left of an object whose name was to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// The server does not know it any more, or no name of it.
    Nothing,
    /// Other names.
    Links(LinksChange),
    /// The server does not say.
    Unknown,
}

/// Whether REMOVE or RMDIR, told that there is no such name, has itself removed it. The name was
/// known to lead to the object; `directory_mtime` is when the directory's names changed last.
#[must_use]
pub fn is_own_removal(remains: &Remains, directory_mtime: Timestamp, execution: &Execution) -> bool {
    let is_object_changed = match remains {
        Remains::Nothing => true,
        Remains::Links(links) => {
            let is_one_less = links.before.is_some_and(|before| before.checked_sub(1) == Some(links.now));
            is_one_less && execution.includes(links.ctime)
        }
        Remains::Unknown => false,
    };
    is_object_changed && execution.is_followed_by(directory_mtime)
}

/// Whether RENAME, told that the old name is missing, has itself moved it: the object that had the
/// old name has the new one now (`is_there`), and had it not before (`was_there`). `ctime` is the
/// object's, which file systems set at a rename (POSIX allows it; ext4, XFS, Btrfs and tmpfs do);
/// `directory_mtime` is when the names of the new one's directory changed last.
#[must_use]
pub fn is_own_rename(
    is_there: bool,
    was_there: bool,
    ctime: Timestamp,
    directory_mtime: Timestamp,
    execution: &Execution,
) -> bool {
    is_there && !was_there && execution.includes(ctime) && execution.is_followed_by(directory_mtime)
}
