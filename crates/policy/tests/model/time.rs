//! Time in the models: a server whose clock ticks every 10 ms, and clients that count microseconds.

use core::time::Duration;
use std::hash::{Hash, Hasher};

use curt_policy::Moment;
use curt_types::{ChangeStamp, Timestamp};

/// How long a tick is: as coarse as clocks of kernels get, and half of the least guard.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// How fine the server's stamps are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grain {
    /// Changes within a tick carry one stamp.
    Coarse,
    /// No two changes carry one stamp.
    Fine,
    /// No two changes carry one change attribute, which tells no order (NFSv4).
    Change,
}

/// Moments begin here, so that no other number in a state is as large: see [`Canon`].
const BASE: Duration = Duration::from_secs(3_000);

/// The present of the whole world. Each event takes a microsecond, so that moments are ordered as
/// the events are.
///
/// Hashed as its tick alone: how many events there were before matters to nothing that comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    pub(crate) tick: u16,
    events: u16,
}

impl Hash for Time {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.tick.hash(hasher);
    }
}

impl Time {
    pub(crate) const START: Self = Self { tick: 20, events: 0 };

    pub(crate) fn after_event(self) -> Self {
        Self { events: self.events + 1, ..self }
    }

    pub(crate) fn after_tick(self) -> Self {
        Self { tick: self.tick + 1, ..self }
    }

    pub(crate) fn moment(self) -> Moment {
        Moment::from_start(BASE + TICK * u32::from(self.tick) + Duration::from_micros(u64::from(self.events)))
    }
}

/// When something was last changed: in which tick, and by the how many-th change of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Changed {
    pub(crate) tick: u16,
    pub(crate) number: u16,
}

impl Changed {
    /// Long before anything happens.
    pub(crate) const OLD: Self = Self { tick: 0, number: 0 };

    /// The next change, made at `time`.
    pub(crate) fn next(self, time: Time) -> Self {
        Self { tick: time.tick, number: self.number + 1 }
    }

    /// What the server writes on it.
    pub(crate) fn stamp(self, grain: Grain) -> ChangeStamp {
        let extra = match grain {
            Grain::Coarse => 0,
            Grain::Fine => u32::from(self.number) * 1_000 + 1,
            Grain::Change => return ChangeStamp::Change(self.number.into()),
        };
        // The first tick is no whole tenth of a second: the clock's step shows in the first time
        // sent.
        let nanoseconds = 10_000_000 * (u32::from(self.tick) + 1) + extra;
        let time = Timestamp::new(1_000_001, nanoseconds);
        ChangeStamp::Times { mtime: time, ctime: time }
    }
}

/// Hashes a state so that states which differ only in by how much, not in which order, things
/// happened are one.
///
/// Moments are told from other numbers by their size. Each is taken apart into its tick and its
/// place among all microseconds of the state; the clock's offset to the server likewise, or left
/// out where no guard looks at it.
pub(crate) struct Canon {
    guarded: bool,
    tokens: Vec<Token>,
}

enum Token {
    Plain(u64),
    Moment { tick: u64, micros: u64 },
}

const TICK_NANOSECONDS: u64 = 10_000_000;

impl Canon {
    pub(crate) fn of(state: &impl Hash, guarded: bool) -> (u64, u64) {
        let mut canon = Self { guarded, tokens: Vec::with_capacity(256) };
        state.hash(&mut canon);
        let mut order: Vec<u64> = canon.tokens.iter().filter_map(Token::micros).collect();
        order.sort_unstable();
        order.dedup();
        // 128 bits stand for a state: two states sharing them is less likely than a broken machine.
        let mut prints = (0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344);
        for token in &canon.tokens {
            let (value, place) = match *token {
                Token::Plain(value) => (value, 0),
                Token::Moment { tick, micros } => (tick, 1 + order.binary_search(&micros).unwrap() as u64),
            };
            let word = value ^ place.rotate_left(48);
            prints = (mix(prints.0, word), mix(prints.1, word.rotate_left(32)));
        }
        prints
    }
}

/// One step of a hash: for each former print another one-to-one mixing of the word.
fn mix(print: u64, word: u64) -> u64 {
    let mixed = (print.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

impl Token {
    fn micros(&self) -> Option<u64> {
        match *self {
            Self::Plain(_) => None,
            Self::Moment { micros, .. } => Some(micros),
        }
    }

    fn moment(nanoseconds: u64) -> Self {
        Self::Moment { tick: nanoseconds / TICK_NANOSECONDS, micros: nanoseconds % TICK_NANOSECONDS }
    }
}

impl Hasher for Canon {
    fn finish(&self) -> u64 {
        0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.tokens.extend(bytes.iter().map(|byte| Token::Plain(u64::from(*byte))));
    }

    fn write_u8(&mut self, value: u8) {
        self.tokens.push(Token::Plain(u64::from(value)));
    }

    fn write_u64(&mut self, value: u64) {
        let is_moment = u128::from(value) >= BASE.as_nanos();
        self.tokens.push(if is_moment { Token::moment(value) } else { Token::Plain(value) });
    }

    fn write_i64(&mut self, value: i64) {
        self.tokens.push(Token::Plain(value.unsigned_abs()));
    }

    fn write_i128(&mut self, value: i128) {
        // Server's time less a moment: the server's is whole ticks, so the rest is the moment's
        // microseconds.
        if self.guarded {
            let moment = u64::try_from(1_000_000_000_000_000_000 - value).unwrap();
            self.tokens.push(Token::moment(moment));
        }
    }
}
