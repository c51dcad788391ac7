//! A user without search permission gets no name of a directory after the kernel's lifetime of that
//! name has ended. The lifetime counts from the moment at which the client could know. After this
//! client's own chmod or rename has returned, such a user gets no name at all.
//!
//! The model has a directory that its owner and other clients change. The owner looks up a name of
//! it. Another user does so too, and the kernel answers this user without a request where it can.
//! A look-up is decided, then answered, and then received by the kernel. Other requests are
//! answered at once.

use core::time::Duration;
use std::fmt;

use curt_policy::{
    AttributeState, CacheOptions, CachingAttributes, Freshness, MonotonicTime, MountUsers, NameLabel,
    ServerClock,
    kernel_cache::{
        DirectoryView, EXPIRY_DELAY, NameLifetimes, everybody_may_search, name_lifetime, with_expiry_delay,
    },
    names::DentryState,
};
use curt_types::FileKind;

use crate::{
    explore::{World, find_planted, hold},
    server::History,
    setting::{Setting, learn_time, report},
    time::{Changed, Grain, TICK, Time},
};

/// A mistake put into the client on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// Names are kept in a directory that is not everybody's.
    KeptWhereSomeMayNotSearch,
    /// chmod(2) returns while the kernel keeps names.
    ChmodReturnsAtOnce,
    /// The kernel may keep a name for longer than the client believes it.
    KeptBeyondBelief,
    /// A lifetime is computed and recorded when the look-up is decided, and begins with the reply.
    RecordedBeforeTheReply,
    /// A rename waits for what was recorded of the object, and later replies grant lifetimes.
    GrantedAfterARename,
}

#[derive(Debug)]
struct Search {
    planted: Planted,
    /// Whether everybody may search the directory at first.
    is_open: bool,
    ticks: u8,
    changes: u8,
    look_ups: u8,
    /// Whether the name is renamed.
    renames: bool,
}

#[derive(Clone, Debug, Hash)]
struct State {
    time: Time,
    /// Whether everybody may search it.
    is_open: History<bool>,
    changed: Changed,
    directory: AttributeState,
    clock: ServerClock,
    lifetimes: NameLifetimes,
    /// The owner's look-up, if one is under way.
    look_up: Option<LookUp>,
    /// When the lifetime of the name ends that the kernel keeps.
    kernel: Option<MonotonicTime>,
    /// When the lifetime ends that was recorded of the object.
    object: Option<MonotonicTime>,
    /// The name was renamed here into a directory that is not everybody's; the rename waits for
    /// this.
    is_moved: bool,
    renaming: Option<MonotonicTime>,
    /// A chmod of ours waits for this.
    closing: Option<MonotonicTime>,
    /// A chmod of ours has closed it, and nobody has opened it since.
    is_closed_here: bool,
    ticks: u8,
    changes: u8,
    look_ups: u8,
}

/// A look-up by the directory's owner.
#[derive(Clone, Copy, Debug, Hash)]
enum LookUp {
    /// The look-up is answered from memory; the lifetime that the name had then.
    Decided(NameLabel, Duration),
    /// The reply was made then, with this lifetime.
    Answered(MonotonicTime, Duration),
}

/// The longest time from the reply until the kernel has received it, and by how much the kernel
/// rounds a lifetime up. Together they are less than [`EXPIRY_DELAY`].
const RECEIVED_AFTER: Duration = Duration::from_millis(20);
const ROUNDED_BY: Duration = Duration::from_millis(20);

#[derive(Clone, Copy)]
enum Step {
    Tick,
    ChmodElsewhere(bool),
    ChmodHere(bool),
    ChmodReturns,
    RenameHere,
    RenameReturns,
    OwnerLooksUp,
    LookUpIsAnswered,
    KernelReceivesReply,
    OtherIsToldByTheKernel,
}

impl fmt::Debug for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Tick => "10 ms pass",
            Self::ChmodElsewhere(true) => "another client lets everybody search the directory",
            Self::ChmodElsewhere(false) => "another client closes the directory",
            Self::ChmodHere(true) => "its owner lets everybody search it here",
            Self::ChmodHere(false) => "its owner closes it here",
            Self::ChmodReturns => "his chmod returns",
            Self::RenameHere => "its owner renames the name into a closed directory here",
            Self::RenameReturns => "his rename returns",
            Self::OwnerLooksUp => "its owner looks the name up",
            Self::LookUpIsAnswered => "he is answered",
            Self::KernelReceivesReply => "the kernel receives the answer",
            Self::OtherIsToldByTheKernel => "the kernel tells somebody else of the name",
        })
    }
}

const SETTING: Setting = Setting {
    grain: Grain::Fine,
    guard: curt_policy::RacyGuard::Off,
    lifetime: Some(Duration::from_millis(10)),
};

fn options() -> CacheOptions {
    CacheOptions { kernel_names: TICK * 3, users: MountUsers::Many, ..SETTING.options() }
}

impl State {
    fn attributes(&self) -> CachingAttributes {
        let mode = if self.is_open.is() { 0o755 } else { 0o700 };
        CachingAttributes { mode, ..SETTING.attributes(FileKind::Directory, self.changed) }
    }

    fn moved(&self) -> Self {
        Self { time: self.time.after_event(), ..self.clone() }
    }

    /// GETATTR or SETATTR: the client learns what the directory is like.
    fn ask(&mut self) {
        let (attributes, now) = (self.attributes(), self.time.moment());
        learn_time(&mut self.clock, &attributes, now);
        let _ = self.directory.absorb(report(attributes, now, now), &options());
    }

    fn chmod(&mut self, is_open: bool) {
        self.changes += 1;
        self.changed = self.changed.next(self.time);
        self.is_open.push(is_open, self.time.moment());
        self.is_closed_here &= !is_open;
    }
}

impl Search {
    /// The owner's look-up: the server lets him.
    fn decide(&self, state: &mut State) {
        let options = options();
        let now = state.time.moment();
        state.look_ups += 1;
        if state.directory.freshness(now, now, &options) != Freshness::Fresh {
            state.ask();
        }
        let Some(epoch) = state.directory.contents() else { return };
        let label = NameLabel { epoch, sent_at: now };
        let lifetime = self.lifetime(state, label);
        state.look_up = Some(LookUp::Decided(label, lifetime));
        if self.planted == Planted::RecordedBeforeTheReply {
            record(state, label, lifetime);
        }
    }

    fn lifetime(&self, state: &State, label: NameLabel) -> Duration {
        let (options, now) = (options(), state.time.moment());
        let view = DirectoryView { attributes: &state.directory, is_disputed: false, clock: &state.clock };
        match self.planted {
            Planted::KeptWhereSomeMayNotSearch => options.kernel_names,
            Planted::KeptBeyondBelief
                if everybody_may_search(state.directory.newest(), false, options.users) =>
            {
                options.kernel_names
            }
            _ if state.is_moved && self.planted != Planted::GrantedAfterARename => Duration::ZERO,
            _ => name_lifetime(DentryState::Positive, label, &view, now, &options),
        }
    }

    /// The reply: the lifetime begins.
    fn answer(&self, state: &mut State, label: NameLabel, decided: Duration) {
        let lifetime = if self.planted == Planted::RecordedBeforeTheReply {
            decided
        } else {
            let lifetime = self.lifetime(state, label);
            record(state, label, lifetime);
            lifetime
        };
        state.look_up = Some(LookUp::Answered(state.time.moment(), lifetime));
    }

    /// The violation if somebody else is told of the name.
    fn judge(&self, state: &State) -> Option<String> {
        if state.is_closed_here && state.closing.is_none() {
            return Some("a chmod of this client's has closed the directory".to_owned());
        }
        if state.is_moved && state.renaming.is_none() {
            return Some("a rename of this client's has moved the name".to_owned());
        }
        let allowance = TICK + EXPIRY_DELAY;
        let at = (state.time.moment(), 0);
        let wrong = state.is_open.judge(true, at, allowance);
        wrong.map(|_| format!("it was closed for more than {allowance:?}"))
    }
}

/// Records a lifetime that begins now.
fn record(state: &mut State, label: NameLabel, lifetime: Duration) {
    if !lifetime.is_zero() {
        let end = state.time.moment().plus(lifetime);
        state.lifetimes.grant(DentryState::Positive, label.epoch, end);
        state.object = state.object.max(Some(end));
    }
}

impl World for Search {
    type State = State;
    type Step = Step;

    fn guarded(&self) -> bool {
        false
    }

    fn start(&self) -> State {
        State {
            time: Time::START.after_tick(),
            is_open: History::new(self.is_open, Time::START.moment()),
            changed: Changed::OLD,
            directory: AttributeState::unknown(),
            clock: ServerClock::new(Duration::ZERO),
            lifetimes: NameLifetimes::default(),
            look_up: None,
            kernel: None,
            object: None,
            is_moved: false,
            renaming: None,
            closing: None,
            is_closed_here: false,
            ticks: 0,
            changes: 0,
            look_ups: 0,
        }
    }

    fn steps(&self, state: &State, each: &mut dyn FnMut(Step, State, Option<String>)) {
        let now = state.time.moment();
        let is_due =
            matches!(state.look_up, Some(LookUp::Answered(at, _)) if now.since(at) >= RECEIVED_AFTER);
        if state.ticks < self.ticks && !is_due {
            let time = state.time.after_tick();
            each(Step::Tick, State { time, ticks: state.ticks + 1, ..state.clone() }, None);
        }
        if state.changes < self.changes {
            let is_open = !state.is_open.is();
            let mut next = state.moved();
            next.chmod(is_open);
            each(Step::ChmodElsewhere(is_open), next, None);
            if state.closing.is_none() {
                let mut next = state.moved();
                next.chmod(is_open);
                next.ask();
                next.is_closed_here = !is_open;
                let waits = !is_open && self.planted != Planted::ChmodReturnsAtOnce;
                next.closing = next.lifetimes.expiry().filter(|_| waits);
                each(Step::ChmodHere(is_open), next, None);
            }
        }
        if state.closing.is_some_and(|until| until <= now) {
            each(Step::ChmodReturns, State { closing: None, ..state.moved() }, None);
        }
        if state.renaming.is_some_and(|until| until <= now) {
            each(Step::RenameReturns, State { renaming: None, ..state.moved() }, None);
        }
        if self.renames && !state.is_moved {
            let mut next = state.moved();
            next.is_moved = true;
            next.renaming = with_expiry_delay(next.object);
            each(Step::RenameHere, next, None);
        }
        match state.look_up {
            None if state.look_ups < self.look_ups && !state.is_moved => {
                let mut next = state.moved();
                self.decide(&mut next);
                each(Step::OwnerLooksUp, next, None);
            }
            Some(LookUp::Decided(label, decided)) => {
                let mut next = state.moved();
                self.answer(&mut next, label, decided);
                each(Step::LookUpIsAnswered, next, None);
            }
            Some(LookUp::Answered(_, lifetime)) => {
                let end = (!lifetime.is_zero()).then(|| now.plus(lifetime).plus(ROUNDED_BY));
                let next = State { look_up: None, kernel: state.kernel.max(end), ..state.moved() };
                each(Step::KernelReceivesReply, next, None);
            }
            None => {}
        }
        if state.kernel.is_some_and(|end| now < end) {
            each(Step::OtherIsToldByTheKernel, state.moved(), self.judge(state));
        }
    }
}

fn search(planted: Planted, is_open: bool) -> Search {
    Search { planted, is_open, ticks: 9, changes: 2, look_ups: 2, renames: false }
}

/// A search in which its name is renamed instead of its mode changed.
fn renaming(planted: Planted) -> Search {
    Search { changes: 0, renames: true, ..search(planted, true) }
}

// SEMANTICS: perm-10.
#[test]
fn a_kernel_that_keeps_names_lets_nobody_in_who_may_not_for_longer_than_it_may_keep_them() {
    hold([true, false].map(|is_open| search(Planted::Nothing, is_open)));
    hold([renaming(Planted::Nothing)]);
}

#[test]
fn every_planted_mistake_about_searching_is_found() {
    find_planted(&search(Planted::KeptWhereSomeMayNotSearch, false), 4);
    find_planted(&search(Planted::ChmodReturnsAtOnce, true), 5);
    find_planted(&search(Planted::KeptBeyondBelief, true), 14);
    find_planted(&search(Planted::RecordedBeforeTheReply, true), 14);
    find_planted(&renaming(Planted::GrantedAfterARename), 6);
}
