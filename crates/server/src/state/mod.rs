//! What clients hold at the server: byte-range locks of any protocol version, and the clients,
//! sessions and opens of NFSv4.
//!
//! Decides whether a stateid is valid, which opens, delegations and locks conflict, and when the
//! state of a client ends. The modules are state machines. They have no clock and no I/O; both are
//! arguments. A time is the duration since the server started.
//!
//! The order of locks: the table of clients or the list of idle ones, a client's states, a shard of
//! the table of delegations, a shard of the table of shares or of that of byte-range locks. The
//! locks of slots are taken alone. The path of READ, WRITE and GETATTR takes a shard of the
//! sessions, a slot and the states of its own client: no lock that all clients share.

mod admin;
mod clients;
mod delegations;
mod fault;
mod grace;
mod limits;
mod lock_states;
pub mod locks;
mod opens;
mod sessions;
mod shares;
mod slots;
#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use curt_proto::nfs4::{Clientid, SessionId};
use parking_lot::Mutex;
use siphasher::sip::SipHasher24;

use self::clients::ClientTable;
use self::sessions::SessionTable;

pub(crate) use self::admin::ClientSummary;
pub(crate) use self::clients::{Client, ExchangeId, Principal};
pub(crate) use self::delegations::{
    BegunChange, ChangeKind, DelegationObserver, DelegationTable, FileChange, GrantingCall, LocalChanges,
    Recall,
};
pub(crate) use self::fault::StateFault;
pub(crate) use self::grace::{GracePeriod, RecordedClient, RecordedState};
pub(crate) use self::limits::StateLimits;
pub(crate) use self::lock_states::{ClientLocks, LockBasis, LockStateOutcome, LockStateRequest, lock_owner};
pub(crate) use self::opens::{DelegationRefusal, DelegationRequest, OpenGranted, OpenRequest};
pub(crate) use self::sessions::{
    CallbackRoute, CallbackRouting, CallbackSecurity, CallbackSlotOutcome, ChannelLimits, CreateSession,
    SentCallback, Session,
};
pub use self::shares::FileKey;
pub(crate) use self::shares::{IoDirection, ShareBits, ShareHolder, ShareMode, ShareTable, WantedAccess};
pub(crate) use self::slots::{SequenceGrant, SequenceRequest, Sequenced, SlotInUse};

/// The state of all clients.
pub(crate) struct ServerState {
    limits: StateLimits,
    ids: IdSource,
    fingerprints: foldhash::fast::RandomState,
    clients: Mutex<ClientTable>,
    sessions: SessionTable,
    /// The share reservations of all protocol versions.
    pub(crate) shares: ShareTable,
    /// The delegations.
    pub(crate) delegations: DelegationTable,
    /// The grace period of all protocol versions.
    pub(crate) grace: Arc<GracePeriod>,
    /// The byte-range locks of all protocol versions; none if there are none to be released.
    locks: Option<Box<dyn ClientLocks>>,
    /// Number of opens and lock states. Relaxed: a limit may be exceeded by the number of threads.
    states: AtomicUsize,
    /// Number of clients that were removed, and whose state is not released yet. Relaxed: stored
    /// under the lock of the clients, and read before that for speed.
    departing: AtomicUsize,
    /// The clients whose leases may expire until `idle_until`.
    idle: Mutex<Vec<Arc<Client>>>,
    /// The number of clients in `idle`. Relaxed: stored with `idle` locked, and read before that
    /// for speed.
    idle_count: AtomicUsize,
    /// Nanoseconds of the time until which no lease of other clients than `idle` expires.
    /// Relaxed: a time alone.
    idle_until: AtomicU64,
}

impl ServerState {
    /// No clients. `epoch` distinguishes this run of the server from earlier ones; `secret` makes
    /// session ids impossible to guess.
    pub(crate) fn new(
        limits: StateLimits,
        epoch: u32,
        secret: &[u8; 16],
        grace: Arc<GracePeriod>,
        locks: Option<Box<dyn ClientLocks>>,
    ) -> Self {
        Self {
            sessions: SessionTable::new(limits.session_bytes),
            limits,
            ids: IdSource::new(epoch, secret),
            fingerprints: foldhash::fast::RandomState::default(),
            clients: Mutex::default(),
            shares: ShareTable::default(),
            delegations: DelegationTable::default(),
            grace,
            locks,
            states: AtomicUsize::new(0),
            departing: AtomicUsize::new(0),
            idle: Mutex::default(),
            idle_count: AtomicUsize::new(0),
            idle_until: AtomicU64::new(0),
        }
    }

    /// The duration of a lease.
    pub(crate) const fn lease(&self) -> Duration {
        self.limits.lease
    }

    /// Maximum number of clients.
    pub(crate) const fn clients_max(&self) -> usize {
        self.limits.clients
    }

    /// Sets the maximum number of states.
    #[cfg(test)]
    pub(crate) fn set_states_max(&mut self, max: usize) {
        self.limits.states = max;
    }

    /// Sets the maximum number of delegations.
    #[cfg(test)]
    pub(crate) fn set_delegations_max(&mut self, max: usize) {
        self.limits.delegations = max;
    }

    /// Sets the duration of a lease.
    pub(crate) fn set_lease(&mut self, lease: Duration) {
        self.limits.lease = lease;
    }
}

/// Issues identifiers. None is issued twice, and none equals one of another run.
struct IdSource {
    epoch: u32,
    secret: SipHasher24,
    client: AtomicU32,
    session: AtomicU32,
    state: AtomicU64,
}

impl IdSource {
    fn new(epoch: u32, secret: &[u8; 16]) -> Self {
        Self {
            // The stateids with 0 and with all bits set are special.
            epoch: epoch.clamp(1, u32::MAX - 1),
            secret: SipHasher24::new_with_key(secret),
            client: AtomicU32::new(1),
            session: AtomicU32::new(1),
            state: AtomicU64::new(1),
        }
    }

    fn client(&self) -> Clientid {
        let number = self.client.fetch_add(1, Ordering::Relaxed);
        Clientid(u64::from(self.epoch) << 32 | u64::from(number))
    }

    fn session(&self) -> SessionId {
        let number = self.session.fetch_add(1, Ordering::Relaxed);
        let mut id = [0; 16];
        id[..4].copy_from_slice(&self.epoch.to_be_bytes());
        id[4..8].copy_from_slice(&number.to_be_bytes());
        let tag = self.secret.hash(&id[..8]);
        id[8..].copy_from_slice(&tag.to_be_bytes());
        SessionId(id)
    }

    fn state(&self) -> u64 {
        self.state.fetch_add(1, Ordering::Relaxed)
    }
}

#[cfg(test)]
impl ServerState {
    /// Locks what all clients share, until the result is dropped.
    pub(crate) fn lock_all_shared(&self) -> impl Sized + '_ {
        (self.clients.lock(), self.idle.lock(), self.delegations.lock_all())
    }
}

/// Nanoseconds of a time, for atomics.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether a user of `own` units may take another one while all together use `used` of `max`: it
/// may have as much as is free for everybody else. Of users that take without end, one after the
/// other, each has half of what the ones before have left; `n` that take in step leave an
/// `n + 1`-th of the whole.
const fn has_room(own: usize, used: usize, max: usize) -> bool {
    own < max.saturating_sub(used)
}

/// Whether a user with `own` of `max` units has much. If it may take no more, it gets an error,
/// because it has to give up some of its own. One that has little waits for others.
const fn has_much(own: usize, max: usize) -> bool {
    own > max / 64
}

/// Whether a user with `own` units, while all together use `used` of `max`, has most of those that
/// it may have.
const fn is_near_limit(own: usize, used: usize, max: usize) -> bool {
    has_much(own, max) && own >= max.saturating_sub(used) / 4 * 3
}

/// Whether little is left of a limit.
const fn is_mostly_used(used: usize, max: usize) -> bool {
    used >= max / 4 * 3
}
