//! Replies that are processed in the receive buffer, by the thread that reads the connection.
//!
//! Passing large data to another thread is expensive: that thread has to be woken, the data are not
//! in its processor's cache, and the next reply needs another buffer. A [`ReplySink`] is therefore
//! given the results in the buffer of the connection, which is the same for each reply.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Takes the results of one call. It is called on the thread of another caller, which is reading
/// the connection for all: it may wait for locks that nobody holds during a request, and for
/// nothing else.
pub trait ReplySink: Send + Sync {
    /// Processes the results as the caller would. Returns `false` to leave them to the caller after
    /// all. Called at most once for each reply, with no lock held; the caller may have been
    /// interrupted meanwhile.
    fn consume(&self, results: &[u8]) -> bool;
}

/// Offers results to `taker`, and returns whether it took them. A taker that panics has not.
pub(crate) fn offer(taker: &dyn ReplySink, results: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| taker.consume(results))).unwrap_or_else(|_| {
        tracing::error!("the reply sink panicked");
        false
    })
}
