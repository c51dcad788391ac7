//! A thread that waits for something of a connection, and how it is woken wherever it waits.
//!
//! Invariant: a wake-up is never lost. Whoever waits says where it is going to wait before it looks
//! a last time at what it waits for; whoever wakes changes that first and then looks where the
//! other waits.

use std::{
    os::fd::OwnedFd,
    sync::Arc,
    thread::{self, Thread},
    time::Duration,
};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use super::interrupt::Wake;

/// One for each thread that makes calls.
pub(crate) struct CallWaiter {
    thread: Thread,
    place: Mutex<WaitPlace>,
}

enum WaitPlace {
    /// Parked, or running: its park token is what it will look at.
    Parked,
    /// In poll(2), with this among the descriptors.
    Polling(Arc<WakeupFd>),
}

/// An eventfd that the one thread in poll(2) listens to.
pub(crate) struct WakeupFd(OwnedFd);

/// What poll(2) found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollOutcome {
    /// The socket is ready for something of what was asked, or has an error.
    Ready,
    /// The bell rang, or something else ended the wait.
    Woken,
    /// Nothing happened in that time.
    Quiet,
}

thread_local! {
    static CURRENT: Arc<CallWaiter> = Arc::new(CallWaiter { thread: thread::current(), place: Mutex::new(WaitPlace::Parked) });
}

impl CallWaiter {
    /// That of this thread.
    pub(crate) fn current() -> Arc<Self> {
        CURRENT.with(Arc::clone)
    }

    /// Says that this thread is going to wait in [`CallWaiter::poll`] with `bell`.
    pub(crate) fn prepare_poll(&self, bell: &Arc<WakeupFd>) {
        *self.place.lock() = WaitPlace::Polling(Arc::clone(bell));
    }

    /// Waits for `socket` or `bell`, `longest` at most. To be called after
    /// [`CallWaiter::prepare_poll`] and a last look.
    pub(crate) fn poll(
        &self,
        socket: &OwnedFd,
        events: PollFlags,
        bell: &WakeupFd,
        longest: Duration,
    ) -> PollOutcome {
        let mut fds = [PollFd::new(socket, events), PollFd::new(&bell.0, PollFlags::IN)];
        let outcome = rustix::event::poll(&mut fds, Some(&timespec(longest)));
        self.finish_poll();
        match outcome {
            Ok(count) if count > 0 && !fds[0].revents().is_empty() => PollOutcome::Ready,
            Ok(count) if count > 0 => {
                bell.clear();
                PollOutcome::Woken
            }
            Ok(0) => PollOutcome::Quiet,
            // A signal, or memory that ran out for a moment: look again.
            Ok(_) | Err(_) => PollOutcome::Woken,
        }
    }

    /// Takes back [`CallWaiter::prepare_poll`].
    pub(crate) fn finish_poll(&self) {
        *self.place.lock() = WaitPlace::Parked;
    }

    /// Waits to be woken, `longest` at most; a wake-up since the last wait counts. Only for the
    /// thread whose waiter it is.
    pub(crate) fn park(&self, longest: Duration) {
        thread::park_timeout(longest);
    }
}

impl Wake for CallWaiter {
    fn wake(&self) {
        match &*self.place.lock() {
            WaitPlace::Parked => self.thread.unpark(),
            WaitPlace::Polling(bell) => bell.signal(),
        }
    }
}

impl WakeupFd {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    fn signal(&self) {
        // Fails only when the counter is full, and then it is ringing already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
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
