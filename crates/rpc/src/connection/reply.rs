//! The results of a reply, in a buffer that returns to its pool.

use std::{fmt, sync::Arc};

use crate::record::buffer_pool::BufferPool;

/// The results of a successful call. Its buffer is reused when it is dropped.
pub struct CallReply {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    pool: Option<Arc<BufferPool>>,
    consumed: bool,
}

impl CallReply {
    /// A reply that was not received through a socket.
    #[must_use]
    pub const fn from_results(results: Vec<u8>) -> Self {
        let end = results.len();
        Self { bytes: results, start: 0, end, pool: None, consumed: false }
    }

    /// A reply whose results a sink has consumed.
    #[must_use]
    pub const fn consumed() -> Self {
        Self { bytes: Vec::new(), start: 0, end: 0, pool: None, consumed: true }
    }

    /// Whether a [`ReplySink`](super::ReplySink) has consumed the results.
    #[must_use]
    pub const fn was_consumed(&self) -> bool {
        self.consumed
    }

    /// The results are `bytes[start..end]`; the buffer returns to `home`.
    pub(crate) const fn pooled(bytes: Vec<u8>, start: usize, end: usize, home: Arc<BufferPool>) -> Self {
        Self { bytes, start, end, pool: Some(home), consumed: false }
    }

    /// The procedure's results, undecoded.
    #[must_use]
    pub fn results(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        if let Some(home) = self.pool.take() {
            home.put(std::mem::take(&mut self.bytes));
        }
    }
}

impl fmt::Debug for CallReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallReply").field("length", &self.results().len()).finish()
    }
}
