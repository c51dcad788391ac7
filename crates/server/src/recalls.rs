//! Recalls of delegations before changes, and the requests that wait for them (RFC 8881 section
//! 10.2).
//!
//! The layer between the verbs of [`ops`](crate::ops) and the table of delegations
//! ([`state`](crate::state)). Who is about to change a file asks for a [`FileChange`]. If there is
//! none, the request ends without an effect; its caller then lets the call wait
//! ([`NfsRequest::wait`]). It is executed again when the delegations are back, without a thread in
//! the meantime. After [`WAIT_MAX`] its client gets NFS4ERR_DELAY or NFS3ERR_JUKEBOX.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use curt_observe::events::handle_hash;
use curt_observe::{ServerCounter, probe};
use curt_proto::nfs4::Clientid;
use curt_rpc::clock::TimeSource;
use curt_rpc::server::DeferredCall;
use curt_types::{Access, Fault};
use curt_vfs::{Error, NodeHandle, ObjectPermit};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::nlm::DeferredRequest;
use crate::request::{NfsRequest, VerifiedHandle};
use crate::service::NfsService;
use crate::state::{
    BegunChange, ChangeKind, DelegationObserver, DelegationRefusal, FileChange, FileKey, IoDirection,
    LocalChanges, Recall, SlotInUse,
};

/// How long a request waits for delegations to be returned.
const WAIT_MAX: Duration = Duration::from_millis(250);
/// More than the interval of searches for overdue delegations.
const SEARCHES: Duration = Duration::from_secs(3);
/// Maximum number of requests that wait. Others get NFS4ERR_DELAY or NFS3ERR_JUKEBOX at once.
const WAITING_MAX: usize = 4096;

/// Maximum number of tries of a change of names whose objects have delegations, or get them.
const NAMES_TRIES_MAX: usize = 16;

/// State of a call that has waited, for its next execution.
pub(crate) struct WaitedCall {
    /// Deadline of the wait.
    deadline: Instant,
    /// The slot of its session.
    pub(crate) slot: Option<SlotInUse>,
    /// Number of operations that were counted.
    pub(crate) counted: u32,
    /// The NLM request that its host can give up.
    deferred: Option<Arc<DeferredRequest>>,
}

/// The recalls for which a request has to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecallInProgress {
    file: FileKey,
    /// The client that wants the file.
    by: Option<Clientid>,
}

/// Sends recalls, without waiting for the clients.
pub(crate) trait RecallSender: Send + Sync {
    /// Sends a recall.
    fn send(&self, recall: Recall);
}

/// A call that waits.
struct WaitingCall {
    file: FileKey,
    call: Box<dyn DeferredCall>,
    waited: WaitedCall,
}

impl WaitingCall {
    fn resume(self) {
        self.call.resume(Box::new(self.waited));
    }
}

/// The calls that wait.
#[derive(Default)]
pub(crate) struct WaitingCalls {
    table: Mutex<WaitingTable>,
    changed: Condvar,
    /// Whether recalls are sent. Relaxed: set before the first request.
    can_recall: AtomicBool,
}

#[derive(Default)]
struct WaitingTable {
    /// By deadline and a number.
    calls: BTreeMap<(Instant, u64), WaitingCall>,
    files: HashMap<FileKey, Vec<(Instant, u64)>>,
    next: u64,
    /// Sends recalls; without it no call waits.
    recalls: Option<Arc<dyn RecallSender>>,
    /// The service has ended.
    is_over: bool,
}

impl WaitingTable {
    fn insert(&mut self, waiting: WaitingCall) -> (Instant, u64) {
        let key = (waiting.waited.deadline, self.next);
        self.next += 1;
        self.files.entry(waiting.file).or_default().push(key);
        self.calls.insert(key, waiting);
        key
    }

    fn remove(&mut self, key: (Instant, u64)) -> Option<WaitingCall> {
        let waiting = self.calls.remove(&key)?;
        if let Some(keys) = self.files.get_mut(&waiting.file) {
            keys.retain(|other| *other != key);
            if keys.is_empty() {
                self.files.remove(&waiting.file);
            }
        }
        Some(waiting)
    }

    fn take_overdue(&mut self, now: Instant) -> Option<WaitingCall> {
        let (key, _) = self.calls.first_key_value().filter(|((deadline, _), _)| *deadline <= now)?;
        let key = *key;
        self.remove(key)
    }
}

impl WaitingCalls {
    /// Sends recalls from now on, and starts the thread that ends waits. It ends with
    /// [`Self::end`].
    pub(crate) fn start(
        self: &Arc<Self>,
        recalls: Arc<dyn RecallSender>,
        clock: TimeSource,
    ) -> std::io::Result<()> {
        self.table.lock().recalls = Some(recalls);
        self.can_recall.store(true, Ordering::Relaxed);
        let waiting = Arc::clone(self);
        let run = move || waiting.run(&clock);
        std::thread::Builder::new().name("delegations".into()).spawn(run).map(drop)
    }

    fn run(&self, clock: &TimeSource) {
        let mut table = self.table.lock();
        while !table.is_over {
            if let Some(overdue) = table.take_overdue(clock.now()) {
                parking_lot::MutexGuard::unlocked(&mut table, || overdue.resume());
                continue;
            }
            match table.calls.first_key_value().map(|((deadline, _), _)| *deadline) {
                Some(deadline) => drop(self.changed.wait_for(&mut table, clock.until(deadline))),
                None => self.changed.wait(&mut table),
            }
        }
    }

    /// Ends the thread, and drops the calls that wait.
    pub(crate) fn end(&self) {
        let mut table = self.table.lock();
        table.is_over = true;
        table.recalls = None;
        let dropped = std::mem::take(&mut table.calls);
        drop(table);
        drop(dropped);
        self.changed.notify_all();
    }

    /// Whether recalls are sent.
    pub(crate) fn can_recall(&self) -> bool {
        self.can_recall.load(Ordering::Relaxed)
    }

    fn sender(&self) -> Option<Arc<dyn RecallSender>> {
        self.table.lock().recalls.clone()
    }

    fn is_full(&self) -> bool {
        let table = self.table.lock();
        table.recalls.is_none() || table.calls.len() >= WAITING_MAX
    }

    fn insert(&self, waiting: WaitingCall) -> (Instant, u64) {
        let mut table = self.table.lock();
        let key = table.insert(waiting);
        let is_first = table.calls.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(table);
        if is_first {
            self.changed.notify_one();
        }
        key
    }

    /// Resumes all calls that wait.
    pub(crate) fn resume_all(&self) {
        let mut table = self.table.lock();
        table.files.clear();
        let waiting = std::mem::take(&mut table.calls);
        drop(table);
        waiting.into_values().for_each(WaitingCall::resume);
    }

    fn resume(&self, key: (Instant, u64)) {
        let waiting = self.table.lock().remove(key);
        if let Some(waiting) = waiting {
            waiting.resume();
        }
    }
}

#[cfg(test)]
impl NfsService {
    /// Locks what all clients share, until the result is dropped.
    pub(crate) fn lock_all_shared(&self) -> impl Sized + '_ {
        (self.held.lock_all_shared(), self.locks.lock_all_shared(), self.waiting_calls.table.lock())
    }
}

/// Resumes the calls that wait for a file.
pub(crate) struct WaitingFiles(pub(crate) Arc<WaitingCalls>);

impl DelegationObserver for WaitingFiles {
    fn has_ended(&self, file: &FileKey) {
        let mut table = self.0.table.lock();
        let keys = table.files.get(file).cloned().unwrap_or_default();
        let waiting: Vec<_> = keys.into_iter().filter_map(|key| table.remove(key)).collect();
        drop(table);
        waiting.into_iter().for_each(WaitingCall::resume);
    }
}

impl NfsService {
    /// Begins a change of `file`. Recalls the delegations that are in its way, except those of
    /// clients whose leases have expired: these lose them.
    fn begin_change(&self, file: &FileKey, by: Option<Clientid>, kind: ChangeKind) -> Option<FileChange<'_>> {
        let now = self.uptime();
        let conflict = match self.held.delegations.begin_change(file, by, kind, now) {
            Ok(begun) => return Some(self.begun(begun)),
            Err(conflict) => conflict,
        };
        let mut has_expired = false;
        for holder in &conflict.holders {
            has_expired |= self.held.expire_lock_holder(*holder, now);
        }
        if has_expired {
            self.release_departing();
        }
        self.send_recalls(conflict.recalls);
        // A holder may have answered, or be gone. One that was granted a delegation since has its
        // time from now on.
        match self.held.delegations.begin_change(file, by, kind, self.uptime()) {
            Ok(begun) => Some(self.begun(begun)),
            // A recall may have failed already.
            Err(conflict) => {
                self.send_recalls(conflict.recalls);
                None
            }
        }
    }

    fn begun<'a>(&self, begun: BegunChange<'a>) -> FileChange<'a> {
        self.send_recalls(begun.recall);
        begun.change
    }

    fn send_recalls(&self, recalls: impl IntoIterator<Item = Recall>) {
        for recall in recalls {
            self.counters.count(ServerCounter::DelegationsRecalled);
            probe!(NfsdDelegation { fhandle: handle_hash(recall.handle.as_bytes()), reason: "recalled" });
            if let Some(sender) = self.waiting_calls.sender() {
                sender.send(recall);
            }
        }
    }

    /// Sends the recalls again that were not answered, to the clients that can be called (RFC 8881
    /// section 10.4.6).
    pub(crate) fn repeat_recalls(&self) {
        let (delegations, now) = (&self.held.delegations, self.uptime());
        let mut unanswered = delegations.unanswered();
        unanswered.retain(|(_, client)| self.held.session_with_callbacks(*client).is_some());
        let repeated = |(file, client)| delegations.repeat_recall(&file, client, now);
        self.send_recalls(unanswered.into_iter().filter_map(repeated));
    }

    /// The watcher that reports changes of `target` by processes of this machine, if it gets a
    /// delegation.
    pub(crate) fn local_changes(
        &self,
        target: &VerifiedHandle<'_>,
    ) -> Result<LocalChanges, DelegationRefusal> {
        let Some(watcher) = self.lease_watcher.get() else { return Ok(LocalChanges::Ignored) };
        let file = target.file_key();
        if self.held.delegations.has_lease(&file) {
            return Ok(LocalChanges::Leased);
        }
        let service = self.this.get().cloned().unwrap_or_default();
        // The search for overdue delegations takes its time, too.
        let waits = watcher.break_time().saturating_sub(SEARCHES).max(SEARCHES);
        let broken = move || {
            if let Some(service) = service.upgrade() {
                // The process waits for the lease, which ends with the last delegation.
                drop(service.begin_change(&file, None, ChangeKind::Local(waits)));
            }
        };
        match target.vfs().lease(&target.caller(), &target.node, watcher, Box::new(broken)) {
            Ok(Some(lease)) => Ok(LocalChanges::Lease(lease)),
            Ok(None) => Ok(LocalChanges::Ignored),
            Err(Error::Os(Errno::AGAIN)) => Err(DelegationRefusal::Contention),
            Err(error) => {
                tracing::debug!(%error, "the kernel gives no lease, so there is no delegation");
                Err(DelegationRefusal::Resource)
            }
        }
    }
}

/// The object that a change modifies. A caller that may not modify it recalls no delegation.
#[derive(Clone, Copy)]
struct Modified<'a, 'r> {
    /// The object, or the directory that contains it.
    target: &'a VerifiedHandle<'r>,
    node: &'a NodeHandle,
}

impl<'r> NfsRequest<'r, '_> {
    /// To be called before a change of `target`, which may last as long as the result exists.
    ///
    /// # Errors
    /// [`Fault::Jukebox`]: others have delegations of the file, which are recalled, or may have
    /// some that are not reclaimed yet.
    /// [`Fault::Acces`]: they have, and the caller may not change the file.
    pub(crate) fn begin_change(
        &mut self,
        target: &VerifiedHandle<'r>,
        kind: ChangeKind,
    ) -> Result<FileChange<'r>, Fault> {
        self.all_reclaimed()?;
        self.begin_change_of(&target.file_key(), kind, Modified { target, node: &target.node })
    }

    /// Refuses changes while a client may have a delegation that it has not reclaimed yet.
    fn all_reclaimed(&self) -> Result<(), Fault> {
        if self.service.held.grace.may_be_delegated() { Err(Fault::Jukebox) } else { Ok(()) }
    }

    /// As [`Self::begin_change`], of an object that gets a name in `directory`.
    pub(crate) fn begin_link(
        &mut self,
        target: &VerifiedHandle<'r>,
        directory: &VerifiedHandle<'r>,
    ) -> Result<FileChange<'r>, Fault> {
        self.all_reclaimed()?;
        let modified = Modified { target: directory, node: &directory.node };
        self.begin_change_of(&target.file_key(), ChangeKind::Attributes, modified)
    }

    /// Makes a change of names in `directories`. The tree asks for permission when it knows which
    /// objects it changes. Only local processes can exchange them then, so no delegation is missed;
    /// what these exchange is recalled by the watch. If others have a delegation, or deny the
    /// change of the data, nothing is changed, and it is tried again once the change of these
    /// objects has begun.
    ///
    /// # Errors
    /// As [`Self::begin_change`]; [`Fault::Jukebox`] also if the names are changed again and again.
    pub(crate) fn change_names<T>(
        &mut self,
        directories: &[&VerifiedHandle<'r>],
        kind: ChangeKind,
        mut change: impl FnMut(&mut ObjectPermit<'_>) -> T,
    ) -> Result<T, Fault> {
        let (service, by) = (self.service, self.client);
        let held = &service.held;
        let mut begun = Vec::new();
        let may_be_delegated = held.grace.may_be_delegated();
        for _ in 0..NAMES_TRIES_MAX {
            let mut refused = Vec::new();
            let result = change(&mut |directory, object| {
                let above = directories.iter().find(|above| above.node == *directory);
                let above = above.ok_or(Error::STALE)?;
                let file = FileKey { node: *object, ..above.file_key() };
                if begun.iter().any(|(other, _)| *other == file) {
                    return Ok(());
                }
                let is_denied = kind == ChangeKind::Data
                    && (held.grace.may_deny() || held.shares.denies_io(&file, None, IoDirection::Write));
                match held.delegations.begin_change_unless_held(&file, by) {
                    Some(change) if !is_denied && !may_be_delegated => begun.push((file, change)),
                    _ => {
                        refused.push((*above, file));
                        return Err(Errno::AGAIN.into());
                    }
                }
                Ok(())
            });
            if refused.is_empty() {
                return Ok(result);
            }
            self.all_reclaimed()?;
            // All are recalled before the request waits for the first.
            let changes = refused.into_iter().map(|(above, file)| {
                if kind == ChangeKind::Data {
                    above.file_not_denied(&file, IoDirection::Write)?;
                }
                let node = if kind == ChangeKind::Data { &file.node } else { &above.node };
                Ok((file, self.begin_change_of(&file, kind, Modified { target: above, node })?))
            });
            let changes: Vec<Result<_, Fault>> = changes.collect();
            for change in changes {
                begun.push(change?);
            }
        }
        Err(Fault::Jukebox)
    }

    /// As [`Self::begin_change`], of the names in a directory.
    pub(crate) fn begin_change_of_directory(
        &mut self,
        directory: &VerifiedHandle<'r>,
    ) -> Result<FileChange<'r>, Fault> {
        if self.service.grants_directory_delegations() {
            self.all_reclaimed()?;
        }
        if let Some(change) = self.service.held.delegations.begin_change_of_any(self.service.uptime()) {
            return Ok(change);
        }
        let modified = Modified { target: directory, node: &directory.node };
        self.begin_change_of(&directory.file_key(), ChangeKind::Attributes, modified)
    }

    fn begin_change_of(
        &mut self,
        file: &FileKey,
        kind: ChangeKind,
        modified: Modified<'_, 'r>,
    ) -> Result<FileChange<'r>, Fault> {
        if self.service.held.delegations.is_held(file, self.client) {
            self.check_modified(modified)?;
        }
        self.begin_allowed_change(file, kind)
    }

    /// As [`Self::begin_change`], of what the caller is known to be allowed.
    pub(crate) fn begin_allowed_change(
        &mut self,
        file: &FileKey,
        kind: ChangeKind,
    ) -> Result<FileChange<'r>, Fault> {
        self.service.begin_change(file, self.client, kind).ok_or_else(|| {
            self.recall = Some(RecallInProgress { file: *file, by: self.client });
            Fault::Jukebox
        })
    }

    /// Whether the caller may modify an object, or allow itself to.
    fn check_modified(&mut self, Modified { target, node }: Modified<'_, 'r>) -> Result<(), Fault> {
        self.may_block(target);
        let (vfs, caller) = (target.vfs(), target.caller());
        let asked = vfs.access(&caller, node, Access::MODIFY);
        let is_owner = asked.attributes.is_some_and(|attributes| attributes.uid == caller.uid);
        if is_owner || asked.value?.contains(Access::MODIFY) { Ok(()) } else { Err(Fault::Acces) }
    }

    /// Lets a call that was stopped by delegations wait until they are back, and then execute
    /// again. `slot` is given along. Returns whether it waits; then the call gets no reply now.
    #[inline]
    pub(crate) fn wait(&self, slot: &mut Option<SlotInUse>, counted: u32) -> bool {
        let Some(RecallInProgress { file, by }) = self.recall else { return false };
        let service = self.service;
        let now = service.clock.now();
        let deadline = self.deadline.unwrap_or(now + WAIT_MAX);
        if now >= deadline || service.waiting_calls.is_full() {
            return false;
        }
        let Some(call) = self.context.defer() else { return false };
        service.counters.count(ServerCounter::DelegationWaits);
        let deferred = self.deferred.clone();
        let waited = WaitedCall { deadline, slot: slot.take(), counted, deferred };
        let key = service.waiting_calls.insert(WaitingCall { file, call, waited });
        // They may have come back before it waited.
        if !service.held.delegations.is_held(&file, by) {
            service.waiting_calls.resume(key);
        }
        true
    }

    /// The call has waited until now.
    pub(crate) fn has_waited(&mut self, waited: &WaitedCall) {
        self.deadline = Some(waited.deadline);
        self.deferred.clone_from(&waited.deferred);
    }
}
