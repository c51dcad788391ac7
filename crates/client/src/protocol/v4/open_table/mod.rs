//! The opens that this client holds at the server (RFC 8881 section 9).
//!
//! An owner has one open of a file, whatever the number of its users: the server joins the OPENs of
//! one open-owner. So an open is known by the file and the owner, as READ and WRITE find it. Its
//! users are counted by their access; without any it is idle until its CLOSE is sent in a compound
//! of the same credential, or until it is used again. Sends nothing and has no clock but its
//! arguments.
//!
//! An open is upgraded by another OPEN, and downgraded as soon as fewer accesses are used, and
//! nothing is locked through it any more. A server
//! knows which accesses it was opened with, and downgrades to these only (section 18.18.3): so does
//! this table.
//!
//! An open that the server has lost has as many OPENs as accesses in use. It is not used again
//! before all of them were executed: a READ or WRITE between two of them would be refused.
//!
//! After the server has delayed CLOSE or OPEN_DOWNGRADE of two opens in a row, none is sent for
//! [`DELAYED_PAUSE`]: nothing of a compound is executed behind one. If it delays those of all
//! opens, no more than [`IDLE_MAX`] of them wait. Others are dropped: without CLOSE the server
//! keeps them until this client ends.
//!
//! Under a delegation that came with it, an open for reading without users is kept: it becomes idle
//! when the delegation ends.
//!
//! An open for reading may be delayed: it has users, but the server has executed no OPEN that
//! covers them. The OPEN then precedes the first request that uses the open, in the same compound.
//! Without such a request the server never learns of the open.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use curt_policy::open::{IdleOpen, KEPT_FOR};
use curt_proto::nfs4::{NfsStat4, Stateid};
use curt_rpc::auth::RpcCredential;
use curt_types::FileHandle;
use parking_lot::Mutex;

use super::{
    open_codec::{GrantedOpen, wire},
    open_key::OpenKey,
    piggybacked::{ClosedOpens, PiggybackedKind, PiggybackedOperation, Postponement},
    session::SessionGeneration,
};
use crate::protocol::{HeldDelegation, OpenOwner, ShareAccess};

/// Whether an open can be used, or what must be done before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenValidity {
    /// Nothing.
    Valid,
    /// The server was restarted: it has to be reclaimed.
    Reclaim,
    /// The open was lost: the file has to be opened again.
    Reopen,
    /// The file cannot be opened again: its users get EIO.
    Lost,
}

#[derive(Debug)]
struct Open {
    credential: Arc<RpcCredential>,
    stateid: Stateid,
    validity: OpenValidity,
    /// The accesses of the OPENs that the server has executed: bit `n` for the share access `n`.
    /// None: the server has no such open.
    opened: u8,
    /// Accesses that the server has executed again while the open is not valid.
    restored: u8,
    /// The server may have executed OPENs with more accesses: an OPEN_DOWNGRADE has no reply.
    may_be_wider: bool,
    /// The users with each access, by [`ShareAccess`].
    users: [u32; 3],
    /// The lock states that are based on it.
    pins: u32,
    /// One of them holds or wants a lock.
    is_locked: bool,
    /// The server may send CB_NOTIFY_LOCK.
    may_notify: bool,
    /// The server keeps the file while it is open, whatever happens to its names.
    is_preserved: bool,
    /// The delegation that came with it.
    delegation: Option<Arc<HeldDelegation>>,
    /// Since when it has no users.
    idle_since: Option<Instant>,
    /// The open is in [`Opens::idle`].
    is_queued: bool,
    /// When its next OPEN_DOWNGRADE is sent, after the server has delayed one.
    postponement: Postponement,
    /// The open had users since the server executed an OPEN. Before that it is kept for the sender
    /// of the OPEN, although it may be for writing.
    had_users: bool,
}

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

/// An open that has to be established at the server again.
#[derive(Clone, Debug)]
pub(super) struct OpenToRestore {
    pub(super) key: OpenKey,
    pub(super) credential: Arc<RpcCredential>,
    pub(super) accesses: Vec<ShareAccess>,
}

/// An OPEN that was abandoned before its reply: the server may have executed it.
#[derive(Clone, Debug)]
pub(super) struct AbandonedOpen {
    pub(super) target: OpenTarget,
    pub(super) owner: u32,
    pub(super) credential: Arc<RpcCredential>,
    pub(super) access: ShareAccess,
}

impl AbandonedOpen {
    pub(super) fn new(target: OpenTarget, owner: OpenOwner<'_>, access: ShareAccess) -> Self {
        Self { target, owner: owner.number, credential: Arc::clone(owner.credential), access }
    }
}

/// The file that an [`AbandonedOpen`] was sent for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OpenTarget {
    /// By its handle.
    File(FileHandle),
    /// By its name in a directory.
    Name(FileHandle, Vec<u8>),
}

/// The most abandoned OPENs that are remembered. The server keeps what others have opened until
/// this client ends.
const ABANDONED_MAX: usize = 1024;

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
    abandoned: Vec<AbandonedOpen>,
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

/// How long no operation for an open is sent after the server has delayed those of two opens in a
/// row. It ends before these are sent again, so that others are not behind them.
const DELAYED_PAUSE: Duration = Duration::from_millis(50);

/// A server that has delayed this many operations in a row, of more than one open, delays all.
const DELAYED_MAX: u32 = 16;

/// The most opens that wait to be closed, or to be narrowed, by a server that delays that.
const IDLE_MAX: usize = 4096;

/// The most idle opens that one compound looks at in vain. Those of other credentials are closed in
/// compounds of their own.
const IDLE_PASSED_MAX: usize = 64;

/// The most states of [`Opens::closed`]: such a CLOSE is rare.
const CLOSED_MAX: usize = 64;

const ACCESSES: [ShareAccess; 3] = [ShareAccess::Read, ShareAccess::Write, ShareAccess::Both];

impl Open {
    /// An open that the server has not executed.
    fn new(credential: &Arc<RpcCredential>) -> Self {
        Self {
            credential: Arc::clone(credential),
            stateid: Stateid::ANONYMOUS,
            validity: OpenValidity::Valid,
            opened: 0,
            restored: 0,
            may_be_wider: false,
            users: [0; 3],
            pins: 0,
            is_locked: false,
            may_notify: false,
            is_preserved: false,
            delegation: None,
            idle_since: None,
            is_queued: false,
            postponement: Postponement::default(),
            had_users: false,
        }
    }

    /// Whether it is kept without users.
    fn is_delegated(&self) -> bool {
        self.delegation.as_ref().is_some_and(|delegation| delegation.is_held())
    }

    /// The open as one without users.
    fn idle(&self, now: Option<Instant>, others: usize) -> IdleOpen {
        IdleOpen {
            since: now.zip(self.idle_since).map(|(now, since)| now.saturating_duration_since(since)),
            writes: self.had_users && self.writes(),
            others,
            is_delegated: self.is_delegated(),
        }
    }

    fn writes(&self) -> bool {
        self.opened & !(1 << wire(ShareAccess::Read)) != 0
            || self.users[ShareAccess::Write as usize] > 0
            || self.users[ShareAccess::Both as usize] > 0
    }

    fn has_users(&self) -> bool {
        self.users.iter().any(|users| *users > 0)
    }

    fn is_used(&self) -> bool {
        self.has_users() || self.pins > 0
    }

    /// An open in the queue of idle ones was found. Returns whether it stays there: it may be used
    /// again.
    fn stays_queued(&mut self) -> bool {
        self.is_queued = !self.is_used() && self.idle_since.is_some();
        self.is_queued
    }

    fn used(&self) -> impl Iterator<Item = ShareAccess> + '_ {
        ACCESSES.into_iter().filter(|access| self.users[*access as usize] > 0)
    }

    /// All accesses of the OPENs that the server has executed.
    fn share(&self) -> u32 {
        let opened = ACCESSES.into_iter().filter(|access| self.has_opened(*access));
        opened.fold(0, |all, access| all | wire(access))
    }

    fn has_opened(&self, access: ShareAccess) -> bool {
        self.opened & 1 << wire(access) != 0
    }

    /// Whether it is used for reading, and the server has executed no OPEN for that.
    fn is_delayed(&self) -> bool {
        self.users[ShareAccess::Read as usize] > 0 && self.share() & wire(ShareAccess::Read) == 0
    }

    /// Whether the server keeps a removed file for all users (OPEN4_RESULT_PRESERVE_UNLINKED). A
    /// user whose access no OPEN covers has no such promise: the OPENs of the others may be closed
    /// earlier.
    fn is_preserved_for_users(&self) -> bool {
        let has_all = self.used().all(|access| wire(access) & !self.share() == 0);
        self.is_preserved && self.validity == OpenValidity::Valid && self.opened != 0 && has_all
    }

    /// Whether OPENs that the server has executed are together of this access.
    fn is_union(&self, access: ShareAccess) -> bool {
        let both = [ShareAccess::Read, ShareAccess::Write];
        self.has_opened(access)
            || access == ShareAccess::Both && both.into_iter().all(|part| self.has_opened(part))
    }

    /// The OPEN_DOWNGRADE that reduces the server's open to the accesses still used, or CLOSE if
    /// the remaining users need only a delayed open. The latter would end lock states, too.
    fn narrower(&self) -> Option<PiggybackedKind> {
        self.excess().filter(|kind| match kind {
            PiggybackedKind::Close | PiggybackedKind::Return => self.pins == 0,
            PiggybackedKind::Downgrade(_) => !self.is_locked,
        })
    }

    /// As [`Self::narrower`], but whatever is locked.
    fn excess(&self) -> Option<PiggybackedKind> {
        let used = self.used().fold(0, |all, access| all | wire(access)) & self.share();
        let is_wider = used != self.share() || self.may_be_wider && used != wire(ShareAccess::Both);
        if !is_wider {
            return None;
        }
        let covers = |access: &ShareAccess| wire(*access) == used && self.is_union(*access);
        let narrower = ACCESSES.into_iter().find(covers);
        Some(narrower.map_or(PiggybackedKind::Close, PiggybackedKind::Downgrade))
    }

    /// An operation that closes or narrows it.
    fn piggybacked(&self, key: &OpenKey, kind: PiggybackedKind) -> PiggybackedOperation {
        PiggybackedOperation {
            key: key.clone(),
            stateid: self.stateid,
            kind,
            credential: Arc::clone(&self.credential),
            has_failed: false,
            postponement: self.postponement,
        }
    }

    /// The accesses that an open which is not valid still has to be opened with.
    fn unrestored(&self) -> Vec<ShareAccess> {
        // Delayed opens are not known to the server: they stay delayed.
        let mut accesses: Vec<_> = self.used().filter(|access| self.has_opened(*access)).collect();
        if accesses.is_empty() && self.pins > 0 {
            // What was locked through it is being unlocked.
            accesses.extend(ACCESSES.into_iter().filter(|access| self.has_opened(*access)));
        }
        accesses.retain(|access| self.restored & 1 << wire(*access) == 0);
        accesses
    }

    /// An OPEN for this access was executed, or a user is gone: an open whose accesses are all
    /// opened again is valid.
    fn end_restoring(&mut self) {
        if self.validity != OpenValidity::Valid && self.restored != 0 && self.unrestored().is_empty() {
            (self.validity, self.opened, self.restored) = (OpenValidity::Valid, self.restored, 0);
        }
    }

    /// Takes the stateid of a reply, if it is newer: replies to concurrent requests arrive in any
    /// order.
    fn renew(&mut self, stateid: Stateid) {
        if stateid.seqid.wrapping_sub(self.stateid.seqid) < u32::MAX / 2 {
            self.stateid = stateid;
        }
    }

    /// Takes the stateid of a reply to OPEN. Another than before: the server had lost the open, and
    /// knows the access of that OPEN alone.
    fn take_state(&mut self, stateid: Stateid) {
        let is_known = self.validity == OpenValidity::Valid || self.restored != 0;
        if is_known && self.stateid.other == stateid.other {
            return self.renew(stateid);
        }
        (self.stateid, self.restored, self.may_be_wider) = (stateid, 0, false);
        match self.validity {
            OpenValidity::Valid if self.opened != 0 => self.validity = OpenValidity::Reopen,
            OpenValidity::Lost => (self.validity, self.opened) = (OpenValidity::Valid, 0),
            OpenValidity::Valid | OpenValidity::Reclaim | OpenValidity::Reopen => {}
        }
    }

    fn narrowed(&mut self, to: ShareAccess) {
        self.may_be_wider = false;
        for access in ACCESSES {
            if wire(access) & !wire(to) != 0 {
                self.opened &= !(1 << wire(access));
            }
        }
    }
}

impl Opens {
    /// The open of a key, which is made if there is none.
    fn get_or_make(&mut self, key: &OpenKey, credential: &Arc<RpcCredential>) -> &mut Open {
        self.opens.entry(key.clone()).or_insert_with(|| {
            self.owners.entry(key.file.clone()).or_default().push(key.owner);
            Open::new(credential)
        })
    }

    /// Whether the open of a piggybacked operation is in the table.
    fn has_state_of(&self, operation: &PiggybackedOperation) -> bool {
        self.opens.get(&operation.key).is_some_and(|open| open.stateid.other == operation.stateid.other)
    }

    /// An OPEN_DOWNGRADE may not have been executed: another is sent, as narrow as the open's users
    /// are then.
    fn narrow_again(&mut self, operation: &PiggybackedOperation, is_needed: impl FnOnce(&Open) -> bool) {
        if let Some(open) = self.opens.get_mut(&operation.key)
            && open.stateid.other == operation.stateid.other
            && is_needed(open)
        {
            (open.may_be_wider, open.postponement) = (true, operation.postponement);
            self.narrow_later(operation.key.clone());
        }
    }

    /// An open waits to be narrowed. Beyond the bound it stays as wide as it is until it is closed.
    fn narrow_later(&mut self, key: OpenKey) {
        if self.to_downgrade.len() < IDLE_MAX && !self.to_downgrade.contains(&key) {
            self.to_downgrade.push_back(key);
        }
    }

    /// An operation waits for another compound.
    fn send_later(&mut self, operation: PiggybackedOperation) {
        self.waiting.push_back(operation);
        if self.waiting.len() > IDLE_MAX {
            self.waiting.pop_front();
            self.note_dropped();
        }
    }

    /// While the server delays all operations, the oldest idle opens beyond the bound are dropped.
    fn drop_surplus(&mut self) {
        while self.delayed >= DELAYED_MAX
            && self.idle.len() > IDLE_MAX
            && let Some(key) = self.idle.pop_front()
        {
            if self.opens.get_mut(&key).is_some_and(Open::stays_queued) {
                self.remove(&key);
                self.note_dropped();
            }
        }
    }

    fn note_dropped(&mut self) {
        if !std::mem::replace(&mut self.has_dropped, true) {
            tracing::warn!("the server delays each CLOSE: it keeps opens until the mount ends");
        }
    }

    /// The server has delayed an operation for an open.
    fn note_delayed(&mut self, other: [u8; 12], now: Instant) {
        // One file may be the reason.
        if self.last_delayed.replace(other) != Some(other) {
            self.delayed = self.delayed.saturating_add(1);
        }
        if self.delayed > 1 {
            self.paused_until = Some(now + DELAYED_PAUSE);
        }
    }

    /// The server has not delayed an operation for an open.
    const fn note_executed(&mut self) {
        (self.delayed, self.last_delayed) = (0, None);
    }

    fn unused_count(&self) -> usize {
        self.waiting.len() + self.to_downgrade.len() + self.idle.len()
    }

    fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
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

    /// The opens of a file.
    fn of_file<'a>(&'a self, file: &'a FileHandle) -> impl Iterator<Item = &'a Open> {
        let owners = self.owners.get(file).into_iter().flatten();
        owners.filter_map(|owner| self.opens.get(&OpenKey { file: file.clone(), owner: *owner }))
    }

    /// An open without users waits to be closed, unless a delegation keeps it. Returns whether it
    /// waits.
    fn set_idle(&mut self, key: &OpenKey, now: Instant) -> bool {
        let Some(open) = self.opens.get_mut(key) else { return false };
        if open.is_delegated() && !open.writes() {
            return false;
        }
        open.idle_since = Some(now);
        if !std::mem::replace(&mut open.is_queued, true) {
            self.idle.push_back(key.clone());
            self.drop_surplus();
        }
        true
    }

    /// Drops what is used again, or gone, from the queue of idle opens.
    fn tidy_idle(&mut self) {
        let opens = &mut self.opens;
        self.idle.retain(|key| opens.get_mut(key).is_some_and(Open::stays_queued));
    }

    /// Takes operations whose compound was not executed, as long as there are fewer than `most`.
    fn take_waiting(
        &mut self,
        credential: &RpcCredential,
        now: Instant,
        most: usize,
        piggybacked: &mut Vec<PiggybackedOperation>,
    ) {
        let mut passed = 0;
        while piggybacked.len() < most
            && let Some(operation) = self.waiting.get(passed)
        {
            let is_newest = operation.stateid.seqid == 0;
            // Somebody has opened the file again.
            let is_void = is_newest && self.has_state_of(operation);
            if !is_void && !operation.can_be_sent(credential, now) {
                passed += 1;
                continue;
            }
            let Some(operation) = self.waiting.remove(passed) else { break };
            if is_void {
                self.closed.retain(|other| *other != operation.stateid.other);
                continue;
            }
            if is_newest {
                self.closed.truncate(CLOSED_MAX - 1);
                self.closed.push_front(operation.stateid.other);
            }
            piggybacked.push(operation);
        }
    }

    /// Takes operations that narrow opens, as long as there are fewer than `most`.
    fn take_downgrades(
        &mut self,
        credential: &RpcCredential,
        now: Instant,
        most: usize,
        piggybacked: &mut Vec<PiggybackedOperation>,
    ) {
        let mut passed = 0;
        while piggybacked.len() < most
            && let Some(key) = self.to_downgrade.get(passed)
        {
            let open = self.opens.get_mut(key).filter(|open| open.is_used());
            let open = open.filter(|open| open.validity == OpenValidity::Valid);
            let Some((open, narrower)) = open.and_then(|open| open.narrower().map(|kind| (open, kind)))
            else {
                self.to_downgrade.remove(passed);
                continue;
            };
            if *open.credential != *credential || !open.postponement.is_over(now) {
                passed += 1;
                continue;
            }
            piggybacked.push(open.piggybacked(key, narrower));
            // From now on: who opens the file again before the reply needs an OPEN.
            match narrower {
                PiggybackedKind::Downgrade(to) => open.narrowed(to),
                // The users that are left have a delayed open.
                PiggybackedKind::Close | PiggybackedKind::Return => {
                    (open.opened, open.stateid) = (0, Stateid::ANONYMOUS);
                }
            }
            self.to_downgrade.remove(passed);
        }
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
            if !was_kept && owner != key.owner
                || open.is_used()
                || open.opened == 0
                || open.validity != OpenValidity::Valid
            {
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
                opens.narrow_later(key.clone());
            }
            return is_too_wide;
        }
        if open.validity != OpenValidity::Valid || open.opened == 0 {
            // The server does not have it.
            opens.remove(key);
            return false;
        }
        opens.set_idle(key, now)
    }

    /// An OPEN was executed for nobody: accesses that no user has are given up.
    pub(super) fn narrow(&self, key: &OpenKey) {
        let opens = &mut *self.0.lock();
        if opens.opens.get(key).is_some_and(|open| open.is_used() && open.narrower().is_some()) {
            opens.narrow_later(key.clone());
        }
    }

    /// Accesses that no user of a file's opens has any more are given up. Returns these opens.
    pub(super) fn narrow_all(&self, file: &FileHandle) -> Vec<OpenKey> {
        let Opens { opens, owners, to_downgrade, .. } = &mut *self.0.lock();
        let owners = owners.get(file).into_iter().flatten();
        let is_too_wide = |key: &OpenKey| {
            opens.get(key).is_some_and(|open| open.is_used() && open.narrower().is_some())
                && !to_downgrade.contains(key)
        };
        let keys = owners.map(|owner| OpenKey { file: file.clone(), owner: *owner });
        let wide: Vec<_> = keys.filter(is_too_wide).collect();
        to_downgrade.extend(wide.iter().cloned());
        wide
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
        if open.validity != OpenValidity::Valid || open.opened == 0 {
            opens.remove(key);
            return false;
        }
        opens.set_idle(key, now)
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

    /// The server does not know this stateid of an open any more. Returns whether that is news.
    pub(super) fn stateid_refused(&self, key: &OpenKey, stateid: Stateid) -> bool {
        let opens = &mut *self.0.lock();
        let Some(open) = opens.opens.get_mut(key) else { return false };
        let is_news = open.stateid.other == stateid.other && open.validity == OpenValidity::Valid;
        if is_news {
            (open.validity, open.restored) = (OpenValidity::Reopen, 0);
        }
        is_news
    }

    /// The server refuses a WRITE with this stateid, as if the file were open for reading alone.
    /// Returns whether it is to be opened again, because it has users who write.
    pub(super) fn access_refused(&self, key: &OpenKey, stateid: Stateid) -> bool {
        let is_written = self.0.lock().opens.get(key).is_some_and(|open| {
            open.used().any(|access| access != ShareAccess::Read && open.has_opened(access))
        });
        is_written && self.stateid_refused(key, stateid)
    }

    /// The file of an open cannot be opened again.
    pub(super) fn lose(&self, key: &OpenKey) {
        if let Some(open) = self.0.lock().opens.get_mut(key)
            && open.validity == OpenValidity::Reopen
        {
            open.validity = OpenValidity::Lost;
            tracing::warn!(owner = key.owner, "an open file was lost at the server: its users get EIO");
        }
    }

    /// The server has no state of this client: opens without users are lost, and those that were
    /// valid have to be reclaimed in the session `next` or a later one.
    pub(super) fn forgotten_by_server(&self, next: SessionGeneration) {
        let opens = &mut *self.0.lock();
        opens.valid_since = next;
        opens.retain(Open::is_used);
        let of_server =
            |(_, open): &(&OpenKey, &mut Open)| open.validity != OpenValidity::Lost && open.opened != 0;
        let mut to_reclaim = Vec::new();
        for (key, open) in opens.opens.iter_mut().filter(of_server) {
            (open.restored, open.may_be_wider, open.delegation) = (0, false, None);
            // Only what was held when the server was restarted can be reclaimed (section 8.4.2.1).
            if open.validity != OpenValidity::Reopen {
                open.validity = OpenValidity::Reclaim;
                to_reclaim.push(key.clone());
            }
        }
        to_reclaim.sort_unstable_by_key(|key| key.owner);
        opens.to_reclaim = to_reclaim.into();
        for key in opens.idle.drain(..) {
            if let Some(open) = opens.opens.get_mut(&key) {
                open.is_queued = false;
            }
        }
        opens.to_downgrade.clear();
        opens.waiting.clear();
        opens.paused_until = None;
        opens.note_executed();
        opens.closed.clear();
        opens.abandoned.clear();
    }

    /// Remembers abandoned OPENs.
    pub(super) fn abandon(&self, opens: Vec<AbandonedOpen>) {
        let abandoned = &mut self.0.lock().abandoned;
        abandoned.extend(opens);
        abandoned.truncate(ABANDONED_MAX);
    }

    /// Whether there are abandoned OPENs.
    pub(super) fn has_abandoned(&self) -> bool {
        !self.0.lock().abandoned.is_empty()
    }

    /// Takes the abandoned OPENs.
    pub(super) fn take_abandoned(&self) -> Vec<AbandonedOpen> {
        std::mem::take(&mut self.0.lock().abandoned)
    }

    /// Opens of one owner that have to be reclaimed, with no more OPENs than `most`, or one open.
    pub(super) fn next_to_reclaim(&self, most: usize) -> Vec<OpenToRestore> {
        let Opens { opens, to_reclaim, .. } = &mut *self.0.lock();
        let find = |key: &OpenKey| opens.get(key).filter(|open| open.validity == OpenValidity::Reclaim);
        while to_reclaim.pop_front_if(|key| find(key).is_none()).is_some() {}
        let mut batch: Vec<OpenToRestore> = Vec::new();
        let mut count = 0;
        for key in to_reclaim.iter() {
            let Some(open) = find(key) else { continue };
            let open = to_restore(key, open);
            count += open.accesses.len();
            if batch.first().is_some_and(|first| first.key.owner != key.owner || count > most) {
                break;
            }
            batch.push(open);
        }
        batch
    }

    /// The open of a key, to be opened again; `None` if it is gone, or another thread has done it.
    pub(super) fn to_reopen(&self, key: &OpenKey) -> Option<OpenToRestore> {
        let opens = self.0.lock();
        let open = opens.opens.get(key).filter(|open| open.validity == OpenValidity::Reopen)?;
        Some(to_restore(key, open))
    }

    /// Records that an open was not reclaimed: it is opened again when it is used.
    pub(super) fn not_reclaimed(&self, key: &OpenKey) {
        if let Some(open) = self.0.lock().opens.get_mut(key)
            && open.validity == OpenValidity::Reclaim
        {
            open.validity = OpenValidity::Reopen;
        }
    }

    /// Nothing can be reclaimed.
    pub(super) fn none_reclaimed(&self) {
        let opens = &mut *self.0.lock();
        for open in opens.opens.values_mut().filter(|open| open.validity == OpenValidity::Reclaim) {
            open.validity = OpenValidity::Reopen;
        }
    }

    /// The server does not know an open, and no OPEN for a user of it was executed before: it is
    /// forgotten, or delayed if it is used.
    pub(super) fn forget(&self, key: &OpenKey) {
        let opens = &mut *self.0.lock();
        let Some(open) = opens.opens.get_mut(key).filter(|open| open.validity != OpenValidity::Valid) else {
            return;
        };
        if open.is_used() {
            (open.validity, open.opened, open.stateid) = (OpenValidity::Valid, 0, Stateid::ANONYMOUS);
        } else {
            opens.remove(key);
        }
    }

    /// All opens that the server should know, with their stateids.
    pub(super) fn held(&self) -> Vec<(OpenKey, Stateid)> {
        let opens = self.0.lock();
        let is_held = |open: &Open| open.validity == OpenValidity::Valid && open.opened != 0;
        let valid = opens.opens.iter().filter(|(_, open)| is_held(open));
        valid.map(|(key, open)| (key.clone(), open.stateid)).collect()
    }

    /// The operations that are piggybacked on a compound of this credential, at most this number.
    pub(super) fn take_piggybacked(
        &self,
        credential: &RpcCredential,
        now: Instant,
        closed: ClosedOpens,
        most: usize,
    ) -> Vec<PiggybackedOperation> {
        let opens = &mut *self.0.lock();
        let mut piggybacked = Vec::new();
        if most == 0 || opens.is_paused(now) {
            return piggybacked;
        }
        opens.take_waiting(credential, now, most, &mut piggybacked);
        opens.take_downgrades(credential, now, most, &mut piggybacked);
        if opens.idle.len() <= IDLE_PASSED_MAX {
            opens.tidy_idle();
        }
        let mut passed = 0;
        while piggybacked.len() < most && passed < opens.idle.len().min(IDLE_PASSED_MAX) {
            let Some(key) = opens.idle.get(passed) else { break };
            let stays_queued = |open: &mut &mut Open| open.stays_queued();
            let Some(open) = opens.opens.get_mut(key).take_if(stays_queued) else {
                opens.idle.remove(passed);
                continue;
            };
            if *open.credential != *credential || !open.idle(closed.at(now), opens.idle.len()).is_closed() {
                passed += 1;
                continue;
            }
            // What the server has delayed was an OPEN_DOWNGRADE.
            let postponement = Postponement::default();
            let close = open.piggybacked(key, PiggybackedKind::Close);
            let operation = PiggybackedOperation { postponement, ..close };
            if let Some(key) = opens.idle.remove(passed) {
                opens.remove(&key);
            }
            piggybacked.push(operation);
        }
        piggybacked
    }

    /// Whether the server lets the owner of this open write.
    pub(super) fn is_written_by(&self, key: &OpenKey) -> bool {
        self.0.lock().opens.get(key).is_some_and(Open::writes)
    }

    /// The most opens that wait to be closed or narrowed.
    pub(super) fn unused_count(&self) -> usize {
        self.0.lock().unused_count()
    }

    /// The credential of an operation that can be sent now.
    pub(super) fn idle_credential(&self, now: Instant, closed: ClosedOpens) -> Option<Arc<RpcCredential>> {
        let opens = &mut *self.0.lock();
        if opens.is_paused(now) {
            return None;
        }
        if let Some(operation) = opens.waiting.iter().find(|operation| operation.postponement.is_over(now)) {
            return Some(Arc::clone(&operation.credential));
        }
        let keys = opens.to_downgrade.iter().chain(&opens.idle);
        let mut waiting = keys.filter_map(|key| opens.opens.get(key));
        // A delegated open leaves the queue of idle ones when it is found there.
        let is_waiting = |open: &&Open| match open.is_used() {
            true => {
                open.validity == OpenValidity::Valid
                    && open.narrower().is_some()
                    && open.postponement.is_over(now)
            }
            false => open.idle_since.is_some() && open.idle(closed.at(now), opens.idle.len()).is_closed(),
        };
        waiting.find(is_waiting).map(|open| Arc::clone(&open.credential))
    }

    /// Whether the server has delayed operations that are sent again later.
    pub(super) fn has_postponed(&self, now: Instant) -> bool {
        let opens = self.0.lock();
        let mut downgraded = opens.to_downgrade.iter().filter_map(|key| opens.opens.get(key));
        opens.is_paused(now) && opens.unused_count() > 0
            || opens.waiting.iter().any(|operation| !operation.postponement.is_over(now))
            || downgraded.any(|open| !open.postponement.is_over(now))
    }

    /// Records the result of a piggybacked operation. It is queued again after NFS4ERR_OLD_STATEID,
    /// after NFS4ERR_DELAY and NFS4ERR_GRACE with a pause, and once if its result is malformed
    /// (NFS4ERR_BADXDR).
    pub(super) fn piggybacked_done(
        &self,
        operation: &PiggybackedOperation,
        outcome: Result<Stateid, NfsStat4>,
        now: Instant,
    ) {
        match outcome {
            Err(NfsStat4::Delay | NfsStat4::Grace) => {
                self.0.lock().note_delayed(operation.stateid.other, now);
            }
            Ok(_) | Err(_) => self.0.lock().note_executed(),
        }
        match (operation.kind, outcome) {
            (_, Err(NfsStat4::Delay | NfsStat4::Grace)) => {
                let postponement = operation.postponement.longer(now);
                self.put_back(vec![PiggybackedOperation { postponement, ..operation.clone() }]);
            }
            (PiggybackedKind::Downgrade(_), Ok(stateid)) => {
                if let Some(open) = self.0.lock().opens.get_mut(&operation.key)
                    && open.stateid.other == stateid.other
                {
                    open.renew(stateid);
                    open.postponement = Postponement::default();
                }
            }
            // An OPEN was executed after the stateid was taken.
            (PiggybackedKind::Downgrade(_), Err(NfsStat4::OldStateid)) => {
                self.0.lock().narrow_again(operation, |open| open.stateid.seqid != operation.stateid.seqid);
            }
            // An OPEN_DOWNGRADE or an OPEN was executed after the stateid was taken.
            (PiggybackedKind::Close, Err(NfsStat4::OldStateid)) if operation.stateid.seqid != 0 => {
                let opens = &mut *self.0.lock();
                if !opens.has_state_of(operation) {
                    let stateid = Stateid { seqid: 0, ..operation.stateid };
                    opens.send_later(PiggybackedOperation { stateid, ..operation.clone() });
                }
            }
            (PiggybackedKind::Close, Err(NfsStat4::Badxdr)) if !operation.has_failed => {
                self.put_back(vec![PiggybackedOperation { has_failed: true, ..operation.clone() }]);
            }
            // The reply to an OPEN that was executed before it may have arrived meanwhile.
            (PiggybackedKind::Close, Ok(_)) if operation.stateid.seqid == 0 => {
                self.stateid_refused(&operation.key, operation.stateid);
            }
            (PiggybackedKind::Close, Err(_)) if operation.stateid.seqid == 0 => {
                self.0.lock().closed.retain(|other| *other != operation.stateid.other);
            }
            // A server that knows the stateid no more has closed the open already.
            (PiggybackedKind::Close | PiggybackedKind::Return | PiggybackedKind::Downgrade(_), _) => {}
        }
    }

    /// Piggybacked operations whose compound was not executed, or not known to be.
    pub(super) fn put_back(&self, piggybacked: Vec<PiggybackedOperation>) {
        let opens = &mut *self.0.lock();
        for operation in piggybacked {
            if matches!(operation.kind, PiggybackedKind::Downgrade(_)) {
                opens.narrow_again(&operation, |_| true);
            } else {
                opens.send_later(operation);
            }
        }
    }

    /// Piggybacked operations that are to go with the next compound of their credential.
    pub(super) fn put_back_first(&self, piggybacked: Vec<PiggybackedOperation>) {
        let opens = &mut *self.0.lock();
        for operation in piggybacked.into_iter().rev() {
            opens.waiting.push_front(operation);
        }
    }
}

fn to_restore(key: &OpenKey, open: &Open) -> OpenToRestore {
    OpenToRestore { key: key.clone(), credential: Arc::clone(&open.credential), accesses: open.unrestored() }
}

#[cfg(test)]
mod tests;
