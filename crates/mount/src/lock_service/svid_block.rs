//! Numbers of lock owners (`svid`) that no other mount of the network namespace uses.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use curt_client::protocol::v3::nlm::OWNERS_MAX;
use tracing::warn;

/// The first number. The kernel's lock manager counts from 1.
const FIRST: i32 = 1 << 30;

/// Blocks of [`OWNERS_MAX`] numbers from [`FIRST`] on.
const BLOCKS: i32 = FIRST / OWNERS_MAX.cast_signed();

/// A block of numbers. It is reserved by a socket in the abstract namespace, which the kernel keeps
/// for each network namespace, and closes when the process dies.
#[derive(Debug)]
pub(super) struct SvidBlock {
    number: i32,
    _reservation: Option<UnixListener>,
}

impl SvidBlock {
    /// Reserves the first free block.
    pub(super) fn reserve() -> Self {
        let free = (0..BLOCKS).find_map(|number| {
            Self::bind(number).ok().map(|reservation| Self { number, _reservation: Some(reservation) })
        });
        free.unwrap_or_else(|| {
            warn!("all numbers of lock owners are in use: locks of two mounts may be taken for one owner's");
            Self { number: BLOCKS - 1, _reservation: None }
        })
    }

    /// Reserves the block with this first number; `None`: a mount has it.
    pub(super) fn reserve_at(first: i32) -> Option<Self> {
        let number = first.checked_sub(FIRST)? / OWNERS_MAX.cast_signed();
        Some(Self { number, _reservation: Some(Self::bind(number).ok()?) })
    }

    fn bind(number: i32) -> io::Result<UnixListener> {
        let address = SocketAddr::from_abstract_name(format!("curt/svids/{number}"))?;
        UnixListener::bind_addr(&address)
    }

    /// The first number of the block.
    pub(super) const fn first(&self) -> i32 {
        FIRST + self.number * OWNERS_MAX.cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_are_reused_when_their_mount_has_ended() {
        let (one, other) = (SvidBlock::reserve(), SvidBlock::reserve());
        assert!(one.first().abs_diff(other.first()) >= OWNERS_MAX);
        assert!(one.first() >= FIRST && other.first().checked_add_unsigned(OWNERS_MAX - 1).is_some());
        let (number, first) = (one.number, one.first());
        drop(one);
        assert!(SvidBlock::reserve_at(other.first()).is_none(), "it is in use");
        let again = SvidBlock::reserve_at(first).map(|block| (block.number, block.first()));
        assert_eq!(again, Some((number, first)));
    }
}
