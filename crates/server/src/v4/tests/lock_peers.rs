//! Locks of NFSv4 clients beside those of NLM hosts, and those of clients whose leases have
//! expired.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use curt_observe::ServerCounters;
use curt_proto::nfs4::{CloseArgs4, LockType4, NfsStat4, OpenDelegation, ShareAccess4, Stateid};
use curt_proto::nlm4::{
    self, NlmCancelArguments, NlmLock, NlmLockArguments, NlmNotify, NlmProcedure, NlmResult, NlmShare,
    NlmShareAccess, NlmShareArguments, NlmShareResult, NlmStat4, NlmUnlockArguments, ShareDeny,
};
use curt_rpc::client::CallArguments;
use curt_rpc::clock::ScriptedTime;
use curt_rpc::message::{CallMessage, ProcedureId};
use curt_rpc::server::{CallContext, RpcService as _};
use curt_types::FileHandle;
use curt_xdr::{Encode, Opaque, decode_all};
use parking_lot::Mutex;

use super::delegations;
use super::lock_callbacks::{accepted, bind, call};
use super::locks::{BOTH, Failure, REST, is_denied, lock, locking, new_owner, test, unlock};
use super::test_client::{Server, TestClient, creating, export, opening, rules, user};
use crate::{
    ExportDefinition, ExportRules, LockPeers, LockServing, NfsService, NfsServiceConfig, PeerCall,
    PeerCallKind, PersistentState, SystemNames,
};

/// Keeps calls to NLM hosts, and does something before the next job.
#[derive(Default)]
struct Peers(Mutex<Vec<PeerCall>>, Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl LockPeers for Peers {
    fn call(&self, call: PeerCall) -> bool {
        self.0.lock().push(call);
        true
    }

    fn run(&self, job: Box<dyn FnOnce() + Send>) {
        let before = self.1.lock().take();
        before.into_iter().for_each(|before| before());
        job();
    }

    fn watch(&self, _: IpAddr, _: bool) {}
}

impl Peers {
    /// Number of GRANTED calls since the last question.
    fn granted(&self) -> usize {
        let calls = std::mem::take(&mut *self.0.lock());
        calls.iter().filter(|call| matches!(call.kind, PeerCallKind::Granted(_))).count()
    }
}

/// A server with NLM whose clock is the test's.
fn server() -> (Server, Arc<Peers>, Arc<ScriptedTime>) {
    server_of(vec![export("/srv/files", 1, rules())])
}

fn server_of(exports: Vec<ExportDefinition>) -> (Server, Arc<Peers>, Arc<ScriptedTime>) {
    let time = ScriptedTime::new();
    let setup = NfsServiceConfig {
        state: PersistentState::with_key([9; 16]),
        exports,
        counters: Arc::new(ServerCounters::default()),
    };
    let service = NfsService::with_environment(setup, Box::new(SystemNames), time.clock()).unwrap();
    let peers = Arc::new(Peers::default());
    let serving = LockServing {
        peers: Arc::<Peers>::clone(&peers),
        host_name: b"server".to_vec(),
        grace: Duration::from_secs(90),
    };
    service.serve_locks(serving).unwrap();
    (Server::over(Arc::new(service)).calling_back(), peers, time)
}

/// The status of a call of NLM by another host.
fn nlm(server: &Server, procedure: NlmProcedure, arguments: &impl Encode) -> NlmStat4 {
    decode_all::<NlmResult<'_>>(&nlm_call(server, 0, procedure, arguments)).unwrap().status
}

/// The reply to a call of NLM by another host.
fn nlm_call(server: &Server, uid: u32, procedure: NlmProcedure, arguments: &dyn Encode) -> Vec<u8> {
    nlm_call_of("10.0.0.1", server, uid, procedure, arguments)
}

fn nlm_call_of(
    host: &str,
    server: &Server,
    uid: u32,
    procedure: NlmProcedure,
    arguments: &dyn Encode,
) -> Vec<u8> {
    let mut encoded = Vec::new();
    arguments.encode(&mut encoded);
    let call = CallMessage {
        xid: 1,
        program: nlm4::PROGRAM,
        version: nlm4::VERSION,
        procedure: procedure.number(),
        credential: user(uid),
        arguments: &encoded,
    };
    let mut reply = Vec::new();
    let (peer, local) = (SocketAddr::new(host.parse().unwrap(), 700), "10.0.0.9:2049".parse().unwrap());
    server.service.call(&call, &mut CallContext::detached(peer, local), &mut reply).unwrap();
    reply
}

/// `uid` may read the file.
fn nlm_share(
    server: &Server,
    uid: u32,
    file: &FileHandle,
    access: NlmShareAccess,
    deny: ShareDeny,
) -> NlmStat4 {
    let reply = nlm_call(server, uid, NlmProcedure::Share, &reserving(file, access, deny));
    decode_all::<NlmShareResult<'_>>(&reply).unwrap().status
}

fn reserving(file: &FileHandle, access: NlmShareAccess, deny: ShareDeny) -> NlmShareArguments<'_> {
    let share = NlmShare {
        caller_name: Opaque::new(b"host").unwrap(),
        fh: Opaque::new(file.as_bytes()).unwrap(),
        oh: Opaque::new(b"owner").unwrap(),
        access,
        deny,
    };
    NlmShareArguments { cookie: Opaque::new(b"c").unwrap(), share, reclaim: false }
}

/// All bytes of a file.
fn whole(file: &FileHandle) -> NlmLock<'_> {
    NlmLock {
        caller_name: Opaque::new(b"host").unwrap(),
        fh: Opaque::new(file.as_bytes()).unwrap(),
        oh: Opaque::new(b"owner").unwrap(),
        svid: 7,
        offset: 0,
        length: 0,
    }
}

fn nlm_lock(server: &Server, file: &FileHandle, block: bool) -> NlmStat4 {
    let cookie = Opaque::new(b"c").unwrap();
    let lock = whole(file);
    let asked = NlmLockArguments { cookie, block, exclusive: true, lock, reclaim: false, state: 3 };
    nlm(server, NlmProcedure::Lock, &asked)
}

fn nlm_unlock(server: &Server, file: &FileHandle) -> NlmStat4 {
    let cookie = Opaque::new(b"c").unwrap();
    nlm(server, NlmProcedure::Unlock, &NlmUnlockArguments { cookie, lock: whole(file) })
}

/// A client that holds a lock of the whole file.
fn holder<'s>(server: &'s Server, name: &str) -> (TestClient<'s>, FileHandle, Stateid) {
    let client = server.client(name);
    let root = client.files();
    let opened = client.open(&root, &creating("file", "o", BOTH, 0)).unwrap();
    let asked = locking(LockType4::Write, 0, REST, new_owner(opened.stateid, b"a"));
    let stateid = lock(&client, &opened.handle, &asked).unwrap();
    (client, opened.handle, stateid)
}

// SEMANTICS: stateful-9, stateful-10.
#[test]
fn hosts_of_nlm_and_clients_wait_for_each_other_in_one_queue() {
    let (server, peers, _) = server();
    let (one, file, stateid) = holder(&server, "one");
    let two = server.client("two");
    let calls = bind(&two, |asked| Ok(accepted(asked)));
    assert_eq!(nlm_lock(&server, &file, false), NlmStat4::Denied);
    assert_eq!(nlm_lock(&server, &file, true), NlmStat4::Blocked);
    let open = two.open(&two.files(), &opening("file", "o", BOTH, 0)).unwrap().stateid;
    let wait = locking(LockType4::WriteWait, 0, 8, new_owner(open, b"b"));
    assert!(is_denied(&lock(&two, &file, &wait)));
    unlock(&one, &file, stateid, 0, REST).unwrap();
    // The host was first. Its lock has no owner that NFSv4 knows.
    assert_eq!(peers.granted(), 1);
    match lock(&two, &file, &wait) {
        Err(Failure::Denied(holder)) => {
            assert_eq!((holder.offset, holder.length, holder.kind), (0, REST, LockType4::Write));
            assert_eq!((holder.clientid.0, &*holder.owner), (0, b"owner".as_slice()));
        }
        outcome => panic!("{outcome:?}"),
    }
    assert_eq!(nlm_unlock(&server, &file), NlmStat4::Granted);
    assert_eq!(call(&calls).1, b"b");
    lock(&two, &file, &wait).unwrap();
    assert_eq!(nlm_lock(&server, &file, false), NlmStat4::Denied);
}

// SEMANTICS: stateful-9, stateful-11.
#[test]
fn a_host_locks_a_file_for_writing_when_its_delegations_are_back() {
    let (server, _, time) = server();
    let reader = server.client("reader");
    let calls = delegations::bind(&reader, delegations::ok);
    let file = delegations::create(&reader, "file");
    let stateid = delegations::delegated(&reader, "file");
    for _ in 0..2 {
        assert_eq!(nlm_lock(&server, &file, true), NlmStat4::DeniedGracePeriod);
    }
    assert_eq!(calls.recv_timeout(Duration::from_secs(60)).unwrap().stateid, stateid);
    assert_eq!(delegations::give_back(&reader, &file, stateid), NfsStat4::Ok);
    assert_eq!(nlm_lock(&server, &file, true), NlmStat4::Granted);
    // As long as it is locked, nobody is given another one.
    time.advance(Duration::from_secs(60));
    let opened = || delegations::open_for(&reader, "file", ShareAccess4::READ);
    assert_eq!(opened(), OpenDelegation::None);
    assert_eq!(nlm_unlock(&server, &file), NlmStat4::Granted);
    assert!(matches!(opened(), OpenDelegation::Read { .. }));
}

/// A LOCK that waits, for writing, of the whole file.
fn blocking(file: &FileHandle) -> NlmLockArguments<'_> {
    let (cookie, lock) = (Opaque::new(b"c").unwrap(), whole(file));
    NlmLockArguments { cookie, block: true, exclusive: true, lock, reclaim: false, state: 3 }
}

fn reserving_all(file: &FileHandle) -> NlmShareArguments<'_> {
    reserving(file, NlmShareAccess::Write, ShareDeny::Both)
}

/// The host that is connected with the server.
const CONNECTED: &str = "127.0.0.1";

/// Sends what takes the request back of the connected host for a file.
type GiveUp = fn(&Server, &FileHandle);

fn call_of_connected(server: &Server, procedure: NlmProcedure, arguments: &dyn Encode) {
    nlm_call_of(CONNECTED, server, 0, procedure, arguments);
}

fn unlock_of_connected(server: &Server, lock: NlmLock<'_>) {
    let cookie = Opaque::new(b"c").unwrap();
    call_of_connected(server, NlmProcedure::Unlock, &NlmUnlockArguments { cookie, lock });
}

/// The status of the connected host's request for a file that is given up so.
fn status_of_connected(server: &Server, given_up_by: &str, file: &FileHandle) -> NlmStat4 {
    let ask = |procedure: NlmProcedure, arguments: &dyn CallArguments| {
        let procedure = procedure.number();
        let target = ProcedureId { program: nlm4::PROGRAM, version: nlm4::VERSION, procedure };
        server.call_connected(target, user(0), arguments)
    };
    if given_up_by == "UNSHARE" {
        let reply = ask(NlmProcedure::Share, &reserving_all(file));
        decode_all::<NlmShareResult<'_>>(&reply).unwrap().status
    } else {
        let reply = ask(NlmProcedure::Lock, &blocking(file));
        decode_all::<NlmResult<'_>>(&reply).unwrap().status
    }
}

const GIVE_UP: [(&str, GiveUp); 6] = [
    ("UNLOCK", |server, file| {
        unlock_of_connected(server, NlmLock { offset: 100, length: 1, ..whole(file) });
    }),
    ("CANCEL", |server, file| {
        let (cookie, lock) = (Opaque::new(b"c").unwrap(), whole(file));
        let arguments = NlmCancelArguments { cookie, block: true, exclusive: true, lock };
        call_of_connected(server, NlmProcedure::Cancel, &arguments);
    }),
    ("UNSHARE", |server, file| {
        call_of_connected(server, NlmProcedure::Unshare, &reserving_all(file));
    }),
    ("FREE_ALL", |server, _| {
        let arguments = NlmNotify { name: Opaque::new(b"host").unwrap(), state: 0 };
        call_of_connected(server, NlmProcedure::FreeAll, &arguments);
    }),
    ("NOTIFY", |server, _| server.service.host_restarted(CONNECTED.parse().unwrap(), 77)),
    ("UNLOCK of another owner", |server, file| {
        unlock_of_connected(server, NlmLock { svid: 8, ..whole(file) });
    }),
];

// SEMANTICS: stateful-11.
#[test]
fn a_host_gets_nothing_that_it_gave_up_while_delegations_were_recalled() {
    let rules = ExportRules { secure_ports: false, ..rules() };
    let (server, _, time) = server_of(vec![export("/srv/files", 1, rules)]);
    let server = server.connected();
    let reader = server.client("reader");
    let calls = delegations::bind(&reader, delegations::ok);
    for (round, (name, give_up)) in GIVE_UP.into_iter().enumerate() {
        // A recall may keep other files without delegations for some time: it is noted by hash.
        time.advance(Duration::from_secs(60));
        let file = &delegations::create(&reader, name);
        let stateid = delegations::delegated(&reader, name);
        let status = std::thread::scope(|scope| {
            let asks = scope.spawn(|| status_of_connected(&server, name, file));
            while delegations::waits(&server) <= round as u64 && !asks.is_finished() {
                std::thread::yield_now();
            }
            give_up(&server, file);
            assert_eq!(calls.recv_timeout(Duration::from_secs(60)).unwrap().stateid, stateid, "{name}");
            assert_eq!(delegations::give_back(&reader, file, stateid), NfsStat4::Ok);
            asks.join().unwrap()
        });
        let is_given_up = name != "UNLOCK of another owner";
        let expected = if is_given_up { NlmStat4::DeniedGracePeriod } else { NlmStat4::Granted };
        assert_eq!(status, expected, "{name}");
        // Another host.
        let expected = if is_given_up { NlmStat4::Granted } else { NlmStat4::Denied };
        assert_eq!(nlm_lock(&server, file, false), expected, "{name}");
        let share = nlm_share(&server, 0, file, NlmShareAccess::Read, ShareDeny::None);
        assert_eq!(share, NlmStat4::Granted, "{name}");
    }
}

// SEMANTICS: stateful-11.
#[test]
fn a_host_gets_nothing_that_it_gives_up_while_its_request_is_executed_again() {
    for (name, give_up) in GIVE_UP {
        let rules = ExportRules { secure_ports: false, ..rules() };
        let (server, peers, _) = server_of(vec![export("/srv/files", 1, rules)]);
        let server = server.connected();
        let reader = server.client("reader");
        let calls = delegations::bind(&reader, delegations::ok);
        let file = delegations::create(&reader, "file");
        let stateid = delegations::delegated(&reader, "file");
        // The host is recorded after the request has found that it was not given up.
        let (given_up, other) = (file.clone(), Server::over(Arc::clone(&server.service)));
        *peers.1.lock() = Some(Box::new(move || give_up(&other, &given_up)));
        let status = std::thread::scope(|scope| {
            let asks = scope.spawn(|| status_of_connected(&server, name, &file));
            assert_eq!(calls.recv_timeout(Duration::from_secs(60)).unwrap().stateid, stateid, "{name}");
            while delegations::waits(&server) == 0 && !asks.is_finished() {
                std::thread::yield_now();
            }
            assert_eq!(delegations::give_back(&reader, &file, stateid), NfsStat4::Ok);
            asks.join().unwrap()
        });
        assert!(peers.1.lock().is_none(), "{name}");
        let is_given_up = name != "UNLOCK of another owner";
        let expected = if is_given_up { NlmStat4::DeniedGracePeriod } else { NlmStat4::Granted };
        assert_eq!(status, expected, "{name}");
        let expected = if is_given_up { NlmStat4::Granted } else { NlmStat4::Denied };
        assert_eq!(nlm_lock(&server, &file, false), expected, "{name}");
        let share = nlm_share(&server, 0, &file, NlmShareAccess::Read, ShareDeny::None);
        assert_eq!(share, NlmStat4::Granted, "{name}");
    }
}

// SEMANTICS: stateful-11.
#[test]
fn a_host_reserves_what_a_reader_does_not_know_of_when_its_delegation_is_back() {
    let reserved = [
        (1000, NlmShareAccess::Read, ShareDeny::Read),
        (0, NlmShareAccess::Write, ShareDeny::None),
        (1000, NlmShareAccess::Read, ShareDeny::None),
    ];
    for (number, (uid, access, deny)) in reserved.into_iter().enumerate() {
        let (server, _, _) = server();
        let reader = server.client("reader");
        let calls = delegations::bind(&reader, delegations::ok);
        let file = delegations::create(&reader, "file");
        assert_eq!(delegations::set_mode(&reader, &file, 0o644), NfsStat4::Ok);
        let opened = reader.open(&reader.files(), &opening("file", "reader", ShareAccess4::READ, 0)).unwrap();
        let OpenDelegation::Read { stateid, .. } = opened.result.delegation else { panic!("no delegation") };
        let close = CloseArgs4 { seqid: 0, stateid: opened.stateid };
        assert_eq!(reader.at(&file, &|compound| compound.push(&close)), NfsStat4::Ok);
        let share = || nlm_share(&server, uid, &file, access, deny);
        if number < 2 {
            assert_eq!(share(), NlmStat4::DeniedGracePeriod, "{number}");
            assert_eq!(calls.recv_timeout(Duration::from_secs(60)).unwrap().stateid, stateid);
            assert_eq!(delegations::give_back(&reader, &file, stateid), NfsStat4::Ok);
        }
        assert_eq!(share(), NlmStat4::Granted, "{number}");
        assert!(calls.try_recv().is_err(), "{number}");
    }
}

// SEMANTICS: sessions-22, stateful-9.
#[test]
fn an_expired_client_keeps_its_locks_until_somebody_wants_one() {
    for who in 0..5 {
        let (server, peers, time) = server();
        let (one, file, stateid) = holder(&server, "one");
        time.advance(Duration::from_secs(89));
        let two = server.client("two");
        let open = two.open(&two.files(), &opening("file", "o", BOTH, 0)).unwrap().stateid;
        let asked = locking(LockType4::Read, 5, 1, new_owner(open, b"b"));
        assert!(is_denied(&lock(&two, &file, &asked)), "{who}");
        time.advance(Duration::from_secs(2));
        server.service.expire_leases();
        assert_eq!(server.service.clients().len(), 2, "{who}");
        match who {
            0 => assert_eq!(lock(&two, &file, &asked).unwrap().seqid, 1),
            1 => assert_eq!(test(&two, &file, b"b", LockType4::Read, 5, 1), Ok(())),
            2 => assert_eq!(nlm_lock(&server, &file, false), NlmStat4::Granted),
            3 => {
                assert_eq!(nlm_lock(&server, &file, true), NlmStat4::Blocked);
                assert_eq!(peers.granted(), 1);
            }
            _ => {
                // Nobody wants it: the client returns and has it.
                unlock(&one, &file, stateid, 0, REST).unwrap();
                continue;
            }
        }
        let lost = unlock(&one, &file, stateid, 0, REST);
        assert_eq!(lost, Err(Failure::Status(NfsStat4::Badsession)), "{who}");
    }
}

// SEMANTICS: stateful-9.
#[test]
fn who_waits_for_a_lock_gets_it_when_the_lease_of_its_holder_ends() {
    for is_host in [true, false] {
        let (server, peers, time) = server();
        let (one, file, stateid) = holder(&server, "one");
        // Nobody waits for what the third client has locked.
        let other = server.client("other");
        let opened = other.open(&other.files(), &creating("other", "o", BOTH, 0)).unwrap();
        let asked = locking(LockType4::Write, 0, REST, new_owner(opened.stateid, b"a"));
        let kept = lock(&other, &opened.handle, &asked).unwrap();
        time.advance(Duration::from_secs(89));
        let two = server.client("two");
        let calls = bind(&two, |asked| Ok(accepted(asked)));
        let open = two.open(&two.files(), &opening("file", "o", BOTH, 0)).unwrap().stateid;
        let wait = locking(LockType4::WriteWait, 0, 8, new_owner(open, b"b"));
        if is_host {
            assert_eq!(nlm_lock(&server, &file, true), NlmStat4::Blocked);
        } else {
            assert!(is_denied(&lock(&two, &file, &wait)));
        }
        server.service.expire_leases();
        assert_eq!((server.service.clients().len(), peers.granted()), (3, 0), "the lease has not ended");
        time.advance(Duration::from_secs(2));
        server.service.expire_leases();
        assert_eq!(server.service.clients().len(), 2);
        if is_host {
            assert_eq!(peers.granted(), 1);
        } else {
            assert_eq!(call(&calls).1, b"b");
            lock(&two, &file, &wait).unwrap();
        }
        let lost = unlock(&one, &file, stateid, 0, REST);
        assert_eq!(lost, Err(Failure::Status(NfsStat4::Badsession)));
        unlock(&other, &opened.handle, kept, 0, REST).unwrap();
    }
}
