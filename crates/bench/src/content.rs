//! The content of a workload's file: the SHA-512 of its path, repeated.
//!
//! So each byte of a file can be checked with the file's path alone.

use sha2::{Digest, Sha512};

/// The period of a file's content in bytes.
pub const PERIOD_BYTES: usize = 64;

/// The content of a file of any size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentPattern([u8; PERIOD_BYTES]);

impl ContentPattern {
    /// The content of the file at `path`, relative to the tree's top, without a leading `/`.
    #[must_use]
    pub fn of(path: &[u8]) -> Self {
        Self(Sha512::digest(path).into())
    }

    /// Fills `buffer` with the bytes from `offset` on.
    pub fn fill(&self, offset: u64, buffer: &mut [u8]) {
        // Whole periods are copied from the filled part, doubling it, so that a megabyte takes a
        // few copies.
        let head = buffer.len().min(PERIOD_BYTES);
        let phase = phase(offset);
        for (at, byte) in buffer[..head].iter_mut().enumerate() {
            *byte = self.0[(phase + at) % PERIOD_BYTES];
        }
        let mut filled = head;
        while filled < buffer.len() {
            let more = filled.min(buffer.len() - filled);
            buffer.copy_within(..more, filled);
            filled += more;
        }
    }

    /// The position in `bytes` of the first byte that differs from the content from `offset` on;
    /// `None` if all are equal.
    #[must_use]
    pub fn first_wrong(&self, offset: u64, bytes: &[u8]) -> Option<usize> {
        let mut rotated = self.0;
        rotated.rotate_left(phase(offset));
        for (number, piece) in bytes.chunks(PERIOD_BYTES).enumerate() {
            if piece != &rotated[..piece.len()] {
                let within = piece.iter().zip(&rotated).position(|(got, want)| got != want);
                return within.map(|within| number * PERIOD_BYTES + within);
            }
        }
        None
    }
}

/// The position of `offset` within the period.
fn phase(offset: u64) -> usize {
    usize::try_from(offset % PERIOD_BYTES as u64).expect("the remainder is below 64")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

    use super::*;

    fn plain(path: &[u8], offset: usize, length: usize) -> Vec<u8> {
        let digest = Sha512::digest(path);
        (offset..offset + length).map(|at| digest[at % 64]).collect()
    }

    #[test]
    fn fill_equals_the_repeated_digest_at_any_offset() {
        let content = ContentPattern::of(b"src/server.c");
        for offset in [0, 1, 63, 64, 65, 4095, 4096, 1_000_003] {
            for length in [0, 1, 63, 64, 65, 200, 4096] {
                let mut buffer = vec![0; length];
                content.fill(offset as u64, &mut buffer);
                assert_eq!(
                    buffer,
                    plain(b"src/server.c", offset, length),
                    "offset {offset}, length {length}"
                );
                assert_eq!(content.first_wrong(offset as u64, &buffer), None);
            }
        }
    }

    #[test]
    fn first_wrong_finds_every_single_wrong_byte() {
        let content = ContentPattern::of(b"a");
        let right = plain(b"a", 7, 200);
        for at in 0..right.len() {
            let mut bytes = right.clone();
            bytes[at] ^= 1;
            assert_eq!(content.first_wrong(7, &bytes), Some(at));
        }
    }

    #[test]
    fn paths_have_different_content() {
        assert_ne!(ContentPattern::of(b"a"), ContentPattern::of(b"b"));
    }
}
