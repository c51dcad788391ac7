//! A request for the next names of a listing, and the readers that wait for it.
//!
//! Owns the waiting. A reader sends it itself or has it sent ahead; the first reader takes the
//! result, the others find it in the sequence. Must not know what is asked.

use std::sync::Arc;

use curt_rpc::client::{Interrupt, Wake};
use parking_lot::{Condvar, Mutex};

use super::fetch::{ReaddirError, ReaddirReply};

/// What the server said.
pub(super) type ReaddirResult = Result<ReaddirReply, ReaddirError>;

/// One request under way.
#[derive(Debug)]
pub(crate) struct ReaddirInFlight {
    interrupt: Interrupt,
    outcome: Mutex<ReaddirOutcome>,
    changed: Condvar,
}

#[derive(Debug)]
enum ReaddirOutcome {
    UnderWay,
    /// To be taken by the first reader.
    Arrived(Box<ReaddirResult>),
    /// Taken, called off, or never came.
    Over,
}

impl ReaddirInFlight {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            interrupt: Interrupt::new(),
            outcome: Mutex::new(ReaddirOutcome::UnderWay),
            changed: Condvar::new(),
        })
    }

    /// What calls a request off that is sent ahead.
    pub(super) fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// What it brought can be taken without waiting.
    pub(super) fn is_ready(&self) -> bool {
        matches!(&*self.outcome.lock(), ReaddirOutcome::Arrived(_))
    }

    /// It brought this.
    pub(super) fn complete(&self, reply: Box<ReaddirResult>) {
        let mut outcome = self.outcome.lock();
        if matches!(*outcome, ReaddirOutcome::UnderWay) {
            *outcome = ReaddirOutcome::Arrived(reply);
        }
        drop(outcome);
        self.changed.notify_all();
    }

    /// It is over: who waits looks at the sequence again.
    pub(super) fn end(&self) {
        let former = std::mem::replace(&mut *self.outcome.lock(), ReaddirOutcome::Over);
        self.changed.notify_all();
        drop(former);
    }

    /// Nobody wants it any more; true if it was under way or had brought something.
    pub(super) fn cancel(&self) -> bool {
        self.interrupt.raise();
        let former = std::mem::replace(&mut *self.outcome.lock(), ReaddirOutcome::Over);
        self.changed.notify_all();
        !matches!(former, ReaddirOutcome::Over)
    }

    /// Waits for what it brings. `Ok(None)`: another reader took it, or nothing came; `Err`:
    /// `interrupt` was raised.
    pub(super) fn wait(
        self: &Arc<Self>,
        interrupt: &Interrupt,
    ) -> Result<Option<Box<ReaddirResult>>, ReaddirInterrupted> {
        let waker: Arc<dyn Wake> = Arc::clone(self) as Arc<dyn Wake>;
        let _registration = interrupt.register(waker);
        let mut outcome = self.outcome.lock();
        loop {
            match std::mem::replace(&mut *outcome, ReaddirOutcome::UnderWay) {
                // Others wait on, until what was brought is in the sequence.
                ReaddirOutcome::Arrived(reply) => return Ok(Some(reply)),
                ReaddirOutcome::Over => {
                    *outcome = ReaddirOutcome::Over;
                    return Ok(None);
                }
                ReaddirOutcome::UnderWay => {}
            }
            if interrupt.is_raised() {
                return Err(ReaddirInterrupted);
            }
            self.changed.wait(&mut outcome);
        }
    }
}

/// The wait was called off.
#[derive(Debug)]
pub(super) struct ReaddirInterrupted;

impl Wake for ReaddirInFlight {
    fn wake(&self) {
        // Whoever waits has either seen the raised flag or is inside `take` by the time this lock
        // is had.
        drop(self.outcome.lock());
        self.changed.notify_all();
    }
}
