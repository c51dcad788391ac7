//! Counts work in progress on all threads, so that a thread can wait until none is left.
//!
//! Work carries a mark ([`WorkMark`], [`crate::scope`]), and each mark has a count. Unmarked work
//! costs nothing.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Number of marks with their own counts. If there are more at a time, marks share counts, and a
/// wait may include other work.
const MARKS: usize = 64;

/// A label of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkMark(u32);

/// The work with one mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCounts {
    /// In progress now.
    pub now: u64,
    /// Begun so far.
    pub begun: u64,
}

struct WorkCounters {
    now: AtomicU64,
    begun: AtomicU64,
}

static NEXT: AtomicU32 = AtomicU32::new(1);
static COUNTS: [WorkCounters; MARKS] =
    [const { WorkCounters { now: AtomicU64::new(0), begun: AtomicU64::new(0) } }; MARKS];

impl WorkMark {
    /// No mark.
    pub const NONE: Self = Self(0);

    /// A mark that differs from the last.
    #[must_use]
    pub fn another() -> Self {
        // Relaxed: it orders no other memory. 0 recurs only after 2^32 marks.
        Self(NEXT.fetch_add(1, Ordering::Relaxed).max(1))
    }

    /// The work in progress with it.
    #[must_use]
    pub fn counts(self) -> WorkCounts {
        self.count().map_or(WorkCounts { now: 0, begun: 0 }, |count| {
            // Acquire: a thread that sees the end of work sees all its effects (Release in its
            // drop).
            let now = count.now.load(Ordering::Acquire);
            WorkCounts { now, begun: count.begun.load(Ordering::Acquire) }
        })
    }

    fn count(self) -> Option<&'static WorkCounters> {
        (self != Self::NONE).then(|| &COUNTS[self.0 as usize % MARKS])
    }
}

/// Work that is in progress until this is dropped.
#[derive(Debug)]
pub(crate) struct WorkInProgress(WorkMark);

impl WorkInProgress {
    pub(crate) fn begin(mark: WorkMark) -> Self {
        if let Some(count) = mark.count() {
            count.begun.fetch_add(1, Ordering::AcqRel);
            count.now.fetch_add(1, Ordering::AcqRel);
        }
        Self(mark)
    }
}

impl Drop for WorkInProgress {
    fn drop(&mut self) {
        if let Some(count) = self.0.count() {
            count.now.fetch_sub(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::{self, RequestScope};

    #[test]
    fn what_is_handed_on_is_under_way_until_it_is_done_or_dropped() {
        let mark = WorkMark::another();
        let marked = RequestScope { mark, ..RequestScope::default() };
        let (done, dropped, later) = {
            let _entered = scope::enter(marked);
            assert_eq!(mark.counts(), WorkCounts { now: 1, begun: 1 });
            (
                scope::carried(Box::new(|| ())),
                scope::carried(Box::new(|| ())),
                scope::carried_later(Box::new(|| ())),
            )
        };
        assert_eq!(mark.counts().now, 2, "and what is done later is not waited for");
        let running = std::thread::spawn(move || {
            done();
            scope::current()
        });
        assert_eq!(running.join().expect("it does not panic"), RequestScope::default());
        assert_eq!(mark.counts().now, 1);
        drop(dropped);
        assert_eq!(mark.counts().now, 0);
        later();
        assert_eq!(mark.counts().now, 0);
        assert_eq!(WorkMark::NONE.counts(), WorkCounts { now: 0, begun: 0 });
    }
}
