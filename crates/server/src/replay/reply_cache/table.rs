//! One shard's calls: those that run, and the replies of those that ran.
//!
//! Knows no clock and no lock. Invariants: `order`, `households` and the kept entries hold the same
//! sequence numbers; those of a household are in rising order; what is kept is within its bounds
//! after each change. Calls that run are as many as threads serve, and are not counted.

use std::collections::{BTreeMap, HashMap, VecDeque, hash_map};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use super::fingerprint::Fingerprint;

/// What an entry costs beside its reply, in bytes, about: its places in four collections.
pub(super) const ENTRY_COST: usize = 192;

/// What a call is found by. A client has at most one call of a number at a time (RFC 5531 section
/// 9), so one with another fingerprint says that the older is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReplyCacheKey {
    /// Without its port: a new connection has another.
    pub(super) peer: IpAddr,
    pub(super) xid: u32,
}

/// The number of one execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ExecutionId(u64);

/// One shard's part of the bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyCacheShardLimits {
    pub(super) entries: usize,
    pub(super) bytes: usize,
    pub(super) age: Duration,
}

/// What is to be done about a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplyCacheLookup<'t> {
    /// It was executed, and answered so.
    Replay(&'t CachedReply),
    /// It is to be executed, and its reply to be brought.
    Execute(ExecutionId),
    /// It is being executed.
    Running(ExecutionId),
    /// It is to be executed, but a call of the same number and another content runs: nothing can be
    /// kept of it.
    ExecuteUncached,
}

/// Who shares a part of the room: an IPv4 address, or the /64 network that one IPv6 host may choose
/// its addresses from.
type ReplyCacheClient = IpAddr;

pub(super) struct ReplyCacheTable {
    bounds: ReplyCacheShardLimits,
    entries: HashMap<ReplyCacheKey, ReplyCacheEntry>,
    /// Kept replies, the oldest first, with the time since which they are kept.
    order: BTreeMap<ExecutionId, (ReplyCacheKey, Duration)>,
    clients: HashMap<ReplyCacheClient, VecDeque<ExecutionId>>,
    bytes: usize,
    next: u64,
}

struct ReplyCacheEntry {
    fingerprint: Fingerprint,
    execution: ExecutionId,
    reply: Option<CachedReply>,
}

/// A reply that was given.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CachedReply {
    since: Duration,
    pub(super) reply: Box<[u8]>,
    /// By an earlier run of the server.
    pub(super) is_restored: bool,
}

impl ReplyCacheTable {
    pub(super) fn new(bounds: ReplyCacheShardLimits) -> Self {
        Self {
            bounds,
            entries: HashMap::new(),
            order: BTreeMap::new(),
            clients: HashMap::new(),
            bytes: 0,
            next: 0,
        }
    }

    /// Says what to do about a call that came at `now`.
    pub(super) fn lookup(
        &mut self,
        key: ReplyCacheKey,
        fingerprint: Fingerprint,
        now: Duration,
    ) -> ReplyCacheLookup<'_> {
        let ticket = self.ticket();
        let first = ReplyCacheEntry { fingerprint, execution: ticket, reply: None };
        // The key is hashed once, but for calls that came before.
        let known = match self.entries.entry(key) {
            hash_map::Entry::Vacant(place) => {
                place.insert(first);
                return ReplyCacheLookup::Execute(ticket);
            }
            hash_map::Entry::Occupied(known) => known.into_mut(),
        };
        let same = known.fingerprint == fingerprint;
        let fresh = |kept: &CachedReply| now.saturating_sub(kept.since) < self.bounds.age;
        match (same, known.reply.as_ref().map(fresh)) {
            (true, None) => return ReplyCacheLookup::Running(known.execution),
            (false, None) => return ReplyCacheLookup::ExecuteUncached,
            (true, Some(true)) => {}
            // The number is used again.
            (_, Some(_)) => {
                self.remove(key);
                self.entries.insert(key, first);
            }
        }
        match self.entries.get(&key).and_then(|entry| entry.reply.as_ref()) {
            Some(kept) => ReplyCacheLookup::Replay(kept),
            None => ReplyCacheLookup::Execute(ticket),
        }
    }

    /// Keeps a reply that an earlier run of the server gave at `since`; whether there was room, and
    /// no later call of its number.
    pub(super) fn restore(
        &mut self,
        key: ReplyCacheKey,
        fingerprint: Fingerprint,
        since: Duration,
        reply: &[u8],
    ) -> bool {
        let ReplyCacheLookup::Execute(ticket) = self.lookup(key, fingerprint, since) else {
            return false;
        };
        if !self.insert(key, ticket, reply, since) {
            self.abandon(key, ticket);
            return false;
        }
        let kept = self.entries.get_mut(&key).and_then(|entry| entry.reply.as_mut());
        kept.is_some_and(|kept| {
            kept.is_restored = true;
            true
        })
    }

    /// Keeps the reply to the call that was begun as `ticket`; whether there was room.
    pub(super) fn insert(
        &mut self,
        key: ReplyCacheKey,
        ticket: ExecutionId,
        reply: &[u8],
        now: Duration,
    ) -> bool {
        let cost = reply.len() + ENTRY_COST;
        let later = self.ticket();
        let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.execution == ticket) else {
            return false;
        };
        if cost > self.bounds.bytes {
            return false;
        }
        entry.reply = Some(CachedReply { since: now, reply: reply.into(), is_restored: false });
        // Replies are kept in the order in which they were made, which is not that in which the
        // calls began.
        entry.execution = later;
        self.bytes += cost;
        self.order.insert(later, (key, now));
        self.clients.entry(client_of(key.peer)).or_default().push_back(later);
        self.expire(now);
        let own = client_of(key.peer);
        while self.order.len() > self.bounds.entries || self.bytes > self.bounds.bytes {
            if !self.evict(own) {
                break;
            }
        }
        true
    }

    /// Forgets a call that was begun and not kept.
    pub(super) fn abandon(&mut self, key: ReplyCacheKey, ticket: ExecutionId) {
        if self.is_running(key, ticket) {
            self.entries.remove(&key);
        }
    }

    pub(super) fn is_running(&self, key: ReplyCacheKey, ticket: ExecutionId) -> bool {
        self.entries.get(&key).is_some_and(|entry| entry.execution == ticket && entry.reply.is_none())
    }

    const fn ticket(&mut self) -> ExecutionId {
        self.next += 1;
        ExecutionId(self.next)
    }

    /// Forgets what is too old.
    fn expire(&mut self, now: Duration) {
        while let Some((_, (key, since))) = self.order.first_key_value() {
            if now.saturating_sub(*since) < self.bounds.age {
                return;
            }
            self.remove(*key);
        }
    }

    /// Forgets the oldest reply of `own`, if it has its share of the room, else of whoever has
    /// most; never the only one of `own`. Whether there was one.
    fn evict(&mut self, own: ReplyCacheClient) -> bool {
        let share = self.order.len() / self.clients.len().max(1);
        let owned = self.clients.get(&own).map_or(0, VecDeque::len);
        let replies = if owned > 1 && owned >= share {
            self.clients.get(&own)
        } else {
            let others = self.clients.iter().filter(|(household, _)| **household != own);
            others.map(|(_, replies)| replies).max_by_key(|replies| replies.len())
        };
        let oldest = replies.and_then(VecDeque::front).and_then(|ticket| self.order.get(ticket));
        let Some((key, _)) = oldest.copied() else {
            return false;
        };
        self.remove(key);
        true
    }

    /// Forgets a kept reply.
    fn remove(&mut self, key: ReplyCacheKey) {
        let Some(entry) = self.entries.remove(&key) else {
            return;
        };
        let Some(kept) = entry.reply else { return };
        self.bytes -= kept.reply.len() + ENTRY_COST;
        self.order.remove(&entry.execution);
        let household = client_of(key.peer);
        if let Some(replies) = self.clients.get_mut(&household) {
            // Nearly always at the front.
            if let Ok(at) = replies.binary_search(&entry.execution) {
                replies.remove(at);
            }
            if replies.is_empty() {
                self.clients.remove(&household);
            }
        }
    }

    /// How many replies are kept, and their bytes.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        let members: usize = self.clients.values().map(VecDeque::len).sum();
        assert_eq!(members, self.order.len());
        let kept = self.entries.values().filter(|entry| entry.reply.is_some());
        assert_eq!(kept.count(), self.order.len());
        (self.order.len(), self.bytes)
    }

    /// How many calls run.
    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        self.entries.len() - self.order.len()
    }
}

fn client_of(peer: IpAddr) -> ReplyCacheClient {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}
