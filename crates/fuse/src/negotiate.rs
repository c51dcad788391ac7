//! INIT: which version and which features a mount uses.
//!
//! Owns the choice of features, and its reasons. Features are tested for, never versions; only the
//! structures' sizes go by the version. Pure: bytes in, bytes out.

use crate::{
    abi::{MAJOR, MINOR, MINOR_MIN, encode::SmallReply, feature},
    request::InitIn,
};

/// Bytes of data in one READ or WRITE at most: 256 pages, the kernel's own bound unless its
/// administrator raised it.
pub const IO_BYTES_MAX: u32 = 1024 * 1024;
const PAGE_BYTES: u32 = 4096;

/// Reads ahead and other requests nobody waits for that the kernel may have outstanding. High,
/// because beyond it the kernel holds back reads of files whose data we have, for the sake of
/// others that wait for a silent server.
const BACKGROUND_MAX: u16 = 4096;

/// What the mount wants that is not the same for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestedFeatures {
    /// fcntl(2) locks come to us; else the kernel keeps them itself, on this machine alone.
    pub posix_locks: bool,
    /// flock(2) locks come to us; else the kernel keeps them itself, on this machine alone.
    pub flock_locks: bool,
    /// Reading what the kernel has cached asks for attributes first where they have expired; else
    /// it is served until the file is opened again or we say that it changed.
    pub reading_revalidates: bool,
}

/// What was agreed upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NegotiatedFeatures {
    /// Minor version that both sides use.
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

/// How INIT is to be answered.
#[derive(Debug)]
pub(crate) enum InitReply {
    /// The kernel speaks a newer major version and will ask again with ours.
    AskAgain(SmallReply),
    /// Agreed.
    Agreed(SmallReply, NegotiatedFeatures),
    /// The kernel is too old.
    TooOld,
}

/// The features that are used where the kernel offers them. Never among them: default permissions
/// (a mount option, which would refuse from cached bits what the server allows), the write-back
/// cache (the kernel would own sizes and times), opens without a message (each open is a check of
/// consistency).
fn wanted(wishes: RequestedFeatures) -> u64 {
    let mut features = feature::ASYNC_READ
        | feature::ATOMIC_O_TRUNC
        | feature::EXPORT_SUPPORT
        | feature::BIG_WRITES
        | feature::ASYNC_DIO
        | feature::PARALLEL_DIROPS
        | feature::ABORT_ERROR
        | feature::MAX_PAGES
        // Without it each write asks for the attribute security.capability.
        | feature::HANDLE_KILLPRIV_V2
        | feature::INIT_EXT
        | feature::HAS_EXPIRE_ONLY
        // Plus costs 13 times as much per name, so it is for listings whose names are then looked
        // up: the kernel sees that.
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

/// Decides how to answer `init`.
pub(crate) fn negotiate(init: &InitIn, wishes: RequestedFeatures) -> InitReply {
    if init.major > MAJOR {
        return InitReply::AskAgain(init_reply(MINOR, 0, 0));
    }
    if init.major < MAJOR || init.minor < MINOR_MIN {
        return InitReply::TooOld;
    }
    let minor = init.minor.min(MINOR);
    let features = wanted(wishes) & init.features;
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
    // Times are told to the nanosecond.
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

    const LOCKS: RequestedFeatures = RequestedFeatures {
        posix_locks: true,
        flock_locks: true,
        reading_revalidates: false,
    };

    fn agreed(minor: u32, features: u64, wishes: RequestedFeatures) -> NegotiatedFeatures {
        let init = InitIn {
            major: 7,
            minor,
            readahead_max: 131_072,
            features,
        };
        match negotiate(&init, wishes) {
            InitReply::Agreed(_, negotiated) => negotiated,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_what_both_sides_know_is_used() {
        assert_eq!(agreed(99, u64::MAX, LOCKS).minor, MINOR);
        assert_eq!(
            agreed(31, 0, LOCKS),
            NegotiatedFeatures {
                minor: 31,
                features: 0
            }
        );
        assert_eq!(
            agreed(45, feature::PARALLEL_DIROPS, LOCKS).features,
            feature::PARALLEL_DIROPS
        );
    }

    #[test]
    fn locks_come_only_where_wished_for() {
        assert!(agreed(45, u64::MAX, LOCKS).has(feature::POSIX_LOCKS | feature::FLOCK_LOCKS));
        let flock = agreed(
            45,
            u64::MAX,
            RequestedFeatures {
                flock_locks: true,
                ..RequestedFeatures::default()
            },
        );
        assert!(flock.has(feature::FLOCK_LOCKS) && !flock.has(feature::POSIX_LOCKS));
    }

    #[test]
    fn the_kernel_drops_pages_by_itself_only_where_reading_is_to_revalidate() {
        // What only we decide would also leave a file's old last page when a reply tells that the
        // file has grown.
        let both = feature::AUTO_INVAL_DATA | feature::EXPLICIT_INVAL_DATA;
        assert_eq!(agreed(45, both, LOCKS).features, 0);
        let wishes = RequestedFeatures {
            reading_revalidates: true,
            ..LOCKS
        };
        assert_eq!(agreed(45, both, wishes).features, feature::AUTO_INVAL_DATA);
    }

    #[test]
    fn strange_versions_are_asked_again_or_refused() {
        let init = |major, minor| InitIn {
            major,
            minor,
            readahead_max: 0,
            features: 0,
        };
        assert!(matches!(negotiate(&init(8, 0), LOCKS), InitReply::AskAgain(_)));
        assert!(matches!(negotiate(&init(7, 22), LOCKS), InitReply::TooOld));
        assert!(matches!(negotiate(&init(6, 99), LOCKS), InitReply::TooOld));
    }

    #[test]
    fn the_reply_has_the_kernels_size_and_one_mebibyte() {
        let mut reply = init_reply(45, 4096, feature::HAS_EXPIRE_ONLY);
        let bytes = reply.finish(1);
        assert_eq!(bytes.len(), 16 + 64);
        assert_eq!(bytes[16 + 20..16 + 24], IO_BYTES_MAX.to_ne_bytes());
        assert_eq!(bytes[16 + 28..16 + 30], 256_u16.to_ne_bytes());
        assert_eq!(bytes[16 + 32..16 + 36], (1_u32 << 3).to_ne_bytes());
    }
}
