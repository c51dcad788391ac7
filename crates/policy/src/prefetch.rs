//! Prefetch: the next names of a listing ahead of its reader, a directory's names instead of one
//! LOOKUP, the attributes of all its objects instead of one GETATTR, and the size of such a
//! request. Nothing here changes a result.
//!
//! There is one decision, [`decide`], for every [`PrefetchReason`], and one budget: a request costs
//! as much as `request_bytes` bytes of names that are not used. How many names will be used is
//! estimated from the single requests so far, the directory's own size, and the benefit of earlier
//! replies in the directory, in its siblings and on the mount.
//!
//! - Without earlier replies, names are requested together after as many single requests as cost
//!   about the same. After a reply without benefit, they are requested again when the next reply
//!   costs a small part of the requests since, and after twice as many each time.
//! - The name for which a request was sent is no benefit: it would have taken a request, too.
//! - A mount without benefit is disabled: at most [`RETRIES`] requests in [`MOUNT_MISSES`] names.
//!
//! Must not know the protocol: READDIRPLUS of NFSv3 and READDIR of NFSv4 with attributes.

use core::time::Duration;

use crate::{
    options::{CacheOptions, FillMode, ListingMode, LookupCache, ReaddirplusMode},
    readdir::{PLUS_SIZE_MAX, SIZE_FIRST_MAX, SIZE_MIN, next_size},
};

/// Lookups in a directory before its names are requested together, if nothing is known.
pub const MISSES_MIN: u32 = 2;
/// Names requested around one name of a large listing: about one reply of [`PLUS_SIZE_MAX`].
pub const PART_NAMES: u32 = 1024;
/// Lookups on a disabled mount before it is tried again. [`RETRIES`] is the number of tries.
pub const MOUNT_MISSES: u32 = 1024;
/// See [`MOUNT_MISSES`].
pub const RETRIES: u32 = MOUNT_FILLS_MIN / 2;
/// At most one of this many requests may be lost to a directory whose names were not used.
pub const LOSS_MISSES_MIN: u32 = 50;
/// Lookups in the order of a listing after which the names that follow are requested.
pub const MISSES_MAX: u32 = 16;
/// Names within which [`MISSES_MAX`] lookups count as in order.
pub const MISSES_WINDOW: u32 = 64;

/// Approximate bytes of a name with its attributes and handle.
const NAME_BYTES: u32 = 176;
/// Bytes of a name in a directory's own size: 20 (tmpfs) to 24 and more (ext4, XFS).
const NAME_SIZE: u64 = 22;
/// Minimum bytes of the first request: a directory's own size may not depend on its names.
const FIRST_MIN: u32 = 16 * 1024;
/// Bytes of names that cost as much as a request, for the fastest servers (46 names, at 3 to 5 µs
/// each for both sides) and the slowest; and bytes that are sent and processed per microsecond.
const REQUEST_BYTES: (u64, u64) = (8 * 1024, 256 * 1024);
const BYTES_PER_MICROSECOND: u64 = 40;
/// Fills of a directory's siblings, and of a mount, before their benefit is significant.
const SIBLING_FILLS_MIN: u32 = 2;
const MOUNT_FILLS_MIN: u32 = 8;
/// Number of fills after which the earlier counts are halved.
const FILLS_MAX: u32 = 16;
/// One of this many names must be used for a fill at the first miss.
const WANTED_MIN: u64 = 4;
/// Factor on the number of misses if fills in the siblings had no benefit, and while parts of a
/// large listing had some benefit that does not yet exceed their cost.
const UNPROVEN_FACTOR: u32 = 4;
const PART_UNPROVEN_FACTOR: u64 = 8;
/// Maximum number of times that the number of misses doubles.
const DOUBLINGS_MAX: u8 = 12;

/// The reason for a prefetch decision.
#[derive(Clone, Copy, Debug)]
pub enum PrefetchReason<'a> {
    /// A reader will need the names after the cached ones soon.
    NextNames {
        /// Names of the cached ones that the reader has returned.
        had: usize,
        /// Cached names.
        of: usize,
        /// This client does not change the directory. A reply that overlaps a change of this client
        /// can rarely be cached.
        is_undisturbed: bool,
    },
    /// A lookup of a name for which no cached entry may be served.
    Name(&'a PrefetchView),
    /// As [`Self::Name`]; the name is in a large listing.
    ListedName(&'a PrefetchView),
    /// As [`Self::Name`]; other names of a listing were looked up in its order.
    NameInOrder(&'a LookupOrder),
    /// The attributes of an object, which have expired.
    Attributes(&'a PrefetchView),
}

/// The known state when a name or attributes must be requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PrefetchView {
    /// The record of the directory; the name in question is counted ([`PrefetchBenefit::missed`]).
    pub record: PrefetchRecord,
    /// The benefit in its sibling directories.
    pub siblings: PrefetchBenefit,
    /// The benefit on the mount; the name in question is counted.
    pub mount: PrefetchBenefit,
    /// The directory's own size, if known.
    pub size: Option<u64>,
    /// The round-trip time of a small request.
    pub round_trip: Duration,
}

impl CacheOptions {
    /// Whether names may be requested together: `dirfill=auto`, with READDIRPLUS enabled, and if
    /// the options permit to serve what is cached that way.
    #[must_use]
    pub fn fills(&self) -> bool {
        self.fill != FillMode::Off
            && self.plus != ReaddirplusMode::Never
            && self.names != LookupCache::None
            && !self.name_lifetime.is_zero()
            && self.attribute_cache
            && !self.directories.max.is_zero()
    }
}

/// Decides whether to prefetch. Returns the approximate size of the request in bytes.
#[must_use]
pub fn decide(want: PrefetchReason<'_>, options: &CacheOptions) -> Option<u32> {
    match want {
        PrefetchReason::NextNames { had, of, is_undisturbed } => {
            let is_wanted = is_undisturbed && had * 2 >= of && options.listing == ListingMode::Continue;
            is_wanted.then_some(SIZE_MIN)
        }
        PrefetchReason::NameInOrder(order) => {
            let is_wanted = order.count >= MISSES_MAX && options.plus != ReaddirplusMode::Never;
            is_wanted.then(|| next_size(order.bytes.max(SIZE_FIRST_MAX / 2), PLUS_SIZE_MAX))
        }
        PrefetchReason::Name(_) | PrefetchReason::ListedName(_) | PrefetchReason::Attributes(_)
            if !options.fills() =>
        {
            None
        }
        PrefetchReason::Name(view) => {
            let is_wanted = view.record.own.misses >= view.misses_needed();
            is_wanted.then(|| view.record.next_bytes(view.size))
        }
        PrefetchReason::ListedName(view) => {
            (view.record.own.misses >= view.part_misses_needed()).then_some(PLUS_SIZE_MAX)
        }
        PrefetchReason::Attributes(view) => view.record.refresh_bytes(request_bytes(view.round_trip)),
    }
}

impl PrefetchView {
    /// The number of lookups after which the rest of a directory's names is requested.
    fn misses_needed(&self) -> u32 {
        let (record, unit) = (&self.record, request_bytes(self.round_trip));
        let cost = bounded(record.bytes_left(self.size) / (2 * unit));
        let doubtful = cost.max(MISSES_MIN);
        if record.own.fills > 0 {
            return match (record.own.is_beneficial(unit), record.extent) {
                (true, _) if record.own.failures == 0 => cost.max(1),
                // The first names had no benefit; the others are not requested.
                (false, ListedExtent::Part(_)) => u32::MAX,
                _ if self.mount.is_given_up(unit) => u32::MAX,
                _ => record.own.doubled(doubtful.max(record.misses_per_loss(unit))),
            };
        }
        let is_known = self.siblings.fills >= SIBLING_FILLS_MIN;
        match (is_known && self.siblings.is_beneficial(unit), is_known) {
            (true, _) if self.siblings.is_wanted() => cost.max(1),
            (true, _) => doubtful,
            _ if self.mount.is_given_up(unit) => u32::MAX,
            (false, true) => doubtful.saturating_mul(UNPROVEN_FACTOR),
            (false, false) => doubtful,
        }
    }

    /// The number of lookups in a large listing after which the names around one are requested.
    fn part_misses_needed(&self) -> u32 {
        let (own, unit) = (&self.record.own, request_bytes(self.round_trip));
        let misses = |share: u64| bounded(u64::from(PLUS_SIZE_MAX) * share / (2 * unit));
        if own.fills == 0 {
            misses(1).max(LOSS_MISSES_MIN)
        } else if own.is_beneficial(unit) {
            own.doubled(misses(1).max(MISSES_MIN))
        } else if own.has_saved {
            own.doubled(misses(PART_UNPROVEN_FACTOR).max(MISSES_MIN))
        } else if self.mount.is_given_up(unit) {
            u32::MAX
        } else {
            own.doubled(misses(2 * u64::from(LOSS_MISSES_MIN)).max(LOSS_MISSES_MIN))
        }
    }
}

fn bounded(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Bytes of names that cost as much as a request with the round-trip time `round_trip`.
fn request_bytes(round_trip: Duration) -> u64 {
    let microseconds = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
    let bytes = microseconds.saturating_mul(BYTES_PER_MICROSECOND);
    bytes.clamp(REQUEST_BYTES.0, REQUEST_BYTES.1)
}

/// Bytes to request if the last replies had `bytes`: a few names may have been added since.
fn with_room(bytes: u32) -> u32 {
    let room = (bytes / 8).saturating_add(4096);
    bytes.saturating_add(room).clamp(SIZE_MIN, PLUS_SIZE_MAX)
}

/// Detects whether the names of a listing are looked up one by one in its order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupOrder {
    /// The place of the last lookup in the listing, the number of consecutive lookups, and of all.
    at: u32,
    count: u32,
    all: u32,
    /// Bytes of the last request for the names that followed.
    bytes: u32,
}

impl LookupOrder {
    /// Records a lookup of a name. Returns whether there were enough to determine their places in
    /// the listing.
    pub const fn missed(&mut self) -> bool {
        self.all = self.all.saturating_add(1);
        self.all > MISSES_MAX / 2
    }

    /// Records that the name at `place` of the listing was looked up.
    pub const fn missed_at(&mut self, place: u32) {
        let is_next = place >= self.at && place - self.at <= MISSES_WINDOW;
        self.count = if is_next { self.count.saturating_add(1) } else { 1 };
        self.at = place;
    }

    /// Records that a request for `bytes` returned the names up to `place`. If the names that
    /// follow are looked up too, that is detected soon.
    pub const fn requested(&mut self, place: u32, bytes: u32) {
        (self.at, self.bytes) = (place, bytes);
        self.count = MISSES_MAX * 3 / 4;
    }

    /// Discards the order: the recorded places are no longer valid.
    pub const fn restart(&mut self) {
        (self.at, self.count, self.all) = (0, 0, 0);
    }
}

/// The benefit of requesting names together: in a directory, in its subdirectories, on a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PrefetchBenefit {
    /// Names that had to be requested since the last fill.
    misses: u32,
    /// Fills, and those whose reply did not contain the name for which they were sent.
    fills: u32,
    lost: u32,
    /// Names in their replies, and single requests that were saved since.
    names: u32,
    saved: u32,
    /// Whether a request was saved since the last fill, and the number of consecutive fills without
    /// benefit.
    has_saved: bool,
    failures: u8,
}

impl PrefetchBenefit {
    /// Records that one more name has to be requested, individually or by a fill.
    pub const fn missed(&mut self) {
        self.misses = self.misses.saturating_add(1);
    }

    /// Reverts [`Self::missed`]: the name is missing and negative entries are not cached, so a fill
    /// would not have saved the request.
    pub const fn missed_for_nothing(&mut self) {
        self.misses = self.misses.saturating_sub(1);
    }

    /// Records a fill with `names` names. `holds_it`: it contained the name for which it was sent.
    /// Older counts are halved at `FILLS_MAX`.
    pub const fn filled(&mut self, names: u32, holds_it: bool) {
        if self.fills >= FILLS_MAX {
            self.halve();
        }
        let was_useful = self.has_saved || self.fills == 0;
        self.failures = if holds_it && was_useful { 0 } else { self.failures.saturating_add(1) };
        self.fills += 1;
        self.lost += !holds_it as u32;
        self.names = self.names.saturating_add(names);
        (self.misses, self.has_saved) = (0, false);
    }

    /// Records a fill of a mount. A mount that is tried again needs fewer fills to be enabled.
    pub const fn filled_on_mount(&mut self, names: u32, holds_it: bool) {
        if self.misses >= MOUNT_MISSES && self.fills >= MOUNT_FILLS_MIN {
            while self.fills > MOUNT_FILLS_MIN - RETRIES {
                self.halve();
            }
            self.fills = MOUNT_FILLS_MIN - RETRIES;
        }
        self.filled(names, holds_it);
    }

    /// Records that a cached name saved a request because of a fill, and is not the one for which
    /// the fill was sent.
    pub const fn saved(&mut self) {
        self.saved = self.saved.saturating_add(1);
        self.has_saved = true;
    }

    /// Whether names were ever requested together because of a lookup.
    #[must_use]
    pub const fn has_filled(&self) -> bool {
        self.fills > 0
    }

    const fn halve(&mut self) {
        // `lost` must not exceed `fills`.
        (self.fills, self.lost) = (self.fills.div_ceil(2), self.lost / 2);
        (self.names, self.saved) = (self.names / 2, self.saved / 2);
    }

    /// Whether more requests were saved than lost, and enough for the names that were not used.
    fn is_beneficial(&self, unit: u64) -> bool {
        let names = u64::from(self.names) * u64::from(NAME_BYTES);
        self.saved > self.lost && names <= u64::from(self.saved - self.lost) * unit
    }

    /// Whether a large part of the names was used.
    fn is_wanted(&self) -> bool {
        (u64::from(self.saved) + u64::from(self.fills - self.lost)) * WANTED_MIN >= u64::from(self.names)
    }

    /// Whether a mount is disabled: fills have no benefit, and the last try is recent.
    fn is_given_up(&self, unit: u64) -> bool {
        self.fills >= MOUNT_FILLS_MIN && !self.is_beneficial(unit) && self.misses < MOUNT_MISSES
    }

    /// `misses`, doubled for each consecutive failure.
    fn doubled(&self, misses: u32) -> u32 {
        misses.saturating_mul(1 << self.failures.min(DOUBLINGS_MAX))
    }
}

/// The part of a directory that was read, in bytes of replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ListedExtent {
    /// Nothing is known to be read.
    #[default]
    Unread,
    /// Its first names; more follow.
    Part(u32),
    /// All names.
    Whole(u32),
}

/// The prefetch state of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PrefetchRecord {
    /// The benefit of requests for its names, and for those of its subdirectories.
    pub own: PrefetchBenefit,
    /// See [`Self::own`].
    pub below: PrefetchBenefit,
    extent: ListedExtent,
    /// Objects used since all attributes were last requested together, and those of them that had
    /// expired and were requested individually.
    used: u32,
    alone: u32,
    /// The number of used objects whose attributes had expired at the last refresh.
    refreshed: Option<u32>,
}

impl PrefetchRecord {
    /// The part that was read.
    #[must_use]
    pub const fn extent(&self) -> ListedExtent {
        self.extent
    }

    /// Records names read in `bytes`. `is_next`: they follow those that were read before, otherwise
    /// they are the first; `at_end`: they are the last.
    pub const fn read(&mut self, bytes: u32, is_next: bool, at_end: bool) {
        let before = match self.extent {
            ListedExtent::Part(bytes) if is_next => bytes,
            ListedExtent::Part(_) | ListedExtent::Unread | ListedExtent::Whole(_) => 0,
        };
        let bytes = before.saturating_add(bytes);
        self.extent = if at_end { ListedExtent::Whole(bytes) } else { ListedExtent::Part(bytes) };
    }

    /// Records that it was listed and has this number of names.
    pub const fn listed(&mut self, names: u32) {
        self.extent = ListedExtent::Whole(names.saturating_mul(NAME_BYTES));
    }

    /// Records the first use of an object since all attributes were requested together.
    pub const fn used(&mut self) {
        self.used = self.used.saturating_add(1);
    }

    /// Records that an object's attributes had expired and are requested individually.
    pub const fn note_single_request(&mut self) {
        self.alone = self.alone.saturating_add(1);
    }

    /// Records that the attributes of all objects were requested together. `expired`: the number of
    /// used objects whose attributes had expired, if one of them was the reason.
    pub const fn refreshed(&mut self, expired: Option<u32>) {
        (self.used, self.alone) = (0, 0);
        if expired.is_some() {
            (self.refreshed, self.own.misses) = (expired, 0);
        }
    }

    /// The approximate bytes left to read of a directory whose own size is `size`.
    fn bytes_left(&self, size: Option<u64>) -> u64 {
        let by_size = size.unwrap_or(0).saturating_mul(u64::from(NAME_BYTES)) / NAME_SIZE;
        match self.extent {
            ListedExtent::Unread => by_size,
            // The size attribute understates the names.
            ListedExtent::Part(bytes) => by_size.saturating_sub(u64::from(bytes)).max(u64::from(bytes)),
            ListedExtent::Whole(bytes) => u64::from(bytes),
        }
    }

    /// The size of the next request in bytes.
    fn next_bytes(&self, size: Option<u64>) -> u32 {
        let least = if self.extent == ListedExtent::Unread { FIRST_MIN } else { SIZE_MIN };
        with_room(bounded(self.bytes_left(size))).max(least)
    }

    /// The number of misses at which a lost fill costs a small part of them; 0 if the last fill had
    /// a benefit.
    fn misses_per_loss(&self, unit: u64) -> u32 {
        match self.extent {
            ListedExtent::Part(bytes) | ListedExtent::Whole(bytes) if !self.own.has_saved => {
                bounded(u64::from(bytes) * u64::from(LOSS_MISSES_MIN) / unit)
            }
            ListedExtent::Part(_) | ListedExtent::Whole(_) | ListedExtent::Unread => 0,
        }
    }

    /// The bytes of all objects' attributes, if enough others are expected to be used.
    fn refresh_bytes(&self, unit: u64) -> Option<u32> {
        let ListedExtent::Whole(bytes) = self.extent else {
            return None;
        };
        // Objects whose attributes were requested together expire together, unless they change.
        // Then the last reply saved few requests, and one object is requested individually first.
        let expected = match self.refreshed {
            None => self.used,
            Some(1 | 0) => self.used.min(self.alone.saturating_add(1)),
            Some(expired) => self.used.min(expired.saturating_mul(2)),
        };
        let others = u64::from(expected.saturating_sub(1));
        (u64::from(bytes) <= others * 2 * unit).then(|| with_room(bytes))
    }
}
