//! A thread that waits for a connection, and its wake-up.
//!
//! Invariant: a wake-up is never lost. A waiting thread states where it will wait before its last
//! check of the condition; a waking thread changes the condition first and then reads where the
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
    /// Parked, or running: the thread checks its park token next.
    Parked,
    /// In poll(2), with this descriptor.
    Polling(Arc<WakeupFd>),
}

/// An eventfd for the one thread in poll(2).
pub(crate) struct WakeupFd(OwnedFd);

/// The result of poll(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollOutcome {
    /// The socket is ready for one of the requested events, or has an error.
    Ready,
    /// The eventfd was signalled, or the wait ended for another reason.
    Woken,
    /// The time has passed.
    Quiet,
}

thread_local! {
    static CURRENT: Arc<CallWaiter> = Arc::new(CallWaiter { thread: thread::current(), place: Mutex::new(WaitPlace::Parked) });
}

impl CallWaiter {
    /// The waiter of this thread.
    pub(crate) fn current() -> Arc<Self> {
        CURRENT.with(Arc::clone)
    }

    /// States that this thread will wait in [`CallWaiter::poll`] with `wakeup`.
    pub(crate) fn prepare_poll(&self, wakeup: &Arc<WakeupFd>) {
        *self.place.lock() = WaitPlace::Polling(Arc::clone(wakeup));
    }

    /// Waits for `socket` or `wakeup`, at most `longest`. Called after [`CallWaiter::prepare_poll`]
    /// and a last check of the condition.
    pub(crate) fn poll(
        &self,
        socket: &OwnedFd,
        events: PollFlags,
        wakeup: &WakeupFd,
        longest: Duration,
    ) -> PollOutcome {
        let mut fds = [PollFd::new(socket, events), PollFd::new(&wakeup.0, PollFlags::IN)];
        let outcome = rustix::event::poll(&mut fds, Timespec::try_from(longest).ok().as_ref());
        self.finish_poll();
        match outcome {
            Ok(count) if count > 0 && !fds[0].revents().is_empty() => PollOutcome::Ready,
            Ok(count) if count > 0 => {
                wakeup.clear();
                PollOutcome::Woken
            }
            Ok(0) => PollOutcome::Quiet,
            // A signal, or temporary lack of memory: check again.
            Ok(_) | Err(_) => PollOutcome::Woken,
        }
    }

    /// Reverts [`CallWaiter::prepare_poll`].
    pub(crate) fn finish_poll(&self) {
        *self.place.lock() = WaitPlace::Parked;
    }

    /// Waits at most `longest` for a wake-up; one since the last wait counts. Only for the thread
    /// that owns the waiter.
    pub(crate) fn park(&self, longest: Duration) {
        thread::park_timeout(longest);
    }
}

impl Wake for CallWaiter {
    fn wake(&self) {
        match &*self.place.lock() {
            WaitPlace::Parked => self.thread.unpark(),
            WaitPlace::Polling(wakeup) => wakeup.signal(),
        }
    }
}

impl WakeupFd {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    fn signal(&self) {
        // Fails only if the counter is full, and then the eventfd is readable.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}
