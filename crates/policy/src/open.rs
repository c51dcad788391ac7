//! Close-to-open: what open(2) must ask.
//!
//! Owns the rules of `cto`, `nocto` and `sloppycto`. The opener must see what the last other client
//! had written when it closed, so an open asks for attributes unless an option lets it use older
//! ones. Permission to open is part of the decision, because the reply to ACCESS carries the
//! attributes too, and then no GETATTR is needed.
//!
//! Invariant: unless an option says otherwise, an open is served only from attributes requested
//! after it began.

use core::time::Duration;

use curt_types::{Access, FileKind};

use crate::{
    access::{self, AccessDecision, AccessReason, AccessView},
    attributes::Freshness,
    facts::{Delegation, LockingState},
    options::CacheOptions,
};

/// What an open is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is one flag of open(2), and they combine freely")]
pub struct OpenIntent {
    /// The data are to be read (O_RDONLY, O_RDWR).
    pub read: bool,
    /// The data are to be written (O_WRONLY, O_RDWR).
    pub write: bool,
    /// O_TRUNC.
    pub truncate: bool,
    /// O_CREAT.
    pub create: bool,
    /// O_DIRECT.
    pub direct: bool,
    /// O_SYNC or O_DSYNC.
    pub sync: bool,
    /// execve(2): needs the right to execute, not to read.
    pub execute: bool,
}

impl OpenIntent {
    /// The rights that the opener must have.
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

    /// Whether the open changes nothing and asks for nothing but cached reading.
    const fn only_reads(self) -> bool {
        !(self.write || self.truncate || self.create || self.direct || self.sync)
    }
}

/// What is known when an open arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpenView {
    /// The object's type; `None` while nothing is known of it.
    pub kind: Option<FileKind>,
    /// Its attributes, under the delegation if there is one
    /// ([`crate::AttributeState::freshness_under`]).
    pub attributes: Freshness,
    /// How long ago their request was sent.
    pub age: Duration,
    /// This mount has unsent or uncommitted data of the file, or has it open for writing.
    pub written_here: bool,
    /// The file was written and closed on this mount, and its attributes were not requested since.
    pub closed_after_writing: bool,
    /// The locks and the delegation that this mount holds.
    pub locking: LockingState,
    /// What is known of the opener's rights.
    pub access: AccessView,
}

/// What open(2) must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum OpenDecision {
    /// Open without a request. Whether cached data are valid follows from the contents epoch.
    Serve(OpenServed),
    /// Send GETATTR, absorb, decide again.
    Revalidate,
    /// Send ACCESS with the opener's credential (its reply carries attributes as well), absorb,
    /// decide again.
    Ask(AccessReason),
    /// EACCES.
    Deny,
}

/// Why an open needed no request of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenServed {
    /// The attributes were requested after it began.
    Confirmed,
    /// The same, and the delegation allows it: not even OPEN need be sent (RFC 8881 §10.4).
    Delegated,
    /// `nocto`, and the attributes are fresh.
    WithoutCloseToOpen,
    /// `sloppycto`, and the attributes are recent enough.
    Sloppy,
}

/// Decides one open of an existing object.
pub fn decide_open(view: &OpenView, intent: OpenIntent, options: &CacheOptions) -> OpenDecision {
    // Only files and directories get here: the kernel opens devices and FIFOs itself, for their
    // data are not the server's.
    match access::decide_access(&view.access, view.attributes, intent.needs(), options) {
        AccessDecision::Allow => {}
        AccessDecision::Deny => return OpenDecision::Deny,
        AccessDecision::Revalidate => return OpenDecision::Revalidate,
        AccessDecision::Ask(why) => return OpenDecision::Ask(why),
    }
    served(view, intent, options).map_or(OpenDecision::Revalidate, OpenDecision::Serve)
}

/// Why the attributes are good enough for this open; `None` if they are not.
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
