//! Reused memory for written bytes.
//!
//! Owns the memory that no file holds at the moment. A stream of writes allocates and frees
//! megabytes all the time. Memory fresh from the kernel costs a page fault for every 4 KiB, which
//! is more than the copy into it (`docs/decisions/written-blocks.md`). Invariants: the pool caches
//! at most `free_max` free blocks. After [`BlockPool::release`] it caches none until the next block
//! is allocated. Must not know files.

use std::{fmt, mem, ops::Deref, sync::Arc};

use parking_lot::Mutex;

use super::shared_bytes::SharedBytes;

/// Content larger than this fraction of a block gets a whole block. Smaller content is allocated at
/// its own size.
const SMALL_FRACTION: usize = 16;

/// Blocks of one mount.
pub(super) struct BlockPool {
    size: usize,
    free_max: usize,
    free: Mutex<FreeBlocks>,
}

#[derive(Default)]
struct FreeBlocks {
    free: Vec<Vec<u8>>,
    /// A block was allocated since the last release.
    keeps: bool,
}

impl BlockPool {
    /// Blocks of `size` bytes. The pool caches free blocks of at most `bytes_max` bytes in total.
    pub(super) fn new(size: usize, bytes_max: u64) -> Self {
        Self {
            size,
            free_max: usize::try_from(bytes_max).unwrap_or(usize::MAX) / size.max(1),
            free: Mutex::default(),
        }
    }

    /// The size of a block in bytes. No segment of written bytes crosses a multiple of it.
    pub(super) fn size(&self) -> u64 {
        self.size as u64
    }

    /// A copy of `bytes`.
    pub(super) fn copy_of(self: &Arc<Self>, bytes: &[u8]) -> Block {
        let mut block = Block { bytes: Vec::new(), pool: Arc::clone(self) };
        block.extend(bytes);
        block
    }

    /// Frees the cached blocks. The pool caches no block until the next one is allocated.
    pub(super) fn release(&self) {
        let mut pool = self.free.lock();
        pool.keeps = false;
        let free = mem::take(&mut pool.free);
        drop(pool);
        drop(free);
    }

    fn take(&self) -> Vec<u8> {
        let mut pool = self.free.lock();
        pool.keeps = true;
        let free = pool.free.pop();
        drop(pool);
        free.unwrap_or_else(|| Vec::with_capacity(self.size))
    }

    fn put(&self, mut bytes: Vec<u8>) {
        bytes.clear();
        let mut pool = self.free.lock();
        if pool.keeps && pool.free.len() < self.free_max {
            pool.free.push(bytes);
        } else {
            drop(pool);
            // Outside the lock: returning pages to the kernel takes time.
            drop(bytes);
        }
    }
}

impl fmt::Debug for BlockPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockPool").field("size", &self.size).finish_non_exhaustive()
    }
}

/// Written bytes, at most one block. Their memory returns to its [`BlockPool`] on drop.
#[derive(Debug)]
pub(super) struct Block {
    bytes: Vec<u8>,
    pool: Arc<BlockPool>,
}

impl Block {
    /// Writes `bytes` at `from`, which is at most the current length.
    pub(super) fn write(&mut self, from: usize, bytes: &[u8]) {
        let (inside, behind) = bytes.split_at(bytes.len().min(self.bytes.len() - from));
        self.bytes[from..from + inside.len()].copy_from_slice(inside);
        self.extend(behind);
    }

    /// Appends `bytes`.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        let length = self.bytes.len() + bytes.len();
        if length > self.bytes.capacity() && length > self.pool.size / SMALL_FRACTION {
            let mut block = self.pool.take();
            block.extend_from_slice(&self.bytes);
            self.bytes = block;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The part from `start` to `end`.
    pub(super) fn part(&self, start: usize, end: usize) -> Self {
        self.pool.copy_of(&self.bytes[start..end])
    }

    /// Shares the bytes. The memory they hold is at most twice their length.
    pub(super) fn share(self) -> SharedBytes {
        if self.bytes.len() < self.bytes.capacity() / 2 {
            SharedBytes::new(self.bytes.to_vec())
        } else {
            SharedBytes::new(self)
        }
    }

    /// Takes the bytes and leaves the block empty.
    pub(super) fn take(&mut self) -> Self {
        Self { bytes: mem::take(&mut self.bytes), pool: Arc::clone(&self.pool) }
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.bytes.capacity() >= self.pool.size {
            self.pool.put(mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 64;

    fn free_blocks(blocks: &BlockPool) -> usize {
        blocks.free.lock().free.len()
    }

    #[test]
    fn memory_is_used_again_up_to_the_bound() {
        let blocks = Arc::new(BlockPool::new(SIZE, 2 * SIZE as u64));
        let three = [1, 2, 3].map(|value| blocks.copy_of(&[value; SIZE]));
        let first = three[0].as_ptr();
        drop(three);
        assert_eq!(free_blocks(&blocks), 2);
        let (second, again) = (blocks.copy_of(&[4; SIZE]), blocks.copy_of(&[5; SIZE]));
        assert_eq!((again.as_ptr(), free_blocks(&blocks)), (first, 0));
        let shared = again.share();
        drop(second);
        assert_eq!(free_blocks(&blocks), 1);
        drop(shared);
        assert_eq!(free_blocks(&blocks), 2);
    }

    #[test]
    fn a_released_pool_caches_no_blocks() {
        let blocks = Arc::new(BlockPool::new(SIZE, 10 * SIZE as u64));
        let (early, late) = (blocks.copy_of(&[1; SIZE]), blocks.copy_of(&[2; SIZE]));
        drop(early);
        blocks.release();
        drop(late);
        assert_eq!(free_blocks(&blocks), 0);
        drop(blocks.copy_of(&[3; SIZE]));
        assert_eq!(free_blocks(&blocks), 1);
    }

    #[test]
    fn small_content_holds_no_whole_block() {
        let blocks = Arc::new(BlockPool::new(SIZE, 10 * SIZE as u64));
        let mut block = blocks.copy_of(&[1; SIZE / SMALL_FRACTION]);
        assert!(block.bytes.capacity() < SIZE);
        block.extend(&[2; SIZE / 4]);
        assert_eq!(block.bytes.capacity(), SIZE);
        let shared = block.share();
        assert_eq!(&shared[..6], [1, 1, 1, 1, 2, 2]);
        assert_eq!(free_blocks(&blocks), 1, "what was gathered is less than half of a block");
    }

    #[test]
    fn a_write_may_overlap_and_extend_a_block() {
        let blocks = Arc::new(BlockPool::new(SIZE, 0));
        let mut block = blocks.copy_of(b"abcdef");
        block.write(4, b"XYZ");
        assert_eq!(&*block, b"abcdXYZ");
        block.write(7, b"!");
        assert_eq!((&*block.part(5, 8), &*block), (&b"YZ!"[..], &b"abcdXYZ!"[..]));
    }
}
