//! The opens that this client holds at the server (RFC 8881 section 9).
//!
//! An owner has one open of a file, whatever the number of its users: the server joins the OPENs of
//! one open-owner. So an open is known by the file and the owner, as READ and WRITE find it. Its
//! users are counted by their access; without any it is idle until its CLOSE is sent in a compound
//! of the same credential, or until it is used again. Sends nothing and has no clock but its
//! arguments.
//!
//! An open is upgraded by another OPEN, and downgraded as soon as fewer accesses are used, and
//! nothing is locked through it any more. A server knows which accesses it was opened with, and
//! downgrades to these only (section 18.18.3): so does this table.
//!
//! An open that the server has lost has as many OPENs as accesses in use. It is not used again
//! before all of them were executed: a READ or WRITE between two of them would be refused.
//!
//! Under a delegation that came with it, an open for reading without users is kept: it becomes idle
//! when the delegation ends.
//!
//! An open for reading may be delayed: it has users, but the server has executed no OPEN that
//! covers them. The OPEN then precedes the first request that uses the open, in the same compound.
//! Without such a request the server never learns of the open.

mod closing;
mod open_state;
mod restoring;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use curt_policy::open::KEPT_FOR;
use curt_proto::nfs4::Stateid;
use curt_rpc::auth::RpcCredential;
use curt_types::FileHandle;
use parking_lot::Mutex;

pub(super) use self::open_state::OpenToRestore;
use self::open_state::{Open, OpenValidity};
use super::{
    open_codec::{GrantedOpen, wire},
    open_key::OpenKey,
    piggybacked::{PiggybackedKind, PiggybackedOperation},
    session::SessionGeneration,
};
use crate::protocol::{HeldDelegation, OpenOwner, ShareAccess};

/// An OPEN that was sent.
#[derive(Clone, Copy)]
pub(super) struct SentOpen {
    pub(super) access: ShareAccess,
    pub(super) wants_delegation: bool,
    /// The session that has executed it.
    pub(super) generation: SessionGeneration,
    /// The OPEN was sent because the open was lost.
    pub(super) is_reopening: bool,
}

/// The open that a request uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UsableOpen {
    /// There is none: the anonymous stateid is used.
    None,
    /// The open that has this stateid.
    Stateid(Stateid),
    /// The open is delayed: an OPEN for reading with this credential precedes the request.
    Delayed(Arc<RpcCredential>),
    /// The file has to be opened first.
    Reopen,
    /// The open is lost.
    Lost,
}

/// The opens of a client.
#[derive(Debug, Default)]
pub(super) struct OpenTable(Mutex<Opens>);

#[derive(Debug, Default)]
struct Opens {
    opens: HashMap<OpenKey, Open>,
    /// Opens without users. One that is used again stays here until it is found.
    idle: VecDeque<OpenKey>,
    /// Opens with fewer accesses in use than opened.
    to_downgrade: VecDeque<OpenKey>,
    /// The opens of before a restart of the server, by owner. Others are skipped.
    to_reclaim: VecDeque<OpenKey>,
    /// Piggybacked operations whose compound was not executed.
    waiting: VecDeque<PiggybackedOperation>,
    /// The owners of the opens of each file.
    owners: HashMap<FileHandle, Vec<u32>>,
    /// States whose CLOSE was sent for the newest sequence number, and not refused: the last ones.
    closed: VecDeque<[u8; 12]>,
    /// The first session since the server has forgotten this client.
    valid_since: SessionGeneration,
    /// Until then no operation for an open is sent: the server has delayed some.
    paused_until: Option<Instant>,
    /// Delayed operations since the server has executed one, each for another open than the one
    /// before.
    delayed: u32,
    /// The state of the last of them.
    last_delayed: Option<[u8; 12]>,
    /// Opens were dropped without their CLOSE.
    has_dropped: bool,
}

impl Opens {
    /// The open of a key, which is made if there is none.
    fn get_or_make(&mut self, key: &OpenKey, credential: &Arc<RpcCredential>) -> &mut Open {
        self.opens.entry(key.clone()).or_insert_with(|| {
            self.owners.entry(key.file.clone()).or_default().push(key.owner);
            Open::new(credential)
        })
    }

    fn remove(&mut self, key: &OpenKey) {
        if self.opens.remove(key).is_some()
            && let Some(owners) = self.owners.get_mut(&key.file)
        {
            owners.retain(|owner| *owner != key.owner);
            if owners.is_empty() {
                self.owners.remove(&key.file);
            }
        }
    }

    fn retain(&mut self, is_kept: impl Fn(&Open) -> bool) {
        let gone: Vec<_> =
            self.opens.iter().filter(|(_, open)| !is_kept(open)).map(|(key, _)| key.clone()).collect();
        for key in gone {
            self.remove(&key);
        }
    }

    /// The last use of an open has ended. Returns whether a piggybacked operation waits.
    fn end_use(&mut self, key: &OpenKey, now: Instant) -> bool {
        if self.opens.get(key).is_some_and(Open::is_at_server) {
            return self.set_idle(key, now);
        }
        self.remove(key);
        false
    }

    /// The opens of a file.
    fn of_file<'a>(&'a self, file: &'a FileHandle) -> impl Iterator<Item = &'a Open> {
        let owners = self.owners.get(file).into_iter().flatten();
        owners.filter_map(|owner| self.opens.get(&OpenKey { file: file.clone(), owner: *owner }))
    }
}

impl OpenTable {
    /// Adds a user, without an OPEN if the server has executed none. `false`: the file could not be
    /// opened again, and has to be opened anew.
    pub(super) fn use_unopened(
        &self,
        key: &OpenKey,
        credential: &Arc<RpcCredential>,
        access: ShareAccess,
    ) -> bool {
        let opens = &mut *self.0.lock();
        let open = opens.get_or_make(key, credential);
        if open.validity == OpenValidity::Lost {
            return false;
        }
        let users = &mut open.users[access as usize];
        *users = users.saturating_add(1);
        (open.idle_since, open.had_users) = (None, true);
        true
    }

    /// Adds a user if the owner has opened the file with this access.
    pub(super) fn share(&self, key: &OpenKey, access: ShareAccess) -> bool {
        let opens = &mut *self.0.lock();
        let Some(open) = opens.opens.get_mut(key) else { return false };
        let is_open = open.has_opened(access) && open.validity != OpenValidity::Lost;
        if is_open {
            open.users[access as usize] = open.users[access as usize].saturating_add(1);
            (open.idle_since, open.had_users) = (None, true);
        }
        is_open
    }

    /// The server has executed an OPEN. Without users the open is idle. `false`: it has forgotten
    /// it since.
    pub(super) fn opened(
        &self,
        file: &FileHandle,
        owner: OpenOwner<'_>,
        sent: SentOpen,
        result: GrantedOpen,
        now: Instant,
    ) -> bool {
        let key = OpenKey { file: file.clone(), owner: owner.number };
        let opens = &mut *self.0.lock();
        if sent.generation < opens.valid_since {
            return false;
        }
        // One that is sent again shows that the server uses the state again, or still.
        opens.closed.retain(|other| !sent.is_reopening || *other != result.stateid.other);
        let is_closed = opens.closed.contains(&result.stateid.other);
        let open = opens.get_or_make(&key, owner.credential);
        open.take_state(result.stateid);
        (open.is_preserved, open.may_notify) = (result.is_preserved, result.may_notify);
        open.opened |= 1 << wire(sent.access);
        if open.validity != OpenValidity::Valid {
            open.restored |= 1 << wire(sent.access);
            open.end_restoring();
        }
        if is_closed {
            // The CLOSE was sent before this reply was known, and may have been executed later.
            (open.validity, open.restored) = (OpenValidity::Reopen, 0);
        }
        open.had_users = open.is_used();
        if !open.is_used() {
            opens.set_idle(&key, now);
        }
        true
    }

    /// Whether a file is open for writing.
    pub(super) fn is_written(&self, file: &FileHandle) -> bool {
        let opens = self.0.lock();
        opens.of_file(file).any(Open::writes)
    }

    /// A delegation came with the open: it is kept until that ends ([`Self::undelegated`]).
    pub(super) fn delegated(&self, key: &OpenKey, delegation: &Arc<HeldDelegation>) {
        if let Some(open) = self.0.lock().opens.get_mut(key) {
            open.delegation = Some(Arc::clone(delegation));
            if open.is_delegated() && !open.is_used() && !open.writes() {
                // It leaves the queue when it is found there.
                open.idle_since = None;
            }
        }
    }

    /// The delegation that came with an open has ended. This open and others of the file that it
    /// kept are closed at once if they have no users.
    pub(super) fn undelegated(&self, key: &OpenKey, now: Instant) {
        let opens = &mut *self.0.lock();
        for owner in opens.owners.get(&key.file).cloned().unwrap_or_default() {
            let of_file = OpenKey { file: key.file.clone(), owner };
            let Some(open) = opens.opens.get_mut(&of_file) else { continue };
            let was_kept = open.delegation.take_if(|delegation| !delegation.is_held()).is_some();
            if !was_kept && owner != key.owner || open.is_used() || !open.is_at_server() {
                continue;
            }
            open.idle_since = Some(now.checked_sub(KEPT_FOR).unwrap_or(now));
            if !std::mem::replace(&mut open.is_queued, true) {
                opens.idle.push_front(of_file);
            }
        }
    }

    /// Removes a user. Returns whether a piggybacked operation waits now.
    pub(super) fn release(&self, key: &OpenKey, access: ShareAccess, now: Instant) -> bool {
        let opens = &mut *self.0.lock();
        let Some(open) = opens.opens.get_mut(key) else { return false };
        let users = &mut open.users[access as usize];
        *users = users.saturating_sub(1);
        open.end_restoring();
        if open.is_used() {
            let is_too_wide = open.narrower().is_some();
            if is_too_wide {
                opens.narrow_later(key);
            }
            return is_too_wide;
        }
        opens.end_use(key, now)
    }

    /// The stateid for I/O. Its sequence number is zero, which stands for the newest state: an
    /// upgrade may be in flight (section 8.2.2). Only a READ needs a delayed OPEN: a WRITE does not
    /// fail because the file cannot be read.
    pub(super) fn usable(&self, key: &OpenKey, access: ShareAccess) -> UsableOpen {
        let opens = self.0.lock();
        match opens.opens.get(key) {
            None => UsableOpen::None,
            Some(open) => match open.validity {
                OpenValidity::Valid if access != ShareAccess::Write && open.is_delayed() => {
                    UsableOpen::Delayed(Arc::clone(&open.credential))
                }
                OpenValidity::Valid if open.opened == 0 => UsableOpen::None,
                OpenValidity::Valid => UsableOpen::Stateid(Stateid { seqid: 0, ..open.stateid }),
                // Reclaiming ends before any other request is sent.
                OpenValidity::Reclaim | OpenValidity::Reopen => UsableOpen::Reopen,
                OpenValidity::Lost => UsableOpen::Lost,
            },
        }
    }

    /// A LOCK is sent for a lock state that is based on an open, perhaps a new one: the open is
    /// kept until each state has ended.
    pub(super) fn begin_lock(&self, key: &OpenKey, is_new: bool) {
        if let Some(open) = self.0.lock().opens.get_mut(key) {
            open.pins += u32::from(is_new);
            (open.is_locked, open.idle_since) = (true, None);
        }
    }

    /// Records whether lock states that are based on an open hold or want a lock. Returns whether
    /// the others are kept, for its users. They are not if those need only a delayed open.
    pub(super) fn note_locks(&self, key: &OpenKey, is_locked: bool) -> bool {
        let opens = &mut *self.0.lock();
        let Some(open) = opens.opens.get_mut(key) else { return false };
        open.is_locked = is_locked;
        open.has_users() && (is_locked || open.excess() != Some(PiggybackedKind::Close))
    }

    /// A lock state has ended. Returns whether a piggybacked operation waits now.
    pub(super) fn unpin(&self, key: &OpenKey, now: Instant) -> bool {
        let opens = &mut *self.0.lock();
        let Some(open) = opens.opens.get_mut(key) else { return false };
        open.pins = open.pins.saturating_sub(1);
        open.end_restoring();
        if open.is_used() {
            return false;
        }
        opens.end_use(key, now)
    }

    /// Whether this open has users.
    pub(super) fn has_users(&self, key: &OpenKey) -> bool {
        self.0.lock().opens.get(key).is_some_and(Open::has_users)
    }

    /// Whether the server may notify this client of locks that were denied to it.
    pub(super) fn may_notify(&self, key: &OpenKey) -> bool {
        self.0.lock().opens.get(key).is_some_and(|open| open.may_notify)
    }

    /// Whether the server keeps a file that is open although its last name is removed, for all
    /// users that it has here.
    pub(super) fn is_preserved(&self, file: &FileHandle) -> bool {
        let opens = self.0.lock();
        let mut used = opens.of_file(file).filter(|open| open.is_used()).peekable();
        used.peek().is_some() && used.all(Open::is_preserved_for_users)
    }

    /// All opens that the server should know, with their stateids.
    pub(super) fn held(&self) -> Vec<(OpenKey, Stateid)> {
        let opens = self.0.lock();
        let held = opens.opens.iter().filter(|(_, open)| open.is_at_server());
        held.map(|(key, open)| (key.clone(), open.stateid)).collect()
    }

    /// Whether the server lets the owner of this open write.
    pub(super) fn is_written_by(&self, key: &OpenKey) -> bool {
        self.0.lock().opens.get(key).is_some_and(Open::writes)
    }
}

#[cfg(test)]
mod tests;
