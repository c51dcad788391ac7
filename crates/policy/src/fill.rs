//! Asking for a directory's names together: instead of one name, or instead of the attributes of one.
//!
//! Owns guesses about worth; nothing here changes an answer, only what is asked for. A reply with many names costs bytes, and
//! work at the server, that a reply with one does not; it pays if enough of its names are wanted. Nobody knows that before, so
//! it is guessed from what is known: how many names of the directory were asked for one by one, how large the directory says
//! that it is, what such replies were worth in this directory, around it and on the whole mount, and what a request costs.
//!
//! Invariants:
//! - Where nothing speaks for it the names of a directory are asked for together only after so many were asked for one by one that
//!   it costs about as much again; where it was for nothing, only after so many that this is a small part of them, and after twice
//!   as many the next time.
//! - The name that a request was sent for speaks for nothing: it would have been a request, too.
//! - A mount where it does not pay is given up: at most [`RETRIES`] such requests in [`MOUNT_MISSES`] that ask for one name.
//!
//! Must not know the protocol: READDIRPLUS of NFSv3 and READDIR of NFSv4 with attributes are both meant.

use core::time::Duration;

use crate::{
    listing::{PLUS_SIZE_MAX, SIZE_MIN},
    options::CacheOptions,
};

/// Names of a directory that are asked for one by one before its names are asked for together, where nothing is known.
pub const MISSES_MIN: u32 = 2;

/// Bytes of a name with its attributes and handle, about.
const NAME_BYTES: u32 = 176;

/// Bytes that a file system counts for a name in a directory's own size, about: 20 (tmpfs) to 24 and more (ext4, XFS).
const NAME_SIZE: u64 = 22;

/// Bytes of names that cost what a request does where requests are quickest: 46 names, at 3 to 5 µs each for both sides.
const REQUEST_BYTES_MIN: u64 = 8 * 1024;

/// The same where they are slowest.
const REQUEST_BYTES_MAX: u64 = 256 * 1024;

/// Bytes of names that are sent, taken in and kept in a microsecond by a common server and network.
const BYTES_PER_MICROSECOND: u64 = 40;

/// Bytes of the first reply that is asked for at least: a directory's own size need not tell how many names it has.
const FIRST_MIN: u32 = 16 * 1024;

/// Fills of a mount before what they were worth says anything.
const MOUNT_FILLS_MIN: u32 = 8;

/// Names that have to be asked for on a mount that was given up before it is tried again.
pub const MOUNT_MISSES: u32 = 1024;

/// How often it is tried then before it is given up again, if that still does not pay.
pub const RETRIES: u32 = MOUNT_FILLS_MIN / 2;

/// Fills beside a directory before what they were worth says anything.
const BESIDE_FILLS_MIN: u32 = 2;

/// Fills after which what was learned before counts half.
const FILLS_MAX: u32 = 16;

/// Of so many names one has to be wanted where names are asked for together at the first miss.
const WANTED_MIN: u32 = 4;

/// So many times more misses are waited for where fills were not worth their bytes elsewhere.
const DOUBT: u32 = 4;

/// In so many requests at least may one more be lost, or names that cost as much, to a directory whose names were of no use.
const LOSS_SHARE: u64 = 50;

/// How often the number of misses that is waited for doubles at most.
const DOUBLINGS_MAX: u8 = 12;

/// What asking for names together was worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Worth {
    /// Requests that were sent.
    fills: u32,
    /// Those of them that did not tell of the name that they were sent for: it was asked for once more.
    lost: u32,
    /// Names that they brought.
    names: u32,
    /// Requests for other names that were spared since.
    spared: u32,
}

/// What is remembered of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mount {
    /// What it was worth there.
    worth: Worth,
    /// Names that had to be asked for since names were last asked for together.
    misses: u32,
}

/// How much of a directory was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Extent {
    /// Nothing, as far as is known.
    #[default]
    Unread,
    /// Its first names, so many in so many bytes; more follow.
    Part {
        /// How many.
        names: u32,
        /// In how many bytes.
        bytes: u32,
    },
    /// All of them.
    Whole {
        /// How many.
        names: u32,
        /// In how many bytes.
        bytes: u32,
    },
}

/// What is remembered of one directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// Names that were asked for one by one since its names were last asked for together.
    misses: u32,
    /// How often in a row that was for nothing.
    failures: u8,
    extent: Extent,
    /// What it was worth here.
    own: Worth,
    /// Whether any request was spared since the last fill, for another name than it was sent for.
    has_spared: bool,
    /// What it was worth in the directories in it.
    below: Worth,
    /// Objects in it that were used since their attributes last came together.
    used: u32,
    /// How many of those had expired by then and were asked about one by one.
    alone: u32,
    /// Of how many objects in use the attributes had expired when they were last asked for together because one's had.
    refreshed: Option<u32>,
}

/// What is known when a name of a directory has to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FillView {
    /// Of the directory. The name in question is counted ([`Record::missed`]).
    pub record: Record,
    /// What was remembered of the directory that it is in.
    pub parent: Option<Record>,
    /// Of the mount. The name in question is counted ([`Mount::missed`]).
    pub mount: Mount,
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
    pub record: Record,
    /// What a request takes that carries little.
    pub round_trip: Duration,
}

/// How an object's attributes are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Revalidation {
    /// By themselves.
    Object,
    /// With those of all objects in its directory, in about so many bytes.
    Directory {
        /// How many.
        bytes: u32,
    },
}

impl CacheOptions {
    /// Whether names may be asked for together: `dirfill=auto`, where replies with attributes are wanted and what they bring may
    /// be served afterwards.
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

/// Decides how the attributes of an object are asked for that have expired.
pub fn decide_revalidation(view: &RevalidationView, options: &CacheOptions) -> Revalidation {
    let Record {
        extent: Extent::Whole { bytes, .. },
        used,
        alone,
        refreshed,
        ..
    } = view.record
    else {
        return Revalidation::Object;
    };
    // Objects of one directory that came together expire together, unless they change: then it shows in what the last reply
    // spared, and one is asked about alone first.
    let expected = match refreshed {
        None => used,
        Some(1 | 0) => used.min(alone.saturating_add(1)),
        Some(expired) => used.min(expired.saturating_mul(2)),
    };
    let others = u64::from(expected.saturating_sub(1));
    if options.fills() && u64::from(bytes) <= others * 2 * request_bytes(view.round_trip) {
        Revalidation::Directory {
            bytes: with_room(bytes),
        }
    } else {
        Revalidation::Object
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
            (false, Extent::Part { .. }) => u32::MAX,
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
        (true, true | false, false) => doubtful.saturating_mul(DOUBT),
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

impl Worth {
    /// Whether more requests were spared than were lost, and enough for the names that nobody wanted, a request costing as much as
    /// `unit` bytes of them.
    const fn pays(self, unit: u64) -> bool {
        self.spared > self.lost
            && self.names as u64 * NAME_BYTES as u64 <= (self.spared - self.lost) as u64 * unit
    }

    /// Whether many of the names were wanted.
    const fn is_wanted(self) -> bool {
        let wanted = self.spared as u64 + (self.fills - self.lost) as u64;
        wanted * WANTED_MIN as u64 >= self.names as u64
    }

    /// One more request brought so many names; `holds_it`: it told of the one that it was sent for.
    const fn filled(&mut self, names: u32, holds_it: bool) {
        if self.fills >= FILLS_MAX {
            self.halve();
        }
        self.fills += 1;
        self.lost += !holds_it as u32;
        self.names = self.names.saturating_add(names);
    }

    /// What was learned so far counts half.
    const fn halve(&mut self) {
        // No more may be lost than were sent.
        (self.fills, self.lost) = (self.fills.div_ceil(2), self.lost / 2);
        (self.names, self.spared) = (self.names / 2, self.spared / 2);
    }

    /// A request for another name was spared.
    const fn spared(&mut self) {
        self.spared = self.spared.saturating_add(1);
    }
}

impl Mount {
    /// One more name has to be asked for, whichever way.
    pub const fn missed(&mut self) {
        self.misses = self.misses.saturating_add(1);
    }

    /// That name is missing, and nothing is kept of missing names: those beside it would have spared nothing.
    pub const fn missed_for_nothing(&mut self) {
        self.misses = self.misses.saturating_sub(1);
    }

    /// One more request brought so many names; `holds_it`: it told of the one that it was sent for.
    pub const fn filled(&mut self, names: u32, holds_it: bool) {
        // Whoever tries again after a long time shall not need as long to be convinced.
        if self.misses >= MOUNT_MISSES && self.worth.fills >= MOUNT_FILLS_MIN {
            while self.worth.fills > MOUNT_FILLS_MIN - RETRIES {
                self.worth.halve();
            }
            self.worth.fills = MOUNT_FILLS_MIN - RETRIES;
        }
        self.worth.filled(names, holds_it);
        self.misses = 0;
    }

    /// A request for another name was spared.
    pub const fn spared(&mut self) {
        self.worth.spared();
    }

    /// Whether it does not pay there, and was tried not long ago.
    const fn has_given_up(self, unit: u64) -> bool {
        self.worth.fills >= MOUNT_FILLS_MIN && !self.worth.pays(unit) && self.misses < MOUNT_MISSES
    }
}

impl Record {
    /// One more name has to be asked for, whichever way.
    pub const fn missed(&mut self) {
        self.misses = self.misses.saturating_add(1);
    }

    /// That name is missing, and nothing is kept of missing names: those beside it would have spared nothing.
    pub const fn missed_for_nothing(&mut self) {
        self.misses = self.misses.saturating_sub(1);
    }

    /// Names that were asked for one by one since they were last asked for together.
    #[must_use]
    pub const fn misses(&self) -> u32 {
        self.misses
    }

    /// How much of the directory was read.
    #[must_use]
    pub const fn extent(&self) -> Extent {
        self.extent
    }

    /// A reply brought names in so many bytes, because one was wanted. `is_next`: they follow what was read before, else they begin;
    /// `at_end`: they are the last; `holds_it`: they told of that name.
    pub const fn filled(&mut self, (names, bytes): (u32, u32), is_next: bool, at_end: bool, holds_it: bool) {
        let before = match self.extent {
            Extent::Part { names, bytes } if is_next => (names, bytes),
            Extent::Part { .. } | Extent::Unread | Extent::Whole { .. } => (0, 0),
        };
        let read = (before.0.saturating_add(names), before.1.saturating_add(bytes));
        self.read(read, at_end);
        let was_useful = self.has_spared || self.own.fills == 0;
        self.failures = if holds_it && was_useful {
            0
        } else {
            self.failures.saturating_add(1)
        };
        (self.misses, self.has_spared) = (0, false);
        self.own.filled(names, holds_it);
    }

    /// A request for a fill was refused or lost.
    pub const fn failed(&mut self) {
        (self.misses, self.has_spared) = (0, false);
        self.failures = self.failures.saturating_add(1);
        self.own.filled(0, false);
    }

    /// What began as a request for attributes brought names in so many bytes, from the first one on.
    pub const fn refilled(&mut self, read: (u32, u32), at_end: bool) {
        self.read(read, at_end);
        self.misses = 0;
    }

    /// Whether its names were ever asked for together because one was wanted.
    #[must_use]
    pub const fn has_filled(&self) -> bool {
        self.own.fills > 0
    }

    /// It was listed, and has so many names.
    pub const fn listed(&mut self, names: u32) {
        let bytes = names.saturating_mul(NAME_BYTES);
        self.read((names, bytes), true);
    }

    /// So many names in so many bytes are what was read of it from its beginning.
    const fn read(&mut self, (names, bytes): (u32, u32), at_end: bool) {
        self.extent = if at_end {
            Extent::Whole { names, bytes }
        } else {
            Extent::Part { names, bytes }
        };
    }

    /// An object in it was used for the first time since its attributes came with those of others.
    pub const fn used(&mut self) {
        self.used = self.used.saturating_add(1);
    }

    /// A name was answered for that would have been asked for but for a fill of this directory, and is not the one that the fill was
    /// sent for.
    pub const fn spared(&mut self) {
        self.has_spared = true;
        self.own.spared();
    }

    /// The same in a directory in it.
    pub const fn spared_below(&mut self) {
        self.below.spared();
    }

    /// The same request as in [`Self::filled`], of a directory in it.
    pub const fn filled_below(&mut self, names: u32, holds_it: bool) {
        self.below.filled(names, holds_it);
    }

    /// An object's attributes had expired and are asked for by themselves.
    pub const fn asked_alone(&mut self) {
        self.alone = self.alone.saturating_add(1);
    }

    /// The attributes of all its objects came together; `expired` of those that had been used had expired, if one of them was the
    /// reason.
    pub const fn refreshed(&mut self, expired: Option<u32>) {
        (self.used, self.alone) = (0, 0);
        if let Some(expired) = expired {
            self.refreshed = Some(expired);
        }
    }

    /// Bytes that are left to be read of a directory whose own size is `size`, about.
    fn bytes_left(self, size: Option<u64>) -> u64 {
        let by_size = size.unwrap_or(0).saturating_mul(u64::from(NAME_BYTES)) / NAME_SIZE;
        match self.extent {
            Extent::Unread => by_size,
            // Its size tells less than it has.
            Extent::Part { bytes, .. } => by_size.saturating_sub(u64::from(bytes)).max(u64::from(bytes)),
            Extent::Whole { bytes, .. } => u64::from(bytes),
        }
    }

    /// After how many misses the last fill would be a small loss; none if it was of any use.
    fn misses_per_loss(self, unit: u64) -> u32 {
        let (Extent::Part { bytes, .. } | Extent::Whole { bytes, .. }) = self.extent else {
            return 0;
        };
        let misses = u64::from(bytes) * LOSS_SHARE / unit;
        if self.has_spared {
            0
        } else {
            u32::try_from(misses).unwrap_or(u32::MAX)
        }
    }

    /// Bytes to ask for next.
    fn next_bytes(self, size: Option<u64>) -> u32 {
        let left = u32::try_from(self.bytes_left(size)).unwrap_or(u32::MAX);
        match self.extent {
            Extent::Unread => with_room(left).max(FIRST_MIN),
            Extent::Part { .. } | Extent::Whole { .. } => with_room(left),
        }
    }
}
