//! Time in the models: a server whose clock ticks every 10 ms, and clients that count microseconds.

use core::time::Duration;
use std::hash::{Hash, Hasher};

use curt_policy::MonotonicTime;
use curt_types::{ChangeStamp, Timestamp};

/// The length of a tick: as coarse as kernel clocks get, and half of the minimum guard.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// The resolution of the server's stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grain {
    /// Changes within a tick have the same stamp.
    Coarse,
    /// No two changes have the same stamp.
    Fine,
    /// No two changes have the same change attribute, which has no order (NFSv4).
    Change,
}

/// Moments begin here, so that no other number in a state is as large: see [`Canon`].
const BASE: Duration = Duration::from_secs(3_000);

/// The current time of the world. Each event takes a microsecond, so that moments are ordered like
/// the events.
///
/// Hashed as its tick only: the number of earlier events does not affect later ones.
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

    pub(crate) fn moment(self) -> MonotonicTime {
        MonotonicTime::from_start(
            BASE + TICK * u32::from(self.tick) + Duration::from_micros(u64::from(self.events)),
        )
    }
}

/// When an object was last changed: the tick, and the number of the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Changed {
    pub(crate) tick: u16,
    pub(crate) number: u16,
}

impl Changed {
    /// Long before the first event.
    pub(crate) const OLD: Self = Self { tick: 0, number: 0 };

    /// The next change, made at `time`.
    pub(crate) fn next(self, time: Time) -> Self {
        Self { tick: time.tick, number: self.number + 1 }
    }

    /// The stamp of the change at the server.
    pub(crate) fn stamp(self, grain: Grain) -> ChangeStamp {
        let extra = match grain {
            Grain::Coarse => 0,
            Grain::Fine => u32::from(self.number) * 1_000 + 1,
            Grain::Change => return ChangeStamp::Change(self.number.into()),
        };
        // The first tick is not a multiple of 100 ms: the first time sent then shows the resolution
        // of the clock.
        let nanoseconds = 10_000_000 * (u32::from(self.tick) + 1) + extra;
        let time = Timestamp::new(1_000_001, nanoseconds);
        ChangeStamp::Times { mtime: time, ctime: time }
    }
}

/// Hashes a state such that states are equal that differ only in the durations between events, not
/// in their order.
///
/// Moments are recognised by their size. Each is split into its tick and its rank among all
/// microseconds of the state; the clock's offset to the server likewise, or it is omitted if no
/// guard uses it.
///
/// Its memory is used for one state after another.
pub(crate) struct Canon {
    guarded: bool,
    tokens: Vec<Token>,
    /// The microseconds of the state's moments, in their order.
    order: Vec<u64>,
}

enum Token {
    Plain(u64),
    MonotonicTime { tick: u64, micros: u64 },
}

const TICK_NANOSECONDS: u64 = 10_000_000;

impl Canon {
    pub(crate) fn new(guarded: bool) -> Self {
        Self { guarded, tokens: Vec::new(), order: Vec::new() }
    }

    /// The hash of a state.
    pub(crate) fn of(&mut self, state: &impl Hash) -> (u64, u64) {
        self.tokens.clear();
        state.hash(self);
        let Self { tokens, order, .. } = self;
        order.clear();
        order.extend(tokens.iter().filter_map(Token::micros));
        order.sort_unstable();
        order.dedup();
        // A state is represented by 128 bits: a collision is less likely than a hardware fault.
        let mut prints = (0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344);
        for token in tokens {
            let (value, place) = match *token {
                Token::Plain(value) => (value, 0),
                Token::MonotonicTime { tick, micros } => {
                    (tick, 1 + order.binary_search(&micros).unwrap() as u64)
                }
            };
            let word = value ^ place.rotate_left(48);
            prints = (mix(prints.0, word), mix(prints.1, word.rotate_left(32)));
        }
        prints
    }
}

/// One step of a hash: a bijective mixing of the word for each previous print.
fn mix(print: u64, word: u64) -> u64 {
    let mixed = (print.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

impl Token {
    fn micros(&self) -> Option<u64> {
        match *self {
            Self::Plain(_) => None,
            Self::MonotonicTime { micros, .. } => Some(micros),
        }
    }

    fn moment(nanoseconds: u64) -> Self {
        Self::MonotonicTime { tick: nanoseconds / TICK_NANOSECONDS, micros: nanoseconds % TICK_NANOSECONDS }
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
        self.tokens.push(Token::Plain(value.into()));
    }

    fn write_u16(&mut self, value: u16) {
        self.tokens.push(Token::Plain(value.into()));
    }

    fn write_u32(&mut self, value: u32) {
        self.tokens.push(Token::Plain(value.into()));
    }

    /// Also the variant of an enum.
    fn write_usize(&mut self, value: usize) {
        self.tokens.push(Token::Plain(value as u64));
    }

    fn write_u64(&mut self, value: u64) {
        let is_moment = u128::from(value) >= BASE.as_nanos();
        self.tokens.push(if is_moment { Token::moment(value) } else { Token::Plain(value) });
    }

    fn write_i64(&mut self, value: i64) {
        self.tokens.push(Token::Plain(value.unsigned_abs()));
    }

    fn write_i128(&mut self, value: i128) {
        // The server's time minus a moment: the server's time is whole ticks, so the remainder is
        // the moment's microseconds.
        if self.guarded {
            let moment = u64::try_from(1_000_000_000_000_000_000 - value).unwrap();
            self.tokens.push(Token::moment(moment));
        }
    }
}
