//! The queue of queries, scheduled fairly among their sources.
//!
//! A client with many addresses can cause as many queries, each of which hangs if the reverse zone
//! is dead. So a network counts as one source. Only some of its queries may be queued and a few may
//! be in progress; more than one only while workers remain for other sources. So other sources are
//! not delayed.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use super::{ANSWERS_MAX, NameQuery, WORKERS};

/// Maximum number of queued queries of one network.
pub(super) const OF_A_NETWORK_MAX: usize = 1024;
/// Maximum number of queries of one network in progress.
pub(super) const AT_ONCE_OF_A_NETWORK: usize = 2;
/// Maximum number of queries about hosts of the exports, or about users, in progress.
pub(super) const AT_ONCE_OF_OURS: usize = WORKERS / 2;

/// The source of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum QuerySource {
    /// The exports, for their hosts.
    Exports,
    /// The groups of users (`--manage-gids`).
    Users,
    /// An IPv4 network of 256 addresses.
    Network4([u8; 3]),
    /// An IPv6 network of one link (/64).
    Network6([u8; 8]),
}

impl QuerySource {
    fn of(question: &NameQuery) -> Self {
        match question {
            NameQuery::Addresses(_) => Self::Exports,
            NameQuery::Groups(_) => Self::Users,
            NameQuery::Name(address) | NameQuery::Member(_, address) => match address {
                IpAddr::V4(address) => {
                    let [a, b, c, _] = address.octets();
                    Self::Network4([a, b, c])
                }
                IpAddr::V6(address) => Self::Network6(u64::to_be_bytes(
                    u64::try_from(u128::from(*address) >> 64).unwrap_or_default(),
                )),
            },
        }
    }

    const fn at_once(self) -> usize {
        match self {
            Self::Exports | Self::Users => AT_ONCE_OF_OURS,
            Self::Network4(_) | Self::Network6(_) => AT_ONCE_OF_A_NETWORK,
        }
    }

    const fn waiting_max(self) -> usize {
        match self {
            Self::Exports | Self::Users => ANSWERS_MAX,
            Self::Network4(_) | Self::Network6(_) => OF_A_NETWORK_MAX,
        }
    }
}

/// The queries of one source; a source without queries has no entry.
#[derive(Default)]
struct SourceQueue {
    waiting: VecDeque<NameQuery>,
    asked: usize,
}

/// The queued queries, and the number of each source's queries in progress.
#[derive(Default)]
pub(super) struct QueryQueue {
    by_source: HashMap<QuerySource, SourceQueue>,
    /// Sources with queued queries, each once, the next first.
    round_robin: VecDeque<QuerySource>,
    waiting: usize,
    /// Number of all queries in progress.
    asked: usize,
}

impl QueryQueue {
    /// Adds a query, unless too many are queued. The caller must not add a query twice.
    pub(super) fn put(&mut self, question: NameQuery) -> bool {
        let asker = QuerySource::of(&question);
        let of_asker = self.by_source.get(&asker).map_or(0, |share| share.waiting.len());
        if self.waiting >= ANSWERS_MAX || of_asker >= asker.waiting_max() {
            return false;
        }
        if of_asker == 0 {
            self.round_robin.push_back(asker);
        }
        self.by_source.entry(asker).or_default().waiting.push_back(question);
        self.waiting += 1;
        true
    }

    /// Removes the next query that may begin now. The caller calls [`QueryQueue::ended`] after it.
    pub(super) fn take(&mut self) -> Option<NameQuery> {
        for _ in 0..self.round_robin.len() {
            let asker = self.round_robin.pop_front()?;
            let share = self.by_source.get_mut(&asker)?;
            let free = WORKERS.saturating_sub(self.asked);
            if share.asked >= asker.at_once() || (share.asked > 0 && share.asked >= free) {
                self.round_robin.push_back(asker);
                continue;
            }
            let question = share.waiting.pop_front()?;
            share.asked += 1;
            self.asked += 1;
            self.waiting -= 1;
            if !share.waiting.is_empty() {
                self.round_robin.push_back(asker);
            }
            return Some(question);
        }
        None
    }

    /// A removed query has ended.
    pub(super) fn ended(&mut self, question: &NameQuery) {
        let asker = QuerySource::of(question);
        if let Some(share) = self.by_source.get_mut(&asker) {
            share.asked = share.asked.saturating_sub(1);
            self.asked = self.asked.saturating_sub(1);
            if share.asked == 0 && share.waiting.is_empty() {
                self.by_source.remove(&asker);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn name(address: &str) -> NameQuery {
        NameQuery::Name(address.parse().unwrap())
    }

    #[test]
    fn a_network_with_many_addresses_holds_up_no_other() {
        let mut queue = QueryQueue::default();
        for (network, other) in [("fd00::", "fd00:0:0:1::1"), ("10.0.0.", "10.0.1.1")] {
            for host in 1..=100 {
                assert!(queue.put(name(&format!("{network}{host}"))));
            }
            assert!(queue.put(name(other)));
            let mut taken: Vec<NameQuery> = std::iter::from_fn(|| queue.take()).collect();
            assert_eq!(taken.len(), AT_ONCE_OF_A_NETWORK + 1, "{network}");
            assert!(taken.contains(&name(other)), "{network}");
            queue.ended(&taken.remove(0));
            assert_eq!(queue.take(), Some(name(&format!("{network}3"))), "in its turn");
            assert_eq!(queue.take(), None);
        }
    }

    #[test]
    fn a_dozen_networks_whose_questions_hang_hold_up_no_other() {
        let mut queue = QueryQueue::default();
        for network in 0..12 {
            for host in 1..=100 {
                assert!(queue.put(name(&format!("10.0.{network}.{host}"))));
            }
        }
        let hanging = std::iter::from_fn(|| queue.take()).count();
        assert!(hanging < WORKERS, "{hanging}");
        assert!(queue.put(name("10.1.0.1")));
        assert_eq!(queue.take(), Some(name("10.1.0.1")));
    }

    #[test]
    fn a_network_has_no_more_questions_waiting_than_the_limit() {
        let mut queue = QueryQueue::default();
        for host in 0..OF_A_NETWORK_MAX {
            assert!(queue.put(name(&format!("fd00::{host:x}"))));
        }
        assert!(!queue.put(name("fd00::ffff")), "one more");
        assert!(queue.put(name("fd01::1")) && queue.put(NameQuery::Groups(7)));
        let mut count = 0;
        while let Some(question) = queue.take() {
            queue.ended(&question);
            count += 1;
        }
        assert_eq!(count, OF_A_NETWORK_MAX + 2);
        assert!(queue.by_source.is_empty() && queue.round_robin.is_empty() && queue.waiting == 0);
        for uid in 0..u32::try_from(ANSWERS_MAX).unwrap() {
            assert!(queue.put(NameQuery::Groups(uid)));
        }
        assert!(!queue.put(name("fd01::1")), "more than all");
    }
}
