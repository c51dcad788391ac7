//! Opens and their stateids (RFC 8881 sections 8.2, 9, 18.2, 18.16, 18.18, 18.38 and 18.48). The
//! stateids of locks are in [`lock_states`](super::lock_states).
//!
//! A stateid consists of the epoch of the server and a number that is issued once, so a stateid of
//! an earlier run is recognised, and one of a state that has ended is never valid again. A client's
//! states are a table of its own: the stateids of other clients are unknown there.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicUsize, atomic::Ordering},
    time::Duration,
};

use curt_proto::nfs4::{SequenceStatusFlags, Stateid};
use curt_types::FileHandle;

use super::delegations::NewDelegation;
use super::lock_states::{LockState, lock_owner};
use super::locks::owner_weight;
use super::shares::FilePin;
use super::{
    Client, FileKey, GrantingCall, IoDirection, LocalChanges, ServerState, ShareBits, ShareHolder, ShareMode,
    StateFault, WantedAccess, has_much, has_room, is_near_limit, nanoseconds,
};

/// Time between two requests to a client to return state.
const ASKING_INTERVAL: Duration = Duration::from_secs(5);

/// The arguments of OPEN that concern state.
pub(crate) struct OpenRequest<'a> {
    /// The owner within the client.
    pub(crate) owner: &'a [u8],
    /// The file.
    pub(crate) file: FileKey,
    /// The access, and the access denied to others.
    pub(crate) mode: ShareMode,
    /// `CLAIM_PREVIOUS`: the client had the file open before the server restarted.
    pub(crate) is_reclaim: bool,
    /// There was room for the state before the file was created: see [`ServerState::has_room`].
    pub(crate) is_admitted: bool,
    /// Kept while any client has the file open, if the file has none yet.
    pub(crate) pin: Option<FilePin>,
}

/// A successful OPEN.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenGranted {
    /// The state.
    pub(crate) stateid: Stateid,
    /// The mode before, if the owner had the file open.
    before: Option<(ShareMode, OpenedModes)>,
}

/// The modes of an owner's OPENs of one file, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OpenedModes(u16);

impl OpenedModes {
    fn with(self, opened: ShareMode) -> Self {
        Self(self.0 | opened.bit())
    }

    fn modes(self) -> impl Iterator<Item = ShareMode> {
        let bits = [ShareBits::NONE, ShareBits::READ, ShareBits::WRITE, ShareBits::BOTH];
        let all = bits.into_iter().flat_map(move |access| bits.map(|deny| ShareMode { access, deny }));
        all.filter(move |mode| self.0 & mode.bit() != 0)
    }

    /// The OPENs that are parts of `mode`.
    fn within(self, mode: ShareMode) -> Self {
        self.modes().filter(|part| mode.contains(*part)).fold(Self::default(), Self::with)
    }

    /// The union of all.
    fn union(self) -> ShareMode {
        self.modes().fold(ShareMode::default(), |all, mode| all.and(mode))
    }
}

/// The arguments of a request for a delegation.
pub(crate) struct DelegationRequest<'a> {
    /// The file.
    pub(crate) file: FileKey,
    /// The file, as the client calls it.
    pub(crate) handle: &'a FileHandle,
    /// The request.
    pub(crate) granted_by: GrantingCall,
    /// The client had it before the server restarted. It gets it back if the file was not changed
    /// since without its knowledge.
    pub(crate) reclaim: Option<&'a dyn Fn() -> bool>,
    /// Reports changes by processes of this machine.
    pub(crate) local: LocalChanges,
}

/// Why a client gets no delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DelegationRefusal {
    /// Others use the file, or have lately, in another way; or the client has one.
    Contention,
    /// There are too many.
    Resource,
}

/// The state that a stateid names.
pub(super) enum StateKind {
    Open(OpenState),
    Locks(LockState),
    /// A read delegation of a file.
    Delegation(FileKey),
}

/// An owner's open of one file.
pub(super) struct OpenState {
    file: FileKey,
    owner: Arc<[u8]>,
    pub(super) mode: ShareMode,
    opened: OpenedModes,
    /// The lock states that are based on it, by their owners.
    pub(super) locks: HashMap<Arc<[u8]>, u64>,
    /// Requests for locks that are based on it may wait.
    pub(super) may_have_waiters: bool,
}

/// Why a state has ended against the client's will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Revocation {
    /// The administrator has revoked it.
    Admin,
    /// The stateid is that of a delegation that was recalled and not returned.
    Recall,
}

impl Revocation {
    /// The flag by which a client learns that it has such a state.
    const fn status_flag(self) -> u32 {
        match self {
            Self::Admin => SequenceStatusFlags::ADMIN_STATE_REVOKED,
            Self::Recall => SequenceStatusFlags::RECALLABLE_STATE_REVOKED,
        }
    }
}

/// A state of a client.
pub(super) struct StateRecord {
    pub(super) seqid: u32,
    /// A revoked state remains until the client frees it, so that the client learns of its loss.
    pub(super) revoked: Option<Revocation>,
    pub(super) kind: StateKind,
}

impl StateKind {
    /// The number of states as which it counts.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Open(OpenState { owner, .. }) | Self::Locks(LockState { owner, .. }) => owner_weight(owner),
            Self::Delegation(_) => 1,
        }
    }
}

/// The next seqid; 0 is skipped because it stands for the newest.
pub(super) fn next_seqid(seqid: u32) -> u32 {
    seqid.checked_add(1).unwrap_or(1)
}

/// An open that a stateid names.
pub(super) struct FoundOpen<'a> {
    pub(super) number: u64,
    seqid: &'a mut u32,
    pub(super) open: &'a mut OpenState,
}

/// The states of one client.
#[derive(Default)]
pub(super) struct ClientStates {
    /// The client was removed; nothing is added any more.
    is_gone: bool,
    is_reclaim_complete: bool,
    pub(super) states: HashMap<u64, StateRecord>,
    /// The open of each owner of each file that is open.
    opens: HashMap<FileKey, HashMap<u64, u64>>,
    owners: HashMap<Arc<[u8]>, OpenOwner>,
    /// The delegation of each file.
    delegations: HashMap<FileKey, u64>,
    /// Number of lock states of each owner of locks and file, one for each open.
    pub(super) lock_states: HashMap<(Arc<[u8]>, FileKey), u32>,
}

/// An owner that has files open. An owner without opens needs no record, because sessions replace
/// its sequence ids.
struct OpenOwner {
    number: u64,
    opens: usize,
}

impl ClientStates {
    /// Number of opens.
    pub(super) fn opens(&self) -> usize {
        self.states.values().filter(|record| matches!(record.kind, StateKind::Open(_))).count()
    }

    /// Number of owners that have files open.
    pub(super) fn owners(&self) -> usize {
        self.owners.len()
    }

    /// Number of delegations.
    pub(super) fn delegations(&self) -> usize {
        self.delegations.len()
    }

    /// Whether an open of `file` denies the requested access.
    pub(super) fn denies(&self, file: &FileKey, wanted: WantedAccess) -> bool {
        let opens = self.opens.get(file).into_iter().flat_map(HashMap::values);
        let mut records = opens.filter_map(|number| self.states.get(number));
        records.any(|record| match &record.kind {
            StateKind::Open(open) => wanted.is_denied_by(open.mode),
            StateKind::Locks(_) | StateKind::Delegation(_) => false,
        })
    }

    pub(super) fn reclaim_complete(&mut self) -> Result<(), StateFault> {
        if self.is_reclaim_complete {
            return Err(StateFault::CompleteAlready);
        }
        self.is_reclaim_complete = true;
        Ok(())
    }

    /// The record of a stateid that is neither special nor revoked.
    pub(super) fn find(
        &mut self,
        epoch: u32,
        stateid: &Stateid,
    ) -> Result<(u64, &mut StateRecord), StateFault> {
        let number = number_of(epoch, stateid)?;
        let record = self.states.get_mut(&number).ok_or(StateFault::BadStateid)?;
        match record.revoked {
            Some(Revocation::Admin) => return Err(StateFault::AdminRevoked),
            Some(Revocation::Recall) => return Err(StateFault::DelegationRevoked),
            None => {}
        }
        match stateid.seqid {
            0 => {}
            seqid if seqid == record.seqid => {}
            // Older by less than half of all numbers, with wrap-around.
            seqid if record.seqid.wrapping_sub(seqid) < 1 << 31 => return Err(StateFault::OldStateid),
            _ => return Err(StateFault::BadStateid),
        }
        Ok((number, record))
    }

    /// As [`Self::find`], for an open of `file`.
    pub(super) fn find_open(
        &mut self,
        epoch: u32,
        stateid: &Stateid,
        file: &FileKey,
    ) -> Result<FoundOpen<'_>, StateFault> {
        let (number, record) = self.find(epoch, stateid)?;
        match &mut record.kind {
            StateKind::Open(open) if open.file == *file => {
                Ok(FoundOpen { number, seqid: &mut record.seqid, open })
            }
            StateKind::Open(_) | StateKind::Locks(_) | StateKind::Delegation(_) => {
                Err(StateFault::BadStateid)
            }
        }
    }

    /// As [`Self::find`], for a delegation of `file`.
    fn find_delegation(&mut self, epoch: u32, stateid: &Stateid, file: &FileKey) -> Result<u64, StateFault> {
        let (number, record) = self.find(epoch, stateid)?;
        match &record.kind {
            StateKind::Delegation(of) if of == file => Ok(number),
            StateKind::Open(_) | StateKind::Locks(_) | StateKind::Delegation(_) => {
                Err(StateFault::BadStateid)
            }
        }
    }

    /// The open with this number.
    pub(super) fn open_mut(&mut self, number: u64) -> Option<&mut OpenState> {
        match &mut self.states.get_mut(&number)?.kind {
            StateKind::Open(open) => Some(open),
            StateKind::Locks(_) | StateKind::Delegation(_) => None,
        }
    }

    /// The mode of the open that a stateid of `file` names, or on which the locks that it names are
    /// based.
    fn mode(&mut self, epoch: u32, stateid: &Stateid, file: &FileKey) -> Result<ShareMode, StateFault> {
        let (_, record) = self.find(epoch, stateid)?;
        let base = match &record.kind {
            StateKind::Open(open) if open.file == *file => return Ok(open.mode),
            StateKind::Locks(locks) if locks.file == *file => locks.open,
            // The client opens the file for reading, and denies nothing, without asking.
            StateKind::Delegation(of) if of == file => {
                return Ok(ShareMode { access: ShareBits::READ, deny: ShareBits::NONE });
            }
            StateKind::Open(_) | StateKind::Locks(_) | StateKind::Delegation(_) => {
                return Err(StateFault::BadStateid);
            }
        };
        self.open_mut(base).map(|open| open.mode).ok_or(StateFault::BadStateid)
    }

    /// Removes an open from the indexes, and returns its mode.
    fn end_open(&mut self, open: &OpenState) -> ShareMode {
        if let Some(owner) = self.owners.get_mut(&open.owner) {
            if let Some(of_file) = self.opens.get_mut(&open.file) {
                of_file.remove(&owner.number);
                if of_file.is_empty() {
                    self.opens.remove(&open.file);
                }
            }
            owner.opens -= 1;
            if owner.opens == 0 {
                self.owners.remove(&open.owner);
            }
        }
        open.mode
    }

    /// Ends all states. Returns what has to be removed from the tables of files.
    fn release(&mut self) -> ReleasedStates {
        self.is_gone = true;
        self.opens.clear();
        self.owners.clear();
        let states = std::mem::take(&mut self.states);
        let count = states.values().map(|record| record.kind.weight()).sum();
        let in_force = states.into_iter().filter(|(_, record)| record.revoked.is_none());
        let opens = in_force.filter_map(|(number, record)| match record.kind {
            StateKind::Open(open) => Some((number, open)),
            StateKind::Locks(_) | StateKind::Delegation(_) => None,
        });
        ReleasedStates {
            count,
            opens: opens.collect(),
            delegations: std::mem::take(&mut self.delegations).into_keys().collect(),
            locks: std::mem::take(&mut self.lock_states).into_keys().collect(),
        }
    }
}

/// The states of a client that has ended.
struct ReleasedStates {
    /// The number as which all states count.
    count: usize,
    /// The opens, by their numbers.
    opens: Vec<(u64, OpenState)>,
    /// The files of the delegations.
    delegations: Vec<FileKey>,
    /// The owners of locks, and the files that they may have locked.
    locks: Vec<(Arc<[u8]>, FileKey)>,
}

#[cfg(test)]
impl ServerState {
    /// CLOSE without the pin.
    pub(super) fn close(&self, client: &Client, stateid: &Stateid, file: &FileKey) -> Result<(), StateFault> {
        self.close_pinned(client, stateid, file).map(drop)
    }
}

#[cfg(test)]
impl ClientStates {
    /// Sets the seqids of all states.
    pub(super) fn set_seqids(&mut self, seqid: u32) {
        self.states.values_mut().for_each(|record| record.seqid = seqid);
    }
}

/// The number in a stateid.
fn number_of(epoch: u32, stateid: &Stateid) -> Result<u64, StateFault> {
    let [e0, e1, e2, e3, number @ ..] = stateid.other;
    if stateid.is_reserved() || u32::from_be_bytes([e0, e1, e2, e3]) != epoch {
        // NFS4ERR_STALE_STATEID is for 4.0 alone (RFC 8881 section 15.1.16.5).
        return Err(StateFault::BadStateid);
    }
    Ok(u64::from_be_bytes(number))
}

impl ServerState {
    pub(super) fn stateid(&self, number: u64, seqid: u32) -> Stateid {
        let mut other = [0; 12];
        other[..4].copy_from_slice(&self.ids.epoch.to_be_bytes());
        other[4..].copy_from_slice(&number.to_be_bytes());
        Stateid { seqid, other }
    }

    /// Whether a client may open files, or reclaim its opens.
    pub(crate) fn may_open(&self, client: &Client, is_reclaim: bool) -> Result<(), StateFault> {
        self.admits(client, &client.states.lock(), is_reclaim)
    }

    /// Whether a client may get or reclaim an open or a lock now.
    pub(super) fn admits(
        &self,
        client: &Client,
        states: &ClientStates,
        is_reclaim: bool,
    ) -> Result<(), StateFault> {
        if states.is_gone || client.is_removed() {
            return Err(StateFault::DeadSession);
        }
        let is_grace = self.grace.is_on();
        match (is_reclaim, states.is_reclaim_complete) {
            (true, true) => Err(StateFault::NoGrace),
            (true, false) if !is_grace => Err(StateFault::NoGrace),
            (true, false) if !self.grace.is_recorded(client) => Err(StateFault::ReclaimBad),
            // RFC 8881 section 18.51.3: RECLAIM_COMPLETE comes first.
            (false, false) => Err(StateFault::Grace),
            (false, true) if is_grace => Err(StateFault::Grace),
            (true, false) => {
                self.grace.note_reclaim();
                Ok(())
            }
            (false, true) => Ok(()),
        }
    }

    /// OPEN: reserves the access. An owner that has the file open gets the union of both modes.
    pub(crate) fn open(&self, client: &Client, asked: &OpenRequest<'_>) -> Result<OpenGranted, StateFault> {
        match self.try_open(client, asked) {
            Err(StateFault::ShareDenied) if asked.is_reclaim => Err(StateFault::ReclaimConflict),
            outcome => outcome,
        }
    }

    fn try_open(&self, client: &Client, asked: &OpenRequest<'_>) -> Result<OpenGranted, StateFault> {
        if asked.mode.access == ShareBits::NONE {
            return Err(StateFault::Invalid);
        }
        let states = &mut *client.states.lock();
        self.admits(client, states, asked.is_reclaim)?;
        let pin = asked.pin.clone();
        let owner = states.owners.get(asked.owner).map(|owner| owner.number);
        let present = owner.and_then(|owner| states.opens.get(&asked.file)?.get(&owner).copied());
        if let Some(number) = present
            && let Some(record) = states.states.get_mut(&number)
            && let StateKind::Open(open) = &mut record.kind
        {
            let (mode, opened) = (open.mode, open.opened);
            self.shares.add(ShareHolder::Nfs4, &asked.file, Some(mode), asked.mode, pin)?;
            open.mode = mode.and(asked.mode);
            open.opened = opened.with(asked.mode);
            record.seqid = next_seqid(record.seqid);
            let stateid = self.stateid(number, record.seqid);
            return Ok(OpenGranted { stateid, before: Some((mode, opened)) });
        }
        if !asked.is_admitted {
            self.has_room(client)?;
        }
        self.shares.add(ShareHolder::Nfs4, &asked.file, None, asked.mode, pin)?;
        self.count_states(client, owner_weight(asked.owner));
        let number = self.ids.state();
        let name: Arc<[u8]> = match states.owners.get_key_value(asked.owner) {
            Some((name, _)) => Arc::clone(name),
            None => asked.owner.into(),
        };
        let owner = states.owners.entry(Arc::clone(&name)).or_insert(OpenOwner { number, opens: 0 });
        owner.opens += 1;
        states.opens.entry(asked.file).or_default().insert(owner.number, number);
        let opened = OpenedModes::default().with(asked.mode);
        let locks = HashMap::new();
        let open = OpenState {
            file: asked.file,
            owner: name,
            mode: asked.mode,
            opened,
            locks,
            may_have_waiters: false,
        };
        states.states.insert(number, StateRecord { seqid: 1, revoked: None, kind: StateKind::Open(open) });
        Ok(OpenGranted { stateid: self.stateid(number, 1), before: None })
    }

    /// Whether a client may have another state, whatever it counts as. An OPEN asks before it
    /// creates a file, so that the limit is exceeded by at most the states that the requests in
    /// progress add, and each of these counts as a few ([`owner_weight`]).
    pub(crate) fn has_room(&self, client: &Client) -> Result<(), StateFault> {
        let used = self.states.load(Ordering::Relaxed);
        if has_room(client.of_address.states.load(Ordering::Relaxed), used, self.limits.states) {
            return Ok(());
        }
        let own = client.state_count.load(Ordering::Relaxed);
        Err(if has_much(own, self.limits.states) { StateFault::NoSpace } else { StateFault::Delay })
    }

    /// How many of its delegations a client should keep at most, if it is to be asked now to return
    /// some: it has most of the states or of the delegations that it may have, and was not asked
    /// lately.
    pub(crate) fn state_to_return(&self, client: &Client, now: Duration) -> Option<u32> {
        let (states, all) = (self.states.load(Ordering::Relaxed), self.delegations.len());
        let (states_max, delegations_max) = (self.limits.states, self.limits.delegations);
        let of_address = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let (own, shared) =
            (client.state_count.load(Ordering::Relaxed), of_address(&client.of_address.states));
        let is_near = has_much(own, states_max) && is_near_limit(shared, states, states_max);
        // Without a lock: no address has more delegations than all together.
        let shared = of_address(&client.of_address.delegations);
        let is_near_delegations = is_near_limit(shared, all, delegations_max);
        if !is_near && !is_near_delegations {
            return None;
        }
        let own = client.states.lock().delegations();
        if !is_near && !has_much(own, delegations_max) {
            return None;
        }
        let (now, until) = (nanoseconds(now), client.asked_until.load(Ordering::Relaxed));
        let next = now + nanoseconds(ASKING_INTERVAL);
        let is_first = now >= until
            && client.asked_until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        is_first.then(|| u32::try_from(own / 2).unwrap_or(u32::MAX))
    }

    /// A client gets a state that counts as `count`.
    pub(super) fn count_states(&self, client: &Client, count: usize) {
        for counter in [&self.states, &client.of_address.states, &client.state_count] {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// States of a client have ended.
    pub(super) fn uncount_states(&self, client: &Client, count: usize) {
        for counter in [&self.states, &client.of_address.states, &client.state_count] {
            counter.fetch_sub(count, Ordering::Relaxed);
        }
    }

    /// Withdraws an OPEN whose stateid the client does not get, because a later part of the
    /// operation has failed.
    pub(crate) fn withdraw_open(&self, client: &Client, granted: &OpenGranted) {
        let mut states = client.states.lock();
        let Ok((number, record)) = states.find(self.ids.epoch, &granted.stateid) else { return };
        let StateKind::Open(open) = &mut record.kind else { return };
        let pin = match granted.before {
            Some((mode, opened)) => {
                // Less than before, so it conflicts with nothing.
                let _ = self.shares.replace(ShareHolder::Nfs4, &open.file, Some(open.mode), Some(mode), None);
                (open.mode, open.opened) = (mode, opened);
                record.seqid = if record.seqid == 1 { u32::MAX } else { record.seqid - 1 };
                None
            }
            None => self.remove_open(client, &mut states, number),
        };
        drop(states);
        drop(pin);
    }

    /// OPEN_DOWNGRADE. `mode` must be the union of modes of earlier OPENs.
    pub(crate) fn open_downgrade(
        &self,
        client: &Client,
        stateid: &Stateid,
        file: &FileKey,
        mode: ShareMode,
    ) -> Result<Stateid, StateFault> {
        let mut states = client.states.lock();
        let FoundOpen { number, seqid, open } = states.find_open(self.ids.epoch, stateid, file)?;
        let kept = open.opened.within(mode);
        if mode.access == ShareBits::NONE || kept.union() != mode {
            return Err(StateFault::Invalid);
        }
        self.shares.replace(ShareHolder::Nfs4, file, Some(open.mode), Some(mode), None)?;
        (open.mode, open.opened) = (mode, kept);
        *seqid = next_seqid(*seqid);
        Ok(self.stateid(number, *seqid))
    }

    /// CLOSE. It releases the locks that are based on the open. Returns the pin of the file, if
    /// nobody has it open any more.
    pub(crate) fn close_pinned(
        &self,
        client: &Client,
        stateid: &Stateid,
        file: &FileKey,
    ) -> Result<Option<FilePin>, StateFault> {
        let mut states = client.states.lock();
        let number = states.find_open(self.ids.epoch, stateid, file)?.number;
        Ok(self.remove_open(client, &mut states, number))
    }

    /// Returns the file's pin, to be dropped when the states are unlocked.
    fn remove_open(&self, client: &Client, states: &mut ClientStates, number: u64) -> Option<FilePin> {
        let record = states.states.remove(&number)?;
        self.uncount_states(client, record.kind.weight());
        let StateKind::Open(open) = record.kind else { return None };
        for locks in open.locks.values() {
            states.states.remove(locks);
        }
        self.uncount_states(client, open.locks.keys().map(|owner| owner_weight(owner)).sum());
        self.end_locks(client, states, number, &open);
        let mode = states.end_open(&open);
        self.shares.end(ShareHolder::Nfs4, &open.file, mode)
    }

    /// Releases the locks that are based on an open, and takes such requests out of the queue.
    fn end_locks(&self, client: &Client, states: &mut ClientStates, number: u64, open: &OpenState) {
        if open.may_have_waiters
            && let Some(locks) = &self.locks
        {
            locks.cancel_based_on(&open.file, client.id, number);
        }
        for owner in open.locks.keys() {
            self.end_lock_state(client, states, owner, &open.file);
        }
    }

    /// Whether a client may read or write a file with a stateid (RFC 8881 sections 8.2.3 and
    /// 9.1.2).
    pub(crate) fn check_io(
        &self,
        client: &Client,
        stateid: &Stateid,
        file: &FileKey,
        io: IoDirection,
    ) -> Result<(), StateFault> {
        let own = match (*stateid, io) {
            (Stateid::READ_BYPASS, IoDirection::Read) => return Ok(()),
            // An open or a lock that was not reclaimed yet may deny it.
            (Stateid::ANONYMOUS | Stateid::READ_BYPASS, _) if self.grace.is_on() => {
                return Err(StateFault::Grace);
            }
            (Stateid::ANONYMOUS | Stateid::READ_BYPASS, _) => None,
            _ => {
                let mode = client.states.lock().mode(self.ids.epoch, stateid, file)?;
                if mode.access.contains(io.access()) {
                    return Ok(());
                }
                // A client that caches pages reads around what it writes. The RFC allows that for
                // READ, unless another open denies it.
                if io == IoDirection::Write {
                    return Err(StateFault::OpenMode);
                }
                Some(mode)
            }
        };
        if self.shares.denies_io(file, own, io) { Err(StateFault::Locked) } else { Ok(()) }
    }

    /// TEST_STATEID of one stateid.
    pub(crate) fn test_stateid(&self, client: &Client, stateid: &Stateid) -> Result<(), StateFault> {
        client.states.lock().find(self.ids.epoch, stateid).map(|_| ())
    }

    /// FREE_STATEID: of a state that was revoked, or of an owner of locks that holds none in the
    /// file. CLOSE ends opens.
    pub(crate) fn free_stateid(&self, client: &Client, stateid: &Stateid) -> Result<(), StateFault> {
        let states = &mut *client.states.lock();
        match states.find(self.ids.epoch, stateid) {
            Ok((number, record)) => match &record.kind {
                StateKind::Open(_) | StateKind::Delegation(_) => Err(StateFault::LocksHeld),
                StateKind::Locks(locks) => {
                    let (owner, file) = (Arc::clone(&locks.owner), locks.file);
                    self.free_lock_state(client, states, number, &owner, &file)
                }
            },
            Err(StateFault::AdminRevoked | StateFault::DelegationRevoked) => {
                let number = number_of(self.ids.epoch, stateid)?;
                let Some(record) = states.states.remove(&number) else { return Ok(()) };
                self.uncount_states(client, record.kind.weight());
                if let Some(freed) = record.revoked
                    && states.states.values().all(|record| record.revoked != Some(freed))
                {
                    client.status_flags.fetch_and(!freed.status_flag(), Ordering::Relaxed);
                }
                Ok(())
            }
            Err(fault) => Err(fault),
        }
    }

    /// Whether a client would get a read delegation of a file now. To be asked before a lease is
    /// taken for it.
    pub(crate) fn check_delegable(
        &self,
        client: &Client,
        file: &FileKey,
        is_reclaim: bool,
        now: Duration,
    ) -> Result<(), DelegationRefusal> {
        self.check_delegation_room(client, &client.states.lock(), file)?;
        let is_open = self.delegations.may_grant(file, client.id, is_reclaim, now, || self.is_written(file));
        if is_open { Ok(()) } else { Err(DelegationRefusal::Contention) }
    }

    fn check_delegation_room(
        &self,
        client: &Client,
        states: &ClientStates,
        file: &FileKey,
    ) -> Result<(), DelegationRefusal> {
        if states.is_gone || client.is_removed() || states.delegations.contains_key(file) {
            return Err(DelegationRefusal::Contention);
        }
        let own = client.of_address.delegations.load(Ordering::Relaxed);
        if self.has_room(client).is_err() || !has_room(own, self.delegations.len(), self.limits.delegations) {
            return Err(DelegationRefusal::Resource);
        }
        Ok(())
    }

    /// Whether somebody may write a file, or has locked it to write. A host of NLM locks a file
    /// without an open.
    fn is_written(&self, file: &FileKey) -> bool {
        let is_locked = || self.locks.as_ref().is_some_and(|locks| locks.is_wanted_for_writing(file));
        self.shares.is_open_for_writing(file) || is_locked()
    }

    /// Grants a client a read delegation of a file that it has just opened.
    pub(crate) fn delegate(
        &self,
        client: &Client,
        asked: DelegationRequest<'_>,
        now: Duration,
    ) -> Result<Stateid, DelegationRefusal> {
        let (file, reclaim) = (asked.file, asked.reclaim);
        if reclaim.is_some() {
            client.note_reclaimed_delegation();
        }
        let stateid = self.grant_delegation(client, asked, now)?;
        // Whoever changed the file before has recalled nothing; who changes it from now on does.
        if reclaim.is_some_and(|is_unchanged| !is_unchanged()) {
            let _ = self.return_delegation(client, &stateid, &file);
            return Err(DelegationRefusal::Contention);
        }
        Ok(stateid)
    }

    fn grant_delegation(
        &self,
        client: &Client,
        asked: DelegationRequest<'_>,
        now: Duration,
    ) -> Result<Stateid, DelegationRefusal> {
        // A lease that is not used is dropped after the guard, which is newer: its end takes time.
        let mut local = asked.local;
        let states = &mut *client.states.lock();
        self.check_delegation_room(client, states, &asked.file)?;
        let number = self.ids.state();
        let stateid = self.stateid(number, 1);
        let new = NewDelegation {
            client: client.id,
            stateid,
            handle: asked.handle.clone(),
            granted_by: asked.granted_by,
            is_reclaim: asked.reclaim.is_some(),
        };
        let is_written = || self.is_written(&asked.file);
        if !self.delegations.grant(&asked.file, new, &mut local, now, is_written) {
            return Err(DelegationRefusal::Contention);
        }
        self.count_states(client, 1);
        client.of_address.delegations.fetch_add(1, Ordering::Relaxed);
        states.delegations.insert(asked.file, number);
        let kind = StateKind::Delegation(asked.file);
        states.states.insert(number, StateRecord { seqid: 1, revoked: None, kind });
        Ok(stateid)
    }

    /// Whether a stateid is a delegation that the client has of a file, recalled or not.
    pub(crate) fn check_delegation(
        &self,
        client: &Client,
        stateid: &Stateid,
        file: &FileKey,
    ) -> Result<(), StateFault> {
        client.states.lock().find_delegation(self.ids.epoch, stateid, file).map(drop)
    }

    /// DELEGRETURN.
    pub(crate) fn return_delegation(
        &self,
        client: &Client,
        stateid: &Stateid,
        file: &FileKey,
    ) -> Result<(), StateFault> {
        let states = &mut *client.states.lock();
        let number = states.find_delegation(self.ids.epoch, stateid, file)?;
        states.states.remove(&number);
        states.delegations.remove(file);
        self.uncount_states(client, 1);
        self.uncount_delegation(client, file);
        Ok(())
    }

    /// A client's delegation has ended.
    fn uncount_delegation(&self, client: &Client, file: &FileKey) {
        client.of_address.delegations.fetch_sub(1, Ordering::Relaxed);
        self.delegations.end(file, client.id);
    }

    /// Revokes the delegations whose recall was not answered for the time of a lease. Returns their
    /// number.
    pub(crate) fn revoke_overdue(&self, now: Duration) -> usize {
        let overdue = self.delegations.overdue(now, self.limits.lease);
        let revoked = overdue.iter().filter(|overdue| {
            let client = self.client(overdue.client);
            client.is_some_and(|client| self.revoke_delegation(&client, &overdue.stateid, &overdue.file))
        });
        revoked.count()
    }

    fn revoke_delegation(&self, client: &Client, stateid: &Stateid, file: &FileKey) -> bool {
        let states = &mut *client.states.lock();
        let Ok(number) = states.find_delegation(self.ids.epoch, stateid, file) else { return false };
        self.end_delegation(client, states, number, Revocation::Recall);
        true
    }

    /// Ends a delegation against the client's will.
    fn end_delegation(&self, client: &Client, states: &mut ClientStates, number: u64, why: Revocation) {
        let Some(record) = states.states.get_mut(&number) else { return };
        let StateKind::Delegation(file) = record.kind else { return };
        record.revoked = Some(why);
        states.delegations.remove(&file);
        client.status_flags.fetch_or(why.status_flag(), Ordering::Relaxed);
        self.uncount_delegation(client, &file);
    }

    /// Whether there are delegations, and clients know of all changes of files that were delegated
    /// to them. In the grace period they do not: files that are not reclaimed yet have no lease of
    /// the kernel.
    pub(crate) fn notices_changes(&self) -> bool {
        !self.delegations.is_empty() && !self.grace.is_on() && !self.has_unanswered_recalls()
    }

    /// Whether a client may not know of a change of a file that it had a delegation of: the recall
    /// is not answered, or the client has not freed what was revoked.
    fn has_unanswered_recalls(&self) -> bool {
        let flag = Revocation::Recall.status_flag();
        let has_revoked = |client: &Client| client.status_flags.load(Ordering::Relaxed) & flag != 0;
        self.delegations.has_recalled()
            || self.clients.lock().records.values().any(|record| has_revoked(&record.client))
    }

    /// Revokes all opens and delegations of files for which `is_revoked` holds; the clients keep
    /// their sessions. Returns their number.
    pub(crate) fn revoke_opens(&self, is_revoked: impl Fn(&FileKey) -> bool) -> usize {
        let records = self.clients.lock();
        let clients: Vec<_> = records.records.values().map(|record| Arc::clone(&record.client)).collect();
        drop(records);
        clients.iter().map(|client| self.revoke_opens_of(client, &is_revoked)).sum()
    }

    fn revoke_opens_of(&self, client: &Client, is_revoked: impl Fn(&FileKey) -> bool) -> usize {
        // Dropped after the guard, which is newer.
        let mut pins = Vec::new();
        let states = &mut *client.states.lock();
        let in_force = states.states.iter().filter(|(_, record)| record.revoked.is_none());
        let revoked = in_force.filter_map(|(number, record)| match &record.kind {
            StateKind::Open(open) if is_revoked(&open.file) => Some(*number),
            StateKind::Open(_) | StateKind::Locks(_) | StateKind::Delegation(_) => None,
        });
        let revoked: Vec<_> = revoked.collect();
        for number in &revoked {
            let Some(mut record) = states.states.remove(number) else { continue };
            if let StateKind::Open(open) = &record.kind {
                self.end_locks(client, states, *number, open);
                for locks in open.locks.values() {
                    if let Some(locks) = states.states.get_mut(locks) {
                        locks.revoked = Some(Revocation::Admin);
                    }
                }
                let mode = states.end_open(open);
                pins.extend(self.shares.end(ShareHolder::Nfs4, &open.file, mode));
            }
            record.revoked = Some(Revocation::Admin);
            states.states.insert(*number, record);
        }
        if !revoked.is_empty() {
            client.status_flags.fetch_or(Revocation::Admin.status_flag(), Ordering::Relaxed);
        }
        let delegations = states.delegations.iter().filter(|(file, _)| is_revoked(file));
        let delegations: Vec<_> = delegations.map(|(_, number)| *number).collect();
        for number in &delegations {
            self.end_delegation(client, states, *number, Revocation::Admin);
        }
        revoked.len() + delegations.len()
    }

    /// Ends all states of a client that was removed; nothing more if it was called before. It looks
    /// at no states of others.
    pub(super) fn release_states(&self, client: &Client) {
        // Dropped after the guard, which is newer.
        let mut pins = Vec::new();
        // Locked to the end: another thread that releases the same client waits for this one.
        let states = &mut *client.states.lock();
        let released = states.release();
        self.uncount_states(client, released.count);
        if let Some(locks) = &self.locks {
            // Its own requests get nothing of what it releases.
            for (number, open) in released.opens.iter().filter(|(_, open)| open.may_have_waiters) {
                locks.cancel_based_on(&open.file, client.id, *number);
            }
            for (owner, file) in &released.locks {
                locks.release_owner(file, &lock_owner(client.id, owner));
            }
        }
        for (_, open) in released.opens {
            pins.extend(self.shares.end(ShareHolder::Nfs4, &open.file, open.mode));
        }
        for file in released.delegations {
            self.uncount_delegation(client, &file);
        }
    }
}
