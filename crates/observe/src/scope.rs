//! On whose behalf this thread works, and why it sends a request: what the request is attributed
//! to.
//!
//! Owns one value per thread. Code that receives a program's operation enters it ([`operation`]);
//! code that sends a request whose procedure alone does not show the reason gives it
//! ([`with_cause`]); work that is passed to another thread takes the value along ([`carried`]).
//! These are only labels: no decision depends on them. One can wait until nothing with a given
//! label is in progress any more ([`crate::in_progress`]).

use std::cell::Cell;

use curt_proto::Operation;

use crate::causes::Cause;
use crate::in_progress::{WorkInProgress, WorkMark};

/// Who, about what, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestScope {
    /// The program's thread, by the kernel's number; 0: none.
    pub process: u32,
    /// The client's number of the inode that the operation is about (of a name: its directory's);
    /// 0: none.
    pub object: u64,
    /// A watcher's own number for the operation's path; 0: none.
    pub path: u32,
    /// Why a request is sent; `None`: its procedure tells.
    pub cause: Option<Cause>,
    /// The mark of work whose end can be awaited.
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
    /// Not `Send`: what one thread entered, another cannot leave.
    not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// What is in force on this thread.
#[must_use]
pub fn current() -> RequestScope {
    CURRENT.get()
}

/// The cause of a request that this thread sends now: calls of programs whose operations are not
/// known are part of mounting.
#[must_use]
pub fn cause(operation: Option<Operation>) -> Cause {
    let usual = || operation.map_or(Cause::Mount, Cause::of_operation);
    current().cause.unwrap_or_else(usual)
}

/// From now on this is the thread's scope.
pub fn enter(scope: RequestScope) -> ScopeGuard {
    ScopeGuard {
        before: CURRENT.replace(scope),
        _work: WorkInProgress::begin(scope.mark),
        not_send: std::marker::PhantomData,
    }
}

/// From now on this thread works for `process` on `object`.
pub fn operation(process: u32, object: u64) -> ScopeGuard {
    enter(RequestScope { process, object, ..RequestScope::default() })
}

/// Requests from now on have this cause.
pub fn with_cause(cause: Cause) -> ScopeGuard {
    enter(RequestScope { cause: Some(cause), ..current() })
}

/// Requests from now on have this cause, unless they have another already.
pub fn with_default_cause(cause: Cause) -> ScopeGuard {
    let now = current();
    enter(RequestScope { cause: now.cause.or(Some(cause)), ..now })
}

/// Requests from now on are about `object`.
pub fn for_object(object: u64) -> ScopeGuard {
    let now = current();
    let path = if now.object == object { now.path } else { 0 };
    enter(RequestScope { object, path, ..now })
}

/// A task that works on behalf of its creator's scope, on whatever thread it runs; it gives its
/// causes itself. It is in progress from now on.
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

/// The same for a task that runs after a delay. Nobody waits for its end.
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
