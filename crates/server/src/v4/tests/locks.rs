//! LOCK, LOCKT, LOCKU, and the stateids of locks.

use std::sync::Arc;

use curt_observe::ServerCounters;
use curt_proto::nfs4::*;
use curt_types::FileHandle;
use curt_xdr::{Decode, DecodeError, Decoder, Opaque, VarArray};

use super::test_client::{Server, TestClient, channel, creating, memory, opening, rules};
use crate::{ExportDefinition, NfsService, NfsServiceConfig, PersistentState};

const READ: u32 = ShareAccess4::READ;
const WRITE: u32 = ShareAccess4::WRITE;
pub(super) const BOTH: u32 = ShareAccess4::BOTH;
pub(super) const REST: u64 = u64::MAX;

/// The lock in a reply of NFS4ERR_DENIED.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) kind: LockType4,
    pub(super) clientid: Clientid,
    pub(super) owner: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Status(NfsStat4),
    Denied(Holder),
}

use Failure::Status;

fn owner(name: &[u8]) -> StateOwner<'_> {
    // Not the session's client, which is the one that counts.
    StateOwner { clientid: Clientid(77), owner: Opaque::new(name).unwrap() }
}

pub(super) fn new_owner<'a>(open: Stateid, name: &'a [u8]) -> Locker<'a> {
    Locker::New { open_seqid: 5, open_stateid: open, seqid: 9, owner: owner(name) }
}

const fn existing(stateid: Stateid) -> Locker<'static> {
    Locker::Existing { stateid, seqid: 3 }
}

pub(super) fn locking(kind: LockType4, offset: u64, length: u64, locker: Locker<'_>) -> LockArgs4<'_> {
    LockArgs4 { kind, reclaim: false, offset, length, locker }
}

/// Runs one operation on a file whose failure may have a body.
fn run<A: OperationArguments>(
    client: &TestClient<'_>,
    file: &FileHandle,
    arguments: &A,
) -> Result<Option<Stateid>, Failure> {
    let reply = client.run(&|compound| {
        compound.push(&PutfhArgs4 { object: NfsFh4::from(file) });
        compound.push(arguments);
    });
    let mut results = CompoundResults::new(&reply).unwrap();
    results.next::<SequenceOk4>(Nfs4Operation::Sequence).map_err(|_| Status(results.header().status))?;
    assert_eq!(results.status(Nfs4Operation::Putfh), Ok(NfsStat4::Ok));
    match results.status(A::OPERATION).unwrap() {
        NfsStat4::Ok if A::OPERATION == Nfs4Operation::Lockt => Ok(None),
        NfsStat4::Ok => Ok(Some(results.decoder().get().unwrap())),
        NfsStat4::Denied => {
            let LockDenied { offset, length, kind, owner } = results.decoder().get().unwrap();
            let (clientid, owner) = (owner.clientid, owner.owner.bytes().to_vec());
            Err(Failure::Denied(Holder { offset, length, kind, clientid, owner }))
        }
        status => Err(Status(status)),
    }
}

pub(super) fn lock(
    client: &TestClient<'_>,
    file: &FileHandle,
    asked: &LockArgs4<'_>,
) -> Result<Stateid, Failure> {
    Ok(run(client, file, asked)?.unwrap())
}

pub(super) fn unlock(
    client: &TestClient<'_>,
    file: &FileHandle,
    stateid: Stateid,
    offset: u64,
    length: u64,
) -> Result<Stateid, Failure> {
    let asked = LockuArgs4 { kind: LockType4::Read, seqid: 1, stateid, offset, length };
    Ok(run(client, file, &asked)?.unwrap())
}

pub(super) fn test(
    client: &TestClient<'_>,
    file: &FileHandle,
    name: &[u8],
    kind: LockType4,
    offset: u64,
    length: u64,
) -> Result<(), Failure> {
    run(client, file, &LocktArgs4 { kind, offset, length, owner: owner(name) }).map(drop)
}

pub(super) fn is_denied<T>(outcome: &Result<T, Failure>) -> bool {
    matches!(outcome, Err(Failure::Denied(_)))
}

fn close(client: &TestClient<'_>, file: &FileHandle, stateid: Stateid) -> NfsStat4 {
    client.at(file, &|compound| compound.push(&CloseArgs4 { seqid: 0, stateid }))
}

fn free(client: &TestClient<'_>, stateid: Stateid) -> NfsStat4 {
    client.status(&|compound| compound.push(&FreeStateidArgs4 { stateid }))
}

/// The status of one stateid, by TEST_STATEID.
fn tested(client: &TestClient<'_>, stateid: Stateid) -> NfsStat4 {
    let stateids = VarArray::new(vec![stateid]).unwrap();
    let asked = TestStateidArgs4 { stateids };
    let got: TestStateidOk4 =
        client.last(&[], Nfs4Operation::TestStateid, &|compound| compound.push(&asked)).unwrap();
    got.statuses[0]
}

// SEMANTICS: stateful-9.
#[test]
fn locks_exclude_owners_and_clients_and_the_denial_names_the_holder() {
    let server = Server::new();
    let (one, two) = (server.client("one"), server.client("two"));
    let root = one.files();
    let held = one.open(&root, &creating("file", "o", BOTH, 0)).unwrap();
    let other = two.open(&root, &opening("file", "o", BOTH, 0)).unwrap();
    let file = &held.handle;
    let asked = locking(LockType4::Write, 10, 10, new_owner(held.stateid, b"a"));
    let first = lock(&one, file, &asked).unwrap();
    assert_eq!(first.seqid, 1);
    assert_ne!(first.other, held.stateid.other);
    // The owner of another client with the same name is another one.
    for (client, open, name) in [(&two, other.stateid, b"a"), (&one, held.stateid, b"b")] {
        let denied = lock(client, file, &locking(LockType4::Read, 0, REST, new_owner(open, name)));
        let Err(Failure::Denied(holder)) = denied else { panic!("{denied:?}") };
        assert_ne!(holder.clientid, Clientid(77));
        let expected = Holder {
            offset: 10,
            length: 10,
            kind: LockType4::Write,
            clientid: holder.clientid,
            owner: b"a".to_vec(),
        };
        assert_eq!(holder, expected);
        assert_eq!(test(client, file, name, LockType4::Read, 19, 1), Err(Failure::Denied(expected)));
        assert_eq!(test(client, file, name, LockType4::Write, 20, REST), Ok(()));
    }
    assert_eq!(test(&one, file, b"a", LockType4::Write, 10, 10), Ok(()));
    // A downgrade of a part lets readers in.
    let second = lock(&one, file, &locking(LockType4::Read, 15, 5, existing(first))).unwrap();
    assert_eq!((second.seqid, second.other), (2, first.other));
    let read = locking(LockType4::Read, 15, 5, new_owner(other.stateid, b"a"));
    assert_eq!(lock(&two, file, &read).map(|stateid| stateid.seqid), Ok(1));
    let third = unlock(&one, file, second, 0, REST).unwrap();
    assert_eq!(third.seqid, 3);
    lock(&two, file, &locking(LockType4::Write, 10, 5, new_owner(other.stateid, b"c"))).unwrap();
    // To the end of the file.
    lock(&two, file, &locking(LockType4::Write, 1000, REST, new_owner(other.stateid, b"c"))).unwrap();
    let denied = test(&one, file, b"a", LockType4::Read, u64::MAX, REST);
    assert!(matches!(denied, Err(Failure::Denied(Holder { offset: 1000, length: REST, .. }))), "{denied:?}");
}

#[test]
fn ranges_without_a_byte_or_beyond_the_last_are_invalid() {
    let server = Server::new();
    let client = server.client("one");
    let opened = client.open(&client.files(), &creating("file", "o", BOTH, 0)).unwrap();
    let (file, open) = (&opened.handle, opened.stateid);
    let held = lock(&client, file, &locking(LockType4::Read, 0, 1, new_owner(open, b"a"))).unwrap();
    for (offset, length) in
        [(0, 0), (5, 0), (u64::MAX, 1), (u64::MAX, 2), (2, u64::MAX - 1), (REST, REST - 1)]
    {
        let asked = locking(LockType4::Read, offset, length, new_owner(open, b"a"));
        assert_eq!(lock(&client, file, &asked), Err(Status(NfsStat4::Inval)), "{offset} {length}");
        assert_eq!(
            test(&client, file, b"a", LockType4::Read, offset, length),
            Err(Status(NfsStat4::Inval)),
            "{offset} {length}"
        );
        assert_eq!(unlock(&client, file, held, offset, length), Err(Status(NfsStat4::Inval)));
    }
    let mut held = held;
    for (offset, length) in [(u64::MAX - 1, 1), (u64::MAX, REST), (1, REST), (0, u64::MAX - 1)] {
        held = lock(&client, file, &locking(LockType4::Read, offset, length, existing(held))).unwrap();
    }
}

#[test]
fn a_lock_needs_an_open_of_its_file_and_kind() {
    let server = Server::new();
    let (client, other) = (server.client("one"), server.client("two"));
    let root = client.files();
    let reads = client.open(&root, &creating("file", "reader", READ, 0)).unwrap();
    let writes = client.open(&root, &opening("file", "writer", WRITE, 0)).unwrap();
    let elsewhere = client.open(&root, &creating("other", "writer", BOTH, 0)).unwrap();
    let file = &reads.handle;
    let ask = |kind, locker| lock(&client, file, &locking(kind, 0, 1, locker));
    assert_eq!(ask(LockType4::Write, new_owner(reads.stateid, b"a")), Err(Status(NfsStat4::Openmode)));
    assert_eq!(ask(LockType4::ReadWait, new_owner(writes.stateid, b"a")), Err(Status(NfsStat4::Openmode)));
    let bad = Err(Status(NfsStat4::BadStateid));
    assert_eq!(ask(LockType4::Read, new_owner(elsewhere.stateid, b"a")), bad);
    let held = ask(LockType4::Read, new_owner(reads.stateid, b"a")).unwrap();
    assert_eq!(ask(LockType4::Read, new_owner(held, b"a")), bad);
    assert_eq!(ask(LockType4::Read, existing(reads.stateid)), bad);
    assert_eq!(ask(LockType4::Write, existing(held)), Err(Status(NfsStat4::Openmode)));
    assert_eq!(unlock(&client, file, reads.stateid, 0, 1), bad);
    assert_eq!(unlock(&client, &elsewhere.handle, held, 0, 1), bad);
    assert_eq!(unlock(&other, file, held, 0, 1), bad);
    assert_eq!(lock(&other, file, &locking(LockType4::Read, 0, 1, existing(held))), bad);
    for special in [Stateid::ANONYMOUS, Stateid::READ_BYPASS, Stateid::CURRENT, Stateid::INVALID] {
        assert_eq!(ask(LockType4::Read, new_owner(special, b"a")), bad);
        assert_eq!(ask(LockType4::Read, existing(special)), bad);
        assert_eq!(unlock(&client, file, special, 0, 1), bad);
    }
    // An open of one owner, and a lock state of one and the same owner for each open.
    let by_writer = ask(LockType4::Write, new_owner(writes.stateid, b"a")).unwrap();
    assert_ne!(by_writer.other, held.other);
    assert_eq!(ask(LockType4::Read, existing(Stateid { seqid: 2, ..held })), bad);
    let newer = ask(LockType4::Read, existing(Stateid { seqid: 0, ..held })).unwrap();
    assert_eq!(ask(LockType4::Read, existing(held)), Err(Status(NfsStat4::OldStateid)));
    assert_eq!((newer.seqid, tested(&client, newer)), (2, NfsStat4::Ok));
    assert_eq!(tested(&client, held), NfsStat4::OldStateid);
    assert_eq!(close(&client, file, newer), NfsStat4::BadStateid);
    // A lock state of an owner that got nothing does not exist.
    let directory = lock(&client, &root, &locking(LockType4::Read, 0, 1, existing(newer)));
    assert_eq!(directory, Err(Status(NfsStat4::Isdir)));
}

#[test]
fn the_stateid_of_a_lock_reads_and_writes_as_its_open_may() {
    let server = Server::new();
    let client = server.client("one");
    let root = client.files();
    for (access, may_write) in [(READ, NfsStat4::Openmode), (BOTH, NfsStat4::Ok)] {
        let opened = client.open(&root, &creating(&format!("{access}"), "o", access, 0)).unwrap();
        let asked = locking(LockType4::Read, 0, 1, new_owner(opened.stateid, b"a"));
        let stateid = lock(&client, &opened.handle, &asked).unwrap();
        let status = |arguments: &dyn Fn(&mut CompoundEncoder<'_>)| client.at(&opened.handle, arguments);
        let reads = ReadArgs4 { stateid, offset: 0, count: 1 };
        assert_eq!(status(&|compound| compound.push(&reads)), NfsStat4::Ok);
        let data = Opaque::new(b"x").unwrap();
        let writes = WriteArgs4 { stateid, offset: 0, stable: StableHow4::FileSync, data };
        assert_eq!(status(&|compound| compound.push(&writes)), may_write);
        super::fixture::fattr(
            &AttributeValues { size: Some(0), ..AttributeValues::default() },
            |attributes| {
                assert_eq!(
                    status(&|compound| compound.push(&SetattrArgs4 { stateid, attributes })),
                    may_write
                );
            },
        );
    }
}

// SEMANTICS: stateful-9.
#[test]
fn locks_end_with_their_open_their_stateid_and_their_client() {
    let server = Server::new();
    let (one, two) = (server.client("one"), server.client("two"));
    let root = one.files();
    let first = one.open(&root, &creating("file", "o", BOTH, 0)).unwrap();
    let second = one.open(&root, &opening("file", "p", BOTH, 0)).unwrap();
    let (file, write) = (&first.handle, LockType4::Write);
    let free_for_two = || test(&two, file, b"t", LockType4::Write, 0, REST) == Ok(());
    let of_first = lock(&one, file, &locking(write, 0, 1, new_owner(first.stateid, b"a"))).unwrap();
    assert_eq!(free(&one, of_first), NfsStat4::LocksHeld);
    assert_eq!(free(&one, first.stateid), NfsStat4::LocksHeld);
    // The owner has one set of locks in the file, however many opens it is based on.
    let of_second = lock(&one, file, &locking(write, 5, 1, new_owner(second.stateid, b"a"))).unwrap();
    assert_eq!(close(&one, file, first.stateid), NfsStat4::Ok);
    assert_eq!(tested(&one, of_first), NfsStat4::BadStateid);
    assert!(is_denied(&test(&two, file, b"t", LockType4::Write, 0, 1)));
    let of_second = unlock(&one, file, of_second, 0, REST).unwrap();
    assert!(free_for_two());
    assert_eq!(free(&one, of_second), NfsStat4::Ok);
    assert_eq!(free(&one, of_second), NfsStat4::BadStateid);
    let again = lock(&one, file, &locking(write, 0, 1, new_owner(second.stateid, b"a"))).unwrap();
    assert_eq!(again.seqid, 1);
    assert!(!free_for_two());
    assert_eq!(close(&one, file, second.stateid), NfsStat4::Ok);
    assert!(free_for_two());
    // The client restarts, as its verifier shows, or is removed.
    let open = one.open(&root, &opening("file", "p", BOTH, 0)).unwrap();
    lock(&one, file, &locking(write, 0, 1, new_owner(open.stateid, b"a"))).unwrap();
    assert!(!free_for_two());
    let id = server.service.clients().iter().find(|client| client.name == "one").unwrap().id;
    let _restarted = server.instance("one", 2, channel());
    assert!(free_for_two());
    assert!(!server.service.expire_client(id));
    let one = server.client("one");
    let open = one.open(&root, &opening("file", "p", BOTH, 0)).unwrap();
    lock(&one, file, &locking(write, 0, 1, new_owner(open.stateid, b"a"))).unwrap();
    assert!(!free_for_two());
    let id = server.service.clients().iter().find(|client| client.name == "one").unwrap().id;
    assert!(server.service.expire_client(id));
    assert!(free_for_two());
}

#[test]
fn the_largest_owner_in_a_denial_fits_or_is_left_out() {
    let server = Server::new();
    let (one, two) = (server.client("one"), server.client("two"));
    let root = one.files();
    let held = one.open(&root, &creating("file", "o", BOTH, 0)).unwrap();
    let (file, name) = (&held.handle, [b'n'; 1024]);
    lock(&one, file, &locking(LockType4::Write, 0, 8, new_owner(held.stateid, &name))).unwrap();
    let of = |client: &TestClient<'_>, open: Stateid| {
        let asked = locking(LockType4::Write, 0, 8, new_owner(open, b"b"));
        match lock(client, file, &asked) {
            Err(Failure::Denied(holder)) => holder.owner.len(),
            outcome => panic!("{outcome:?}"),
        }
    };
    let other = two.open(&root, &opening("file", "o", BOTH, 0)).unwrap();
    assert_eq!(of(&two, other.stateid), 1024);
    // A cache of replies that has no room for the name.
    let small = server.client_with("small", ChannelAttributes { response_cached_max: 1024, ..channel() });
    let opened = small.open(&root, &opening("file", "o", BOTH, 0)).unwrap();
    small.caches.set(true);
    assert_eq!(of(&small, opened.stateid), 0);
    let reply = small.repeat(&|compound| {
        compound.push(&PutfhArgs4 { object: NfsFh4::from(file) });
        compound.push(&locking(LockType4::Write, 0, 8, new_owner(opened.stateid, b"b")));
    });
    assert_eq!(CompoundResults::new(&reply).unwrap().header().status, NfsStat4::Denied);
    small.caches.set(false);
    assert_eq!(of(&small, opened.stateid), 1024);
}

// SEMANTICS: stateful-8.
#[test]
fn locks_are_reclaimed_in_the_grace_period_only_and_by_their_holders() {
    let (directory, tree) = (tempfile::tempdir().unwrap(), memory(1));
    let start = || {
        let state = PersistentState::open(directory.path()).unwrap();
        let exports = vec![ExportDefinition::for_everyone(b"/srv/files".to_vec(), tree.clone(), rules())];
        let counters = Arc::new(ServerCounters::default());
        let mut service = NfsService::new(NfsServiceConfig { state, exports, counters }).unwrap();
        service.recover_clients().unwrap();
        Server::over(Arc::new(service))
    };
    let reclaiming = |locker| LockArgs4 { reclaim: true, ..locking(LockType4::Write, 0, 8, locker) };
    let server = start();
    let one = server.client("one");
    let root = one.files();
    let opened = one.open(&root, &creating("file", "o", BOTH, 0)).unwrap();
    let locker = new_owner(opened.stateid, b"a");
    assert_eq!(lock(&one, &opened.handle, &reclaiming(locker)), Err(Status(NfsStat4::NoGrace)));
    lock(&one, &opened.handle, &locking(LockType4::Write, 0, 8, locker)).unwrap();
    drop(server);

    let server = start();
    let one = server.reclaiming_client("one", channel());
    let (two, file) = (server.client("two"), opened.handle);
    assert_eq!(test(&two, &file, b"t", LockType4::Read, 0, 8), Err(Status(NfsStat4::Grace)));
    let open = OpenArgs4 { claim: OpenClaim::Previous(DelegationType::None), ..opening("", "o", BOTH, 0) };
    let reclaimed: OpenOk4Stateid = one
        .last(&[Nfs4Operation::Putfh], Nfs4Operation::Open, &|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(&file) });
            compound.push(&open);
        })
        .unwrap();
    let locker = new_owner(reclaimed.0, b"a");
    let new = lock(&one, &file, &locking(LockType4::Write, 0, 8, locker));
    assert_eq!(new, Err(Status(NfsStat4::Grace)));
    assert_eq!(
        lock(&one, &file, &locking(LockType4::Write, 0, 8, new_owner(opened.stateid, b"a"))),
        Err(Status(NfsStat4::BadStateid))
    );
    let held = lock(&one, &file, &reclaiming(locker)).unwrap();
    // Somebody else cannot have held it.
    let other = lock(&one, &file, &reclaiming(new_owner(reclaimed.0, b"b")));
    assert_eq!(other, Err(Status(NfsStat4::ReclaimConflict)));
    let complete = ReclaimCompleteArgs4 { one_file_system: false };
    assert_eq!(one.status(&|compound| compound.push(&complete)), NfsStat4::Ok);
    assert_eq!(lock(&one, &file, &reclaiming(existing(held))), Err(Status(NfsStat4::NoGrace)));
    server.service.expire_leases();
    assert!(is_denied(&test(&two, &file, b"t", LockType4::Read, 0, 8)));
    unlock(&one, &file, held, 0, 8).unwrap();
    assert_eq!(test(&two, &file, b"t", LockType4::Read, 0, 8), Ok(()));
}

/// The stateid at the beginning of OPEN's result.
struct OpenOk4Stateid(Stateid);

impl<'a> Decode<'a> for OpenOk4Stateid {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        decoder.get().map(Self)
    }
}
