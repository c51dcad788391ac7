//! The lock states that this client has at the server (RFC 8881 sections 8.2 and 9).
//!
//! A lock state stands for the locks of one lock-owner in one file, and is based on an open. Who
//! the owner is for programs does not matter to the server, because conflicts within the mount are
//! decided before: an owner of the mount gets an unused state, with its lock-owner and
//! stateid, and keeps it while it holds or waits for something. So a file has no more states than
//! owners hold locks at a time, however many processes take turns. A state ends with the CLOSE of
//! its open, which is pinned as long as the state exists.
//!
//! The table knows what the server has granted, and what it may have granted by LOCKs whose replies
//! were lost. Both are unlocked. After a restart of the server only the former is reclaimed: a
//! client may reclaim what it held, not what it asked for (section 8.4.2), and not what it has
//! asked the server to unlock, which another client may have got since ([`Weakening`]). `epoch`
//! counts the losses of all states: the reply to a request of before a loss says nothing. Sends
//! nothing. The events are called with no lock of this table held.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use curt_policy::locks::LockRanges;
use curt_proto::nfs4::{NfsFh4, NfsStat4, Stateid};
use curt_rpc::auth::RpcCredential;
use curt_types::{ByteRange, FileHandle, LockType};
use parking_lot::Mutex;

use super::{open_key::OpenKey, results::Execution};
use crate::protocol::{LockEvents, OpenContext, WireLock, WireOwner};

/// The beginning of the names of lock-owners. A number follows.
const PREFIX: [u8; 4] = *b"lock";

/// The number of a lock-owner at the server; unique in a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LockOwnerName(u64);

impl LockOwnerName {
    /// The owner of tests by those that have no state. It never locks anything.
    pub(super) const TESTS: Self = Self(0);

    /// The name of the lock-owner on the wire.
    pub(super) fn bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&PREFIX);
        bytes[4..].copy_from_slice(&self.0.to_be_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let number = bytes.strip_prefix(&PREFIX)?;
        Some(Self(u64::from_be_bytes(number.try_into().ok()?)))
    }
}

/// The lock states of a client.
#[derive(Default)]
pub(super) struct LockStateTable {
    states: Mutex<LockStates>,
    /// The number of states; read without the mutex, so that mounts without locks pay nothing.
    count: AtomicUsize,
    events: Mutex<Option<Weak<dyn LockEvents>>>,
}

#[derive(Debug, Default)]
struct LockStates {
    epoch: u64,
    last_name: u64,
    files: HashMap<FileHandle, Vec<ClientLockState>>,
}

#[derive(Debug)]
struct ClientLockState {
    name: LockOwnerName,
    /// The owner of the open.
    open: u32,
    credential: Arc<RpcCredential>,
    /// Its user.
    user: Option<WireOwner>,
    /// `None`: the server has granted nothing yet, or has forgotten it.
    stateid: Option<Stateid>,
    /// Ranges that the server has granted, and was not asked to unlock.
    held: LockRanges,
    /// Ranges that the server may hold, or hold more strongly: replies were lost, or a request to
    /// give them up is in progress.
    perhaps_held: LockRanges,
    /// Requests in progress.
    calls: u32,
    /// Ranges that were denied to its user, who waits for a notification of each.
    awaited: Vec<ByteRange>,
    /// The server has lost the state: it has to be reclaimed.
    is_forgotten: bool,
    /// Its locks are lost, which is being reported. Until then its stateid is used, which the
    /// server refuses.
    is_lost: bool,
}

/// A state that a request uses.
#[derive(Clone, Debug)]
pub(super) struct LockStateRef {
    pub(super) name: LockOwnerName,
    pub(super) open: OpenKey,
    pub(super) credential: Arc<RpcCredential>,
    pub(super) stateid: Option<Stateid>,
    pub(super) epoch: u64,
}

/// A request in progress that uses a state. Dropping it ends the use.
pub(super) struct LockUse<'a> {
    table: &'a LockStateTable,
    file: &'a FileHandle,
    name: LockOwnerName,
}

/// A LOCKU, or a LOCK that may be weaker than what is held. From the moment it is sent, the server
/// may have executed it and granted the range to another client: what it takes is not reclaimed
/// after a restart of the server, unless it was certainly not executed.
pub(super) struct Weakening<'a> {
    table: &'a LockStateTable,
    state_ref: &'a LockStateRef,
    range: ByteRange,
    /// The lock that is left; `None`: none.
    lock_type: Option<LockType>,
    taken: Mutex<TakenLocks>,
}

#[derive(Default)]
struct TakenLocks {
    ranges: LockRanges,
    /// An earlier attempt may have been executed.
    may_be_executed: bool,
}

/// The locks of an owner that have to be unlocked.
#[derive(Clone, Debug)]
pub(super) enum UnlockTarget {
    /// The server holds nothing there.
    None,
    /// The locks of this state.
    State(LockStateRef),
    /// The reply to this LOCK was lost, and there is no stateid to unlock it by.
    UnknownStateid(LockStateRef, ByteRange, LockType),
}

/// Whether the bytes of a READ, WRITE or SETATTR are locked through its open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockOfIo {
    /// Not locked.
    None,
    /// Some are, by this stateid.
    Stateid(Stateid),
    /// Some were when the server was restarted: recovery decides whether they still are.
    Forgotten,
}

/// Locks that the server holds no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LostLocks {
    pub(super) file: FileHandle,
    name: LockOwnerName,
    pub(super) owner: Option<WireOwner>,
    pub(super) ranges: LockRanges,
    /// The stateid of the locks, if it was known.
    pub(super) stateid: Option<Stateid>,
}

/// Locks to be reclaimed.
#[derive(Clone, Debug)]
pub(super) struct LocksToReclaim {
    pub(super) state: LockStateRef,
    pub(super) ranges: LockRanges,
}

impl ClientLockState {
    fn state_ref(&self, file: &FileHandle, epoch: u64) -> LockStateRef {
        LockStateRef {
            name: self.name,
            open: OpenKey { file: file.clone(), owner: self.open },
            credential: Arc::clone(&self.credential),
            // Zero stands for the newest state (section 8.2.2).
            stateid: self.stateid.map(|stateid| Stateid { seqid: 0, ..stateid }),
            epoch,
        }
    }

    fn is_unused(&self) -> bool {
        self.held.is_empty() && self.perhaps_held.is_empty() && self.calls == 0 && self.awaited.is_empty()
    }

    /// The server has unlocked a range, or never locked it.
    fn clear(&mut self, range: ByteRange) {
        self.held.set(range, None);
        self.perhaps_held.set(range, None);
    }

    fn set_awaited(&mut self, range: ByteRange, is_awaited: bool) {
        self.awaited.retain(|awaited| *awaited != range);
        self.awaited.extend(is_awaited.then_some(range));
    }

    fn free_if_unused(&mut self) {
        if self.is_unused() {
            self.user = None;
        }
    }

    /// Its locks are lost. `None`: another thread reports that.
    fn lose(&mut self, file: &FileHandle) -> Option<LostLocks> {
        if std::mem::replace(&mut self.is_lost, true) {
            return None;
        }
        self.is_forgotten = false;
        Some(LostLocks {
            file: file.clone(),
            name: self.name,
            owner: self.user,
            ranges: self.held.clone(),
            stateid: self.stateid,
        })
    }
}

impl<'a> Weakening<'a> {
    pub(super) fn new(
        table: &'a LockStateTable,
        state_ref: &'a LockStateRef,
        range: ByteRange,
        lock_type: Option<LockType>,
    ) -> Self {
        Self { table, state_ref, range, lock_type, taken: Mutex::default() }
    }

    /// The request is sent now.
    pub(super) fn begin(&self) {
        let taken = self.table.doubt(self.state_ref, self.range, self.lock_type);
        self.taken.lock().ranges.strengthen(&taken);
    }

    /// An attempt has brought no result.
    pub(super) fn again(&self, execution: Execution) {
        match execution {
            Execution::None => self.refused(),
            Execution::Possible => self.taken.lock().may_be_executed = true,
        }
    }

    /// The server has not executed the last attempt.
    pub(super) fn refused(&self) {
        let taken = &mut *self.taken.lock();
        if !taken.may_be_executed {
            self.table.still_held(self.state_ref, &std::mem::take(&mut taken.ranges));
        }
    }
}

impl LockStates {
    /// The states that hold a lock of these bytes through an open.
    fn locking<'a>(
        &'a self,
        open: &'a OpenKey,
        range: ByteRange,
    ) -> impl Iterator<Item = &'a ClientLockState> {
        let of_file = self.files.get(&open.file).into_iter().flatten();
        of_file
            .filter(move |state| state.open == open.owner && state.held.overlapping(range).next().is_some())
    }

    fn state(&mut self, file: &FileHandle, name: LockOwnerName) -> Option<&mut ClientLockState> {
        self.files.get_mut(file)?.iter_mut().find(|state| state.name == name)
    }
}

impl LockStateTable {
    /// Passes what happens to locks to `events` from now on.
    pub(super) fn report(&self, events: Weak<dyn LockEvents>) {
        *self.events.lock() = Some(events);
    }

    pub(super) fn events(&self) -> Option<Arc<dyn LockEvents>> {
        self.events.lock().as_ref().and_then(Weak::upgrade)
    }

    /// Whether there is no state.
    pub(super) fn is_empty(&self) -> bool {
        // Pairs with the changes under the mutex: a thread that received a grant sees its state.
        self.count.load(Ordering::Acquire) == 0
    }

    /// The state for a LOCK of `owner`, which is its own, or an unused one of the same open, or a
    /// new one. Returns whether it is new: its open has to be pinned.
    pub(super) fn begin<'a>(
        &'a self,
        file: &'a FileHandle,
        open: &OpenContext,
        owner: WireOwner,
        range: ByteRange,
    ) -> (LockStateRef, LockUse<'a>, bool) {
        let states = &mut *self.states.lock();
        let epoch = states.epoch;
        let of_file = states.files.entry(file.clone()).or_default();
        let own = of_file.iter().position(|state| state.user == Some(owner));
        let index =
            own.or_else(|| of_file.iter().position(|state| state.user.is_none() && state.open == open.owner));
        let is_new = index.is_none();
        let index = index.unwrap_or_else(|| {
            states.last_name += 1;
            of_file.push(ClientLockState {
                name: LockOwnerName(states.last_name),
                open: open.owner,
                credential: Arc::clone(&open.credential),
                user: None,
                stateid: None,
                held: LockRanges::default(),
                perhaps_held: LockRanges::default(),
                calls: 0,
                awaited: Vec::new(),
                is_forgotten: false,
                is_lost: false,
            });
            self.count.fetch_add(1, Ordering::Release);
            of_file.len() - 1
        });
        let state = &mut of_file[index];
        state.user = Some(owner);
        state.calls += 1;
        // The reply to this request decides whether the range is waited for.
        state.set_awaited(range, false);
        let state_ref = state.state_ref(file, epoch);
        let used = LockUse { table: self, file, name: state.name };
        (state_ref, used, is_new)
    }

    /// The current state for a request that is sent again.
    pub(super) fn current_state(&self, state_ref: &LockStateRef) -> LockStateRef {
        let states = &mut *self.states.lock();
        let epoch = states.epoch;
        let file = &state_ref.open.file;
        let state = states.state(file, state_ref.name);
        state.map_or_else(|| state_ref.clone(), |state| state.state_ref(file, epoch))
    }

    /// The server has granted a lock. Returns `false` if all states were lost since the request.
    pub(super) fn granted(&self, state_ref: &LockStateRef, stateid: Stateid, lock: &WireLock) -> bool {
        let states = &mut *self.states.lock();
        if states.epoch != state_ref.epoch {
            return false;
        }
        if let Some(state) = states.state(&state_ref.open.file, state_ref.name) {
            state.stateid = Some(stateid);
            state.set_awaited(lock.range, false);
            state.held.set(lock.range, Some(lock.lock_type));
            state.perhaps_held.set(lock.range, None);
        }
        true
    }

    /// The server has denied a lock. `is_awaited`: whether it will notify this client.
    pub(super) fn denied(&self, state_ref: &LockStateRef, range: ByteRange, is_awaited: bool) {
        if let Some(state) = self.states.lock().state(&state_ref.open.file, state_ref.name) {
            state.set_awaited(range, is_awaited);
        }
    }

    /// The reply to a LOCK is lost: the server may have granted it.
    pub(super) fn may_hold(&self, state_ref: &LockStateRef, range: ByteRange, lock_type: LockType) {
        if let Some(state) = self.states.lock().state(&state_ref.open.file, state_ref.name) {
            state.perhaps_held.strengthen(&LockRanges::of(range, lock_type));
        }
    }

    /// A request is sent that leaves no more than `lock_type` of a range. Returns what it takes,
    /// which is perhaps held from now on.
    fn doubt(&self, state_ref: &LockStateRef, range: ByteRange, lock_type: Option<LockType>) -> LockRanges {
        let states = &mut *self.states.lock();
        let mut taken = LockRanges::default();
        if states.epoch == state_ref.epoch
            && let Some(state) = states.state(&state_ref.open.file, state_ref.name)
        {
            for (part, held) in state.held.parts(range) {
                if held > lock_type {
                    taken.set(part, held);
                    state.held.set(part, lock_type);
                }
            }
            state.perhaps_held.strengthen(&taken);
        }
        taken
    }

    /// The server has not executed the request that was to take these locks. What was lost or
    /// unlocked meanwhile stays so.
    fn still_held(&self, state_ref: &LockStateRef, taken: &LockRanges) {
        let states = &mut *self.states.lock();
        let other = |stateid: Option<Stateid>| stateid.map(|stateid| stateid.other);
        if states.epoch != state_ref.epoch {
            return;
        }
        let state = states.state(&state_ref.open.file, state_ref.name);
        let Some(state) = state.filter(|state| other(state.stateid) == other(state_ref.stateid)) else {
            return;
        };
        for (range, lock_type) in taken.iter() {
            for (part, _) in state.perhaps_held.within(range).iter() {
                state.held.set(part, Some(lock_type));
            }
        }
    }

    /// A LOCK whose reply was lost turns out not to be granted.
    pub(super) fn not_granted(&self, state_ref: &LockStateRef, range: ByteRange) {
        if let Some(state) = self.states.lock().state(&state_ref.open.file, state_ref.name) {
            state.clear(range);
        }
    }

    /// An owner does not wait for a notification of a range any more.
    pub(super) fn withdraw(&self, file: &FileHandle, owner: WireOwner, range: ByteRange) {
        let states = &mut *self.states.lock();
        for state in states.files.get_mut(file).into_iter().flatten() {
            if state.user == Some(owner) {
                state.set_awaited(range, false);
                state.free_if_unused();
            }
        }
    }

    /// Returns the locks that an owner has to unlock within `range`.
    pub(super) fn unlockable(&self, file: &FileHandle, owner: WireOwner, range: ByteRange) -> UnlockTarget {
        let states = &mut *self.states.lock();
        let epoch = states.epoch;
        let mut of_file = states.files.get_mut(file).into_iter().flatten();
        let Some(state) = of_file.find(|state| state.user == Some(owner)) else { return UnlockTarget::None };
        let (granted, perhaps) = (state.held.overlapping(range), state.perhaps_held.overlapping(range));
        let Some((held, lock_type)) = granted.chain(perhaps).next() else { return UnlockTarget::None };
        let state_ref = state.state_ref(file, epoch);
        match state.stateid {
            Some(_) => UnlockTarget::State(state_ref),
            None => UnlockTarget::UnknownStateid(state_ref, held, lock_type),
        }
    }

    /// The server has unlocked a range. Returns `false` if all states were lost since the request:
    /// the lock may have been reclaimed.
    pub(super) fn unlocked(&self, state_ref: &LockStateRef, stateid: Stateid, range: ByteRange) -> bool {
        let states = &mut *self.states.lock();
        if states.epoch != state_ref.epoch {
            return false;
        }
        if let Some(state) = states.state(&state_ref.open.file, state_ref.name) {
            state.stateid = Some(stateid);
            state.clear(range);
            state.free_if_unused();
        }
        true
    }

    /// The lock-owner by which an owner of the mount tests.
    pub(super) fn name_for_test(&self, file: &FileHandle, owner: WireOwner) -> LockOwnerName {
        let states = self.states.lock();
        let mut of_file = states.files.get(file).into_iter().flatten();
        of_file.find(|state| state.user == Some(owner)).map_or(LockOwnerName::TESTS, |state| state.name)
    }

    /// The stateid for the I/O of an open: that of a lock of these bytes, if there is one
    /// (section 9.1.4: a server with mandatory locks wants the one of the lock's owner).
    pub(super) fn for_io(&self, open: &OpenKey, range: ByteRange) -> LockOfIo {
        if self.is_empty() {
            return LockOfIo::None;
        }
        let states = self.states.lock();
        let mut locking = states.locking(open, range).peekable();
        if locking.peek().is_none() {
            return LockOfIo::None;
        }
        let stateid = locking.find_map(|state| state.stateid);
        stateid.map_or(LockOfIo::Forgotten, |stateid| LockOfIo::Stateid(Stateid { seqid: 0, ..stateid }))
    }

    /// The waiter that the server notifies: its file is known, and the owner waits.
    pub(super) fn waiter(&self, file: &FileHandle, name: &[u8]) -> Option<WireOwner> {
        let name = LockOwnerName::of_bytes(name)?;
        self.states.lock().state(file, name).and_then(|state| state.user)
    }

    /// The server does not accept this stateid of a lock. Returns the locks that are lost by that,
    /// for [`Self::loss_reported`]; `None`: the lock state has been replaced meanwhile.
    pub(super) fn stateid_refused(&self, file: &FileHandle, stateid: Stateid) -> Option<LostLocks> {
        let states = &mut *self.states.lock();
        let is_its =
            |state: &&mut ClientLockState| state.stateid.is_some_and(|its| its.other == stateid.other);
        states.files.get_mut(file)?.iter_mut().find(is_its)?.lose(file)
    }

    /// The loss of locks was reported: what was written under them is not sent any more.
    pub(super) fn loss_reported(&self, lost: &LostLocks) {
        let states = &mut *self.states.lock();
        if let Some(state) = states.state(&lost.file, lost.name).filter(|state| state.is_lost) {
            (state.stateid, state.is_lost) = (None, false);
            state.clear(ByteRange::WHOLE);
            state.free_if_unused();
        }
    }

    /// An open is lost, and with it what was locked through it: see [`Self::stateid_refused`].
    pub(super) fn lose_open(&self, open: &OpenKey) -> Vec<LostLocks> {
        if self.is_empty() {
            return Vec::new();
        }
        let states = &mut *self.states.lock();
        let of_file = states.files.get_mut(&open.file).into_iter().flatten();
        let based = of_file.filter(|state| state.open == open.owner);
        based.filter_map(|state| state.lose(&open.file)).collect()
    }

    /// The server has forgotten this client: locks that it had granted have to be reclaimed.
    pub(super) fn forgotten_by_server(&self) {
        let states = &mut *self.states.lock();
        states.epoch += 1;
        for state in states.files.values_mut().flatten() {
            (state.stateid, state.is_forgotten) = (None, !state.held.is_empty() && !state.is_lost);
            state.perhaps_held = LockRanges::default();
            state.free_if_unused();
        }
    }

    /// The locks that have to be reclaimed.
    pub(super) fn to_reclaim(&self) -> Vec<LocksToReclaim> {
        let states = self.states.lock();
        let all = states.files.iter().flat_map(|(file, of_file)| of_file.iter().map(move |it| (file, it)));
        let forgotten = all.filter(|(_, state)| state.is_forgotten);
        let to_reclaim = |(file, state): (&_, &ClientLockState)| LocksToReclaim {
            state: state.state_ref(file, states.epoch),
            ranges: state.held.clone(),
        };
        forgotten.map(to_reclaim).collect()
    }

    /// A lock was reclaimed, with this stateid.
    pub(super) fn reclaimed(&self, state_ref: &LockStateRef, stateid: Stateid) {
        if let Some(state) = self.states.lock().state(&state_ref.open.file, state_ref.name) {
            state.stateid = Some(stateid);
        }
    }

    /// The user of a state.
    pub(super) fn user(&self, state_ref: &LockStateRef) -> Option<WireOwner> {
        self.states.lock().state(&state_ref.open.file, state_ref.name)?.user
    }

    /// Ends the reclaim of a state. `lost`: ranges that were not reclaimed, which was reported.
    pub(super) fn reclaim_ended(&self, state_ref: &LockStateRef, lost: &LockRanges) {
        let states = &mut *self.states.lock();
        let Some(state) = states.state(&state_ref.open.file, state_ref.name) else { return };
        state.is_forgotten = false;
        for (range, _) in lost.iter() {
            state.held.set(range, None);
        }
        state.free_if_unused();
    }

    /// The stateids of all locks.
    pub(super) fn stateids(&self) -> Vec<(FileHandle, Stateid)> {
        let states = self.states.lock();
        let all = states.files.iter().flat_map(|(file, of_file)| {
            of_file.iter().filter_map(|state| Some((file.clone(), state.stateid?)))
        });
        all.collect()
    }

    /// Tells `note` whether states of each open of a file hold or want locks. It returns whether
    /// the others are kept, and is called with the mutex held, so that no LOCK begins meanwhile.
    /// Returns the opens of those that are not, which are unpinned once each.
    pub(super) fn tidy(&self, file: &FileHandle, note: impl Fn(&OpenKey, bool) -> bool) -> Vec<OpenKey> {
        let states = &mut *self.states.lock();
        let Some(of_file) = states.files.get_mut(file) else { return Vec::new() };
        let mut unpinned = Vec::new();
        let owners: BTreeSet<_> = of_file.iter().map(|state| state.open).collect();
        for owner in owners {
            let open = OpenKey { file: file.clone(), owner };
            let is_locked = of_file.iter().any(|state| state.open == owner && !state.is_unused());
            if note(&open, is_locked) {
                continue;
            }
            let unused = of_file.extract_if(.., |state| state.open == owner && state.is_unused());
            unpinned.extend(unused.map(|_| open.clone()));
        }
        if of_file.is_empty() {
            states.files.remove(file);
        }
        self.count.fetch_sub(unpinned.len(), Ordering::Release);
        unpinned
    }
}

impl Drop for LockUse<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.table.states.lock().state(self.file, self.name) {
            state.calls = state.calls.saturating_sub(1);
            state.free_if_unused();
        }
    }
}

impl std::fmt::Debug for LockStateTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockStateTable").field("count", &self.count).finish_non_exhaustive()
    }
}

/// The waiter that CB_NOTIFY_LOCK is for, if there is one, is woken. A notification that nobody
/// waits for is refused: a server that reserves the lock for this client passes it on.
pub(super) fn notified(locks: &LockStateTable, file: NfsFh4<'_>, name: &[u8]) -> NfsStat4 {
    let file = FileHandle::from(file);
    let waiter = locks.waiter(&file, name).zip(locks.events());
    let is_awaited = waiter.is_some_and(|(owner, events)| events.notified(&file, owner));
    if is_awaited { NfsStat4::Ok } else { NfsStat4::Badhandle }
}

#[cfg(test)]
mod tests;
