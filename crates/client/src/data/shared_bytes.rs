//! Bytes with several holders: the data of a reply while they are cached, written data while they
//! are sent.
//!
//! Owns the one representation of file data in this crate. Invariant: the contents of a
//! [`SharedBytes`] never change, so it can be sent or copied without a lock.

use std::{fmt, ops::Deref, sync::Arc};

/// A range of immutable bytes that is cheap to clone.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    start: usize,
    end: usize,
}

impl SharedBytes {
    /// Shares all bytes of `owner`, which must return the same bytes as long as it lives.
    pub fn new<T: AsRef<[u8]> + Send + Sync + 'static>(owner: T) -> Self {
        let end = owner.as_ref().len();
        Self { owner: Arc::new(owner), start: 0, end }
    }

    /// The part from `start` to `end`, relative to the first byte of this range.
    ///
    /// # Panics
    /// If the part is out of range.
    #[must_use]
    pub fn part(&self, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= self.len(), "a part lies inside the whole");
        Self { owner: Arc::clone(&self.owner), start: self.start + start, end: self.start + end }
    }

    /// These bytes, copied to memory of their own if they are less than half of what they hold.
    pub(super) fn compact(self) -> Self {
        let held = (*self.owner).as_ref().len();
        if self.len() >= held / 2 { self } else { Self::new(self.to_vec()) }
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.start..self.end]
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({} bytes)", self.len())
    }
}

/// Zeros for holes; a longer hole uses several pieces.
static ZEROS: [u8; ZEROS_SIZE] = [0; ZEROS_SIZE];
const ZEROS_SIZE: usize = 64 * 1024;

struct ZeroBytes;

impl AsRef<[u8]> for ZeroBytes {
    fn as_ref(&self) -> &[u8] {
        &ZEROS
    }
}

/// The result of a read, in order and without gaps: pieces to copy, or to pass to `writev`
/// unchanged.
#[derive(Clone, Debug, Default)]
pub struct ReadBytes {
    pieces: Vec<SharedBytes>,
    length: usize,
}

impl ReadBytes {
    /// The number of bytes: fewer than requested only at the end of the file.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// No bytes: the read began at or after the end of the file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The pieces in file order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| &**piece)
    }

    /// Copies as much as `into` holds; returns the number of bytes.
    pub fn copy_to(&self, into: &mut [u8]) -> usize {
        let mut done = 0;
        for piece in &self.pieces {
            let count = piece.len().min(into.len() - done);
            into[done..done + count].copy_from_slice(&piece[..count]);
            done += count;
        }
        done
    }

    /// All bytes, contiguous.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.length);
        self.pieces.iter().for_each(|piece| all.extend_from_slice(piece));
        all
    }

    pub(super) fn push(&mut self, piece: SharedBytes) {
        self.length += piece.len();
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
    }

    pub(super) fn push_zeros(&mut self, mut count: usize) {
        while count > 0 {
            let part = count.min(ZEROS_SIZE);
            self.push(SharedBytes::new(ZeroBytes).part(0, part));
            count -= part;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_show_what_the_whole_shows() {
        let whole = SharedBytes::new(b"0123456789".to_vec());
        assert_eq!(&*whole.part(2, 5).part(1, 3), b"34");
    }

    #[test]
    fn a_small_part_releases_the_whole() {
        let whole = SharedBytes::new(vec![7; 1000]);
        let part = whole.part(0, 10).compact();
        assert_eq!(&*part, &[7; 10]);
        assert_eq!(Arc::strong_count(&whole.owner), 1);
        let half = whole.part(0, 500).compact();
        assert_eq!((half.len(), Arc::strong_count(&whole.owner)), (500, 2));
    }

    #[test]
    fn pieces_and_zeros_are_read_as_one() {
        let mut bytes = ReadBytes::default();
        bytes.push(SharedBytes::new(b"ab".to_vec()));
        bytes.push_zeros(ZEROS_SIZE + 3);
        bytes.push(SharedBytes::new(b"c".to_vec()));
        let all = bytes.to_vec();
        assert_eq!((bytes.len(), all.len()), (ZEROS_SIZE + 6, ZEROS_SIZE + 6));
        assert_eq!((&all[..3], all[all.len() - 1]), (&b"ab\0"[..], b'c'));
        let mut small = [0; 4];
        assert_eq!((bytes.copy_to(&mut small), &small), (4, b"ab\0\0"));
    }
}
