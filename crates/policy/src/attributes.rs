//! What is known of one object, for how long it is believed, and what a reply does to it.
//!
//! Owns the attribute timers (`acregmin` to `acdirmax`, `noac`), the order of replies that overtook each other, and the two
//! epochs: `contents` (pages of a file, names of a directory) and `rights` (answers to ACCESS).
//!
//! Invariants:
//! - Attributes are dated by when their request was **sent**: whatever the server did later they do not show.
//! - An older reply never replaces a newer one; where two replies cannot be ordered the next use asks.
//! - An epoch ends whenever the object may have been changed by somebody else. A change of our own ends none if the server
//!   proves that nobody came between (its before-attributes are what we knew; RFC 1813 §2.6, wcc_data).
//!
//! Must not know what is kept under an epoch, nor who waits.

use core::time::Duration;

use crate::{
    facts::{Before, Epoch, Facts, ServerTime},
    options::CacheOptions,
    time::{Moment, left},
};

/// How many unexplained steps of our own changes are kept; one more makes the contents count as changed by others.
pub const STEPS_MAX: usize = 64;

/// How good attributes are for the operation at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Freshness {
    /// Their request was sent after the operation began: asking again could tell nothing that the operation must know.
    Confirmed,
    /// Within their lifetime.
    Fresh,
    /// Past their lifetime, doubted, or never good without asking (`noac`).
    Expired,
    /// There are none.
    Unknown,
}

/// Attributes in a reply to a request that changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Report {
    /// What it says.
    pub facts: Facts,
    /// When its request was first sent.
    pub sent_at: Moment,
    /// When it arrived.
    pub received_at: Moment,
}

/// The end of a request of ours that may have changed the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mutation {
    /// The object just before, if the server said so.
    pub before: Option<Before>,
    /// The object just after, if the server said so. Both are `None` when no reply came or it left them out.
    pub after: Option<Facts>,
    /// When the request was first sent.
    pub sent_at: Moment,
    /// When its reply arrived, or it was given up.
    pub received_at: Moment,
}

/// What became of attributes in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Absorbed {
    /// They are the newest that are known: keep them whole.
    pub adopted: bool,
    /// The object may have been changed by somebody else since its contents were learned: pages and names of the former
    /// epoch are void, and the kernel has to be told.
    pub contents_changed: bool,
    /// Answers about access of the former epoch are void.
    pub rights_changed: bool,
    /// Of a change of ours: the contents as they are known are those that it left, but for changes of ours that came
    /// later. Then what it did may be remembered under the present epoch. Always false for other replies.
    pub stands: bool,
}

/// Notes which changes of ours had begun and ended when a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    own_changes: u64,
}

impl Absorbed {
    const NOTHING: Self = Self {
        adopted: false,
        contents_changed: false,
        rights_changed: false,
        stands: false,
    };
}

/// One change of ours that the server described: from what to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Step {
    before: Before,
    after: Before,
}

/// What is known of one object, and since when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AttributeState {
    known: Option<Known>,
    contents: Epoch,
    rights: Epoch,
    /// Changes of ours that are on their way.
    in_flight: u32,
    /// Counts their beginnings and ends.
    own_changes: u64,
    /// Those that arrived and do not yet join on to `contents_at`.
    steps: Vec<Step>,
    /// A reply to a request sent before this may lack a change of ours.
    barrier: Moment,
    /// Believe nothing until a request sent after this moment is answered.
    doubted_at: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Known {
    facts: Facts,
    sent_at: Moment,
    received_at: Moment,
    lifetime: Duration,
    adjusted_at: Moment,
    /// The state whose contents the present epoch describes.
    contents_at: Before,
    /// The server's time of the last change before the epoch began.
    epoch_since: Option<ServerTime>,
    /// When a change of ours was last found to join on.
    own_change_at: Option<Moment>,
}

/// How a reply stands to what is known.
enum Order {
    Newer,
    Same,
    Older,
    Unclear,
}

impl AttributeState {
    /// Nothing is known.
    #[must_use]
    pub fn unknown() -> Self {
        Self::default()
    }

    /// The newest that is known, however old.
    #[must_use]
    pub fn facts(&self) -> Option<Facts> {
        self.known.map(|known| known.facts)
    }

    /// When the request was sent that the newest attributes answered.
    #[must_use]
    pub fn sent_at(&self) -> Option<Moment> {
        self.known.map(|known| known.sent_at)
    }

    /// The epoch of pages or names; `None` while changes of ours are on their way and what arrived does not fit together,
    /// when nothing cached is to be served and nothing to be kept.
    #[must_use]
    pub fn contents(&self) -> Option<Epoch> {
        let known = self.known?;
        (known.contents_at == known.facts.as_before()).then_some(self.contents)
    }

    /// The epoch of answers about access.
    #[must_use]
    pub const fn rights(&self) -> Epoch {
        self.rights
    }

    /// The server's time of the change that something learned by a request sent at `sent_at` could have missed for want of
    /// a finer clock: the last one, or for what was known before a change of ours the last that was not ours
    /// ([`crate::RacyGuard::Auto`]). `None` if stamps differ after each change.
    #[must_use]
    pub fn changed_at(&self, sent_at: Moment, options: &CacheOptions) -> Option<ServerTime> {
        let known = self.known?;
        let ours_since = known.own_change_at.is_some_and(|own| sent_at < own);
        match options.racy_guard {
            crate::RacyGuard::Off => None,
            crate::RacyGuard::Auto if ours_since => known.epoch_since,
            crate::RacyGuard::Auto | crate::RacyGuard::On => known.facts.stamp.changed_at(),
        }
    }

    /// How good the attributes are at `now` for an operation that began at `began`.
    #[must_use]
    pub fn freshness(&self, began: Moment, now: Moment, options: &CacheOptions) -> Freshness {
        let Some(known) = self.known else {
            return Freshness::Unknown;
        };
        if self.doubted_at.is_some() {
            return Freshness::Expired;
        }
        if known.sent_at >= began {
            return Freshness::Confirmed;
        }
        if known.believed(now, options).is_zero() {
            Freshness::Expired
        } else {
            Freshness::Fresh
        }
    }

    /// For how long from `now` the attributes will be believed: what may be promised to the kernel, before other limits.
    #[must_use]
    pub fn remaining(&self, now: Moment, options: &CacheOptions) -> Duration {
        match self.known {
            Some(known) if self.doubted_at.is_none() => known.believed(now, options),
            Some(_) | None => Duration::ZERO,
        }
    }

    /// Believe nothing until a request sent from `now` on is answered: after ESTALE, a lost reply, a lock, a reconnection.
    pub fn doubt(&mut self, now: Moment) {
        self.doubted_at = Some(now);
    }

    /// The server refused what mode bits or a former answer allowed: answers about access are void.
    pub fn dispute_rights(&mut self) {
        self.rights = self.rights.next();
    }

    /// The contents may have been changed by others, whatever the attributes say.
    pub fn dispute_contents(&mut self) {
        self.contents = self.contents.next();
        self.steps.clear();
        if let Some(known) = &mut self.known {
            known.contents_at = known.facts.as_before();
            known.epoch_since = known.facts.stamp.changed_at();
            known.own_change_at = None;
        }
    }

    /// To be taken before a request is sent whose reply tells of contents (LOOKUP and listings of a directory, READ).
    #[must_use]
    pub const fn ticket(&self) -> Ticket {
        Ticket {
            own_changes: self.own_changes,
        }
    }

    /// Whether no change of ours was on its way at any time since the ticket was taken: then a reply cannot tell of a
    /// state before one that we know of, whatever the stamps say.
    #[must_use]
    pub const fn is_undisturbed(&self, ticket: Ticket) -> bool {
        self.own_changes == ticket.own_changes && self.in_flight == 0
    }

    /// A request of ours that may change the object is about to be sent. Each call is answered by one of
    /// [`Self::absorb_mutation`]. For a directory, the caller drops the names concerned now and again at the end.
    pub fn begin_mutation(&mut self) {
        self.own_changes = self.own_changes.wrapping_add(1);
        self.in_flight = self.in_flight.saturating_add(1);
    }

    /// Whether a change of ours is on its way.
    #[must_use]
    pub const fn is_changing(&self) -> bool {
        self.in_flight > 0
    }

    /// Takes in attributes from a reply to a request that changed nothing.
    pub fn absorb(&mut self, report: Report, options: &CacheOptions) -> Absorbed {
        let absorbed = self.take(report, options);
        self.settle(absorbed)
    }

    /// Takes in the end of a change of ours, whether or not it succeeded.
    pub fn absorb_mutation(&mut self, mutation: Mutation, options: &CacheOptions) -> Absorbed {
        self.own_changes = self.own_changes.wrapping_add(1);
        self.in_flight = self.in_flight.saturating_sub(1);
        let Some(after) = mutation.after else {
            self.barrier = self.barrier.max(mutation.received_at);
            self.doubt(mutation.received_at);
            // What was changed, and by whom, nobody can say.
            self.dispute_contents();
            return Absorbed {
                contents_changed: true,
                ..Absorbed::NOTHING
            };
        };
        let step = mutation.before.map(|before| Step {
            before,
            after: after.as_before(),
        });
        if let Some(step) = step {
            self.remember(step);
        }
        let Mutation {
            sent_at, received_at, ..
        } = mutation;
        let absorbed = self.take(
            Report {
                facts: after,
                sent_at,
                received_at,
            },
            options,
        );
        if absorbed.adopted {
            self.restart_timer(received_at, options);
        }
        let joins = step.is_some_and(|step| self.joins(step));
        let absorbed = self.settle(absorbed);
        let stands = joins || (absorbed.adopted && self.contents().is_some());
        Absorbed { stands, ..absorbed }
    }

    /// Takes in the attributes of an object that this client has just made and that did not exist before (a guarded or
    /// exclusive CREATE, MKDIR, SYMLINK, MKNOD): nobody else's change can hide in its first stamp.
    pub fn absorb_created(&mut self, report: Report, options: &CacheOptions) -> Absorbed {
        let first = self.known.is_none();
        let absorbed = self.absorb(report, options);
        if let Some(known) = self.known.as_mut().filter(|_| first) {
            known.epoch_since = None;
            known.own_change_at = Some(report.received_at);
        }
        absorbed
    }

    fn take(&mut self, report: Report, options: &CacheOptions) -> Absorbed {
        let Some(known) = self.known else {
            self.known = Some(Known::first(report, options));
            self.believe_again(report.sent_at);
            self.contents = self.contents.next();
            self.rights = self.rights.next();
            return Absorbed {
                adopted: true,
                contents_changed: true,
                rights_changed: true,
                stands: false,
            };
        };
        match known.order(&report) {
            Order::Older => Absorbed::NOTHING,
            Order::Same => {
                let sent_at = known.sent_at.max(report.sent_at);
                self.known = Some(Known {
                    sent_at,
                    ..known.confirm(report, options)
                });
                self.believe_again(report.sent_at);
                Absorbed {
                    adopted: true,
                    ..Absorbed::NOTHING
                }
            }
            Order::Newer => {
                let absorbed = self.replace(known, report, options);
                self.believe_again(report.sent_at);
                absorbed
            }
            Order::Unclear => {
                let absorbed = self.replace(known, report, options);
                self.doubt(report.received_at);
                absorbed
            }
        }
    }

    fn replace(&mut self, known: Known, report: Report, options: &CacheOptions) -> Absorbed {
        let changed = known.facts.as_before() != report.facts.as_before();
        let rights_changed = known.facts.rights_differ(&report.facts);
        if rights_changed {
            self.rights = self.rights.next();
        }
        let confirmed = known.confirm(report, options);
        self.known = Some(Known {
            sent_at: report.sent_at,
            ..confirmed
        });
        if changed {
            self.restart_timer(report.received_at, options);
        }
        Absorbed {
            adopted: true,
            rights_changed,
            ..Absorbed::NOTHING
        }
    }

    /// Lifts the doubt if the answered request was sent after it arose and after each change of ours that left no trace.
    fn believe_again(&mut self, sent_at: Moment) {
        if sent_at >= self.barrier && self.doubted_at.is_some_and(|doubted| sent_at >= doubted) {
            self.doubted_at = None;
        }
    }

    fn restart_timer(&mut self, now: Moment, options: &CacheOptions) {
        if let Some(known) = &mut self.known {
            known.lifetime = options.interval(known.facts.kind).min;
            known.adjusted_at = now;
        }
    }

    fn remember(&mut self, step: Step) {
        if self.steps.len() == STEPS_MAX {
            self.steps.clear();
        } else {
            self.steps.push(step);
        }
    }

    /// Whether the step, through others that wait, begins where the known contents end.
    fn joins(&self, step: Step) -> bool {
        let Some(known) = self.known else { return false };
        let mut reached = known.contents_at;
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

    /// Joins our own changes on to the state whose contents are known; what is left unexplained when none is on its way
    /// was done by others.
    fn settle(&mut self, absorbed: Absorbed) -> Absorbed {
        let Some(known) = &mut self.known else {
            return absorbed;
        };
        while let Some(index) = self
            .steps
            .iter()
            .position(|step| step.before == known.contents_at)
        {
            let step = self.steps.swap_remove(index);
            known.contents_at = step.after;
            known.own_change_at = Some(known.received_at);
        }
        if self.in_flight > 0 {
            return absorbed;
        }
        let explained = known.contents_at == known.facts.as_before();
        self.steps.clear();
        if explained {
            return absorbed;
        }
        self.dispute_contents();
        Absorbed {
            contents_changed: true,
            ..absorbed
        }
    }
}

impl Known {
    fn first(report: Report, options: &CacheOptions) -> Self {
        Self {
            facts: report.facts,
            sent_at: report.sent_at,
            received_at: report.received_at,
            lifetime: options.interval(report.facts.kind).min,
            adjusted_at: report.received_at,
            contents_at: report.facts.as_before(),
            epoch_since: report.facts.stamp.changed_at(),
            own_change_at: None,
        }
    }

    /// A request sent after our knowledge arrived was answered from a later state; of others only the stamps can tell.
    fn order(&self, report: &Report) -> Order {
        if report.facts == self.facts {
            return Order::Same;
        }
        if report.sent_at >= self.received_at {
            return Order::Newer;
        }
        match report.facts.stamp.later_than(self.facts.stamp) {
            Some(true) => Order::Newer,
            Some(false) => Order::Older,
            None => Order::Unclear,
        }
    }

    /// With the facts of the report, and the lifetime doubled if it has passed since it was last set: a storm of stats
    /// does not drive it up.
    fn confirm(self, report: Report, options: &CacheOptions) -> Self {
        let interval = options.interval(report.facts.kind);
        let lifetime = self.lifetime.clamp(interval.min, interval.max.max(interval.min));
        let due = report.received_at.since(self.adjusted_at) >= lifetime;
        Self {
            facts: report.facts,
            received_at: self.received_at.max(report.received_at),
            lifetime: if due {
                lifetime.saturating_mul(2).min(interval.max.max(interval.min))
            } else {
                lifetime
            },
            adjusted_at: if due { report.received_at } else { self.adjusted_at },
            ..self
        }
    }

    fn believed(&self, now: Moment, options: &CacheOptions) -> Duration {
        let interval = options.interval(self.facts.kind);
        let lifetime = self.lifetime.clamp(interval.min, interval.max.max(interval.min));
        left(lifetime, now.since(self.sent_at))
    }
}

impl Facts {
    /// Whether answers about access to the one may be wrong for the other: an owner, group or mode that differs, or a
    /// change of attributes alone, which may be one of an access control list that NFSv3 does not show.
    fn rights_differ(&self, other: &Self) -> bool {
        (self.mode, self.uid, self.gid) != (other.mode, other.uid, other.gid)
            || (self.size == other.size && self.stamp.differs_in_attributes_only(other.stamp))
    }
}

/// What stat(2) and its kin must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum GetattrDecision {
    /// Answer from memory.
    Serve,
    /// Send GETATTR.
    Revalidate,
    /// Send what was written first: until then the server's times and size are not those of the file.
    FlushFirst,
}

/// Decides stat(2): `unsent_data` tells whether writes of ours to this file have not been sent.
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
