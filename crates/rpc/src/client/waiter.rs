//! A thread that waits for something of a connection, and how it is woken wherever it waits.
//!
//! Invariant: a wake-up is never lost. Whoever waits says where it is going to wait before it looks a last time at what
//! it waits for; whoever wakes changes that first and then looks where the other waits.

use std::{
    os::fd::OwnedFd,
    sync::Arc,
    thread::{self, Thread},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use super::{interrupt::Wake, silence::LOOK_INTERVAL};

/// One for each thread that makes calls.
pub(super) struct Waiter {
    thread: Thread,
    place: Mutex<Place>,
}

enum Place {
    /// Parked, or running: its park token is what it will look at.
    Parked,
    /// In poll(2), with this among the descriptors.
    Polling(Arc<Bell>),
}

/// An eventfd that the one thread in poll(2) listens to.
pub(super) struct Bell(OwnedFd);

/// What poll(2) found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// The socket is ready for something of what was asked, or has an error.
    Ready,
    /// The bell rang, or something else ended the wait.
    Woken,
    /// Nothing happened until the deadline, or for [`LOOK_INTERVAL`].
    Quiet,
}

thread_local! {
    static CURRENT: Arc<Waiter> = Arc::new(Waiter { thread: thread::current(), place: Mutex::new(Place::Parked) });
}

impl Waiter {
    /// That of this thread.
    pub(super) fn current() -> Arc<Self> {
        CURRENT.with(Arc::clone)
    }

    /// Says that this thread is going to wait in [`Waiter::poll`] with `bell`.
    pub(super) fn will_poll(&self, bell: &Arc<Bell>) {
        *self.place.lock() = Place::Polling(Arc::clone(bell));
    }

    /// Waits for `socket` or `bell`, until the deadline and for [`LOOK_INTERVAL`] at most. To be called after
    /// [`Waiter::will_poll`] and a last look.
    pub(super) fn poll(&self, socket: &OwnedFd, events: PollFlags, bell: &Bell, deadline: Instant) -> Polled {
        let mut fds = [PollFd::new(socket, events), PollFd::new(&bell.0, PollFlags::IN)];
        let left = deadline.saturating_duration_since(Instant::now());
        let outcome = rustix::event::poll(&mut fds, Some(&timespec(left.min(LOOK_INTERVAL))));
        self.stay();
        match outcome {
            Ok(count) if count > 0 && !fds[0].revents().is_empty() => Polled::Ready,
            Ok(count) if count > 0 => {
                bell.silence();
                Polled::Woken
            }
            Ok(0) => Polled::Quiet,
            // A signal, or memory that ran out for a moment: look again.
            Ok(_) | Err(_) => Polled::Woken,
        }
    }

    /// Takes back [`Waiter::will_poll`].
    pub(super) fn stay(&self) {
        *self.place.lock() = Place::Parked;
    }

    /// Waits to be woken, or for the deadline; a wake-up since the last wait counts.
    pub(super) fn park(&self, deadline: Instant) {
        thread::park_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

impl Wake for Waiter {
    fn wake(&self) {
        match &*self.place.lock() {
            Place::Parked => self.thread.unpark(),
            Place::Polling(bell) => bell.ring(),
        }
    }
}

impl Bell {
    pub(super) fn new() -> rustix::io::Result<Self> {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    fn ring(&self) {
        // Fails only when the counter is full, and then it is ringing already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

/// Rounded up to a nanosecond that is not 0, so that a wait ends after its deadline and not before.
fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
