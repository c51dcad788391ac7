//! The delegations that are reclaimed after a restart of the server (RFC 8881 section 10.2.1).

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use curt_policy::delegation::DELEGATIONS_MAX;
use curt_rpc::auth::RpcCredential;

use crate::protocol::v4::open_key::OpenKey;

/// A delegation of before a restart of the server.
#[derive(Clone, Debug)]
pub(in crate::protocol::v4) struct DelegationToReclaim {
    pub(in crate::protocol::v4) key: OpenKey,
    pub(in crate::protocol::v4) credential: Arc<RpcCredential>,
}

/// The delegations that the server has forgotten, until they are reclaimed. Those that are
/// reclaimed with their opens stay in `queue`, and are passed over when it is read.
#[derive(Debug, Default)]
pub(in crate::protocol::v4) struct ReclaimQueue {
    queue: VecDeque<DelegationToReclaim>,
    unreclaimed: HashSet<OpenKey>,
}

impl ReclaimQueue {
    /// The server has forgotten these, too.
    pub(super) fn add(&mut self, lost: impl Iterator<Item = DelegationToReclaim>) {
        let Self { queue, unreclaimed } = self;
        queue.retain(|waiting| unreclaimed.contains(&waiting.key));
        queue.extend(lost);
        queue.truncate(DELEGATIONS_MAX);
        *unreclaimed = queue.iter().map(|waiting| waiting.key.clone()).collect();
    }

    /// Whether the delegation that came with an open has to be reclaimed with it.
    pub(in crate::protocol::v4) fn contains(&self, key: &OpenKey) -> bool {
        self.unreclaimed.contains(key)
    }

    /// An open was reclaimed, or cannot be, and so was the delegation that came with it.
    pub(in crate::protocol::v4) fn remove(&mut self, key: &OpenKey) {
        self.unreclaimed.remove(key);
    }

    /// Takes delegations of one owner that are to be reclaimed, at most this number.
    pub(in crate::protocol::v4) fn take(&mut self, most: usize) -> Vec<DelegationToReclaim> {
        let Self { queue, unreclaimed } = self;
        let mut taken: Vec<DelegationToReclaim> = Vec::new();
        while taken.len() < most
            && let Some(waiting) = queue.pop_front_if(|waiting| {
                taken.first().is_none_or(|first| first.key.owner == waiting.key.owner)
                    || !unreclaimed.contains(&waiting.key)
            })
        {
            if unreclaimed.contains(&waiting.key) {
                taken.push(waiting);
            }
        }
        taken
    }

    /// These are still to be reclaimed.
    pub(in crate::protocol::v4) fn put_back(
        &mut self,
        waiting: impl DoubleEndedIterator<Item = DelegationToReclaim>,
    ) {
        waiting.rev().for_each(|waiting| self.queue.push_front(waiting));
    }

    /// Nothing can be reclaimed any more.
    pub(in crate::protocol::v4) fn clear(&mut self) {
        self.queue.clear();
        self.unreclaimed.clear();
    }
}
