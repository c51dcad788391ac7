//! Names: which exist, which are missing, and how long that is valid.
//!
//! Owns the decisions of the DentryCache, and their combination with those of access: a name is
//! served from the cache only to a caller who may search its directory. A name is labelled with its
//! directory's contents epoch at the time it was learned. An epoch stands for one stamp, and for
//! the stamps that proven changes of this client turned it into. So all names of a directory are
//! invalidated in O(1), by ending the epoch.
//!
//! Invariants:
//! - A name is served only in the epoch in which it was learned, and only while the directory's
//!   attributes are valid.
//! - A negative entry never answers an operation that would create the name: the server decides.
//! - A name learned while the directory's stamp was recent is looked up once more (the racy guard):
//!   two changes within one tick of the server's clock have the same stamp, so the name may have
//!   missed the second one.
//! - [`ServerClock::lower_bound`] is never later than the server's current time, as long as both
//!   clocks run at the same rate and the server's is not set back. A change of this client detects
//!   that it was. The clock needs no request: every ctime in a reply was once the server's current
//!   time.
//!
//! A cached positive name is looked up at the server although it is valid if its creation may
//! follow. A kernel looks a name up before it creates it, and fails with EEXIST itself if the name
//! exists. So that lookup may be all that the client sees of mkdir(2), open(2) with O_EXCL,
//! symlink(2), link(2) or mknod(2), and FUSE does not mark it. Two signs show it:
//! - The kernel asks although its own entry is valid: the name is about to be created exclusively
//!   or to be replaced (LOOKUP_EXCL, LOOKUP_RENAME_TARGET).
//! - The name is the only one that is looked up in its directory, repeatedly, and no other
//!   operation uses its object: a program tries to create it until another client removes it.
//!   LOOKUP is then sent after one second, and again each time the duration has doubled.
//!
//! A user of the library other than a kernel calls the operation itself.
//!
//! Must not know tables, bounds or handles.

use core::time::Duration;

use curt_types::{Access, Timestamp};

use crate::{
    access::{AccessDecision, AccessReason, AccessView, AllowedBy, decide_access},
    attributes::Epoch,
    attributes::{Absorbed, AttributeState, Freshness, MutationTicket},
    kernel_cache::{DirectoryView, KernelNameView},
    options::{CacheOptions, LookupCache, RacyGuard},
    time::{MonotonicTime, left},
};

/// How a name was learned. Stored with each entry; an entry has no other date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NameLabel {
    /// The directory's contents epoch.
    pub epoch: Epoch,
    /// When the request that found it was sent.
    pub sent_at: MonotonicTime,
}

/// The state of a name in the DentryCache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DentryState {
    /// Not cached.
    Absent,
    /// The name leads to an object.
    Positive,
    /// The name is missing.
    Negative,
}

/// Whether a cached name may have missed a change of its directory (the racy guard).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RacyState {
    /// The directory's timestamp was old enough when the name was learned: a later change would
    /// have a different timestamp.
    NotRacy,
    /// A later change could have the same timestamp, and the guard has not expired: a LOOKUP now
    /// could miss a change as well.
    WithinGuard,
    /// A later change could have the same timestamp, and the guard has expired: one more LOOKUP
    /// settles it.
    GuardExpired,
}

/// The known state of a name at a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NameView {
    /// The cached entry.
    pub entry: DentryState,
    /// Whether it was learned under the directory's present epoch.
    pub same_contents: bool,
    /// Whether it is within `nametimeo` or `negnametimeo`.
    pub within_lifetime: bool,
    /// Whether it may have missed a change.
    pub racy_state: RacyState,
    /// Whether the request that found it was sent after the operation began.
    pub just_learned: bool,
    /// The freshness of the directory's attributes.
    pub directory: Freshness,
}

/// The time of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LookupTime {
    /// When the operation began.
    pub began: MonotonicTime,
    /// The current time.
    pub now: MonotonicTime,
}

impl NameView {
    /// The view of a name that is not cached.
    #[must_use]
    pub fn absent(directory: &AttributeState, wanted: LookupTime, options: &CacheOptions) -> Self {
        Self {
            entry: DentryState::Absent,
            same_contents: false,
            within_lifetime: false,
            racy_state: RacyState::GuardExpired,
            just_learned: false,
            directory: directory.freshness(wanted.began, wanted.now, options),
        }
    }

    /// The view of an entry cached under `label`.
    #[must_use]
    pub fn of(
        entry: DentryState,
        label: NameLabel,
        directory: &AttributeState,
        clock: &ServerClock,
        wanted: LookupTime,
        options: &CacheOptions,
    ) -> Self {
        let age = wanted.now.since(label.sent_at);
        Self {
            entry,
            same_contents: directory.contents() == Some(label.epoch),
            within_lifetime: age <= lifetime(entry, options),
            racy_state: racy_state(label, directory, clock, age, options),
            just_learned: label.sent_at >= wanted.began,
            directory: directory.freshness(wanted.began, wanted.now, options),
        }
    }
}

/// The lifetime of a name of this kind; zero disables its caching.
#[must_use]
pub const fn lifetime(entry: DentryState, options: &CacheOptions) -> Duration {
    match (entry, options.names) {
        (DentryState::Absent, _)
        | (_, LookupCache::None)
        | (DentryState::Negative, LookupCache::Positive) => Duration::ZERO,
        (DentryState::Positive, LookupCache::All | LookupCache::Positive) => options.name_lifetime,
        (DentryState::Negative, LookupCache::All) => options.missing_name_lifetime,
    }
}

impl CacheOptions {
    /// Whether missing names are cached at all.
    #[must_use]
    pub const fn keeps_missing_names(&self) -> bool {
        !lifetime(DentryState::Negative, self).is_zero()
    }
}

fn racy_state(
    label: NameLabel,
    directory: &AttributeState,
    clock: &ServerClock,
    age: Duration,
    options: &CacheOptions,
) -> RacyState {
    if !is_racy(label, directory, clock, options) {
        RacyState::NotRacy
    } else if age <= clock.guard() {
        RacyState::WithinGuard
    } else {
        RacyState::GuardExpired
    }
}

/// Whether what was learned of `directory` under `label` may have missed a change with the same
/// stamp.
#[must_use]
pub fn is_racy(
    label: NameLabel,
    directory: &AttributeState,
    clock: &ServerClock,
    options: &CacheOptions,
) -> bool {
    let changed_at = directory.changed_at(label.sent_at, options);
    clock.is_racy(changed_at, label.sent_at, options.racy_guard)
}

/// The decision for a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum NameDecision {
    /// Serve the cached object.
    ServePositive,
    /// Serve that the name is missing.
    ServeNegative,
    /// Send GETATTR for the directory (shared by all waiters), absorb the reply, decide again.
    RevalidateDirectory,
    /// Send LOOKUP, for the reason given.
    Lookup(LookupReason),
}

/// Why a LOOKUP is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupReason {
    /// There is no cached entry that the options permit to serve.
    Unknown,
    /// The directory has changed since the name was learned.
    DirectoryChanged,
    /// The entry is older than `nametimeo` or `negnametimeo`.
    TooOld,
    /// The entry may have missed a change (the racy guard).
    Racy,
}

/// Decides one lookup.
pub fn decide_lookup(view: &NameView, options: &CacheOptions) -> NameDecision {
    let serve = match view.entry {
        DentryState::Absent => return NameDecision::Lookup(LookupReason::Unknown),
        DentryState::Positive => NameDecision::ServePositive,
        DentryState::Negative => NameDecision::ServeNegative,
    };
    if view.just_learned {
        return serve;
    }
    if lifetime(view.entry, options).is_zero() {
        return NameDecision::Lookup(LookupReason::Unknown);
    }
    if !view.within_lifetime {
        return NameDecision::Lookup(LookupReason::TooOld);
    }
    if !view.same_contents {
        return NameDecision::Lookup(LookupReason::DirectoryChanged);
    }
    if view.racy_state == RacyState::GuardExpired {
        return NameDecision::Lookup(LookupReason::Racy);
    }
    match view.directory {
        Freshness::Confirmed => serve,
        Freshness::Fresh if options.attribute_cache => serve,
        Freshness::Fresh | Freshness::Expired | Freshness::Unknown => NameDecision::RevalidateDirectory,
    }
}

/// How long a name must be looked up repeatedly before LOOKUP is sent.
const FIRST_PROBE_AFTER: Duration = Duration::from_secs(1);

/// The repeated lookups of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CreateProbe {
    since: MonotonicTime,
    /// When LOOKUP was last sent because of them; initially their beginning.
    last_lookup: MonotonicTime,
}

impl CreateProbe {
    /// The first lookup of the name.
    #[must_use]
    pub const fn begun(now: MonotonicTime) -> Self {
        Self { since: now, last_lookup: now }
    }

    /// Whether LOOKUP must be sent for one more lookup at `now`.
    #[must_use]
    pub fn is_due(&self, now: MonotonicTime) -> bool {
        now.since(self.last_lookup) >= self.last_lookup.since(self.since).max(FIRST_PROBE_AFTER)
    }

    /// Records one more lookup at `now`.
    pub fn note_lookup(&mut self, now: MonotonicTime) {
        if self.is_due(now) {
            self.last_lookup = now;
        }
    }
}

/// The signs that a kernel looks a name up in order to create it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CreateHints {
    /// The earlier lookups of the name, if no other name was looked up since and no other operation
    /// has used the object.
    pub repeated: Option<CreateProbe>,
    /// The kernel's own entry of the name was valid when the lookup began.
    pub kernel_has_name: bool,
}

impl CreateHints {
    /// Whether the lookup that began at `began` is sent to the server.
    #[must_use]
    pub fn must_send_lookup(&self, began: MonotonicTime) -> bool {
        self.kernel_has_name || self.repeated.is_some_and(|probe| probe.is_due(began))
    }
}

/// The known state at a lookup.
#[derive(Clone, Copy, Debug)]
pub struct LookupView<'a> {
    /// The cached entry of the name and its label.
    pub entry: Option<(DentryState, NameLabel)>,
    /// The name is `..`.
    pub is_parent: bool,
    /// The directory.
    pub directory: DirectoryView<'a>,
    /// The freshness of its attributes for this operation.
    pub freshness: Freshness,
    /// The caller's rights on it.
    pub access: AccessView,
    /// The time of the lookup.
    pub wanted: LookupTime,
    /// The kernel that asks; `None` if no kernel that may cache the name asks.
    pub kernel: Option<KernelNameView>,
    /// The signs that the name is looked up in order to create it.
    pub create: CreateHints,
}

/// The counter of a lookup that the cache answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupHit {
    /// The parent directory.
    Parent,
    /// A name that exists.
    Positive,
    /// A missing name.
    Negative,
}

/// How a lookup is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedLookup {
    /// The kind of hit, by which it is counted.
    pub hit: LookupHit,
    /// The basis on which the caller may search the directory, which is counted too.
    pub allowed_by: AllowedBy,
    /// How long the kernel may cache the name.
    pub lifetime: Duration,
}

/// The next step of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum LookupDecision {
    /// Serve the cached entry.
    Serve(ServedLookup),
    /// The cached entry could be served, but send LOOKUP first: the kernel may be about to create
    /// the name.
    Confirm(ServedLookup),
    /// The caller may not search the directory.
    Deny,
    /// Send GETATTR for the directory, absorb, decide again.
    Revalidate,
    /// Send ACCESS for the directory, absorb, decide again.
    AskAccess(AccessReason),
    /// Send LOOKUP.
    Lookup(LookupReason),
}

/// Decides one lookup of a name that is to be used.
pub fn decide_cached_lookup(view: &LookupView<'_>, options: &CacheOptions) -> LookupDecision {
    let Some((state, label)) = view.entry else {
        return LookupDecision::Lookup(LookupReason::Unknown);
    };
    let name = NameView {
        directory: view.freshness,
        ..NameView::of(state, label, view.directory.attributes, view.directory.clock, view.wanted, options)
    };
    let may_search = || decide_access(&view.access, view.freshness, Access::LOOKUP, options);
    match decide_lookup(&name, options) {
        NameDecision::Lookup(reason) => LookupDecision::Lookup(reason),
        NameDecision::ServePositive | NameDecision::ServeNegative => match may_search() {
            AccessDecision::Allow => {
                let served = view.served(state, label, options);
                match served.hit {
                    LookupHit::Parent | LookupHit::Positive
                        if !name.just_learned && view.create.must_send_lookup(view.wanted.began) =>
                    {
                        LookupDecision::Confirm(served)
                    }
                    LookupHit::Parent | LookupHit::Positive | LookupHit::Negative => {
                        LookupDecision::Serve(served)
                    }
                }
            }
            AccessDecision::Deny => LookupDecision::Deny,
            AccessDecision::Revalidate => LookupDecision::Revalidate,
            AccessDecision::Ask(reason) => LookupDecision::AskAccess(reason),
        },
        // An ACCESS reply contains the directory's attributes as well.
        NameDecision::RevalidateDirectory => match may_search() {
            AccessDecision::Ask(reason) => LookupDecision::AskAccess(reason),
            AccessDecision::Deny => LookupDecision::Deny,
            AccessDecision::Allow | AccessDecision::Revalidate => LookupDecision::Revalidate,
        },
    }
}

impl LookupView<'_> {
    fn served(&self, state: DentryState, label: NameLabel, options: &CacheOptions) -> ServedLookup {
        let hit = match (self.is_parent, state) {
            (true, _) => LookupHit::Parent,
            (false, DentryState::Positive) => LookupHit::Positive,
            (false, DentryState::Negative | DentryState::Absent) => LookupHit::Negative,
        };
        let lifetime =
            |kernel: KernelNameView| kernel.lifetime(state, label, &self.directory, self.wanted.now, options);
        ServedLookup {
            hit,
            allowed_by: self.access.allowed_by(Access::LOOKUP),
            lifetime: self.kernel.map_or(Duration::ZERO, lifetime),
        }
    }
}

/// The result of a LOOKUP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupFinding {
    /// An object.
    Object,
    /// NFS3ERR_NOENT.
    Nothing,
    /// An error that does not concern the name (ACCES, STALE, IO, JUKEBOX, NAMETOOLONG …), or no
    /// reply.
    Unknown,
}

/// The update of the cache after a LOOKUP reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum DentryUpdate {
    /// Cache that the name leads to the object.
    Positive(NameLabel),
    /// Cache that the name is missing.
    Negative(NameLabel),
    /// Cache nothing and drop the entry: the reply is valid for its caller only.
    Forget,
    /// Leave the entry unchanged.
    Unchanged,
}

/// The update after a LOOKUP reply, whose directory attributes were absorbed into `directory`
/// before. `ticket` was taken from `directory` before the request was sent. `directory_adopted`:
/// the reply had the directory's attributes and they are the newest known
/// ([`crate::Absorbed::adopted`]).
pub fn learn(
    found: LookupFinding,
    ticket: MutationTicket,
    directory: &AttributeState,
    directory_adopted: bool,
    sent_at: MonotonicTime,
) -> DentryUpdate {
    let undisturbed = directory.is_undisturbed(ticket) && directory_adopted;
    keep(found, undisturbed, directory, sent_at)
}

/// The update of a name after a change of it by this client succeeded. `absorbed` is the result of
/// [`AttributeState::absorb_mutation`] for the directory's attributes in the reply. `alone`: no
/// other change of the same name by this client was in flight meanwhile.
pub fn learn_own(
    found: LookupFinding,
    alone: bool,
    directory: &AttributeState,
    absorbed: Absorbed,
    sent_at: MonotonicTime,
) -> DentryUpdate {
    keep(found, alone && absorbed.stands, directory, sent_at)
}

fn keep(
    found: LookupFinding,
    undisturbed: bool,
    directory: &AttributeState,
    sent_at: MonotonicTime,
) -> DentryUpdate {
    let entry = match found {
        LookupFinding::Object => DentryUpdate::Positive,
        LookupFinding::Nothing => DentryUpdate::Negative,
        LookupFinding::Unknown => return DentryUpdate::Unchanged,
    };
    match directory.contents() {
        Some(epoch) if undisturbed => entry(NameLabel { epoch, sent_at }),
        Some(_) | None => DentryUpdate::Forget,
    }
}

/// How long from `now` an entry with `label` is served without a request, if the directory's
/// attributes stay valid that long. The kernel is granted no more.
#[must_use]
pub fn remaining(
    entry: DentryState,
    label: NameLabel,
    directory: &AttributeState,
    clock: &ServerClock,
    now: MonotonicTime,
    options: &CacheOptions,
) -> Duration {
    let age = now.since(label.sent_at);
    if directory.contents() != Some(label.epoch) {
        return Duration::ZERO;
    }
    let own = left(lifetime(entry, options), age).min(directory.remaining(now, options));
    match racy_state(label, directory, clock, age, options) {
        RacyState::NotRacy => own,
        RacyState::WithinGuard => own.min(left(clock.guard(), age)),
        RacyState::GuardExpired => Duration::ZERO,
    }
}

/// The minimum guard.
pub const GUARD_MIN: Duration = Duration::from_millis(20);
/// The maximum to which a detected miss can raise the guard.
pub const GUARD_MAX: Duration = Duration::from_secs(4);

/// The known properties of the server's clock, per file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerClock {
    /// Lower bound of the server's time minus ours, in nanoseconds (the server's since 1970).
    offset: Option<i128>,
    /// FSINFO's time_delta.
    time_delta: Duration,
    /// The coarsest resolution consistent with all times seen so far; `None` before the first.
    seen: Option<Duration>,
    /// The guard after a detected miss.
    raised: Duration,
}

impl ServerClock {
    /// No times were seen yet. `time_delta` is FSINFO's (RFC 1813 §3.3.19), zero if unknown.
    #[must_use]
    pub const fn new(time_delta: Duration) -> Self {
        Self { offset: None, time_delta, seen: None, raised: Duration::ZERO }
    }

    /// Absorbs the ctime of any reply, which arrived at `received_at`.
    pub fn learn(&mut self, ctime: Timestamp, received_at: MonotonicTime) {
        let offset = i128::from(ctime.as_nanoseconds()) - i128::from(received_at.nanoseconds());
        self.offset = Some(self.offset.map_or(offset, |known| known.max(offset)));
        let step = coarsest_step(ctime);
        self.seen = Some(self.seen.map_or(step, |seen| seen.min(step)));
    }

    /// Absorbs the ctime of a change of this client, whose request was sent at `sent_at`. It was
    /// the server's current time, rounded to a tick, so an estimate beyond it is wrong (the clock
    /// was set back).
    pub fn learn_from_change(
        &mut self,
        ctime: Timestamp,
        sent_at: MonotonicTime,
        received_at: MonotonicTime,
    ) {
        let step = i128::try_from(self.guard().as_nanos()).unwrap_or(i128::MAX);
        if self
            .lower_bound(sent_at)
            .is_some_and(|bound| bound > i128::from(ctime.as_nanoseconds()).saturating_add(step))
        {
            self.offset = None;
        }
        self.learn(ctime, received_at);
    }

    /// The time since what was learnt is not known exactly: only what is learnt later counts.
    pub const fn forget_offset(&mut self) {
        self.offset = None;
    }

    /// Records that a name was found that was cached as missing under the same stamp: the clock is
    /// coarser than estimated.
    pub fn proven_coarse(&mut self) {
        self.raised = self.guard().saturating_mul(2).min(GUARD_MAX);
    }

    /// The lower bound of the server's time at `moment`, in nanoseconds since 1970.
    #[must_use]
    pub fn lower_bound(&self, moment: MonotonicTime) -> Option<i128> {
        self.offset.map(|offset| offset + i128::from(moment.nanoseconds()))
    }

    /// The time after a change during which another one may have the same stamp: twice the
    /// resolution of the clock. The resolution is that which the observed times show, since
    /// time_delta is often wrong: servers report 1 s and have nanoseconds, or the reverse.
    #[must_use]
    pub fn guard(&self) -> Duration {
        let step = self.seen.unwrap_or(self.time_delta);
        step.saturating_mul(2).max(GUARD_MIN).max(self.raised)
    }

    /// Whether the reply to a request sent at `sent_at` can have missed a change that left the
    /// stamp's time `changed_at` unchanged.
    #[must_use]
    pub fn is_racy(&self, changed_at: Option<Timestamp>, sent_at: MonotonicTime, guard: RacyGuard) -> bool {
        let Some(changed_at) = changed_at else {
            return false;
        };
        if guard == RacyGuard::Off {
            return false;
        }
        let quiet = i128::from(changed_at.as_nanoseconds())
            + i128::try_from(self.guard().as_nanos()).unwrap_or(i128::MAX / 2);
        self.lower_bound(sent_at).is_none_or(|bound| bound <= quiet)
    }
}

/// The coarsest resolution that could have produced this time: a power of ten of nanoseconds up to
/// 1 s, or the 2 s of FAT.
fn coarsest_step(time: Timestamp) -> Duration {
    if time.nanoseconds() == 0 {
        return Duration::from_secs(if time.seconds() % 2 == 0 { 2 } else { 1 });
    }
    let mut step = 1_u32;
    while step < 100_000_000 && time.nanoseconds().is_multiple_of(step * 10) {
        step *= 10;
    }
    Duration::from_nanos(u64::from(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> MonotonicTime {
        MonotonicTime::from_start(Duration::from_millis(milliseconds))
    }

    #[test]
    fn a_repeated_lookup_is_sent_after_a_second_and_at_doubling_intervals() {
        let mut probe = CreateProbe::begun(at(0));
        let mut due = Vec::new();
        for time in (0..=640).map(|tenth| tenth * 100) {
            let signs = CreateHints { repeated: Some(probe), kernel_has_name: false };
            if signs.must_send_lookup(at(time)) {
                due.push(time);
            }
            probe.note_lookup(at(time));
        }
        assert_eq!(due, [1000, 2000, 4000, 8000, 16000, 32000, 64000]);
    }

    #[test]
    fn a_lookup_in_spite_of_a_valid_entry_of_the_kernel_is_sent() {
        assert!(CreateHints { repeated: None, kernel_has_name: true }.must_send_lookup(at(0)));
        assert!(!CreateHints::default().must_send_lookup(at(5000)));
    }
}
