//! INIT: the version and the features of a mount.
//!
//! Features are tested, not versions, except where no feature shows a kernel's fault
//! ([`SYMLINKS_MINOR_MIN`]) and for the sizes of the structures. Pure: bytes in, bytes out.

use crate::{
    abi::{MAJOR, MINOR, MINOR_MIN, feature},
    reply::SmallReply,
    request::InitIn,
};

/// Maximum data size of one READ or WRITE: 256 pages, the kernel's own limit by default.
pub const IO_BYTES_MAX: u32 = 1024 * 1024;
const PAGE_BYTES: u32 = 4096;

/// Maximum number of background requests (read-ahead and others without a waiting process). High,
/// because beyond it the kernel delays reads of cached files behind others that wait for a silent
/// server.
const BACKGROUND_MAX: u16 = 4096;

/// The first minor version (7.43, Linux 6.15) of which each kernel returns the cached target of a
/// symbolic link in its full length. Earlier ones cut it to the size in the link's attributes
/// (`page_get_link`), which a server may report as 0.
const SYMLINKS_MINOR_MIN: u32 = 43;

/// Features that depend on the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestedFeatures {
    /// The daemon decides fcntl(2) locks; otherwise the kernel does, for this machine only.
    pub posix_locks: bool,
    /// The daemon decides flock(2) locks; otherwise the kernel does, for this machine only.
    pub flock_locks: bool,
    /// Reads of pages in the kernel's cache first request attributes that have expired; otherwise
    /// these pages are valid until the file is opened again or they are invalidated.
    pub reading_revalidates: bool,
}

/// The result of the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NegotiatedFeatures {
    /// The common minor version.
    pub minor: u32,
    /// Bits of [`crate::feature`] in use.
    pub features: u64,
}

impl NegotiatedFeatures {
    /// Whether all bits of `feature` are in use.
    #[must_use]
    pub fn has(&self, feature: u64) -> bool {
        self.features & feature == feature
    }
}

/// The reply to INIT.
#[derive(Debug)]
pub(crate) enum InitReply {
    /// The kernel has a newer major version and will send INIT again with version 7.
    AskAgain(SmallReply),
    /// The negotiation is complete.
    Agreed(SmallReply, NegotiatedFeatures),
    /// The kernel is too old.
    TooOld,
}

/// The features used if the kernel offers them. Not used: default permissions (a mount option, with
/// which the kernel would refuse operations that the server allows), the write-back cache (the
/// kernel would determine sizes and times), opens without a request (each open is a consistency
/// check).
fn wanted(wishes: RequestedFeatures) -> u64 {
    let mut features = feature::ASYNC_READ
        | feature::ATOMIC_O_TRUNC
        | feature::EXPORT_SUPPORT
        | feature::BIG_WRITES
        | feature::ASYNC_DIO
        | feature::PARALLEL_DIROPS
        | feature::ABORT_ERROR
        | feature::MAX_PAGES
        // Without it each write requests the attribute security.capability.
        | feature::HANDLE_KILLPRIV_V2
        | feature::INIT_EXT
        // READDIRPLUS costs 13 times as much per name, so it is only for listings whose names are
        // then looked up, as determined by the kernel.
        | feature::DO_READDIRPLUS
        | feature::READDIRPLUS_AUTO;
    if wishes.reading_revalidates {
        features |= feature::AUTO_INVAL_DATA;
    }
    if wishes.posix_locks {
        features |= feature::POSIX_LOCKS;
    }
    if wishes.flock_locks {
        features |= feature::FLOCK_LOCKS;
    }
    features
}

/// Determines the reply to `init`.
pub(crate) fn negotiate(init: &InitIn, wishes: RequestedFeatures) -> InitReply {
    if init.major > MAJOR {
        return InitReply::AskAgain(init_reply(MINOR, 0, 0));
    }
    if init.major < MAJOR || init.minor < MINOR_MIN {
        return InitReply::TooOld;
    }
    let minor = init.minor.min(MINOR);
    let links = if minor < SYMLINKS_MINOR_MIN { 0 } else { feature::CACHE_SYMLINKS };
    let features = (wanted(wishes) | links) & init.features;
    let agreed = NegotiatedFeatures { minor, features };
    InitReply::Agreed(init_reply(minor, init.readahead_max, features), agreed)
}

/// `fuse_init_out`.
fn init_reply(minor: u32, readahead_max: u32, features: u64) -> SmallReply {
    let [low, high] = words(features);
    let background = [BACKGROUND_MAX, BACKGROUND_MAX / 4 * 3];
    let pages = u16::try_from(IO_BYTES_MAX / PAGE_BYTES).expect("256");
    let mut reply = SmallReply::new();
    reply.u32(MAJOR);
    reply.u32(minor);
    reply.u32(readahead_max);
    reply.u32(low);
    reply.u16(background[0]);
    reply.u16(background[1]);
    reply.u32(IO_BYTES_MAX);
    // Time granularity: one nanosecond.
    reply.u32(1);
    reply.u16(pages);
    reply.u16(0);
    reply.u32(high);
    for _ in 0..7 {
        reply.u32(0);
    }
    reply
}

fn words(features: u64) -> [u32; 2] {
    let low = u32::try_from(features & 0xffff_ffff).expect("masked");
    let high = u32::try_from(features >> 32).expect("shifted");
    [low, high]
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: RequestedFeatures =
        RequestedFeatures { posix_locks: true, flock_locks: true, reading_revalidates: false };

    fn agreed(minor: u32, features: u64, wishes: RequestedFeatures) -> NegotiatedFeatures {
        let init = InitIn { major: 7, minor, readahead_max: 131_072, features };
        match negotiate(&init, wishes) {
            InitReply::Agreed(_, negotiated) => negotiated,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_what_both_sides_know_is_used() {
        assert_eq!(agreed(99, u64::MAX, LOCKS).minor, MINOR);
        assert_eq!(agreed(31, 0, LOCKS), NegotiatedFeatures { minor: 31, features: 0 });
        assert_eq!(agreed(45, feature::PARALLEL_DIROPS, LOCKS).features, feature::PARALLEL_DIROPS);
    }

    #[test]
    fn locks_come_only_where_wished_for() {
        assert!(agreed(45, u64::MAX, LOCKS).has(feature::POSIX_LOCKS | feature::FLOCK_LOCKS));
        let flock =
            agreed(45, u64::MAX, RequestedFeatures { flock_locks: true, ..RequestedFeatures::default() });
        assert!(flock.has(feature::FLOCK_LOCKS) && !flock.has(feature::POSIX_LOCKS));
    }

    #[test]
    fn link_targets_are_cached_only_by_kernels_that_return_them_whole() {
        assert!(agreed(43, u64::MAX, LOCKS).has(feature::CACHE_SYMLINKS));
        assert!(!agreed(42, u64::MAX, LOCKS).has(feature::CACHE_SYMLINKS));
        assert!(!agreed(45, 0, LOCKS).has(feature::CACHE_SYMLINKS));
    }

    #[test]
    fn the_kernel_drops_pages_by_itself_only_where_reading_is_to_revalidate() {
        // With explicit invalidation alone, a file's old last page would remain when a reply shows
        // that the file has grown.
        let both = feature::AUTO_INVAL_DATA | feature::EXPLICIT_INVAL_DATA;
        assert_eq!(agreed(45, both, LOCKS).features, 0);
        let wishes = RequestedFeatures { reading_revalidates: true, ..LOCKS };
        assert_eq!(agreed(45, both, wishes).features, feature::AUTO_INVAL_DATA);
    }

    #[test]
    fn unknown_versions_are_negotiated_again_or_refused() {
        let init = |major, minor| InitIn { major, minor, readahead_max: 0, features: 0 };
        assert!(matches!(negotiate(&init(8, 0), LOCKS), InitReply::AskAgain(_)));
        assert!(matches!(negotiate(&init(7, 22), LOCKS), InitReply::TooOld));
        assert!(matches!(negotiate(&init(6, 99), LOCKS), InitReply::TooOld));
    }

    #[test]
    fn the_reply_has_the_kernels_size_and_one_mebibyte() {
        let mut reply = init_reply(45, 4096, 1 << 35);
        let bytes = reply.finish(1);
        assert_eq!(bytes.len(), 16 + 64);
        assert_eq!(bytes[16 + 20..16 + 24], IO_BYTES_MAX.to_ne_bytes());
        assert_eq!(bytes[16 + 28..16 + 30], 256_u16.to_ne_bytes());
        assert_eq!(bytes[16 + 32..16 + 36], (1_u32 << 3).to_ne_bytes());
    }
}
