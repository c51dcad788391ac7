//! The services that the client receives from its user: a clock, and threads for background work.
//!
//! Owns the traits [`Clock`] and [`Background`], so that tests can script time and scheduling.
//! Nothing else in this crate reads a clock, sleeps or starts a thread. Must not know inodes,
//! procedures or caches.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use curt_rpc::client::Interrupt;

/// A clock that can also sleep.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The current time; it is monotonic.
    fn now(&self) -> Instant;

    /// Sleeps for `duration`, or less if `interrupt` is raised first. A scripted clock advances by
    /// `duration` and returns at once.
    fn pause(&self, duration: Duration, interrupt: &Interrupt);
}

/// A task for [`Background`].
pub type BackgroundTask = Box<dyn FnOnce() + Send + 'static>;

/// Runs asynchronous work: read-ahead, write-behind, cleanup.
///
/// Every task ends by itself; a task may call [`Background::spawn`] again. A thread that needs a
/// task's result waits on shared state, never on the task, so an implementation may run the task
/// inside `spawn`.
pub trait Background: Send + Sync + fmt::Debug {
    /// Runs `task` soon: on another thread, or (in a test) before this returns.
    fn spawn(&self, task: BackgroundTask);

    /// Runs `task` once `delay` has passed. An implementation with a scripted clock may delay it
    /// until the script releases it.
    fn spawn_after(&self, delay: Duration, task: BackgroundTask);

    /// Other threads, at most `threads_max`, for work that must not wait for the tasks of these.
    /// `None`: its tasks never wait.
    fn separate(&self, _threads_max: usize) -> Option<Arc<dyn Background>> {
        None
    }
}
