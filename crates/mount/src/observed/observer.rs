//! Observers of operations.

use super::{FuseCaller, FuseOperation, FuseOperationResult};

/// An observer of operations. Called on the thread of the operation.
pub trait OperationObserver: Send + Sync + 'static {
    /// The observer's state of an operation in progress.
    type Seen;

    /// An operation begins.
    fn begins(&self, caller: &FuseCaller, operation: &FuseOperation<'_>) -> Self::Seen;

    /// The operation has ended with this outcome. (The kernel may have the data of a READ already.)
    fn ended(
        &self,
        caller: &FuseCaller,
        operation: &FuseOperation<'_>,
        outcome: &FuseOperationResult<'_>,
        seen: Self::Seen,
    );

    /// Whether replies must have timeouts of zero, so that the kernel sends each request.
    fn withholds_lifetimes(_: &Self::Seen) -> bool {
        false
    }
}

/// Both observe; the first sees an operation begin first and end last.
impl<A: OperationObserver, B: OperationObserver> OperationObserver for (A, B) {
    type Seen = (A::Seen, B::Seen);

    fn begins(&self, caller: &FuseCaller, operation: &FuseOperation<'_>) -> Self::Seen {
        let first = self.0.begins(caller, operation);
        (first, self.1.begins(caller, operation))
    }

    fn ended(
        &self,
        caller: &FuseCaller,
        operation: &FuseOperation<'_>,
        outcome: &FuseOperationResult<'_>,
        seen: Self::Seen,
    ) {
        self.1.ended(caller, operation, outcome, seen.1);
        self.0.ended(caller, operation, outcome, seen.0);
    }

    fn withholds_lifetimes(seen: &Self::Seen) -> bool {
        A::withholds_lifetimes(&seen.0) || B::withholds_lifetimes(&seen.1)
    }
}
