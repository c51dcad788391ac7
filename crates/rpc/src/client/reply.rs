//! A reply's results, in a buffer that goes back to where it came from.

use std::{fmt, sync::Arc};

use crate::buffer::Pool;

/// The results of a call that succeeded. Owned; its buffer is used again when it is dropped.
pub struct Reply {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    home: Option<Arc<Pool>>,
    taken: bool,
}

impl Reply {
    /// A reply that did not come through a socket.
    #[must_use]
    pub const fn from_results(results: Vec<u8>) -> Self {
        let end = results.len();
        Self {
            bytes: results,
            start: 0,
            end,
            home: None,
            taken: false,
        }
    }

    /// A reply whose results were used where they were received.
    #[must_use]
    pub const fn taken() -> Self {
        Self {
            bytes: Vec::new(),
            start: 0,
            end: 0,
            home: None,
            taken: true,
        }
    }

    /// Whether a [`Taker`](super::Taker) has used the results: they are not here.
    #[must_use]
    pub const fn was_taken(&self) -> bool {
        self.taken
    }

    /// The results are `bytes[start..end]`; the whole buffer goes back to `home`.
    pub(crate) const fn pooled(bytes: Vec<u8>, start: usize, end: usize, home: Arc<Pool>) -> Self {
        Self {
            bytes,
            start,
            end,
            home: Some(home),
            taken: false,
        }
    }

    /// The procedure's results, undecoded.
    #[must_use]
    pub fn results(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.put(std::mem::take(&mut self.bytes));
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("length", &self.results().len())
            .finish()
    }
}
