//! Who looks on while operations are performed.

use super::{Asker, Operation, Outcome};

/// Who looks on. Called on the thread that performs the operation, which waits meanwhile.
pub trait Observer: Send + Sync + 'static {
    /// What it knows of an operation that is under way.
    type Seen;

    /// An operation begins.
    fn begins(&self, asker: &Asker, operation: &Operation<'_>) -> Self::Seen;

    /// It has ended so. (The kernel may have the data of a READ already.)
    fn ended(&self, asker: &Asker, operation: &Operation<'_>, outcome: &Outcome<'_>, seen: Self::Seen);

    /// Whether what is answered may be promised to the kernel for no time, so that it asks again.
    fn withholds_promises(_: &Self::Seen) -> bool {
        false
    }
}

/// Both look on; the first sees an operation begin first and end last.
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
