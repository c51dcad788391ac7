//! The files that have locks, and the callers that wait there.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use curt_policy::{
    MonotonicTime,
    locks::{LocalLockOwner, LockAgent, LockCallId, LockFileId, LockRequestId},
};
use curt_types::{ByteRange, FileHandle};

use super::LockCaller;
use crate::{caller::InternedCaller, inode::Inode, open_file::OpenFile};

/// A file with locks or waiters.
pub(super) struct LockedFile {
    pub(super) inode: Arc<Inode>,
    identities: OwnerIdentities,
    pub(super) holders: BTreeMap<LocalLockOwner, HolderRecord>,
}

/// The identities of the openers through whom owners locked a file, or tried to. Requests of an
/// owner that no process waits for, such as reclaims, are sent with its identity: another user may
/// have no right to the lock.
struct OwnerIdentities {
    /// The first opener, and usually the only one.
    first: Arc<InternedCaller>,
    /// Owners with another identity. Those that have ended are kept for a while.
    others: BTreeMap<LocalLockOwner, Arc<InternedCaller>>,
    /// The number of `others` at which those that have ended are looked for.
    tidy_at: usize,
}

impl OwnerIdentities {
    /// Other identities that are kept without a look at whether their owners have ended.
    const KEPT: usize = 64;

    const fn new(first: Arc<InternedCaller>) -> Self {
        Self { first, others: BTreeMap::new(), tidy_at: Self::KEPT }
    }

    fn of(&self, owner: LocalLockOwner) -> &Arc<InternedCaller> {
        self.others.get(&owner).unwrap_or(&self.first)
    }

    fn note(&mut self, owner: LocalLockOwner, identity: &Arc<InternedCaller>) {
        if !Arc::ptr_eq(&self.first, identity) {
            self.others.insert(owner, Arc::clone(identity));
        } else if !self.others.is_empty() {
            self.others.remove(&owner);
        }
    }

    /// Forgets owners that have ended, if there are many.
    fn tidy(&mut self, known: impl FnOnce() -> BTreeSet<LocalLockOwner>) {
        if self.others.len() > self.tidy_at {
            let known = known();
            self.others.retain(|owner, _| known.contains(owner));
            self.tidy_at = (self.others.len() * 2).max(Self::KEPT);
        }
    }
}

/// An owner that holds a lock.
pub(super) struct HolderRecord {
    pub(super) pid: u32,
    pub(super) since: MonotonicTime,
    /// The open files through which it locked.
    opens: Vec<Weak<OpenFile>>,
}

impl LockedFile {
    pub(super) fn pid_of(&self, owner: LocalLockOwner) -> u32 {
        self.holders.get(&owner).map_or(0, |holder| holder.pid)
    }

    pub(super) fn opens_of(&self, owner: LocalLockOwner) -> &[Weak<OpenFile>] {
        self.holders.get(&owner).map_or(&[], |holder| &holder.opens)
    }
}

/// The files with locks or waiters, and the callers.
#[derive(Default)]
pub(super) struct LockedFiles {
    files: HashMap<LockFileId, LockedFile>,
    handles: HashMap<FileHandle, LockFileId>,
    callers: HashMap<LockRequestId, (LockFileId, LockCaller)>,
    /// Files that an event may have changed.
    touched: Vec<LockFileId>,
}

impl LockedFiles {
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn get(&self, file: LockFileId) -> Option<&LockedFile> {
        self.files.get(&file)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LockFileId, &LockedFile)> {
        self.files.iter().map(|(id, file)| (*id, file))
    }

    /// An event may change a file.
    pub(super) fn touch(&mut self, id: LockFileId) {
        self.touched.push(id);
    }

    pub(super) fn by_handle(&mut self, handle: &FileHandle) -> Option<LockFileId> {
        let id = self.handles.get(handle).copied();
        self.touched.extend(id);
        id
    }

    pub(super) fn caller(&self, request: LockRequestId) -> Option<&LockCaller> {
        self.callers.get(&request).map(|(_, caller)| caller)
    }

    /// The server has replied that a caller's LOCK is blocked.
    pub(super) fn blocked(&mut self, request: LockRequestId, now: MonotonicTime) {
        if let Some((_, caller)) = self.callers.get_mut(&request) {
            caller.blocked_since = Some(now);
        }
    }

    /// The server has called back: for how long the caller's LOCK was blocked.
    pub(super) fn called_back(&mut self, request: LockRequestId, now: MonotonicTime) -> Duration {
        let since = self.callers.get_mut(&request).and_then(|(_, caller)| caller.blocked_since.take());
        since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// The file and bytes that a caller waits for.
    pub(super) fn wanted(&self, request: LockRequestId) -> Option<(&Inode, ByteRange)> {
        let (id, caller) = self.callers.get(&request)?;
        let wanted = caller.wanted.as_ref()?;
        Some((&self.files.get(id)?.inode, wanted.arguments.range))
    }

    pub(super) fn add_caller(
        &mut self,
        id: LockFileId,
        inode: &Arc<Inode>,
        request: LockRequestId,
        caller: LockCaller,
    ) {
        let file = self.files.entry(id).or_insert_with(|| {
            self.handles.insert(inode.handle().clone(), id);
            let identities = OwnerIdentities::new(Arc::clone(&caller.identity));
            LockedFile { inode: Arc::clone(inode), identities, holders: BTreeMap::new() }
        });
        // A refused request does not change the identity of what its owner holds.
        if let Some(owner) = caller.wanted.as_ref().map(|wanted| wanted.arguments.owner)
            && !file.holders.contains_key(&owner)
        {
            file.identities.note(owner, &caller.identity);
        }
        self.callers.insert(request, (id, caller));
        self.touched.push(id);
    }

    /// A caller is answered: removes it, and notes what it holds now.
    pub(super) fn answered(
        &mut self,
        request: LockRequestId,
        is_granted: bool,
        now: MonotonicTime,
    ) -> Option<(Arc<Inode>, LockCaller)> {
        let (id, caller) = self.callers.remove(&request)?;
        let file = self.files.get_mut(&id)?;
        self.touched.push(id);
        if let Some(wanted) = caller.wanted.as_ref().filter(|_| is_granted) {
            let pid = wanted.arguments.pid;
            let record = HolderRecord { pid, since: now, opens: Vec::new() };
            let holder = file.holders.entry(wanted.arguments.owner).or_insert(record);
            file.identities.note(wanted.arguments.owner, &caller.identity);
            if !holder.opens.iter().any(|open| open.ptr_eq(&wanted.open)) {
                holder.opens.retain(|open| open.strong_count() > 0);
                holder.opens.push(Weak::clone(&wanted.open));
            }
        }
        Some((Arc::clone(&file.inode), caller))
    }

    /// The sender of a request, and its file.
    pub(super) fn sender(&mut self, call: LockCallId) -> Option<(Arc<Inode>, Arc<InternedCaller>)> {
        let file = self.files.get(&call.file)?;
        self.touched.push(call.file);
        let caller = self.callers.get(&call.request).map(|(_, caller)| &caller.identity);
        let identity = caller.unwrap_or_else(|| file.identities.of(call.owner));
        Some((Arc::clone(&file.inode), Arc::clone(identity)))
    }

    /// Forgets the owners and files that an event has left without locks; returns how long the
    /// owners held them, and the files.
    pub(super) fn tidy(&mut self, agent: &LockAgent, now: MonotonicTime) -> (Vec<Duration>, Vec<Arc<Inode>>) {
        let (mut held, mut unlocked) = (Vec::new(), Vec::new());
        for id in std::mem::take(&mut self.touched) {
            let Some(file) = self.files.get_mut(&id) else { continue };
            if agent.holders(id).count() != file.holders.len() {
                let known: BTreeSet<_> = agent.holders(id).map(|(owner, _)| owner).collect();
                file.holders.retain(|owner, holder| {
                    let is_held = known.contains(owner);
                    if !is_held {
                        held.push(now.since(holder.since));
                    }
                    is_held
                });
            }
            file.identities.tidy(|| agent.owners_of(id));
            if !agent.knows(id) {
                self.handles.remove(file.inode.handle());
                unlocked.extend(self.files.remove(&id).map(|file| file.inode));
            }
        }
        (held, unlocked)
    }
}
