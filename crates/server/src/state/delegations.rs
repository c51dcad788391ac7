//! Read delegations (RFC 8881 sections 10.2 to 10.4): which clients hold one of which file, and
//! whether another client changes the file.
//!
//! A change of a file begins with a [`FileChange`]. It begins only if no other client has a
//! delegation; otherwise those are recalled, and the change has to be tried again. As long as it
//! lasts, no delegation of the file is granted. So no change goes unnoticed by a holder, whichever
//! comes first. A WRITE with an open recalls nothing, because others have no delegation of a file
//! that is open for writing. It is a change as well, for its open may end before it does.
//!
//! A delegation whose recall is not answered for the time of a lease is overdue, and is revoked; if
//! a process of this machine waits for it, before the kernel lets that process go on. A file whose
//! delegations were recalled gets none for some time, because its writer usually changes it again
//! soon.
//!
//! The order of locks: those of a tree of files, which asks about the object of a name, then a
//! shard of this table, then a shard of the table of shares or of locks.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher as _, RandomState},
    sync::OnceLock,
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use curt_proto::nfs4::{Clientid, SequenceId, SessionId, SlotId, Stateid};
use curt_types::FileHandle;
use curt_vfs::FileLease;
use parking_lot::Mutex;

use super::{FileKey, nanoseconds};

/// Number of shards: as many as threads that contend for locks on machines of today.
const SHARDS: usize = 64;
/// Number of places for what is known of files without delegations, by their hashes. Files with the
/// same place get a delegation later than possible; that is harmless.
const PLACES: usize = 1 << 14;
/// How long a file gets no delegation after a recall.
const PAUSE: Duration = Duration::from_secs(30);
/// How long the files of changes are tracked after a delegation was refused because of a change of
/// an unknown file.
const TRACKED_FOR: Duration = Duration::from_secs(1);
/// Maximum number of holders of one file: a change recalls them all.
const HOLDERS_MAX: usize = 1024;

/// The request that was granted a delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantingCall {
    /// Its session.
    pub(crate) session: SessionId,
    /// Its slot.
    pub(crate) slot: SlotId,
    /// Its sequence id.
    pub(crate) sequence: SequenceId,
}

/// A delegation as it is granted.
pub(crate) struct NewDelegation {
    /// The holder.
    pub(crate) client: Clientid,
    /// Its stateid.
    pub(crate) stateid: Stateid,
    /// The file, as the holder calls it.
    pub(crate) handle: FileHandle,
    /// The request.
    pub(crate) granted_by: GrantingCall,
    /// The client had it before the server restarted.
    pub(crate) is_reclaim: bool,
}

/// Reports changes by processes of this machine.
pub(crate) enum LocalChanges {
    /// Nothing: there are none, or they need not be known.
    Ignored,
    /// A lease that the file is known to have.
    Leased,
    /// This lease, if the file has none yet.
    Lease(Box<dyn FileLease>),
}

impl LocalChanges {
    fn take_lease(&mut self) -> Option<Box<dyn FileLease>> {
        match std::mem::replace(self, Self::Leased) {
            Self::Lease(lease) => Some(lease),
            Self::Ignored | Self::Leased => None,
        }
    }
}

/// The part of a file that a change concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// The file's data: the server opens it for writing.
    Data,
    /// The file's data, by a process of this machine, which the kernel lets wait for so long.
    Local(Duration),
    /// Its attributes or names, or what others may open.
    Attributes,
}

/// A delegation to be recalled.
#[derive(Clone, Debug)]
pub(crate) struct Recall {
    /// The holder.
    pub(crate) client: Clientid,
    /// The delegation.
    pub(crate) stateid: Stateid,
    /// Its file.
    pub(crate) file: FileKey,
    /// The file, as the holder calls it.
    pub(crate) handle: FileHandle,
    /// The request that got it.
    pub(crate) granted_by: GrantingCall,
}

/// A change that may be made.
#[derive(Debug)]
pub(crate) struct BegunChange<'a> {
    /// The permission.
    pub(crate) change: FileChange<'a>,
    /// The recall of the client's own delegation: the kernel will not report changes any more.
    pub(crate) recall: Option<Recall>,
}

/// The delegations that conflict with a change.
#[derive(Debug, Default)]
pub(crate) struct DelegationConflict {
    /// The holders.
    pub(crate) holders: Vec<Clientid>,
    /// The recalls to be sent: those that are neither answered nor about to be sent.
    pub(crate) recalls: Vec<Recall>,
}

/// A delegation whose recall was not answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverdueDelegation {
    /// The holder.
    pub(crate) client: Clientid,
    /// The file.
    pub(crate) file: FileKey,
    /// The delegation.
    pub(crate) stateid: Stateid,
}

/// Notified of the ends of delegations. Called with a client's states locked; must not call the
/// state.
pub(crate) trait DelegationObserver: Send + Sync {
    /// A delegation of `file` that was recalled has ended.
    fn has_ended(&self, file: &FileKey);
}

/// The state of a recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecallState {
    /// The recall has been sent, or is about to be.
    Sent,
    /// The recall was not answered: it is to be sent again.
    Failed,
    /// The recall has been sent again, or is about to be.
    Repeated,
}

struct Delegation {
    stateid: Stateid,
    handle: FileHandle,
    granted_by: GrantingCall,
    /// Since when it is recalled.
    recall: Option<(Duration, RecallState)>,
    /// When it is overdue at the latest: a process of this machine waits no longer.
    deadline: Option<Duration>,
}

/// The delegations of one file.
#[derive(Default)]
struct FileDelegations {
    holders: HashMap<Clientid, Delegation>,
    /// Reports processes of this machine that want to write the file.
    lease: Option<Box<dyn FileLease>>,
}

#[derive(Default)]
struct DelegationShard {
    files: HashMap<FileKey, FileDelegations>,
    /// The delegations that are recalled, by the time of the recall and the stateid.
    recalled: RecallTimes,
    /// The recalled delegations that have a deadline, ordered by it.
    deadlines: RecallTimes,
}

/// Delegations by a time and the stateid.
type RecallTimes = BTreeMap<(Duration, [u8; 12]), (FileKey, Clientid)>;

/// The delegations of all clients.
pub(crate) struct DelegationTable {
    shards: Box<[Mutex<DelegationShard>]>,
    hasher: RandomState,
    /// Number of delegations, including one that is about to be granted. SeqCst with `changes`: of
    /// a change and a grant at the same time, at least one sees the other.
    count: AtomicUsize,
    /// Number of those that are recalled. Relaxed: a number alone.
    recalled: AtomicUsize,
    /// Number of changes in progress by place. SeqCst: see `count`.
    changes: Box<[AtomicU32]>,
    /// Number of changes in progress of files that are not known. SeqCst: see `count`.
    changes_of_any: AtomicU32,
    /// Number of OPENs that may have created a file, and have not reserved its access yet. SeqCst
    /// with the creation: who finds the file sees it counted, or finds the access reserved.
    creations: AtomicU32,
    /// Nanoseconds until which the files of new changes are tracked, though there is no delegation.
    /// Relaxed: a change that sees an old value delays a delegation.
    tracked_until: AtomicU64,
    /// Nanoseconds of the last recall by place, plus one; 0 if there was none. Relaxed: written and
    /// read with a shard locked; files of another shard with this place may see an old value.
    last_recalls: Box<[AtomicU64]>,
    observer: OnceLock<Box<dyn DelegationObserver>>,
}

/// Permission to change a file, until it is dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct FileChange<'a>(&'a AtomicU32);

impl Drop for FileChange<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Default for DelegationTable {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            count: AtomicUsize::new(0),
            recalled: AtomicUsize::new(0),
            changes: Box::new([const { AtomicU32::new(0) }; PLACES]),
            changes_of_any: AtomicU32::new(0),
            creations: AtomicU32::new(0),
            tracked_until: AtomicU64::new(0),
            last_recalls: Box::new([const { AtomicU64::new(0) }; PLACES]),
            observer: OnceLock::new(),
        }
    }
}

impl DelegationTable {
    /// Sets the receiver of ends of delegations. Later calls have no effect.
    pub(crate) fn observe(&self, observer: Box<dyn DelegationObserver>) {
        let _ = self.observer.set(observer);
    }

    /// Begins a change of a file that need not be known, because no client has a delegation, and
    /// none was about to get one.
    pub(crate) fn begin_change_of_any(&self, now: Duration) -> Option<FileChange<'_>> {
        if nanoseconds(now) < self.tracked_until.load(Ordering::Relaxed) {
            return None;
        }
        self.changes_of_any.fetch_add(1, Ordering::SeqCst);
        let change = FileChange(&self.changes_of_any);
        self.is_empty().then_some(change)
    }

    /// Begins an OPEN that may create a file. Until it has reserved the access, nobody else gets a
    /// delegation of the new file: the OPEN could not wait for it, because it would find its own
    /// file when it is executed again.
    pub(crate) fn begin_creation(&self) -> FileChange<'_> {
        self.creations.fetch_add(1, Ordering::SeqCst);
        FileChange(&self.creations)
    }

    /// Whether a file that was found before may be new to an OPEN in progress.
    pub(crate) fn is_creating(&self) -> bool {
        self.creations.load(Ordering::SeqCst) > 0
    }

    /// Tracks the files of new changes until then, so that they delay only delegations of these.
    pub(crate) fn track_changes(&self, until: Duration) {
        self.tracked_until.fetch_max(nanoseconds(until), Ordering::Relaxed);
    }

    /// Whether no client has a delegation, and none is about to get one.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Number of delegations.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn place(&self, file: &FileKey) -> usize {
        // The lowest bits are enough.
        usize::try_from(self.hasher.hash_one(file) & 0xffff_ffff).unwrap_or_default()
    }

    /// Begins a change of `file` that is made by the client `by`, or by no NFSv4 client. The
    /// delegation of a client is not in its own way: it knows what it changes. But a lease of the
    /// kernel is in the way of the server's own write. It is given up, and so the client is asked
    /// for its delegation without being waited for.
    ///
    /// # Errors
    /// The delegations in its way, which are recalled from now on.
    pub(crate) fn begin_change(
        &self,
        file: &FileKey,
        by: Option<Clientid>,
        kind: ChangeKind,
        now: Duration,
    ) -> Result<BegunChange<'_>, DelegationConflict> {
        let place = self.place(file);
        let changes = &self.changes[place % PLACES];
        changes.fetch_add(1, Ordering::SeqCst);
        let change = FileChange(changes);
        if self.is_empty() {
            return Ok(BegunChange { change, recall: None });
        }
        // Dropped after the guard, which is newer.
        let mut lease = None;
        let DelegationShard { files, recalled, deadlines } = &mut *self.shards[place % SHARDS].lock();
        let Some(delegations) = files.get_mut(file) else { return Ok(BegunChange { change, recall: None }) };
        let mut conflict = DelegationConflict::default();
        for (client, delegation) in delegations.holders.iter_mut() {
            if Some(*client) != by {
                conflict.holders.push(*client);
                conflict.recalls.extend(self.recall(file, *client, delegation, recalled, now));
                if let (ChangeKind::Local(waits), None) = (kind, delegation.deadline) {
                    delegation.deadline = Some(now + waits);
                    deadlines.insert((now + waits, delegation.stateid.other), (*file, *client));
                }
            }
        }
        if conflict.holders.is_empty() {
            let mut recall = None;
            if kind == ChangeKind::Data {
                lease = delegations.lease.take();
            }
            if lease.is_some()
                && let Some((client, delegation)) = delegations.holders.iter_mut().next()
            {
                recall = self.recall(file, *client, delegation, recalled, now);
            }
            return Ok(BegunChange { change, recall });
        }
        self.last_recalls[place % PLACES].store(nanoseconds(now).saturating_add(1), Ordering::Relaxed);
        Err(conflict)
    }

    /// Begins a WRITE with an open of the file, which is to be examined afterwards: as long as the
    /// open exists, others have no delegation.
    pub(crate) fn begin_write(&self, file: &FileKey) -> FileChange<'_> {
        let changes = &self.changes[self.place(file) % PLACES];
        changes.fetch_add(1, Ordering::SeqCst);
        FileChange(changes)
    }

    /// Begins a change of `file` that is made by the client `by`, unless others have a delegation:
    /// these are not recalled.
    pub(crate) fn begin_change_unless_held(
        &self,
        file: &FileKey,
        by: Option<Clientid>,
    ) -> Option<FileChange<'_>> {
        let changes = &self.changes[self.place(file) % PLACES];
        changes.fetch_add(1, Ordering::SeqCst);
        let change = FileChange(changes);
        (!self.is_held(file, by)).then_some(change)
    }

    /// Marks a delegation as recalled. Returns the recall, if it is to be sent.
    fn recall(
        &self,
        file: &FileKey,
        client: Clientid,
        delegation: &mut Delegation,
        recalled: &mut RecallTimes,
        now: Duration,
    ) -> Option<Recall> {
        delegation.recall = Some(match delegation.recall {
            Some((_, RecallState::Sent | RecallState::Repeated)) => return None,
            Some((since, RecallState::Failed)) => (since, RecallState::Repeated),
            None => {
                self.recalled.fetch_add(1, Ordering::Relaxed);
                recalled.insert((now, delegation.stateid.other), (*file, client));
                (now, RecallState::Sent)
            }
        });
        let Delegation { stateid, ref handle, granted_by, .. } = *delegation;
        Some(Recall { client, stateid, file: *file, handle: handle.clone(), granted_by })
    }

    /// Whether the kernel reports processes that want to write the file.
    pub(crate) fn has_lease(&self, file: &FileKey) -> bool {
        let shard = self.shards[self.place(file) % SHARDS].lock();
        shard.files.get(file).is_some_and(|delegations| delegations.lease.is_some())
    }

    /// Grants a delegation, unless somebody changes the file, has changed it lately, or may write
    /// it, or unless it has too many holders. Returns whether it did. A client has one of a file at
    /// most. Takes the lease from `local`, the source of notifications of changes by processes of
    /// this machine, if the file has none: one that is not used is dropped by the caller, without a
    /// lock.
    pub(super) fn grant(
        &self,
        file: &FileKey,
        new: NewDelegation,
        local: &mut LocalChanges,
        now: Duration,
        is_wanted_for_writing: impl FnOnce() -> bool,
    ) -> bool {
        let place = self.place(file);
        self.count.fetch_add(1, Ordering::SeqCst);
        let shard = &mut *self.shards[place % SHARDS].lock();
        let present = shard.files.get(file);
        let is_told_of_local_changes = match local {
            LocalChanges::Ignored => true,
            LocalChanges::Leased => present.is_some_and(|delegations| delegations.lease.is_some()),
            LocalChanges::Lease(lease) => !lease.is_broken(),
        };
        let NewDelegation { client, stateid, handle, granted_by, is_reclaim } = new;
        if !self.is_open_to(place, present, client, is_reclaim, now)
            || !is_told_of_local_changes
            || is_wanted_for_writing()
            // A WRITE began before its open was examined. If the open has ended since, it is seen.
            || self.is_changed(place)
        {
            self.count.fetch_sub(1, Ordering::SeqCst);
            return false;
        }
        let delegation = Delegation { stateid, handle, granted_by, recall: None, deadline: None };
        let delegations = shard.files.entry(*file).or_default();
        delegations.holders.insert(client, delegation);
        if delegations.lease.is_none() {
            delegations.lease = local.take_lease();
        }
        true
    }

    /// Whether a delegation would be granted now, if changes by processes of this machine are
    /// reported.
    pub(super) fn may_grant(
        &self,
        file: &FileKey,
        client: Clientid,
        is_reclaim: bool,
        now: Duration,
        is_wanted_for_writing: impl FnOnce() -> bool,
    ) -> bool {
        let place = self.place(file);
        let shard = self.shards[place % SHARDS].lock();
        self.is_open_to(place, shard.files.get(file), client, is_reclaim, now) && !is_wanted_for_writing()
    }

    /// Whether nobody changes a file with this place or has changed it lately, and the client may
    /// become a holder. To be called with the shard locked.
    fn is_open_to(
        &self,
        place: usize,
        present: Option<&FileDelegations>,
        client: Clientid,
        is_reclaim: bool,
        now: Duration,
    ) -> bool {
        let is_any_changed = self.changes_of_any.load(Ordering::SeqCst) > 0;
        if is_any_changed {
            self.track_changes(now + TRACKED_FOR);
        }
        !is_any_changed
            && !self.is_changed(place)
            && (is_reclaim || !self.was_recalled(place, now))
            && present.is_none_or(|delegations| takes_holder(&delegations.holders, client))
    }

    /// Whether somebody changes a file with this place.
    fn is_changed(&self, place: usize) -> bool {
        self.changes[place % PLACES].load(Ordering::SeqCst) > 0
    }

    /// Whether delegations of files with this place were recalled lately.
    fn was_recalled(&self, place: usize, now: Duration) -> bool {
        match self.last_recalls[place % PLACES].load(Ordering::Relaxed) {
            0 => false,
            recalled => nanoseconds(now).saturating_sub(recalled - 1) < nanoseconds(PAUSE),
        }
    }

    /// A client's delegation ends: it was returned or revoked, or the client is gone.
    pub(super) fn end(&self, file: &FileKey, client: Clientid) {
        let mut shard = self.shards[self.place(file) % SHARDS].lock();
        let Some(delegations) = shard.files.get_mut(file) else { return };
        let Some(ended) = delegations.holders.remove(&client) else { return };
        let last = if delegations.holders.is_empty() { shard.files.remove(file) } else { None };
        self.count.fetch_sub(1, Ordering::SeqCst);
        if let Some((since, _)) = ended.recall {
            shard.recalled.remove(&(since, ended.stateid.other));
            self.recalled.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(deadline) = ended.deadline {
            shard.deadlines.remove(&(deadline, ended.stateid.other));
        }
        drop(shard);
        // The lease has a descriptor, which is closed without a lock.
        drop(last);
        if ended.recall.is_some()
            && let Some(observer) = self.observer.get()
        {
            observer.has_ended(file);
        }
    }

    /// A recall has ended. If it was not answered, it is sent again. Of one that was sent again,
    /// the time of a lease begins when the client has it.
    pub(crate) fn recall_ended(&self, recall: &Recall, is_delivered: bool, now: Duration) {
        let Recall { client, stateid, ref file, .. } = *recall;
        let DelegationShard { files, recalled, .. } = &mut *self.shards[self.place(file) % SHARDS].lock();
        let delegations = files.get_mut(file);
        let delegation = delegations.and_then(|delegations| delegations.holders.get_mut(&client));
        if let Some(delegation) = delegation
            && delegation.stateid.other == stateid.other
            && let Some((since, state)) = &mut delegation.recall
        {
            if !is_delivered {
                *state = RecallState::Failed;
            } else if *state == RecallState::Repeated {
                recalled.remove(&(*since, stateid.other));
                recalled.insert((now, stateid.other), (*file, client));
                (*since, *state) = (now, RecallState::Sent);
            }
        }
    }

    /// Whether some are recalled and not returned yet.
    pub(crate) fn has_recalled(&self) -> bool {
        self.recalled.load(Ordering::Relaxed) > 0
    }

    /// The delegations whose recalls were not answered.
    pub(crate) fn unanswered(&self) -> Vec<(FileKey, Clientid)> {
        if !self.has_recalled() {
            return Vec::new();
        }
        let of_shard = |shard: &Mutex<DelegationShard>| {
            let shard = shard.lock();
            let has_failed = |(file, client): &&(FileKey, Clientid)| {
                let delegation = shard.files.get(file).and_then(|file| file.holders.get(client));
                let recall = delegation.and_then(|delegation| delegation.recall);
                recall.is_some_and(|(_, state)| state == RecallState::Failed)
            };
            shard.recalled.values().filter(has_failed).copied().collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// Marks a recall that was not answered as sent again. Returns it, if it is to be sent.
    pub(crate) fn repeat_recall(&self, file: &FileKey, client: Clientid, now: Duration) -> Option<Recall> {
        let DelegationShard { files, recalled, .. } = &mut *self.shards[self.place(file) % SHARDS].lock();
        let delegation = files.get_mut(file)?.holders.get_mut(&client)?;
        matches!(delegation.recall, Some((_, RecallState::Failed)))
            .then(|| self.recall(file, client, delegation, recalled, now))?
    }

    /// Whether others than `by` have a delegation of a file.
    pub(crate) fn is_held(&self, file: &FileKey, by: Option<Clientid>) -> bool {
        if self.is_empty() {
            return false;
        }
        let shard = self.shards[self.place(file) % SHARDS].lock();
        let delegations = shard.files.get(file);
        delegations.is_some_and(|delegations| delegations.holders.keys().any(|client| Some(*client) != by))
    }

    /// The delegations that are recalled since `lease` or longer, or whose deadline is over.
    pub(crate) fn overdue(&self, now: Duration, lease: Duration) -> Vec<OverdueDelegation> {
        let mut overdue = Vec::new();
        if self.recalled.load(Ordering::Relaxed) == 0 {
            return overdue;
        }
        for shard in &self.shards {
            let shard = shard.lock();
            let until = |times: &RecallTimes, last: Option<Duration>| {
                let times = last.map(|last| times.range(..=(last, [u8::MAX; 12])));
                let as_overdue =
                    |((_, other), (file, client)): (&(Duration, [u8; 12]), &(FileKey, Clientid))| {
                        OverdueDelegation {
                            client: *client,
                            file: *file,
                            stateid: Stateid { seqid: 0, other: *other },
                        }
                    };
                times.into_iter().flatten().map(as_overdue).collect::<Vec<_>>()
            };
            overdue.extend(until(&shard.recalled, now.checked_sub(lease)));
            overdue.extend(until(&shard.deadlines, Some(now)));
        }
        overdue
    }
}

#[cfg(test)]
impl DelegationTable {
    /// Ends a change that was forgotten.
    pub(super) fn end_change(&self, file: &FileKey) {
        drop(FileChange(&self.changes[self.place(file) % PLACES]));
    }

    /// Locks all shards, until the result is dropped.
    pub(super) fn lock_all(&self) -> impl Sized + '_ {
        self.shards.iter().map(Mutex::lock).collect::<Vec<_>>()
    }

    /// Whether a thread has locked a shard.
    pub(super) fn is_locked(&self) -> bool {
        self.shards.iter().any(Mutex::is_locked)
    }
}

/// Whether a client may become a holder.
fn takes_holder(holders: &HashMap<Clientid, Delegation>, client: Clientid) -> bool {
    let is_recalled = || holders.values().any(|delegation| delegation.recall.is_some());
    holders.len() < HOLDERS_MAX && !holders.contains_key(&client) && !is_recalled()
}
