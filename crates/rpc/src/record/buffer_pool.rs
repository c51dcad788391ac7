//! Buffers that are used again, and the bytes received into them.
//!
//! Invariant: a buffer's `Vec` is initialised to its full length.

use parking_lot::Mutex;

/// The size of a fresh receive buffer, in bytes.
pub(crate) const BUFFER_MIN: usize = 16 << 10;

/// Keeps buffers for the next use, up to a number of bytes.
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
        Self {
            state: Mutex::default(),
            bytes_max,
        }
    }

    /// A buffer of at least [`BUFFER_MIN`] initialised bytes; what they are is left from earlier
    /// uses.
    pub(crate) fn take(&self) -> Vec<u8> {
        let mut kept = self.state.lock();
        if let Some(buffer) = kept.buffers.pop() {
            kept.bytes -= buffer.len();
            return buffer;
        }
        drop(kept);
        vec![0; BUFFER_MIN]
    }

    /// Takes a buffer back, or frees it if enough are kept.
    pub(crate) fn put(&self, buffer: Vec<u8>) {
        if buffer.len() < BUFFER_MIN {
            return;
        }
        let mut kept = self.state.lock();
        if kept.bytes + buffer.len() <= self.bytes_max {
            kept.bytes += buffer.len();
            kept.buffers.push(buffer);
        }
    }
}
