//! The tasks of maintenance that are scheduled.

use std::sync::atomic::{AtomicBool, Ordering::AcqRel};

/// A task in the background. It is scheduled once at a time.
#[derive(Clone, Copy, Debug)]
pub(super) enum MaintenanceTask {
    /// Opens without users are closed.
    Close,
    /// Opens for writing without users are closed.
    CloseWriters,
    /// Delegations are returned.
    Return,
    /// Delegations are returned after a pause.
    ReturnLater,
    /// Slots in doubt are settled.
    Settle,
    /// A SEQUENCE reports the slots in use.
    ReportSlots,
    /// A connection is bound.
    Bind,
}

/// Tasks that maintain the session at a time: opens are closed, delegations returned, slots
/// settled, the slots in use reported, a connection bound, and the lease renewed.
pub(super) const TASKS: usize = 6;

/// Whether each task is scheduled or runs.
///
/// The work for a task is visible before the task is begun. A task that is begun already has not
/// ended: it sees the work if it looks for some after its end.
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
