//! The stateids of byte-range locks (RFC 8881 sections 8.2, 9.1, 18.10 and 18.12).
//!
//! A stateid stands for the locks of one owner in one file, based on one open. The locks themselves
//! are in the table of all protocols ([`locks`](super::locks)), where the owner has one set for a
//! file. A client's states stay locked while the table decides a request for it. So a lock is never
//! granted to a state that has ended.

use std::collections::HashSet;
use std::sync::Arc;

use curt_proto::nfs4::{Clientid, Stateid};
use curt_types::LockType;

use super::locks::{LockClient, LockDenial, LockHolder, LockOutcome, LockOwner, owner_weight};
use super::opens::{ClientStates, FoundOpen, StateKind, StateRecord, next_seqid};
use super::{Client, FileKey, IoDirection, ServerState, StateFault};

/// The table of locks, for states that end. Called with the states of the client locked; must not
/// call the state.
pub(crate) trait ClientLocks: Send + Sync {
    /// Whether an owner holds a lock in a file.
    fn holds(&self, file: &FileKey, owner: &LockOwner<'_>) -> bool;

    /// Whether anybody has locked a file for writing, or waits for that. Called with a shard of the
    /// delegations locked.
    fn is_wanted_for_writing(&self, file: &FileKey) -> bool;

    /// Releases the locks of an owner in a file, and takes its requests out of the queue.
    fn release_owner(&self, file: &FileKey, owner: &LockOwner<'_>);

    /// Takes the requests of a client that are based on an open of a file out of the queue.
    fn cancel_based_on(&self, file: &FileKey, client: Clientid, open: u64);

    /// The clients with locks for which others wait. Of several whose locks are in the way of one
    /// waiter, there may be one only.
    fn clients_waited_for(&self) -> HashSet<Clientid>;
}

/// An owner's locks of one file, based on one open.
pub(super) struct LockState {
    pub(super) file: FileKey,
    /// The number of the open.
    pub(super) open: u64,
    pub(super) owner: Arc<[u8]>,
}

/// The state that a LOCK is based on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LockBasis<'a> {
    /// An open, and an owner that may have no stateid yet.
    Open {
        /// The open.
        stateid: Stateid,
        /// The owner.
        owner: &'a [u8],
    },
    /// Locks of an owner.
    Locks(Stateid),
}

/// The arguments of LOCK that concern state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockStateRequest<'a> {
    /// The state that it is based on.
    pub(crate) basis: LockBasis<'a>,
    /// The file.
    pub(crate) file: FileKey,
    /// Shared or exclusive.
    pub(crate) lock_type: LockType,
    /// The client held the lock before the server restarted.
    pub(crate) is_reclaim: bool,
}

/// The outcome of a LOCK.
#[derive(Debug)]
pub(crate) enum LockStateOutcome {
    /// The lock, with this stateid.
    Granted(Stateid),
    /// Nothing: another holds this lock. The request may have been queued.
    Conflict(LockHolder),
}

/// The place of a LOCK among the states.
struct LockTarget {
    /// The number of the open.
    open: u64,
    owner: Arc<[u8]>,
    /// The number of the lock state; none for an owner without one.
    existing: Option<u64>,
}

/// An owner of locks, as the table knows it.
pub(crate) const fn lock_owner(client: Clientid, name: &[u8]) -> LockOwner<'_> {
    LockOwner { client: LockClient::Clientid(client.0), process: 0, name }
}

impl ClientStates {
    /// The number of the lock state that a stateid of `file` names.
    fn find_locks(
        &mut self,
        epoch: u32,
        stateid: &Stateid,
        file: &FileKey,
    ) -> Result<(u64, &LockState), StateFault> {
        let (number, record) = self.find(epoch, stateid)?;
        match &record.kind {
            StateKind::Locks(locks) if locks.file == *file => Ok((number, locks)),
            StateKind::Locks(_) | StateKind::Open(_) | StateKind::Delegation(_) => {
                Err(StateFault::BadStateid)
            }
        }
    }

    fn place(&mut self, epoch: u32, asked: &LockStateRequest<'_>) -> Result<LockTarget, StateFault> {
        match asked.basis {
            LockBasis::Open { stateid, owner } => {
                let FoundOpen { number, open, .. } = self.find_open(epoch, &stateid, &asked.file)?;
                let existing = open.locks.get_key_value(owner);
                Ok(LockTarget {
                    open: number,
                    owner: existing.map_or_else(|| owner.into(), |(name, _)| Arc::clone(name)),
                    existing: existing.map(|(_, number)| *number),
                })
            }
            LockBasis::Locks(stateid) => {
                let (number, locks) = self.find_locks(epoch, &stateid, &asked.file)?;
                Ok(LockTarget { open: locks.open, owner: Arc::clone(&locks.owner), existing: Some(number) })
            }
        }
    }

    /// Issues the next seqid of a state.
    fn advance(&mut self, number: u64) -> u32 {
        self.states.get_mut(&number).map_or(1, |record| {
            record.seqid = next_seqid(record.seqid);
            record.seqid
        })
    }
}

impl ServerState {
    /// LOCK. `request` asks the table of locks for the owner's lock, which is based on the open
    /// with the given number.
    pub(crate) fn lock<E: From<StateFault>>(
        &self,
        client: &Client,
        asked: &LockStateRequest<'_>,
        request: impl FnOnce(&LockOwner<'_>, u64) -> Result<LockOutcome, E>,
    ) -> Result<LockStateOutcome, E> {
        let states = &mut *client.states.lock();
        let place = states.place(self.ids.epoch, asked)?;
        self.admits(client, states, asked.is_reclaim)?;
        let needed = match asked.lock_type {
            LockType::Read => IoDirection::Read,
            LockType::Write => IoDirection::Write,
        };
        let mode = states.open_mut(place.open).ok_or(StateFault::BadStateid)?.mode;
        if !mode.access.contains(needed.access()) {
            return Err(StateFault::OpenMode.into());
        }
        if place.existing.is_none() {
            self.has_room(client).map_err(|fault| match fault {
                StateFault::NoSpace => StateFault::TooManyLocks,
                fault => fault,
            })?;
        }
        let outcome = request(&lock_owner(client.id, &place.owner), place.open)?;
        if matches!(outcome, LockOutcome::Blocked(_))
            && let Some(open) = states.open_mut(place.open)
        {
            open.may_have_waiters = true;
        }
        match outcome {
            LockOutcome::Granted => {
                let (number, seqid) = match place.existing {
                    Some(number) => (number, states.advance(number)),
                    None => (self.new_lock_state(client, states, &place, asked.file), 1),
                };
                Ok(LockStateOutcome::Granted(self.stateid(number, seqid)))
            }
            LockOutcome::Blocked(holder) | LockOutcome::Denied(LockDenial::Conflict(holder)) => {
                if asked.is_reclaim {
                    return Err(StateFault::ReclaimConflict.into());
                }
                Ok(LockStateOutcome::Conflict(holder))
            }
            LockOutcome::Denied(LockDenial::Grace) => Err(StateFault::Grace.into()),
            LockOutcome::Denied(LockDenial::NoGrace) => Err(StateFault::NoGrace.into()),
            LockOutcome::Denied(LockDenial::NoLocks) => Err(StateFault::TooManyLocks.into()),
        }
    }

    fn new_lock_state(
        &self,
        client: &Client,
        states: &mut ClientStates,
        place: &LockTarget,
        file: FileKey,
    ) -> u64 {
        let number = self.ids.state();
        if let Some(open) = states.open_mut(place.open) {
            open.locks.insert(Arc::clone(&place.owner), number);
        }
        *states.lock_states.entry((Arc::clone(&place.owner), file)).or_default() += 1;
        let locks = LockState { file, open: place.open, owner: Arc::clone(&place.owner) };
        states.states.insert(number, StateRecord { seqid: 1, revoked: None, kind: StateKind::Locks(locks) });
        self.count_states(client, owner_weight(&place.owner));
        number
    }

    /// LOCKU. `request` asks the table of locks to release the owner's locks of a range.
    pub(crate) fn unlock(
        &self,
        client: &Client,
        stateid: &Stateid,
        file: &FileKey,
        request: impl FnOnce(&LockOwner<'_>) -> Result<(), LockDenial>,
    ) -> Result<Stateid, StateFault> {
        let states = &mut *client.states.lock();
        let (number, locks) = states.find_locks(self.ids.epoch, stateid, file)?;
        // The only reason is a limit: the range splits a lock.
        request(&lock_owner(client.id, &locks.owner)).map_err(|_| StateFault::TooManyLocks)?;
        let seqid = states.advance(number);
        Ok(self.stateid(number, seqid))
    }

    /// FREE_STATEID of a lock state.
    pub(super) fn free_lock_state(
        &self,
        client: &Client,
        states: &mut ClientStates,
        number: u64,
        owner: &Arc<[u8]>,
        file: &FileKey,
    ) -> Result<(), StateFault> {
        let holds = self.locks.as_ref().is_some_and(|locks| locks.holds(file, &lock_owner(client.id, owner)));
        if holds {
            return Err(StateFault::LocksHeld);
        }
        if let Some(record) = states.states.remove(&number)
            && let StateKind::Locks(locks) = record.kind
            && let Some(open) = states.open_mut(locks.open)
        {
            open.locks.remove(owner);
        }
        self.uncount_states(client, owner_weight(owner));
        self.end_lock_state(client, states, owner, file);
        Ok(())
    }

    /// A lock state of an owner ends. With its last one for the file, its locks are released.
    pub(super) fn end_lock_state(
        &self,
        client: &Client,
        states: &mut ClientStates,
        owner: &Arc<[u8]>,
        file: &FileKey,
    ) {
        let key = (Arc::clone(owner), *file);
        if let Some(count) = states.lock_states.get_mut(&key) {
            *count -= 1;
            if *count > 0 {
                return;
            }
            states.lock_states.remove(&key);
        }
        if let Some(locks) = &self.locks {
            locks.release_owner(file, &lock_owner(client.id, owner));
        }
    }
}
