//! A pool of buffers, and their received bytes.
//!
//! Invariant: a buffer's `Vec` is initialised to its full length.

use parking_lot::Mutex;

/// The size of a new receive buffer in bytes.
pub(crate) const BUFFER_MIN: usize = 16 << 10;

/// Caches buffers for reuse, up to a number of bytes.
#[derive(Debug)]
pub(crate) struct BufferPool {
    state: Mutex<BufferPoolState>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct BufferPoolState {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl BufferPool {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { state: Mutex::default(), bytes_max }
    }

    /// A buffer of at least [`BUFFER_MIN`] initialised bytes, with arbitrary contents.
    pub(crate) fn take(&self) -> Vec<u8> {
        let mut state = self.state.lock();
        if let Some(buffer) = state.buffers.pop() {
            state.bytes -= buffer.len();
            return buffer;
        }
        drop(state);
        vec![0; BUFFER_MIN]
    }

    /// Takes a buffer back, or frees it if the pool is full.
    pub(crate) fn put(&self, buffer: Vec<u8>) {
        if buffer.len() < BUFFER_MIN {
            return;
        }
        let mut state = self.state.lock();
        if state.bytes + buffer.len() <= self.bytes_max {
            state.bytes += buffer.len();
            state.buffers.push(buffer);
        }
    }
}
