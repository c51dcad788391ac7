//! Cached attributes of one object, as far as caching depends on them: their lifetime, and the
//! effect of a reply on them.
//!
//! Owns the attribute timers (`acregmin` to `acdirmax`, `noac`), the ordering of replies that
//! arrive out of order, the epoch of the contents (pages of a file, names of a directory), and when
//! results of ACCESS become invalid.
//!
//! Invariants:
//! - Attributes are dated by when their request was **sent**: they do not show any change that the
//!   server makes later.
//! - An older reply never replaces a newer one. If two replies cannot be ordered, the next use
//!   revalidates.
//! - An epoch ends whenever another client may have changed the object. A change of this client
//!   ends no epoch if the reply proves that no other change came between: its pre-operation
//!   attributes are those that were known (RFC 1813 §2.6, wcc_data).
//! - The reply to a change of this client gives the state of the object before and after it: a
//!   step. If consecutive steps lead from the state of the known contents to the newest attributes,
//!   no other client changed the object in between. Replies may arrive in any order, so a step
//!   waits until the preceding one has arrived.
//!
//! Must not know what is cached under an epoch, nor which callers wait.

use core::time::Duration;

use curt_types::{Attributes, ChangeStamp, FileKind, PreOpState, Timestamp};

use crate::{
    options::{CacheOptions, RacyGuard, TimeoutRange},
    time::{MonotonicTime, left},
};

/// The attributes of one object that caching depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CachingAttributes {
    /// Its type.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// The owner's uid.
    pub uid: u32,
    /// The group's gid.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Its change stamp.
    pub stamp: ChangeStamp,
}

impl From<&Attributes> for CachingAttributes {
    fn from(attributes: &Attributes) -> Self {
        Self {
            kind: attributes.kind,
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            size: attributes.size,
            stamp: attributes.stamp(),
        }
    }
}

impl CachingAttributes {
    /// These attributes in the form of the pre-operation attributes of a following change.
    #[must_use]
    pub const fn as_before(&self) -> PreOpState {
        PreOpState::new(self.size, self.stamp)
    }
}

/// The state of a file that this client holds at the server, apart from opens (RFC 8881 §9 and
/// §10). Until it is returned, other clients cannot change the file, or the locked ranges of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockingState {
    /// When the newest of its byte-range locks was granted.
    pub locked_at: Option<MonotonicTime>,
    /// Its delegation.
    pub delegation: Option<Delegation>,
}

/// A promise of the server to recall it before another client opens the file in conflict with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Delegation {
    /// Other clients do not read either: this client may delay its writes (OPEN_DELEGATE_WRITE).
    pub write: bool,
    /// When the reply that brought it was processed. Attributes and data of requests sent since
    /// then are valid until it is returned.
    pub since: MonotonicTime,
}

/// Counts the states of an object's contents that this client could distinguish.
///
/// A cache entry with an epoch is valid while the object is still in it. The counter starts again
/// with each inode table and means nothing to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

impl Epoch {
    /// The epoch after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// The validity of attributes for the current operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Freshness {
    /// The request for the attributes was sent after the operation began: a further request is not
    /// needed.
    Confirmed,
    /// Within their lifetime.
    Fresh,
    /// Past their lifetime, distrusted, or never valid without a request (`noac`).
    Expired,
    /// There are none.
    Unknown,
}

/// The freshness of a directory after the server has restarted. Names stay cached, but each
/// directory is revalidated once before any of its names is served. `sent_at` is when the request
/// for its attributes was sent, `server_since` when the restart was noticed.
#[must_use]
pub fn across_restart(
    freshness: Freshness,
    sent_at: Option<MonotonicTime>,
    server_since: MonotonicTime,
) -> Freshness {
    match freshness {
        Freshness::Fresh if sent_at.is_none_or(|sent_at| sent_at < server_since) => Freshness::Expired,
        Freshness::Confirmed | Freshness::Fresh | Freshness::Expired | Freshness::Unknown => freshness,
    }
}

/// The attributes in a reply to a request that changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttributeReport {
    /// The attributes.
    pub attributes: CachingAttributes,
    /// When its request was first sent.
    pub sent_at: MonotonicTime,
    /// When it arrived.
    pub received_at: MonotonicTime,
}

/// The result of a request of this client that may have changed the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mutation {
    /// The object just before, if the reply contained it.
    pub before: Option<PreOpState>,
    /// The object just after, if the reply contained it. Both are `None` if there was no reply or
    /// it omitted them.
    pub after: Option<CachingAttributes>,
    /// When the request was first sent.
    pub sent_at: MonotonicTime,
    /// When its reply arrived or it was cancelled.
    pub received_at: MonotonicTime,
}

/// The effect of the attributes in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Absorbed {
    /// The attributes are the newest known ones and replace the earlier ones.
    pub adopted: bool,
    /// Another client may have changed the object since its contents were cached. Pages and names
    /// of the former epoch are invalid, and the kernel's caches must be invalidated.
    pub contents_changed: bool,
    /// Earlier ACCESS results are invalid.
    pub rights_changed: bool,
    /// For a change of this client: the known contents are those that it left, apart from later
    /// changes of this client. Its effect may then be cached under the current epoch. Always false
    /// for other replies.
    pub stands: bool,
}

/// Records which changes of this client had begun and ended when a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MutationTicket {
    own_changes: u64,
}

impl Absorbed {
    const NOTHING: Self =
        Self { adopted: false, contents_changed: false, rights_changed: false, stands: false };
}

/// The decision for stat(2) and related calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum GetattrDecision {
    /// Serve from the cache.
    Serve,
    /// Send GETATTR.
    Revalidate,
    /// Write back first: until then the server's times and size are not those of the file.
    FlushFirst,
}

/// Decides stat(2). `unsent_data`: this client has unsent writes of the file.
pub const fn decide_getattr(
    attributes: Freshness,
    unsent_data: bool,
    options: &CacheOptions,
) -> GetattrDecision {
    match (attributes, unsent_data) {
        (_, true) => GetattrDecision::FlushFirst,
        (Freshness::Confirmed, false) => GetattrDecision::Serve,
        (Freshness::Fresh, false) if options.attribute_cache => GetattrDecision::Serve,
        (Freshness::Fresh | Freshness::Expired | Freshness::Unknown, false) => GetattrDecision::Revalidate,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct KnownAttributes {
    attributes: CachingAttributes,
    sent_at: MonotonicTime,
    received_at: MonotonicTime,
    /// Nanoseconds.
    lifetime: u64,
    adjusted_at: MonotonicTime,
}

/// The order of a reply relative to the known state.
enum ReplyOrder {
    Newer,
    Same,
    Older,
    Unclear,
}

impl KnownAttributes {
    fn first(report: AttributeReport, options: &CacheOptions) -> Self {
        Self {
            attributes: report.attributes,
            sent_at: report.sent_at,
            received_at: report.received_at,
            lifetime: nanoseconds(options.interval(report.attributes.kind).min),
            adjusted_at: report.received_at,
        }
    }

    /// A request sent after the known state arrived was answered from a later state. Other replies
    /// can be ordered by their stamps only.
    fn order(&self, report: &AttributeReport) -> ReplyOrder {
        if report.attributes == self.attributes {
            return ReplyOrder::Same;
        }
        if report.sent_at >= self.received_at {
            return ReplyOrder::Newer;
        }
        match report.attributes.stamp.later_than(self.attributes.stamp) {
            Some(true) => ReplyOrder::Newer,
            Some(false) => ReplyOrder::Older,
            None => ReplyOrder::Unclear,
        }
    }

    /// Adopts the attributes of the report, dated `sent_at`. The lifetime doubles only if it has
    /// passed since it was last set, so that frequent stat calls do not increase it.
    fn confirm(self, report: AttributeReport, sent_at: MonotonicTime, options: &CacheOptions) -> Self {
        let lifetime = self.lifetime(options);
        let due = report.received_at.since(self.adjusted_at) >= lifetime;
        let doubled = lifetime.saturating_mul(2).min(bounds(&report.attributes, options).max);
        Self {
            attributes: report.attributes,
            sent_at,
            received_at: self.received_at.max(report.received_at),
            lifetime: nanoseconds(if due { doubled } else { lifetime }),
            adjusted_at: if due { report.received_at } else { self.adjusted_at },
        }
    }

    fn restart_timer(&mut self, now: MonotonicTime, options: &CacheOptions) {
        self.lifetime = nanoseconds(options.interval(self.attributes.kind).min);
        self.adjusted_at = now;
    }

    /// The remaining lifetime of these attributes at `now`.
    fn remaining_lifetime(&self, now: MonotonicTime, options: &CacheOptions) -> Duration {
        left(self.lifetime(options), now.since(self.sent_at))
    }

    /// The lifetime, clamped to the current bounds, which a remount may have changed.
    fn lifetime(&self, options: &CacheOptions) -> Duration {
        let TimeoutRange { min, max } = bounds(&self.attributes, options);
        Duration::from_nanos(self.lifetime).clamp(min, max)
    }
}

impl CacheOptions {
    /// The timeouts for objects of this kind; both zero under `noac`.
    #[must_use]
    pub const fn interval(&self, kind: FileKind) -> TimeoutRange {
        if !self.attribute_cache {
            return TimeoutRange { min: Duration::ZERO, max: Duration::ZERO };
        }
        match kind {
            FileKind::Directory => self.directories,
            _ => self.files,
        }
    }
}

/// The bounds for this object, with `min` at most `max`.
fn bounds(attributes: &CachingAttributes, options: &CacheOptions) -> TimeoutRange {
    let TimeoutRange { min, max } = options.interval(attributes.kind);
    TimeoutRange { min, max: max.max(min) }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The known state of one object and its dates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AttributeState {
    known: Option<KnownAttributes>,
    contents: Epoch,
    own: Option<Box<OwnMutations>>,
}

/// Record of an object that this client has changed, or that is distrusted. Most objects have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct OwnMutations {
    /// Count of the begins and ends of changes of this client.
    count: u64,
    in_epoch: Option<OwnMutationInEpoch>,
    unsettled: Option<Box<UnsettledMutations>>,
}

/// Changes of this client were found to continue the contents of the current epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct OwnMutationInEpoch {
    /// When the last of them was.
    last_at: MonotonicTime,
    /// The server's time of the last change before the first of them. `None` if the stamp differs
    /// after each change.
    changed_before: Option<Timestamp>,
}

impl AttributeState {
    /// Nothing is known.
    #[must_use]
    pub fn unknown() -> Self {
        Self::default()
    }

    /// The newest known attributes, however old.
    #[must_use]
    pub fn newest(&self) -> Option<CachingAttributes> {
        self.known.map(|known| known.attributes)
    }

    /// When the request for the newest attributes was sent.
    #[must_use]
    pub fn sent_at(&self) -> Option<MonotonicTime> {
        self.known.map(|known| known.sent_at)
    }

    /// The epoch of pages or names. `None` while changes of this client are in flight and the
    /// replies so far do not fit together; then nothing is served from the cache and nothing is
    /// cached.
    #[must_use]
    pub fn contents(&self) -> Option<Epoch> {
        let known = self.known?;
        (self.contents_at(&known) == known.attributes.as_before()).then_some(self.contents)
    }

    /// The server's time of the change that a request sent at `sent_at` may have missed because the
    /// clock is too coarse: the last change or, for entries cached before a change of this client,
    /// the last change by another client ([`RacyGuard::Auto`]). `None` if the stamp differs after
    /// each change.
    #[must_use]
    pub fn changed_at(&self, sent_at: MonotonicTime, options: &CacheOptions) -> Option<Timestamp> {
        let known = self.known?;
        let own = self.own.as_ref().and_then(|own| own.in_epoch).filter(|own| sent_at < own.last_at);
        match (options.racy_guard, own) {
            (RacyGuard::Off, _) => None,
            (RacyGuard::Auto, Some(own)) => own.changed_before,
            (RacyGuard::Auto, None) | (RacyGuard::On, _) => known.attributes.stamp.changed_at(),
        }
    }

    /// The freshness of the attributes at `now` for an operation that began at `began`.
    #[must_use]
    pub fn freshness(&self, began: MonotonicTime, now: MonotonicTime, options: &CacheOptions) -> Freshness {
        let Some(known) = self.known else {
            return Freshness::Unknown;
        };
        if self.is_distrusted() {
            return Freshness::Expired;
        }
        if known.sent_at >= began {
            return Freshness::Confirmed;
        }
        if known.remaining_lifetime(now, options).is_zero() { Freshness::Expired } else { Freshness::Fresh }
    }

    /// The freshness while this client holds `delegation`: no other client changes attributes that
    /// came with it or later (RFC 8881 §10.4).
    #[must_use]
    pub fn freshness_under(
        &self,
        delegation: Option<Delegation>,
        began: MonotonicTime,
        now: MonotonicTime,
        options: &CacheOptions,
    ) -> Freshness {
        let covers = |delegation: Delegation| self.sent_at().is_some_and(|at| at >= delegation.since);
        if delegation.is_some_and(covers) && !self.is_distrusted() {
            return Freshness::Confirmed;
        }
        self.freshness(began, now, options)
    }

    /// The remaining time from `now` during which the attributes are valid: the maximum attribute
    /// timeout for the kernel, before other limits.
    #[must_use]
    pub fn remaining(&self, now: MonotonicTime, options: &CacheOptions) -> Duration {
        match self.known {
            Some(known) if !self.is_distrusted() => known.remaining_lifetime(now, options),
            Some(_) | None => Duration::ZERO,
        }
    }

    /// Makes everything invalid until a request sent at or after `now` is answered: after ESTALE, a
    /// lost reply, a lock or a reconnection.
    pub fn distrust(&mut self, now: MonotonicTime) {
        let doubted_at = &mut self.unsettled_mut().distrusted_at;
        *doubted_at = Some(doubted_at.map_or(now, |before| before.max(now)));
    }

    /// Another client may have changed the contents, whatever the attributes show.
    pub fn dispute_contents(&mut self) {
        self.contents = self.contents.next();
        if let Some(own) = &mut self.own {
            own.in_epoch = None;
            if let Some(unsettled) = &mut own.unsettled {
                unsettled.forget_steps();
            }
        }
        self.tidy();
    }

    /// To be called before a request is sent whose reply shows contents (LOOKUP and listings of a
    /// directory, READ).
    #[must_use]
    pub fn ticket(&self) -> MutationTicket {
        MutationTicket { own_changes: self.own.as_ref().map_or(0, |own| own.count) }
    }

    /// Whether no change of this client was in flight at any time since the ticket was taken. Then
    /// a reply cannot show a state before a known change, whatever the stamps are.
    #[must_use]
    pub fn is_undisturbed(&self, ticket: MutationTicket) -> bool {
        self.ticket() == ticket && !self.is_changing()
    }

    /// A request of this client that may change the object is about to be sent. Each call is paired
    /// with one of [`Self::absorb_mutation`]. For a directory, the caller drops the affected names
    /// now and again at the end.
    pub fn begin_mutation(&mut self) {
        self.count_own();
        let in_flight = &mut self.unsettled_mut().in_flight;
        *in_flight = in_flight.saturating_add(1);
    }

    /// Whether a change of this client is in flight.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        self.unsettled().is_some_and(|unsettled| unsettled.in_flight > 0)
    }

    /// Absorbs the attributes of a reply to a request that changed nothing.
    pub fn absorb(&mut self, report: AttributeReport, options: &CacheOptions) -> Absorbed {
        let absorbed = self.take(report, options);
        self.explain_by_own_changes(absorbed)
    }

    /// Absorbs the end of a change of this client, whether or not it succeeded.
    pub fn absorb_mutation(&mut self, mutation: Mutation, options: &CacheOptions) -> Absorbed {
        self.count_own();
        let unsettled = self.unsettled_mut();
        unsettled.in_flight = unsettled.in_flight.saturating_sub(1);
        let Some(after) = mutation.after else {
            self.distrust(mutation.received_at);
            // The state of the object is unknown.
            self.dispute_contents();
            return Absorbed { contents_changed: true, ..Absorbed::NOTHING };
        };
        let step = mutation.before.map(|before| WccStep { before, after: after.as_before() });
        if let Some(step) = step {
            self.unsettled_mut().remember(step);
        }
        let Mutation { sent_at, received_at, .. } = mutation;
        let absorbed = self.take(AttributeReport { attributes: after, sent_at, received_at }, options);
        if let Some(known) = self.known.as_mut().filter(|_| absorbed.adopted) {
            known.restart_timer(received_at, options);
        }
        let joins = step.is_some_and(|step| self.follows_known_state(step));
        let absorbed = self.explain_by_own_changes(absorbed);
        let stands = joins || (absorbed.adopted && self.contents().is_some());
        Absorbed { stands, ..absorbed }
    }

    fn take(&mut self, report: AttributeReport, options: &CacheOptions) -> Absorbed {
        let Some(known) = self.known else {
            self.known = Some(KnownAttributes::first(report, options));
            self.clear_distrust(report.sent_at);
            self.contents = self.contents.next();
            return Absorbed { adopted: true, contents_changed: true, rights_changed: true, stands: false };
        };
        match known.order(&report) {
            ReplyOrder::Older => Absorbed::NOTHING,
            ReplyOrder::Same => {
                let sent_at = known.sent_at.max(report.sent_at);
                self.known = Some(known.confirm(report, sent_at, options));
                self.clear_distrust(report.sent_at);
                Absorbed { adopted: true, ..Absorbed::NOTHING }
            }
            ReplyOrder::Newer => {
                let absorbed = self.replace(known, report, options);
                self.clear_distrust(report.sent_at);
                absorbed
            }
            ReplyOrder::Unclear => {
                let absorbed = self.replace(known, report, options);
                self.distrust(report.received_at);
                absorbed
            }
        }
    }

    fn replace(
        &mut self,
        known: KnownAttributes,
        report: AttributeReport,
        options: &CacheOptions,
    ) -> Absorbed {
        let contents_at = self.contents_at(&known);
        let rights_changed = known.attributes.rights_differ(&report.attributes);
        let mut replaced = known.confirm(report, report.sent_at, options);
        if known.attributes.as_before() != report.attributes.as_before() {
            replaced.restart_timer(report.received_at, options);
            self.unsettled_mut().contents_at = Some(contents_at);
        }
        self.known = Some(replaced);
        Absorbed { adopted: true, rights_changed, ..Absorbed::NOTHING }
    }

    fn is_distrusted(&self) -> bool {
        self.unsettled().is_some_and(|unsettled| unsettled.distrusted_at.is_some())
    }

    /// Clears the distrust if the answered request was sent after it began.
    fn clear_distrust(&mut self, sent_at: MonotonicTime) {
        if let Some(unsettled) = self.own.as_mut().and_then(|own| own.unsettled.as_mut())
            && unsettled.distrusted_at.is_some_and(|doubted| sent_at >= doubted)
        {
            unsettled.distrusted_at = None;
        }
    }

    /// Whether the known contents lead, by changes of this client, to the beginning of `step`.
    fn follows_known_state(&self, step: WccStep) -> bool {
        let (Some(known), Some(unsettled)) = (self.known, self.unsettled()) else {
            return false;
        };
        unsettled.leads_to(self.contents_at(&known), step)
    }

    /// Explains the newest attributes by changes of this client. If none is in flight, an
    /// unexplained rest was changed by another client.
    fn explain_by_own_changes(&mut self, absorbed: Absorbed) -> Absorbed {
        let Some(known) = self.known else { return absorbed };
        let changed_before = self.contents_at(&known).stamp().changed_at();
        let Some(own) = &mut self.own else { return absorbed };
        let Some(unsettled) = &mut own.unsettled else { return absorbed };
        if unsettled.advance(known.attributes.as_before()) {
            let changed_before = own.in_epoch.map_or(changed_before, |earlier| earlier.changed_before);
            own.in_epoch = Some(OwnMutationInEpoch { last_at: known.received_at, changed_before });
        }
        if unsettled.in_flight > 0 {
            return absorbed;
        }
        let explained = unsettled.contents_at.is_none();
        unsettled.steps.clear();
        if explained {
            self.tidy();
            return absorbed;
        }
        self.dispute_contents();
        Absorbed { contents_changed: true, ..absorbed }
    }

    fn contents_at(&self, known: &KnownAttributes) -> PreOpState {
        let unsettled = self.unsettled().and_then(|unsettled| unsettled.contents_at);
        unsettled.unwrap_or(known.attributes.as_before())
    }

    fn count_own(&mut self) {
        let own = self.own.get_or_insert_default();
        own.count = own.count.wrapping_add(1);
    }

    fn unsettled(&self) -> Option<&UnsettledMutations> {
        self.own.as_ref()?.unsettled.as_deref()
    }

    fn unsettled_mut(&mut self) -> &mut UnsettledMutations {
        self.own.get_or_insert_default().unsettled.get_or_insert_default()
    }

    /// Frees what says nothing any more.
    fn tidy(&mut self) {
        if let Some(own) = &mut self.own {
            own.unsettled.take_if(|unsettled| **unsettled == UnsettledMutations::default());
            self.own.take_if(|own| **own == OwnMutations::default());
        }
    }
}

impl CachingAttributes {
    /// Whether ACCESS results for the one state may be wrong for the other: owner, group or mode
    /// differ, or only the attributes changed, which may be a change of an ACL that NFSv3 does not
    /// show.
    #[must_use]
    pub fn rights_differ(&self, other: &Self) -> bool {
        (self.mode, self.uid, self.gid) != (other.mode, other.uid, other.gid)
            || (self.size == other.size && self.stamp.differs_in_attributes_only(other.stamp))
    }
}

/// The maximum number of steps that wait. One more makes the contents count as changed by another
/// client.
pub const STEPS_MAX: usize = 64;

/// State that is needed only while a change is in flight or unexplained; most objects have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct UnsettledMutations {
    /// Number of changes in flight.
    in_flight: u32,
    /// Completed steps that do not yet continue from `contents_at`.
    steps: Vec<WccStep>,
    /// The state that the current epoch of contents describes, if it is not the newest known.
    contents_at: Option<PreOpState>,
    /// Nothing is valid until a request sent at or after this moment is answered.
    distrusted_at: Option<MonotonicTime>,
}

/// One change of this client: the states before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct WccStep {
    before: PreOpState,
    after: PreOpState,
}

impl UnsettledMutations {
    /// Records a step until it is explained. Drops all steps if there are too many.
    fn remember(&mut self, step: WccStep) {
        if self.steps.len() == STEPS_MAX {
            self.steps.clear();
        } else {
            self.steps.push(step);
        }
    }

    /// Drops the steps: the contents count as changed by another client.
    fn forget_steps(&mut self) {
        self.steps.clear();
        self.contents_at = None;
    }

    /// Whether waiting steps lead from `reached` to the beginning of `step`.
    fn leads_to(&self, mut reached: PreOpState, step: WccStep) -> bool {
        for _ in 0..=self.steps.len() {
            if reached == step.before {
                return true;
            }
            match self.steps.iter().find(|waiting| waiting.before == reached) {
                Some(waiting) => reached = waiting.after,
                None => return false,
            }
        }
        false
    }

    /// Moves `contents_at` along the steps that continue from it, as far as they lead. `newest` is
    /// the state of the newest attributes. Returns whether it moved.
    fn advance(&mut self, newest: PreOpState) -> bool {
        let mut reached = self.contents_at.unwrap_or(newest);
        let mut moved = false;
        while let Some(index) = self.steps.iter().position(|step| step.before == reached) {
            reached = self.steps.swap_remove(index).after;
            moved = true;
        }
        self.contents_at = (reached != newest).then_some(reached);
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_attribute_states_take_88_megabytes() {
        assert_eq!(size_of::<AttributeState>(), 88);
    }
}
