//! OPEN, CLOSE, OPEN_DOWNGRADE, and I/O with stateids.

use std::time::Duration;

use curt_proto::nfs3::{
    CreateArguments, CreateHow, DirOpArgs, Filename, NfsProcedure, NfsStat3, ReadArguments, Sattr,
};
use curt_proto::nfs4::{
    Attribute, AttributeValues, CloseArgs4, CompoundResults, CreateArgs4, CreateHow4, CreateType4,
    DelegationType, Fattr4, GetattrArgs4, Nfs4Operation, NfsFh4, NfsStat4, NfsTime4, NoDelegation, OpenArgs4,
    OpenClaim, OpenDelegation, OpenDowngradeArgs4, OpenHow, OpenOk4, PutfhArgs4, ReadArgs4, ReadOk4,
    ReclaimCompleteArgs4, RemoveArgs4, SetTime4, SetattrArgs4, ShareAccess4, SpecData4, StableHow4, Stateid,
    Verifier4, WriteArgs4, WriteOk4,
};
use curt_types::FileHandle;
use curt_xdr::{Encode, Opaque};

use super::delegations::{self, Runs};
use super::fixture::{Fixture, go};
use super::test_client::{Opened, Server, TestClient, channel, creating, opening, rules, user};
use crate::ExportRules;
use crate::state::RecordedClient;

const READ: u32 = ShareAccess4::READ;
const WRITE: u32 = ShareAccess4::WRITE;
const BOTH: u32 = ShareAccess4::BOTH;

/// Attributes as they stand in a message.
fn fattr<'a>(values: &AttributeValues<'_>, bytes: &'a mut Vec<u8>) -> Fattr4<'a> {
    values.encode_values(values.present(), bytes);
    Fattr4 { mask: values.present(), values: Opaque::new(bytes).unwrap() }
}

fn close(client: &TestClient<'_>, file: &FileHandle, stateid: Stateid) -> NfsStat4 {
    client.at(file, &|compound| compound.push(&CloseArgs4 { seqid: 0, stateid }))
}

fn read(client: &TestClient<'_>, file: &FileHandle, stateid: Stateid) -> Result<Vec<u8>, NfsStat4> {
    let reply = client.run(&|compound| {
        compound.push(&PutfhArgs4 { object: NfsFh4::from(file) });
        compound.push(&ReadArgs4 { stateid, offset: 0, count: 100 });
    });
    let mut results = CompoundResults::new(&reply).unwrap();
    if results.header().status != NfsStat4::Ok {
        return Err(results.header().status);
    }
    results.next::<curt_proto::nfs4::SequenceOk4>(Nfs4Operation::Sequence).unwrap();
    results.status(Nfs4Operation::Putfh).unwrap();
    let ok: ReadOk4<'_> = results.next(Nfs4Operation::Read).unwrap();
    Ok(ok.data.bytes().to_vec())
}

fn write(client: &TestClient<'_>, file: &FileHandle, stateid: Stateid, data: &[u8]) -> Result<u32, NfsStat4> {
    let written: WriteOk4 = client.last(&[Nfs4Operation::Putfh], Nfs4Operation::Write, &|compound| {
        compound.push(&PutfhArgs4 { object: NfsFh4::from(file) });
        let data = Opaque::new(data).unwrap();
        compound.push(&WriteArgs4 { stateid, offset: 0, stable: StableHow4::FileSync, data });
    })?;
    assert_eq!(written.committed, StableHow4::FileSync);
    Ok(written.count)
}

fn set_size(client: &TestClient<'_>, file: &FileHandle, stateid: Stateid) -> NfsStat4 {
    let (values, mut bytes) = (AttributeValues { size: Some(1), ..AttributeValues::default() }, Vec::new());
    let attributes = fattr(&values, &mut bytes);
    client.at(file, &|compound| compound.push(&SetattrArgs4 { stateid, attributes }))
}

#[test]
fn a_file_is_created_written_read_and_closed() {
    let server = Server::new();
    let client = server.client("one");
    let root = client.files();
    assert_eq!(client.open(&root, &opening("file", "owner", READ, 0)).unwrap_err(), NfsStat4::Noent);
    let opened = client.open(&root, &creating("file", "owner", BOTH, 0)).unwrap();
    assert_eq!(opened.stateid.seqid, 1);
    assert!(
        opened.result.directory.atomic && opened.result.directory.before != opened.result.directory.after
    );
    assert_eq!(write(&client, &opened.handle, opened.stateid, b"data"), Ok(4));
    assert_eq!(read(&client, &opened.handle, opened.stateid), Ok(b"data".to_vec()));
    assert_eq!(set_size(&client, &opened.handle, opened.stateid), NfsStat4::Ok);
    // The second open of an owner is the same state.
    let again = client.open(&root, &opening("file", "owner", READ, 0)).unwrap();
    assert_eq!((again.stateid.other, again.stateid.seqid), (opened.stateid.other, 2));
    assert_eq!(read(&client, &opened.handle, opened.stateid), Err(NfsStat4::OldStateid));
    assert_eq!(read(&client, &opened.handle, again.stateid), Ok(b"d".to_vec()));
    assert_eq!(close(&client, &opened.handle, again.stateid), NfsStat4::Ok);
    assert_eq!(close(&client, &opened.handle, again.stateid), NfsStat4::BadStateid);
    assert_eq!(read(&client, &opened.handle, again.stateid), Err(NfsStat4::BadStateid));
}

#[test]
fn an_open_is_for_its_file_its_access_and_its_client() {
    let server = Server::new();
    let (client, other) = (server.client("one"), server.client("two"));
    let root = client.files();
    let for_reading = client.open(&root, &creating("file", "owner", READ, 0)).unwrap();
    let for_writing = client.open(&root, &creating("other", "owner", WRITE, 0)).unwrap();
    let file = &for_reading.handle;
    assert_eq!(write(&client, file, for_reading.stateid, b"x"), Err(NfsStat4::Openmode));
    assert_eq!(set_size(&client, file, for_reading.stateid), NfsStat4::Openmode);
    assert_eq!(write(&client, file, for_writing.stateid, b"x"), Err(NfsStat4::BadStateid));
    assert_eq!(read(&other, file, for_reading.stateid), Err(NfsStat4::BadStateid));
    assert_eq!(close(&other, file, for_reading.stateid), NfsStat4::BadStateid);
    let forged = Stateid { other: [7; 12], ..for_reading.stateid };
    for stateid in [forged, Stateid::INVALID, Stateid::CURRENT] {
        assert_eq!(read(&client, file, stateid), Err(NfsStat4::BadStateid), "{stateid:?}");
    }
    for stateid in [Stateid::ANONYMOUS, Stateid::READ_BYPASS] {
        assert_eq!(read(&client, file, stateid), Ok(Vec::new()));
        assert_eq!(close(&client, file, stateid), NfsStat4::BadStateid);
    }
    let newest = Stateid { seqid: 0, ..for_reading.stateid };
    assert_eq!(read(&client, file, newest), Ok(Vec::new()));
    let later = Stateid { seqid: 9, ..for_reading.stateid };
    assert_eq!(read(&client, file, later), Err(NfsStat4::BadStateid));
}

// SEMANTICS: stateful-3.
#[test]
fn denials_hold_between_owners_clients_and_versions_until_close() {
    let server = Server::new();
    let (one, two) = (server.client("one"), server.client("two"));
    let root = one.files();
    let opened = one.open(&root, &creating("file", "owner", BOTH, WRITE)).unwrap();
    for client in [&one, &two] {
        let open = |access, deny| client.open(&root, &opening("file", "other", access, deny));
        assert_eq!(open(WRITE, 0).unwrap_err(), NfsStat4::ShareDenied);
        assert_eq!(open(READ, READ).unwrap_err(), NfsStat4::ShareDenied);
        let reads = open(READ, 0).unwrap();
        assert_eq!(close(client, &reads.handle, reads.stateid), NfsStat4::Ok);
    }
    let file = &opened.handle;
    // I/O without an open obeys, too.
    assert_eq!(write(&two, file, Stateid::ANONYMOUS, b"x"), Err(NfsStat4::Locked));
    assert_eq!(set_size(&two, file, Stateid::ANONYMOUS), NfsStat4::Locked);
    assert_eq!(read(&two, file, Stateid::ANONYMOUS), Ok(Vec::new()));
    assert_eq!(v3_write(&server, file), NfsStat3::Jukebox);
    assert_eq!(v3_read(&server, file), NfsStat3::Ok);
    // So does a creation that truncates what exists.
    let empty = Sattr { size: Some(0), ..Sattr::default() };
    let create = |how| v3_create(&server, &root, how);
    assert_eq!(write(&one, file, opened.stateid, b"data"), Ok(4));
    assert_eq!(create(CreateHow::Unchecked(empty)), NfsStat3::Jukebox);
    assert_eq!(create(CreateHow::Guarded(empty)), NfsStat3::Exist);
    assert_eq!(create(CreateHow::Unchecked(Sattr::default())), NfsStat3::Ok);
    assert_eq!(read(&one, file, opened.stateid), Ok(b"data".to_vec()));
    assert_eq!(close(&one, file, opened.stateid), NfsStat4::Ok);
    assert_eq!(v3_write(&server, file), NfsStat3::Ok);
    assert_eq!(create(CreateHow::Unchecked(empty)), NfsStat3::Ok);
    assert_eq!(read(&two, file, Stateid::ANONYMOUS), Ok(Vec::new()));
    let denies_reading = two.open(&root, &opening("file", "other", BOTH, READ)).unwrap();
    assert_eq!(v3_read(&server, file), NfsStat3::Jukebox);
    assert_eq!(close(&two, file, denies_reading.stateid), NfsStat4::Ok);
    assert_eq!(v3_read(&server, file), NfsStat3::Ok);
}

// SEMANTICS: stateful-3.
#[test]
fn nfs3_waits_in_the_grace_period_as_long_as_a_client_may_have_denied_access() {
    for deny in [0, WRITE] {
        let runs = Runs::new();
        let file = {
            let server = runs.start();
            let (reader, denier) = (server.client("reader"), server.client("denier"));
            let opened = reader.open(&reader.files(), &creating("file", "o", READ, 0)).unwrap();
            // Its record is written before it denies anything.
            denier.open(&denier.files(), &opening("file", "first", READ, 0)).unwrap();
            denier.open(&denier.files(), &opening("file", "second", READ, deny)).unwrap();
            opened.handle
        };
        for is_cut_short in [true, false] {
            let server = runs.start();
            let denier = server.reclaiming_client("denier", channel());
            let root = denier.files();
            let status = |denied| if deny != 0 && denied { NfsStat3::Jukebox } else { NfsStat3::Ok };
            let empty = Sattr { size: Some(0), ..Sattr::default() };
            let truncates = v3_create(&server, &root, CreateHow::Unchecked(empty));
            assert_eq!([v3_read(&server, &file), v3_write(&server, &file), truncates], [status(true); 3]);
            assert_eq!(v3_create(&server, &root, CreateHow::Unchecked(Sattr::default())), NfsStat3::Ok);
            let claim = OpenClaim::Previous(DelegationType::None);
            let reclaim = OpenArgs4 { claim, ..opening("", "second", READ, deny) };
            let reclaimed = denier.open(&file, &reclaim).unwrap();
            assert_eq!(v3_read(&server, &file), status(true));
            if is_cut_short {
                continue;
            }
            let complete = ReclaimCompleteArgs4 { one_file_system: false };
            assert_eq!(denier.status(&|compound| compound.push(&complete)), NfsStat4::Ok);
            // What was reclaimed denies as before, and nobody else denied anything.
            assert_eq!([v3_read(&server, &file), v3_write(&server, &file)], [status(false), status(true)]);
            assert_eq!(close(&denier, &file, reclaimed.stateid), NfsStat4::Ok);
            assert_eq!(v3_write(&server, &file), NfsStat3::Ok);
            assert!(server.service.is_in_grace(), "the reader has not completed its reclaims");
        }
    }
}

// SEMANTICS: stateful-3.
#[test]
fn nfs3_does_not_wait_for_a_client_whose_denial_was_refused_in_the_grace_period() {
    let runs = Runs::new();
    let file = {
        let server = runs.start();
        let client = server.client("client");
        client.open(&client.files(), &creating("file", "o", READ, 0)).unwrap().handle
    };
    {
        let server = runs.start();
        let client = server.reclaiming_client("client", channel());
        let open = |deny| client.open(&client.files(), &opening("file", "o", READ, deny)).map(|_| ());
        assert_eq!(open(WRITE), Err(NfsStat4::Grace));
        let complete = ReclaimCompleteArgs4 { one_file_system: false };
        assert_eq!(client.status(&|compound| compound.push(&complete)), NfsStat4::Ok);
        server.service.expire_leases();
        assert_eq!(open(0), Ok(()));
    }
    let server = runs.start();
    assert!(server.service.is_in_grace());
    assert_eq!(v3_write(&server, &file), NfsStat3::Ok);
}

fn v3(server: &Server, procedure: NfsProcedure, arguments: &impl Encode) -> NfsStat3 {
    use curt_rpc::server::RpcService as _;
    let mut bytes = Vec::new();
    arguments.encode(&mut bytes);
    let call = curt_rpc::message::CallMessage {
        xid: 2,
        program: curt_proto::nfs3::PROGRAM,
        version: 3,
        procedure: procedure.number(),
        credential: user(0),
        arguments: &bytes,
    };
    let (peer, local) = ("127.0.0.1:1000".parse().unwrap(), "127.0.0.1:2049".parse().unwrap());
    let mut reply = Vec::new();
    let context = &mut curt_rpc::server::CallContext::detached(peer, local);
    server.service.call(&call, context, &mut reply).unwrap();
    NfsStat3::from_number(u32::from_be_bytes(*reply.first_chunk().unwrap())).unwrap()
}

fn v3_handle(file: &FileHandle) -> curt_proto::nfs3::NfsFh3 {
    curt_proto::nfs3::NfsFh3::new(file.as_bytes()).unwrap()
}

fn v3_read(server: &Server, file: &FileHandle) -> NfsStat3 {
    v3(server, NfsProcedure::Read, &ReadArguments { file: v3_handle(file), offset: 0, count: 10 })
}

fn v3_write(server: &Server, file: &FileHandle) -> NfsStat3 {
    let data = Opaque::new(b"v3 ").unwrap();
    let arguments = curt_proto::nfs3::WriteArguments {
        file: v3_handle(file),
        offset: 0,
        count: 3,
        stable: curt_proto::nfs3::StableHow::FileSync,
        data,
    };
    v3(server, NfsProcedure::Write, &arguments)
}

/// CREATE of "file".
fn v3_create(server: &Server, directory: &FileHandle, how: CreateHow) -> NfsStat3 {
    let place = DirOpArgs { directory: v3_handle(directory), name: Filename::new(b"file").unwrap() };
    v3(server, NfsProcedure::Create, &CreateArguments { place, how })
}

#[test]
fn a_downgrade_leaves_what_another_open_asked_for() {
    let server = Server::new();
    let client = server.client("one");
    let root = client.files();
    let reads = client.open(&root, &creating("file", "owner", READ, 0)).unwrap();
    let both = client.open(&root, &opening("file", "owner", BOTH, WRITE)).unwrap();
    let downgrade = |stateid, access, deny| -> Result<Stateid, NfsStat4> {
        client.last(&[Nfs4Operation::Putfh], Nfs4Operation::OpenDowngrade, &|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(&reads.handle) });
            let share_access = ShareAccess4(access);
            compound.push(&OpenDowngradeArgs4 { stateid, seqid: 0, share_access, share_deny: deny });
        })
    };
    for (access, deny) in [(WRITE, 0), (0, 0), (4, 0), (READ, 4), (BOTH, BOTH)] {
        assert_eq!(downgrade(both.stateid, access, deny), Err(NfsStat4::Inval), "{access} {deny}");
    }
    let less = downgrade(both.stateid, READ, 0).unwrap();
    assert_eq!((less.other, less.seqid), (both.stateid.other, 3));
    assert_eq!(write(&client, &reads.handle, less, b"x"), Err(NfsStat4::Openmode));
    assert!(client.open(&root, &opening("file", "other", WRITE, 0)).is_ok());
}

#[test]
fn files_are_created_in_each_way() {
    let server = Server::new();
    let client = server.client("one");
    let root = client.files();
    let how = |name, how| OpenArgs4 { how: OpenHow::Create(how), ..opening(name, "owner", BOTH, 0) };
    let (values, mut bytes) =
        (AttributeValues { mode: Some(0o640), ..AttributeValues::default() }, Vec::new());
    let mode = fattr(&values, &mut bytes);
    let guarded = || client.open(&root, &how("guarded", CreateHow4::Guarded(mode)));
    assert_eq!(guarded().unwrap().result.attributes_set, Attribute::set(&[Attribute::Mode]));
    assert_eq!(guarded().unwrap_err(), NfsStat4::Exist);
    let exclusive = |verifier| {
        client.open(&root, &how("exclusive", CreateHow4::Exclusive41(Verifier4([verifier; 8]), mode)))
    };
    let first = exclusive(1).unwrap();
    assert!(first.result.attributes_set.contains(Attribute::Mode.number()));
    // A retransmission finds its own file; another creation does not.
    assert_eq!(exclusive(1).unwrap().handle, first.handle);
    assert_eq!(exclusive(2).unwrap_err(), NfsStat4::Exist);
    assert!(client.open(&root, &how("old", CreateHow4::Exclusive(Verifier4([3; 8])))).is_ok());
    let times = AttributeValues { time_modify_set: Some(SetTime4::ServerTime), ..AttributeValues::default() };
    let mut bytes = Vec::new();
    let times = fattr(&times, &mut bytes);
    let refused = how("times", CreateHow4::Exclusive41(Verifier4([1; 8]), times));
    assert_eq!(client.open(&root, &refused).unwrap_err(), NfsStat4::Inval);
    // Setting a size would set the time that holds the verifier.
    let size = AttributeValues { size: Some(0), ..AttributeValues::default() };
    let mut bytes = Vec::new();
    let size = fattr(&size, &mut bytes);
    let refused = how("size", CreateHow4::Exclusive41(Verifier4([1; 8]), size));
    assert_eq!(client.open(&root, &refused).unwrap_err(), NfsStat4::Inval);
    // Of an existing file, UNCHECKED sets only a size of zero, and that needs the right to write.
    let opened = client.open(&root, &creating("guarded", "writer", BOTH, 0)).unwrap();
    assert_eq!(write(&client, &opened.handle, opened.stateid, b"data"), Ok(4));
    let empty = AttributeValues { size: Some(0), mode: Some(0o600), ..AttributeValues::default() };
    let mut bytes = Vec::new();
    let empty = CreateHow4::Unchecked(fattr(&empty, &mut bytes));
    let truncating =
        |access| OpenArgs4 { how: OpenHow::Create(empty), ..opening("guarded", "third", access, 0) };
    assert_eq!(client.open(&root, &truncating(READ)).unwrap_err(), NfsStat4::Inval);
    assert_eq!(read(&client, &opened.handle, opened.stateid), Ok(b"data".to_vec()));
    let truncated = client.open(&root, &truncating(WRITE)).unwrap();
    assert_eq!(truncated.result.attributes_set, Attribute::set(&[Attribute::Size]));
    assert_eq!(read(&client, &opened.handle, opened.stateid), Ok(Vec::new()));
}

/// ext4 has no files of this size, the tree in memory has.
// SEMANTICS: stateful-16.
#[test]
fn an_open_that_cannot_set_the_size_of_a_new_file_creates_none_or_says_so() {
    Fixture::with_each_tree(|fixture| {
        let (values, mut bytes) =
            (AttributeValues { size: Some(1 << 60), ..AttributeValues::default() }, Vec::new());
        let large = fattr(&values, &mut bytes);
        let open = |name, how| OpenArgs4 { how: OpenHow::Create(how), ..opening(name, "owner", WRITE, 0) };
        let guarded = || fixture.on(&["one"], &open("guarded", CreateHow4::Guarded(large)));
        let is_limited = guarded() == NfsStat4::Fbig;
        assert_eq!(guarded(), if is_limited { NfsStat4::Fbig } else { NfsStat4::Exist });
        let unchecked = open("unchecked", CreateHow4::Unchecked(large));
        let reply = fixture.run(|compound| {
            go(compound, &["one"]);
            compound.push(&unchecked);
        });
        assert_eq!(reply.status(), NfsStat4::Ok);
        let opened: OpenOk4<'_> = reply.after(1).next(Nfs4Operation::Open).unwrap();
        let set = opened.attributes_set.contains(Attribute::Size.number());
        assert_eq!(set, !is_limited);
    });
}

#[test]
fn an_open_that_may_create_finds_what_exists_in_a_read_only_export() {
    let fixture = Fixture::with_rules(ExportRules { read_only: true, ..rules() });
    let default = Fattr4::default();
    let open = |path: &[&str], name, access, how| {
        fixture.on(path, &OpenArgs4 { how: OpenHow::Create(how), ..opening(name, "owner", access, 0) })
    };
    let (unchecked, guarded) = (CreateHow4::Unchecked(default), CreateHow4::Guarded(default));
    let exclusive = CreateHow4::Exclusive(Verifier4([1; 8]));
    assert_eq!(open(&["one"], "file", READ, unchecked), NfsStat4::Ok);
    assert_eq!(open(&["one"], "file", WRITE, unchecked), NfsStat4::Rofs);
    assert_eq!(open(&["one"], "directory", READ, unchecked), NfsStat4::Isdir);
    for how in [guarded, exclusive] {
        assert_eq!(open(&["one"], "file", READ, how), NfsStat4::Exist);
    }
    for how in [unchecked, guarded, exclusive] {
        assert_eq!(open(&["one"], "new", READ, how), NfsStat4::Rofs);
        assert_eq!(open(&["one", "file"], "new", READ, how), NfsStat4::Notdir);
        assert_eq!(open(&["one"], "..", READ, how), NfsStat4::Badname);
    }
}

/// The times of a file are known to all that may look it up.
#[test]
fn a_verifier_that_fits_a_file_of_another_owner_gives_no_access() {
    let server = Server::new();
    let client = server.client("one");
    let root = client.files();
    let exclusive = |access, deny| {
        let how = OpenHow::Create(CreateHow4::Exclusive(Verifier4([0, 0, 0, 9, 0, 0, 0, 5])));
        OpenArgs4 { how, ..opening("file", "other", access, deny) }
    };
    let time = |seconds| Some(SetTime4::ClientTime(NfsTime4 { seconds, nanoseconds: 0 }));
    let values = AttributeValues {
        owner: Some(Opaque::new(b"1000").unwrap()),
        mode: Some(0o600),
        time_access_set: time(5),
        time_modify_set: time(9),
        ..AttributeValues::default()
    };
    let mut bytes = Vec::new();
    let how = OpenHow::Create(CreateHow4::Guarded(fattr(&values, &mut bytes)));
    let made = client.open(&root, &OpenArgs4 { how, ..opening("file", "owner", BOTH, 0) }).unwrap();
    assert_eq!(close(&client, &made.handle, made.stateid), NfsStat4::Ok);
    let everybody = AttributeValues { mode: Some(0o777), ..AttributeValues::default() };
    let mut bytes = Vec::new();
    let attributes = fattr(&everybody, &mut bytes);
    let set = SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes };
    assert_eq!(client.at(&root, &|compound| compound.push(&set)), NfsStat4::Ok);
    client.uid.set(1001);
    assert_eq!(client.open(&root, &exclusive(BOTH, BOTH)).unwrap_err(), NfsStat4::Access);
    assert_eq!(client.open(&root, &exclusive(READ, 0)).unwrap_err(), NfsStat4::Access);
    client.uid.set(1000);
    assert_eq!(client.open(&root, &exclusive(BOTH, BOTH)).unwrap().handle, made.handle);
}

#[test]
fn a_truncating_open_that_is_denied_truncates_nothing() {
    let server = Server::new();
    let (one, two) = (server.client("one"), server.client("two"));
    let root = one.files();
    let opened = one.open(&root, &creating("file", "owner", BOTH, WRITE)).unwrap();
    assert_eq!(write(&one, &opened.handle, opened.stateid, b"data"), Ok(4));
    let empty = AttributeValues { size: Some(0), ..AttributeValues::default() };
    let mut bytes = Vec::new();
    let how = OpenHow::Create(CreateHow4::Unchecked(fattr(&empty, &mut bytes)));
    let truncating = OpenArgs4 { how, ..opening("file", "owner", BOTH, 0) };
    assert_eq!(two.open(&root, &truncating).unwrap_err(), NfsStat4::ShareDenied);
    assert_eq!(read(&one, &opened.handle, opened.stateid), Ok(b"data".to_vec()));
}

// SEMANTICS: stateful-2.
#[test]
fn an_open_file_outlives_its_name() {
    let server = Server::new();
    let client = server.client("one");
    let root = client.files();
    let opened = client.open(&root, &creating("file", "owner", BOTH, 0)).unwrap();
    assert_eq!(write(&client, &opened.handle, opened.stateid, b"data"), Ok(4));
    let removed = client.at(&root, &|compound| {
        compound.push(&RemoveArgs4 { name: Opaque::new(b"file").unwrap() });
    });
    assert_eq!(removed, NfsStat4::Ok);
    assert_eq!(read(&client, &opened.handle, opened.stateid), Ok(b"data".to_vec()));
    assert_eq!(write(&client, &opened.handle, opened.stateid, b"more"), Ok(4));
    let by_handle = OpenArgs4 { claim: OpenClaim::Fh, ..opening("", "other", READ, 0) };
    let again = client.open(&opened.handle, &by_handle).unwrap();
    assert_eq!(close(&client, &opened.handle, opened.stateid), NfsStat4::Ok);
    assert_eq!(read(&client, &opened.handle, again.stateid), Ok(b"more".to_vec()));
    assert_eq!(close(&client, &opened.handle, again.stateid), NfsStat4::Ok);
    assert_eq!(read(&client, &opened.handle, Stateid::ANONYMOUS), Err(NfsStat4::Stale));
}

#[test]
fn wrong_arguments_of_open_have_their_statuses() {
    let server = Server::new();
    let client = server.client("one");
    let root = client.files();
    let plain = client.open(&root, &creating("file", "owner", READ, 0)).unwrap();
    let status = |open: &OpenArgs4<'_>| client.open(&root, open).unwrap_err();
    for (access, deny) in [(0, 0), (4, 0), (READ | 0x600, 0), (READ | 0x4000_0000, 0), (READ, 4)] {
        assert_eq!(status(&opening("file", "owner", access, deny)), NfsStat4::Inval, "{access:x} {deny}");
    }
    let create = OpenHow::Create(CreateHow4::Unchecked(Fattr4::default()));
    for claim in [OpenClaim::Fh, OpenClaim::Previous(DelegationType::None)] {
        let open = OpenArgs4 { how: create, claim, ..opening("", "owner", READ, 0) };
        assert_eq!(client.open(&plain.handle, &open).unwrap_err(), NfsStat4::Inval, "{claim:?}");
    }
    let previous = OpenClaim::Previous(DelegationType::None);
    let reclaim = OpenArgs4 { claim: previous, ..opening("", "owner", READ, 0) };
    assert_eq!(client.open(&plain.handle, &reclaim).unwrap_err(), NfsStat4::NoGrace);
    let delegated = OpenClaim::DelegCurFh(plain.stateid);
    let delegated = OpenArgs4 { claim: delegated, ..opening("", "owner", READ, 0) };
    assert_eq!(client.open(&plain.handle, &delegated).unwrap_err(), NfsStat4::BadStateid);
    assert_eq!(client.open(&plain.handle, &opening("name", "owner", READ, 0)).unwrap_err(), NfsStat4::Notdir);
    for (name, expected) in [
        ("", NfsStat4::Inval),
        (".", NfsStat4::Badname),
        ("..", NfsStat4::Badname),
        ("a/b", NfsStat4::Badchar),
        ("a\0", NfsStat4::Badchar),
    ] {
        assert_eq!(status(&opening(name, "owner", READ, 0)), expected, "{name:?}");
        assert_eq!(status(&creating(name, "owner", READ, 0)), expected, "{name:?}");
    }
    let long = "n".repeat(256);
    assert_eq!(status(&creating(&long, "owner", READ, 0)), NfsStat4::Nametoolong);
}

#[test]
fn clients_that_want_a_delegation_learn_why_there_is_none() {
    let server = Server::new();
    let client = server.client("one");
    let root = client.files();
    for (wanted, expected) in [
        (0, OpenDelegation::None),
        (ShareAccess4::WANT_NO_DELEG, OpenDelegation::NoneExt(NoDelegation::NotWanted)),
        (ShareAccess4::WANT_READ_DELEG, OpenDelegation::NoneExt(NoDelegation::Resource(false))),
        (ShareAccess4::WANT_ANY_DELEG, OpenDelegation::NoneExt(NoDelegation::Resource(false))),
        (ShareAccess4::WANT_CANCEL, OpenDelegation::NoneExt(NoDelegation::Cancelled)),
    ] {
        let opened = client.open(&root, &creating("file", "owner", READ | wanted, 0)).unwrap();
        assert_eq!(opened.result.delegation, expected, "{wanted:x}");
    }
}

// SEMANTICS: stateful-4.
#[test]
fn the_caller_needs_the_right_and_a_creator_has_it() {
    let server = Server::new();
    let client = server.client("one");
    let root = client.files();
    let (values, mut bytes) =
        (AttributeValues { mode: Some(0o777), ..AttributeValues::default() }, Vec::new());
    let attributes = fattr(&values, &mut bytes);
    let everybody = client.at(&root, &|compound| {
        compound.push(&SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes });
    });
    assert_eq!(everybody, NfsStat4::Ok);
    client.uid.set(1000);
    let (values, mut bytes) =
        (AttributeValues { mode: Some(0o400), ..AttributeValues::default() }, Vec::new());
    let how = OpenHow::Create(CreateHow4::Guarded(fattr(&values, &mut bytes)));
    let create = OpenArgs4 { how, ..opening("file", "owner", BOTH, 0) };
    let opened = client.open(&root, &create).unwrap();
    assert_eq!(write(&client, &opened.handle, opened.stateid, b"data"), Ok(4));
    let open = |access, deny| client.open(&root, &opening("file", "other", access, deny)).err();
    assert_eq!((open(READ, 0), open(WRITE, 0)), (None, Some(NfsStat4::Access)));
    // Linux opens files by their handles, and leaves the check to the server.
    let by_handle = OpenArgs4 { claim: OpenClaim::Fh, ..opening("", "third", WRITE, 0) };
    assert_eq!(client.open(&opened.handle, &by_handle).unwrap_err(), NfsStat4::Access);
    client.uid.set(1001);
    assert_eq!((open(READ, 0), open(WRITE, 0)), (Some(NfsStat4::Access), Some(NfsStat4::Access)));
    assert_eq!(client.open(&opened.handle, &by_handle).unwrap_err(), NfsStat4::Access);
    // The owner keeps what it had open, as with a local descriptor.
    let recorded = server.service.held.session(&client.session).unwrap();
    let recorded = vec![RecordedClient::from(&*recorded.client)];
    server.service.held.grace.begin(recorded, Duration::from_secs(90), Duration::from_secs(90));
    let returned = server.instance("one", 2, channel());
    let reclaim =
        OpenArgs4 { claim: OpenClaim::Previous(DelegationType::None), ..opening("", "owner", WRITE, 0) };
    returned.uid.set(1001);
    assert_eq!(returned.open(&opened.handle, &reclaim).unwrap_err(), NfsStat4::Access);
    returned.uid.set(1000);
    assert!(returned.open(&opened.handle, &reclaim).is_ok());
}

/// Creates a file of this mode, open as `access`.
fn create_with_mode(client: &TestClient<'_>, name: &str, mode: u32, access: u32) -> Opened {
    let values = AttributeValues { mode: Some(mode), ..AttributeValues::default() };
    let mut bytes = Vec::new();
    let how = OpenHow::Create(CreateHow4::Guarded(fattr(&values, &mut bytes)));
    client.open(&client.files(), &OpenArgs4 { how, ..opening(name, "maker", access, 0) }).unwrap()
}

// SEMANTICS: stateful-4.
#[test]
fn the_right_to_execute_a_file_implies_the_right_to_read_it() {
    let server = Server::new();
    let client = server.client("one");
    assert_eq!(delegations::set_mode(&client, &client.files(), 0o777), NfsStat4::Ok);
    for (mode, may_read) in [(0o711, true), (0o744, true), (0o722, false), (0o700, false)] {
        client.uid.set(1000);
        let name = format!("program {mode:o}");
        let made = create_with_mode(&client, &name, mode, BOTH);
        assert_eq!(write(&client, &made.handle, made.stateid, b"data"), Ok(4));
        client.uid.set(1001);
        let open = |access| client.open(&client.files(), &opening(&name, "other", access, 0));
        match open(READ) {
            Ok(opened) => assert_eq!(read(&client, &made.handle, opened.stateid), Ok(b"data".to_vec())),
            Err(status) => assert_eq!(status, NfsStat4::Access, "{mode:o}"),
        }
        assert_eq!(open(READ).is_ok(), may_read, "{mode:o}");
        assert_eq!(open(BOTH).unwrap_err(), NfsStat4::Access, "{mode:o}");
    }
}

/// How a client loses its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LostBy {
    /// The delegation is recalled and not returned.
    Revocation,
    /// No request comes for a lease, and another client wants the file.
    Expiry,
}

// SEMANTICS: stateful-4.
#[test]
fn an_owner_opens_a_file_of_any_mode_by_its_delegation_until_that_is_lost() {
    for lost_by in [LostBy::Revocation, LostBy::Expiry] {
        let (server, time) = delegations::server();
        let (holder, other) = (server.client("holder"), server.client("other"));
        let _calls = delegations::bind(&holder, delegations::ok);
        assert_eq!(delegations::set_mode(&holder, &holder.files(), 0o777), NfsStat4::Ok);
        holder.uid.set(1000);
        let made = create_with_mode(&holder, "file", 0, READ);
        let file = made.handle.clone();
        let stateid = delegations::delegation(&made).unwrap();
        let claiming = |claim| OpenArgs4 { claim, ..opening("", "reader", READ, 0) };
        let by_delegation = claiming(OpenClaim::DelegCurFh(stateid));
        let by_handle = claiming(OpenClaim::Fh);
        assert_eq!(holder.open(&file, &by_handle).unwrap_err(), NfsStat4::Access, "as anybody else");
        assert!(holder.open(&file, &by_delegation).is_ok());
        holder.uid.set(1001);
        assert_eq!(holder.open(&file, &by_delegation).unwrap_err(), NfsStat4::Access, "he is no owner");
        holder.uid.set(1000);
        if lost_by == LostBy::Revocation {
            assert_eq!(delegations::set_mode(&other, &file, 0), NfsStat4::Delay, "it is recalled");
            assert!(holder.open(&file, &by_delegation).is_ok());
        }
        for _ in 0..91 {
            time.advance(Duration::from_secs(1));
            other.run(&|_| {});
            if lost_by == LostBy::Revocation {
                holder.run(&|_| {});
            }
            server.service.expire_leases();
        }
        assert_eq!(delegations::set_mode(&other, &file, 0), NfsStat4::Ok, "{lost_by:?}");
        let (holder, expected) = match lost_by {
            LostBy::Revocation => (holder, NfsStat4::DelegRevoked),
            LostBy::Expiry => (server.client("holder"), NfsStat4::BadStateid),
        };
        holder.uid.set(1000);
        assert_eq!(holder.open(&file, &by_delegation).unwrap_err(), expected, "{lost_by:?}");
        assert_eq!(holder.open(&file, &by_handle).unwrap_err(), NfsStat4::Access, "{lost_by:?}");
        let reclaim = claiming(OpenClaim::Previous(DelegationType::None));
        assert_eq!(holder.open(&file, &reclaim).unwrap_err(), NfsStat4::NoGrace, "{lost_by:?}");
    }
}

#[test]
fn the_current_stateid_follows_the_current_filehandle() {
    let server = Server::new();
    let client = server.client("one");
    let root = client.files();
    let open = creating("file", "owner", BOTH, 0);
    let stateid = Stateid::CURRENT;
    let data = Opaque::new(b"data").unwrap();
    let whole = client.status(&|compound| {
        compound.push(&PutfhArgs4 { object: NfsFh4::from(&root) });
        compound.push(&open);
        compound.push(&WriteArgs4 { stateid, offset: 0, stable: StableHow4::FileSync, data });
        compound.bare(Nfs4Operation::Savefh);
        compound.bare(Nfs4Operation::Putrootfh);
        compound.bare(Nfs4Operation::Restorefh);
        compound.push(&GetattrArgs4 { attributes: Attribute::set(&[Attribute::Size]) });
        compound.push(&ReadArgs4 { stateid, offset: 0, count: 4 });
        compound.push(&CloseArgs4 { seqid: 0, stateid });
    });
    assert_eq!(whole, NfsStat4::Ok);
    let opened = client.open(&root, &open).unwrap();
    // Another filehandle has no current stateid.
    let lost = client.status(&|compound| {
        compound.push(&PutfhArgs4 { object: NfsFh4::from(&root) });
        compound.push(&open);
        compound.push(&PutfhArgs4 { object: NfsFh4::from(&opened.handle) });
        compound.push(&ReadArgs4 { stateid, offset: 0, count: 4 });
    });
    assert_eq!(lost, NfsStat4::BadStateid);
}

#[test]
fn only_regular_files_are_opened() {
    let server = Server::new();
    let client = server.client("one");
    let root = client.files();
    let device = CreateType4::CharacterDevice(SpecData4 { major: 1, minor: 3 });
    for (name, kind, status) in [
        ("directory", CreateType4::Directory, NfsStat4::Isdir),
        ("link", CreateType4::Symlink(Opaque::new(b"to").unwrap()), NfsStat4::Symlink),
        ("fifo", CreateType4::Fifo, NfsStat4::WrongType),
        ("device", device, NfsStat4::WrongType),
    ] {
        let bytes = Opaque::new(name.as_bytes()).unwrap();
        let create = CreateArgs4 { kind, name: bytes, attributes: Fattr4::default() };
        assert_eq!(client.at(&root, &|compound| compound.push(&create)), NfsStat4::Ok);
        let object = client.walk(&["srv", "files", name]).unwrap();
        let by_handle = OpenArgs4 { claim: OpenClaim::Fh, ..opening("", "owner", READ, 0) };
        let ways = [
            client.open(&root, &opening(name, "owner", READ, 0)),
            client.open(&root, &creating(name, "owner", READ, 0)),
            client.open(&object, &by_handle),
        ];
        assert_eq!(ways.map(Result::err), [Some(status); 3], "{name}");
    }
    let srv = client.walk(&["srv"]).unwrap();
    assert_eq!(client.open(&srv, &opening("files", "owner", READ, 0)).unwrap_err(), NfsStat4::Isdir);
}

#[test]
fn the_current_stateid_is_the_newest_except_for_close_and_open_downgrade() {
    let server = Server::new();
    let client = server.client("one");
    let root = client.files();
    let opens = creating("file", "o", BOTH, 0);
    let down = OpenDowngradeArgs4 {
        stateid: Stateid::CURRENT,
        seqid: 0,
        share_access: ShareAccess4(BOTH),
        share_deny: 0,
    };
    let close = CloseArgs4 { seqid: 0, stateid: Stateid::CURRENT };
    // The stateid of the first OPEN is older than that of the second, which has the same state.
    for (number, close_or_down) in [true, false].into_iter().enumerate() {
        let reply = client.run(&|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(&root) });
            compound.push(&opens);
            compound.bare(Nfs4Operation::Savefh);
            compound.push(&PutfhArgs4 { object: NfsFh4::from(&root) });
            compound.push(&opens);
            compound.bare(Nfs4Operation::Restorefh);
            compound.push(&ReadArgs4 { stateid: Stateid::CURRENT, offset: 0, count: 1 });
            if close_or_down {
                compound.push(&close);
            } else {
                compound.push(&down);
            }
        });
        let header = *CompoundResults::new(&reply).unwrap().header();
        assert_eq!((header.status, header.results), (NfsStat4::OldStateid, 9), "{number}");
    }
}
