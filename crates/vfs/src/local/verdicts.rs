//! The kernel's decisions about callers' rights to objects, cached while an object's permissions (mode, owner, group, ctime) stay
//! the same. A verdict about an object whose ctime is not yet past is not cached, because the object could change once more
//! within the same step of the clock.

use std::hash::BuildHasher;

use super::children::is_settled;
use super::file_cache::{Stamp, Who};
use super::hashing::HandleHashing;
use super::recent::Recent;
use crate::answer::Access;
use crate::attributes::{Attributes, Time};
use crate::caller::Caller;
use crate::handle::NodeHandle;

/// How many verdicts are kept.
const VERDICTS_MAX: usize = 16 << 10;

struct Verdict {
    object: NodeHandle,
    who: Who,
    stamp: Stamp,
    asked: Access,
    granted: Access,
}

pub(super) struct Verdicts {
    known: Recent<Verdict>,
    hasher: HandleHashing,
}

impl Verdicts {
    pub(super) fn new() -> Self {
        Self {
            known: Recent::new(VERDICTS_MAX),
            hasher: HandleHashing::new(),
        }
    }

    fn hash(&self, caller: &Caller<'_>, object: &NodeHandle) -> u64 {
        self.hasher.hash_one((object, caller.uid, caller.gid))
    }

    /// What of `asked` is granted, if that is known of the object as it is now.
    pub(super) fn find(
        &self,
        caller: &Caller<'_>,
        object: &NodeHandle,
        now: &Attributes,
        asked: Access,
    ) -> Option<Access> {
        let is = |verdict: &Verdict| verdict.object == *object && verdict.who.is(caller);
        let read = |verdict: &Verdict| {
            let holds = verdict.stamp == Stamp::of(now) && verdict.asked.contains(asked);
            holds.then(|| verdict.granted.and(asked))
        };
        self.known.read(self.hash(caller, object), is, read).flatten()
    }

    /// Keeps a verdict about an object that was so before the kernel was asked; `clock` is the time now.
    pub(super) fn note(
        &self,
        (caller, object): (&Caller<'_>, &NodeHandle),
        before: &Attributes,
        (asked, granted): (Access, Access),
        clock: Time,
    ) {
        if !is_settled(before.ctime, clock) {
            return;
        }
        let is = |verdict: &Verdict| verdict.object == *object && verdict.who.is(caller);
        let verdict = Verdict {
            object: *object,
            who: Who::of(caller),
            stamp: Stamp::of(before),
            asked,
            granted,
        };
        self.known.put(self.hash(caller, object), is, verdict);
    }

    pub(super) fn forget_all(&self) {
        self.known.forget_all();
    }
}
