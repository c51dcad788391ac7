//! Operations on a file, drawn from a seed, and their effect on the model.
//!
//! Invariant: the operations depend only on the seed and the model, never on the result of a system
//! call. So the files' content is determined by the seed and the number of operations.

use std::fmt;
use std::ops::Range;

use curt_tests::random::Random;

/// One operation on a file of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileOperation {
    Write { offset: usize, bytes: Vec<u8> },
    Append { bytes: Vec<u8> },
    Read { offset: usize, length: usize },
    Truncate { size: usize },
    MapWrite { offset: usize, bytes: Vec<u8>, synced: bool },
    MapRead { offset: usize, length: usize },
    Fsync,
    Fdatasync,
    Reopen,
    Stat,
    Verify,
}

impl fmt::Display for FileOperation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write { offset, bytes } => write!(out, "write {} bytes at {offset}", bytes.len()),
            Self::Append { bytes } => write!(out, "append {} bytes", bytes.len()),
            Self::Read { offset, length } => write!(out, "read {length} bytes at {offset}"),
            Self::Truncate { size } => write!(out, "truncate to {size}"),
            Self::MapWrite { offset, bytes, synced } => {
                write!(
                    out,
                    "map and write {} bytes at {offset}{}",
                    bytes.len(),
                    if *synced { ", msync" } else { "" }
                )
            }
            Self::MapRead { offset, length } => write!(out, "map and read {length} bytes at {offset}"),
            Self::Fsync => out.write_str("fsync"),
            Self::Fdatasync => out.write_str("fdatasync"),
            Self::Reopen => out.write_str("close and open again"),
            Self::Stat => out.write_str("stat"),
            Self::Verify => out.write_str("open and compare the whole file"),
        }
    }
}

/// Limits of sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum size of a file in bytes.
    pub(crate) file_bytes: usize,
    /// Maximum number of bytes of one operation.
    pub(crate) operation_bytes: usize,
}

impl FileOperation {
    /// Draws the next operation on a file of `size` bytes.
    pub(crate) fn draw(random: &mut Random, size: usize, limits: Limits) -> Self {
        match random.below(100) {
            0..25 => {
                let offset = random.below(limits.file_bytes);
                Self::Write {
                    offset,
                    bytes: bytes(random, limits.operation_bytes.min(limits.file_bytes - offset)),
                }
            }
            25..30 if size < limits.file_bytes => {
                Self::Append { bytes: bytes(random, limits.operation_bytes.min(limits.file_bytes - size)) }
            }
            30..55 => {
                // Also beyond the end, where a read must return nothing.
                let offset = random.below(size + size / 8 + 1);
                Self::Read { offset, length: 1 + random.below(limits.operation_bytes) }
            }
            55..60 => Self::Truncate { size: random.below(size + 1) },
            60..65 => Self::Truncate { size: size + random.below(limits.file_bytes - size + 1) },
            65..77 if size > 0 => {
                let offset = random.below(size);
                let bytes = bytes(random, limits.operation_bytes.min(size - offset));
                Self::MapWrite { offset, bytes, synced: random.below(4) == 0 }
            }
            77..84 if size > 0 => {
                let offset = random.below(size);
                Self::MapRead { offset, length: 1 + random.below(limits.operation_bytes.min(size - offset)) }
            }
            84..87 => Self::Fsync,
            87..89 => Self::Fdatasync,
            89..95 => Self::Reopen,
            95..99 => Self::Stat,
            99 => Self::Verify,
            _ => Self::Stat,
        }
    }

    /// The bytes that it covers, as far as this is known without the file's size.
    pub(crate) fn range(&self) -> Range<usize> {
        match self {
            Self::Write { offset, bytes } | Self::MapWrite { offset, bytes, .. } => {
                *offset..offset + bytes.len()
            }
            Self::Read { offset, length } | Self::MapRead { offset, length } => *offset..offset + length,
            Self::Truncate { size } => *size..usize::MAX,
            Self::Append { .. } | Self::Verify => 0..usize::MAX,
            Self::Fsync | Self::Fdatasync | Self::Reopen | Self::Stat => 0..0,
        }
    }

    /// The effect of the operation on a file's content.
    pub(crate) fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } | Self::MapWrite { offset, bytes, .. } => {
                let end = offset + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*offset..end].copy_from_slice(bytes);
            }
            Self::Append { bytes } => content.extend_from_slice(bytes),
            Self::Truncate { size } => content.resize(*size, 0),
            Self::Read { .. }
            | Self::MapRead { .. }
            | Self::Fsync
            | Self::Fdatasync
            | Self::Reopen
            | Self::Stat
            | Self::Verify => {}
        }
    }
}

/// 1 to `most` bytes.
fn bytes(random: &mut Random, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; 1 + random.below(most)];
    random.fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { file_bytes: 5000, operation_bytes: 700 };

    #[test]
    fn what_is_drawn_stays_within_the_limits_and_covers_every_kind() {
        let (mut random, mut content) = (Random::new(1), Vec::new());
        let mut kinds = std::collections::HashSet::new();
        for _ in 0..20_000 {
            let operation = FileOperation::draw(&mut random, content.len(), LIMITS);
            kinds.insert(std::mem::discriminant(&operation));
            operation.apply(&mut content);
            assert!(content.len() <= LIMITS.file_bytes, "{operation}");
        }
        assert_eq!(kinds.len(), 11);
    }

    #[test]
    fn the_same_seed_gives_the_same_content() {
        let run = |seed| {
            let (mut random, mut content) = (Random::new(seed), Vec::new());
            for _ in 0..500 {
                FileOperation::draw(&mut random, content.len(), LIMITS).apply(&mut content);
            }
            content
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }
}
