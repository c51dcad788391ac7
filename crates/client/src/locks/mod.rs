//! The byte-range locks of a mount.
//!
//! `MountLocks` runs the lock agent of curt-policy: it gives it the requests of callers, sends what
//! the agent asks for, and answers the callers. The agent decides who gets a lock; which thread
//! sends a request is decided in `requests`. A caller that waits is a record and holds no thread.
//!
//! Invariants: the agent's mutex is held neither during a request nor during an answer. After a
//! grant by the server the cached state of the file is invalid before the caller is answered. A
//! range is unlocked after its dirty bytes are at the server. What was written under a lock that is
//! lost is dropped before [`LockEvents::lost`] returns.

mod callbacks;
mod files;
mod lock_times;
mod report;
mod requests;
mod restart_check;
mod senders;
mod wire_owners;

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use curt_observe::{Cause, ClientCounter, events::Event, probe, scope};
use curt_policy::{
    MonotonicTime,
    locks::{
        LocalLockOwner, LocalLockRequest, LockAction, LockAgent, LockCallId, LockError, LockFileId,
        LockOptions, LockProcedure, LockReply, LockRequestId, LockServerCall, LockTest, LockTimer,
        poll_interval,
    },
};
use curt_rpc::client::{CallError, Interrupt, Wake, WakerRegistration};
use curt_types::{ByteRange, LockType};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    caller::InternedCaller,
    errno,
    inode::Inode,
    mount_core::MountCore,
    open_file::OpenFile,
    protocol::{LockEvents, LockTestReply, RemoteLock, RpcCaller, WireLock, WireOwner},
    threads::{Background, separate},
};
use callbacks::SeenCallbacks;
use files::LockedFiles;
use lock_times::LockTimes;
use senders::{RequestKind, RequestSenders};
use wire_owners::WireOwners;

pub use report::{LockReportEntry, MountLockReport};

/// Receives the result of a request for a lock, once, on any thread. It must not wait for the
/// server.
pub type LockDone = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// A lock that a program requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockArguments {
    /// The future owner.
    pub owner: LocalLockOwner,
    /// The owner's process; 0 if unknown.
    pub pid: u32,
    /// The bytes.
    pub range: ByteRange,
    /// Shared or exclusive.
    pub lock_type: LockType,
    /// Whether to wait while others hold it.
    pub wait: bool,
}

/// The locks of one mount.
pub(crate) struct MountLocks {
    core: Arc<MountCore>,
    state: Mutex<MountLocksInner>,
    last_request: AtomicU64,
    /// Files with locks; read without the mutex, so that files without locks cost nothing.
    locked_files: AtomicUsize,
    senders: [RequestSenders; 2],
    /// Runs what must not wait for a request: timers and interruptions.
    timers: Arc<dyn Background>,
    /// Notices of restarts that were not checked yet; a task checks them as long as there are any.
    restart_notices: AtomicU64,
    /// Ends all requests, when the mount ends.
    stop: Interrupt,
    pub(crate) times: LockTimes,
    this: Weak<Self>,
}

#[derive(Default)]
struct MountLocksInner {
    agent: LockAgent,
    files: LockedFiles,
    owners: WireOwners,
    callbacks: SeenCallbacks,
    /// A check for a restart of the lock manager is scheduled.
    is_check_scheduled: bool,
    queue_max: usize,
}

/// A caller that waits for the result of a request.
struct LockCaller {
    done: LockDone,
    identity: Arc<InternedCaller>,
    since: MonotonicTime,
    /// The wanted lock; `None`: an unlock.
    wanted: Option<WantedLock>,
    /// When the server replied that its LOCK is blocked, until the server calls back.
    blocked_since: Option<MonotonicTime>,
    /// Reports an interruption of its wait.
    _interruption: WakerRegistration<'static>,
}

/// The lock that a caller waits for.
#[derive(Clone)]
struct WantedLock {
    arguments: LockArguments,
    open: Weak<OpenFile>,
}

/// The effects of an event, to be applied without the mutex.
#[derive(Default)]
struct LockEffects {
    answers: Vec<(Arc<Inode>, LockCaller, Result<(), LockError>)>,
    timers: Vec<(LockTimer, Duration)>,
    lost: Vec<LostLock>,
    sends: Vec<LockServerCall>,
}

/// A lock that is lost.
struct LostLock {
    inode: Arc<Inode>,
    range: ByteRange,
    /// The number of bytes that were written under it and are not sent.
    unsent: u64,
}

impl MountLocks {
    pub(crate) fn new(
        core: Arc<MountCore>,
        options: LockOptions,
        background: &Arc<dyn Background>,
    ) -> Arc<Self> {
        let state = MountLocksInner { agent: LockAgent::new(options), ..MountLocksInner::default() };
        let locks = Arc::new_cyclic(|this| Self {
            state: Mutex::new(state),
            last_request: AtomicU64::new(0),
            locked_files: AtomicUsize::new(0),
            senders: [(); 2].map(|()| RequestSenders::new(background)),
            timers: separate(background, 1),
            restart_notices: AtomicU64::new(0),
            stop: Interrupt::new(),
            times: LockTimes::default(),
            this: Weak::clone(this),
            core,
        });
        let events: Weak<dyn LockEvents> = locks.this.clone();
        locks.core.protocol.report_lock_events(events);
        locks
    }

    /// Whether no file has locks or waiters.
    pub(crate) fn is_idle(&self) -> bool {
        // Pairs with the store in `event`: a caller that received a grant sees the file.
        self.locked_files.load(Ordering::Acquire) == 0
    }

    /// Requests a lock; `done` gets the result. A raised `interrupt` ends the wait.
    pub(crate) fn lock(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        arguments: LockArguments,
        interrupt: &Interrupt,
        done: LockDone,
    ) {
        file.locks.note_use();
        let open = file.locks.id();
        let wanted = WantedLock { arguments, open: Arc::downgrade(file) };
        let effects = self.begin(file, Some(wanted), interrupt, done, |state, id, file, _| {
            let LockArguments { owner, range, lock_type, wait, .. } = arguments;
            let actions =
                state.agent.lock(LocalLockRequest { id, file, owner, open, range, lock_type, wait });
            state.queue_max = state.queue_max.max(state.agent.waiter_count(file));
            actions
        });
        if effects.is_empty() {
            self.core.count(ClientCounter::LockLocalWait);
            probe!(NfsLockWait {
                pid: arguments.pid,
                fileid: file.inode.fileid_if_enabled(Event::NfsLockWait),
                lock_first: arguments.range.first(),
                lock_last: arguments.range.last()
            });
        }
        self.perform(effects);
    }

    /// Unlocks a range; `done` gets the result when the server has confirmed it.
    pub(crate) fn unlock(
        self: &Arc<Self>,
        file: &OpenFile,
        owner: LocalLockOwner,
        range: ByteRange,
        interrupt: &Interrupt,
        done: LockDone,
    ) {
        let effects = self.begin(file, None, interrupt, done, |state, id, file, now| {
            state.agent.unlock(id, file, owner, range, now)
        });
        self.perform(effects);
    }

    /// A process closes a descriptor of the file: unlocks what `owner` has there. Nothing is sent
    /// on this thread: the caller waits for `done`, which an interrupt must be able to end.
    pub(crate) fn close(
        self: &Arc<Self>,
        file: &OpenFile,
        owner: LocalLockOwner,
        interrupt: &Interrupt,
        done: LockDone,
    ) {
        let effects = self.begin(file, None, interrupt, done, |state, id, file, now| {
            state.agent.unlock(id, file, owner, ByteRange::WHOLE, now)
        });
        self.perform_elsewhere(effects);
    }

    /// Registers a caller, and gives the agent its request.
    fn begin(
        self: &Arc<Self>,
        file: &OpenFile,
        wanted: Option<WantedLock>,
        interrupt: &Interrupt,
        done: LockDone,
        event: impl FnOnce(&mut MountLocksInner, LockRequestId, LockFileId, MonotonicTime) -> Vec<LockAction>,
    ) -> LockEffects {
        let (id, request) = (LockFileId(file.id().0), self.next_request());
        let waker = LockInterruption { locks: Arc::downgrade(self), file: id, request };
        let interruption = interrupt.attach(Arc::new(waker));
        let identity = Arc::clone(&file.identity);
        let effects = self.event(|state, now| {
            let (since, blocked_since) = (now, None);
            let caller =
                LockCaller { done, identity, since, wanted, blocked_since, _interruption: interruption };
            state.files.add_caller(id, &file.inode, request, caller);
            event(state, request, id, now)
        });
        if interrupt.is_raised() {
            // The waker came too early.
            self.interrupt(id, request);
        }
        effects
    }

    /// Takes the locks of an owner from it, without waiting until they are unlocked after its data.
    /// The result is passed to [`Self::data_written`].
    pub(crate) fn unlock_after_data(
        &self,
        file: &OpenFile,
        owner: LocalLockOwner,
        range: ByteRange,
    ) -> Option<LockCallId> {
        let id = LockFileId(file.id().0);
        self.state.lock().agent.unlock_after_data(self.next_request(), id, owner, range)
    }

    /// The data of a lock that was taken from its owner are at the server.
    pub(crate) fn data_written(self: &Arc<Self>, release: LockCallId) {
        let effects = self.event(|state, _| state.agent.data_written(release));
        self.perform_elsewhere(effects);
    }

    /// The last descriptor of an open file is closed: unlocks what was locked through it.
    pub(crate) fn close_open(self: &Arc<Self>, file: &OpenFile) {
        let id = LockFileId(file.id().0);
        let effects =
            self.event(|state, now| state.agent.close_open(self.next_request(), id, file.locks.id(), now));
        self.perform(effects);
    }

    /// Whether an owner holds anything of a file.
    pub(crate) fn holds(&self, file: &OpenFile, owner: LocalLockOwner) -> bool {
        let id = LockFileId(file.id().0);
        !self.is_idle() && self.state.lock().agent.holds(id, owner)
    }

    /// Ends the wait of a caller, without sending anything on this thread.
    fn interrupt(self: &Arc<Self>, file: LockFileId, request: LockRequestId) {
        let effects = self.event(|state, _| state.agent.interrupt(file, request));
        self.perform_elsewhere(effects);
    }

    fn timer(self: &Arc<Self>, timer: LockTimer) {
        let effects = self.event(|state, _| {
            state.files.touch(timer.call.file);
            state.agent.timer(timer)
        });
        // The others are sent because something was free at last.
        for call in effects.sends.iter().filter(|call| is_lock(call) && call.id == timer.call) {
            self.core.count(ClientCounter::LockPoll);
            self.trace_state(call, "polled");
        }
        self.perform_elsewhere(effects);
    }

    /// A number that no other request has. Relaxed: it orders nothing.
    fn next_request(&self) -> LockRequestId {
        LockRequestId(self.last_request.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Emits the event of a call that is sent or answered.
    fn trace_state(&self, call: &LockServerCall, lock_state: &'static str) {
        if Event::NfsLockState.is_wanted()
            && let Some(file) = self.state.lock().files.get(call.id.file)
        {
            trace_state(&file.inode, call.range, lock_state);
        }
    }

    /// Gives the agent an event.
    fn event(
        &self,
        event: impl FnOnce(&mut MountLocksInner, MonotonicTime) -> Vec<LockAction>,
    ) -> LockEffects {
        let now = self.core.now();
        let mut state = self.state.lock();
        let actions = event(&mut state, now);
        let mut effects = LockEffects::default();
        for action in actions {
            match action {
                LockAction::Send(call) => effects.sends.push(call),
                LockAction::SetTimer { timer, after } => effects.timers.push((timer, after)),
                LockAction::Answer { request, result } => {
                    let MountLocksInner { files, .. } = &mut *state;
                    if let Some((inode, caller)) = files.answered(request, result.is_ok(), now) {
                        effects.answers.push((inode, caller, result));
                    }
                }
                LockAction::Lost { file, owner, range, lock_type } => {
                    if let Some(file) = state.files.get(file) {
                        let opens = file.opens_of(owner).iter().filter_map(Weak::upgrade);
                        let report = || opens.for_each(|open| open.locks.note_lost());
                        let inode = Arc::clone(&file.inode);
                        let is_written = lock_type == LockType::Write;
                        let unsent = match inode.data_if_any().filter(|_| is_written) {
                            // Before the protocol sends anything without the lock.
                            Some(data) => data.lose(range, report),
                            None => {
                                report();
                                0
                            }
                        };
                        effects.lost.push(LostLock { inode, range, unsent });
                    }
                }
                LockAction::HandedOff { request } => {
                    self.core.count(ClientCounter::LockHandoff);
                    if let Some((inode, range)) = state.files.wanted(request) {
                        trace_state(inode, range, "handed off");
                    }
                }
            }
        }
        let MountLocksInner { agent, files, is_check_scheduled, .. } = &mut *state;
        let (held, unlocked) = files.tidy(agent, now);
        held.into_iter().for_each(|held| self.times.held(held));
        // Under the mutex: the next LOCK comes after it.
        unlocked.iter().for_each(|inode| self.core.protocol.forget_locks(inode.handle()));
        if files.len() > 0 && !*is_check_scheduled {
            *is_check_scheduled = self.schedule_restart_check();
        }
        // Pairs with the load in `is_idle`.
        self.locked_files.store(files.len(), Ordering::Release);
        effects
    }

    fn replied(&self, call: &LockServerCall, reply: LockReply) -> LockEffects {
        match (call.procedure, reply) {
            (LockProcedure::Lock { .. }, LockReply::Denied | LockReply::Kept | LockReply::Blocked) => {
                self.trace_state(call, if reply == LockReply::Denied { "denied" } else { "blocked" });
                self.core.count(ClientCounter::LockDenied);
            }
            (LockProcedure::Unlock, LockReply::Granted) => self.trace_state(call, "unlocked"),
            (LockProcedure::Reclaim { .. }, LockReply::Granted) => {
                self.core.count(ClientCounter::LockReclaimed);
            }
            _ => {}
        }
        let is_blocked = is_lock(call) && reply == LockReply::Blocked;
        let effects = self.event(|state, now| {
            if is_blocked {
                state.files.blocked(call.id.request, now);
            }
            state.agent.replied(call.id, reply, now)
        });
        if is_blocked {
            // Its callback has overtaken the reply.
            self.count_callback(&effects);
        }
        effects
    }

    /// Answers callers, sets timers and reports losses; returns the requests to be sent.
    fn answer_all(self: &Arc<Self>, effects: LockEffects) -> Vec<LockServerCall> {
        for (timer, after) in effects.timers {
            let after = after.min(self.core.protocol.blocked_lock_wait_max());
            let locks = Arc::downgrade(self);
            let task = move || {
                if let Some(locks) = locks.upgrade() {
                    locks.timer(timer);
                }
            };
            self.timers.spawn_after(jittered(after, timer.call), Box::new(task));
        }
        for LostLock { inode, range, unsent } in effects.lost {
            self.core.count(ClientCounter::LockLost);
            probe!(NfsLockLost {
                fileid: inode.fileid_if_enabled(Event::NfsLockLost),
                lock_first: range.first(),
                lock_last: range.last()
            });
            tracing::warn!(
                object = inode.id().0,
                ?range,
                unsent,
                "a lock was lost at the server: I/O through its descriptor fails once"
            );
            // Others may have changed the file. The next read of cached bytes has to fail, too.
            expire(&inode);
            if let Some(observer) = &self.core.observer {
                observer.contents_changed(inode.id(), None);
            }
        }
        for (inode, caller, result) in effects.answers {
            if caller.wanted.is_some() {
                self.count_result(result);
                let now = self.core.now();
                if result.is_ok() {
                    self.times.waited(now.since(caller.since));
                    expire(&inode);
                }
            }
            let result = result.map_err(errno::of_lock_error);
            trace_answer(&inode, &caller, result);
            (caller.done)(result);
        }
        effects.sends
    }

    fn count_result(&self, result: Result<(), LockError>) {
        match result {
            Ok(()) => self.core.count(ClientCounter::LockGranted),
            Err(LockError::Interrupted) => self.core.count(ClientCounter::LockInterrupt),
            Err(LockError::Deadlock) => self.core.count(ClientCounter::LockDeadlock),
            Err(LockError::Held | LockError::NoLocks | LockError::OpenMode | LockError::Failed(_)) => {}
        }
    }

    /// The number by which the server knows an owner.
    fn number(&self, owners: &mut WireOwners, agent: &LockAgent, owner: LocalLockOwner) -> Option<WireOwner> {
        let forget = |forgotten: &[WireOwner]| self.core.protocol.forget_lock_owners(forgotten);
        owners.number(owner, || agent.owners(), forget)
    }

    /// The lock of another owner that conflicts, if any.
    pub(crate) fn test(
        &self,
        file: &OpenFile,
        arguments: &LockArguments,
        interrupt: &Interrupt,
    ) -> Result<Option<ConflictingLock>, Errno> {
        let (id, request) = test_request(file, arguments);
        let LockArguments { range, lock_type, .. } = *arguments;
        let number = {
            let mut state = self.state.lock();
            let wire_owner = match state.agent.test(request) {
                LockTest::Held(owner, range, lock_type) => {
                    let pid = state.files.get(id).map_or(0, |file| file.pid_of(owner));
                    return Ok(Some(ConflictingLock { range, lock_type, pid }));
                }
                LockTest::AskServer(owner) => owner,
            };
            let MountLocksInner { owners, agent, .. } = &mut *state;
            self.number(owners, agent, wire_owner).ok_or(Errno::NOLCK)?
        };
        let _cause = scope::with_cause(Cause::Lock);
        let caller = RpcCaller { credential: &file.identity.credential, interrupt };
        let lock = WireLock { owner: number, range, lock_type };
        let mut attempts = 0_u8;
        loop {
            self.core.count(ClientCounter::LockTestWire);
            match self.core.protocol.test_lock(caller, file.inode.handle(), &lock) {
                Ok(LockTestReply::Free) => return Ok(None),
                Ok(LockTestReply::Held(RemoteLock { range, lock_type })) => {
                    return Ok(Some(ConflictingLock { range, lock_type, pid: 0 }));
                }
                Ok(LockTestReply::Refused(error)) => return Err(errno::of_lock_error(error)),
                Ok(LockTestReply::Grace) | Err(CallError::Unreachable(_)) => {}
                Err(error) => return Err(errno::of_call(error)),
            }
            // As LOCK does, it waits for the server.
            if interrupt.wait_for(poll_interval(attempts)) {
                return Err(Errno::INTR);
            }
            attempts = attempts.saturating_add(1);
        }
    }

    /// Whether another owner of this mount holds a conflicting lock, or this one has locks of
    /// another open file description, which may have been closed.
    pub(crate) fn is_locked_here(&self, file: &OpenFile, arguments: &LockArguments) -> bool {
        let (_, request) = test_request(file, arguments);
        if self.is_idle() {
            return false;
        }
        let state = self.state.lock();
        state.agent.holds_through_another(request) || matches!(state.agent.test(request), LockTest::Held(..))
    }

    /// Whether another owner of this mount is unlocking a conflicting lock.
    pub(crate) fn is_being_unlocked_here(&self, file: &OpenFile, arguments: &LockArguments) -> bool {
        let (_, request) = test_request(file, arguments);
        !self.is_idle() && self.state.lock().agent.is_being_released(request)
    }

    /// Unlocks everything, for at most `limit`, and ends all requests.
    pub(crate) fn release_all(self: &Arc<Self>, limit: Duration) {
        let held: Vec<_> = {
            let state = self.state.lock();
            let holders = |id| state.agent.holders(id).map(move |(owner, _)| (id, owner));
            state.files.iter().flat_map(|(id, _)| holders(id)).collect()
        };
        if !held.is_empty() {
            let stop = self.stop.clone();
            self.timers.spawn_after(limit, Box::new(move || stop.raise()));
        }
        for (file, owner) in held {
            if self.stop.is_raised() {
                break;
            }
            let effects = self.event(|state, now| {
                state.agent.unlock(self.next_request(), file, owner, ByteRange::WHOLE, now)
            });
            self.perform_on(Some(RequestKind::Release), effects);
        }
        self.stop.raise();
    }
}

/// A lock that keeps another from being placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConflictingLock {
    /// The bytes.
    pub range: ByteRange,
    /// Shared or exclusive.
    pub lock_type: LockType,
    /// The process on this machine that holds it; 0: one of another machine, or unknown.
    pub pid: u32,
}

impl LockEffects {
    fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.sends.is_empty()
    }
}

/// Interrupts the wait of one request.
struct LockInterruption {
    locks: Weak<MountLocks>,
    file: LockFileId,
    request: LockRequestId,
}

impl Wake for LockInterruption {
    fn wake(&self) {
        let Some(locks) = self.locks.upgrade() else { return };
        let (file, request) = (self.file, self.request);
        // The interrupting thread may hold locks that the answer takes.
        let timers = Arc::clone(&locks.timers);
        timers.spawn(Box::new(move || locks.interrupt(file, request)));
    }
}

/// Emits the event of a change of a request's state.
fn trace_state(inode: &Inode, range: ByteRange, lock_state: &'static str) {
    probe!(NfsLockState {
        lock_state,
        fileid: inode.fileid_if_enabled(Event::NfsLockState),
        lock_first: range.first(),
        lock_last: range.last()
    });
}

/// Emits the event of an answer.
fn trace_answer(inode: &Inode, caller: &LockCaller, result: Result<(), Errno>) {
    let error = errno::event_status(&result);
    match &caller.wanted {
        Some(WantedLock { arguments, .. }) => probe!(NfsLockDone {
            pid: arguments.pid,
            fileid: inode.fileid_if_enabled(Event::NfsLockDone),
            lock_first: arguments.range.first(),
            lock_last: arguments.range.last(),
            error
        }),
        None => {
            probe!(NfsUnlockDone { fileid: inode.fileid_if_enabled(Event::NfsUnlockDone), error });
        }
    }
}

/// Invalidates the cached state of a file: others may have changed it before the lock was granted,
/// perhaps within one step of the server's clock, so that its times do not show it.
fn expire(inode: &Inode) {
    inode.distrust_attributes();
    if let Some(data) = inode.data_if_any() {
        data.invalidate();
    }
}

/// A request that is only tested.
fn test_request(file: &OpenFile, arguments: &LockArguments) -> (LockFileId, LocalLockRequest) {
    let LockArguments { owner, range, lock_type, .. } = *arguments;
    let (id, open, file) = (LockRequestId(0), file.locks.id(), LockFileId(file.id().0));
    (file, LocalLockRequest { id, file, owner, open, range, lock_type, wait: false })
}

const fn is_lock(call: &LockServerCall) -> bool {
    matches!(call.procedure, LockProcedure::Lock { .. })
}

/// `after`, or up to 40 % more, so that clients that were denied together do not ask together.
fn jittered(after: Duration, call: LockCallId) -> Duration {
    use std::hash::{BuildHasher as _, RandomState};
    let share = u32::try_from(RandomState::new().hash_one(call.request) % 41).unwrap_or(20);
    after * (100 + share) / 100
}

impl fmt::Debug for MountLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountLocks").field("locked_files", &self.locked_files).finish_non_exhaustive()
    }
}
