//! The record of a mount's locks at the server, for the case that its process is killed.
//!
//! Servers free the locks of a client only if the client's host restarts, and then of all its
//! mounts. So each mount writes to a file in the control directory which owners may have locked
//! which files. Another mount of the same network namespace, at the latest the next one, unlocks
//! them one by one. A file is named after the network namespace and the first number of the mount's
//! owners, whose reservation shows whether the mount lives.
//!
//! The first line is `SERVER PORT` (0: by its portmapper). Further lines: `+ OWNER UID GID HANDLE`:
//! a lock may be held; `- HANDLE`: none of this file; `x OWNER`: none of this owner.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use curt_client::Caller;
use curt_client::caller::RpcSecurity;
use curt_client::protocol::v3::NfsV3;
use curt_client::protocol::v3::nlm::{NlmClient, NlmHost, NlmOptions};
use curt_client::protocol::{LockEvents, Protocol as _, RpcCaller, RpcClient, WireOwner};
use curt_client::threads::MonotonicClock;
use curt_observe::control;
use curt_rpc::auth::RpcCredential;
use curt_rpc::client::{
    Interrupt, NoTransportEvents, PortSource, RecoveryMode, ServerName, TcpOptions, TcpTransport, Transport,
};
use curt_types::{ByteRange, FileHandle};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::svid_block::SvidBlock;

/// Lines beyond which a file is written anew, besides twice as many as there are locks.
const LINES_KEPT: usize = 1024;

/// Timeout of each request for an old lock.
const UNLOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The pauses before each look for locks of killed mounts.
const PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(5)];

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
    path: PathBuf,
    state: Mutex<RecordState>,
}

#[derive(Debug, Default)]
struct RecordState {
    /// Created with the first lock. `None` as well if it cannot be written.
    file: Option<File>,
    is_failure_logged: bool,
    lines: usize,
    locks: RecordedLocks,
}

/// The owners of locks by file, with the user and group who requested them.
#[derive(Debug, Default, PartialEq, Eq)]
struct RecordedLocks(HashMap<FileHandle, BTreeMap<WireOwner, (u32, u32)>>);

/// The directory of records.
pub(super) fn directory() -> PathBuf {
    control::directory().join("locks")
}

impl LockRecord {
    pub(super) fn new(directory: &Path, first_svid: i32, server: RecordedServer) -> Self {
        let path = directory.join(format!("{}-{first_svid}", network_namespace()));
        Self { server, path, state: Mutex::default() }
    }

    /// An owner may lock a file from now on.
    pub(super) fn note(&self, file: &FileHandle, owner: WireOwner, credential: &RpcCredential) {
        let (uid, gid) = match credential {
            RpcCredential::Sys(sys) => (sys.uid, sys.gid),
            RpcCredential::None | RpcCredential::Context(_) => (0, 0),
        };
        let mut state = self.state.lock();
        if state.locks.0.entry(file.clone()).or_default().insert(owner, (uid, gid)) != Some((uid, gid)) {
            let line = added(file, owner, (uid, gid));
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
        let mut state = self.state.lock();
        let mut lines = String::new();
        for owner in owners {
            state.locks.forget(*owner);
            let _ = writeln!(lines, "x {}", owner.0);
        }
        if state.file.is_some() && !lines.is_empty() {
            self.append(&mut state, &lines);
        }
    }

    fn append(&self, state: &mut RecordState, lines: &str) {
        state.lines += 1;
        let live: usize = state.locks.0.values().map(BTreeMap::len).sum();
        let is_long = state.lines > LINES_KEPT.max(live * 2);
        let written = match &mut state.file {
            Some(file) if !is_long => file.write_all(lines.as_bytes()),
            _ => self.write_all(state),
        };
        if let Err(error) = written
            && !std::mem::replace(&mut state.is_failure_logged, true)
        {
            warn!(%error, path = %self.path.display(),
                "locks are not recorded: if this process is killed, the server keeps them");
        }
    }

    /// Writes the file anew.
    fn write_all(&self, state: &mut RecordState) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or_else(|| Path::new("/"));
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let mut text = format!("{} {}\n", self.server.address, self.server.port.unwrap_or(0));
        for (file, owners) in &state.locks.0 {
            owners.iter().for_each(|(owner, ids)| text += &added(file, *owner, *ids));
        }
        let new = self.path.with_extension("new");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&new, &self.path)?;
        state.lines = text.lines().count();
        state.file = Some(file);
        Ok(())
    }
}

impl Drop for LockRecord {
    /// A mount that ends in good order has unlocked everything, or leaves the rest to others.
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if state.file.is_some() && state.locks.0.is_empty() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl RecordedLocks {
    fn forget(&mut self, owner: WireOwner) {
        self.0.retain(|_, owners| {
            owners.remove(&owner);
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
                ["+", owner, uid, gid, handle] => {
                    let numbers = number(owner).zip(number(uid).zip(number(gid)));
                    if let Some((file, (owner, ids))) = parse_handle(handle).zip(numbers) {
                        locks.0.entry(file).or_default().insert(WireOwner(owner), ids);
                    }
                }
                ["-", handle] => {
                    parse_handle(handle).and_then(|file| locks.0.remove(&file));
                }
                ["x", owner] => {
                    number(owner).into_iter().for_each(|owner| locks.forget(WireOwner(owner)));
                }
                _ => {}
            }
        }
        locks
    }
}

fn added(file: &FileHandle, owner: WireOwner, ids: (u32, u32)) -> String {
    let (uid, gid) = ids;
    format!("+ {} {uid} {gid} {}\n", owner.0, hexadecimal(file))
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
fn network_namespace() -> u64 {
    fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino())
}

/// Looks for the locks of killed mounts, in a thread. The sockets of a process that is being killed
/// are closed one after the other, so it looks several times.
pub(super) fn begin_to_unlock_abandoned() {
    let look = || {
        for pause in PAUSES {
            thread::sleep(pause);
            unlock_abandoned(&directory());
        }
    };
    if let Err(error) = thread::Builder::new().name("curt-locks-old".into()).spawn(look) {
        warn!(%error, "no thread for the locks of killed mounts");
    }
}

/// Unlocks what mounts of this network namespace have left that do not live any more.
fn unlock_abandoned(directory: &Path) {
    let prefix = format!("{}-", network_namespace());
    for entry in fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let svid = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.parse().ok());
        // Its numbers must not be used by another mount meanwhile.
        let Some((first_svid, _reservation)) =
            svid.and_then(|svid| Some((svid, SvidBlock::reserve_at(svid)?)))
        else {
            continue;
        };
        match unlock_recorded(&entry.path(), first_svid) {
            Ok(count) => {
                info!(count, record = %entry.path().display(), "locks of a killed mount are unlocked");
                let _ = fs::remove_file(entry.path());
            }
            Err(error) => {
                warn!(%error, record = %entry.path().display(), "locks of a killed mount are not unlocked");
            }
        }
    }
}

fn unlock_recorded(path: &Path, first_svid: i32) -> io::Result<usize> {
    let text = fs::read_to_string(path)?;
    let (first, lines) = text.split_once('\n').unwrap_or_default();
    let server = first.split_once(' ').and_then(|(address, port)| {
        let port: u16 = port.parse().ok()?;
        Some(RecordedServer { address: address.parse().ok()?, port: Some(port).filter(|port| *port != 0) })
    });
    let server = server.ok_or_else(|| io::Error::other("it names no server"))?;
    let locks = RecordedLocks::parse(lines);
    let name = ServerName::Address(server.address);
    let transport = TcpOptions {
        timeout: UNLOCK_TIMEOUT,
        retrans: 0,
        recovery: RecoveryMode::Soft,
        connect_timeout: UNLOCK_TIMEOUT,
        reserved_port: rustix::process::geteuid().is_root(),
        ..TcpOptions::new(name, PortSource::Fixed(0))
    };
    // No request goes to the NFS server itself.
    let unused: Arc<dyn Transport> =
        Arc::new(TcpTransport::new(transport.clone(), Arc::new(NoTransportEvents)));
    let host_name = rustix::system::uname().nodename().to_bytes().to_vec();
    let options = NlmOptions { transport, port: server.port, host_name, timeout: UNLOCK_TIMEOUT };
    let nlm = NlmClient::new(options, Arc::new(DeadHost { first_svid }));
    let protocol = NfsV3::with_locks(Arc::new(RpcClient::new(unused, Arc::new(MonotonicClock))), nlm);
    let (security, never) = (RpcSecurity::sys(), Interrupt::never());
    let mut count = 0;
    for (file, owners) in &locks.0 {
        for (owner, (uid, gid)) in owners {
            let credential = security.credential(&Caller::new(*uid, *gid, &[]));
            let caller = RpcCaller { credential: &credential, interrupt: &never };
            let reply = protocol.unlock(caller, file, *owner, ByteRange::WHOLE);
            reply.map_err(io::Error::other)?;
            count += 1;
        }
    }
    Ok(count)
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

    fn monitor(&self) {}

    fn report(&self, _: Weak<dyn LockEvents>) {}
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

    use super::*;

    fn server() -> RecordedServer {
        RecordedServer { address: "10.0.0.1".parse().unwrap(), port: None }
    }

    fn user(uid: u32) -> RpcCredential {
        RpcSecurity::sys().credential(&Caller::new(uid, uid + 1, &[]))
    }

    #[test]
    fn a_record_has_what_may_be_locked_and_stays_short() {
        let directory = tempfile::tempdir().unwrap();
        let record = LockRecord::new(directory.path(), 77, server());
        let handle = |number: u8| FileHandle::new(&[number, 0xff]).unwrap();
        record.note(&handle(1), WireOwner(5), &user(10));
        record.note(&handle(1), WireOwner(5), &user(10));
        record.note(&handle(2), WireOwner(6), &user(20));
        record.note(&handle(2), WireOwner(7), &user(30));
        record.forget_owners(&[WireOwner(6)]);
        record.forget_file(&handle(1));
        let read = || {
            let text = fs::read_to_string(&record.path).unwrap();
            let (first, lines) = text.split_once('\n').unwrap();
            assert_eq!(first, "10.0.0.1 0");
            (RecordedLocks::parse(lines), text.lines().count())
        };
        let left = RecordedLocks(HashMap::from([(handle(2), BTreeMap::from([(WireOwner(7), (30, 31))]))]));
        assert_eq!(read().0, left);
        for _ in 0..2 * LINES_KEPT {
            record.note(&handle(1), WireOwner(5), &user(10));
            record.forget_file(&handle(1));
        }
        let (locks, lines) = read();
        assert_eq!(locks, left);
        assert!(lines <= LINES_KEPT + 1, "{lines}");
        let path = record.path.clone();
        record.forget_file(&handle(2));
        drop(record);
        assert!(!path.exists());
    }

    #[test]
    fn a_record_that_was_cut_anywhere_is_read_as_far_as_it_goes() {
        let text = "+ 5 10 11 01ff\n+ 6 20 21 02\n- 01ff\nx 6\n";
        for cut in 0..=text.len() {
            let count = RecordedLocks::parse(&text[..cut]).0.len();
            assert!(count <= 2, "{cut}");
        }
        assert_eq!(RecordedLocks::parse(text), RecordedLocks::default());
        assert_eq!(RecordedLocks::parse("+ 5 10 11 0\n+ x 1 2 00\n+ 1 2 00\nnonsense\n"), {
            RecordedLocks(HashMap::from([(
                FileHandle::new(&[0]).unwrap(),
                BTreeMap::from([(WireOwner(5), (10, 11))]),
            )]))
        });
    }
}
