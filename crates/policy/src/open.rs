//! Close-to-open: which requests open(2) sends.
//!
//! Owns the rules of `cto`, `nocto` and `sloppycto`. An open must see what the last other client
//! had written when it closed, so an open requests attributes unless an option lets it use older
//! ones. Permission to open is part of the decision, because the ACCESS reply contains the
//! attributes too, and then no GETATTR is needed.
//!
//! Invariant: unless an option says otherwise, an open is served only from attributes requested
//! after it began.

use core::time::Duration;

use curt_types::{Access, FileKind};

use crate::{
    access::{self, AccessDecision, AccessReason, AccessView},
    attributes::Freshness,
    attributes::{Delegation, LockingState},
    options::CacheOptions,
};

/// The intent of an open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is one flag of open(2), and they combine freely")]
pub struct OpenIntent {
    /// For reading (O_RDONLY, O_RDWR).
    pub read: bool,
    /// For writing (O_WRONLY, O_RDWR).
    pub write: bool,
    /// O_TRUNC.
    pub truncate: bool,
    /// O_CREAT.
    pub create: bool,
    /// O_DIRECT.
    pub direct: bool,
    /// O_SYNC or O_DSYNC.
    pub sync: bool,
    /// execve(2): needs execute permission, not read permission.
    pub execute: bool,
}

impl OpenIntent {
    /// The rights that the open needs.
    #[must_use]
    pub const fn needs(self) -> Access {
        let mut rights = Access::NONE;
        if self.execute {
            rights = rights.with(Access::EXECUTE);
        } else if self.read {
            rights = rights.with(Access::READ);
        }
        if self.write || self.truncate {
            rights = rights.with(Access::MODIFY);
        }
        rights
    }

    /// Whether the open changes nothing and needs only cached reads.
    const fn only_reads(self) -> bool {
        !(self.write || self.truncate || self.create || self.direct || self.sync)
    }
}

/// The known state at an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpenView {
    /// The object's type; `None` if unknown.
    pub kind: Option<FileKind>,
    /// The freshness of its attributes, under the delegation if there is one
    /// ([`crate::AttributeState::freshness_under`]).
    pub attributes: Freshness,
    /// The time since their request was sent.
    pub age: Duration,
    /// This mount has unsent or uncommitted data of the file, or has it open for writing.
    pub written_here: bool,
    /// The file was written and closed on this mount, and its attributes were not requested since.
    pub closed_after_writing: bool,
    /// The locks and the delegation that this mount holds.
    pub locking: LockingState,
    /// The known rights of the caller.
    pub access: AccessView,
}

/// The decision for open(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum OpenDecision {
    /// Open without a request. The contents epoch decides whether cached data are valid.
    Serve(OpenServed),
    /// Send GETATTR, absorb, decide again.
    Revalidate,
    /// Send ACCESS with the caller's credential (its reply contains attributes as well), absorb,
    /// decide again.
    Ask(AccessReason),
    /// EACCES.
    Deny,
}

/// Why an open needed no request of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenServed {
    /// The attributes were requested after the open began.
    Confirmed,
    /// The same, and the delegation allows the open: not even OPEN is sent (RFC 8881 §10.4).
    Delegated,
    /// `nocto`, and the attributes are fresh.
    WithoutCloseToOpen,
    /// `sloppycto`, and the attributes are recent enough.
    Sloppy,
}

/// The most opens that one compound closes beside its own work.
pub const CLOSES_MAX: usize = 4;

/// The same of a compound without other work.
pub const CLOSES_ALONE_MAX: usize = 16;

/// How long an open without users is kept in case that it is used again. It denies others nothing,
/// but keeps them from denying.
pub const KEPT_FOR: Duration = Duration::from_secs(1);

/// The most opens that are kept without users.
const KEPT_MAX: usize = 4096;

/// An open that a server keeps for this client, and that nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleOpen {
    /// For how long; `None`: the mount ends.
    pub since: Option<Duration>,
    /// It is for writing, which others can see.
    pub writes: bool,
    /// How many there are.
    pub others: usize,
}

impl IdleOpen {
    /// Whether its CLOSE rides in the next compound. Half of the time is left for that compound to
    /// come.
    #[must_use]
    pub fn is_closed(self) -> bool {
        self.writes || self.others > KEPT_MAX || self.since.is_none_or(|since| since >= KEPT_FOR / 2)
    }
}

/// Decides one open of an existing object.
pub fn decide_open(view: &OpenView, intent: OpenIntent, options: &CacheOptions) -> OpenDecision {
    // Only files and directories get here: the kernel opens devices and FIFOs itself, since their
    // data are not on the server.
    match access::decide_access(&view.access, view.attributes, intent.needs(), options) {
        AccessDecision::Allow => {}
        AccessDecision::Deny => return OpenDecision::Deny,
        AccessDecision::Revalidate => return OpenDecision::Revalidate,
        AccessDecision::Ask(why) => return OpenDecision::Ask(why),
    }
    served(view, intent, options).map_or(OpenDecision::Revalidate, OpenDecision::Serve)
}

/// Why the attributes are valid for this open; `None` if they are not.
fn served(view: &OpenView, intent: OpenIntent, options: &CacheOptions) -> Option<OpenServed> {
    if view.attributes == Freshness::Confirmed {
        let is_covered = |delegation: Delegation| delegation.write || !(intent.write || intent.truncate);
        return Some(match view.locking.delegation {
            Some(delegation) if is_covered(delegation) => OpenServed::Delegated,
            Some(_) | None => OpenServed::Confirmed,
        });
    }
    if view.attributes != Freshness::Fresh || !options.attribute_cache || view.closed_after_writing {
        return None;
    }
    if !options.close_to_open {
        return Some(OpenServed::WithoutCloseToOpen);
    }
    let sloppy = intent.only_reads()
        && view.kind == Some(FileKind::Regular)
        && !view.written_here
        && view.locking.locked_at.is_none()
        && view.age <= options.sloppy_window()
        && !options.sloppy_window().is_zero();
    sloppy.then_some(OpenServed::Sloppy)
}
