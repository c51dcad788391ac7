//! Clients of NFSv4: their records, leases and ids (RFC 8881 sections 18.35, 18.36, 18.50, 8.3).
//!
//! A client is removed in two steps, because it must be off the list on stable storage before
//! another client gets what it loses. The first step takes it from the table and ends its sessions:
//! it is departing. When it is off the list, the second step releases its state.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet, VecDeque},
    net::IpAddr,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use curt_proto::nfs4::{Clientid, SequenceId, SequenceStatusFlags, Verifier4};
use curt_rpc::server::client_network;
use parking_lot::Mutex;

use super::limits::IMPLEMENTATION_MAX;
use super::opens::ClientStates;
use super::sessions::CreateSessionSlot;
use super::{
    FileKey, RecordedState, ServerState, Session, ShareBits, ShareMode, StateFault, WantedAccess, has_room,
    is_mostly_used, nanoseconds,
};

/// Maximum time without a request for which a client keeps state that conflicts with no request.
const COURTESY_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum time between two examinations of all leases for which conflicts need not examine all.
const EXAMINATION_INTERVAL_MAX: Duration = Duration::from_secs(10);

/// The sender of a request, as far as the security flavor shows. Of AUTH_SYS only the uid counts:
/// groups and the name of the machine may change while a client runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Principal {
    /// AUTH_NONE.
    Anonymous,
    /// AUTH_SYS with this uid.
    Uid(u32),
}

/// The arguments of EXCHANGE_ID.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangeId<'a> {
    /// `co_ownerid`.
    pub(crate) owner: &'a [u8],
    /// `co_verifier`: the instance of the client.
    pub(crate) verifier: Verifier4,
    /// The caller.
    pub(crate) principal: Principal,
    /// `EXCHGID4_FLAG_UPD_CONFIRMED_REC_A`.
    pub(crate) is_update: bool,
    /// The name of the client's implementation.
    pub(crate) implementation: &'a [u8],
    /// The client's address.
    pub(crate) peer: IpAddr,
}

/// The result of EXCHANGE_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExchangedId {
    /// The client's id.
    pub(crate) client: Clientid,
    /// The sequence id of the next CREATE_SESSION.
    pub(crate) sequence: SequenceId,
    /// `EXCHGID4_FLAG_CONFIRMED_R`.
    pub(crate) is_confirmed: bool,
}

/// The usage of all clients of one address; for IPv6, of one network. Limits are per address,
/// because a host can present itself as any number of clients. Relaxed: numbers alone, and a limit
/// may be exceeded by the number of threads.
#[derive(Default)]
pub(super) struct AddressUsage {
    /// Records; changed with the table of clients locked.
    records: AtomicUsize,
    /// Bytes that sessions have reserved; changed with the table of clients locked.
    pub(super) reserved: AtomicUsize,
    /// States.
    pub(super) states: AtomicUsize,
    /// Delegations among them.
    pub(super) delegations: AtomicUsize,
}

/// A client: one instance of one owner.
pub(crate) struct Client {
    /// Its id.
    pub(crate) id: Clientid,
    /// Its owner.
    pub(crate) owner: Box<[u8]>,
    pub(super) verifier: Verifier4,
    pub(super) principal: Principal,
    pub(crate) peer: IpAddr,
    /// The usage of all clients of its address.
    pub(super) of_address: Arc<AddressUsage>,
    pub(super) implementation: Mutex<Box<[u8]>>,
    /// Nanoseconds of the last renewal of the lease. Relaxed: a time alone.
    renewed: AtomicU64,
    /// Number of compounds in progress, during which the lease does not expire. Relaxed: see
    /// `renewed`.
    pub(super) active: AtomicUsize,
    /// Whether it is recorded on stable storage.
    is_recorded: AtomicBool,
    /// Whether an OPEN of it asked to deny access to others. Relaxed: read by the request that sets
    /// it.
    denies: AtomicBool,
    /// Whether that is recorded.
    is_recorded_as_denying: AtomicBool,
    /// Whether it is recorded that it may have delegations, or is to be with its reclaims.
    has_delegations: AtomicBool,
    /// Whether it was removed from the table: it gets no state any more.
    is_removed: AtomicBool,
    /// Nanoseconds of the time before which the client is not asked again to return state. Relaxed:
    /// a time alone.
    pub(super) asked_until: AtomicU64,
    /// `SEQ4_STATUS_*` that hold for each session. Relaxed: sent with some later reply.
    pub(super) status_flags: AtomicU32,
    /// Number of its states. Relaxed: a number alone, which is changed with `states` locked.
    pub(super) state_count: AtomicUsize,
    pub(super) states: Mutex<ClientStates>,
}

impl Client {
    /// Renews the lease.
    pub(super) fn renew(&self, now: Duration) {
        self.renewed.fetch_max(nanoseconds(now), Ordering::Relaxed);
    }

    /// The time of the last renewal.
    pub(super) fn renewed(&self) -> Duration {
        Duration::from_nanos(self.renewed.load(Ordering::Relaxed))
    }

    /// Whether it has any state.
    pub(crate) fn has_states(&self) -> bool {
        self.state_count.load(Ordering::Relaxed) > 0
    }

    /// To be called before an OPEN with this mode, once the client may open files.
    pub(crate) fn note_denial(&self, mode: ShareMode) {
        if mode.deny != ShareBits::NONE {
            self.denies.store(true, Ordering::Relaxed);
        }
    }

    /// To be called when it reclaims a delegation. The record of the last run lasts until it is
    /// recorded with what it has reclaimed.
    pub(super) fn note_reclaimed_delegation(&self) {
        self.has_delegations.store(true, Ordering::Release);
    }

    /// Whether it may have delegations as far as is recorded.
    pub(crate) fn may_have_delegations(&self) -> bool {
        // Pairs with `set_recorded`, as in `is_recorded`.
        self.has_delegations.load(Ordering::Acquire)
    }

    /// The state that is to be recorded of it.
    pub(super) fn recorded_state(&self) -> RecordedState {
        RecordedState {
            denies: self.denies.load(Ordering::Relaxed),
            has_delegations: self.may_have_delegations(),
        }
    }

    /// Whether this run of the server has recorded it on stable storage, with its denials.
    pub(crate) fn is_recorded(&self) -> bool {
        // Pairs with `set_recorded`: a reader that sees it set finds the record on the disk.
        self.is_recorded.load(Ordering::Acquire)
            && (!self.denies.load(Ordering::Relaxed) || self.is_recorded_as_denying.load(Ordering::Acquire))
    }

    /// Records that the client is on stable storage, with this state.
    pub(crate) fn set_recorded(&self, held: RecordedState) {
        if held.denies {
            self.is_recorded_as_denying.store(true, Ordering::Release);
        }
        if held.has_delegations {
            self.has_delegations.store(true, Ordering::Release);
        }
        self.is_recorded.store(true, Ordering::Release);
    }

    /// Whether it was removed from the table of clients.
    pub(crate) fn is_removed(&self) -> bool {
        // Pairs with `set_removed`.
        self.is_removed.load(Ordering::Acquire)
    }

    fn set_removed(&self) {
        self.is_removed.store(true, Ordering::Release);
    }

    pub(super) fn is_expired(&self, now: Duration, lease: Duration) -> bool {
        self.active.load(Ordering::Relaxed) == 0 && now.saturating_sub(self.renewed()) > lease
    }
}

/// A client's record.
pub(super) struct ClientRecord {
    pub(super) client: Arc<Client>,
    /// Whether a CREATE_SESSION has confirmed it.
    pub(super) is_confirmed: bool,
    pub(super) slot: CreateSessionSlot,
    pub(super) sessions: Vec<Arc<Session>>,
}

impl ClientRecord {
    /// Whether it has anything that its owner would lose.
    fn has_state(&self) -> bool {
        !self.sessions.is_empty() || self.client.has_states()
    }
}

/// The records of one owner.
#[derive(Default)]
struct OwnerRecords {
    confirmed: Option<Clientid>,
    unconfirmed: Option<Clientid>,
}

/// The records of all clients.
#[derive(Default)]
pub(super) struct ClientTable {
    pub(super) records: HashMap<Clientid, ClientRecord>,
    owners: HashMap<Box<[u8]>, OwnerRecords>,
    /// By address: see [`client_network`]. An address stays until leases are examined.
    pub(super) addresses: HashMap<IpAddr, Arc<AddressUsage>>,
    /// The unconfirmed records of each address that has some, oldest first.
    unconfirmed: HashMap<IpAddr, VecDeque<Clientid>>,
    unconfirmed_count: usize,
    /// Clients that were removed, and whose state is not released yet.
    departing: HashMap<Clientid, Arc<Client>>,
}

impl ClientTable {
    fn of_owner(&self, owner: &[u8]) -> (Option<Clientid>, Option<Clientid>) {
        self.owners.get(owner).map_or((None, None), |ids| (ids.confirmed, ids.unconfirmed))
    }

    fn insert_unconfirmed(&mut self, record: ClientRecord) {
        let client = &record.client;
        self.owners.entry(client.owner.clone()).or_default().unconfirmed = Some(client.id);
        client.of_address.records.fetch_add(1, Ordering::Relaxed);
        self.unconfirmed.entry(client_network(client.peer)).or_default().push_back(client.id);
        self.unconfirmed_count += 1;
        self.records.insert(client.id, record);
    }

    /// Confirms a record. Returns the id of the confirmed one of the same owner, which is to be
    /// removed.
    fn confirm(&mut self, id: Clientid) -> Option<Clientid> {
        let record = self.records.get_mut(&id).filter(|record| !record.is_confirmed)?;
        record.is_confirmed = true;
        let client = Arc::clone(&record.client);
        self.is_unconfirmed_no_more(&client);
        let ids = self.owners.get_mut(&client.owner)?;
        ids.unconfirmed = None;
        ids.confirmed.replace(id)
    }

    /// A record was confirmed or removed.
    fn is_unconfirmed_no_more(&mut self, client: &Client) {
        self.unconfirmed_count -= 1;
        let address = client_network(client.peer);
        let Some(ids) = self.unconfirmed.get_mut(&address) else { return };
        ids.retain(|id| *id != client.id);
        if ids.is_empty() {
            self.unconfirmed.remove(&address);
        }
    }

    /// Removes a record. Its state remains to be released.
    fn remove(&mut self, id: Clientid) -> Option<ClientRecord> {
        let record = self.records.remove(&id)?;
        let client = &record.client;
        client.set_removed();
        if let Some(ids) = self.owners.get_mut(&client.owner) {
            ids.confirmed = ids.confirmed.filter(|other| *other != id);
            ids.unconfirmed = ids.unconfirmed.filter(|other| *other != id);
            if ids.confirmed.is_none() && ids.unconfirmed.is_none() {
                self.owners.remove(&client.owner);
            }
        }
        client.of_address.records.fetch_sub(1, Ordering::Relaxed);
        if !record.is_confirmed {
            self.is_unconfirmed_no_more(client);
        }
        Some(record)
    }

    /// Removes unconfirmed records until at most `max` are left: the oldest of the address that has
    /// the most, so that no address takes those of others.
    fn evict_unconfirmed(&mut self, max: usize) {
        while self.unconfirmed_count > max {
            let most = self.unconfirmed.values().max_by_key(|ids| (ids.len(), Reverse(ids.front())));
            let Some(oldest) = most.and_then(|ids| ids.front().copied()) else { return };
            self.remove(oldest);
        }
    }
}

impl ServerState {
    /// EXCHANGE_ID, in the cases of RFC 8881 section 18.35.4. It may remove a client.
    pub(crate) fn exchange_id(
        &self,
        asked: &ExchangeId<'_>,
        now: Duration,
    ) -> Result<ExchangedId, StateFault> {
        let mut table = self.clients.lock();
        let (confirmed, unconfirmed) = table.of_owner(asked.owner);
        let confirmed = confirmed.and_then(|id| table.records.get(&id));
        if asked.is_update {
            // Cases 6 to 9.
            let record = confirmed.ok_or(StateFault::NoRecord)?;
            if record.client.verifier != asked.verifier {
                return Err(StateFault::NotSame);
            }
            if record.client.principal != asked.principal {
                return Err(StateFault::NotPermitted);
            }
            *record.client.implementation.lock() = stored_implementation(asked.implementation);
            return Ok(exchanged(record));
        }
        if let Some(record) = confirmed {
            let id = record.client.id;
            if record.client.principal == asked.principal {
                if record.client.verifier == asked.verifier {
                    // Case 2.
                    return Ok(exchanged(record));
                }
                // Case 5: the restarted client loses its state when it confirms its new record.
            } else if record.has_state() && !record.client.is_expired(now, self.limits.lease) {
                // Case 3.
                return Err(StateFault::ClientInUse);
            } else {
                self.depart(&mut table, id);
            }
        }
        if let Some(id) = unconfirmed {
            // Case 4.
            table.remove(id);
        }
        let of_address = Arc::clone(table.addresses.entry(client_network(asked.peer)).or_default());
        let own = of_address.records.load(Ordering::Relaxed);
        if has_room(own, table.records.len(), self.limits.clients) {
            // Cases 1, 3, 4 and 5.
            let record = ClientRecord {
                client: Arc::new(self.new_client(asked, of_address, now)),
                is_confirmed: false,
                slot: CreateSessionSlot::default(),
                sessions: Vec::new(),
            };
            let exchanged = exchanged(&record);
            table.insert_unconfirmed(record);
            table.evict_unconfirmed(self.limits.unconfirmed);
            Ok(exchanged)
        } else {
            Err(StateFault::Delay)
        }
    }

    fn new_client(&self, asked: &ExchangeId<'_>, of_address: Arc<AddressUsage>, now: Duration) -> Client {
        Client {
            id: self.ids.client(),
            owner: asked.owner.into(),
            verifier: asked.verifier,
            principal: asked.principal,
            peer: asked.peer,
            of_address,
            implementation: Mutex::new(stored_implementation(asked.implementation)),
            renewed: AtomicU64::new(nanoseconds(now)),
            active: AtomicUsize::new(0),
            is_recorded: AtomicBool::new(false),
            denies: AtomicBool::new(false),
            is_recorded_as_denying: AtomicBool::new(false),
            has_delegations: AtomicBool::new(false),
            is_removed: AtomicBool::new(false),
            asked_until: AtomicU64::new(0),
            status_flags: AtomicU32::new(0),
            state_count: AtomicUsize::new(0),
            states: Mutex::default(),
        }
    }

    /// DESTROY_CLIENTID. It removes the client.
    pub(crate) fn destroy_clientid(&self, id: Clientid) -> Result<(), StateFault> {
        let mut table = self.clients.lock();
        let record = table.records.get(&id).ok_or(StateFault::StaleClient)?;
        if record.has_state() {
            return Err(StateFault::ClientBusy);
        }
        self.depart(&mut table, id);
        Ok(())
    }

    /// RECLAIM_COMPLETE of all file systems.
    pub(crate) fn reclaim_complete(&self, client: &Client) -> Result<(), StateFault> {
        client.states.lock().reclaim_complete()?;
        client.status_flags.fetch_and(!SequenceStatusFlags::RESTART_RECLAIM_NEEDED, Ordering::Relaxed);
        self.grace.complete(client);
        Ok(())
    }

    /// Confirms a client's record. It removes an earlier instance of the client.
    pub(super) fn confirm(&self, table: &mut ClientTable, id: Clientid) {
        if let Some(record) = table.records.get(&id).filter(|record| !record.is_confirmed)
            && self.grace.is_recorded(&record.client)
        {
            // Until RECLAIM_COMPLETE (RFC 8881 section 18.46.3).
            let flag = SequenceStatusFlags::RESTART_RECLAIM_NEEDED;
            record.client.status_flags.fetch_or(flag, Ordering::Relaxed);
        }
        if let Some(replaced) = table.confirm(id) {
            self.depart(table, replaced);
        }
    }

    /// Removes a client and ends its sessions. Its state remains until it is released.
    fn depart(&self, table: &mut ClientTable, id: Clientid) {
        let Some(record) = table.remove(id) else { return };
        for session in &record.sessions {
            self.sessions.remove(session);
        }
        table.departing.insert(id, record.client);
        self.departing.store(table.departing.len(), Ordering::Relaxed);
    }

    /// The client with this id.
    pub(super) fn client(&self, id: Clientid) -> Option<Arc<Client>> {
        Some(Arc::clone(&self.clients.lock().records.get(&id)?.client))
    }

    /// The clients that were removed, and whose state is not released yet.
    pub(crate) fn departing(&self) -> Vec<Arc<Client>> {
        if self.departing.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        self.clients.lock().departing.values().cloned().collect()
    }

    /// Releases the state of clients that were removed.
    pub(crate) fn release_departing(&self, clients: &[Arc<Client>]) {
        // A request that conflicts finds the state or the departing client, until both are gone.
        clients.iter().for_each(|client| self.release_states(client));
        let mut table = self.clients.lock();
        for client in clients {
            table.departing.remove(&client.id);
        }
        self.departing.store(table.departing.len(), Ordering::Relaxed);
    }

    /// Removes the clients whose leases have expired, and unconfirmed records of the age of a
    /// lease, and checks backchannels. A client with state is removed only if the server is
    /// crowded, if a request waits for one of its locks, or after a day: until a request conflicts
    /// with its state, it may return. Returns the number of clients removed.
    pub(crate) fn expire(&self, now: Duration) -> usize {
        self.check_callback_paths();
        let states = self.states.load(Ordering::Relaxed);
        let clients = self.find_idle(now);
        let is_crowded =
            is_mostly_used(states, self.limits.states) || is_mostly_used(clients, self.limits.clients);
        let waited_for = match &self.locks {
            Some(locks) if !self.find_expired(now, Client::has_states).is_empty() => {
                locks.clients_waited_for()
            }
            Some(_) | None => HashSet::new(),
        };
        self.remove_expired(now, |client| {
            is_crowded
                || !client.has_states()
                || waited_for.contains(&client.id)
                || now.saturating_sub(client.renewed()) > COURTESY_MAX
        })
    }

    /// Finds the clients whose leases may expire until the next examination. Returns the number of
    /// all clients.
    fn find_idle(&self, now: Duration) -> usize {
        let lease = self.limits.lease;
        // Clients that come later, or are renewed, have a whole lease.
        let until = now + EXAMINATION_INTERVAL_MAX.min(lease);
        let mut table = self.clients.lock();
        table.addresses.retain(|_, usage| Arc::strong_count(usage) > 1);
        let records = table.records.values().filter(|record| record.client.renewed() + lease < until);
        let found: Vec<_> = records.map(|record| Arc::clone(&record.client)).collect();
        let clients = table.records.len();
        drop(table);
        let mut idle = self.idle.lock();
        self.idle_count.store(found.len(), Ordering::Relaxed);
        *idle = found;
        self.idle_until.store(nanoseconds(until), Ordering::Relaxed);
        clients
    }

    /// The clients that have expired and for which `is_wanted` holds. Without any, it takes no lock
    /// that clients share.
    fn find_expired(&self, now: Duration, is_wanted: impl Fn(&Client) -> bool) -> Vec<Clientid> {
        let is_found = |client: &Client| {
            client.is_expired(now, self.limits.lease) && !client.is_removed() && is_wanted(client)
        };
        if nanoseconds(now) > self.idle_until.load(Ordering::Relaxed) {
            let table = self.clients.lock();
            let clients = table.records.values().map(|record| &record.client);
            return clients.filter(|client| is_found(client)).map(|client| client.id).collect();
        }
        if self.idle_count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let idle = self.idle.lock();
        idle.iter().filter(|client| is_found(client)).map(|client| client.id).collect()
    }

    /// Removes the clients whose leases have expired and whose opens of `file` deny what somebody
    /// else wants. Returns their number.
    pub(crate) fn expire_holders(&self, file: &FileKey, wanted: WantedAccess, now: Duration) -> usize {
        self.remove_expired(now, |client| client.states.lock().denies(file, wanted))
    }

    /// Removes the holder of a lock in conflict with another request, if its lease has expired.
    /// Returns whether it is removed now, or was before.
    pub(crate) fn expire_lock_holder(&self, id: Clientid, now: Duration) -> bool {
        self.remove_expired(now, |client| client.id == id) > 0
            || self.is_departing(id)
            || self.idle_count.load(Ordering::Relaxed) > 0
                && self.idle.lock().iter().any(|client| client.id == id && client.is_removed())
    }

    /// Whether a client was removed, and its state is not released yet.
    pub(crate) fn is_departing(&self, id: Clientid) -> bool {
        self.departing().iter().any(|client| client.id == id)
    }

    /// Whether a client that was removed still denies an access of `file` that is requested.
    pub(crate) fn is_denied_by_departing(&self, file: &FileKey, wanted: WantedAccess) -> bool {
        self.departing().iter().any(|client| client.states.lock().denies(file, wanted))
    }

    fn remove_expired(&self, now: Duration, is_removed: impl Fn(&Client) -> bool) -> usize {
        let mut found = self.find_expired(now, is_removed);
        if found.is_empty() {
            return 0;
        }
        let mut table = self.clients.lock();
        let records = &table.records;
        // It may have been renewed or removed meanwhile.
        let is_expired = |id: &Clientid| {
            records.get(id).is_some_and(|record| record.client.is_expired(now, self.limits.lease))
        };
        found.retain(is_expired);
        found.iter().for_each(|id| self.depart(&mut table, *id));
        found.len()
    }

    /// Removes a client, as if its lease had expired.
    pub(crate) fn expire_client(&self, id: Clientid) -> Result<(), StateFault> {
        let mut table = self.clients.lock();
        if !table.records.contains_key(&id) {
            return Err(StateFault::StaleClient);
        }
        self.depart(&mut table, id);
        Ok(())
    }
}

#[cfg(test)]
impl ServerState {
    /// The sessions of a client.
    pub(crate) fn sessions_of(&self, id: Clientid) -> Vec<Arc<Session>> {
        self.clients.lock().records.get(&id).map(|record| record.sessions.clone()).unwrap_or_default()
    }
}

fn exchanged(record: &ClientRecord) -> ExchangedId {
    ExchangedId { client: record.client.id, sequence: record.slot.next(), is_confirmed: record.is_confirmed }
}

fn stored_implementation(name: &[u8]) -> Box<[u8]> {
    name[..name.len().min(IMPLEMENTATION_MAX)].into()
}
