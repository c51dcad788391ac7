//! Destinations of events: probes, the buffers of watchers, and the ring that outlives the process.
//!
//! This module owns the buffers. Each has a bit in the word of every event that it receives.
//! Buffers are created once, reused, and never freed, so that a thread that is about to write to
//! one never finds it freed.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use thiserror::Error;

use super::buffer::{EventBuffer, OverflowPolicy, words_needed};
use super::event::Event;
use super::fields::FieldValue;
use super::record::RecordHeader;
use super::sys;
use crate::scope;

/// Maximum number of watchers at the same time.
pub const WATCHERS_MAX: usize = 4;

/// Words of each shard of a watcher's buffer: 512 KiB, half a second of 100,000 events each second
/// in all shards together.
const WATCH_SHARD_WORDS: usize = 64 * 1024;

/// The first bit for buffers, which is the ring's. Those of watchers follow.
const FIRST_BIT: u32 = 1 << 16;

static WATCHERS: [WatchBuffer; WATCHERS_MAX] = [const { WatchBuffer::new() }; WATCHERS_MAX];
static RING: OnceLock<EventBuffer<&'static [AtomicU64]>> = OnceLock::new();
/// Held while the set of the ring's events is changed.
static RING_EVENTS: Mutex<()> = Mutex::new(());

thread_local! {
    /// This thread's id, cached; 0: not read yet.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

struct WatchBuffer {
    taken: AtomicBool,
    buffer: OnceLock<EventBuffer<Box<[AtomicU64]>>>,
}

impl WatchBuffer {
    const fn new() -> Self {
        Self { taken: AtomicBool::new(false), buffer: OnceLock::new() }
    }
}

/// Passes an event to all its destinations.
pub(super) fn emit(event: Event, values: &[FieldValue<'_>]) {
    let wanted = sys::wanted(event);
    if wanted & sys::PROBED != 0 {
        sys::fire(event, values);
    }
    if wanted < FIRST_BIT {
        return;
    }
    let header =
        RecordHeader { event: event as u16, thread: thread(), time: now(), object: scope::current().object };
    if wanted & FIRST_BIT != 0
        && let Some(ring) = RING.get()
    {
        ring.push(&header, values);
    }
    for (number, watcher) in WATCHERS.iter().enumerate() {
        if wanted & bit(number) != 0
            && let Some(buffer) = watcher.buffer.get()
        {
            buffer.push(&header, values);
        }
    }
}

/// The monotonic clock in nanoseconds: the time of events, and of other tracers that use this
/// clock.
#[must_use]
pub fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// The offset from the time of an event to the time of day, in nanoseconds since 1970.
#[must_use]
pub fn time_of_day_offset() -> u64 {
    nanoseconds(ClockId::Realtime).saturating_sub(now())
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // Neither clock is negative.
    let part = |number: i64| u64::try_from(number).unwrap_or_default();
    part(time.tv_sec).saturating_mul(1_000_000_000).saturating_add(part(time.tv_nsec))
}

fn thread() -> u32 {
    let known = THREAD.get();
    if known != 0 {
        return known;
    }
    let number = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    THREAD.set(number);
    number
}

fn bit(watcher: usize) -> u32 {
    FIRST_BIT << (1 + watcher)
}

/// There are too many watchers already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("there are already {WATCHERS_MAX} watchers, the maximum: end one of them")]
pub struct TooManyWatches;

/// Receives some events until it is dropped.
#[derive(Debug)]
pub struct EventWatch {
    number: usize,
    events: Vec<Event>,
    lost_before: u64,
}

impl EventWatch {
    /// Begins to receive these events.
    ///
    /// # Errors
    /// There are too many watchers already.
    pub fn begin(events: &[Event]) -> Result<Self, TooManyWatches> {
        // Acquire: the remaining records of the last user are visible, and discarded.
        let number = WATCHERS.iter().position(|watcher| !watcher.taken.swap(true, Ordering::Acquire));
        let number = number.ok_or(TooManyWatches)?;
        let buffer = WATCHERS[number].buffer.get_or_init(|| {
            let words = words_needed(WATCH_SHARD_WORDS);
            let memory = (0..words).map(|_| AtomicU64::new(0)).collect();
            EventBuffer::new(memory, WATCH_SHARD_WORDS, OverflowPolicy::Keep)
        });
        buffer.drain(&mut Vec::new());
        for event in events {
            sys::want(*event, bit(number));
        }
        Ok(Self { number, events: events.to_vec(), lost_before: buffer.lost() })
    }

    /// Removes and returns the records since the last call.
    pub fn drain(&self, out: &mut Vec<u64>) {
        if let Some(buffer) = WATCHERS[self.number].buffer.get() {
            buffer.drain(out);
        }
    }

    /// Number of events that did not fit since the beginning.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let buffer = WATCHERS[self.number].buffer.get();
        buffer.map_or(0, |buffer| buffer.lost().saturating_sub(self.lost_before))
    }
}

impl EventWatch {
    /// Stops receiving; events received before can still be [drained](Self::drain).
    pub fn stop(&self) {
        for event in &self.events {
            sys::stop_wanting(*event, bit(self.number));
        }
    }
}

impl Drop for EventWatch {
    fn drop(&mut self) {
        self.stop();
        // Pairs with `begin`.
        WATCHERS[self.number].taken.store(false, Ordering::Release);
    }
}

/// Sets the process's ring. Returns whether it had none.
pub(super) fn set_ring(ring: EventBuffer<&'static [AtomicU64]>) -> bool {
    RING.set(ring).is_ok()
}

/// Sets the events that the ring receives from now on.
pub fn keep_in_ring(events: &[Event]) {
    let _held = RING_EVENTS.lock().unwrap_or_else(PoisonError::into_inner);
    for event in Event::ALL {
        if events.contains(event) {
            sys::want(*event, FIRST_BIT);
        } else {
            sys::stop_wanting(*event, FIRST_BIT);
        }
    }
}

/// Held by tests of this crate that begin to watch: the places are the process's.
#[cfg(test)]
pub(crate) static WATCHING_TEST: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use super::super::record;
    use super::*;

    /// The test's own events: other tests in this process use different ones.
    const EVENT: Event = Event::NfsAsyncRenameDone;

    fn tell(name: &str) {
        crate::probe!(NfsAsyncRenameDone { dir: 5_u64, name, new_dir: 5_u64, new_name: ".nfs1", error: 0 });
    }

    fn records(watch: &EventWatch) -> usize {
        let mut words = Vec::new();
        watch.drain(&mut words);
        let (mut rest, mut count) = (&words[..], 0);
        while let [first, ..] = rest {
            rest = &rest[record::length(*first)..];
            count += 1;
        }
        count
    }

    #[test]
    fn only_watchers_receive_events_and_their_number_is_bounded() {
        let _alone = WATCHING_TEST.lock().unwrap_or_else(PoisonError::into_inner);
        tell("before");
        let watch = EventWatch::begin(&[EVENT]).expect("a place");
        tell("one");
        tell("two");
        assert_eq!(records(&watch), 2);
        let others: Vec<_> = (1..WATCHERS_MAX).map(|_| EventWatch::begin(&[]).expect("a place")).collect();
        assert_eq!(EventWatch::begin(&[EVENT]).err(), Some(TooManyWatches));
        tell("three");
        assert_eq!((records(&watch), watch.lost()), (1, 0));
        assert_eq!(records(&others[0]), 0);
        drop((watch, others));
        assert!(!EVENT.is_wanted());
        let again = EventWatch::begin(&[EVENT]).expect("a place");
        assert_eq!(records(&again), 0);
        // Without a reader the buffer fills up once, and further events are counted.
        let told = 100_000;
        (0..told).for_each(|_| tell("a name of some length"));
        let lost = again.lost();
        assert!(lost > 0);
        assert_eq!(records(&again) as u64 + lost, told);
        tell("and goes on");
        assert_eq!(records(&again), 1);
    }
}
