//! The scope of a thread: the process for which it works and the cause of the requests that it
//! sends. Requests are attributed to it.
//!
//! Each thread has one value. Code that receives a program's operation enters it ([`operation`]).
//! Code that sends a request sets the cause if the operation alone does not determine it
//! ([`with_cause`]). Work that is passed to another thread carries the value ([`carried`]). These
//! are only labels: no decision depends on them. A thread can wait until no work with a given label
//! is in progress ([`crate::in_progress`]).

use std::cell::Cell;

use curt_proto::Operation;

use crate::causes::Cause;
use crate::in_progress::{WorkInProgress, WorkMark};

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
pub fn carried(task: Box<dyn FnOnce() + Send + 'static>) -> Box<dyn FnOnce() + Send + 'static> {
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

/// The same for a task that runs after a delay. A wait for the end of work does not include it.
#[must_use]
pub fn carried_later(task: Box<dyn FnOnce() + Send + 'static>) -> Box<dyn FnOnce() + Send + 'static> {
    let _unmarked = enter(RequestScope { mark: WorkMark::NONE, ..current() });
    carried(task)
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
            carried(Box::new(move || told.send(current()).expect("it is waited for")))
        };
        std::thread::spawn(task).join().expect("the task does not panic");
        let scope = heard.recv().expect("it has told");
        assert_eq!((scope.process, scope.object, scope.cause), (7, 9, None));
    }
}
