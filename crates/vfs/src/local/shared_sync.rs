//! Shared syncs of a whole file system.
//!
//! Symbolic links, FIFOs, sockets and devices have no descriptor for fsync(2), so a change of their
//! attributes is made durable by syncfs(2), which also writes all other unwritten data. A sync of
//! the directory is not sufficient: ext4 and XFS then write the log only up to the last change of
//! the directory itself.
//!
//! Invariants: at most one sync is in progress; a request is served by a sync that began after it,
//! so at the latest by the second one, and fails with that sync even if a later one succeeds.

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::error::Error;

/// The syncs of one file system.
#[derive(Default)]
pub(super) struct SharedSync {
    rounds: Mutex<SyncRounds>,
    ended: Condvar,
}

/// Syncs are numbered from 1.
#[derive(Default)]
struct SyncRounds {
    begun: u64,
    ended: u64,
    /// The number and error of the last failed sync.
    failed: Option<(u64, Error)>,
}

/// The number of the first sync that covers earlier changes.
#[derive(Clone, Copy)]
#[must_use]
pub(super) struct SyncTicket(u64);

impl SharedSync {
    /// To be called after the change that is to be made durable.
    pub(super) fn ticket(&self) -> SyncTicket {
        // The sync in progress may have missed the change.
        SyncTicket(self.rounds.lock().begun + 1)
    }

    /// Returns once a sync with the ticket's number or a later one has ended; `sync` is called if
    /// this thread has to do it, without any lock held.
    pub(super) fn wait(
        &self,
        ticket: SyncTicket,
        sync: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut rounds = self.rounds.lock();
        while rounds.ended < ticket.0 {
            if rounds.begun > rounds.ended {
                self.ended.wait(&mut rounds);
                continue;
            }
            rounds.begun += 1;
            drop(rounds);
            let mut round = SyncRound { of: self, outcome: Err(Error::from(Errno::IO)) };
            round.outcome = sync();
            return round.outcome;
        }
        match rounds.failed {
            Some((round, error)) if round >= ticket.0 => Err(error),
            Some(_) | None => Ok(()),
        }
    }
}

/// The sync in progress. Dropping it ends it, as a failure if it did not complete.
struct SyncRound<'a> {
    of: &'a SharedSync,
    outcome: Result<(), Error>,
}

impl Drop for SyncRound<'_> {
    fn drop(&mut self) {
        let mut rounds = self.of.rounds.lock();
        rounds.ended = rounds.begun;
        if let Err(error) = self.outcome {
            rounds.failed = Some((rounds.ended, error));
        }
        drop(rounds);
        self.of.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    const LATE: usize = 5;

    #[test]
    fn those_who_come_while_a_sync_is_under_way_share_the_next_one() {
        let (shared, count) = (&SharedSync::default(), &AtomicUsize::new(0));
        let (begun, begins) = channel();
        let (go_on, goes_on) = channel::<()>();
        thread::scope(|scope| {
            let first = scope.spawn(move || {
                shared.wait(shared.ticket(), || {
                    count.fetch_add(1, SeqCst);
                    let _ = begun.send(());
                    let _ = goes_on.recv();
                    Ok(())
                })
            });
            assert_eq!(begins.recv(), Ok(()));
            // Their changes are later than the start of the first sync.
            let tickets = [(); LATE].map(|()| shared.ticket());
            let late = tickets.map(|ticket| {
                let sync = || {
                    assert_eq!(count.fetch_add(1, SeqCst), 1, "one at a time, and not the first again");
                    Ok(())
                };
                scope.spawn(move || shared.wait(ticket, sync))
            });
            assert!(late.iter().all(|thread| !thread.is_finished()));
            drop(go_on);
            for thread in late.into_iter().chain([first]) {
                assert!(matches!(thread.join(), Ok(Ok(()))));
            }
        });
        assert_eq!(count.load(SeqCst), 2);
    }

    #[test]
    fn a_failure_is_reported_to_all_affected_callers_and_to_no_others() {
        let shared = SharedSync::default();
        let before = [shared.ticket(), shared.ticket()];
        let failed = Err(Error::Lost(Errno::IO));
        assert_eq!(shared.wait(before[0], || failed), failed);
        assert_eq!(shared.wait(shared.ticket(), || Ok(())), Ok(()));
        let never = || unreachable!("there was one already");
        assert_eq!(shared.wait(before[1], never), failed, "a later one went well");
    }

    #[test]
    fn a_sync_that_panics_has_failed_and_is_over() {
        let shared = SharedSync::default();
        let tickets = [shared.ticket(), shared.ticket()];
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            shared.wait(tickets[0], || panic!("as the test wants it"))
        }));
        assert!(ended.is_err());
        assert!(shared.wait(tickets[1], || Ok(())).is_err());
        assert_eq!(shared.wait(shared.ticket(), || Ok(())), Ok(()));
    }
}
