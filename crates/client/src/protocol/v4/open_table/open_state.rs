//! The state of one open.

use std::{sync::Arc, time::Instant};

use curt_policy::open::IdleOpen;
use curt_proto::nfs4::Stateid;
use curt_rpc::auth::RpcCredential;

use crate::protocol::{
    HeldDelegation, ShareAccess,
    v4::{
        open_codec::wire,
        open_key::OpenKey,
        piggybacked::{PiggybackedKind, PiggybackedOperation, Postponement},
    },
};

/// Whether an open can be used, or what must be done before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenValidity {
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
pub(super) struct Open {
    pub(super) credential: Arc<RpcCredential>,
    pub(super) stateid: Stateid,
    pub(super) validity: OpenValidity,
    /// The accesses of the OPENs that the server has executed: bit `n` for the share access `n`.
    /// None: the server has no such open.
    pub(super) opened: u8,
    /// Accesses that the server has executed again while the open is not valid.
    pub(super) restored: u8,
    /// The server may have executed OPENs with more accesses: an OPEN_DOWNGRADE has no reply.
    pub(super) may_be_wider: bool,
    /// The users with each access, by [`ShareAccess`].
    pub(super) users: [u32; 3],
    /// The lock states that are based on it.
    pub(super) pins: u32,
    /// One of them holds or wants a lock.
    pub(super) is_locked: bool,
    /// The server may send CB_NOTIFY_LOCK.
    pub(super) may_notify: bool,
    /// The server keeps the file while it is open, whatever happens to its names.
    pub(super) is_preserved: bool,
    /// The delegation that came with it.
    pub(super) delegation: Option<Arc<HeldDelegation>>,
    /// Since when it has no users.
    pub(super) idle_since: Option<Instant>,
    /// The open is in [`Opens::idle`](super::Opens::idle).
    pub(super) is_queued: bool,
    /// When its next OPEN_DOWNGRADE is sent, after the server has delayed one.
    pub(super) postponement: Postponement,
    /// The open had users since the server executed an OPEN. Before that it is kept for the sender
    /// of the OPEN, although it may be for writing.
    pub(super) had_users: bool,
}

/// An open that has to be established at the server again.
#[derive(Clone, Debug)]
pub(in crate::protocol::v4) struct OpenToRestore {
    pub(in crate::protocol::v4) key: OpenKey,
    pub(in crate::protocol::v4) credential: Arc<RpcCredential>,
    pub(in crate::protocol::v4) accesses: Vec<ShareAccess>,
}

const ACCESSES: [ShareAccess; 3] = [ShareAccess::Read, ShareAccess::Write, ShareAccess::Both];

impl Open {
    /// An open that the server has not executed.
    pub(super) fn new(credential: &Arc<RpcCredential>) -> Self {
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

    /// Whether the server has it, as far as is known.
    pub(super) fn is_at_server(&self) -> bool {
        self.validity == OpenValidity::Valid && self.opened != 0
    }

    /// Whether it is kept without users.
    pub(super) fn is_delegated(&self) -> bool {
        self.delegation.as_ref().is_some_and(|delegation| delegation.is_held())
    }

    /// The open as one without users.
    pub(super) fn idle(&self, now: Option<Instant>, others: usize) -> IdleOpen {
        IdleOpen {
            since: now.zip(self.idle_since).map(|(now, since)| now.saturating_duration_since(since)),
            writes: self.had_users && self.writes(),
            others,
            is_delegated: self.is_delegated(),
        }
    }

    pub(super) fn writes(&self) -> bool {
        self.opened & !(1 << wire(ShareAccess::Read)) != 0
            || self.users[ShareAccess::Write as usize] > 0
            || self.users[ShareAccess::Both as usize] > 0
    }

    pub(super) fn has_users(&self) -> bool {
        self.users.iter().any(|users| *users > 0)
    }

    pub(super) fn is_used(&self) -> bool {
        self.has_users() || self.pins > 0
    }

    /// An open in the queue of idle ones was found. Returns whether it stays there: it may be used
    /// again.
    pub(super) fn stays_queued(&mut self) -> bool {
        self.is_queued = !self.is_used() && self.idle_since.is_some();
        self.is_queued
    }

    pub(super) fn used(&self) -> impl Iterator<Item = ShareAccess> + '_ {
        ACCESSES.into_iter().filter(|access| self.users[*access as usize] > 0)
    }

    /// All accesses of the OPENs that the server has executed.
    pub(super) fn share(&self) -> u32 {
        let opened = ACCESSES.into_iter().filter(|access| self.has_opened(*access));
        opened.fold(0, |all, access| all | wire(access))
    }

    pub(super) fn has_opened(&self, access: ShareAccess) -> bool {
        self.opened & 1 << wire(access) != 0
    }

    /// Whether it is used for reading, and the server has executed no OPEN for that.
    pub(super) fn is_delayed(&self) -> bool {
        self.users[ShareAccess::Read as usize] > 0 && self.share() & wire(ShareAccess::Read) == 0
    }

    /// Whether the server keeps a removed file for all users (OPEN4_RESULT_PRESERVE_UNLINKED). A
    /// user whose access no OPEN covers has no such promise: the OPENs of the others may be closed
    /// earlier.
    pub(super) fn is_preserved_for_users(&self) -> bool {
        let has_all = self.used().all(|access| wire(access) & !self.share() == 0);
        self.is_preserved && self.is_at_server() && has_all
    }

    /// Whether OPENs that the server has executed are together of this access.
    fn is_union(&self, access: ShareAccess) -> bool {
        let both = [ShareAccess::Read, ShareAccess::Write];
        self.has_opened(access)
            || access == ShareAccess::Both && both.into_iter().all(|part| self.has_opened(part))
    }

    /// The OPEN_DOWNGRADE that reduces the server's open to the accesses still used, or CLOSE if
    /// the remaining users need only a delayed open. The latter would end lock states, too.
    pub(super) fn narrower(&self) -> Option<PiggybackedKind> {
        self.excess().filter(|kind| match kind {
            PiggybackedKind::Close | PiggybackedKind::Return => self.pins == 0,
            PiggybackedKind::Downgrade(_) => !self.is_locked,
        })
    }

    /// As [`Self::narrower`], but whatever is locked.
    pub(super) fn excess(&self) -> Option<PiggybackedKind> {
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
    pub(super) fn piggybacked(&self, key: &OpenKey, kind: PiggybackedKind) -> PiggybackedOperation {
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
    pub(super) fn end_restoring(&mut self) {
        if self.validity != OpenValidity::Valid && self.restored != 0 && self.unrestored().is_empty() {
            (self.validity, self.opened, self.restored) = (OpenValidity::Valid, self.restored, 0);
        }
    }

    /// Takes the stateid of a reply, if it is newer: replies to concurrent requests arrive in any
    /// order.
    pub(super) fn renew(&mut self, stateid: Stateid) {
        if stateid.seqid.wrapping_sub(self.stateid.seqid) < u32::MAX / 2 {
            self.stateid = stateid;
        }
    }

    /// Takes the stateid of a reply to OPEN. Another than before: the server had lost the open, and
    /// knows the access of that OPEN alone.
    pub(super) fn take_state(&mut self, stateid: Stateid) {
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

    pub(super) fn narrowed(&mut self, to: ShareAccess) {
        self.may_be_wider = false;
        for access in ACCESSES {
            if wire(access) & !wire(to) != 0 {
                self.opened &= !(1 << wire(access));
            }
        }
    }

    /// The open with the accesses that are not established at the server again.
    pub(super) fn to_restore(&self, key: &OpenKey) -> OpenToRestore {
        OpenToRestore {
            key: key.clone(),
            credential: Arc::clone(&self.credential),
            accesses: self.unrestored(),
        }
    }
}
