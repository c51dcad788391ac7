//! The AccessCache of one inode: the server's answers by caller.
//!
//! Owns storage and its bound. Must not know what an answer is worth.

use curt_policy::AccessEntry;

/// Credentials remembered per object; beyond it the one remembered longest goes.
pub(crate) const ANSWERS_MAX: usize = 32;

/// Answers by the number of an identity. Most objects are used by one caller.
#[derive(Debug, Default)]
pub(crate) enum InodeAccessCache {
    #[default]
    None,
    One(u32, AccessEntry),
    Many(Vec<(u32, AccessEntry)>),
}

impl InodeAccessCache {
    pub(crate) fn find(&self, identity: u32) -> Option<AccessEntry> {
        match self {
            Self::None => None,
            Self::One(number, entry) => (*number == identity).then_some(*entry),
            Self::Many(many) => many
                .iter()
                .find(|(number, _)| *number == identity)
                .map(|(_, entry)| *entry),
        }
    }

    /// Keeps `entry`; true if another one had to go.
    pub(crate) fn keep(&mut self, identity: u32, entry: AccessEntry) -> bool {
        match self {
            Self::None => *self = Self::One(identity, entry),
            Self::One(number, old) if *number == identity => *old = entry,
            Self::One(number, old) => *self = Self::Many(vec![(*number, *old), (identity, entry)]),
            Self::Many(many) => {
                if let Some((_, old)) = many.iter_mut().find(|(number, _)| *number == identity) {
                    *old = entry;
                    return false;
                }
                let is_full = many.len() >= ANSWERS_MAX;
                if is_full {
                    many.remove(0);
                }
                many.push((identity, entry));
                return is_full;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use curt_types::Access;

    use curt_policy::{Epoch, Moment};

    use super::*;

    fn entry(bits: u32) -> AccessEntry {
        AccessEntry::absorb(
            None,
            Access::ALL,
            Access::from_bits(bits),
            Epoch::default(),
            Moment::default(),
        )
    }

    #[test]
    fn each_identity_has_its_own_answer_and_the_oldest_goes_beyond_the_bound() {
        let mut answers = InodeAccessCache::default();
        for identity in 0..=u32::try_from(ANSWERS_MAX).expect("a small number") {
            let evicted = answers.keep(identity, entry(identity % 32));
            assert_eq!(evicted, identity as usize == ANSWERS_MAX);
        }
        assert_eq!(answers.find(0), None);
        for identity in 1..=u32::try_from(ANSWERS_MAX).expect("a small number") {
            assert_eq!(answers.find(identity), Some(entry(identity % 32)));
        }
        assert!(!answers.keep(5, entry(0)));
        assert_eq!(answers.find(5), Some(entry(0)));
    }
}
