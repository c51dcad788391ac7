//! Random requests of several clients, compared with a model that keeps plain lists.

use curt_types::LockType;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRng, TestRunner};

use super::super::{IoDirection, LockBasis, LockStateOutcome, LockStateRequest, WantedAccess};
use super::lock_table::{TableOfLocks, with_lock_table};
use super::*;

const OWNERS: [&str; 3] = ["a", "b", "c"];
const OPEN_OWNERS: [&str; 2] = ["o", "p"];
const LOCK_OWNERS: [&str; 2] = ["l", "m"];
const FILES: u8 = 3;
const LEASE: u64 = 90;

/// A request, or the passing of time. Numbers select among what exists, modulo their count.
#[derive(Clone, Debug)]
enum Step {
    Exchange { owner: usize, verifier: u8 },
    CreateSession { client: usize, is_repeated: bool },
    DestroySession { session: usize },
    DestroyClient { client: usize },
    Sequence { session: usize, slot: u32, repetition: Repetition, is_cached: bool },
    Open { session: usize, owner: usize, file: u8, access: u32, deny: u32, is_withdrawn: bool },
    Downgrade { open: usize, access: u32, deny: u32 },
    Close { open: usize, age: u32 },
    Lock { open: usize, owner: usize, lock_type: LockType, is_known: bool },
    Unlock { locks: usize },
    FreeLocks { locks: usize },
    Revoke { session: usize },
    Wait { seconds: u64 },
    Expire,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repetition {
    New,
    Same,
    Other,
    Skip,
}

fn step() -> impl Strategy<Value = Step> {
    let place = 0_usize..64;
    let repetition = prop_oneof![
        3 => Just(Repetition::New),
        2 => Just(Repetition::Same),
        1 => Just(Repetition::Other),
        1 => Just(Repetition::Skip),
    ];
    prop_oneof![
        2 => (0..OWNERS.len(), 0_u8..2).prop_map(|(owner, verifier)| Step::Exchange { owner, verifier }),
        3 => (place.clone(), any::<bool>())
            .prop_map(|(client, is_repeated)| Step::CreateSession { client, is_repeated }),
        1 => place.clone().prop_map(|session| Step::DestroySession { session }),
        1 => place.clone().prop_map(|client| Step::DestroyClient { client }),
        5 => (place.clone(), 0_u32..2, repetition, any::<bool>()).prop_map(
            |(session, slot, repetition, is_cached)| Step::Sequence { session, slot, repetition, is_cached }
        ),
        8 => (place.clone(), 0..OPEN_OWNERS.len(), 0..FILES, 1_u32..4, 0_u32..4, prop::bool::weighted(0.1))
            .prop_map(|(session, owner, file, access, deny, is_withdrawn)| {
                Step::Open { session, owner, file, access, deny, is_withdrawn }
            }),
        3 => (place.clone(), 1_u32..4, 0_u32..4)
            .prop_map(|(open, access, deny)| Step::Downgrade { open, access, deny }),
        4 => (place.clone(), 0_u32..3).prop_map(|(open, age)| Step::Close { open, age }),
        6 => (place.clone(), 0..LOCK_OWNERS.len(), any::<bool>(), any::<bool>()).prop_map(
            |(open, owner, reads, is_known)| {
                let lock_type = if reads { LockType::Read } else { LockType::Write };
                Step::Lock { open, owner, lock_type, is_known }
            }
        ),
        3 => place.clone().prop_map(|locks| Step::Unlock { locks }),
        1 => place.clone().prop_map(|locks| Step::FreeLocks { locks }),
        1 => place.prop_map(|session| Step::Revoke { session }),
        2 => (1_u64..60).prop_map(|seconds| Step::Wait { seconds }),
        1 => Just(Step::Expire),
    ]
}

/// A fault of the model, which the comparison must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    None,
    UpgradesIgnoreOthers,
    ClosedOpensDeny,
    ExpiredClientsKeepOpens,
    RestartsKeepOpens,
    SlotsForget,
    DowngradesKeepDenials,
    LocksOutliveOpens,
    LocksEndWithOneOpen,
    ClientsShareOwners,
}

#[derive(Clone, Debug)]
struct ModelClient {
    id: Clientid,
    owner: usize,
    verifier: u8,
    is_confirmed: bool,
    sequence: u32,
    last: Option<SessionCreated>,
    renewed: u64,
}

#[derive(Clone, Debug)]
struct ModelSession {
    id: SessionId,
    client: Clientid,
    slots: [(u32, Option<Vec<u8>>); 2],
}

#[derive(Clone, Debug)]
struct ModelOpen {
    client: Clientid,
    owner: usize,
    file: u8,
    opened: Vec<ShareMode>,
    stateid: Stateid,
    is_revoked: bool,
}

impl ModelOpen {
    fn mode(&self) -> ShareMode {
        self.opened.iter().fold(ShareMode::default(), |all, mode| all.and(*mode))
    }
}

/// An owner's stateid for its lock in a file, based on one open.
#[derive(Clone, Debug)]
struct ModelLocks {
    client: Clientid,
    owner: usize,
    file: u8,
    /// The open's stateid, without the seqid.
    open: [u8; 12],
    stateid: Stateid,
    is_revoked: bool,
}

/// A lock of the whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ModelHeld {
    client: Clientid,
    owner: usize,
    file: u8,
    lock_type: LockType,
}

struct Model {
    planted: Planted,
    state: ServerState,
    table: Arc<TableOfLocks>,
    now: u64,
    clients: Vec<ModelClient>,
    sessions: Vec<ModelSession>,
    opens: Vec<ModelOpen>,
    locks: Vec<ModelLocks>,
    held: Vec<ModelHeld>,
    replies: u64,
}

fn intersects(one: ShareBits, two: ShareBits) -> bool {
    [ShareBits::READ, ShareBits::WRITE].into_iter().any(|bit| one.contains(bit) && two.contains(bit))
}

fn conflict(one: ShareMode, two: ShareMode) -> bool {
    intersects(one.access, two.deny) || intersects(one.deny, two.access)
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, is: T, expected: T) -> Result<(), String> {
    if is == expected { Ok(()) } else { Err(format!("{what}: {is:?} instead of {expected:?}")) }
}

impl Model {
    fn new(planted: Planted) -> Self {
        let (state, table) = with_lock_table(false);
        Self {
            planted,
            state,
            table,
            now: 0,
            clients: Vec::new(),
            sessions: Vec::new(),
            opens: Vec::new(),
            locks: Vec::new(),
            held: Vec::new(),
            replies: 0,
        }
    }

    fn forget(&mut self, id: Clientid, keeps_opens: bool) {
        self.clients.retain(|client| client.id != id);
        self.sessions.retain(|session| session.client != id);
        self.locks.retain(|locks| locks.client != id);
        self.held.retain(|held| held.client != id);
        if !keeps_opens {
            self.opens.retain(|open| open.client != id);
        }
    }

    /// The locks end that are based on an open that ends: with the last stateid of their owner.
    fn end_locks(&mut self, open: &ModelOpen, is_revoked: bool) {
        let is_based = |locks: &ModelLocks| locks.open == open.stateid.other;
        let ended: Vec<_> = self.locks.iter().filter(|locks| is_based(locks)).cloned().collect();
        if is_revoked {
            self.locks.iter_mut().filter(|locks| is_based(locks)).for_each(|locks| locks.is_revoked = true);
        } else {
            self.locks.retain(|locks| !is_based(locks));
        }
        for locks in ended.iter().filter(|locks| !locks.is_revoked) {
            self.release_unless_based(locks);
        }
    }

    /// An owner's stateid has ended.
    fn release_unless_based(&mut self, ended: &ModelLocks) {
        let is_of = |client, owner, file| (client, owner, file) == (ended.client, ended.owner, ended.file);
        let mut others = self.locks.iter().filter(|locks| !locks.is_revoked);
        let is_based = others.any(|locks| is_of(locks.client, locks.owner, locks.file))
            && self.planted != Planted::LocksEndWithOneOpen;
        if !is_based && self.planted != Planted::LocksOutliveOpens {
            self.held.retain(|held| !is_of(held.client, held.owner, held.file));
        }
    }

    fn client(&self, session: &ModelSession) -> Arc<Client> {
        Arc::clone(&self.state.session(&session.id).unwrap().client)
    }

    fn take(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Exchange { owner, verifier } => self.exchange(owner, verifier),
            Step::CreateSession { client, is_repeated } => self.create_session(client, is_repeated),
            Step::DestroySession { session } => {
                let count = self.sessions.len();
                if count == 0 {
                    return Ok(());
                }
                let session = self.sessions.remove(session % count);
                same("DESTROY_SESSION", self.state.destroy_session(&session.id, None), Ok(()))
            }
            Step::DestroyClient { client } => {
                let Some(client) = self.clients.get(client % self.clients.len().max(1)) else {
                    return Ok(());
                };
                let id = client.id;
                let is_busy = self.sessions.iter().any(|session| session.client == id)
                    || self.opens.iter().any(|open| open.client == id);
                let expected = if is_busy { Err(StateFault::ClientBusy) } else { Ok(()) };
                same("DESTROY_CLIENTID", self.state.destroy_clientid(id), expected)?;
                release(&self.state);
                if !is_busy {
                    self.forget(id, false);
                }
                Ok(())
            }
            Step::Sequence { session, slot, repetition, is_cached } => {
                self.sequence(session, slot, repetition, is_cached)
            }
            Step::Open { session, owner, file, access, deny, is_withdrawn } => {
                self.open(session, owner, file, mode(access, deny), is_withdrawn)
            }
            Step::Downgrade { open, access, deny } => self.downgrade(open, mode(access, deny)),
            Step::Close { open, age } => self.close(open, age),
            Step::Lock { open, owner, lock_type, is_known } => self.lock(open, owner, lock_type, is_known),
            Step::Unlock { locks } => self.unlock(locks),
            Step::FreeLocks { locks } => self.free_locks(locks),
            Step::Revoke { session } => {
                let Some(session) = self.sessions.get(session % self.sessions.len().max(1)) else {
                    return Ok(());
                };
                let revoked = file(u8::try_from(session.slots[0].0).unwrap_or_default() % FILES);
                self.state.revoke_opens(|file| *file == revoked);
                let opens = self.opens.iter_mut();
                let opens = opens.filter(|open| file(open.file) == revoked && !open.is_revoked);
                let opens: Vec<_> = opens
                    .map(|open| {
                        open.is_revoked = true;
                        open.clone()
                    })
                    .collect();
                opens.iter().for_each(|open| self.end_locks(open, true));
                Ok(())
            }
            Step::Wait { seconds } => {
                self.now += seconds;
                Ok(())
            }
            Step::Expire => {
                let now = self.now;
                let has_opens = |id| self.opens.iter().any(|open| open.client == id);
                let expired = self.clients.iter().filter(|client| now - client.renewed > LEASE);
                let expired = expired.filter(|client| !has_opens(client.id));
                let expired: Vec<_> = expired.map(|client| client.id).collect();
                same("expired clients", expire(&self.state, at(now)), expired.len())?;
                expired.into_iter().for_each(|id| self.forget(id, false));
                Ok(())
            }
        }
    }

    fn exchange(&mut self, owner: usize, verifier: u8) -> Result<(), String> {
        let asked = presented(OWNERS[owner], verifier, Principal::Uid(0));
        let exchanged = self.state.exchange_id(&asked, at(self.now)).unwrap();
        let same_owner = |client: &&ModelClient| client.owner == owner;
        let confirmed = self.clients.iter().filter(same_owner).find(|client| client.is_confirmed);
        if let Some(present) = confirmed.filter(|client| client.verifier == verifier) {
            same("EXCHANGE_ID", exchanged.client, present.id)?;
            return same("next sequence", exchanged.sequence.0, present.sequence + 1);
        }
        if self.clients.iter().any(|client| client.id == exchanged.client) || exchanged.is_confirmed {
            return Err("EXCHANGE_ID returned the id of another client".into());
        }
        self.clients.retain(|client| client.owner != owner || client.is_confirmed);
        self.clients.push(ModelClient {
            id: exchanged.client,
            owner,
            verifier,
            is_confirmed: false,
            sequence: 0,
            last: None,
            renewed: self.now,
        });
        Ok(())
    }

    fn create_session(&mut self, client: usize, is_repeated: bool) -> Result<(), String> {
        let count = self.clients.len().max(1);
        let Some(client) = self.clients.get_mut(client % count) else { return Ok(()) };
        let sequence = client.sequence + u32::from(!is_repeated);
        let created = self.state.create_session(&creation(client.id, sequence), at(self.now));
        release(&self.state);
        if is_repeated {
            return same("repeated CREATE_SESSION", created.ok(), client.last);
        }
        let created = created.map_err(|fault| format!("CREATE_SESSION: {fault:?}"))?;
        client.sequence = sequence;
        client.last = Some(created);
        client.renewed = self.now;
        let was_confirmed = std::mem::replace(&mut client.is_confirmed, true);
        let (id, owner) = (client.id, client.owner);
        if !was_confirmed {
            let mut others = self.clients.iter();
            let replaced = others.find(|other| other.owner == owner && other.id != id && other.is_confirmed);
            if let Some(replaced) = replaced.map(|other| other.id) {
                self.forget(replaced, self.planted == Planted::RestartsKeepOpens);
            }
        }
        let session = ModelSession { id: created.session, client: id, slots: [(0, None), (0, None)] };
        let client = self.client(&session);
        let completed = self.state.reclaim_complete(&client);
        same("first RECLAIM_COMPLETE", completed.is_ok(), !was_confirmed)?;
        self.sessions.push(session);
        Ok(())
    }

    fn sequence(
        &mut self,
        session: usize,
        slot: u32,
        repetition: Repetition,
        is_cached: bool,
    ) -> Result<(), String> {
        let count = self.sessions.len().max(1);
        let Some(session) = self.sessions.get_mut(session % count) else { return Ok(()) };
        let (last, kept) = &mut session.slots[usize::try_from(slot).unwrap()];
        let (sequence, fingerprint) = match repetition {
            Repetition::New => (*last + 1, *last + 1),
            Repetition::Same => (*last, *last),
            Repetition::Other => (*last, u32::MAX),
            Repetition::Skip => (*last + 2, *last + 2),
        };
        let asked = SequenceRequest {
            is_cached,
            fingerprint: fingerprint.into(),
            ..request(session.id, slot, sequence)
        };
        let outcome = self.state.sequence(&asked, at(self.now));
        let id = session.client;
        match (repetition, *last, outcome) {
            (Repetition::Skip, _, outcome) | (Repetition::Same | Repetition::Other, 0, outcome) => {
                return same("SEQUENCE", outcome.err(), Some(StateFault::Misordered));
            }
            (Repetition::Other, _, outcome) => {
                return same("SEQUENCE", outcome.err(), Some(StateFault::FalseRetry));
            }
            (Repetition::New, _, Ok(Sequenced::Execute(slot))) => {
                self.replies += 1;
                let reply = self.replies.to_be_bytes();
                slot.finish(&reply);
                *last += 1;
                let is_kept = is_cached && self.planted != Planted::SlotsForget;
                *kept = is_kept.then(|| reply.to_vec());
            }
            (Repetition::Same, _, Ok(Sequenced::Replay(reply))) => {
                same("repeated reply", Some(&reply), kept.as_ref())?;
            }
            (Repetition::Same, _, Ok(Sequenced::Uncached(_))) => same("repeated reply", None, kept.as_ref())?,
            (_, _, outcome) => return Err(format!("SEQUENCE: {:?}", outcome.err())),
        }
        let renewed = self.clients.iter_mut().find(|client| client.id == id);
        renewed.into_iter().for_each(|client| client.renewed = self.now);
        Ok(())
    }

    fn open(
        &mut self,
        session: usize,
        owner: usize,
        file_number: u8,
        mode: ShareMode,
        is_withdrawn: bool,
    ) -> Result<(), String> {
        let Some(session) = self.sessions.get(session % self.sessions.len().max(1)) else { return Ok(()) };
        let (id, client) = (session.client, self.client(session));
        let is_own = |open: &ModelOpen| {
            open.client == id && open.owner == owner && open.file == file_number && !open.is_revoked
        };
        let mut opens = self.opens.iter().filter(|open| open.file == file_number && !open.is_revoked);
        let own = self.opens.iter().position(is_own);
        let is_denied = opens.any(|open| conflict(open.mode(), mode))
            && !(self.planted == Planted::UpgradesIgnoreOthers && own.is_some());
        let name = OPEN_OWNERS[owner].as_bytes();
        let asked = OpenRequest {
            owner: name,
            file: file(file_number),
            mode,
            is_reclaim: false,
            is_admitted: false,
            pin: None,
        };
        let granted = match self.state.open(&client, &asked) {
            Err(fault) => {
                same("OPEN", (fault, true), (StateFault::ShareDenied, is_denied))?;
                return self.expire_holders(file_number, mode);
            }
            Ok(_) if is_denied => return Err("OPEN was granted".into()),
            Ok(granted) => granted,
        };
        if is_withdrawn {
            self.state.withdraw_open(&client, &granted);
            return Ok(());
        }
        match own {
            Some(own) => {
                let open = &mut self.opens[own];
                let next = Stateid { seqid: open.stateid.seqid + 1, ..open.stateid };
                same("stateid", granted.stateid, next)?;
                open.stateid = next;
                open.opened.push(mode);
            }
            None => self.opens.push(ModelOpen {
                client: id,
                owner,
                file: file_number,
                opened: vec![mode],
                stateid: granted.stateid,
                is_revoked: false,
            }),
        }
        Ok(())
    }

    /// The server's steps before it denies an open.
    fn expire_holders(&mut self, number: u8, wanted: ShareMode) -> Result<(), String> {
        let holds = |id| {
            let opens =
                self.opens.iter().filter(|open| open.client == id && open.file == number && !open.is_revoked);
            opens.into_iter().any(|open| conflict(open.mode(), wanted))
        };
        let expired = self.clients.iter().filter(|client| self.now - client.renewed > LEASE);
        let expired: Vec<_> = expired.map(|client| client.id).filter(|id| holds(*id)).collect();
        let wanted = WantedAccess::Open(wanted);
        let removed = self.state.expire_holders(&file(number), wanted, at(self.now));
        same("expired holders", removed, expired.len())?;
        release(&self.state);
        let keeps = self.planted == Planted::ExpiredClientsKeepOpens;
        expired.into_iter().for_each(|id| self.forget(id, keeps));
        Ok(())
    }

    fn opener(&self, open: &ModelOpen) -> Option<Arc<Client>> {
        client_of(&self.state, open.client)
    }

    fn downgrade(&mut self, open: usize, mode: ShareMode) -> Result<(), String> {
        let Some(open) = (!self.opens.is_empty()).then(|| open % self.opens.len()) else { return Ok(()) };
        let Some(client) = self.opener(&self.opens[open]) else { return Ok(()) };
        let open = &mut self.opens[open];
        let outcome = self.state.open_downgrade(&client, &open.stateid, &file(open.file), mode);
        if open.is_revoked {
            return same("OPEN_DOWNGRADE", outcome, Err(StateFault::AdminRevoked));
        }
        let kept: Vec<_> = open.opened.iter().copied().filter(|opened| mode.contains(*opened)).collect();
        if kept.iter().fold(ShareMode::default(), |all, mode| all.and(*mode)) != mode {
            return same("OPEN_DOWNGRADE", outcome, Err(StateFault::Invalid));
        }
        open.stateid.seqid += 1;
        if self.planted != Planted::DowngradesKeepDenials {
            open.opened = kept;
        }
        same("OPEN_DOWNGRADE", outcome, Ok(open.stateid))
    }

    fn close(&mut self, open: usize, age: u32) -> Result<(), String> {
        let Some(place) = (!self.opens.is_empty()).then(|| open % self.opens.len()) else { return Ok(()) };
        let Some(client) = self.opener(&self.opens[place]) else { return Ok(()) };
        let open = &self.opens[place];
        let Some(seqid) = open.stateid.seqid.checked_sub(age) else { return Ok(()) };
        let stateid = Stateid { seqid, ..open.stateid };
        let outcome = self.state.close(&client, &stateid, &file(open.file));
        if open.is_revoked {
            return same("CLOSE", outcome, Err(StateFault::AdminRevoked));
        }
        if age > 0 && seqid > 0 {
            return same("CLOSE", outcome, Err(StateFault::OldStateid));
        }
        same("CLOSE", outcome, Ok(()))?;
        let closed = open.clone();
        if self.planted != Planted::ClosedOpensDeny {
            self.opens.remove(place);
        }
        self.end_locks(&closed, false);
        Ok(())
    }

    fn lock(&mut self, open: usize, owner: usize, lock_type: LockType, is_known: bool) -> Result<(), String> {
        let Some(place) = (!self.opens.is_empty()).then(|| open % self.opens.len()) else { return Ok(()) };
        let open = self.opens[place].clone();
        let Some(client) = self.opener(&open) else { return Ok(()) };
        let known = self.locks.iter().position(|locks| {
            (locks.open, locks.owner) == (open.stateid.other, owner) && locks.client == open.client
        });
        let basis = match known.filter(|_| is_known) {
            Some(known) => LockBasis::Locks(self.locks[known].stateid),
            None => LockBasis::Open { stateid: open.stateid, owner: LOCK_OWNERS[owner].as_bytes() },
        };
        let asked = LockStateRequest { basis, file: file(open.file), lock_type, is_reclaim: false };
        let outcome = self.state.lock(&client, &asked, |owner, _| self.table.lock(&asked, owner));
        if open.is_revoked {
            return same("LOCK", outcome.err(), Some(StateFault::AdminRevoked));
        }
        let needed = if lock_type == LockType::Read { ShareBits::READ } else { ShareBits::WRITE };
        if !open.mode().access.contains(needed) {
            return same("LOCK", outcome.err(), Some(StateFault::OpenMode));
        }
        let wanted = ModelHeld { client: open.client, owner, file: open.file, lock_type };
        let shares = self.planted == Planted::ClientsShareOwners;
        let is_own = |held: &ModelHeld| held.owner == owner && (shares || held.client == wanted.client);
        let mut others = self.held.iter().filter(|held| held.file == wanted.file && !is_own(held));
        let is_denied = others.any(|held| held.lock_type.conflicts(lock_type));
        match outcome.map_err(|fault| format!("LOCK: {fault:?}"))? {
            LockStateOutcome::Conflict(_) => return same("LOCK was denied", true, is_denied),
            LockStateOutcome::Granted(_) if is_denied => return Err("LOCK was granted".into()),
            LockStateOutcome::Granted(stateid) => match known {
                Some(known) => {
                    let locks = &mut self.locks[known];
                    locks.stateid.seqid += 1;
                    same("stateid", stateid, locks.stateid)?;
                }
                None => self.locks.push(ModelLocks {
                    client: open.client,
                    owner,
                    file: open.file,
                    open: open.stateid.other,
                    stateid,
                    is_revoked: false,
                }),
            },
        }
        self.held.retain(|held| held.file != wanted.file || !is_own(held));
        self.held.push(wanted);
        Ok(())
    }

    fn unlock(&mut self, locks: usize) -> Result<(), String> {
        let Some(place) = (!self.locks.is_empty()).then(|| locks % self.locks.len()) else { return Ok(()) };
        let locks = &mut self.locks[place];
        let Some(client) = client_of(&self.state, locks.client) else { return Ok(()) };
        let of = file(locks.file);
        let outcome = self.state.unlock(&client, &locks.stateid, &of, |owner| self.table.unlock(&of, owner));
        if locks.is_revoked {
            return same("LOCKU", outcome, Err(StateFault::AdminRevoked));
        }
        locks.stateid.seqid += 1;
        same("LOCKU", outcome, Ok(locks.stateid))?;
        let locks = locks.clone();
        self.held
            .retain(|held| (held.client, held.owner, held.file) != (locks.client, locks.owner, locks.file));
        Ok(())
    }

    fn free_locks(&mut self, locks: usize) -> Result<(), String> {
        let Some(place) = (!self.locks.is_empty()).then(|| locks % self.locks.len()) else { return Ok(()) };
        let locks = self.locks[place].clone();
        let Some(client) = client_of(&self.state, locks.client) else { return Ok(()) };
        let outcome = self.state.free_stateid(&client, &locks.stateid);
        let holds = self
            .held
            .iter()
            .any(|held| (held.client, held.owner, held.file) == (locks.client, locks.owner, locks.file));
        if holds && !locks.is_revoked {
            return same("FREE_STATEID", outcome, Err(StateFault::LocksHeld));
        }
        same("FREE_STATEID", outcome, Ok(()))?;
        self.locks.remove(place);
        Ok(())
    }

    /// Compares the whole state.
    fn check(&self) -> Result<(), String> {
        let clients = self.state.clients(at(self.now));
        same("clients", clients.len(), self.clients.len())?;
        for client in &self.clients {
            let Some(summary) = clients.iter().find(|summary| summary.client == client.id) else {
                return Err("a client is missing".into());
            };
            let opens = self.opens.iter().filter(|open| open.client == client.id).count();
            let sessions = self.sessions.iter().filter(|session| session.client == client.id).count();
            same("opens", (summary.opens, summary.sessions), (opens, sessions))?;
            same("confirmed", summary.is_confirmed, client.is_confirmed)?;
        }
        same("locks", self.table.len(), u64::try_from(self.held.len()).unwrap())?;
        for number in 0..FILES {
            let opens = self.opens.iter().filter(|open| open.file == number && !open.is_revoked);
            let opens: Vec<_> = opens.collect();
            let count = u32::try_from(opens.len()).unwrap();
            same("opens of a file", self.state.shares.opens(&file(number)), count)?;
            for io in [IoDirection::Read, IoDirection::Write] {
                let denied = opens.iter().any(|open| open.mode().deny.contains(io.access()));
                same("denied I/O", self.state.shares.denies_io(&file(number), None, io), denied)?;
            }
            for (place, one) in opens.iter().enumerate() {
                if opens[place + 1..].iter().any(|two| conflict(one.mode(), two.mode())) {
                    return Err("two opens conflict".into());
                }
            }
        }
        Ok(())
    }
}

fn agree(steps: &[Step], planted: Planted) -> Result<(), String> {
    let mut model = Model::new(planted);
    for (number, step) in steps.iter().enumerate() {
        let outcome = model.take(step).and_then(|()| model.check());
        outcome.map_err(|wrong| format!("step {number}, {step:?}: {wrong}"))?;
    }
    Ok(())
}

proptest! {
    #[test]
    fn random_requests_have_the_outcomes_of_plain_lists(steps in prop::collection::vec(step(), 1..80)) {
        let outcome = agree(&steps, Planted::None);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }
}

#[test]
fn the_comparison_finds_planted_faults() {
    for planted in [
        Planted::UpgradesIgnoreOthers,
        Planted::ClosedOpensDeny,
        Planted::ExpiredClientsKeepOpens,
        Planted::RestartsKeepOpens,
        Planted::SlotsForget,
        Planted::DowngradesKeepDenials,
        Planted::LocksOutliveOpens,
        Planted::LocksEndWithOneOpen,
        Planted::ClientsShareOwners,
    ] {
        let config =
            Config { cases: 2000, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
        let rng = TestRng::deterministic_rng(config.rng_algorithm);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let outcome = runner.run(&prop::collection::vec(step(), 1..80), |steps| {
            agree(&steps, planted).map_err(TestCaseError::fail)
        });
        assert!(outcome.is_err(), "{planted:?} was not found");
    }
}
