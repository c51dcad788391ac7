//! Replies that are used where they were received, by the thread that reads the connection.
//!
//! Large data are expensive to hand on: another thread has to be woken for them, and finds them in memory that its processor
//! does not have at hand, while the next reply needs another buffer. A [`Taker`] is therefore given the results in the buffer
//! of the connection, which is the same one for reply after reply.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Takes the results of one call. It is called on the thread of another caller, which reads the connection for all meanwhile:
/// it must not wait for anything but locks that nobody holds while a request is under way.
pub trait Taker: Send + Sync {
    /// Looks at the results and does with them what the caller would. `false`: the caller is to have them after all. Called at
    /// most once for each reply, with no lock held; the caller may have been interrupted meanwhile.
    fn take(&self, results: &[u8]) -> bool;
}

/// Has `taker` look at results. One that panics has not taken them.
pub(super) fn is_taken(taker: &dyn Taker, results: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| taker.take(results))).unwrap_or_else(|_| {
        tracing::error!("what was to take a reply panicked");
        false
    })
}
