//! The lock service: the verbs LOCK, TEST, UNLOCK and CANCEL for NLM and for NFSv4.
//!
//! The layer between a protocol and the lock table (`state::locks`). It owns the mutexes of the
//! table's shards, over which files are distributed, the accounts of clients, the grace period, and
//! the thread for what is due later. Callbacks are handed to the protocol of their client with no
//! mutex held.
//!
//! No two of these locks are held together: `is_recorded` of an account, the map of accounts, a
//! shard. Only `is_recorded` is held during I/O; it blocks one client.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use curt_proto::nfs4::Clientid;
use curt_rpc::clock::TimeSource;
use curt_rpc::server::client_network;
use curt_types::{ByteRange, Fault, LockType};
use curt_vfs::{Error, KernelLocks};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::kernel_locked_files::KernelLockedFiles;
use crate::request::VerifiedHandle;
use crate::state::locks::{
    CallbackAnswer, CallbackId, CancelOutcome, ClientAccount, ClientLimits, HeldLock, LockCallback,
    LockClient, LockDenial, LockFile, LockHolder, LockOutcome, LockOwner, LockRequest, LockTable,
    LockTableCounts, LockTableOptions, LockUsage,
};
use crate::state::{ClientLocks, GracePeriod};

/// The number of shards: requests for files of different shards do not wait for each other.
const SHARDS: u8 = 16;
/// How often clients are examined for whether they still have locks. One that has none twice in a
/// row is no longer recorded.
const IDLE_SCAN: Duration = Duration::from_secs(60);

/// How a protocol carries out what the table decides. Calls come from any thread, with no shard
/// locked.
pub(crate) trait LockCallbacks: Send + Sync {
    /// Sends a callback, without waiting for the client. Its answer is reported with
    /// [`LockService::answered`], at the latest when the protocol gives up waiting for one.
    fn send(&self, callback: LockCallback);

    /// The client is about to get its first lock, or to wait. It must be recorded on disk before
    /// this returns, so that it is notified after a restart. On an error the request fails. Must
    /// not call the lock service.
    fn client_begins(&self, client: LockClient) -> Result<(), Fault>;

    /// The client has had no lock and no waiter for some time: it need not be recorded any more.
    /// Does not wait for I/O. Must not call the lock service.
    fn client_ends(&self, client: LockClient);
}

#[derive(Default)]
struct Accounts {
    of_client: HashMap<LockClient, Arc<ClientAccount>>,
    /// The usage of each address by its clients.
    of_address: HashMap<IpAddr, Arc<LockUsage>>,
}

/// The lock service.
pub(crate) struct LockService {
    shards: Vec<Mutex<LockTable>>,
    hashing: RandomState,
    accounts: RwLock<Accounts>,
    /// The usage of all clients.
    all: Arc<LockUsage>,
    hosts: OnceLock<Arc<dyn LockCallbacks>>,
    clientids: OnceLock<Arc<dyn LockCallbacks>>,
    /// The grace period of all protocols; the service's owner begins and ends it.
    grace: Arc<GracePeriod>,
    /// Whether processes of this machine are excluded too. Relaxed: set before the first request.
    uses_kernel_locks: AtomicBool,
    kernel_locked_files: Arc<KernelLockedFiles>,
    next_scan: Mutex<Option<Instant>>,
    alarm: Arc<TimerThread>,
    has_thread: AtomicBool,
}

/// When the service's thread has to run next.
#[derive(Default)]
struct TimerThread {
    state: Mutex<TimerState>,
    changed: Condvar,
}

#[derive(Default)]
struct TimerState {
    at: Option<Instant>,
    /// The service has ended.
    is_over: bool,
}

impl TimerThread {
    /// Lets the thread run at `at`, if that is earlier than it would.
    fn set(&self, at: Instant) {
        let mut state = self.state.lock();
        if state.at.is_none_or(|set| at < set) {
            state.at = Some(at);
            self.changed.notify_one();
        }
    }
}

impl Drop for LockService {
    fn drop(&mut self) {
        self.alarm.state.lock().is_over = true;
        self.alarm.changed.notify_one();
    }
}

impl LockService {
    /// A service without locks, clients and grace period. The options' seed and ids are chosen
    /// here.
    pub(crate) fn new(options: LockTableOptions) -> Self {
        let hashing = RandomState::new();
        // Ids of earlier runs do not occur again: 2^56 of them are left in this one.
        let run = hashing.hash_one("ids") >> 8 & !0xff;
        let shard = |number: u8| {
            Mutex::new(LockTable::new(LockTableOptions {
                seed: hashing.hash_one(number),
                first_id: run.wrapping_add(number.into()),
                id_step: SHARDS.into(),
                ..options
            }))
        };
        let all = Arc::new(LockUsage::new(ClientLimits::ALL, None));
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            hashing,
            accounts: RwLock::default(),
            all,
            hosts: OnceLock::new(),
            clientids: OnceLock::new(),
            grace: Arc::default(),
            uses_kernel_locks: AtomicBool::new(false),
            kernel_locked_files: Arc::default(),
            next_scan: Mutex::new(None),
            alarm: Arc::default(),
            has_thread: AtomicBool::new(false),
        }
    }

    /// Starts the thread for retransmissions, reservations and polls, unless there is one. It ends
    /// with the service.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(self: &Arc<Self>, clock: TimeSource) -> std::io::Result<()> {
        if self.has_thread.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let weak = Arc::downgrade(self);
        let alarm = Arc::clone(&self.alarm);
        let run = move || {
            loop {
                let Some(service) = weak.upgrade() else { return };
                alarm.state.lock().at = None;
                let next = service.tick(clock.now());
                drop(service);
                let mut state = alarm.state.lock();
                let next = state.at.into_iter().chain(next).min();
                state.at = next;
                // A shorter deadline wakes the thread; the loop then runs only what is due.
                match next {
                    _ if state.is_over => {}
                    Some(next) => drop(alarm.changed.wait_for(&mut state, clock.until(next))),
                    None => alarm.changed.wait(&mut state),
                }
                if state.is_over {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("locks".into()).spawn(run).map(drop)
    }

    /// Sets the callbacks of NLM hosts. Later calls have no effect.
    pub(crate) fn serve_hosts(&self, callbacks: Arc<dyn LockCallbacks>) {
        let _ = self.hosts.set(callbacks);
    }

    /// Sets the callbacks of NFSv4 clients. Later calls have no effect.
    pub(crate) fn serve_clientids(&self, callbacks: Arc<dyn LockCallbacks>) {
        let _ = self.clientids.set(callbacks);
    }

    /// Excludes processes of this machine as well, from now on.
    pub(crate) fn use_kernel_locks(&self) {
        self.uses_kernel_locks.store(true, Ordering::Relaxed);
    }

    /// The grace period: only reclaims are granted.
    pub(crate) const fn grace(&self) -> &Arc<GracePeriod> {
        &self.grace
    }

    /// LOCK of an NLM host. The protocol has checked the caller's permission, and that the target
    /// is a regular file. `is_given_up`: the client does not want the lock any more; it is then
    /// denied as in the grace period. It is asked with the file's shard locked: if the client
    /// unlocks after it gave the request up, no lock stays. [`Fault::Dquot`]: a limit.
    pub(crate) fn lock(
        &self,
        target: &VerifiedHandle<'_>,
        request: &LockRequest<'_>,
        is_given_up: &dyn Fn() -> bool,
        now: Instant,
    ) -> Result<LockOutcome, Fault> {
        let open_locks = || match request.owner.client {
            LockClient::Host(peer) if self.has_share_left(peer) => self.kernel_locks(target, peer),
            _ => Err(Fault::Dquot),
        };
        self.lock_file(&target.file_key(), request, is_given_up, open_locks, now)
    }

    /// LOCK of a client at `peer`, as [`Self::lock`], but no file is opened. `None`: the file is
    /// not locked by anybody, so the result of [`Self::kernel_locks`] is needed first. What is not
    /// used of it stays there.
    pub(crate) fn lock_with(
        &self,
        file: &LockFile,
        request: &LockRequest<'_>,
        peer: IpAddr,
        opened: &mut Option<Option<Box<dyn KernelLocks>>>,
        now: Instant,
    ) -> Result<Option<LockOutcome>, Fault> {
        if let Some(denial) = self.grace_denial(request) {
            return Ok(Some(LockOutcome::Denied(denial)));
        }
        let account = self.account_at(request.owner.client, Some(peer));
        self.record(&account)?;
        Ok(self.try_lock(file, request, &account, opened, &|| false, now))
    }

    /// `None`: the file is not locked by anybody, and was not opened.
    fn try_lock(
        &self,
        file: &LockFile,
        request: &LockRequest<'_>,
        account: &Arc<ClientAccount>,
        opened: &mut Option<Option<Box<dyn KernelLocks>>>,
        is_given_up: &dyn Fn() -> bool,
        now: Instant,
    ) -> Option<LockOutcome> {
        self.run(self.shard(file), |table, callbacks| {
            if is_given_up() {
                return Some(LockOutcome::Denied(LockDenial::Grace));
            }
            let local = if table.has(file) { None } else { opened.take()? };
            Some(table.lock(file, request, account, local, now, callbacks))
        })
    }

    fn grace_denial(&self, request: &LockRequest<'_>) -> Option<LockDenial> {
        match (self.grace.is_on(), request.reclaim) {
            (true, false) => Some(LockDenial::Grace),
            (false, true) => Some(LockDenial::NoGrace),
            (true, true) | (false, false) => None,
        }
    }

    fn lock_file(
        &self,
        file: &LockFile,
        request: &LockRequest<'_>,
        is_given_up: &dyn Fn() -> bool,
        open_locks: impl Fn() -> Result<Option<Box<dyn KernelLocks>>, Fault>,
        now: Instant,
    ) -> Result<LockOutcome, Fault> {
        if let Some(denial) = self.grace_denial(request) {
            return Ok(LockOutcome::Denied(denial));
        }
        let account = self.account(request.owner.client);
        self.record(&account)?;
        let mut opened = None;
        loop {
            if let Some(outcome) = self.try_lock(file, request, &account, &mut opened, is_given_up, now) {
                return Ok(outcome);
            }
            // No shard is locked, because opening may wait for a disk.
            opened = Some(open_locks()?);
        }
    }

    /// TEST (LOCKT): the lock that a request would conflict with. Not refused during the grace
    /// period.
    pub(crate) fn test(
        &self,
        target: &VerifiedHandle<'_>,
        owner: &LockOwner<'_>,
        lock_type: LockType,
        range: ByteRange,
    ) -> Result<Option<LockHolder>, Fault> {
        let file = target.file_key();
        let shard = self.shard(&file);
        let local = if shard.lock().has(&file) { None } else { self.open_kernel_locks(target)? };
        let table = shard.lock();
        match local {
            // What was locked meanwhile is in the table, and the kernel takes it for another
            // process's.
            Some(local) if !table.has(&file) => Ok(local.test(range, lock_type)?.map(LockHolder::of_process)),
            _ => Ok(table.test(&file, owner, lock_type, range)),
        }
    }

    /// UNLOCK. What is not held is not an error. Denied only because of a limit.
    pub(crate) fn unlock(
        &self,
        file: &LockFile,
        owner: &LockOwner<'_>,
        range: ByteRange,
        now: Instant,
    ) -> Result<(), LockDenial> {
        self.run(self.shard(file), |table, callbacks| table.unlock(file, owner, range, now, callbacks))
    }

    /// CANCEL: takes a waiting request out of the queue, or its unanswered grant back.
    pub(crate) fn cancel(
        &self,
        file: &LockFile,
        owner: &LockOwner<'_>,
        lock_type: LockType,
        range: ByteRange,
        now: Instant,
    ) -> CancelOutcome {
        self.run(self.shard(file), |table, callbacks| {
            table.cancel(file, owner, lock_type, range, now, callbacks)
        })
    }

    /// A grant's callback is about to be sent to `client`. Returns `false` if it must not be sent:
    /// the grant is not pending any more, or was sent and may still be answered.
    pub(crate) fn begin_grant(&self, client: LockClient, id: CallbackId) -> bool {
        self.shard_of(id).lock().begin_grant(client, id)
    }

    /// Reports the answer to a callback. `client` is the one that answered; answers to callbacks
    /// that were not sent to it are ignored.
    pub(crate) fn answered(&self, client: LockClient, id: CallbackId, answer: CallbackAnswer, now: Instant) {
        self.run(self.shard_of(id), |table, callbacks| table.answered(client, id, answer, now, callbacks));
    }

    /// Releases all locks of a host and takes its requests out of the queues: it has restarted.
    pub(crate) fn release_client(&self, client: LockClient, now: Instant) {
        self.release_owners(client, &|_, _| true, now);
    }

    /// As [`Self::release_client`], of the files and owners for which `is_released` holds. It is
    /// called with a shard locked.
    pub(crate) fn release_owners(
        &self,
        client: LockClient,
        is_released: &dyn Fn(&LockFile, &LockOwner<'_>) -> bool,
        now: Instant,
    ) {
        // Requests of strangers must not make the server examine all locks.
        if self.accounts.read().of_client.contains_key(&client) {
            for shard in &self.shards {
                self.run(shard, |table, callbacks| table.release_owners(client, is_released, now, callbacks));
            }
        }
    }

    /// Carries out what is due at `now`. Returns when it is to be called next, if nothing happens
    /// before.
    pub(crate) fn tick(&self, now: Instant) -> Option<Instant> {
        let next_of = |shard| {
            self.run(shard, |table, callbacks| {
                table.tick(now, callbacks);
                table.next_tick()
            })
        };
        let next = self.shards.iter().filter_map(next_of).min();
        let scan = self.forget_idle_clients(now);
        Some(next.map_or(scan, |next| next.min(scan)))
    }

    /// Calls `visit` for the locks and waiters of all files, those of each file together,
    /// until it returns `false`.
    pub(crate) fn report(&self, visit: &mut dyn FnMut(&LockFile, HeldLock) -> bool) {
        for shard in &self.shards {
            if !shard.lock().report(visit) {
                return;
            }
        }
    }

    /// The numbers of all shards.
    pub(crate) fn counts(&self) -> LockTableCounts {
        let counts = self.shards.iter().map(|shard| shard.lock().counts());
        counts.fold(LockTableCounts::default(), |sum, counts| sum.and(&counts))
    }

    fn shard(&self, file: &LockFile) -> &Mutex<LockTable> {
        let hash = self.hashing.hash_one(file);
        &self.shards[usize::try_from(hash % u64::from(SHARDS)).unwrap_or(0)]
    }

    fn shard_of(&self, id: CallbackId) -> &Mutex<LockTable> {
        &self.shards[usize::try_from(id.0 % u64::from(SHARDS)).unwrap_or(0)]
    }

    fn run<T>(
        &self,
        shard: &Mutex<LockTable>,
        run: impl FnOnce(&mut LockTable, &mut Vec<LockCallback>) -> T,
    ) -> T {
        let mut callbacks = Vec::new();
        let mut table = shard.lock();
        let value = run(&mut table, &mut callbacks);
        let next = table.next_tick();
        drop(table);
        if let Some(next) = next {
            self.alarm.set(next);
        }
        for callback in callbacks {
            if let Some(protocol) = self.protocol(callback.lock.client) {
                protocol.send(callback);
            }
        }
        value
    }

    fn protocol(&self, client: LockClient) -> Option<&Arc<dyn LockCallbacks>> {
        match client {
            LockClient::Host(_) => self.hosts.get(),
            LockClient::Clientid(_) => self.clientids.get(),
            LockClient::Local => None,
        }
    }

    /// The account of a client. While the caller has it, it is not removed.
    fn account(&self, client: LockClient) -> Arc<ClientAccount> {
        let address = match client {
            LockClient::Host(address) => Some(address),
            LockClient::Clientid(_) | LockClient::Local => None,
        };
        self.account_at(client, address)
    }

    fn account_at(&self, client: LockClient, address: Option<IpAddr>) -> Arc<ClientAccount> {
        if let Some(account) = self.accounts.read().of_client.get(&client) {
            return Arc::clone(account);
        }
        let Accounts { of_client, of_address } = &mut *self.accounts.write();
        let usage = || Arc::new(LockUsage::new(ClientLimits::CLIENT, Some(Arc::clone(&self.all))));
        let usage = match address.map(client_network) {
            Some(network) => Arc::clone(of_address.entry(network).or_insert_with(usage)),
            None => usage(),
        };
        let account = || Arc::new(ClientAccount::of_address(client, usage));
        Arc::clone(of_client.entry(client).or_insert_with(account))
    }

    /// Whether a client has been recorded, and so may have locks.
    pub(crate) fn has_begun(&self, client: LockClient) -> bool {
        let account = self.accounts.read().of_client.get(&client).map(Arc::clone);
        account.is_some_and(|account| *account.is_recorded.lock())
    }

    /// A client that was recorded for something else than locks has nothing else any more: it ends
    /// when it has had no locks for a while.
    pub(crate) fn end_later(&self, client: LockClient) {
        // Without a record there is nothing to end.
        let _ = self.record(&self.account(client));
    }

    /// Has a client recorded before it gets its first lock.
    fn record(&self, account: &ClientAccount) -> Result<(), Fault> {
        account.was_idle.store(false, Ordering::Relaxed);
        let mut is_recorded = account.is_recorded.lock();
        if !*is_recorded {
            if let Some(protocol) = self.protocol(account.client()) {
                protocol.client_begins(account.client())?;
            }
            *is_recorded = true;
        }
        Ok(())
    }

    /// Removes the accounts of clients without locks, waiters and requests in progress. Returns
    /// when this is due again.
    fn forget_idle_clients(&self, now: Instant) -> Instant {
        let mut next_scan = self.next_scan.lock();
        if let Some(next) = next_scan.filter(|next| now < *next) {
            return next;
        }
        let next = now + IDLE_SCAN;
        *next_scan = Some(next);
        drop(next_scan);
        let accounts = self.accounts.read();
        let idle = accounts.of_client.values().filter(|account| {
            let is_idle = Arc::strong_count(account) == 1;
            is_idle && account.was_idle.swap(true, Ordering::Relaxed)
        });
        let idle: Vec<_> = idle.cloned().collect();
        drop(accounts);
        idle.iter().for_each(|account| self.forget_client(account));
        drop(idle);
        self.accounts.write().of_address.retain(|_, usage| Arc::strong_count(usage) > 1);
        next
    }

    /// Removes an account, unless it is used: a request in progress and an owner have a reference.
    fn forget_client(&self, account: &Arc<ClientAccount>) {
        // References of the caller and of the map.
        let is_used = || Arc::strong_count(account) > 2;
        let client = account.client();
        // A request that begins now waits until the client has ended, and records it again.
        let mut is_recorded = account.is_recorded.lock();
        if is_used() {
            return;
        }
        if std::mem::take(&mut *is_recorded)
            && let Some(protocol) = self.protocol(client)
        {
            protocol.client_ends(client);
        }
        drop(is_recorded);
        // Requests cannot begin while the map is locked.
        let mut accounts = self.accounts.write();
        if !is_used() {
            accounts.of_client.remove(&client);
        }
    }

    /// The kernel's locks of a file that a client locks, if they are used and its tree has such
    /// locks. Opens the file. For a client that [has a share left](Self::has_share_left).
    pub(crate) fn kernel_locks(
        &self,
        target: &VerifiedHandle<'_>,
        peer: IpAddr,
    ) -> Result<Option<Box<dyn KernelLocks>>, Fault> {
        let opened = self.open_kernel_locks(target)?;
        Ok(opened.map(|locks| self.kernel_locked_files.count(client_network(peer), locks)))
    }

    fn open_kernel_locks(&self, target: &VerifiedHandle<'_>) -> Result<Option<Box<dyn KernelLocks>>, Fault> {
        if !self.uses_kernel_locks.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match target.vfs().open_kernel_locks(&target.node) {
            Ok(locks) => Ok(Some(locks)),
            Err(Error::Os(rustix::io::Errno::OPNOTSUPP)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a client can lock another file in the kernel, if that is done.
    pub(crate) fn has_share_left(&self, peer: IpAddr) -> bool {
        !self.uses_kernel_locks.load(Ordering::Relaxed)
            || self.kernel_locked_files.allows(client_network(peer), curt_vfs::kernel_locked_files_max())
    }
}

#[cfg(test)]
impl LockService {
    /// Locks what all clients share, until the result is dropped.
    pub(crate) fn lock_all_shared(&self) -> impl Sized + '_ {
        (self.accounts.write(), self.shards.iter().map(Mutex::lock).collect::<Vec<_>>())
    }
}

/// The locks of NFSv4 clients, for states that end.
pub(crate) struct NfsLocks {
    pub(crate) service: Arc<LockService>,
    pub(crate) clock: TimeSource,
}

impl ClientLocks for NfsLocks {
    fn holds(&self, file: &LockFile, owner: &LockOwner<'_>) -> bool {
        self.service.shard(file).lock().holds(file, owner)
    }

    fn is_wanted_for_writing(&self, file: &LockFile) -> bool {
        self.service.shard(file).lock().is_wanted_for_writing(file)
    }

    fn release_owner(&self, file: &LockFile, owner: &LockOwner<'_>) {
        let now = self.clock.now();
        let shard = self.service.shard(file);
        self.service.run(shard, |table, callbacks| table.release_owner(file, owner, now, callbacks));
    }

    fn cancel_based_on(&self, file: &LockFile, client: Clientid, open: u64) {
        let (client, now) = (LockClient::Clientid(client.0), self.clock.now());
        let shard = self.service.shard(file);
        self.service.run(shard, |table, callbacks| table.cancel_based_on(file, client, open, now, callbacks));
    }

    fn clients_waited_for(&self) -> HashSet<Clientid> {
        let mut clients = HashSet::new();
        for shard in &self.service.shards {
            shard.lock().holders_waited_for(&mut |holder| {
                if let LockClient::Clientid(client) = holder {
                    clients.insert(Clientid(client));
                }
            });
        }
        clients
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::sync::mpsc::{Receiver, Sender, channel};

    use curt_types::FileHandle;
    use curt_vfs::{HandleScheme, NodeHandle};

    use super::*;
    use crate::state::locks::{CallbackStyle, LockWait};

    /// A call of the lock service to a protocol.
    #[derive(Debug)]
    enum Called {
        Callback(LockCallback),
        Begins(LockClient),
        Ends(LockClient),
    }

    struct Protocol {
        calls: Mutex<Sender<Called>>,
        refuses: AtomicBool,
    }

    impl LockCallbacks for Protocol {
        fn send(&self, callback: LockCallback) {
            self.calls.lock().send(Called::Callback(callback)).unwrap();
        }

        fn client_begins(&self, client: LockClient) -> Result<(), Fault> {
            self.calls.lock().send(Called::Begins(client)).unwrap();
            if self.refuses.load(Ordering::Relaxed) { Err(Fault::Io) } else { Ok(()) }
        }

        fn client_ends(&self, client: LockClient) {
            self.calls.lock().send(Called::Ends(client)).unwrap();
        }
    }

    struct World {
        service: Arc<LockService>,
        protocol: Arc<Protocol>,
        calls: Receiver<Called>,
        now: Instant,
    }

    const A: LockClient = LockClient::Clientid(1);
    const B: LockClient = LockClient::Clientid(2);
    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn file(number: u32) -> LockFile {
        LockFile::new(1, NodeHandle::new(HandleScheme::Memory, 0, &number.to_be_bytes()).unwrap())
    }

    impl World {
        fn new() -> Self {
            let (sender, calls) = channel();
            let protocol = Arc::new(Protocol { calls: Mutex::new(sender), refuses: AtomicBool::new(false) });
            let service = Arc::new(LockService::new(LockTableOptions::default()));
            service.serve_clientids(Arc::<Protocol>::clone(&protocol));
            Self { service, protocol, calls, now: Instant::now() }
        }

        fn lock(&self, number: u32, client: LockClient) -> Result<LockOutcome, Fault> {
            let owner = LockOwner { client, process: 0, name: b"owner" };
            let handle = FileHandle::new(b"handle").unwrap();
            let wait = LockWait::Notified { handle: &handle, open: 0 };
            let request = LockRequest {
                owner,
                lock_type: LockType::Write,
                range: ByteRange::WHOLE,
                wait,
                reclaim: false,
            };
            self.service.lock_file(&file(number), &request, &|| false, || Ok(None), self.now)
        }

        fn unlock(&self, number: u32, client: LockClient) {
            let (file, owner) = (file(number), LockOwner { client, process: 0, name: b"owner" });
            let shard = self.service.shard(&file);
            self.service
                .run(shard, |table, callbacks| {
                    table.unlock(&file, &owner, ByteRange::WHOLE, self.now, callbacks)
                })
                .unwrap();
        }

        fn callback(&self) -> LockCallback {
            let minute = Duration::from_secs(60);
            loop {
                if let Called::Callback(callback) = self.calls.recv_timeout(minute).unwrap() {
                    return callback;
                }
            }
        }
    }

    #[test]
    fn a_client_is_recorded_before_its_first_lock_until_it_had_none_for_some_time() {
        let mut world = World::new();
        world.protocol.refuses.store(true, Ordering::Relaxed);
        assert_eq!(world.lock(1, A), Err(Fault::Io));
        assert_eq!(world.service.counts().locks, 0);
        world.protocol.refuses.store(false, Ordering::Relaxed);
        assert_eq!(world.lock(1, A), Ok(LockOutcome::Granted));
        assert_eq!(world.lock(2, A), Ok(LockOutcome::Granted));
        world.unlock(1, A);
        for _ in 0..3 {
            world.now += IDLE_SCAN;
            world.service.tick(world.now);
        }
        let calls: Vec<Called> = world.calls.try_iter().collect();
        assert!(matches!(calls[..], [Called::Begins(A), Called::Begins(A)]), "{calls:?}");
        world.unlock(2, A);
        world.now += IDLE_SCAN;
        world.service.tick(world.now);
        assert!(world.calls.try_recv().is_err());
        world.now += IDLE_SCAN;
        world.service.tick(world.now);
        assert!(matches!(world.calls.try_recv(), Ok(Called::Ends(A))));
        assert_eq!(world.lock(1, A), Ok(LockOutcome::Granted));
        assert!(matches!(world.calls.try_recv(), Ok(Called::Begins(A))));
    }

    /// A protocol whose clients end slowly.
    struct SlowProtocol {
        begins: Mutex<Sender<LockClient>>,
        ends: Mutex<Sender<LockClient>>,
        has_ended: Mutex<Receiver<()>>,
    }

    impl LockCallbacks for SlowProtocol {
        fn send(&self, _: LockCallback) {}

        fn client_begins(&self, client: LockClient) -> Result<(), Fault> {
            self.begins.lock().send(client).unwrap();
            Ok(())
        }

        fn client_ends(&self, client: LockClient) {
            self.ends.lock().send(client).unwrap();
            self.has_ended.lock().recv().unwrap();
        }
    }

    #[test]
    fn others_lock_while_a_client_ends_and_the_client_itself_is_recorded_again() {
        let (begins, begun) = channel();
        let (ends, ending) = channel();
        let (end, has_ended) = channel();
        let protocol = SlowProtocol {
            begins: Mutex::new(begins),
            ends: Mutex::new(ends),
            has_ended: Mutex::new(has_ended),
        };
        let service = Arc::new(LockService::new(LockTableOptions::default()));
        service.serve_clientids(Arc::new(protocol));
        let now = Instant::now();
        let lock = |number, client| {
            let owner = LockOwner { client, process: 0, name: b"owner" };
            let (lock_type, range) = (LockType::Write, ByteRange::WHOLE);
            let request = LockRequest { owner, lock_type, range, wait: LockWait::No, reclaim: false };
            service.lock_file(&file(number), &request, &|| false, || Ok(None), now)
        };
        assert_eq!(lock(1, A), Ok(LockOutcome::Granted));
        service.release_client(A, now);
        service.tick(now);
        std::thread::scope(|scope| {
            scope.spawn(|| service.tick(now + IDLE_SCAN));
            assert_eq!(ending.recv(), Ok(A));
            assert_eq!(lock(2, B), Ok(LockOutcome::Granted));
            let again = scope.spawn(|| lock(1, A));
            end.send(()).unwrap();
            assert_eq!(again.join().unwrap(), Ok(LockOutcome::Granted));
        });
        assert_eq!(begun.try_iter().collect::<Vec<_>>(), [A, B, A]);
    }

    // SEMANTICS: lockd-13.
    #[test]
    fn a_file_never_comes_into_the_table_without_its_kernel_locks() {
        let world = World::new();
        let request = |client, wait| LockRequest {
            owner: LockOwner { client, process: 0, name: b"owner" },
            lock_type: LockType::Read,
            range: ByteRange::WHOLE,
            wait,
            reclaim: false,
        };
        let opened = std::cell::Cell::new(0);
        let lock = |client, meanwhile: &dyn Fn()| {
            let open = || {
                opened.set(opened.get() + 1);
                meanwhile();
                Ok(None)
            };
            let outcome =
                world.service.lock_file(&file(1), &request(client, LockWait::No), &|| false, open, world.now);
            assert_eq!(outcome, Ok(LockOutcome::Granted));
        };
        lock(A, &|| ());
        lock(B, &|| ());
        assert_eq!(opened.get(), 1, "those of a file in the table are open");
        world.unlock(1, A);
        world.unlock(1, B);
        // Another client has locked the file, or has locked and unlocked it, when they are open.
        lock(A, &|| lock(B, &|| ()));
        assert_eq!(opened.get(), 3);
        world.unlock(1, A);
        world.unlock(1, B);
        lock(A, &|| {
            lock(B, &|| ());
            world.unlock(1, B);
        });
        assert_eq!((opened.get(), world.service.counts().locks), (5, 1));
        // Who opens files himself does so only for one that nobody has locked.
        let (mut opened, request) = (None, request(B, LockWait::No));
        let lock = |number, opened: &mut _| {
            world.service.lock_with(&file(number), &request, HERE, opened, world.now)
        };
        assert_eq!(lock(2, &mut opened), Ok(None));
        assert_eq!(lock(1, &mut opened), Ok(Some(LockOutcome::Granted)));
        opened = Some(None);
        assert_eq!(lock(2, &mut opened), Ok(Some(LockOutcome::Granted)));
        assert!(opened.is_none());
    }

    // SEMANTICS: lockd-12.
    #[test]
    fn the_clients_of_one_address_share_its_limits_as_long_as_one_of_them_is_known() {
        let world = World::new();
        let account = |number, address: &str| {
            world.service.account_at(LockClient::Clientid(number), Some(address.parse().unwrap()))
        };
        let share = |one: &ClientAccount, other: &ClientAccount| Arc::ptr_eq(one.usage(), other.usage());
        let [first, second] = [1, 2].map(|number| account(number, "10.0.0.1"));
        assert!(share(&first, &second) && share(&first, &account(3, "::ffff:10.0.0.1")));
        assert!(share(&account(4, "fd00::1"), &account(5, "fd00::2:0:0:0")));
        assert!(share(&first, &world.service.account(LockClient::Host("10.0.0.1".parse().unwrap()))));
        for other in [account(6, "10.0.0.2"), account(7, "fd00:0:0:1::1")] {
            assert!(!share(&first, &other));
        }
        drop((first, second));
        assert_eq!(world.service.accounts.read().of_address.len(), 4);
        for hours in 1..=2 {
            world.service.forget_idle_clients(world.now + Duration::from_secs(3600 * hours));
        }
        let accounts = world.service.accounts.read();
        assert!(accounts.of_client.is_empty() && accounts.of_address.is_empty());
    }

    #[test]
    fn only_reclaims_are_granted_in_the_grace_period() {
        let world = World::new();
        let request = |reclaim| LockRequest {
            owner: LockOwner { client: A, process: 0, name: b"owner" },
            lock_type: LockType::Write,
            range: ByteRange::WHOLE,
            wait: LockWait::No,
            reclaim,
        };
        let lock =
            |reclaim| world.service.lock_file(&file(1), &request(reclaim), &|| false, || Ok(None), world.now);
        world.service.grace().begin_for_others(Duration::from_secs(90));
        assert_eq!(lock(false), Ok(LockOutcome::Denied(LockDenial::Grace)));
        assert_eq!(lock(true), Ok(LockOutcome::Granted));
        world.service.grace().end();
        assert_eq!(lock(true), Ok(LockOutcome::Denied(LockDenial::NoGrace)));
        assert_eq!(lock(false), Ok(LockOutcome::Granted));
    }

    #[test]
    fn the_thread_ends_reservations_in_every_shard() {
        let mut world = World::new();
        world.service.start(TimeSource::System).unwrap();
        for number in 0..40 {
            world.now = Instant::now();
            let third = LockClient::Clientid(3);
            assert_eq!(world.lock(number, A), Ok(LockOutcome::Granted));
            assert!(matches!(world.lock(number, B), Ok(LockOutcome::Blocked(_))));
            assert!(matches!(world.lock(number, third), Ok(LockOutcome::Blocked(_))));
            world.unlock(number, A);
            let callback = world.callback();
            assert_eq!((callback.style, callback.lock.client), (CallbackStyle::Notified, B));
            let answer = CallbackAnswer::Accepted { round_trip: Duration::from_millis(1) };
            world.service.answered(B, callback.id, answer, Instant::now());
            // It does not come, so the next is notified.
            assert_eq!(world.callback().lock.client, third);
        }
    }
}
