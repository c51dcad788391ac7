//! Observers of operations.

use super::{FuseCaller, FuseOperation, FuseOperationResult};

/// An observer of operations. Called on the thread that performs the operation, which waits
/// meanwhile.
pub trait OperationObserver: Send + Sync + 'static {
    /// What it knows of an operation in progress.
    type Seen;

    /// An operation begins.
    fn begins(&self, asker: &FuseCaller, operation: &FuseOperation<'_>) -> Self::Seen;

    /// It has ended with this outcome. (The kernel may have the data of a READ already.)
    fn ended(
        &self,
        asker: &FuseCaller,
        operation: &FuseOperation<'_>,
        outcome: &FuseOperationResult<'_>,
        seen: Self::Seen,
    );

    /// Whether answers must not carry lifetimes, so that the kernel asks again each time.
    fn withholds_lifetimes(_: &Self::Seen) -> bool {
        false
    }
}

/// Both observe; the first sees an operation begin first and end last.
impl<A: OperationObserver, B: OperationObserver> OperationObserver for (A, B) {
    type Seen = (A::Seen, B::Seen);

    fn begins(&self, asker: &FuseCaller, operation: &FuseOperation<'_>) -> Self::Seen {
        let first = self.0.begins(asker, operation);
        (first, self.1.begins(asker, operation))
    }

    fn ended(
        &self,
        asker: &FuseCaller,
        operation: &FuseOperation<'_>,
        outcome: &FuseOperationResult<'_>,
        seen: Self::Seen,
    ) {
        self.1.ended(asker, operation, outcome, seen.1);
        self.0.ended(asker, operation, outcome, seen.0);
    }

    fn withholds_lifetimes(seen: &Self::Seen) -> bool {
        A::withholds_lifetimes(&seen.0) || B::withholds_lifetimes(&seen.1)
    }
}
