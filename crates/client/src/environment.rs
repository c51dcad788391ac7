//! What the client gets from outside: a clock, and threads for background work.
//!
//! Owns the two traits by which time and threads reach this crate, so that a test can script both.
//! Nothing else in this crate reads a clock, sleeps or starts a thread. Must not know inodes,
//! procedures or caches.

use std::{
    fmt,
    time::{Duration, Instant},
};

use curt_rpc::client::Interrupt;

/// A clock that can also wait.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The present time; it never goes back.
    fn now(&self) -> Instant;

    /// Lets `duration` pass, or less if `interrupt` is raised first. A scripted clock returns at
    /// once, `duration` later.
    fn pause(&self, duration: Duration, interrupt: &Interrupt);
}

/// Work that is handed to [`Background`].
pub type BackgroundTask = Box<dyn FnOnce() + Send + 'static>;

/// Runs work that its starter does not wait for: read-ahead, write-behind, cleaning up.
///
/// Every task ends by itself; a task may call [`Background::spawn`] again. Whoever needs a task's
/// result waits on shared state, never on the task, so running it inside `spawn` is as right as
/// running it later.
pub trait Background: Send + Sync + fmt::Debug {
    /// Runs `task` soon: on another thread, or (in a test) before this returns.
    fn spawn(&self, task: BackgroundTask);

    /// Runs `task` once `delay` has passed. An implementation whose clock is scripted may keep it
    /// until the script says so.
    fn spawn_after(&self, delay: Duration, task: BackgroundTask);
}
