//! One shard: calls in progress, and the replies to executed calls.
//!
//! It has no clock and no lock. Invariants: `order`, `clients` and the cached entries hold the
//! same sequence numbers; those of a client are in ascending order; the entries are within their
//! bounds after each change. Calls in progress are not counted: there are at most as many as
//! serving threads.

use std::collections::{BTreeMap, HashMap, VecDeque, hash_map};
use std::net::IpAddr;
use std::time::Duration;

use curt_rpc::server::client_network;

use super::fingerprint::Fingerprint;

/// Approximate cost of an entry in bytes besides its reply: its places in four collections.
pub(super) const ENTRY_COST: usize = 192;

/// The key of a call. A client has at most one call with an xid at a time (RFC 5531 section 9), so
/// a call with another fingerprint shows that the client no longer waits for the older one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReplyCacheKey {
    /// The peer's address without its port, which differs on a new connection.
    pub(super) peer: IpAddr,
    pub(super) xid: u32,
}

/// The sequence number of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ExecutionId(u64);

/// One shard's part of the limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyCacheShardLimits {
    pub(super) entries: usize,
    pub(super) bytes: usize,
    pub(super) age: Duration,
}

/// How to handle a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplyCacheLookup<'t> {
    /// The call was executed: send this reply.
    Replay(&'t CachedReply),
    /// Execute it and cache its reply.
    Execute(ExecutionId),
    /// The call is in progress.
    Running(ExecutionId),
    /// Execute it, but do not cache its reply: another call with the same xid and other contents is
    /// in progress.
    ExecuteUncached,
}

/// The unit that shares a part of the cache: see [`client_network`].
type ReplyCacheClient = IpAddr;

pub(super) struct ReplyCacheTable {
    bounds: ReplyCacheShardLimits,
    entries: HashMap<ReplyCacheKey, ReplyCacheEntry>,
    /// Cached replies, oldest first, each with the time at which it was cached.
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

/// A cached reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CachedReply {
    since: Duration,
    pub(super) reply: Box<[u8]>,
    /// Whether an earlier run of the server sent it.
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

    /// Decides how to handle a call that is received at `now`.
    pub(super) fn lookup(
        &mut self,
        key: ReplyCacheKey,
        fingerprint: Fingerprint,
        now: Duration,
    ) -> ReplyCacheLookup<'_> {
        let ticket = self.ticket();
        let first = ReplyCacheEntry { fingerprint, execution: ticket, reply: None };
        // The key of a new call is hashed once.
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
            // The client uses the xid again.
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

    /// Caches a reply that an earlier run of the server sent at `since`. Returns whether there was
    /// room, and no later call with its xid.
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

    /// Caches the reply to the call that was begun as `ticket`. Returns whether there was room.
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
        // Replies are cached in the order in which they were made, which differs from the order in
        // which the calls began.
        entry.execution = later;
        self.bytes += cost;
        self.order.insert(later, (key, now));
        self.clients.entry(client_network(key.peer)).or_default().push_back(later);
        self.expire(now);
        let own = client_network(key.peer);
        while self.order.len() > self.bounds.entries || self.bytes > self.bounds.bytes {
            if !self.evict(own) {
                break;
            }
        }
        true
    }

    /// Removes a call that was begun and whose reply is not cached.
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

    /// Removes expired replies.
    fn expire(&mut self, now: Duration) {
        while let Some((_, (key, since))) = self.order.first_key_value() {
            if now.saturating_sub(*since) < self.bounds.age {
                return;
            }
            self.remove(*key);
        }
    }

    /// Evicts the oldest reply of `own` if it has its share of the cache, else of the client
    /// with the most replies; never the only one of `own`. Returns whether there was one.
    fn evict(&mut self, own: ReplyCacheClient) -> bool {
        let share = self.order.len() / self.clients.len().max(1);
        let owned = self.clients.get(&own).map_or(0, VecDeque::len);
        let replies = if owned > 1 && owned >= share {
            self.clients.get(&own)
        } else {
            let others = self.clients.iter().filter(|(client, _)| **client != own);
            others.map(|(_, replies)| replies).max_by_key(|replies| replies.len())
        };
        let oldest = replies.and_then(VecDeque::front).and_then(|ticket| self.order.get(ticket));
        let Some((key, _)) = oldest.copied() else {
            return false;
        };
        self.remove(key);
        true
    }

    /// Removes a cached reply.
    fn remove(&mut self, key: ReplyCacheKey) {
        let Some(entry) = self.entries.remove(&key) else {
            return;
        };
        let Some(kept) = entry.reply else { return };
        self.bytes -= kept.reply.len() + ENTRY_COST;
        self.order.remove(&entry.execution);
        let client = client_network(key.peer);
        if let Some(replies) = self.clients.get_mut(&client) {
            // Nearly always at the front.
            if let Ok(at) = replies.binary_search(&entry.execution) {
                replies.remove(at);
            }
            if replies.is_empty() {
                self.clients.remove(&client);
            }
        }
    }

    /// The number of cached replies, and their bytes.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        let members: usize = self.clients.values().map(VecDeque::len).sum();
        assert_eq!(members, self.order.len());
        let kept = self.entries.values().filter(|entry| entry.reply.is_some());
        assert_eq!(kept.count(), self.order.len());
        (self.order.len(), self.bytes)
    }

    /// The number of calls in progress.
    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        self.entries.len() - self.order.len()
    }
}
