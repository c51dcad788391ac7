//! Hashing of handles. Each request looks a handle up in several tables. Handles are signed, so
//! that clients cannot choose them; the keys are random nevertheless.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Multiplies and folds eight bytes at a time.
#[derive(Clone, Debug)]
pub(super) struct HandleHashBuilder {
    keys: [u64; 2],
}

impl HandleHashBuilder {
    pub(super) fn new() -> Self {
        let random = RandomState::new();
        Self { keys: [random.hash_one(0), random.hash_one(1) | 1] }
    }
}

impl Default for HandleHashBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl BuildHasher for HandleHashBuilder {
    type Hasher = FoldingHasher;

    fn build_hasher(&self) -> FoldingHasher {
        FoldingHasher { state: self.keys[0], key: self.keys[1] }
    }
}

pub(super) struct FoldingHasher {
    state: u64,
    key: u64,
}

impl Hasher for FoldingHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.write_u64(u64::from_le_bytes(last));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.state = fold(self.state ^ number, self.key ^ 0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        fold(self.state ^ self.key, 0xa076_1d64_78bd_642f)
    }
}

/// The two halves of the product of two numbers, combined by xor.
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    let half = |bits: u128| u64::try_from(bits & u128::from(u64::MAX)).unwrap_or(0);
    half(product) ^ half(product >> 64)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::handle::{HandleScheme, NodeHandle};

    #[test]
    fn handles_that_differ_in_one_byte_are_spread_over_all_bits() {
        let hashing = HandleHashBuilder::new();
        let mut hashes = HashSet::new();
        for at in 0..44 {
            for value in 1..=100 {
                let mut bytes = [0; 44];
                bytes[at] = value;
                let handle = NodeHandle::new(HandleScheme::Kernel, 1, &bytes).expect("it is short");
                hashes.insert(hashing.hash_one(handle));
            }
        }
        assert_eq!(hashes.len(), 4400);
        for bit in 0..64 {
            let ones = hashes.iter().filter(|hash| *hash >> bit & 1 == 1).count();
            assert!((1700..2700).contains(&ones), "bit {bit} is set in {ones} of 4400");
        }
    }

    #[test]
    fn each_table_hashes_in_its_own_way() {
        let handle = NodeHandle::new(HandleScheme::Kernel, 1, &[1; 8]).expect("it is short");
        let hashes: HashSet<u64> = (0..8).map(|_| HandleHashBuilder::new().hash_one(handle)).collect();
        assert_eq!(hashes.len(), 8);
    }
}
