//! The tasks of maintenance that are scheduled.

use std::sync::atomic::{AtomicBool, Ordering::AcqRel};

/// A task in the background. It is scheduled once at a time.
#[derive(Clone, Copy, Debug)]
pub(super) enum MaintenanceTask {
    /// Opens without users are closed, after a pause.
    Close,
    /// Opens that are due are closed, after the shorter pause of writers.
    CloseWriters,
    /// One of these two closes opens. It is not scheduled itself.
    Closing,
    /// Delegations are returned.
    Return,
    /// Delegations are returned after a pause.
    ReturnLater,
    /// Slots in doubt are settled.
    Settle,
    /// A SEQUENCE alone reports the slots in use, or has the session replaced.
    ReportSlots,
    /// A connection is bound. The last one: it determines the number of flags.
    Bind,
}

/// Threads for tasks that run at the same time: opens are closed, delegations returned, slots
/// settled, the slots in use reported, a connection bound, and the lease renewed. The two tasks
/// that close opens take turns, and [`MaintenanceTask::ReturnLater`] only schedules another.
pub(super) const TASKS: usize = 6;

/// Whether each task has begun and not ended.
///
/// A caller makes its work visible before it calls `begin`. If that returns false, the task's `end`
/// comes later, and what the task reads after `end` includes the work (AcqRel on both).
#[derive(Debug, Default)]
pub(super) struct MaintenanceTasks([AtomicBool; MaintenanceTask::Bind as usize + 1]);

impl MaintenanceTasks {
    /// Returns whether the task has to be scheduled.
    pub(super) fn begin(&self, task: MaintenanceTask) -> bool {
        !self.0[task as usize].swap(true, AcqRel)
    }

    /// The task has to be scheduled for what comes from now on.
    pub(super) fn end(&self, task: MaintenanceTask) {
        self.0[task as usize].swap(false, AcqRel);
    }
}
