//! Interruption of a waiting call by another thread.
//!
//! An interrupt consists of a flag and the wakers registered with it. Invariant: a thread that
//! registers its waker before it reads the flag cannot miss that the flag is raised. Does not
//! depend on what the thread waits for.

use std::{
    borrow::Cow,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

/// Wakes a waiting thread, so that it checks its condition again. Spurious wake-ups are harmless.
pub trait Wake: Send + Sync {
    /// Makes the thread check its condition again. Must neither block nor raise an [`Interrupt`].
    fn wake(&self);
}

/// Interrupts calls. Clones share one state: one clone is passed to a call, another is used to
/// raise. [`Interrupt::default`] is never raised and costs nothing.
#[derive(Clone, Default)]
pub struct Interrupt(Option<Arc<InterruptState>>);

#[derive(Default)]
struct InterruptState {
    raised: AtomicBool,
    wakers: Mutex<RegisteredWakers>,
}

#[derive(Default)]
struct RegisteredWakers {
    last: u64,
    wakers: Vec<(u64, Arc<dyn Wake>)>,
}

impl Interrupt {
    /// An interrupt that can be raised.
    #[must_use]
    pub fn new() -> Self {
        Self(Some(Arc::default()))
    }

    /// An interrupt that is never raised.
    #[must_use]
    pub const fn never() -> Self {
        Self(None)
    }

    /// Ends each call that waits with this interrupt, now or later. Cannot be undone. Has no effect
    /// on [`Interrupt::never`].
    pub fn raise(&self) {
        let Some(shared) = &self.0 else { return };
        // Pairs with the load in `is_raised`: wakers registered before the lock below is taken are
        // woken; threads that register later see the flag.
        shared.raised.store(true, Ordering::SeqCst);
        for (_, waker) in &shared.wakers.lock().wakers {
            waker.wake();
        }
    }

    /// Whether the interrupt was raised.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.raised.load(Ordering::SeqCst))
    }

    /// Registers `waker` with [`Interrupt::raise`] until the result is dropped. Check
    /// [`Interrupt::is_raised`] after registering and before each wait.
    pub fn register(&self, waker: Arc<dyn Wake>) -> WakerRegistration<'_> {
        let id = self.0.as_ref().map_or(0, |shared| {
            let mut waiting = shared.wakers.lock();
            waiting.last += 1;
            let id = waiting.last;
            waiting.wakers.push((id, waker));
            id
        });
        WakerRegistration { interrupt: Cow::Borrowed(self), id }
    }

    /// As [`Interrupt::register`]; the result keeps this interrupt.
    pub fn attach(&self, waker: Arc<dyn Wake>) -> WakerRegistration<'static> {
        let id = self.register(waker).keep();
        WakerRegistration { interrupt: Cow::Owned(self.clone()), id }
    }

    /// Waits at most `duration` until it is raised; returns whether it was.
    #[must_use]
    pub fn wait_for(&self, duration: Duration) -> bool {
        let alarm = Arc::new(CondvarWaker::default());
        let waker: Arc<dyn Wake> = alarm.clone();
        let _registration = self.register(waker);
        let mut woken = alarm.woken.lock();
        if !self.is_raised() {
            alarm.condvar.wait_while_for(&mut woken, |woken| !*woken, duration);
        }
        drop(woken);
        self.is_raised()
    }
}

#[derive(Default)]
struct CondvarWaker {
    woken: Mutex<bool>,
    condvar: Condvar,
}

impl Wake for CondvarWaker {
    fn wake(&self) {
        *self.woken.lock() = true;
        self.condvar.notify_all();
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupt")
            .field("never", &self.0.is_none())
            .field("raised", &self.is_raised())
            .finish()
    }
}

/// A waker's registration with an [`Interrupt`].
#[must_use = "the waker is forgotten when this is dropped"]
pub struct WakerRegistration<'a> {
    interrupt: Cow<'a, Interrupt>,
    id: u64,
}

impl WakerRegistration<'_> {
    /// Leaves the waker registered.
    fn keep(mut self) -> u64 {
        self.interrupt = Cow::Owned(Interrupt::never());
        self.id
    }
}

impl Drop for WakerRegistration<'_> {
    fn drop(&mut self) {
        if let Some(shared) = &self.interrupt.0 {
            shared.wakers.lock().wakers.retain(|(id, _)| *id != self.id);
        }
    }
}

impl fmt::Debug for WakerRegistration<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakerRegistration").field("id", &self.id).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn raising_ends_every_wait_on_every_clone() {
        let interrupt = Interrupt::new();
        thread::scope(|scope| {
            let waits: Vec<_> = (0..8)
                .map(|_| {
                    let clone = interrupt.clone();
                    scope.spawn(move || clone.wait_for(Duration::from_secs(60)))
                })
                .collect();
            interrupt.raise();
            for wait in waits {
                assert!(wait.join().expect("the wait does not panic"));
            }
        });
        assert!(interrupt.is_raised());
    }

    #[test]
    fn never_is_never_raised() {
        let interrupt = Interrupt::never();
        interrupt.raise();
        assert!(!interrupt.is_raised());
        assert!(!interrupt.wait_for(Duration::from_millis(1)));
    }

    #[test]
    fn a_dropped_registration_is_forgotten() {
        let interrupt = Interrupt::new();
        let alarm = Arc::new(CondvarWaker::default());
        drop(interrupt.register(alarm.clone()));
        drop(interrupt.attach(alarm.clone()));
        let kept = Interrupt::new();
        let registration = kept.attach(alarm.clone());
        interrupt.raise();
        assert!(!*alarm.woken.lock());
        kept.raise();
        assert!(*alarm.woken.lock());
        drop(registration);
    }
}
