//! Observers of operations.

use super::{Asker, Operation, Outcome};

/// An observer of operations. Called on the thread that performs the operation, which waits meanwhile.
pub trait Observer: Send + Sync + 'static {
    /// What it knows of an operation in progress.
    type Seen;

    /// An operation begins.
    fn begins(&self, asker: &Asker, operation: &Operation<'_>) -> Self::Seen;

    /// It has ended with this outcome. (The kernel may have the data of a READ already.)
    fn ended(&self, asker: &Asker, operation: &Operation<'_>, outcome: &Outcome<'_>, seen: Self::Seen);

    /// Whether answers must not carry lifetimes, so that the kernel asks again each time.
    fn withholds_promises(_: &Self::Seen) -> bool {
        false
    }
}

/// Both observe; the first sees an operation begin first and end last.
impl<A: Observer, B: Observer> Observer for (A, B) {
    type Seen = (A::Seen, B::Seen);

    fn begins(&self, asker: &Asker, operation: &Operation<'_>) -> Self::Seen {
        let first = self.0.begins(asker, operation);
        (first, self.1.begins(asker, operation))
    }

    fn ended(&self, asker: &Asker, operation: &Operation<'_>, outcome: &Outcome<'_>, seen: Self::Seen) {
        self.1.ended(asker, operation, outcome, seen.1);
        self.0.ended(asker, operation, outcome, seen.0);
    }

    fn withholds_promises(seen: &Self::Seen) -> bool {
        A::withholds_promises(&seen.0) || B::withholds_promises(&seen.1)
    }
}
