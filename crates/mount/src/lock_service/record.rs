//! The record of a mount's locks at the server, for the case that its process is killed.
//!
//! Servers free the locks of a client only if the client's host restarts, and then of all its
//! mounts. So each mount writes to a file in the control directory which owners may have locked
//! which files. Another mount of the same network namespace, at the latest the next one, unlocks
//! them one by one.
//!
//! The file also reserves the numbers of the mount's owners (`svid`): it is named after the first
//! of them, and locked (flock(2)) as long as the mount lives. Numbers that have a file are not
//! given to another mount, so those of a killed one stay unused until its locks are unlocked. A
//! mount chooses at random: knfsd takes hosts behind one address (containers, NAT) for one client
//! and distinguishes their owners by `svid` alone.
//!
//! The first line is `SERVER PORT NAMESPACE` (port 0: by its portmapper). Further lines: `+ OWNER
//! UID GID[,GROUP…] HANDLE`: a lock may be held; `b OWNER FIRST LAST r|w HANDLE`: a LOCK may be
//! blocked; `- HANDLE`: none of this file; `x OWNER…`: none of these owners.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use curt_client::Caller;
use curt_client::caller::RpcSecurity;
use curt_client::protocol::v3::NfsV3;
use curt_client::protocol::v3::nlm::{LockReadiness, NlmClient, NlmHost, NlmOptions};
use curt_client::protocol::{
    LOCK_OWNERS_MAX, LockAnswer, LockEvents, LockOperations as _, RpcCaller, RpcClient, WireLock, WireOwner,
};
use curt_client::threads::MonotonicClock;
use curt_observe::control;
use curt_policy::locks::{LockError, LockReply};
use curt_rpc::auth::RpcCredential;
use curt_rpc::client::{
    CallError, Interrupt, NoTransportEvents, PortSource, RecoveryMode, ServerName, TcpOptions, TcpTransport,
    Transport,
};
use curt_types::{ByteRange, Fault, FileHandle, LockType};
use parking_lot::Mutex;
use tracing::{info, warn};

use crate::locked_file::{create_directory, create_locked, is_at};

/// The first number. The kernel's lock manager counts from 1.
const FIRST: i32 = 1 << 30;

/// Numbers of a mount: those of its owners, and one for tests.
const BLOCK: u32 = LOCK_OWNERS_MAX + 1;

/// Blocks of numbers from [`FIRST`] on.
const BLOCKS: u32 = FIRST.cast_unsigned() / BLOCK;

/// LOCKs that may be blocked of one owner in one file; the oldest is forgotten beyond that.
const BLOCKED_MAX: usize = 64;

/// Lines beyond which a file is written anew, besides twice as many as there are locks.
const LINES_KEPT: usize = 1024;

/// Bytes that wait because the file system is full. What does not fit is written with the whole
/// file, once that succeeds.
const UNWRITTEN_MAX: usize = 64 << 10;

/// The pauses after failures to unlock what a killed mount has left: the first and the longest.
const RETRIES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(600)];

/// The records whose locks could not be unlocked, with the time of the next attempt and the pause
/// after that.
static RETRIED: Mutex<BTreeMap<PathBuf, (Instant, Duration)>> = Mutex::new(BTreeMap::new());

/// Requests for old locks at one time: a killed mount may have had thousands of owners, and others
/// wait for what they hold.
const UNLOCKERS: usize = 8;

/// Timeout of each request for an old lock.
const UNLOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The pauses before the looks for locks of killed mounts, each with a number of looks: others wait
/// for these locks.
const PAUSES: [(u32, Duration); 3] =
    [(1, Duration::ZERO), (10, Duration::from_millis(100)), (5, Duration::from_secs(1))];

/// Where the locks of a mount are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordedServer {
    pub(super) address: IpAddr,
    /// `lockport=`.
    pub(super) port: Option<u16>,
}

/// The record of a mount.
#[derive(Debug)]
pub(super) struct LockRecord {
    server: RecordedServer,
    first_svid: i32,
    path: PathBuf,
    state: Mutex<RecordState>,
}

#[derive(Debug)]
struct RecordState {
    /// Locked.
    file: File,
    /// The length of its whole lines in bytes.
    length: u64,
    /// Lines that could not be written.
    unwritten: String,
    /// Other lines were given up.
    is_incomplete: bool,
    is_failure_logged: bool,
    lines: usize,
    /// Lines beyond which the locks are counted, to learn whether the file is too long.
    lines_checked: usize,
    locks: RecordedLocks,
}

/// The owners of locks by file.
#[derive(Debug, Default, PartialEq, Eq)]
struct RecordedLocks(HashMap<FileHandle, BTreeMap<WireOwner, RecordedOwner>>);

/// The recorded locks of an owner in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RecordedOwner {
    user: RecordedUser,
    /// The LOCKs that may be blocked at the server.
    blocked: Vec<(ByteRange, LockType)>,
}

/// The user of a lock. Servers check for an UNLOCK, too, whether its user may open the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RecordedUser {
    uid: u32,
    gid: u32,
    /// Supplementary groups, as many as the credential has.
    groups: Box<[u32]>,
}

/// The directory of records.
pub(super) fn directory() -> PathBuf {
    control::directory().join("locks")
}

impl LockRecord {
    /// Reserves numbers that no mount has, and that no killed one has left.
    ///
    /// # Errors
    /// The directory cannot be used, or belongs to others; all numbers are in use.
    pub(super) fn reserve(directory: &Path, server: RecordedServer) -> io::Result<Self> {
        Self::reserve_from(random()? % BLOCKS, directory, server)
    }

    /// The first free block from number `start` on.
    fn reserve_from(start: u32, directory: &Path, server: RecordedServer) -> io::Result<Self> {
        create_directory(directory)?;
        for block in (start..BLOCKS).chain(0..start) {
            let first_svid = FIRST + (block * BLOCK).cast_signed();
            let path = directory.join(first_svid.to_string());
            let Some(file) = create_locked(&path)? else { continue };
            let mut state = RecordState {
                file,
                length: 0,
                unwritten: server.line(),
                is_incomplete: false,
                is_failure_logged: false,
                lines: 1,
                lines_checked: LINES_KEPT,
                locks: RecordedLocks::default(),
            };
            state.write()?;
            return Ok(Self { server, first_svid, path, state: Mutex::new(state) });
        }
        Err(io::Error::other("all numbers of lock owners are in use"))
    }

    /// The first number of the mount's owners.
    pub(super) const fn first_svid(&self) -> i32 {
        self.first_svid
    }

    /// An owner may lock a file from now on.
    pub(super) fn note(&self, file: &FileHandle, owner: WireOwner, credential: &RpcCredential) {
        let (uid, gid, groups) = match credential {
            RpcCredential::Sys(sys) => (sys.uid, sys.gid, &*sys.groups),
            RpcCredential::None | RpcCredential::Context(_) => (0, 0, &[][..]),
        };
        let is_of = |user: &RecordedUser| (user.uid, user.gid, &*user.groups) == (uid, gid, groups);
        let mut state = self.state.lock();
        let known = state.locks.0.entry(file.clone()).or_default();
        if known.get(&owner).is_none_or(|known| !is_of(&known.user)) {
            let user = RecordedUser { uid, gid, groups: groups.into() };
            let line = added(file, owner, &user);
            known.entry(owner).or_default().user = user;
            self.append(&mut state, &line);
        }
    }

    /// A LOCK of an owner that was noted may be blocked from now on.
    pub(super) fn note_blocked(&self, file: &FileHandle, lock: &WireLock) {
        let mut state = self.state.lock();
        let blocked = (lock.range, lock.lock_type);
        let owner = state.locks.0.get_mut(file).and_then(|owners| owners.get_mut(&lock.owner));
        if owner.is_some_and(|owner| owner.block(blocked)) {
            let line = added_blocked(file, lock.owner, lock.range, lock.lock_type);
            self.append(&mut state, &line);
        }
    }

    /// Nothing of a file is locked any more.
    pub(super) fn forget_file(&self, file: &FileHandle) {
        let mut state = self.state.lock();
        if state.locks.0.remove(file).is_some() {
            self.append(&mut state, &format!("- {}\n", hexadecimal(file)));
        }
    }

    /// Owners have no locks any more.
    pub(super) fn forget_owners(&self, owners: &[WireOwner]) {
        if owners.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.locks.forget(&owners.iter().copied().collect());
        let words: String = owners.iter().map(|owner| format!(" {}", owner.0)).collect();
        self.append(&mut state, &format!("x{words}\n"));
    }

    fn append(&self, state: &mut RecordState, lines: &str) {
        state.lines += 1;
        state.unwritten += lines;
        if state.unwritten.len() > UNWRITTEN_MAX {
            state.unwritten.clear();
            state.is_incomplete = true;
        }
        if state.lines > state.lines_checked {
            let owners = state.locks.0.values().flat_map(BTreeMap::values);
            let live: usize = owners.map(|owner| 1 + owner.blocked.len()).sum();
            state.lines_checked = LINES_KEPT.max(live * 2);
            let is_long = state.lines > state.lines_checked || state.is_incomplete;
            if is_long && self.write_all(state).is_ok() {
                return;
            }
            if is_long {
                state.lines_checked = state.lines + LINES_KEPT.max(live);
            }
        }
        if let Err(error) = state.write()
            && !std::mem::replace(&mut state.is_failure_logged, true)
        {
            warn!(%error, path = %self.path.display(),
                "locks are not recorded: if this process is killed, the server keeps them");
        }
    }

    /// Writes the file anew.
    fn write_all(&self, state: &mut RecordState) -> io::Result<()> {
        let mut text = self.server.line();
        for (file, owners) in &state.locks.0 {
            for (owner, recorded) in owners {
                text += &added(file, *owner, &recorded.user);
                for (range, lock_type) in &recorded.blocked {
                    text += &added_blocked(file, *owner, *range, *lock_type);
                }
            }
        }
        let new = self.path.with_extension("new");
        let _ = fs::remove_file(&new);
        let mut file = create_locked(&new)?.ok_or(io::ErrorKind::AlreadyExists)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&new, &self.path)?;
        state.lines = text.lines().count();
        (state.file, state.length) = (file, u64::try_from(text.len()).unwrap_or(u64::MAX));
        state.unwritten.clear();
        state.is_incomplete = false;
        Ok(())
    }
}

impl RecordState {
    /// Writes what is not written yet, or nothing of it.
    fn write(&mut self) -> io::Result<()> {
        if let Err(error) = self.file.write_all_at(self.unwritten.as_bytes(), self.length) {
            // A part of a line would spoil the next one.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += u64::try_from(self.unwritten.len()).unwrap_or(0);
        self.unwritten.clear();
        Ok(())
    }
}

impl Drop for LockRecord {
    /// A mount that ends in good order has unlocked everything, or leaves the rest to others.
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if state.locks.0.is_empty() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl RecordedServer {
    fn line(&self) -> String {
        format!("{} {} {}\n", self.address, self.port.unwrap_or(0), network_namespace())
    }

    /// Reads the first line of a record; `None` if it is of another network namespace.
    fn parse(line: &str) -> io::Result<Option<Self>> {
        let words: Vec<&str> = line.split(' ').collect();
        let parsed = match words.as_slice() {
            [address, port, namespace] => {
                address.parse().ok().zip(port.parse().ok()).zip(namespace.parse::<u64>().ok())
            }
            _ => None,
        };
        let ((address, port), namespace): ((IpAddr, u16), u64) =
            parsed.ok_or_else(|| io::Error::other("it names no server"))?;
        let server = Self { address, port: Some(port).filter(|port| *port != 0) };
        Ok((namespace == network_namespace()).then_some(server))
    }
}

impl RecordedUser {
    /// Reads the user and the groups of a line.
    fn parse(uid: &str, groups: &str) -> Option<Self> {
        let groups: Option<Vec<u32>> = groups.split(',').map(|group| group.parse().ok()).collect();
        let groups = groups?;
        let (gid, groups) = groups.split_first()?;
        Some(Self { uid: uid.parse().ok()?, gid: *gid, groups: groups.into() })
    }
}

impl RecordedOwner {
    /// Notes a LOCK that may be blocked. Whether it is new.
    fn block(&mut self, lock: (ByteRange, LockType)) -> bool {
        if self.blocked.contains(&lock) {
            return false;
        }
        if self.blocked.len() >= BLOCKED_MAX {
            self.blocked.remove(0);
        }
        self.blocked.push(lock);
        true
    }
}

impl RecordedLocks {
    /// Forgets owners, in one pass over the files: there may be thousands of both.
    fn forget(&mut self, forgotten: &BTreeSet<WireOwner>) {
        self.0.retain(|_, owners| {
            owners.retain(|owner, _| !forgotten.contains(owner));
            !owners.is_empty()
        });
    }

    /// Reads the lines of a record; the last one may be incomplete.
    fn parse(lines: &str) -> Self {
        let mut locks = Self::default();
        for line in lines.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let words: Vec<&str> = line.trim_end().split(' ').collect();
            let number = |word: &str| word.parse::<u32>().ok();
            match words.as_slice() {
                ["+", owner, uid, groups, handle] => {
                    let owner = number(owner).map(WireOwner).zip(RecordedUser::parse(uid, groups));
                    if let Some((file, (owner, user))) = parse_handle(handle).zip(owner) {
                        locks.0.entry(file).or_default().entry(owner).or_default().user = user;
                    }
                }
                ["b", owner, first, last, letter, handle] => {
                    let range = first.parse().ok().zip(last.parse().ok());
                    let range = range.and_then(|(first, last)| ByteRange::new(first, last));
                    let lock_type = if *letter == "w" { LockType::Write } else { LockType::Read };
                    if let Some(((owner, range), file)) = number(owner).zip(range).zip(parse_handle(handle))
                        && let Some(owners) = locks.0.get_mut(&file)
                        && let Some(recorded) = owners.get_mut(&WireOwner(owner))
                    {
                        recorded.block((range, lock_type));
                    }
                }
                ["-", handle] => {
                    parse_handle(handle).and_then(|file| locks.0.remove(&file));
                }
                ["x", owners @ ..] => {
                    locks.forget(&owners.iter().filter_map(|owner| number(owner)).map(WireOwner).collect());
                }
                _ => {}
            }
        }
        locks
    }
}

fn added(file: &FileHandle, owner: WireOwner, user: &RecordedUser) -> String {
    let RecordedUser { uid, gid, groups } = user;
    let groups: String = groups.iter().map(|group| format!(",{group}")).collect();
    format!("+ {} {uid} {gid}{groups} {}\n", owner.0, hexadecimal(file))
}

fn added_blocked(file: &FileHandle, owner: WireOwner, range: ByteRange, lock_type: LockType) -> String {
    let letter = if lock_type == LockType::Write { 'w' } else { 'r' };
    format!("b {} {} {} {letter} {}\n", owner.0, range.first(), range.last(), hexadecimal(file))
}

/// A handle in hexadecimal digits.
pub(super) fn hexadecimal(file: &FileHandle) -> String {
    file.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The handle in such digits.
pub(super) fn parse_handle(text: &str) -> Option<FileHandle> {
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(digits).collect();
    FileHandle::new(&bytes?).ok()
}

/// The number of this process's network namespace.
pub(super) fn network_namespace() -> u64 {
    fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino())
}

/// Looks for the locks of killed mounts, in a thread. The sockets of a process that is being killed
/// are closed one after the other, so it looks several times.
pub(super) fn begin_to_unlock_abandoned() {
    begin_to_look(&PAUSES);
}

/// Looks once, in a thread: servers may not respond.
pub(super) fn look_for_abandoned() {
    begin_to_look(&PAUSES[..1]);
}

fn begin_to_look(pauses: &'static [(u32, Duration)]) {
    let look = move || {
        for (looks, pause) in pauses {
            for _ in 0..*looks {
                thread::sleep(*pause);
                unlock_abandoned(&directory());
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("curt-locks-old".into()).spawn(look) {
        warn!(%error, "no thread for the locks of killed mounts");
    }
}

/// Unlocks what mounts of this network namespace have left that do not live any more. After a
/// failure it pauses: the server may be gone for ever.
fn unlock_abandoned(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok) {
        let first_svid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let path = entry.path();
        let retried = RETRIED.lock().get(&path).copied();
        if retried.is_some_and(|(at, _)| Instant::now() < at) {
            continue;
        }
        // Its numbers are not used by another mount while the file is there.
        let Some((first_svid, record)) = first_svid.zip(open_abandoned(&path)) else { continue };
        match unlock_recorded(record, first_svid) {
            Ok(unlocked) => {
                if let Some(count) = unlocked {
                    info!(count, record = %path.display(), "locks of a killed mount are unlocked");
                    let _ = fs::remove_file(&path);
                }
                RETRIED.lock().remove(&path);
            }
            Err(error) => {
                let [first, longest] = RETRIES;
                let pause = retried.map_or(first, |(_, pause)| pause);
                RETRIED.lock().insert(path.clone(), (Instant::now() + pause, (pause * 2).min(longest)));
                if retried.is_none() {
                    warn!(%error, record = %path.display(), "locks of a killed mount are not unlocked yet");
                }
            }
        }
    }
}

/// The record of a mount that does not live any more, locked.
fn open_abandoned(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    (file.try_lock().is_ok() && is_at(&file, path)).then_some(file)
}

fn random() -> io::Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u32::from_ne_bytes(bytes))
}

/// Returns how many owners' locks were unlocked; `None`: the record is of another network
/// namespace.
fn unlock_recorded(mut record: File, first_svid: i32) -> io::Result<Option<usize>> {
    let mut text = String::new();
    record.read_to_string(&mut text)?;
    let (first, lines) = text.split_once('\n').unwrap_or_default();
    if text.is_empty() {
        // It was killed before it locked anything.
        return Ok(Some(0));
    }
    let Some(server) = RecordedServer::parse(first)? else { return Ok(None) };
    let protocol = protocol_of_killed(&server, first_svid);
    let (security, never) = (RpcSecurity::sys(), Interrupt::never());
    // Before any request the connection counts as lost only if it cannot be made.
    let nobody = RpcCaller { credential: &RpcCredential::None, interrupt: &never };
    if protocol.has_lost_lock_connection(nobody) {
        return Err(io::Error::new(SILENCE, "the server's lock manager does not respond"));
    }
    let send = |OldOwner { file, owner, recorded }: OldOwner<'_>, request| {
        let RecordedUser { uid, gid, groups } = &recorded.user;
        let credential = security.credential(&Caller::new(*uid, *gid, groups));
        let caller = RpcCaller { credential: &credential, interrupt: &never };
        match request {
            OldLockRequest::Unlock => protocol.unlock(caller, file, owner, ByteRange::WHOLE),
            OldLockRequest::Cancel(range, lock_type) => {
                protocol.cancel_lock(caller, file, &WireLock { owner, range, lock_type })
            }
        }
    };
    RecordedLocks::parse(lines).unlock_all(&send).map(Some)
}

/// An owner of a killed mount, in a file.
#[derive(Clone, Copy, Debug)]
struct OldOwner<'a> {
    file: &'a FileHandle,
    owner: WireOwner,
    recorded: &'a RecordedOwner,
}

/// A request for what such an owner has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OldLockRequest {
    /// UNLOCK of the whole file.
    Unlock,
    /// CANCEL of a LOCK that may be blocked.
    Cancel(ByteRange, LockType),
}

impl RecordedLocks {
    /// Unlocks everything, what may be held first: others wait for it. Returns how many owners
    /// there were, or the first error: a refusal concerns one owner alone, but a server that does
    /// not respond is not asked further.
    fn unlock_all(
        &self,
        send: &(impl Fn(OldOwner<'_>, OldLockRequest) -> LockAnswer + Sync),
    ) -> io::Result<usize> {
        let all: Vec<_> = self
            .0
            .iter()
            .flat_map(|(file, owners)| {
                owners.iter().map(move |(owner, recorded)| OldOwner { file, owner: *owner, recorded })
            })
            .collect();
        let unlock = |old| confirm(send(old, OldLockRequest::Unlock));
        let held = for_each_at_once(&all, &unlock);
        if held.as_ref().is_err_and(is_silence) {
            return held.map(|()| all.len());
        }
        let blocked: Vec<_> = all.iter().filter(|old| !old.recorded.blocked.is_empty()).copied().collect();
        let cancelled = for_each_at_once(&blocked, &|old: OldOwner<'_>| {
            for (range, lock_type) in old.recorded.blocked.iter().copied() {
                reply(send(old, OldLockRequest::Cancel(range, lock_type)))?;
            }
            // knfsd finds a blocked LOCK by its exact range, and may have granted it: whatever the
            // reply, UNLOCK follows.
            unlock(old)
        });
        held.and(cancelled).map(|()| all.len())
    }
}

/// Calls `send` for all, [`UNLOCKERS`] at a time, until the server does not respond; returns the
/// first error.
fn for_each_at_once<T: Copy + Sync>(
    all: &[T],
    send: &(impl Fn(T) -> io::Result<()> + Sync),
) -> io::Result<()> {
    let next = Mutex::new((all.iter(), Ok(())));
    let work = || {
        loop {
            let Some(one) = next.lock().0.next() else { return };
            if let Err(error) = send(*one) {
                let (rest, first) = &mut *next.lock();
                if is_silence(&error) {
                    *rest = [].iter();
                }
                if first.is_ok() {
                    *first = Err(error);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..UNLOCKERS.min(all.len()) {
            scope.spawn(work);
        }
    });
    next.into_inner().1
}

/// The reply of the server.
fn reply(answer: LockAnswer) -> io::Result<LockReply> {
    answer.map_err(|error| match error {
        CallError::TimedOut { .. } | CallError::Unreachable(_) => io::Error::new(SILENCE, error),
        error => io::Error::other(error),
    })
}

/// The kind of an error of [`reply`] if there is none.
const SILENCE: io::ErrorKind = io::ErrorKind::TimedOut;

fn is_silence(error: &io::Error) -> bool {
    error.kind() == SILENCE
}

/// Whether the server has confirmed an UNLOCK. A removed file has no locks.
fn confirm(answer: LockAnswer) -> io::Result<()> {
    match reply(answer)? {
        LockReply::Granted | LockReply::Refused(LockError::Failed(Fault::Stale)) => Ok(()),
        refusal => Err(io::Error::other(format!("the server refuses an UNLOCK: {refusal:?}"))),
    }
}

/// The lock manager of a server, as the owners of a killed mount.
fn protocol_of_killed(server: &RecordedServer, first_svid: i32) -> Arc<NfsV3> {
    let transport = TcpOptions {
        timeout: UNLOCK_TIMEOUT,
        retrans: 0,
        recovery: RecoveryMode::Soft,
        connect_timeout: UNLOCK_TIMEOUT,
        reserved_port: rustix::process::geteuid().is_root(),
        ..TcpOptions::new(ServerName::Address(server.address), PortSource::Fixed(0))
    };
    // No request goes to the NFS server itself.
    let unused: Arc<dyn Transport> =
        Arc::new(TcpTransport::new(transport.clone(), Arc::new(NoTransportEvents)));
    let host_name = rustix::system::uname().nodename().to_bytes().to_vec();
    let options = NlmOptions { transport, port: server.port, host_name, timeout: UNLOCK_TIMEOUT };
    let nlm = NlmClient::new(options, Arc::new(DeadHost { first_svid }));
    NfsV3::with_locks(Arc::new(RpcClient::new(unused, Arc::new(MonotonicClock))), nlm)
}

/// The numbers of a mount that does not live any more.
#[derive(Debug)]
struct DeadHost {
    first_svid: i32,
}

impl NlmHost for DeadHost {
    fn first_svid(&self) -> i32 {
        self.first_svid
    }

    fn can_be_called(&self) -> bool {
        false
    }

    fn nsm_state(&self) -> i32 {
        0
    }

    fn prepare(&self, _: IpAddr) -> LockReadiness {
        LockReadiness::Ready
    }

    fn report(&self, _: Weak<dyn LockEvents>) {}
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

    use std::fs::OpenOptions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn server() -> RecordedServer {
        RecordedServer { address: "10.0.0.1".parse().unwrap(), port: None }
    }

    fn user(uid: u32) -> RpcCredential {
        RpcSecurity::sys().credential(&Caller::new(uid, uid + 1, &[uid + 2, uid + 3]))
    }

    fn owner(uid: u32, blocked: &[(ByteRange, LockType)]) -> RecordedOwner {
        let user = RecordedUser { uid, gid: uid + 1, groups: [uid + 2, uid + 3].into() };
        RecordedOwner { user, blocked: blocked.to_vec() }
    }

    fn range(first: u64, last: u64) -> ByteRange {
        ByteRange::new(first, last).unwrap()
    }

    #[test]
    fn a_record_in_a_full_file_system_loses_no_line() {
        let directory = tempfile::tempdir().unwrap();
        let record = LockRecord::reserve(&directory.path().join("locks"), server()).unwrap();
        let handle = |number: u32| FileHandle::new(&number.to_be_bytes()).unwrap();
        let note = |number| record.note(&handle(number), WireOwner(5), &user(10));
        let recorded = || {
            let text = fs::read_to_string(&record.path).unwrap();
            RecordedLocks::parse(text.split_once('\n').unwrap().1).0.len()
        };
        let exchange = |file| std::mem::replace(&mut record.state.lock().file, file);
        let full = || OpenOptions::new().write(true).open("/dev/full").unwrap();
        note(0);
        let kept = exchange(full());
        note(1);
        drop(exchange(kept));
        assert_eq!(recorded(), 1);
        note(2);
        assert_eq!(recorded(), 3, "the line before is written, too");
        // The file cannot be replaced: lines are appended to it.
        fs::create_dir(record.path.with_extension("new")).unwrap();
        let more = u32::try_from(4 * LINES_KEPT).unwrap();
        for number in 3..more {
            note(number);
            record.forget_file(&handle(number));
        }
        note(more);
        assert_eq!(recorded(), 4);
        assert!(record.state.lock().lines > 4 * LINES_KEPT);
        // More lines than are kept.
        let kept = exchange(full());
        (0..=more).for_each(|number| note(2 * more + number));
        assert!(record.state.lock().is_incomplete);
        drop(exchange(kept));
        fs::remove_dir(record.path.with_extension("new")).unwrap();
        (0..more).for_each(|number| note(4 * more + number));
        assert_eq!(recorded(), 4 + 2 * usize::try_from(more).unwrap() + 1, "it is written anew");
    }

    #[test]
    fn a_record_has_what_may_be_locked_and_stays_short() {
        let directory = tempfile::tempdir().unwrap();
        let record = LockRecord::reserve(&directory.path().join("locks"), server()).unwrap();
        let handle = |number: u8| FileHandle::new(&[number, 0xff]).unwrap();
        record.note(&handle(1), WireOwner(5), &user(10));
        record.note(&handle(1), WireOwner(5), &user(10));
        record.note(&handle(2), WireOwner(6), &user(20));
        record.note(&handle(2), WireOwner(7), &user(30));
        let lock = WireLock { owner: WireOwner(7), range: range(3, u64::MAX), lock_type: LockType::Write };
        record.note_blocked(&handle(2), &lock);
        record.note_blocked(&handle(2), &lock);
        record.note_blocked(&handle(9), &lock);
        record.forget_owners(&[WireOwner(6)]);
        record.forget_file(&handle(1));
        let read = || {
            let text = fs::read_to_string(&record.path).unwrap();
            let (first, lines) = text.split_once('\n').unwrap();
            assert_eq!(RecordedServer::parse(first).unwrap(), Some(server()));
            (RecordedLocks::parse(lines), text.lines().count())
        };
        let last = owner(30, &[(range(3, u64::MAX), LockType::Write)]);
        let left = RecordedLocks(HashMap::from([(handle(2), BTreeMap::from([(WireOwner(7), last)]))]));
        assert_eq!(read().0, left);
        for _ in 0..2 * LINES_KEPT {
            record.note(&handle(1), WireOwner(5), &user(10));
            record.forget_file(&handle(1));
        }
        let (locks, lines) = read();
        assert_eq!(locks, left);
        assert!(lines <= LINES_KEPT + 1, "{lines}");
        let path = record.path.clone();
        assert!(open_abandoned(&path).is_none(), "it is still locked");
        record.forget_file(&handle(2));
        drop(record);
        assert!(!path.exists());
    }

    #[test]
    fn many_owners_are_forgotten_in_one_pass_over_many_files() {
        let directory = tempfile::tempdir().unwrap();
        let record = LockRecord::reserve(&directory.path().join("locks"), server()).unwrap();
        let kept = WireOwner(0);
        for number in 0..20_000_u32 {
            record.note(&FileHandle::new(&number.to_be_bytes()).unwrap(), kept, &user(10));
        }
        let owners: Vec<_> = (1..=2000).map(WireOwner).collect();
        for owner in &owners {
            record.note(&FileHandle::new(&[0; 5]).unwrap(), *owner, &user(10));
        }
        record.forget_owners(&owners);
        let text = fs::read_to_string(&record.path).unwrap();
        let read = RecordedLocks::parse(text.split_once('\n').unwrap().1);
        // Each line is a pass, here and where the record is read.
        assert_eq!(text.matches("\nx ").count(), 1);
        let state = record.state.lock();
        assert_eq!(read, state.locks);
        assert_eq!(read.0.len(), 20_000);
        assert!(read.0.values().all(|owners| owners.keys().eq([&kept])));
    }

    #[test]
    fn blocked_locks_are_bounded() {
        let mut recorded = RecordedOwner::default();
        for first in 0..=BLOCKED_MAX as u64 {
            assert!(recorded.block((range(first, first), LockType::Read)));
        }
        assert_eq!(recorded.blocked.len(), BLOCKED_MAX);
        assert_eq!(recorded.blocked[0].0, range(1, 1), "the oldest is forgotten");
    }

    // SEMANTICS: lock-14.
    #[test]
    fn the_numbers_of_a_killed_mount_are_not_used_before_its_locks_are_unlocked() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("locks");
        let reserve = || LockRecord::reserve_from(BLOCKS - 1, &directory, server()).unwrap();
        let killed = reserve();
        let (svid, path) = (killed.first_svid(), killed.path.clone());
        assert!(svid.checked_add_unsigned(LOCK_OWNERS_MAX).is_some());
        killed.note(&FileHandle::new(&[1]).unwrap(), WireOwner(5), &user(10));
        let text = fs::read_to_string(&path).unwrap();
        let living = reserve();
        assert_eq!(living.first_svid(), FIRST, "the next one, of all");
        drop(killed);
        let other = reserve();
        assert!(other.first_svid().abs_diff(living.first_svid()) > LOCK_OWNERS_MAX);
        assert!(other.first_svid().abs_diff(svid) > LOCK_OWNERS_MAX, "the killed mount's are not free");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        drop(open_abandoned(&path).unwrap());
        assert!(open_abandoned(&living.path).is_none());
        fs::remove_file(&path).unwrap();
        assert_eq!(reserve().first_svid(), svid);
    }

    #[test]
    fn there_is_no_block_for_two_mounts_and_none_where_others_can_write() {
        let directory = tempfile::tempdir().unwrap();
        let locks = directory.path().join("locks");
        create_directory(&locks).unwrap();
        for block in 0..BLOCKS {
            File::create(locks.join((FIRST + (block * BLOCK).cast_signed()).to_string())).unwrap();
        }
        assert!(LockRecord::reserve(&locks, server()).is_err());
        let public = directory.path().join("public");
        create_directory(&public).unwrap();
        fs::set_permissions(&public, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(LockRecord::reserve(&public, server()).is_err());
        assert!(LockRecord::reserve(&public.join("locks"), server()).is_err());
    }

    #[test]
    fn a_record_of_another_network_namespace_is_left_alone_and_nonsense_is_an_error() {
        let other = format!("10.0.0.1 7 {}", network_namespace() + 1);
        assert_eq!(RecordedServer::parse(&other).unwrap(), None);
        for bad in ["", "10.0.0.1 7", "nowhere 7 1", "10.0.0.1 70000 1", "10.0.0.1 7 x"] {
            assert!(RecordedServer::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_a_confirmed_unlock_counts() {
        let refused = |error| Ok(LockReply::Refused(error));
        assert!(confirm(Ok(LockReply::Granted)).is_ok());
        assert!(confirm(refused(LockError::Failed(Fault::Stale))).is_ok());
        let replies = [LockReply::Denied, LockReply::Grace, LockReply::Blocked];
        assert!(replies.into_iter().all(|reply| confirm(Ok(reply)).is_err()));
        assert!(confirm(refused(LockError::NoLocks)).is_err());
    }

    fn two_thousand_owners() -> RecordedLocks {
        let blocked = owner(0, &[(range(0, 9), LockType::Write)]);
        let of_file = || (0..1000).map(|number| (WireOwner(number), blocked.clone())).collect();
        RecordedLocks((0..2).map(|number| (FileHandle::new(&[number]).unwrap(), of_file())).collect())
    }

    // SEMANTICS: lock-14.
    #[test]
    fn a_refused_unlock_of_a_killed_mount_keeps_no_other_lock() {
        let refused = FileHandle::new(&[1]).unwrap();
        let unlocked = Mutex::new(0);
        let result = two_thousand_owners().unlock_all(&|old: OldOwner<'_>, request| {
            if *old.file == refused {
                return Ok(LockReply::Refused(LockError::NoLocks));
            }
            *unlocked.lock() += u32::from(request == OldLockRequest::Unlock);
            Ok(LockReply::Granted)
        });
        assert!(result.is_err_and(|error| !is_silence(&error)), "it is tried again");
        // Each has two: before its CANCEL and after it.
        assert_eq!(*unlocked.lock(), 2 * 1000);
    }

    #[test]
    fn a_server_that_does_not_respond_is_not_asked_for_each_old_lock() {
        let asked = Mutex::new(0);
        let result = two_thousand_owners().unlock_all(&|_: OldOwner<'_>, _| {
            *asked.lock() += 1;
            Err(CallError::TimedOut { softerr: false })
        });
        assert!(result.is_err_and(|error| is_silence(&error)));
        assert!(*asked.lock() <= UNLOCKERS, "{}", asked.lock());
    }

    // SEMANTICS: lock-14.
    #[test]
    fn what_a_killed_mount_holds_is_unlocked_before_its_blocked_requests_are_cancelled() {
        let (sent, together) = (Mutex::new(Vec::new()), std::sync::Barrier::new(UNLOCKERS));
        let count = two_thousand_owners().unlock_all(&|old: OldOwner<'_>, request| {
            let number = {
                let mut sent = sent.lock();
                sent.push((old.file.clone(), old.owner, request));
                sent.len()
            };
            if number <= UNLOCKERS {
                together.wait();
            }
            Ok(LockReply::Granted)
        });
        assert_eq!(count.unwrap(), 2000);
        let sent = sent.into_inner();
        let (held, rest) = sent.split_at(2000);
        assert!(held.iter().all(|(_, _, request)| *request == OldLockRequest::Unlock));
        for (file, owner, _) in held {
            let own = rest.iter().filter(|sent| (&sent.0, &sent.1) == (file, owner));
            let requests: Vec<_> = own.map(|(_, _, request)| *request).collect();
            let cancel = OldLockRequest::Cancel(range(0, 9), LockType::Write);
            assert_eq!(requests, [cancel, OldLockRequest::Unlock]);
        }
    }

    #[test]
    fn a_record_that_was_cut_anywhere_is_read_as_far_as_it_goes() {
        let text = "+ 5 10 11,12 01ff\n+ 6 20 21 02\nb 6 1 2 r 02\n- 01ff\nx 6\n";
        for cut in 0..=text.len() {
            let count = RecordedLocks::parse(&text[..cut]).0.len();
            assert!(count <= 2, "{cut}");
        }
        assert_eq!(RecordedLocks::parse(text), RecordedLocks::default());
        let nonsense = "+ 5 10 11 x0\n+ 5 10 11,x 00\n+ 5 10 , 00\n+ x 1 2 00\n+ 1 2 00\nb 5 1 2 w 00\nb 5 2 1 w 00\nb 6 1 2 w 00\nx\n";
        let expected = owner(10, &[(range(1, 2), LockType::Write)]);
        let text = format!("+ 5 10 11,12,13 00\n{nonsense}");
        let file = FileHandle::new(&[0]).unwrap();
        let expected = RecordedLocks(HashMap::from([(file, BTreeMap::from([(WireOwner(5), expected)]))]));
        assert_eq!(RecordedLocks::parse(&text), expected);
    }
}
