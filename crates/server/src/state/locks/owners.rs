//! Clients and owners of a table, and how much the clients of each address have.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arrayvec::ArrayVec;

use super::held::HeldPart;
use super::requests::{LockClient, LockHolder, LockOwner, OWNER_NAME_MAX};

/// An owner in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct OwnerId(pub(super) u32);

/// Limits of the clients of one address (for IPv6, of one /64), and the same limits for all
/// together.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Maximum number of locks.
    pub locks: u32,
    /// Maximum number of owners that have locks or wait. An owner counts once for each table that
    /// it is in, and one with a long name as several (`owner_weight`).
    pub owners: u32,
    /// Maximum number of requests that wait.
    pub waiters: u32,
}

impl ClientLimits {
    /// The default limits of an address.
    pub const CLIENT: Self = Self { locks: 1 << 18, owners: 1 << 16, waiters: 1 << 14 };
    /// The default limits of all clients together: at most about 320 MiB.
    pub const ALL: Self = Self { locks: 1 << 20, owners: 1 << 19, waiters: 1 << 16 };
}

/// The bytes of a name that count as one owner. Names of Linux are shorter.
pub(crate) const OWNER_BYTES: usize = 128;

/// The number of owners as which one with this name counts, so that a limit of their number is one
/// of their memory, too.
pub(crate) const fn owner_weight(name: &[u8]) -> usize {
    if name.is_empty() { 1 } else { name.len().div_ceil(OWNER_BYTES) }
}

/// A client of all tables.
#[derive(Debug)]
pub struct ClientAccount {
    client: LockClient,
    /// The usage of its address, by it and by others.
    usage: Arc<LockUsage>,
    /// Whether the client is recorded on disk.
    pub(crate) is_recorded: parking_lot::Mutex<bool>,
    /// The client had nothing when this was last examined.
    pub(crate) was_idle: AtomicBool,
}

/// The usage of an address by its clients. Relaxed: the numbers guard no other data; a limit may be
/// exceeded by as many requests as run at once.
#[derive(Debug)]
pub(crate) struct LockUsage {
    limits: ClientLimits,
    locks: AtomicU32,
    owners: AtomicU32,
    waiters: AtomicU32,
    /// The usage of all addresses; none for this one itself.
    all: Option<Arc<Self>>,
}

/// The objects that are counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counted {
    Locks,
    Owners,
    Waiters,
}

impl LockUsage {
    /// The usage of an address with these limits.
    pub(crate) fn new(limits: ClientLimits, all: Option<Arc<Self>>) -> Self {
        let (locks, owners, waiters) = Default::default();
        Self { limits, locks, owners, waiters, all }
    }

    const fn counter(&self, counted: Counted) -> (&AtomicU32, u32) {
        match counted {
            Counted::Locks => (&self.locks, self.limits.locks),
            Counted::Owners => (&self.owners, self.limits.owners),
            Counted::Waiters => (&self.waiters, self.limits.waiters),
        }
    }

    /// Whether `more` can be had: within the limit, and no more in all than is free for others: of
    /// addresses that take without end, one after the other, each has half of what is left.
    fn allows(&self, counted: Counted, more: i64) -> bool {
        let (counter, limit) = self.counter(counted);
        let wanted = i64::from(counter.load(Ordering::Relaxed)) + more;
        let leaves_enough = |all: &Arc<Self>| wanted <= all.free(counted);
        more <= 0 || wanted <= i64::from(limit) && self.all.as_ref().is_none_or(leaves_enough)
    }

    /// The unused rest of the limit.
    fn free(&self, counted: Counted) -> i64 {
        let (counter, limit) = self.counter(counted);
        i64::from(limit) - i64::from(counter.load(Ordering::Relaxed))
    }

    fn change(&self, counted: Counted, by: i64) {
        let counter = self.counter(counted).0;
        let magnitude = u32::try_from(by.unsigned_abs()).unwrap_or(u32::MAX);
        if by >= 0 {
            counter.fetch_add(magnitude, Ordering::Relaxed);
        } else {
            counter.fetch_sub(magnitude, Ordering::Relaxed);
        }
        if let Some(all) = &self.all {
            all.change(counted, by);
        }
    }
}

impl ClientAccount {
    /// The only client of its address, with these limits. What it has counts for `all` as well.
    #[must_use]
    pub fn new(client: LockClient, limits: ClientLimits, all: Option<&Self>) -> Self {
        Self::of_address(client, Arc::new(LockUsage::new(limits, all.map(|all| Arc::clone(&all.usage)))))
    }

    /// A client of an address that uses this.
    pub(crate) fn of_address(client: LockClient, usage: Arc<LockUsage>) -> Self {
        let (is_recorded, was_idle) = Default::default();
        Self { client, usage, is_recorded, was_idle }
    }

    pub(crate) const fn client(&self) -> LockClient {
        self.client
    }

    #[cfg(test)]
    pub(crate) const fn usage(&self) -> &Arc<LockUsage> {
        &self.usage
    }

    /// Whether the clients of its address have nothing.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let counters = [&self.usage.locks, &self.usage.owners, &self.usage.waiters];
        counters.iter().all(|counter| counter.load(Ordering::Relaxed) == 0)
    }

    pub(super) fn allows(&self, counted: Counted, more: i64) -> bool {
        self.usage.allows(counted, more)
    }

    pub(super) fn change(&self, counted: Counted, by: i64) {
        self.usage.change(counted, by);
    }
}

/// The owners that have a lock or wait.
#[derive(Debug, Default)]
pub(super) struct Owners {
    ids: HashMap<Arc<[u8]>, OwnerId>,
    records: Vec<Option<OwnerRecord>>,
    free: Vec<OwnerId>,
    /// The number of owners of each client.
    of_client: HashMap<LockClient, u32>,
    /// The number of owners that wait more than once.
    several: usize,
}

#[derive(Debug)]
struct OwnerRecord {
    /// See [`OwnerKey`].
    key: Arc<[u8]>,
    account: Arc<ClientAccount>,
    /// Locks, waiters and unanswered grants.
    uses: u32,
    waiters: u32,
}

/// The bytes of a key before the name: the kind of client, its number, the process.
const KEY_HEAD: usize = 1 + 16 + 4;

/// The fields of an owner in one string, by which it is found without an allocation.
type OwnerKey = ArrayVec<u8, { KEY_HEAD + OWNER_NAME_MAX }>;

fn key(owner: &LockOwner<'_>) -> Option<OwnerKey> {
    if owner.name.len() > OWNER_NAME_MAX {
        return None;
    }
    let mut key = OwnerKey::new();
    let mut add = |bytes: &[u8]| key.try_extend_from_slice(bytes).expect("a name that is not too long fits");
    match owner.client {
        LockClient::Host(IpAddr::V4(address)) => {
            add(&[4]);
            add(&address.to_ipv6_mapped().octets());
        }
        LockClient::Host(IpAddr::V6(address)) => {
            add(&[6]);
            add(&address.octets());
        }
        LockClient::Clientid(id) => {
            add(&[0; 9]);
            add(&id.to_be_bytes());
        }
        LockClient::Local => add(&[1; 17]),
    }
    add(&owner.process.to_be_bytes());
    add(owner.name);
    Some(key)
}

fn counted_owners(key: &[u8]) -> i64 {
    i64::try_from(owner_weight(&key[KEY_HEAD..])).expect("the name of an owner is limited")
}

impl Owners {
    /// The owner, if it has anything.
    pub(super) fn find(&self, owner: &LockOwner<'_>) -> Option<OwnerId> {
        self.ids.get(&*key(owner)?).copied()
    }

    /// Whether a client has owners.
    pub(super) fn has_client(&self, client: LockClient) -> bool {
        self.of_client.contains_key(&client)
    }

    /// The owner, with or without anything; none if its client has too many, or its name is too
    /// long. The caller then calls
    /// [`Self::change_uses`].
    pub(super) fn find_or_add(
        &mut self,
        owner: &LockOwner<'_>,
        account: &Arc<ClientAccount>,
    ) -> Option<OwnerId> {
        let key = key(owner)?;
        if let Some(id) = self.ids.get(&*key) {
            return Some(*id);
        }
        if !account.allows(Counted::Owners, counted_owners(&key)) {
            return None;
        }
        account.change(Counted::Owners, counted_owners(&key));
        let key: Arc<[u8]> = Arc::from(key.as_slice());
        let record = OwnerRecord { key: Arc::clone(&key), account: Arc::clone(account), uses: 0, waiters: 0 };
        let id = self.free.pop().unwrap_or_else(|| {
            self.records.push(None);
            OwnerId(u32::try_from(self.records.len() - 1).expect("owners are limited to less than 2^32"))
        });
        self.records[id.0 as usize] = Some(record);
        self.ids.insert(key, id);
        *self.of_client.entry(account.client()).or_default() += 1;
        Some(id)
    }

    /// Changes the number of locks, waiters and grants of an owner; without any it is removed.
    pub(super) fn change_uses(&mut self, id: OwnerId, by: i64) {
        let record = self.record_mut(id);
        let uses = i64::from(record.uses) + by;
        record.uses = u32::try_from(uses).expect("an owner has as many uses as were counted");
        if record.uses > 0 {
            return;
        }
        if let Some(record) = self.records[id.0 as usize].take() {
            record.account.change(Counted::Owners, -counted_owners(&record.key));
            self.ids.remove(&record.key);
            self.free.push(id);
            if let Entry::Occupied(mut count) = self.of_client.entry(record.account.client()) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
    }

    /// Changes the number of waiters of an owner.
    pub(super) fn change_waiters(&mut self, id: OwnerId, by: i64) {
        let record = self.record_mut(id);
        let had_several = record.waiters > 1;
        let waiters = i64::from(record.waiters) + by;
        record.waiters = u32::try_from(waiters).expect("an owner has as many waiters as were counted");
        let has_several = record.waiters > 1;
        self.several = self.several + usize::from(has_several) - usize::from(had_several);
        self.change_uses(id, by);
    }

    /// Whether an owner waits in some file.
    pub(super) fn waits(&self, id: OwnerId) -> bool {
        self.record(id).waiters > 0
    }

    /// Whether an owner waits more than once.
    pub(super) const fn any_waits_more_than_once(&self) -> bool {
        self.several > 0
    }

    pub(super) fn account(&self, id: OwnerId) -> &Arc<ClientAccount> {
        &self.record(id).account
    }

    pub(super) fn client(&self, id: OwnerId) -> LockClient {
        self.record(id).account.client()
    }

    pub(super) fn owner(&self, id: OwnerId) -> LockOwner<'_> {
        let record = self.record(id);
        let (head, name) = record.key.split_at(KEY_HEAD);
        let process = head.last_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        LockOwner { client: record.account.client(), process, name }
    }

    /// A lock with the name of its owner.
    pub(super) fn holder(&self, part: HeldPart) -> LockHolder {
        let LockOwner { client, process, name } = self.owner(part.owner);
        LockHolder { client, process, name: Arc::from(name), lock_type: part.lock_type, range: part.range }
    }

    /// The number of owners.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    fn record(&self, id: OwnerId) -> &OwnerRecord {
        self.records[id.0 as usize].as_ref().expect("an owner with locks or waiters has a record")
    }

    fn record_mut(&mut self, id: OwnerId) -> &mut OwnerRecord {
        self.records[id.0 as usize].as_mut().expect("an owner with locks or waiters has a record")
    }
}
