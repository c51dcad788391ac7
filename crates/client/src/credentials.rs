//! Interned callers: one identity per uid, gid and set of groups.
//!
//! Owns the key of the access cache. Invariants: equal callers share one [`InternedCaller`] while
//! it is in the table; a number is never assigned to two different callers, so a cached right can
//! be lost with its number but never granted to another caller.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use curt_rpc::auth::{GROUPS_MAX, RpcCredential};
use parking_lot::Mutex;

use crate::{caller::RpcSecurity, identity::Caller};

/// Most identities kept; beyond it the table is emptied and identities get new numbers.
const IDENTITIES_MAX: usize = 65_536;

/// A caller as access checks see it.
#[derive(Debug)]
pub(crate) struct InternedCaller {
    /// The key of the access cache.
    pub(crate) number: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Sorted, without duplicates.
    pub(crate) groups: Arc<[u32]>,
    /// The credential of its requests.
    pub(crate) credential: Arc<RpcCredential>,
    /// The server once granted it less than the mode bits do: they no longer decide for it.
    distrusts_mode_bits: AtomicBool,
}

impl InternedCaller {
    /// Whether mode bits may decide for this caller: not for the superuser, whom the server may
    /// squash, not for a caller with more groups than AUTH_SYS carries, and not after the server's
    /// decision has differed from the mode bits.
    pub(crate) fn may_use_mode_bits(&self) -> bool {
        let fits = self.groups.iter().filter(|group| **group != self.gid).count() <= GROUPS_MAX;
        self.uid != 0
            && fits
            && matches!(*self.credential, RpcCredential::Sys(_))
            && !self.distrusts_mode_bits.load(Relaxed)
    }

    /// Stops mode bits from deciding for this caller; returns whether they did before.
    pub(crate) fn distrust_mode_bits(&self) -> bool {
        !self.distrusts_mode_bits.swap(true, Relaxed)
    }
}

/// A caller's ids as received, equal whatever the order of the groups.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CallerKey {
    uid: u32,
    gid: u32,
    groups: Arc<[u32]>,
}

impl Hash for CallerKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.uid, self.gid, &*self.groups).hash(state);
    }
}

#[derive(Debug, Default)]
struct CallerIndex {
    by_ids: HashMap<CallerKey, Arc<InternedCaller>>,
    last: u32,
}

/// All identities of one mount.
#[derive(Debug)]
pub(crate) struct CallerInterner {
    security: RpcSecurity,
    index: Mutex<CallerIndex>,
}

impl CallerInterner {
    pub(crate) fn new(security: RpcSecurity) -> Self {
        Self { security, index: Mutex::default() }
    }

    /// The identity of `caller`.
    pub(crate) fn of(&self, caller: &Caller) -> Arc<InternedCaller> {
        let asked = CallerKey { uid: caller.uid, gid: caller.gid, groups: Arc::clone(&caller.groups) };
        let mut known = self.index.lock();
        if let Some(identity) = known.by_ids.get(&asked) {
            return Arc::clone(identity);
        }
        let mut groups = caller.groups.to_vec();
        groups.sort_unstable();
        groups.dedup();
        let sorted = CallerKey { groups: groups.into(), ..asked.clone() };
        if known.by_ids.len() >= IDENTITIES_MAX {
            known.by_ids.clear();
        }
        if let Some(identity) = known.by_ids.get(&sorted).map(Arc::clone) {
            known.by_ids.insert(asked, Arc::clone(&identity));
            return identity;
        }
        // A number is reused only after 2^32 different callers on one mount.
        known.last = known.last.wrapping_add(1);
        let identity = Arc::new(InternedCaller {
            number: known.last,
            uid: caller.uid,
            gid: caller.gid,
            groups: Arc::clone(&sorted.groups),
            credential: Arc::new(self.security.credential(caller)),
            distrusts_mode_bits: AtomicBool::new(false),
        });
        known.by_ids.insert(asked, Arc::clone(&identity));
        known.by_ids.insert(sorted, Arc::clone(&identity));
        identity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_groups_makes_no_difference_and_their_set_does() {
        let identities = CallerInterner::new(RpcSecurity::sys());
        let number = |groups: &[u32]| identities.of(&Caller::new(1, 2, groups)).number;
        assert_eq!(number(&[3, 4, 4]), number(&[4, 3]));
        assert_ne!(number(&[3, 4]), number(&[3]));
        assert_ne!(identities.of(&Caller::new(9, 2, &[3])).number, number(&[3]));
    }

    #[test]
    fn numbers_are_not_reused_after_the_table_was_emptied() {
        let identities = CallerInterner::new(RpcSecurity::sys());
        let first = identities.of(&Caller::new(0, 0, &[])).number;
        for uid in 1..=u32::try_from(IDENTITIES_MAX).expect("a small number") {
            assert_ne!(identities.of(&Caller::new(uid, 0, &[])).number, first);
        }
        assert_ne!(identities.of(&Caller::new(0, 0, &[])).number, first, "it was forgotten meanwhile");
        assert!(identities.index.lock().by_ids.len() <= IDENTITIES_MAX);
    }

    #[test]
    fn mode_bits_do_not_decide_for_root_or_for_callers_with_many_groups() {
        let identities = CallerInterner::new(RpcSecurity::sys());
        let judged = |uid, groups: &[u32]| identities.of(&Caller::new(uid, 7, groups)).may_use_mode_bits();
        let seventeen: Vec<u32> = (100..117).collect();
        assert!(judged(1, &seventeen[..16]));
        assert!(!judged(1, &seventeen));
        assert!(!judged(0, &[]));
        let nameless = CallerInterner::new(RpcSecurity::None);
        assert!(!nameless.of(&Caller::new(1, 1, &[])).may_use_mode_bits());
    }
}
