//! The names that a reader has got: what a pass skips that starts again.

use std::{
    hash::{BuildHasher, Hasher as _, RandomState},
    sync::Arc,
};

use siphasher::sip128::{Hasher128, SipHasher13};

use super::{cache::DirectoryListing, memory::ListingMemoryCharge};

/// Bytes of a name's hash.
pub(super) const HASH_BYTES: u64 = 16;

/// The returned names, as a sorted list of keyed 128-bit hashes. The probability that two names of
/// one directory collide is below 2^-80 for any directory that fits on a disk, and a client that
/// creates names does not know the key.
#[derive(Debug)]
pub(super) struct ReturnedNames {
    keys: (u64, u64),
    hashes: Vec<u128>,
    _charge: ListingMemoryCharge,
}

impl ReturnedNames {
    /// The names before the end of each part; `None` if some of them were evicted.
    pub(super) fn collect(
        parts: &[(Arc<DirectoryListing>, u32)],
        charge: ListingMemoryCharge,
    ) -> Option<Self> {
        let random = RandomState::new();
        let mut names =
            Self { keys: (random.hash_one(0), random.hash_one(1)), hashes: Vec::new(), _charge: charge };
        for (listing, end) in parts {
            let mut hashes = Vec::with_capacity(*end as usize);
            if !listing.names_before(*end, &mut |name| hashes.push(names.hash(name))) {
                return None;
            }
            names.hashes.append(&mut hashes);
        }
        names.hashes.sort_unstable();
        Some(names)
    }

    fn hash(&self, name: &[u8]) -> u128 {
        let mut hasher = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
        hasher.write(name);
        hasher.finish128().as_u128()
    }

    pub(super) fn contains(&self, name: &[u8]) -> bool {
        self.hashes.binary_search(&self.hash(name)).is_ok()
    }
}
