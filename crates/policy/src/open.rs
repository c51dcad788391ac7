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
    speculation::{SpeculationBenefit, SpeculationBenefits},
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
    /// As [`Self::Confirmed`], and the delegation allows the open: not even OPEN is sent (RFC 8881
    /// §10.4).
    Delegated,
    /// `nocto`, and the attributes are fresh.
    WithoutCloseToOpen,
    /// `sloppycto`, and the attributes are recent enough.
    Sloppy,
}

/// The most opens that one compound closes in addition to its own operations.
pub const CLOSES_MAX: usize = 4;

/// The most closes of a compound without other work.
pub const CLOSES_ALONE_MAX: usize = 16;

/// How long an open without users is kept in case that it is used again. It denies others nothing,
/// but keeps them from denying.
pub const KEPT_FOR: Duration = Duration::from_secs(1);

/// How long an open for writing is kept without users, in case that another request takes its CLOSE
/// along. Meanwhile the server delegates the file to nobody, and refuses opens that deny writing.
pub const WRITER_KEPT_FOR: Duration = Duration::from_millis(20);

/// The most opens for reading that are kept without users: each costs its server memory, and is
/// opened again at no cost, with a READ.
const KEPT_MAX: usize = 8;

/// An open that a server keeps for this client, without users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleOpen {
    /// For how long; `None`: the mount ends.
    pub since: Option<Duration>,
    /// The open is for writing, which others can see.
    pub writes: bool,
    /// How many there are.
    pub others: usize,
    /// The client has a delegation of the file that came with it.
    pub is_delegated: bool,
}

impl IdleOpen {
    /// Whether the next compound contains its CLOSE. Half of the time is left for that compound to
    /// come. Under a delegation an open for reading is kept, because it denies nothing to others:
    /// before a conflicting open the server recalls the delegation, and both end together.
    #[must_use]
    pub fn is_closed(self) -> bool {
        if self.is_delegated && !self.writes && self.since.is_some() {
            return false;
        }
        self.writes || self.others > KEPT_MAX || self.since.is_none_or(|since| since >= KEPT_FOR / 2)
    }
}

/// The largest file that is read together with its open, in bytes, unless READ is smaller: that of
/// a READ at most, so that nothing of it is left for another request.
const OPEN_READ_MAX: u64 = 1 << 20;

/// The largest file that is read by a look-up of its name, in bytes: not even its type is known
/// before.
const LOOKUP_READ_MAX: u32 = 64 << 10;

/// The additional operations of a LOOKUP of an unknown name, in case that it finds a file which is
/// opened next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum SpeculativeOpen {
    /// Nothing.
    Nothing,
    /// A READ of up to this number of bytes.
    Read(u32),
    /// An OPEN for reading, to get a delegation, and a READ of up to this number of bytes.
    Open(u32),
}

/// Decides on the additional operations of a LOOKUP of an unknown name. With a delegation, the open
/// that follows asks nothing, and no later one does. Without, an open with close-to-open has to ask
/// in any case, and reads then; otherwise the name, the rights and the data are all that it takes
/// to open and read a file.
pub const fn decide_speculative_open(
    options: &CacheOptions,
    is_delegated_by_open: bool,
    benefits: &mut SpeculationBenefits,
) -> SpeculativeOpen {
    if is_delegated_by_open && benefits.lookup_opens.should_try() {
        return SpeculativeOpen::Open(LOOKUP_READ_MAX);
    }
    let asks_at_open = options.close_to_open && options.sloppy_window().is_zero();
    if asks_at_open || !options.attribute_cache || !benefits.lookup_reads.should_try() {
        return SpeculativeOpen::Nothing;
    }
    SpeculativeOpen::Read(LOOKUP_READ_MAX)
}

/// When a server learns of an open (RFC 8881 section 18.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum OpenTime {
    /// Now: OPEN is sent unless the client has such an open. Its reply has attributes and rights.
    Now,
    /// Now, and this number of bytes is read in the same request.
    WithRead(u64),
    /// Now, also if the client has such an open that has no delegation: OPEN is expected to bring
    /// one. Perhaps this number of bytes is read in the same request.
    ForDelegation(Option<u64>),
    /// Later: OPEN is sent with the first READ.
    Later,
}

/// The file of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileAtOpen {
    /// Its last known size.
    pub size: u64,
    /// The largest READ, in bytes.
    pub read_max: u32,
    /// Data of it were read or written here, and are valid as far as is known.
    pub has_data: bool,
    /// OPEN is expected to bring a delegation.
    pub is_delegated_by_open: bool,
}

/// Decides when the server learns of an open for which `decision` was made.
///
/// An open that changes nothing is needed by READs only: whatever else OPEN brings is requested
/// without it, or known. So its OPEN waits for a READ. If there has to be a request now, and a READ
/// would follow, then both are one request. If OPEN brings a delegation, it is that request, and no
/// later open has to ask; so it is although the client has the file open, which some program may
/// have open for ever. An open that is served without a request is sent with its READ as well if it
/// brings a delegation: siblings are opened by the same request.
pub fn decide_open_time(
    decision: OpenDecision,
    intent: OpenIntent,
    file: FileAtOpen,
    reads: &mut SpeculationBenefit,
) -> OpenTime {
    if intent.write || intent.truncate || intent.create {
        return OpenTime::Now;
    }
    // What is served under a delegation was opened before, and what is refused is not opened.
    let has_request = match decision {
        OpenDecision::Serve(OpenServed::Delegated) | OpenDecision::Deny => return OpenTime::Later,
        OpenDecision::Serve(_) => false,
        OpenDecision::Revalidate | OpenDecision::Ask(_) => true,
    };
    if !has_request && !file.is_delegated_by_open {
        return OpenTime::Later;
    }
    let is_small = (1..=OPEN_READ_MAX.min(file.read_max as u64)).contains(&file.size);
    let expects_read = is_small && !file.has_data && !intent.direct && reads.should_try();
    match expects_read.then_some(file.size) {
        read if file.is_delegated_by_open && (has_request || read.is_some()) => OpenTime::ForDelegation(read),
        Some(size) => OpenTime::WithRead(size),
        None => OpenTime::Later,
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

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: FileAtOpen =
        FileAtOpen { size: 100, read_max: 2 << 20, has_data: false, is_delegated_by_open: false };

    fn time(decision: OpenDecision, intent: OpenIntent, file: FileAtOpen) -> OpenTime {
        decide_open_time(decision, intent, file, &mut SpeculationBenefit::default())
    }

    #[test]
    fn an_open_that_writes_is_sent_now() {
        let decisions =
            [OpenDecision::Serve(OpenServed::Sloppy), OpenDecision::Revalidate, OpenDecision::Deny];
        for decision in decisions {
            let write = OpenIntent { write: true, ..OpenIntent::default() };
            let truncate = OpenIntent { truncate: true, ..OpenIntent::default() };
            let create = OpenIntent { create: true, ..OpenIntent::default() };
            for intent in [write, truncate, create] {
                assert_eq!(time(decision, OpenIntent { read: true, ..intent }, SMALL), OpenTime::Now);
            }
        }
    }

    #[test]
    fn a_small_file_without_data_is_read_by_an_open_that_has_to_ask() {
        let read = OpenIntent { read: true, ..OpenIntent::default() };
        let served = OpenDecision::Serve(OpenServed::WithoutCloseToOpen);
        for ask in [OpenDecision::Revalidate, OpenDecision::Ask(AccessReason::Unasked)] {
            assert_eq!(time(ask, read, SMALL), OpenTime::WithRead(100));
            assert_eq!(time(ask, OpenIntent { direct: true, ..read }, SMALL), OpenTime::Later);
            assert_eq!(time(ask, read, FileAtOpen { has_data: true, ..SMALL }), OpenTime::Later);
            let sized = |size| time(ask, read, FileAtOpen { size, ..SMALL });
            assert_eq!(sized(0), OpenTime::Later);
            assert_eq!(sized(OPEN_READ_MAX), OpenTime::WithRead(OPEN_READ_MAX));
            assert_eq!(sized(OPEN_READ_MAX + 1), OpenTime::Later);
            let read_max = 4096;
            let at_once = |size| time(ask, read, FileAtOpen { size, read_max, ..SMALL });
            assert_eq!(at_once(4096), OpenTime::WithRead(4096));
            assert_eq!(at_once(4097), OpenTime::Later);
        }
        assert_eq!(time(served, read, SMALL), OpenTime::Later);
        assert_eq!(time(OpenDecision::Deny, read, SMALL), OpenTime::Later);
    }

    #[test]
    fn an_open_that_has_to_ask_is_sent_if_it_brings_a_delegation() {
        let read = OpenIntent { read: true, ..OpenIntent::default() };
        let delegated = FileAtOpen { is_delegated_by_open: true, ..SMALL };
        let with_data = FileAtOpen { has_data: true, ..delegated };
        for ask in [OpenDecision::Revalidate, OpenDecision::Ask(AccessReason::Unasked)] {
            assert_eq!(time(ask, read, delegated), OpenTime::ForDelegation(Some(100)));
            assert_eq!(time(ask, read, with_data), OpenTime::ForDelegation(None));
        }
        let served = OpenDecision::Serve(OpenServed::Delegated);
        assert_eq!(time(served, read, with_data), OpenTime::Later);
    }

    #[test]
    fn an_open_that_need_not_ask_is_sent_with_its_read_if_it_brings_a_delegation() {
        let read = OpenIntent { read: true, ..OpenIntent::default() };
        let delegated = FileAtOpen { is_delegated_by_open: true, ..SMALL };
        for served in [OpenServed::Sloppy, OpenServed::Confirmed, OpenServed::WithoutCloseToOpen] {
            let served = OpenDecision::Serve(served);
            assert_eq!(time(served, read, delegated), OpenTime::ForDelegation(Some(100)));
            let with_data = FileAtOpen { has_data: true, ..delegated };
            assert_eq!(time(served, read, with_data), OpenTime::Later);
            assert_eq!(time(served, read, FileAtOpen { size: 0, ..delegated }), OpenTime::Later);
        }
        let of_delegation = OpenDecision::Serve(OpenServed::Delegated);
        assert_eq!(time(of_delegation, read, delegated), OpenTime::Later);
    }
}
