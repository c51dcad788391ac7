//! The bytes that are written and read: each block's follow from its number and a generation, so
//! that no two blocks and no two runs are alike, and whoever checks them needs no copy.

use super::load::BLOCK_BYTES;

/// Fills `bytes` with what stands at block `block` in generation `generation`.
pub(super) fn fill(bytes: &mut [u8], block: u64, generation: u64) {
    let mut state = block
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(generation.wrapping_mul(0xd1b5_4a32_d192_ed03));
    for piece in bytes.chunks_mut(8) {
        // SplitMix64: every word differs, at a few instructions each.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word ^= word >> 27;
        let word = word.to_le_bytes();
        piece.copy_from_slice(&word[..piece.len()]);
    }
}

/// One block.
pub(super) fn block(number: usize, generation: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    fill(&mut bytes, number as u64, generation);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_generations_differ() {
        assert_ne!(block(0, 0), block(1, 0));
        assert_ne!(block(0, 0), block(0, 1));
        assert_eq!(block(5, 7), block(5, 7));
        let mut odd = [0; 11];
        fill(&mut odd, 5, 7);
        assert_eq!(odd, block(5, 7)[..11]);
    }
}
