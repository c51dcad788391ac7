//! Asking for a directory's names together: instead of one name, or instead of the attributes of
//! one.
//!
//! Owns estimates of benefit; nothing here changes an answer, only what is requested. A reply with
//! many names costs more bytes, and more work at the server, than a reply with one; it pays if
//! enough of its names are used. That is not known beforehand, so it is estimated from: how many
//! names of the directory were requested one by one, the directory's reported size, the benefit of
//! such replies in this directory, in its siblings and on the whole mount, and the cost of a
//! request.
//!
//! Invariants:
//! - Where nothing speaks for it the names of a directory are asked for together only after so many
//!   were asked for one by one that it costs about as much again; where it was for nothing, only
//!   after so many that this is a small part of them, and after twice as many the next time.
//! - The name that a request was sent for speaks for nothing: it would have been a request, too.
//! - A mount where it does not pay is given up: at most [`RETRIES`] such requests in
//!   [`MOUNT_MISSES`] that ask for one name.
//!
//! Must not know the protocol: READDIRPLUS of NFSv3 and READDIR of NFSv4 with attributes are both
//! meant.

mod benefit;
mod record;

pub use self::{
    benefit::{MOUNT_MISSES, MountFillRecord, RETRIES},
    record::{FillRecord, LOSS_MISSES_MIN, ListedExtent},
};

use self::record::LOSS_SHARE;
use core::time::Duration;

use crate::{
    listing::{PLUS_SIZE_MAX, SIZE_MIN},
    options::CacheOptions,
};

/// Names of a directory that are asked for one by one before its names are asked for together,
/// where nothing is known.
pub const MISSES_MIN: u32 = 2;

/// Bytes of a name with its attributes and handle, about.
const NAME_BYTES: u32 = 176;

/// Bytes of names that cost what a request does where requests are quickest: 46 names, at 3 to 5 µs
/// each for both sides.
const REQUEST_BYTES_MIN: u64 = 8 * 1024;

/// The same where they are slowest.
const REQUEST_BYTES_MAX: u64 = 256 * 1024;

/// Bytes of names that are sent, taken in and kept in a microsecond by a common server and network.
const BYTES_PER_MICROSECOND: u64 = 40;

/// Fills beside a directory before what they were worth says anything.
const BESIDE_FILLS_MIN: u32 = 2;

/// So many times more misses are waited for where fills were not worth their bytes elsewhere.
const UNPROVEN_FACTOR: u32 = 4;

/// So many times more look-ups are waited for than cost as much, while parts of a listing were of
/// some use and do not pay yet: of a large directory few names are known by then, so that few can
/// be used.
const PART_UNPROVEN_FACTOR: u64 = 8;

/// How often the number of misses that is waited for doubles at most.
const DOUBLINGS_MAX: u8 = 12;

/// What is known when a name of a directory has to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FillView {
    /// Of the directory. The name in question is counted ([`FillRecord::missed`]).
    pub record: FillRecord,
    /// What was remembered of the directory that it is in.
    pub parent: Option<FillRecord>,
    /// Of the mount. The name in question is counted ([`MountFillRecord::missed`]).
    pub mount: MountFillRecord,
    /// The directory's own size, if it is known.
    pub size: Option<u64>,
    /// What a request takes that carries little.
    pub round_trip: Duration,
}

/// How a name is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum FillDecision {
    /// By itself.
    Lookup,
    /// With those beside it, in about so many bytes.
    Fill {
        /// How many.
        bytes: u32,
    },
}

/// What is known when an object's attributes have to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RevalidationView {
    /// Of the directory that the object is in. The object is counted as used.
    pub record: FillRecord,
    /// What a request takes that carries little.
    pub round_trip: Duration,
}

/// How an object's attributes are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum RevalidationDecision {
    /// By themselves.
    Object,
    /// With those of all objects in its directory, in about so many bytes.
    Directory {
        /// How many.
        bytes: u32,
    },
}

impl CacheOptions {
    /// Whether names may be asked for together: `dirfill=auto`, where replies with attributes are
    /// wanted and what they bring may be served afterwards.
    #[must_use]
    pub const fn fills(&self) -> bool {
        let keeps_names = match self.names {
            crate::LookupCache::All | crate::LookupCache::Positive => !self.name_lifetime.is_zero(),
            crate::LookupCache::None => false,
        };
        let with_attributes = match self.plus {
            crate::PlusMode::Auto | crate::PlusMode::Always => true,
            crate::PlusMode::Never => false,
        };
        let is_on = match self.fill {
            crate::FillMode::Auto => true,
            crate::FillMode::Off => false,
        };
        is_on && with_attributes && keeps_names && self.attribute_cache && !self.directories.max.is_zero()
    }
}

/// Decides how a name is asked for of which nothing is known that may be served.
pub fn decide(view: &FillView, options: &CacheOptions) -> FillDecision {
    if !options.fills() || view.record.misses < misses_needed(view) {
        return FillDecision::Lookup;
    }
    FillDecision::Fill {
        bytes: view.record.next_bytes(view.size),
    }
}

/// Names that are asked for together of a directory that was listed and has more than one would ask
/// for because of one: those beside the name in the listing, about as many as a reply of
/// [`PLUS_SIZE_MAX`] holds.
pub const PART_NAMES: u32 = 1024;

/// Decides how a name is asked for that such a listing has, of which nothing else is known: what
/// programs do that read all names and then go through them in another order.
pub fn decide_part(view: &FillView, options: &CacheOptions) -> FillDecision {
    if !options.fills() || view.record.misses < part_misses_needed(view) {
        return FillDecision::Lookup;
    }
    FillDecision::Fill { bytes: PLUS_SIZE_MAX }
}

/// After how many names that were asked for one by one those beside one are asked for.
fn part_misses_needed(view: &FillView) -> u32 {
    let record = &view.record;
    let unit = request_bytes(view.round_trip);
    let misses =
        |share: u64| u32::try_from(u64::from(PLUS_SIZE_MAX) * share / (2 * unit)).unwrap_or(u32::MAX);
    let doubled = |misses: u32| misses.saturating_mul(1 << record.failures.min(DOUBLINGS_MAX));
    if record.own.fills == 0 {
        return misses(1).max(LOSS_MISSES_MIN);
    }
    if record.own.pays(unit) {
        return doubled(misses(1).max(MISSES_MIN));
    }
    if record.has_spared {
        return doubled(misses(PART_UNPROVEN_FACTOR).max(MISSES_MIN));
    }
    if view.mount.has_given_up(unit) {
        return u32::MAX;
    }
    doubled(misses(2 * LOSS_SHARE).max(LOSS_MISSES_MIN))
}

/// Decides how the attributes of an object are asked for that have expired.
pub fn decide_revalidation(view: &RevalidationView, options: &CacheOptions) -> RevalidationDecision {
    let FillRecord {
        extent: ListedExtent::Whole { bytes, .. },
        used,
        alone,
        refreshed,
        ..
    } = view.record
    else {
        return RevalidationDecision::Object;
    };
    // Objects of one directory that came together expire together, unless they change: then it
    // shows in what the last reply spared, and one is asked about alone first.
    let expected = match refreshed {
        None => used,
        Some(1 | 0) => used.min(alone.saturating_add(1)),
        Some(expired) => used.min(expired.saturating_mul(2)),
    };
    let others = u64::from(expected.saturating_sub(1));
    if options.fills() && u64::from(bytes) <= others * 2 * request_bytes(view.round_trip) {
        RevalidationDecision::Directory {
            bytes: with_room(bytes),
        }
    } else {
        RevalidationDecision::Object
    }
}

/// After how many names that were asked for one by one the rest is asked for together.
fn misses_needed(view: &FillView) -> u32 {
    let record = &view.record;
    let unit = request_bytes(view.round_trip);
    let cost = u32::try_from(record.bytes_left(view.size) / (2 * unit)).unwrap_or(u32::MAX);
    let doubtful = cost.max(MISSES_MIN);
    let has_given_up = view.mount.has_given_up(unit);
    if record.own.fills > 0 {
        return match (record.own.pays(unit), record.extent) {
            (true, _) if record.failures == 0 => cost.max(1),
            // The first names were of no use; neither will be the others.
            (false, ListedExtent::Part { .. }) => u32::MAX,
            (true | false, _) if has_given_up => u32::MAX,
            (true | false, _) => doubtful
                .max(record.misses_per_loss(unit))
                .saturating_mul(1 << record.failures.min(DOUBLINGS_MAX)),
        };
    }
    let beside = view.parent.map(|parent| parent.below).unwrap_or_default();
    let is_known = beside.fills >= BESIDE_FILLS_MIN;
    match (is_known, beside.is_wanted(), beside.pays(unit)) {
        (true, true, true) => cost.max(1),
        (true, false, true) => doubtful,
        _ if has_given_up => u32::MAX,
        (true, true | false, false) => doubtful.saturating_mul(UNPROVEN_FACTOR),
        (false, true | false, true | false) => doubtful,
    }
}

/// Bytes of names that cost as much as a request that takes `round_trip`.
fn request_bytes(round_trip: Duration) -> u64 {
    let microseconds = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
    microseconds
        .saturating_mul(BYTES_PER_MICROSECOND)
        .clamp(REQUEST_BYTES_MIN, REQUEST_BYTES_MAX)
}

/// Bytes to ask for where `bytes` came the last time: a few names may have come in since.
fn with_room(bytes: u32) -> u32 {
    bytes
        .saturating_add(bytes / 8)
        .saturating_add(4096)
        .clamp(SIZE_MIN, PLUS_SIZE_MAX)
}
