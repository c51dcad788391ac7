//! Calls of NLM and NSM to a server over a tree in memory, with a scripted clock.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::path::Path;

use curt_observe::ServerCounters;
use curt_proto::mount3::{self, DirPath, MountReply};
use curt_proto::nfs3::{
    self, CreateArguments, CreateHow, CreateOk, DirOpArgs, Filename, NfsFh3, NfsProcedure, NfsResult, Sattr,
    SetattrArguments, WccData,
};
use curt_proto::nlm4::{
    self, NETOBJ_MAX, NlmCancelArguments, NlmHolder, NlmLock, NlmLockArguments, NlmNotify, NlmShare,
    NlmShareAccess, NlmShareArguments, NlmShareResult, NlmTestReply, NlmTestResult, NlmUnlockArguments,
    ShareDeny,
};
use curt_proto::nsm::{self, NsmProcedure, StateChange};
use curt_rpc::auth::{AuthSysCredential, AuthSysGids, MachineName, RpcCredential};
use curt_rpc::clock::{ScriptedTime, TimeSource};
use curt_rpc::message::{CallMessage as Call, call_record};
use curt_rpc::server::RpcService;
use curt_types::{ByteRange, LockType};
use curt_vfs::{MemoryOptions, MemoryVfs};
use curt_xdr::Opaque;

use super::deferred::WantedFromFile;
use super::*;
use crate::exports::{ExportDefinition, ExportRules, Squash, SystemNames};
use crate::file_handle::HandleContents;
use crate::service::NfsServiceConfig;
use crate::state::FileKey;

const GRACE: Duration = Duration::from_secs(90);
const NLM: u32 = nlm4::PROGRAM;

type Job = Box<dyn FnOnce() + Send>;

/// Keeps calls until a test takes them, and runs jobs at once, each after those of the test.
#[derive(Default)]
struct Peers(Mutex<Vec<PeerCall>>, Mutex<Vec<Job>>);

impl LockPeers for Peers {
    fn call(&self, call: PeerCall) -> bool {
        self.0.lock().push(call);
        true
    }

    fn run(&self, job: Job) {
        let before = std::mem::take(&mut *self.1.lock());
        before.into_iter().chain([job]).for_each(|job| job());
    }

    fn watch(&self, _: IpAddr, _: bool) {}
}

/// A server, and the calls that it makes.
struct Server {
    service: NfsService,
    peers: Arc<Peers>,
    time: Arc<ScriptedTime>,
    notices: RestartNotices,
    file: Vec<u8>,
}

/// A client's host and the user who calls.
#[derive(Clone, Copy)]
struct From {
    host: u8,
    port: u16,
    uid: u32,
    /// The server's address.
    local: [u8; 4],
}

const A: From = From { host: 1, port: 700, uid: 1000, local: [10, 0, 0, 9] };
const B: From = From { host: 2, ..A };

impl From {
    fn peer(self) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, self.host], self.port))
    }

    fn ip(self) -> IpAddr {
        self.peer().ip()
    }
}

/// A request about a lock, with the usual values.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    cookie: &'a [u8],
    svid: i32,
    oh: &'a [u8],
    file: Option<&'a [u8]>,
    offset: u64,
    length: u64,
    exclusive: bool,
    block: bool,
    reclaim: bool,
    state: i32,
}

const WHOLE: Wanted<'static> = Wanted {
    cookie: b"cookie",
    svid: 1,
    oh: b"owner",
    file: None,
    offset: 0,
    length: 0,
    exclusive: true,
    block: false,
    reclaim: false,
    state: 3,
};

impl Server {
    fn new() -> Self {
        Self::with(ExportRules { squash: Squash::None, ..ExportRules::default() }, None)
    }

    fn with(rules: ExportRules, state: Option<&Path>) -> Self {
        let vfs = Arc::new(MemoryVfs::new(MemoryOptions::default()));
        let exports = vec![ExportDefinition::for_everyone(b"/memory".to_vec(), vfs, rules)];
        let state = state.map_or_else(
            || PersistentState::with_key([9; 16]),
            |directory| PersistentState::open(directory).unwrap(),
        );
        let setup = NfsServiceConfig { state, exports, counters: Arc::new(ServerCounters::default()) };
        let time = ScriptedTime::new();
        let clock: TimeSource = time.clock();
        let service = NfsService::with_environment(setup, Box::new(SystemNames), clock).unwrap();
        let peers = Arc::new(Peers::default());
        let serving =
            LockServing { peers: Arc::<Peers>::clone(&peers), host_name: b"server".to_vec(), grace: GRACE };
        let notices = service.serve_locks(serving).unwrap();
        let mut server = Self { service, peers, time, notices, file: Vec::new() };
        server.file = server.create(rules.read_only);
        server
    }

    /// A file of user 1000, mode 0640.
    fn create(&self, read_only: bool) -> Vec<u8> {
        let path = DirPath(Opaque::new(b"/memory").unwrap());
        let mounted = self.call(A, (mount3::PROGRAM, 3, 1), &path).unwrap();
        let MountReply::Ok(mounted) = decode_all(&mounted).unwrap() else { panic!("not mounted") };
        if read_only {
            return mounted.root.as_bytes().to_vec();
        }
        let root = From { uid: 0, ..A };
        let place = DirOpArgs { directory: mounted.root, name: Filename::new(b"file").unwrap() };
        let set = Sattr { mode: Some(0o640), uid: Some(1000), gid: Some(1000), ..Sattr::default() };
        let arguments = CreateArguments { place, how: CreateHow::Unchecked(set) };
        let create = (nfs3::PROGRAM, 3, NfsProcedure::Create.number());
        let created = self.call(root, create, &arguments).unwrap();
        let NfsResult::Ok(created) = decode_all::<NfsResult<CreateOk, WccData>>(&created).unwrap() else {
            panic!("not created")
        };
        created.object.unwrap().as_bytes().to_vec()
    }

    fn call(
        &self,
        from: From,
        (program, version, procedure): (u32, u32, u32),
        arguments: &dyn Encode,
    ) -> Result<Vec<u8>, CallFailure> {
        let credential = RpcCredential::Sys(AuthSysCredential {
            machine_name: MachineName::new(b"client"),
            uid: from.uid,
            gid: from.uid,
            groups: AuthSysGids::first_of(&[]),
        });
        let record = call_record(1, program, version, procedure, &credential, arguments);
        let call = Call::decode(&record[4..]).unwrap();
        let mut reply = Vec::new();
        let mut context = CallContext::detached(from.peer(), (from.local, 2049).into());
        self.service.call(&call, &mut context, &mut reply).map(|()| reply)
    }

    fn nlm(&self, from: From, procedure: NlmProcedure, arguments: &dyn Encode) -> Vec<u8> {
        self.call(from, (NLM, 4, procedure.number()), arguments).unwrap()
    }

    fn wire<'a>(&'a self, wanted: Wanted<'a>) -> NlmLock<'a> {
        NlmLock {
            caller_name: Opaque::new(b"client").unwrap(),
            fh: Opaque::new(wanted.file.unwrap_or(&self.file)).unwrap(),
            oh: Opaque::new(wanted.oh).unwrap(),
            svid: wanted.svid,
            offset: wanted.offset,
            length: wanted.length,
        }
    }

    fn lock_by(&self, from: From, procedure: NlmProcedure, wanted: Wanted<'_>) -> Vec<u8> {
        let Wanted { cookie, block, exclusive, reclaim, state, .. } = wanted;
        let cookie = Opaque::new(cookie).unwrap();
        let lock = self.wire(wanted);
        self.nlm(from, procedure, &NlmLockArguments { cookie, block, exclusive, lock, reclaim, state })
    }

    fn lock(&self, from: From, wanted: Wanted<'_>) -> NlmStat4 {
        status(&self.lock_by(from, NlmProcedure::Lock, wanted), wanted.cookie)
    }

    fn unlock(&self, from: From, wanted: Wanted<'_>) -> NlmStat4 {
        let cookie = Opaque::new(wanted.cookie).unwrap();
        let arguments = NlmUnlockArguments { cookie, lock: self.wire(wanted) };
        status(&self.nlm(from, NlmProcedure::Unlock, &arguments), wanted.cookie)
    }

    fn cancel(&self, from: From, wanted: Wanted<'_>) -> NlmStat4 {
        let Wanted { cookie, block, exclusive, .. } = wanted;
        let cookie = Opaque::new(cookie).unwrap();
        let arguments = NlmCancelArguments { cookie, block, exclusive, lock: self.wire(wanted) };
        status(&self.nlm(from, NlmProcedure::Cancel, &arguments), wanted.cookie)
    }

    fn test(&self, from: From, wanted: Wanted<'_>) -> Result<NlmStat4, (u64, u64, i32)> {
        let Wanted { cookie, exclusive, .. } = wanted;
        let cookie = Opaque::new(cookie).unwrap();
        let arguments = NlmTestArguments { cookie, exclusive, lock: self.wire(wanted) };
        let reply = self.nlm(from, NlmProcedure::Test, &arguments);
        let result: NlmTestResult<'_> = decode_all(&reply).unwrap();
        assert_eq!(result.cookie, cookie);
        match result.reply {
            NlmTestReply::Denied(NlmHolder { svid, offset, length, oh, .. }) => {
                assert_eq!(oh.bytes(), b"owner");
                Err((offset, length, svid))
            }
            NlmTestReply::Other(status) => Ok(status),
        }
    }

    fn share(&self, from: From, procedure: NlmProcedure, modes: (NlmShareAccess, ShareDeny)) -> NlmStat4 {
        self.share_by(from, procedure, modes, false)
    }

    fn share_by(
        &self,
        from: From,
        procedure: NlmProcedure,
        modes: (NlmShareAccess, ShareDeny),
        reclaim: bool,
    ) -> NlmStat4 {
        let share = NlmShare {
            caller_name: Opaque::new(b"client").unwrap(),
            fh: Opaque::new(&self.file).unwrap(),
            oh: Opaque::new(b"owner").unwrap(),
            access: modes.0,
            deny: modes.1,
        };
        let cookie = Opaque::new(b"cookie").unwrap();
        let reply = self.nlm(from, procedure, &NlmShareArguments { cookie, share, reclaim });
        let result: NlmShareResult<'_> = decode_all(&reply).unwrap();
        assert_eq!((result.cookie, result.sequence), (cookie, 0));
        result.status
    }

    /// The callbacks that were sent.
    fn granted(&self) -> Vec<(IpAddr, GrantedLock)> {
        let calls = std::mem::take(&mut *self.peers.0.lock());
        let granted = calls.into_iter().filter_map(|call| match call.kind {
            PeerCallKind::Granted(granted) => {
                assert_eq!(call.local, Some("10.0.0.9".parse().unwrap()));
                Some((call.peer, granted))
            }
            PeerCallKind::Result { .. } => None,
        });
        granted.collect()
    }

    fn answer(&self, from: From, granted: &GrantedLock, outcome: GrantedCallOutcome) {
        self.service.grant_answered(from.ip(), granted.id, outcome, Duration::from_millis(1));
    }

    /// A request for the whole file that waits for a delegation.
    fn deferred(&self, from: From, wanted: Wanted<'_>) -> Arc<DeferredRequest> {
        let HandleContents { file_system, node, .. } = self.service.key.verify(&self.file).unwrap();
        let (file, lock) = (
            FileKey { file_system, node },
            WantedFromFile::Lock { svid: wanted.svid, range: ByteRange::WHOLE },
        );
        let request = DeferredRequest::new(from.ip(), wanted.oh, file, lock);
        self.service.lock_manager.deferred.insert(request)
    }

    fn notify(&self, from: From, state: i32) {
        let change = StateChange { name: Opaque::new(b"whoever").unwrap(), state };
        self.call(from, (nsm::PROGRAM, 1, NsmProcedure::Notify.number()), &change).unwrap();
    }

    fn free_all(&self, from: From, name: &[u8]) {
        let notify = NlmNotify { name: Opaque::new(name).unwrap(), state: 5 };
        assert!(self.nlm(from, NlmProcedure::FreeAll, &notify).is_empty());
    }
}

/// Arguments that are encoded already.
struct Raw(Vec<u8>);

impl Encode for Raw {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

fn status(reply: &[u8], cookie: &[u8]) -> NlmStat4 {
    let result: NlmResult<'_> = decode_all(reply).unwrap();
    assert_eq!(result.cookie.bytes(), cookie);
    result.status
}

use NlmStat4::{Blocked, Denied, DeniedGracePeriod, Failed, Fbig, Granted, Rofs, StaleFh};

#[test]
fn locks_exclude_other_hosts_processes_and_owners_and_are_found_by_test() {
    let server = Server::new();
    let part = Wanted { offset: 10, length: 5, ..WHOLE };
    assert_eq!(server.lock(A, part), Granted);
    assert_eq!(server.lock(A, part), Granted, "its own");
    for (from, other) in [
        (B, WHOLE),
        (A, Wanted { svid: 2, ..WHOLE }),
        (A, Wanted { oh: b"other", ..WHOLE }),
        (B, Wanted { exclusive: false, offset: 14, length: 1, ..WHOLE }),
    ] {
        assert_eq!(server.lock(from, other), Denied);
        assert_eq!(server.test(from, other), Err((10, 5, 1)));
    }
    assert_eq!(server.test(A, WHOLE), Ok(Granted));
    assert_eq!(server.lock(B, Wanted { offset: 15, ..WHOLE }), Granted, "beside it");
    assert_eq!(server.unlock(B, part), Granted, "what it has not locked");
    assert_eq!(server.lock(B, part), Denied);
    assert_eq!(server.unlock(A, Wanted { length: 2, ..part }), Granted);
    assert_eq!(server.test(B, part), Err((12, 3, 1)));
    assert_eq!(server.unlock(A, WHOLE), Granted);
    assert_eq!(server.lock(B, WHOLE), Granted);
}

// SEMANTICS: lockd-14.
#[test]
fn a_host_that_repeats_its_request_has_its_turn_without_being_called() {
    let server = Server::new();
    let (blocking, repeated) = (Wanted { block: true, ..WHOLE }, Wanted { cookie: b"wait0001", ..WHOLE });
    assert_eq!(server.lock(A, WHOLE), Granted);
    assert_eq!(server.lock(B, repeated), Blocked);
    let second = Wanted { svid: 2, ..blocking };
    assert_eq!(server.lock(A, second), Blocked);
    assert_eq!(server.unlock(A, WHOLE), Granted);
    assert!(server.granted().is_empty(), "it is not called, and nobody else before it");
    assert_eq!(server.lock(A, Wanted { svid: 3, ..WHOLE }), Denied, "the range is reserved");
    assert_eq!(server.lock(B, repeated), Granted);
    assert_eq!(server.unlock(B, WHOLE), Granted);
    assert_eq!(server.granted().len(), 1);
    // A request of this kind that is cancelled has no place any more.
    assert_eq!(server.lock(B, repeated), Blocked);
    assert_eq!(server.cancel(B, repeated), Granted);
    assert_eq!(server.unlock(A, second), Granted);
    assert_eq!(server.lock(A, WHOLE), Granted);
    assert_eq!(server.lock(B, Wanted { reclaim: true, ..repeated }), DeniedGracePeriod);
}

// SEMANTICS: lockd-14.
#[test]
fn a_host_that_callbacks_do_not_reach_has_its_turn_if_it_repeats_its_request() {
    let server = Server::new();
    let waiting = Wanted { block: true, cookie: b"wait0001", ..WHOLE };
    assert_eq!(server.lock(A, WHOLE), Granted);
    assert_eq!(server.lock(B, waiting), Blocked);
    assert_eq!(server.unlock(A, WHOLE), Granted);
    let [(_, granted)] = &server.granted()[..] else { panic!("a callback") };
    server.answer(B, granted, GrantedCallOutcome::Undelivered);
    assert_eq!(server.lock(A, WHOLE), Granted);
    // It has a place, and gets no callback.
    assert_eq!(server.lock(B, waiting), Denied);
    assert_eq!(
        server.lock(B, Wanted { cookie: b"other", svid: 9, ..waiting }),
        Blocked,
        "of another program"
    );
    assert_eq!(server.unlock(A, WHOLE), Granted);
    assert_eq!(server.lock(A, WHOLE), Denied, "the range is reserved");
    assert_eq!(server.lock(B, waiting), Granted);
    assert!(server.granted().is_empty());
    assert_eq!(server.unlock(B, WHOLE), Granted);
    let [(_, granted)] = &server.granted()[..] else { panic!("a callback of the other program") };
    server.answer(B, granted, GrantedCallOutcome::Accepted);
    // A callback that arrives shows that it can be called again, as the time does.
    assert_eq!(server.lock(B, waiting), Blocked);
    assert_eq!(server.cancel(B, waiting), Granted);
    server.answer(B, granted, GrantedCallOutcome::Undelivered);
    assert_eq!(server.lock(B, waiting), Denied);
    assert_eq!(server.cancel(B, waiting), Granted);
    server.time.advance(Duration::from_secs(600));
    assert_eq!(server.lock(B, waiting), Blocked);
}

#[test]
fn ranges_end_at_the_largest_offset_and_not_beyond() {
    let server = Server::new();
    for bits in [31, 32, 63] {
        let edge = 1_u64 << bits;
        let over = Wanted { offset: edge - 1, length: 2, ..WHOLE };
        assert_eq!(server.lock(A, over), Granted);
        assert_eq!(server.test(B, Wanted { offset: edge, length: 1, ..WHOLE }), Err((edge - 1, 2, 1)));
        assert_eq!(server.unlock(A, over), Granted);
    }
    let last = Wanted { offset: u64::MAX, length: 1, ..WHOLE };
    assert_eq!(server.lock(A, last), Granted);
    assert_eq!(server.test(B, Wanted { length: 0, ..last }), Err((u64::MAX, 0, 1)));
    assert_eq!(server.lock(A, Wanted { offset: 1, length: u64::MAX, ..WHOLE }), Granted);
    for (offset, length) in [(u64::MAX, 2), (2, u64::MAX), (1 << 63, 1 << 63 | 1)] {
        let beyond = Wanted { offset, length, ..WHOLE };
        let found = [server.lock(A, beyond), server.unlock(A, beyond), server.cancel(A, beyond)];
        assert_eq!(found, [Fbig; 3]);
        assert_eq!(server.test(A, beyond), Ok(Fbig));
    }
}

#[test]
fn cookies_and_owners_have_their_largest_size_and_no_more() {
    let server = Server::new();
    let longest = [7; NETOBJ_MAX];
    let wanted = Wanted { cookie: &longest, oh: &longest, ..WHOLE };
    assert_eq!(server.lock(A, wanted), Granted);
    assert_eq!(server.lock(A, Wanted { oh: &longest[1..], ..wanted }), Denied, "another owner");
    assert_eq!(server.unlock(A, wanted), Granted);
    // Length of the cookie, one more than allowed, and its bytes.
    let mut arguments = 1025_u32.to_be_bytes().to_vec();
    arguments.resize(4 + 1028 + 100, 0);
    for procedure in NlmProcedure::ALL.into_iter().filter(|procedure| {
        !matches!(
            procedure,
            NlmProcedure::TestRes | NlmProcedure::LockRes | NlmProcedure::CancelRes | NlmProcedure::UnlockRes
        )
    }) {
        let refused = server.call(A, (NLM, 4, procedure.number()), &Raw(arguments.clone()));
        assert_eq!(refused, Err(CallFailure::GarbageArguments), "{procedure:?}");
    }
    let unknown = server.call(A, (NLM, 4, 17), &());
    assert_eq!(unknown, Err(CallFailure::ProcedureUnavailable));
    assert!(matches!(server.call(A, (NLM, 3, 1), &()), Err(CallFailure::ProgramMismatch(_))));
    assert_eq!(server.call(A, (NLM, 4, 0), &()), Ok(vec![]));
}

#[test]
fn arguments_cut_at_any_place_or_too_long_are_garbage_and_change_nothing() {
    let server = Server::new();
    let Wanted { block, exclusive, reclaim, state, .. } = WHOLE;
    let (cookie, lock) = (Opaque::new(b"cookie").unwrap(), server.wire(WHOLE));
    let name = Opaque::new(b"client").unwrap();
    let share = NlmShare {
        caller_name: name,
        fh: lock.fh,
        oh: lock.oh,
        access: NlmShareAccess::Both,
        deny: ShareDeny::Both,
    };
    let test = NlmTestArguments { cookie, exclusive, lock };
    let locking = NlmLockArguments { cookie, block, exclusive, lock, reclaim, state };
    let cancel = NlmCancelArguments { cookie, block, exclusive, lock };
    let unlock = NlmUnlockArguments { cookie, lock };
    let sharing = NlmShareArguments { cookie, share, reclaim };
    let all: [(NlmProcedure, &dyn Encode); 14] = [
        (NlmProcedure::Test, &test),
        (NlmProcedure::Lock, &locking),
        (NlmProcedure::Cancel, &cancel),
        (NlmProcedure::Unlock, &unlock),
        (NlmProcedure::Granted, &test),
        (NlmProcedure::TestMsg, &test),
        (NlmProcedure::LockMsg, &locking),
        (NlmProcedure::CancelMsg, &cancel),
        (NlmProcedure::UnlockMsg, &unlock),
        (NlmProcedure::GrantedMsg, &test),
        (NlmProcedure::Share, &sharing),
        (NlmProcedure::Unshare, &sharing),
        (NlmProcedure::NmLock, &locking),
        (NlmProcedure::FreeAll, &NlmNotify { name, state }),
    ];
    for (procedure, arguments) in all {
        let mut whole = Vec::new();
        arguments.encode(&mut whole);
        let lengths = (0..whole.len()).chain([whole.len() + 4]);
        for length in lengths {
            let mut bytes = whole.clone();
            bytes.resize(length, 0);
            let answer = server.call(A, (NLM, 4, procedure.number()), &Raw(bytes));
            assert_eq!(answer, Err(CallFailure::GarbageArguments), "{procedure:?}, {length} bytes");
        }
    }
    assert_eq!((server.lock(B, WHOLE), server.peers.0.lock().len()), (Granted, 0));
}

#[test]
fn only_who_could_open_a_file_may_lock_it() {
    let server = Server::new();
    let read = Wanted { exclusive: false, length: 1, ..WHOLE };
    let write = Wanted { exclusive: true, ..read };
    let group = From { uid: 1000, ..A };
    let other = From { uid: 2000, ..A };
    assert_eq!([server.lock(group, read), server.lock(group, write)], [Granted; 2]);
    assert_eq!(server.unlock(group, read), Granted);
    assert_eq!([server.lock(other, read), server.lock(other, write)], [Failed; 2]);
    assert_eq!(server.test(other, read), Ok(Failed));
    // Its owner, whatever the mode: it may have opened the file before.
    let set = SetattrArguments {
        object: NfsFh3::new(&server.file).unwrap(),
        attributes: Sattr { mode: Some(0o400), ..Sattr::default() },
        guard: None,
    };
    let set_mode = (nfs3::PROGRAM, 3, NfsProcedure::Setattr.number());
    server.call(From { uid: 0, ..A }, set_mode, &set).unwrap();
    assert_eq!(server.lock(group, write), Granted);
    let rules = ExportRules { squash: Squash::None, insecure_locks: true, ..ExportRules::default() };
    let server = Server::with(rules, None);
    assert_eq!(server.lock(other, write), Granted, "insecure_locks");
}

#[test]
fn stale_handles_directories_and_read_only_exports_have_their_statuses() {
    let server = Server::new();
    let mut forged = server.file.clone();
    forged[15] ^= 1;
    for file in [&forged[..], b"", b"short", &[0xff; NETOBJ_MAX]] {
        let wanted = Wanted { file: Some(file), ..WHOLE };
        let found = [server.lock(A, wanted), server.unlock(A, wanted), server.cancel(A, wanted)];
        assert_eq!(found, [StaleFh; 3]);
    }
    let rules = ExportRules { squash: Squash::None, read_only: true, ..ExportRules::default() };
    let server = Server::with(rules, None);
    // Here the file is the root, a directory.
    assert_eq!(server.lock(A, WHOLE), Rofs);
    assert_eq!(server.lock(A, Wanted { exclusive: false, ..WHOLE }), Failed);
}

#[test]
fn what_is_left_of_a_removed_export_is_released_by_its_owner_alone() {
    let server = Server::new();
    let wait = Wanted { block: true, ..WHOLE };
    assert_eq!(server.lock(A, WHOLE), Granted);
    assert_eq!(server.lock(B, wait), Blocked);
    let reserves = (NlmShareAccess::Read, ShareDeny::None);
    assert_eq!(server.share(A, NlmProcedure::Share, reserves), Granted);
    // Another request waits for a delegation.
    let deferred = server.deferred(B, Wanted { svid: 2, ..wait });
    server.service.replace_exports(Vec::new()).unwrap();
    assert_eq!(server.lock(A, WHOLE), StaleFh);
    let held = || (server.service.locks.counts().locks, server.service.locks.counts().waiters);
    assert_eq!(server.cancel(A, wait), Denied, "it does not wait");
    assert_eq!((server.cancel(B, wait), held()), (Granted, (1, 0)));
    assert!(!deferred.has_ended());
    assert_eq!((server.cancel(B, Wanted { svid: 2, ..wait }), deferred.has_ended()), (Granted, true));
    assert_eq!((server.unlock(B, WHOLE), held()), (Granted, (1, 0)), "it has none");
    assert_eq!((server.unlock(A, WHOLE), held()), (Granted, (0, 0)));
    assert_eq!(server.share(A, NlmProcedure::Unshare, reserves), Granted);
    assert!(!server.service.lock_manager.shares.lock().has_host(A.ip()));
}

#[test]
fn a_waiter_is_called_back_at_its_address_and_gets_the_lock_if_it_accepts() {
    let server = Server::new();
    assert_eq!(server.lock(A, WHOLE), Granted);
    let wait = Wanted { block: true, svid: 7, offset: 3, length: 4, ..WHOLE };
    assert_eq!(server.lock(B, wait), Blocked);
    assert_eq!(server.lock(B, wait), Blocked, "asked again");
    assert_eq!(server.granted(), []);
    assert_eq!(server.unlock(A, WHOLE), Granted);
    let granted = server.granted();
    let [(peer, lock)] = &granted[..] else { panic!("{granted:?}") };
    assert_eq!((*peer, lock.svid, lock.file.as_bytes()), (B.ip(), 7, &server.file[..]));
    assert_eq!((lock.range, lock.lock_type), (ByteRange::new(3, 6).unwrap(), LockType::Write));
    let arguments: NlmTestArguments<'_> = decode_all(&lock.arguments).unwrap();
    assert_eq!((arguments.lock.offset, arguments.lock.length, arguments.lock.svid), (3, 4, 7));
    assert_eq!(arguments.lock.oh.bytes(), b"owner");
    assert_eq!(server.lock(A, WHOLE), Denied, "it is locked while the host is called");
    // Another host cannot answer for it.
    server.answer(A, lock, GrantedCallOutcome::Refused);
    assert_eq!(server.lock(A, WHOLE), Denied);
    server.answer(B, lock, GrantedCallOutcome::Accepted);
    server.answer(B, lock, GrantedCallOutcome::Refused);
    assert_eq!(server.lock(A, WHOLE), Denied, "it was accepted before");
    assert_eq!(server.unlock(B, wait), Granted);
    assert_eq!(server.lock(A, WHOLE), Granted);
}

// SEMANTICS: lockd-2.
#[test]
fn a_waiter_is_called_from_the_address_that_its_request_came_to() {
    let server = Server::new();
    assert_eq!(server.lock(A, WHOLE), Granted);
    let [first, second] = [8, 9].map(|last| From { local: [10, 0, 0, last], ..B });
    let datagram = From { local: [0; 4], ..B };
    let wait = |svid| Wanted { block: true, svid, offset: u64::try_from(svid).unwrap(), length: 1, ..WHOLE };
    for (from, svid) in [(datagram, 1), (first, 2), (second, 3), (datagram, 4), (first, 5), (second, 5)] {
        assert_eq!(server.lock(from, wait(svid)), Blocked);
    }
    server.unlock(A, WHOLE);
    let calls = std::mem::take(&mut *server.peers.0.lock());
    let called = calls.into_iter().map(|call| match call.kind {
        PeerCallKind::Granted(granted) => (granted.svid, call.local),
        PeerCallKind::Result { .. } => panic!("no result is sent"),
    });
    let mut called: Vec<_> = called.collect();
    called.sort_unstable();
    let [first, second] = [first, second].map(|from| Some(from.local.into()));
    assert_eq!(called, [(1, None), (2, first), (3, second), (4, second), (5, second)]);
}

#[test]
fn a_waiter_whose_host_cannot_be_called_or_refuses_leaves_the_queue() {
    let server = Server::new();
    for outcome in [GrantedCallOutcome::Undelivered, GrantedCallOutcome::Refused] {
        assert_eq!(server.lock(A, WHOLE), Granted);
        assert_eq!(server.lock(B, Wanted { block: true, ..WHOLE }), Blocked);
        assert_eq!(server.lock(B, Wanted { block: true, svid: 2, ..WHOLE }), Blocked);
        server.unlock(A, WHOLE);
        for _ in 0..2 {
            let granted = server.granted();
            let [(_, lock)] = &granted[..] else { panic!("{granted:?}") };
            server.answer(B, lock, outcome);
        }
        assert_eq!(server.granted(), []);
        assert_eq!(server.lock(A, WHOLE), Granted, "{outcome:?}");
        server.unlock(A, WHOLE);
    }
}

#[test]
fn a_cancelled_waiter_is_not_called() {
    for is_sent_twice in [false, true] {
        let server = Server::new();
        assert_eq!(server.lock(A, WHOLE), Granted);
        let wait = Wanted { block: true, ..WHOLE };
        assert_eq!(server.lock(B, wait), Blocked);
        // The retransmission waits for a delegation.
        let deferred = is_sent_twice.then(|| server.deferred(B, wait));
        if !is_sent_twice {
            assert_eq!(server.cancel(B, Wanted { offset: 1, ..wait }), Denied, "another range");
        }
        assert_eq!(server.cancel(B, wait), Granted);
        drop(deferred);
        assert_eq!(server.cancel(B, wait), Denied);
        server.unlock(A, WHOLE);
        assert_eq!(server.granted(), []);
    }
}

// SEMANTICS: lockd-11.
#[test]
fn a_cancel_that_crosses_the_grant_frees_the_lock() {
    let server = Server::new();
    assert_eq!(server.lock(A, WHOLE), Granted);
    let wait = Wanted { block: true, ..WHOLE };
    assert_eq!(server.lock(B, wait), Blocked);
    server.unlock(A, WHOLE);
    let (_, lock) = server.granted().remove(0);
    // Another host can neither cancel it nor have it sent.
    assert_eq!(server.cancel(A, wait), Denied);
    assert!(!server.service.begin_grant(A.ip(), lock.id) && server.service.begin_grant(B.ip(), lock.id));
    assert_eq!(server.cancel(B, wait), Granted);
    assert!(!server.service.begin_grant(B.ip(), lock.id), "one that is still queued is not sent");
    assert_eq!(server.lock(A, WHOLE), Granted);
    for outcome in [GrantedCallOutcome::Refused, GrantedCallOutcome::Accepted] {
        server.answer(B, &lock, outcome);
        assert_eq!(server.lock(B, WHOLE), Denied);
    }
}

// SEMANTICS: lockd-11.
#[test]
fn a_refusal_frees_a_lock_only_if_one_grant_was_sent() {
    for sent in 1..=2 {
        let server = Server::new();
        assert_eq!(server.lock(A, WHOLE), Granted);
        assert_eq!(server.lock(B, Wanted { block: true, ..WHOLE }), Blocked);
        server.unlock(A, WHOLE);
        let (_, lock) = server.granted().remove(0);
        if sent == 2 {
            // The host may have accepted it, and refuses the second one.
            server.answer(B, &lock, GrantedCallOutcome::Unanswered);
        }
        server.answer(B, &lock, GrantedCallOutcome::Refused);
        assert_eq!(server.lock(A, WHOLE), if sent == 1 { Granted } else { Denied });
    }
}

#[test]
fn messages_are_answered_by_a_call_to_the_address_that_they_came_from() {
    let server = Server::new();
    server.lock(B, Wanted { oh: b"owner", ..WHOLE });
    let wanted = Wanted { cookie: b"m", block: true, ..WHOLE };
    let cookie = Opaque::new(b"m").unwrap();
    assert!(server.lock_by(A, NlmProcedure::LockMsg, wanted).is_empty());
    let (lock, exclusive) = (server.wire(wanted), true);
    server.nlm(A, NlmProcedure::TestMsg, &NlmTestArguments { cookie, exclusive, lock });
    server.nlm(A, NlmProcedure::CancelMsg, &NlmCancelArguments { cookie, block: true, exclusive, lock });
    server.nlm(A, NlmProcedure::UnlockMsg, &NlmUnlockArguments { cookie, lock });
    let calls = std::mem::take(&mut *server.peers.0.lock());
    let results = calls.iter().map(|call| {
        assert_eq!((call.peer, call.local), (A.ip(), Some("10.0.0.9".parse().unwrap())));
        match &call.kind {
            PeerCallKind::Result { procedure, arguments } => (*procedure, arguments),
            PeerCallKind::Granted(granted) => panic!("{granted:?}"),
        }
    });
    let results: Vec<_> = results.collect();
    let of = |place: usize| status(results[place].1, b"m");
    assert_eq!(
        results.iter().map(|(procedure, _)| *procedure).collect::<Vec<_>>(),
        [NlmProcedure::LockRes, NlmProcedure::TestRes, NlmProcedure::CancelRes, NlmProcedure::UnlockRes]
    );
    assert_eq!((of(0), of(2), of(3)), (Blocked, Granted, Granted));
    let tested: NlmTestResult<'_> = decode_all(results[1].1).unwrap();
    assert!(matches!(tested.reply, NlmTestReply::Denied(holder) if holder.svid == 1));
    // The answer to a GRANTED_MSG, from its host and from another one.
    assert_eq!(server.lock(A, Wanted { block: true, ..WHOLE }), Blocked);
    server.unlock(B, WHOLE);
    let granted = server.granted();
    let arguments: NlmTestArguments<'_> = decode_all(&granted[0].1.arguments).unwrap();
    let refuse = NlmResult { cookie: arguments.cookie, status: Denied };
    server.nlm(B, NlmProcedure::GrantedRes, &refuse);
    assert_eq!(server.lock(B, WHOLE), Denied);
    server.nlm(A, NlmProcedure::GrantedRes, &NlmResult { cookie, ..refuse });
    assert_eq!(server.lock(B, WHOLE), Denied, "another cookie");
    server.nlm(A, NlmProcedure::GrantedRes, &refuse);
    assert_eq!(server.lock(B, WHOLE), Granted);
}

#[test]
fn grants_of_others_mean_nothing_to_a_server() {
    let server = Server::new();
    let cookie = Opaque::new(b"cookie").unwrap();
    let arguments = NlmTestArguments { cookie, exclusive: true, lock: server.wire(WHOLE) };
    assert_eq!(status(&server.nlm(A, NlmProcedure::Granted, &arguments), b"cookie"), Denied);
    assert!(server.nlm(A, NlmProcedure::GrantedMsg, &arguments).is_empty());
    assert_eq!(server.lock(B, WHOLE), Granted);
}

#[test]
fn a_host_frees_its_own_locks_alone_and_only_as_root() {
    let server = Server::new();
    assert_eq!(server.lock(A, WHOLE), Granted);
    assert_eq!(server.share(A, NlmProcedure::Share, (NlmShareAccess::Write, ShareDeny::Both)), Granted);
    let any_user = From { port: 1024, ..A };
    // Other hosts that give its name, its own users, and a notice that was repeated.
    for from in [B, any_user] {
        server.free_all(from, b"client");
        server.notify(from, 99);
    }
    server.notify(A, WHOLE.state);
    assert_eq!(server.lock(B, WHOLE), Denied);
    assert_eq!(server.share(B, NlmProcedure::Share, (NlmShareAccess::Read, ShareDeny::None)), Denied);
    server.notify(A, 5);
    assert_eq!(server.lock(B, WHOLE), Granted);
    assert_eq!(server.share(B, NlmProcedure::Share, (NlmShareAccess::Read, ShareDeny::None)), Granted);
    server.free_all(B, b"another name");
    assert_eq!(server.lock(A, WHOLE), Granted);
}

#[test]
fn a_restarted_host_loses_its_waiters_and_the_next_one_is_called() {
    let server = Server::new();
    assert_eq!(server.lock(A, WHOLE), Granted);
    assert_eq!(server.lock(B, Wanted { block: true, ..WHOLE }), Blocked);
    assert_eq!(server.lock(A, Wanted { block: true, svid: 9, ..WHOLE }), Blocked);
    server.notify(A, 5);
    let granted = server.granted();
    assert_eq!(granted.iter().map(|(peer, lock)| (*peer, lock.svid)).collect::<Vec<_>>(), [(B.ip(), 1)]);
    server.notify(A, 5);
    server.notify(B, 5);
    assert_eq!((server.granted(), server.lock(A, WHOLE)), (vec![], Granted));
}

// SEMANTICS: lockd-5.
#[test]
fn a_notice_after_the_first_locks_frees_only_those_before_the_restart() {
    let server = Server::new();
    let part = |offset, state, oh| Wanted { offset, length: 1, state, oh, ..WHOLE };
    assert_eq!(server.lock(A, part(0, 3, b"old")), Granted);
    // Restarted: its first lock comes before the notice, and frees nothing.
    assert_eq!(server.lock(A, part(0, 5, b"new")), Denied);
    assert_eq!(server.lock(A, part(1, 5, b"new")), Granted);
    assert_eq!(server.lock(B, part(0, 3, b"other")), Denied);
    server.notify(A, 5);
    assert_eq!(server.lock(B, part(0, 3, b"other")), Granted);
    assert_eq!(server.lock(B, part(1, 3, b"other")), Denied, "what it has locked since stays");
    server.notify(A, 5);
    assert_eq!(server.lock(B, part(1, 3, b"other")), Denied, "repeated");
    server.notify(A, 7);
    assert_eq!(server.lock(B, part(1, 3, b"other")), Granted);
}

// SEMANTICS: lockd-5.
#[test]
fn lock_managers_that_share_an_address_do_not_free_each_others_locks_by_locking() {
    let server = Server::new();
    let (kernel, mount) =
        (Wanted { state: 3, length: 1, ..WHOLE }, Wanted { state: 1001, offset: 1, ..WHOLE });
    for _ in 0..2 {
        assert_eq!([server.lock(A, kernel), server.lock(A, mount)], [Granted; 2]);
    }
    assert_eq!([server.lock(B, kernel), server.lock(B, mount)], [Denied; 2]);
}

#[test]
fn reservations_exclude_what_they_deny() {
    let server = Server::new();
    let write = (NlmShareAccess::Write, ShareDeny::None);
    assert_eq!(server.share(A, NlmProcedure::Share, (NlmShareAccess::Read, ShareDeny::Write)), Granted);
    assert_eq!(server.share(B, NlmProcedure::Share, write), Denied);
    assert_eq!(server.share(B, NlmProcedure::Unshare, write), Granted, "not its own");
    assert_eq!(server.share(B, NlmProcedure::Share, write), Denied);
    assert_eq!(server.share(From { uid: 2000, ..B }, NlmProcedure::Share, write), Failed);
    assert_eq!(server.share(A, NlmProcedure::Unshare, write), Granted);
    assert_eq!(server.share(B, NlmProcedure::Share, write), Granted);
}

// SEMANTICS: lockd-4.
#[test]
fn after_a_restart_hosts_reclaim_before_others_lock() {
    let directory = tempfile::tempdir().unwrap();
    let rules = ExportRules { squash: Squash::None, ..ExportRules::default() };
    let server = Server::with(rules, Some(directory.path()));
    assert!(server.notices.hosts.is_empty() && !server.service.is_in_grace());
    // An unmonitored lock is not recorded, nor is one that is refused.
    server.lock_by(B, NlmProcedure::NmLock, WHOLE);
    assert_eq!(server.lock(A, WHOLE), Denied);
    server.unlock(B, WHOLE);
    let first = server.notices.state;
    drop(server);
    let server = Server::with(rules, Some(directory.path()));
    let expected = HostToNotify { address: A.ip(), locals: vec!["10.0.0.9".parse().unwrap()] };
    assert_eq!(server.notices.hosts, std::slice::from_ref(&expected), "it was about to get one");
    assert!(server.notices.state > first && server.service.is_in_grace());
    let reclaim = Wanted { reclaim: true, length: 10, ..WHOLE };
    assert_eq!(server.lock(B, WHOLE), DeniedGracePeriod);
    assert_eq!(server.test(B, WHOLE), Ok(DeniedGracePeriod));
    assert_eq!(
        server.share(B, NlmProcedure::Share, (NlmShareAccess::Read, ShareDeny::None)),
        DeniedGracePeriod
    );
    assert_eq!(server.lock(A, reclaim), Granted);
    assert_eq!(server.lock(A, Wanted { svid: 2, ..reclaim }), Denied, "reclaims exclude each other");
    // A host that had no lock has nothing to reclaim.
    let (free, access) = (Wanted { offset: 50, ..reclaim }, (NlmShareAccess::Read, ShareDeny::None));
    assert_eq!(server.lock(B, free), DeniedGracePeriod);
    assert_eq!(server.share_by(B, NlmProcedure::Share, access, true), DeniedGracePeriod);
    assert_eq!(server.share_by(A, NlmProcedure::Share, access, true), Granted);
    assert_eq!(server.share(A, NlmProcedure::Unshare, access), Granted);
    server.time.advance(GRACE);
    server.service.expire_leases();
    assert!(!server.service.is_in_grace());
    assert_eq!(server.lock(A, Wanted { offset: 10, ..reclaim }), DeniedGracePeriod, "too late");
    assert_eq!(server.lock(B, WHOLE), Denied);
    assert_eq!(server.lock(B, Wanted { offset: 10, ..WHOLE }), Granted);
    server.unlock(A, reclaim);
    drop(server);
    // Both had locks; only one of them comes back.
    let server = Server::with(rules, Some(directory.path()));
    assert_eq!(server.notices.hosts.len(), 2);
    assert_eq!(server.lock(A, reclaim), Granted);
    server.service.forget_hosts_without_locks();
    drop(server);
    let server = Server::with(rules, Some(directory.path()));
    assert_eq!(server.notices.hosts, [expected]);
    server.service.forget_hosts_without_locks();
    drop(server);
    assert!(!Server::with(rules, Some(directory.path())).service.is_in_grace());
}

#[test]
fn a_lock_that_was_requested_in_the_grace_period_is_denied_if_that_ends_meanwhile() {
    let server = Server::new();
    let part = |offset| Wanted { offset, length: 1, ..WHOLE };
    server.lock_by(A, NlmProcedure::NmLock, part(0));
    let grace = Arc::clone(server.service.locks.grace());
    grace.begin_for_others(GRACE);
    // Its first monitored lock has the host recorded.
    server.peers.1.lock().push(Box::new(move || grace.end()));
    assert_eq!(server.lock(A, part(1)), DeniedGracePeriod, "no delegation was recalled for it");
    server.service.locks.grace().end();
    assert_eq!(server.lock(A, part(1)), Granted);
}

#[test]
fn a_host_is_not_recorded_if_the_list_cannot_be_written_and_gets_no_lock() {
    let directory = tempfile::tempdir().unwrap();
    let rules = ExportRules { squash: Squash::None, ..ExportRules::default() };
    let state = directory.path().join("state");
    let server = Server::with(rules, Some(&state));
    std::fs::rename(&state, directory.path().join("away")).unwrap();
    assert_eq!(server.lock(A, WHOLE), Failed);
    assert_eq!(server.share(A, NlmProcedure::Share, (NlmShareAccess::Read, ShareDeny::None)), Failed);
    std::fs::rename(directory.path().join("away"), &state).unwrap();
    assert_eq!(server.lock(B, WHOLE), Granted);
}

#[test]
fn a_host_keeps_its_lock_if_its_new_address_cannot_be_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let rules = ExportRules { squash: Squash::None, ..ExportRules::default() };
    let state = directory.path().join("state");
    let server = Server::with(rules, Some(&state));
    let (first, upgrade) = (Wanted { exclusive: false, ..WHOLE }, WHOLE);
    assert_eq!(server.lock(A, first), Granted);
    std::fs::rename(&state, directory.path().join("away")).unwrap();
    let elsewhere = From { local: [10, 0, 0, 8], ..A };
    assert_eq!(server.lock(elsewhere, upgrade), Failed);
    std::fs::rename(directory.path().join("away"), &state).unwrap();
    assert_eq!(server.lock(B, first), Granted, "it was not upgraded");
    assert_eq!(server.unlock(B, first), Granted);
    assert_eq!(server.lock(B, upgrade), Denied, "nor unlocked");
    assert_eq!(server.lock(elsewhere, upgrade), Granted);
    let listed = server.service.state.monitored().unwrap().unwrap();
    assert_eq!(listed.hosts[&A.ip()].locals.len(), 2);
}

#[test]
fn a_host_without_reservations_leaves_the_list_as_one_without_locks() {
    let directory = tempfile::tempdir().unwrap();
    let rules = ExportRules { squash: Squash::None, ..ExportRules::default() };
    let server = Server::with(rules, Some(directory.path()));
    let listed = || server.service.state.monitored().unwrap().unwrap().hosts.len();
    let now = server.service.clock.now();
    let mut scans = 0;
    let mut wait = || {
        for _ in 0..3 {
            scans += 1;
            server.service.locks.tick(now + Duration::from_secs(60) * scans);
        }
    };
    let denies = (NlmShareAccess::Read, ShareDeny::Both);
    assert_eq!(server.share(A, NlmProcedure::Share, denies), Granted);
    assert_eq!(server.share(B, NlmProcedure::Share, denies), Denied);
    wait();
    assert_eq!(listed(), 1, "the host that was denied has left");
    assert_eq!(server.share(A, NlmProcedure::Unshare, denies), Granted);
    assert_eq!(server.share(B, NlmProcedure::Unshare, denies), Granted);
    wait();
    assert_eq!(listed(), 0);
    assert_eq!(server.share(A, NlmProcedure::Share, denies), Granted);
    server.free_all(A, b"client");
    wait();
    assert_eq!(listed(), 0);
}

#[test]
fn a_thousand_owners_and_a_thousand_waiters_are_served_in_turn() {
    let server = Server::new();
    for svid in 0..1000 {
        let offset = u64::try_from(svid).unwrap();
        assert_eq!(server.lock(A, Wanted { svid, offset, length: 1, ..WHOLE }), Granted);
    }
    for svid in 0..1000 {
        assert_eq!(server.lock(B, Wanted { svid, block: true, ..WHOLE }), Blocked);
    }
    server.notify(A, 5);
    for svid in 0..1000 {
        let granted = server.granted();
        let [(_, lock)] = &granted[..] else { panic!("{} callbacks", granted.len()) };
        assert_eq!(lock.svid, svid);
        server.answer(B, lock, GrantedCallOutcome::Accepted);
        assert_eq!(server.unlock(B, Wanted { svid, ..WHOLE }), Granted);
    }
    assert_eq!(server.lock(A, WHOLE), Granted);
}

#[test]
fn programs_that_are_not_served_are_unavailable() {
    let setup = NfsServiceConfig {
        state: PersistentState::with_key([9; 16]),
        exports: Vec::new(),
        counters: Arc::new(ServerCounters::default()),
    };
    let service = NfsService::new(setup).unwrap();
    for program in [NLM, nsm::PROGRAM] {
        let version = if program == NLM { nlm4::VERSION } else { nsm::VERSION };
        let record = call_record(1, program, version, 0, &RpcCredential::None, &());
        let call = Call::decode(&record[4..]).unwrap();
        let mut context = CallContext::detached(A.peer(), A.peer());
        let refused = service.call(&call, &mut context, &mut Vec::new());
        assert_eq!(refused, Err(CallFailure::ProgramUnavailable));
    }
}
