//! The scope of a thread: the process for which it works and the cause of the requests that it
//! sends. Requests are attributed to it.
//!
//! Each thread has one value. Code that receives a program's operation enters it ([`operation`]).
//! Code that sends a request sets the cause if the operation alone does not determine it
//! ([`with_cause`]). Work that is passed to another thread carries the value
//! ([`in_current_scope`]). These are only labels: no decision depends on them.
//!
//! Work may carry a mark ([`WorkMark`]). The work in progress with each mark is counted, so that a
//! thread can wait until none is left. Unmarked work costs nothing.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use curt_proto::Operation;

use crate::causes::Cause;

/// The process, object and cause of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestScope {
    /// The program's thread id; 0: none.
    pub process: u32,
    /// The client's number of the operation's inode (for a name: its directory's); 0: none.
    pub object: u64,
    /// A watcher's own number for the operation's path; 0: none.
    pub path: u32,
    /// The cause of a request; `None`: its operation determines it.
    pub cause: Option<Cause>,
    /// The mark of work whose end can be waited for.
    pub mark: WorkMark,
}

thread_local! {
    static CURRENT: Cell<RequestScope> = const { Cell::new(RequestScope { process: 0, object: 0, path: 0, cause: None, mark: WorkMark::NONE }) };
}

/// Restores the previous scope when dropped.
#[derive(Debug)]
#[must_use = "it holds until it is dropped"]
pub struct ScopeGuard {
    before: RequestScope,
    _work: WorkInProgress,
    /// Not `Send`: a scope is left on the thread that entered it.
    not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// The current scope of this thread.
#[must_use]
pub fn current() -> RequestScope {
    CURRENT.get()
}

/// The cause of a request that this thread sends now. Calls of programs without a table of
/// operations are part of mounting.
#[must_use]
pub fn cause(operation: Option<Operation>) -> Cause {
    let usual = || operation.map_or(Cause::Mount, Cause::of_operation);
    current().cause.unwrap_or_else(usual)
}

/// Enters a scope on this thread.
pub fn enter(scope: RequestScope) -> ScopeGuard {
    ScopeGuard {
        before: CURRENT.replace(scope),
        _work: WorkInProgress::begin(scope.mark),
        not_send: std::marker::PhantomData,
    }
}

/// Enters the operation of `process` on `object` on this thread.
pub fn operation(process: u32, object: u64) -> ScopeGuard {
    enter(RequestScope { process, object, ..RequestScope::default() })
}

/// Sets the cause of later requests.
pub fn with_cause(cause: Cause) -> ScopeGuard {
    enter(RequestScope { cause: Some(cause), ..current() })
}

/// Sets the cause of later requests, unless one is set already.
pub fn with_default_cause(cause: Cause) -> ScopeGuard {
    let now = current();
    enter(RequestScope { cause: now.cause.or(Some(cause)), ..now })
}

/// Sets the object of later requests.
pub fn for_object(object: u64) -> ScopeGuard {
    let now = current();
    let path = if now.object == object { now.path } else { 0 };
    enter(RequestScope { object, path, ..now })
}

/// Wraps a task so that it runs in its creator's process, object and mark on any thread; it sets
/// its causes itself. It is in progress from now on.
#[must_use]
pub fn in_current_scope(task: Box<dyn FnOnce() + Send + 'static>) -> Box<dyn FnOnce() + Send + 'static> {
    let scope = RequestScope { cause: None, ..current() };
    if scope == RequestScope::default() {
        return task;
    }
    let work = WorkInProgress::begin(scope.mark);
    Box::new(move || {
        let _entered = enter(scope);
        task();
        drop(work);
    })
}

/// As [`in_current_scope`], for a task that runs after a delay. A wait for the end of work does not
/// include it.
#[must_use]
pub fn in_current_scope_delayed(
    task: Box<dyn FnOnce() + Send + 'static>,
) -> Box<dyn FnOnce() + Send + 'static> {
    let _unmarked = enter(RequestScope { mark: WorkMark::NONE, ..current() });
    in_current_scope(task)
}

/// Number of marks with their own counts. If there are more at a time, marks share counts, and a
/// wait may include other work.
const MARKS: usize = 64;

/// Labels the work of a thread, so that a caller can wait for all work with one label.
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
struct WorkInProgress(WorkMark);

impl WorkInProgress {
    fn begin(mark: WorkMark) -> Self {
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

    #[test]
    fn what_was_before_is_back_afterwards() {
        let before = current();
        {
            let _operation = operation(7, 9);
            {
                let _why = with_cause(Cause::OpenCheck);
                assert_eq!(current().cause, Some(Cause::OpenCheck));
                assert_eq!((current().process, current().object), (7, 9));
                let _other = for_object(10);
                assert_eq!((current().object, current().cause), (10, Some(Cause::OpenCheck)));
            }
            assert_eq!(current().cause, None);
        }
        assert_eq!(current(), before);
    }

    #[test]
    fn a_carried_task_works_for_its_maker_but_not_for_its_reason() {
        let (told, heard) = std::sync::mpsc::channel();
        let task = {
            let _operation = operation(7, 9);
            let _why = with_cause(Cause::OpenCheck);
            in_current_scope(Box::new(move || told.send(current()).expect("it is waited for")))
        };
        std::thread::spawn(task).join().expect("the task does not panic");
        let scope = heard.recv().expect("it has told");
        assert_eq!((scope.process, scope.object, scope.cause), (7, 9, None));
    }

    #[test]
    fn what_is_handed_on_is_under_way_until_it_is_done_or_dropped() {
        let mark = WorkMark::another();
        let marked = RequestScope { mark, ..RequestScope::default() };
        let (done, dropped, later) = {
            let _entered = enter(marked);
            assert_eq!(mark.counts(), WorkCounts { now: 1, begun: 1 });
            (
                in_current_scope(Box::new(|| ())),
                in_current_scope(Box::new(|| ())),
                in_current_scope_delayed(Box::new(|| ())),
            )
        };
        assert_eq!(mark.counts().now, 2, "and what is done later is not waited for");
        let running = std::thread::spawn(move || {
            done();
            current()
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
