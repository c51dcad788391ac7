//! The names that were returned to a reader, for a pass that has to start again.
//!
//! Owns keyed hashes of 128 bits: two names of one directory have the same hash with a probability
//! below 2^-80 for any directory that fits on a disk, and whoever creates names does not know the
//! key. So a name is left out if and only if it was returned.

use std::hash::{BuildHasher, Hasher as _, RandomState};

use siphasher::sip128::{Hasher128, SipHasher13};

use super::memory::ListingMemoryCharge;

/// Bytes of one hash.
pub(super) const HASH_BYTES: u64 = 16;

/// Which names were told.
#[derive(Debug)]
pub(super) struct ReturnedNames {
    keys: (u64, u64),
    /// In order.
    hashes: Vec<u128>,
    /// What they take of the mount's listing memory.
    _charge: ListingMemoryCharge,
}

impl ReturnedNames {
    /// Those that `tell` gives, about `count`.
    pub(super) fn collect(
        count: usize,
        charge: ListingMemoryCharge,
        tell: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> Self {
        let random = RandomState::new();
        let keys = (random.hash_one(0), random.hash_one(1));
        let mut hashes = Vec::with_capacity(count);
        tell(&mut |name| hashes.push(hash(keys, name)));
        hashes.sort_unstable();
        Self {
            keys,
            hashes,
            _charge: charge,
        }
    }

    pub(super) fn contains(&self, name: &[u8]) -> bool {
        self.hashes.binary_search(&hash(self.keys, name)).is_ok()
    }
}

fn hash(keys: (u64, u64), name: &[u8]) -> u128 {
    let mut hasher = SipHasher13::new_with_keys(keys.0, keys.1);
    hasher.write(name);
    hasher.finish128().as_u128()
}
