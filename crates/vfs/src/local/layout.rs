//! The position of the inode number in the kernel's handles, for file systems with a known layout.
//!
//! With it, a handle and attributes from two system calls are known to belong to one object or not,
//! even if the name changed in between. The layouts have been the same (`encode_fh`) since these
//! file systems have handles. If one changed, the numbers would no longer agree, and objects would
//! be opened instead.

use std::os::fd::BorrowedFd;

use super::limits::{BTRFS, EXT, TMPFS, XFS, magic};
use crate::handle::NodeHandle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandleLayout {
    /// ext2, ext3 and ext4: number and generation, 32 bits each.
    Ext,
    /// As [`Self::Ext`], or a 64-bit number and a 32-bit generation.
    Xfs,
    /// Number and subvolume of 64 bits each, and a generation of 32.
    Btrfs,
    /// The generation and, the lower half first, the number: three words of 32 bits.
    Tmpfs,
}

impl HandleLayout {
    /// The layout of the file system of `root`; `None` if it is unknown, or if `handle`, the root's
    /// handle, does not contain the root's number at that position.
    pub(super) fn of(root: BorrowedFd<'_>, handle: &NodeHandle, number: u64) -> Option<Self> {
        let layout = match magic(root).ok()? {
            EXT => Self::Ext,
            XFS => Self::Xfs,
            BTRFS => Self::Btrfs,
            TMPFS => Self::Tmpfs,
            _ => return None,
        };
        (layout.number(handle) == Some(number)).then_some(layout)
    }

    /// The inode number of a handle's object; `None` for a handle with another layout.
    pub(super) fn number(self, handle: &NodeHandle) -> Option<u64> {
        let bytes = handle.bytes();
        let half = |at: usize| -> Option<u64> {
            let word = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_ne_bytes(word).into())
        };
        let whole = || -> Option<u64> { Some(u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?)) };
        match (self, handle.kind(), bytes.len()) {
            (Self::Ext | Self::Xfs, 1, 8) => half(0),
            (Self::Xfs, 0x81, 12) | (Self::Btrfs, 0x4d, 20) => whole(),
            (Self::Tmpfs, 1, 12) => Some(half(4)? | half(8)? << 32),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::handle::HandleScheme;

    fn handle(kind: u8, words: &[u32]) -> NodeHandle {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        NodeHandle::new(HandleScheme::Kernel, kind, &bytes).unwrap()
    }

    #[test]
    fn a_handle_contains_the_inode_number_where_its_file_system_puts_it() {
        let number = 0x1_0000_0007_u64;
        let bytes = number.to_ne_bytes();
        let [first, second] =
            [&bytes[..4], &bytes[4..]].map(|half| u32::from_ne_bytes(half.try_into().unwrap()));
        for (layout, handle, expected) in [
            (HandleLayout::Ext, handle(1, &[7, 99]), Some(7)),
            (HandleLayout::Xfs, handle(1, &[7, 99]), Some(7)),
            (HandleLayout::Xfs, handle(0x81, &[first, second, 99]), Some(number)),
            (HandleLayout::Btrfs, handle(0x4d, &[first, second, 5, 0, 99]), Some(number)),
            (HandleLayout::Tmpfs, handle(1, &[99, 7, 1]), Some(number)),
            (HandleLayout::Ext, handle(2, &[7, 99, 8, 98]), None),
            (HandleLayout::Ext, handle(1, &[7]), None),
            (HandleLayout::Ext, handle(0x81, &[first, second, 99]), None),
            (HandleLayout::Btrfs, handle(1, &[7, 99]), None),
            (HandleLayout::Tmpfs, handle(1, &[7, 99]), None),
        ] {
            assert_eq!(layout.number(&handle), expected, "{layout:?} {handle:?}");
        }
    }
}
