//! Replies that the thread that reads the connection processes in the receive buffer.
//!
//! Passing large data to another thread is expensive: that thread has to be woken, the data are not
//! in its processor's cache, and the next reply needs another buffer. So a [`ReplySink`] gets the
//! results in the buffer of the connection, which is the same for each reply.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Consumes the results of one call. It is called on the thread of another caller, which reads the
/// connection for all: it may wait for locks that are not held during requests, and for nothing
/// else.
pub trait ReplySink: Send + Sync {
    /// Processes the results as the caller would. Returns `false` to leave them to the caller.
    /// Called at most once per reply, with no lock held; the caller may have been interrupted
    /// meanwhile.
    fn consume(&self, results: &[u8]) -> bool;
}

/// Offers results to `sink`, and returns whether it consumed them (`false` if it panics).
pub(crate) fn offer(sink: &dyn ReplySink, results: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| sink.consume(results))).unwrap_or_else(|_| {
        tracing::error!("the reply sink panicked");
        false
    })
}
