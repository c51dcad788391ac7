//! Whether more is requested than is wanted, and how many bytes of it: the next names of a listing
//! ahead of its reader, a directory's names instead of one LOOKUP, the attributes of all its
//! objects instead of one GETATTR. Nothing here changes an answer.
//!
//! There is one decision, [`decide`], for every [`Want`], and one budget: a request is worth
//! `request_bytes` bytes of names that nobody uses. How many will be used is estimated from the
//! requests sent one by one, the directory's own size, and the benefit of earlier replies in the
//! directory, in its siblings and on the mount.
//!
//! - Where nothing is known, names are requested together only after so many single requests that
//!   it costs about as much again; after a reply without benefit, when the next one is a small part
//!   of the requests since, and after twice as many each time.
//! - The name for which a request was sent is no benefit: it would have been a request, too.
//! - A mount without benefit is given up: [`RETRIES`] requests at most in [`MOUNT_MISSES`] names.
//!
//! Must not know the protocol: READDIRPLUS of NFSv3 and READDIR of NFSv4 with attributes are meant.

use core::time::Duration;

use crate::{
    options::{CacheOptions, FillMode, ListingMode, LookupCache, PlusMode},
    readdir::{PLUS_SIZE_MAX, SIZE_FIRST_MAX, SIZE_MIN, next_size},
};

/// Look-ups in a directory before its names are requested together, where nothing is known.
pub const MISSES_MIN: u32 = 2;
/// Names that are requested around one of a large listing: a reply of [`PLUS_SIZE_MAX`], about.
pub const PART_NAMES: u32 = 1024;
/// Look-ups on a mount that was given up before it is tried again, and how often.
pub const MOUNT_MISSES: u32 = 1024;
/// See [`MOUNT_MISSES`].
pub const RETRIES: u32 = MOUNT_FILLS_MIN / 2;
/// One in so many requests may be lost to a directory whose names were of no use.
pub const LOSS_MISSES_MIN: u32 = 50;
/// After so many look-ups in the order of a listing the names that follow are requested.
pub const MISSES_MAX: u32 = 16;
/// Names among which [`MISSES_MAX`] look-ups count as in order.
pub const MISSES_WINDOW: u32 = 64;

/// Bytes of a name with its attributes and handle, about.
const NAME_BYTES: u32 = 176;
/// Bytes of a name in a directory's own size: 20 (tmpfs) to 24 and more (ext4, XFS).
const NAME_SIZE: u64 = 22;
/// Bytes of the first request at least: a directory's own size need not tell how many names it has.
const FIRST_MIN: u32 = 16 * 1024;
/// Bytes of names that cost what a request does, where requests are quickest (46 names, at 3 to 5
/// µs each for both sides) and slowest; and bytes that are sent and taken in in a microsecond.
const REQUEST_BYTES: (u64, u64) = (8 * 1024, 256 * 1024);
const BYTES_PER_MICROSECOND: u64 = 40;
/// Fills of a directory's siblings, and of a mount, before their benefit says anything.
const BESIDE_FILLS_MIN: u32 = 2;
const MOUNT_FILLS_MIN: u32 = 8;
/// Fills after which what was learned before counts half.
const FILLS_MAX: u32 = 16;
/// One of so many names has to be used where names are requested together at the first miss.
const WANTED_MIN: u64 = 4;
/// So many times more misses are needed where fills were of no benefit in the siblings, and while
/// parts of a large listing were of some use and do not pay yet.
const UNPROVEN_FACTOR: u32 = 4;
const PART_UNPROVEN_FACTOR: u64 = 8;
/// How often the number of misses doubles at most.
const DOUBLINGS_MAX: u8 = 12;

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub enum Want<'a> {
    /// Soon the names behind those at hand.
    NextNames {
        /// Names that the reader has had, of those at hand.
        had: usize,
        /// Names at hand.
        of: usize,
        /// This client does not change the directory: what crosses its own change is hardly kept.
        is_undisturbed: bool,
    },
    /// A name of which nothing is known that may be served.
    Name(&'a PrefetchView),
    /// The same; a large listing has it.
    ListedName(&'a PrefetchView),
    /// The same; others of a listing were looked up in its order.
    NameInOrder(&'a LookupOrder),
    /// The attributes of an object, which have expired.
    Attributes(&'a PrefetchView),
}

/// What is known when a name or attributes have to be requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PrefetchView {
    /// Of the directory; the name in question is counted ([`PrefetchBenefit::missed`]).
    pub record: PrefetchRecord,
    /// In the directories beside it.
    pub beside: PrefetchBenefit,
    /// On the mount; the name in question is counted.
    pub mount: PrefetchBenefit,
    /// The directory's own size, if it is known.
    pub size: Option<u64>,
    /// What a request takes that carries little.
    pub round_trip: Duration,
}

impl CacheOptions {
    /// Whether names may be requested together: `dirfill=auto`, where replies with attributes are
    /// wanted and what they bring may be served afterwards.
    #[must_use]
    pub fn fills(&self) -> bool {
        self.fill != FillMode::Off
            && self.plus != PlusMode::Never
            && self.names != LookupCache::None
            && !self.name_lifetime.is_zero()
            && self.attribute_cache
            && !self.directories.max.is_zero()
    }
}

/// Decides whether more is requested than is wanted, in about how many bytes.
#[must_use]
pub fn decide(want: Want<'_>, options: &CacheOptions) -> Option<u32> {
    match want {
        Want::NextNames { had, of, is_undisturbed } => {
            let is_wanted = is_undisturbed && had * 2 >= of && options.listing == ListingMode::Continue;
            is_wanted.then_some(SIZE_MIN)
        }
        Want::NameInOrder(order) => {
            let is_wanted = order.count >= MISSES_MAX && options.plus != PlusMode::Never;
            is_wanted.then(|| next_size(order.bytes.max(SIZE_FIRST_MAX / 2), PLUS_SIZE_MAX))
        }
        Want::Name(_) | Want::ListedName(_) | Want::Attributes(_) if !options.fills() => None,
        Want::Name(view) => {
            let is_wanted = view.record.own.misses >= view.misses_needed();
            is_wanted.then(|| view.record.next_bytes(view.size))
        }
        Want::ListedName(view) => {
            (view.record.own.misses >= view.part_misses_needed()).then_some(PLUS_SIZE_MAX)
        }
        Want::Attributes(view) => view.record.refresh_bytes(request_bytes(view.round_trip)),
    }
}

impl PrefetchView {
    /// After how many look-ups the rest of a directory's names is requested.
    fn misses_needed(&self) -> u32 {
        let (record, unit) = (&self.record, request_bytes(self.round_trip));
        let cost = bounded(record.bytes_left(self.size) / (2 * unit));
        let doubtful = cost.max(MISSES_MIN);
        if record.own.fills > 0 {
            return match (record.own.pays(unit), record.extent) {
                (true, _) if record.own.failures == 0 => cost.max(1),
                // The first names were of no use; neither will be the others.
                (false, ListedExtent::Part(_)) => u32::MAX,
                _ if self.mount.is_given_up(unit) => u32::MAX,
                _ => record.own.doubled(doubtful.max(record.misses_per_loss(unit))),
            };
        }
        let is_known = self.beside.fills >= BESIDE_FILLS_MIN;
        match (is_known && self.beside.pays(unit), is_known) {
            (true, _) if self.beside.is_wanted() => cost.max(1),
            (true, _) => doubtful,
            _ if self.mount.is_given_up(unit) => u32::MAX,
            (false, true) => doubtful.saturating_mul(UNPROVEN_FACTOR),
            (false, false) => doubtful,
        }
    }

    /// After how many look-ups in a large listing the names around one are requested.
    fn part_misses_needed(&self) -> u32 {
        let (own, unit) = (&self.record.own, request_bytes(self.round_trip));
        let misses = |share: u64| bounded(u64::from(PLUS_SIZE_MAX) * share / (2 * unit));
        if own.fills == 0 {
            misses(1).max(LOSS_MISSES_MIN)
        } else if own.pays(unit) {
            own.doubled(misses(1).max(MISSES_MIN))
        } else if own.has_spared {
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

/// Bytes of names that cost as much as a request that takes `round_trip`.
fn request_bytes(round_trip: Duration) -> u64 {
    let microseconds = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
    let bytes = microseconds.saturating_mul(BYTES_PER_MICROSECOND);
    bytes.clamp(REQUEST_BYTES.0, REQUEST_BYTES.1)
}

/// Bytes to request where `bytes` came the last time: a few names may have come in since.
fn with_room(bytes: u32) -> u32 {
    let room = (bytes / 8).saturating_add(4096);
    bytes.saturating_add(room).clamp(SIZE_MIN, PLUS_SIZE_MAX)
}

/// Names of a listing that were looked up one by one: in its order?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupOrder {
    /// Where in the listing the last one is, how many there were in a row, and in all.
    at: u32,
    count: u32,
    all: u32,
    /// Bytes of the last request for those that followed.
    bytes: u32,
}

impl LookupOrder {
    /// A name was looked up; whether there are enough for finding out where in the listing they
    /// are.
    pub const fn missed(&mut self) -> bool {
        self.all = self.all.saturating_add(1);
        self.all > MISSES_MAX / 2
    }

    /// The name at `place` of the listing was.
    pub const fn missed_at(&mut self, place: u32) {
        let is_next = place >= self.at && place - self.at <= MISSES_WINDOW;
        self.count = if is_next { self.count.saturating_add(1) } else { 1 };
        self.at = place;
    }

    /// The names up to `place` came, of a request for `bytes`: if those that follow are looked up
    /// too, that is noticed soon.
    pub const fn requested(&mut self, place: u32, bytes: u32) {
        (self.at, self.bytes) = (place, bytes);
        self.count = MISSES_MAX * 3 / 4;
    }

    /// Names are of no use for telling an order any more.
    pub const fn restart(&mut self) {
        (self.at, self.count, self.all) = (0, 0, 0);
    }
}

/// What requesting names together was worth: in a directory, in those in it, on a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PrefetchBenefit {
    /// Names that had to be requested since names were last requested together.
    misses: u32,
    /// Requests for names together, and those that did not bring the name they were sent for.
    fills: u32,
    lost: u32,
    /// Names that they brought, and requests for other names that were spared since.
    names: u32,
    spared: u32,
    /// Whether any was since the last fill, and how many fills in a row were for nothing.
    has_spared: bool,
    failures: u8,
}

impl PrefetchBenefit {
    /// One more name has to be requested, whichever way.
    pub const fn missed(&mut self) {
        self.misses = self.misses.saturating_add(1);
    }

    /// That name is missing, and nothing is kept of missing names: those beside it would have
    /// spared nothing.
    pub const fn missed_for_nothing(&mut self) {
        self.misses = self.misses.saturating_sub(1);
    }

    /// A request brought `names`; `holds_it`: the name that it was sent for, too. What was learned
    /// long ago counts less.
    pub const fn filled(&mut self, names: u32, holds_it: bool) {
        if self.fills >= FILLS_MAX {
            self.halve();
        }
        let was_useful = self.has_spared || self.fills == 0;
        self.failures = if holds_it && was_useful { 0 } else { self.failures.saturating_add(1) };
        self.fills += 1;
        self.lost += !holds_it as u32;
        self.names = self.names.saturating_add(names);
        (self.misses, self.has_spared) = (0, false);
    }

    /// The same of a mount: one that is tried again does not need as long to be convinced.
    pub const fn filled_on_mount(&mut self, names: u32, holds_it: bool) {
        if self.misses >= MOUNT_MISSES && self.fills >= MOUNT_FILLS_MIN {
            while self.fills > MOUNT_FILLS_MIN - RETRIES {
                self.halve();
            }
            self.fills = MOUNT_FILLS_MIN - RETRIES;
        }
        self.filled(names, holds_it);
    }

    /// A name was answered for that would have been requested but for a fill, and is not the one
    /// that the fill was sent for.
    pub const fn spared(&mut self) {
        self.spared = self.spared.saturating_add(1);
        self.has_spared = true;
    }

    /// Whether names were ever requested together because one was wanted.
    #[must_use]
    pub const fn has_filled(&self) -> bool {
        self.fills > 0
    }

    const fn halve(&mut self) {
        // No more may be lost than were sent.
        (self.fills, self.lost) = (self.fills.div_ceil(2), self.lost / 2);
        (self.names, self.spared) = (self.names / 2, self.spared / 2);
    }

    /// Whether more requests were spared than lost, and enough for the names that nobody wanted.
    fn pays(&self, unit: u64) -> bool {
        let names = u64::from(self.names) * u64::from(NAME_BYTES);
        self.spared > self.lost && names <= u64::from(self.spared - self.lost) * unit
    }

    /// Whether many of the names were wanted.
    fn is_wanted(&self) -> bool {
        (u64::from(self.spared) + u64::from(self.fills - self.lost)) * WANTED_MIN >= u64::from(self.names)
    }

    /// Whether it does not pay on a mount, and was tried not long ago.
    fn is_given_up(&self, unit: u64) -> bool {
        self.fills >= MOUNT_FILLS_MIN && !self.pays(unit) && self.misses < MOUNT_MISSES
    }

    /// So many misses, twice as many after each failure in a row.
    fn doubled(&self, misses: u32) -> u32 {
        misses.saturating_mul(1 << self.failures.min(DOUBLINGS_MAX))
    }
}

/// How much of a directory was read, in how many bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ListedExtent {
    /// Nothing, as far as is known.
    #[default]
    Unread,
    /// Its first names; more follow.
    Part(u32),
    /// All of them.
    Whole(u32),
}

/// What is remembered of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PrefetchRecord {
    /// The benefit of requests for its names, and for those of the directories in it.
    pub own: PrefetchBenefit,
    /// See [`Self::own`].
    pub below: PrefetchBenefit,
    extent: ListedExtent,
    /// Objects that were used since attributes last came together, and how many of them had expired
    /// and were requested by themselves.
    used: u32,
    alone: u32,
    /// Of how many objects in use the attributes had expired at the last refresh.
    refreshed: Option<u32>,
}

impl PrefetchRecord {
    /// How much was read.
    #[must_use]
    pub const fn extent(&self) -> ListedExtent {
        self.extent
    }

    /// Names came in so many bytes. `is_next`: they follow what was read before, else they begin;
    /// `at_end`: they are the last.
    pub const fn read(&mut self, bytes: u32, is_next: bool, at_end: bool) {
        let before = match self.extent {
            ListedExtent::Part(bytes) if is_next => bytes,
            ListedExtent::Part(_) | ListedExtent::Unread | ListedExtent::Whole(_) => 0,
        };
        let bytes = before.saturating_add(bytes);
        self.extent = if at_end { ListedExtent::Whole(bytes) } else { ListedExtent::Part(bytes) };
    }

    /// It was listed, and has so many names.
    pub const fn listed(&mut self, names: u32) {
        self.extent = ListedExtent::Whole(names.saturating_mul(NAME_BYTES));
    }

    /// An object was used for the first time since attributes came together.
    pub const fn used(&mut self) {
        self.used = self.used.saturating_add(1);
    }

    /// An object's attributes had expired and are requested by themselves.
    pub const fn asked_alone(&mut self) {
        self.alone = self.alone.saturating_add(1);
    }

    /// The attributes of all objects came together; `expired` of those in use had expired, if one
    /// of them was the reason.
    pub const fn refreshed(&mut self, expired: Option<u32>) {
        (self.used, self.alone) = (0, 0);
        if expired.is_some() {
            (self.refreshed, self.own.misses) = (expired, 0);
        }
    }

    /// Bytes that are left to be read of a directory whose own size is `size`, about.
    fn bytes_left(&self, size: Option<u64>) -> u64 {
        let by_size = size.unwrap_or(0).saturating_mul(u64::from(NAME_BYTES)) / NAME_SIZE;
        match self.extent {
            ListedExtent::Unread => by_size,
            // Its size tells less than it has.
            ListedExtent::Part(bytes) => by_size.saturating_sub(u64::from(bytes)).max(u64::from(bytes)),
            ListedExtent::Whole(bytes) => u64::from(bytes),
        }
    }

    /// Bytes to request next.
    fn next_bytes(&self, size: Option<u64>) -> u32 {
        let least = if self.extent == ListedExtent::Unread { FIRST_MIN } else { SIZE_MIN };
        with_room(bounded(self.bytes_left(size))).max(least)
    }

    /// After how many misses the last fill would be a small loss; none if it was of any use.
    fn misses_per_loss(&self, unit: u64) -> u32 {
        match self.extent {
            ListedExtent::Part(bytes) | ListedExtent::Whole(bytes) if !self.own.has_spared => {
                bounded(u64::from(bytes) * u64::from(LOSS_MISSES_MIN) / unit)
            }
            ListedExtent::Part(_) | ListedExtent::Whole(_) | ListedExtent::Unread => 0,
        }
    }

    /// Bytes of all objects' attributes, if those of enough others are expected to be wanted.
    fn refresh_bytes(&self, unit: u64) -> Option<u32> {
        let ListedExtent::Whole(bytes) = self.extent else {
            return None;
        };
        // Objects of one directory that came together expire together, unless they change: then it
        // shows in what the last reply spared, and one is requested alone first.
        let expected = match self.refreshed {
            None => self.used,
            Some(1 | 0) => self.used.min(self.alone.saturating_add(1)),
            Some(expired) => self.used.min(expired.saturating_mul(2)),
        };
        let others = u64::from(expected.saturating_sub(1));
        (u64::from(bytes) <= others * 2 * unit).then(|| with_room(bytes))
    }
}
