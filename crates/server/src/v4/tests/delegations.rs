//! Read delegations: who gets one, what recalls it, and what becomes of one that is not returned.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use curt_observe::{ServerCounter, ServerCounters};
use curt_proto::nfs3::{
    CreateArguments, CreateHow, DirOpArgs, Filename, LinkArguments, NfsFh3, NfsProcedure, NfsStat3,
    RenameArguments, Sattr, SetattrArguments, StableHow, WriteArguments,
};
use curt_proto::nfs4::*;
use curt_rpc::client::{CallError, CallReply, RpcRequest};
use curt_rpc::clock::ScriptedTime;
use curt_rpc::message::CallMessage;
use curt_rpc::server::{Backchannel, CallContext, RpcService as _};
use curt_types::FileHandle;
use curt_xdr::{Decoder, Encode, Opaque};

use super::lock_callbacks::executed;
use super::test_client::{Server, TestClient, creating, export, opening, rules, user};
use crate::{NfsService, NfsServiceConfig, PersistentState, SystemNames};

const READ: u32 = ShareAccess4::READ;
const WRITE: u32 = ShareAccess4::WRITE;
const BOTH: u32 = ShareAccess4::BOTH;
pub(super) const LONG: Duration = Duration::from_secs(60);

pub(super) type Answer = fn() -> Result<NfsStat4, CallError>;

pub(super) const fn ok() -> Result<NfsStat4, CallError> {
    Ok(NfsStat4::Ok)
}

const fn silent() -> Result<NfsStat4, CallError> {
    Err(CallError::TimedOut { softerr: false })
}

/// A recall as it arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Recalled {
    pub(super) stateid: Stateid,
    object: FileHandle,
    /// The slot and the sequence id.
    place: (SlotId, SequenceId),
    /// The requests to which it refers.
    referring: Vec<ReferringCall>,
}

/// A client's end of a backchannel.
struct Recalls {
    answer: Answer,
    calls: parking_lot::Mutex<mpsc::Sender<Recalled>>,
}

impl Backchannel for Recalls {
    fn call(&self, request: &RpcRequest<'_>, _: Duration) -> Result<CallReply, CallError> {
        let mut arguments = Vec::new();
        request.copy_arguments(&mut arguments);
        let decoder = &mut Decoder::new(&arguments);
        let header: CallbackHeader<'_> = decoder.get().unwrap();
        assert_eq!(header.operations, 2, "Linux takes no more");
        assert_eq!(decoder.get::<CallbackOperation>().unwrap(), CallbackOperation::Sequence);
        let sequence: CbSequenceArgs4 = decoder.get().unwrap();
        assert_eq!(decoder.get::<CallbackOperation>().unwrap(), CallbackOperation::Recall);
        let CbRecallArgs4 { stateid, truncate, object } = decoder.get().unwrap();
        assert!(!truncate);
        let referring = sequence.referring.iter().flat_map(|list| list.calls.iter().copied()).collect();
        let place = (sequence.slot, sequence.sequence);
        let _ = self.calls.lock().send(Recalled { stateid, object: object.into(), place, referring });
        let status = (self.answer)()?;
        Ok(CallReply::from_results(executed(&sequence, CallbackOperation::Recall, status)))
    }

    fn is_open(&self) -> bool {
        true
    }

    fn connection(&self) -> usize {
        1
    }
}

/// Binds a backchannel to a client's session, which answers and returns no delegation.
pub(super) fn bind_answering(client: &TestClient<'_>) {
    drop(bind(client, ok));
}

/// Binds a backchannel to a client's session.
pub(super) fn bind(client: &TestClient<'_>, answer: Answer) -> mpsc::Receiver<Recalled> {
    let (sender, calls) = mpsc::channel();
    let session = client.server.service.held.session(&client.session).unwrap();
    session.set_callback(123, crate::state::CallbackSecurity::None);
    session.bind_backchannel(Arc::new(Recalls { answer, calls: parking_lot::Mutex::new(sender) }));
    calls
}

/// A server with a clock of the test.
pub(super) fn server() -> (Server, Arc<ScriptedTime>) {
    serving_exported(export("/srv/files", 1, rules()))
}

/// A server of a directory of this machine.
fn serving(directory: &std::path::Path) -> (Server, Arc<ScriptedTime>) {
    let vfs = curt_vfs::LocalVfs::open(directory, &curt_vfs::LocalOptions::default()).unwrap();
    let path = b"/srv/files".to_vec();
    serving_exported(crate::ExportDefinition::for_everyone(path, Arc::new(vfs), rules()))
}

fn serving_exported(exported: crate::ExportDefinition) -> (Server, Arc<ScriptedTime>) {
    let time = ScriptedTime::new();
    let setup = NfsServiceConfig {
        state: PersistentState::with_key([9; 16]),
        exports: vec![exported],
        counters: Arc::new(ServerCounters::default()),
    };
    let service = NfsService::with_environment(setup, Box::new(SystemNames), time.clock()).unwrap();
    (Server::over(Arc::new(service)).calling_back(), time)
}

pub(super) fn create(client: &TestClient<'_>, name: &str) -> FileHandle {
    let opened = client.open(&client.files(), &creating(name, "maker", BOTH, 0)).unwrap();
    let close = CloseArgs4 { seqid: 0, stateid: opened.stateid };
    assert_eq!(client.at(&opened.handle, &|compound| compound.push(&close)), NfsStat4::Ok);
    opened.handle
}

/// The delegation that an OPEN returned.
pub(super) const fn delegation(opened: &super::test_client::Opened) -> Option<Stateid> {
    match opened.result.delegation {
        OpenDelegation::Read { stateid, recall: false, .. } => Some(stateid),
        _ => None,
    }
}

pub(super) fn open_for(client: &TestClient<'_>, name: &str, access: u32) -> OpenDelegation<'static> {
    client.open(&client.files(), &opening(name, "reader", access, 0)).unwrap().result.delegation
}

/// Opens a file, which has to be delegated.
pub(super) fn delegated(client: &TestClient<'_>, name: &str) -> Stateid {
    let opened = client.open(&client.files(), &opening(name, "reader", READ, 0)).unwrap();
    delegation(&opened).unwrap_or_else(|| panic!("{:?}", opened.result.delegation))
}

pub(super) fn give_back(client: &TestClient<'_>, file: &FileHandle, stateid: Stateid) -> NfsStat4 {
    client.at(file, &|compound| compound.push(&DelegreturnArgs4 { stateid }))
}

pub(super) fn write(client: &TestClient<'_>, file: &FileHandle, stateid: Stateid) -> NfsStat4 {
    client.at(file, &|compound| {
        let data = Opaque::new(b"x").unwrap();
        compound.push(&WriteArgs4 { stateid, offset: 0, stable: StableHow4::FileSync, data });
    })
}

pub(super) fn set_mode(client: &TestClient<'_>, file: &FileHandle, mode: u32) -> NfsStat4 {
    let values = AttributeValues { mode: Some(mode), ..AttributeValues::default() };
    let mut bytes = Vec::new();
    values.encode_values(values.present(), &mut bytes);
    let attributes = Fattr4 { mask: values.present(), values: Opaque::new(&bytes).unwrap() };
    client.at(file, &|compound| compound.push(&SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes }))
}

pub(super) fn component(name: &str) -> Component<'_> {
    Opaque::new(name.as_bytes()).unwrap()
}

fn status(opened: Result<super::test_client::Opened, NfsStat4>) -> NfsStat4 {
    opened.map_or_else(|status| status, |_| NfsStat4::Ok)
}

// SEMANTICS: stateful-11.
#[test]
fn readers_get_delegations_if_they_can_be_called_back_and_want_them_and_nobody_writes() {
    let (server, _) = server();
    let (one, two) = (server.client("one"), server.client("two"));
    create(&one, "file");
    let unreachable = |wanted| open_for(&one, "file", READ | wanted);
    assert_eq!(unreachable(0), OpenDelegation::None);
    let no_resource = OpenDelegation::NoneExt(NoDelegation::Resource(false));
    assert_eq!(unreachable(ShareAccess4::WANT_READ_DELEG), no_resource);
    let _calls = (bind(&one, ok), bind(&two, ok));
    let why = |client, access| match open_for(client, "file", access) {
        OpenDelegation::NoneExt(why) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(&one, READ | ShareAccess4::WANT_NO_DELEG), NoDelegation::NotWanted);
    assert_eq!(why(&one, READ | ShareAccess4::WANT_CANCEL), NoDelegation::Cancelled);
    let for_writing = why(&one, READ | ShareAccess4::WANT_WRITE_DELEG);
    assert_eq!(for_writing, NoDelegation::WriteNotSupportedForType);
    // The client itself may write.
    let writes = two.open(&two.files(), &opening("file", "writer", WRITE, 0)).unwrap();
    for client in [&one, &two] {
        assert_eq!(open_for(client, "file", READ), OpenDelegation::None);
        let contention = NoDelegation::Contention(false);
        assert_eq!(why(client, READ | ShareAccess4::WANT_ANY_DELEG), contention);
    }
    let close = CloseArgs4 { seqid: 0, stateid: writes.stateid };
    assert_eq!(two.at(&writes.handle, &|compound| compound.push(&close)), NfsStat4::Ok);
    delegated(&one, "file");
    delegated(&two, "file");
    // A client has one of a file at most.
    assert_eq!(open_for(&one, "file", READ), OpenDelegation::None);
    let counted = server.service.counters.snapshot();
    assert_eq!(counted.events.value(ServerCounter::DelegationsGranted), 2);
    assert_eq!(server.service.clients().iter().map(|client| client.delegations).sum::<usize>(), 2);
}

#[test]
fn a_server_that_is_told_not_to_grants_none() {
    let setup = NfsServiceConfig {
        state: PersistentState::with_key([9; 16]),
        exports: vec![export("/srv/files", 1, rules())],
        counters: Arc::new(ServerCounters::default()),
    };
    let mut service = NfsService::new(setup).unwrap();
    service.set_delegations(false);
    let server = Server::over(Arc::new(service)).calling_back();
    let client = server.client("one");
    let _calls = bind(&client, ok);
    create(&client, "file");
    assert_eq!(open_for(&client, "file", READ), OpenDelegation::None);
}

/// A change of a name.
pub(super) type NameChange = fn(&TestClient<'_>) -> NfsStat4;

/// A change of the file "file", by another client.
type Change<'a> = (&'a str, &'a dyn Fn(&TestClient<'_>) -> NfsStat4);

pub(super) fn v3(
    server: &Server,
    uid: u32,
    xid: u32,
    procedure: NfsProcedure,
    arguments: &dyn Encode,
) -> NfsStat3 {
    let mut bytes = Vec::new();
    arguments.encode(&mut bytes);
    let call = CallMessage {
        xid,
        program: curt_proto::nfs3::PROGRAM,
        version: 3,
        procedure: procedure.number(),
        credential: user(uid),
        arguments: &bytes,
    };
    let (peer, local) = ("127.0.0.1:1000".parse().unwrap(), "127.0.0.1:2049".parse().unwrap());
    let mut reply = Vec::new();
    server.service.call(&call, &mut CallContext::detached(peer, local), &mut reply).unwrap();
    NfsStat3::from_number(u32::from_be_bytes(*reply.first_chunk().unwrap())).unwrap()
}

// SEMANTICS: stateful-11.
#[test]
fn every_change_by_another_client_recalls_first() {
    let directory = AttributeValues { kind: Some(Ftype4::Directory), ..AttributeValues::default() };
    let mut directory_type = Vec::new();
    directory.encode_values(directory.present(), &mut directory_type);
    let directory = Fattr4 { mask: directory.present(), values: Opaque::new(&directory_type).unwrap() };
    let changes: [Change<'_>; 12] = [
        ("OPEN for writing", &|client| status(client.open(&client.files(), &opening("file", "o", WRITE, 0)))),
        ("OPEN that denies", &|client| {
            status(client.open(&client.files(), &opening("file", "o", READ, READ)))
        }),
        ("OPEN that truncates", &|client| {
            let (values, mut bytes) =
                (AttributeValues { size: Some(0), ..AttributeValues::default() }, Vec::new());
            values.encode_values(values.present(), &mut bytes);
            let fattr = Fattr4 { mask: values.present(), values: Opaque::new(&bytes).unwrap() };
            let how = OpenHow::Create(CreateHow4::Unchecked(fattr));
            status(client.open(&client.files(), &OpenArgs4 { how, ..opening("file", "o", BOTH, 0) }))
        }),
        ("WRITE without an open", &|client| {
            write(client, &client.walk(&["srv", "files", "file"]).unwrap(), Stateid::ANONYMOUS)
        }),
        ("WRITE that bypasses", &|client| {
            write(client, &client.walk(&["srv", "files", "file"]).unwrap(), Stateid::READ_BYPASS)
        }),
        ("SETATTR", &|client| set_mode(client, &client.walk(&["srv", "files", "file"]).unwrap(), 0o600)),
        ("REMOVE", &|client| {
            client.at(&client.files(), &|compound| compound.push(&RemoveArgs4 { name: component("file") }))
        }),
        ("REMOVE of what was found", &|client| {
            client.at(&client.files(), &|compound| {
                compound.bare(Nfs4Operation::Savefh);
                compound.push(&LookupArgs4 { name: component("file") });
                compound.push(&NverifyArgs4 { attributes: directory });
                compound.bare(Nfs4Operation::Restorefh);
                compound.push(&RemoveArgs4 { name: component("file") });
            })
        }),
        ("RENAME of it", &|client| rename(client, "file", "elsewhere")),
        ("RENAME over it", &|client| rename(client, "other", "file")),
        ("LINK", &|client| {
            let (file, root) = (client.walk(&["srv", "files", "file"]).unwrap(), client.files());
            client.at(&file, &|compound| {
                compound.bare(Nfs4Operation::Savefh);
                compound.push(&PutfhArgs4 { object: NfsFh4::from(&root) });
                compound.push(&LinkArgs4 { name: component("second") });
            })
        }),
        ("RENAME of both", &|client| rename(client, "file", "delegated too")),
    ];
    for (what, change) in changes {
        let (server, _) = server();
        let (holder, other) = (server.client("holder"), server.client("other"));
        let calls = bind(&holder, ok);
        let file = create(&holder, "file");
        create(&holder, "other");
        let second = create(&holder, "delegated too");
        let stateid = delegated(&holder, "file");
        let of_second = delegated(&holder, "delegated too");
        other.uid.set(1000);
        assert!(matches!(change(&other), NfsStat4::Access | NfsStat4::Perm), "{what}");
        assert!(calls.try_recv().is_err(), "{what}: who may not change a file recalls nothing");
        other.uid.set(0);
        for _ in 0..2 {
            assert_eq!(change(&other), NfsStat4::Delay, "{what}");
        }
        let recalled = calls.recv_timeout(LONG).unwrap();
        assert_eq!((recalled.stateid, &recalled.object), (stateid, &file), "{what}");
        if what == "RENAME of both" {
            let recalled = calls.recv_timeout(LONG).unwrap();
            assert_eq!((recalled.stateid, recalled.object), (of_second, second.clone()));
            assert_eq!(give_back(&holder, &second, of_second), NfsStat4::Ok);
        }
        // One recall is enough, and others get none meanwhile.
        assert!(calls.try_recv().is_err(), "{what}");
        assert_eq!(open_for(&other, "file", READ), OpenDelegation::None, "{what}");
        assert_eq!(give_back(&holder, &file, stateid), NfsStat4::Ok, "{what}");
        let expected = if what == "OPEN that denies" { NfsStat4::ShareDenied } else { NfsStat4::Ok };
        assert_eq!(change(&other), expected, "{what}");
    }
}

pub(super) fn rename(client: &TestClient<'_>, from: &str, to: &str) -> NfsStat4 {
    client.at(&client.files(), &|compound| {
        compound.bare(Nfs4Operation::Savefh);
        compound.push(&RenameArgs4 { from: component(from), to: component(to) });
    })
}

// SEMANTICS: stateful-11.
#[test]
fn every_change_over_nfs3_recalls_first() {
    let handle = |file: &FileHandle| NfsFh3::new(file.as_bytes()).unwrap();
    for procedure in [
        NfsProcedure::Write,
        NfsProcedure::Setattr,
        NfsProcedure::Create,
        NfsProcedure::Remove,
        NfsProcedure::Rename,
        NfsProcedure::Link,
    ] {
        let (server, _) = server();
        let holder = server.client("holder");
        let calls = bind(&holder, ok);
        let file = create(&holder, "file");
        let stateid = delegated(&holder, "file");
        let root = handle(&holder.files());
        let at =
            |name: &'static str| DirOpArgs { directory: root, name: Filename::new(name.as_bytes()).unwrap() };
        let set = Sattr { size: Some(0), ..Sattr::default() };
        let mut xid = 10;
        let mut call = |uid| {
            xid += 1;
            let arguments: Box<dyn Encode> = match procedure {
                NfsProcedure::Write => Box::new(WriteArguments {
                    file: handle(&file),
                    offset: 0,
                    count: 1,
                    stable: StableHow::Unstable,
                    data: Opaque::new(b"x").unwrap(),
                }),
                NfsProcedure::Setattr => {
                    Box::new(SetattrArguments { object: handle(&file), attributes: set, guard: None })
                }
                NfsProcedure::Create => {
                    Box::new(CreateArguments { place: at("file"), how: CreateHow::Unchecked(set) })
                }
                NfsProcedure::Remove => Box::new(at("file")),
                NfsProcedure::Rename => Box::new(RenameArguments { from: at("file"), to: at("new") }),
                _ => Box::new(LinkArguments { file: handle(&file), place: at("new") }),
            };
            v3(&server, uid, xid, procedure, &*arguments)
        };
        assert!(matches!(call(1000), NfsStat3::Acces | NfsStat3::Perm), "{procedure}");
        assert!(calls.try_recv().is_err(), "{procedure}: who may not change a file recalls nothing");
        assert_eq!(call(0), NfsStat3::Jukebox, "{procedure}");
        assert_eq!(calls.recv_timeout(LONG).unwrap().stateid, stateid);
        assert_eq!(give_back(&holder, &file, stateid), NfsStat4::Ok);
        assert_eq!(call(0), NfsStat3::Ok, "{procedure}");
    }
}

// SEMANTICS: stateful-11.
#[test]
fn a_clients_own_changes_recall_only_others() {
    let (server, _) = server();
    let (one, two) = (server.client("one"), server.client("two"));
    let calls = (bind(&one, ok), bind(&two, ok));
    let file = create(&one, "file");
    let stateid = delegated(&one, "file");
    assert_eq!(set_mode(&one, &file, 0o600), NfsStat4::Ok);
    let of_two = delegated(&two, "file");
    assert_eq!(set_mode(&one, &file, 0o600), NfsStat4::Delay);
    assert_eq!(calls.1.recv_timeout(LONG).unwrap().stateid, of_two);
    assert_eq!(give_back(&two, &file, of_two), NfsStat4::Ok);
    assert_eq!(set_mode(&one, &file, 0o600), NfsStat4::Ok);
    let writes = one.open(&one.files(), &opening("file", "writer", BOTH, 0)).unwrap();
    assert_eq!(write(&one, &file, writes.stateid), NfsStat4::Ok);
    assert!(calls.0.try_recv().is_err());
    assert_eq!(give_back(&one, &file, stateid), NfsStat4::Ok);
}

#[test]
fn a_delegation_is_for_reading_its_file_by_its_client() {
    let (server, _) = server();
    let (one, two) = (server.client("one"), server.client("two"));
    let _calls = bind(&one, ok);
    let (file, other) = (create(&one, "file"), create(&one, "other"));
    let opened = one.open(&one.files(), &opening("file", "reader", READ, 0)).unwrap();
    let stateid = delegation(&opened).unwrap();
    assert_eq!(stateid.seqid, 1);
    let read = |client: &TestClient<'_>, file, stateid| {
        client.at(file, &|compound| compound.push(&ReadArgs4 { stateid, offset: 0, count: 1 }))
    };
    let close = CloseArgs4 { seqid: 0, stateid: opened.stateid };
    assert_eq!(one.at(&file, &|compound| compound.push(&close)), NfsStat4::Ok);
    assert_eq!(read(&one, &file, stateid), NfsStat4::Ok);
    assert_eq!(read(&one, &file, Stateid { seqid: 0, ..stateid }), NfsStat4::Ok);
    assert_eq!(read(&one, &other, stateid), NfsStat4::BadStateid);
    assert_eq!(read(&two, &file, stateid), NfsStat4::BadStateid);
    assert_eq!(write(&one, &file, stateid), NfsStat4::Openmode);
    let close = CloseArgs4 { seqid: 0, stateid };
    assert_eq!(one.at(&file, &|compound| compound.push(&close)), NfsStat4::BadStateid);
    let free = FreeStateidArgs4 { stateid };
    assert_eq!(one.status(&|compound| compound.push(&free)), NfsStat4::LocksHeld);
    for (client, file, stateid) in [
        (&one, &other, stateid),
        (&two, &file, stateid),
        (&one, &file, opened.stateid),
        (&one, &file, Stateid::ANONYMOUS),
        (&one, &one.files(), stateid),
    ] {
        assert_eq!(give_back(client, file, stateid), NfsStat4::BadStateid);
    }
    assert_eq!(give_back(&one, &file, Stateid { seqid: 7, ..stateid }), NfsStat4::BadStateid);
    // Whoever has a delegation opens by it, also while it is recalled.
    let claim = |claim| OpenArgs4 { claim, ..opening("file", "reader", READ, 0) };
    assert_eq!(set_mode(&two, &file, 0o600), NfsStat4::Delay);
    let by_name = claim(OpenClaim::DelegateCur(stateid, component("file")));
    let of_other = claim(OpenClaim::DelegateCur(stateid, component("other")));
    assert_eq!(status(one.open(&one.files(), &by_name)), NfsStat4::Ok);
    assert_eq!(status(one.open(&one.files(), &of_other)), NfsStat4::BadStateid);
    assert_eq!(status(one.open(&file, &claim(OpenClaim::DelegCurFh(stateid)))), NfsStat4::Ok);
    assert_eq!(status(one.open(&other, &claim(OpenClaim::DelegCurFh(stateid)))), NfsStat4::BadStateid);
    assert_eq!(status(two.open(&file, &claim(OpenClaim::DelegCurFh(stateid)))), NfsStat4::BadStateid);
    assert_eq!(status(one.open(&file, &claim(OpenClaim::DelegPrevFh))), NfsStat4::Notsupp);
    assert_eq!(give_back(&one, &file, stateid), NfsStat4::Ok);
    assert_eq!(give_back(&one, &file, stateid), NfsStat4::BadStateid);
}

#[test]
fn a_file_whose_delegation_was_recalled_gets_none_for_some_time() {
    let (server, time) = server();
    let (holder, other) = (server.client("holder"), server.client("other"));
    let _calls = bind(&holder, ok);
    let file = create(&holder, "file");
    let stateid = delegated(&holder, "file");
    assert_eq!(set_mode(&other, &file, 0o600), NfsStat4::Delay);
    assert_eq!(give_back(&holder, &file, stateid), NfsStat4::Ok);
    assert_eq!(set_mode(&other, &file, 0o600), NfsStat4::Ok);
    assert_eq!(open_for(&holder, "file", READ), OpenDelegation::None);
    time.advance(Duration::from_secs(29));
    assert_eq!(open_for(&holder, "file", READ), OpenDelegation::None);
    time.advance(Duration::from_secs(1));
    let stateid = delegated(&holder, "file");
    // What was returned without a recall may be had again at once.
    assert_eq!(give_back(&holder, &file, stateid), NfsStat4::Ok);
    delegated(&holder, "file");
}

#[test]
fn a_recall_refers_to_the_open_whose_reply_may_not_have_arrived() {
    let (server, _) = server();
    let (holder, other) = (server.client("holder"), server.client("other"));
    let calls = bind(&holder, ok);
    for is_last in [true, false] {
        let name = if is_last { "last" } else { "earlier" };
        let file = create(&holder, name);
        let stateid = delegated(&holder, name);
        if !is_last {
            holder.run(&|_| {});
        }
        assert_eq!(set_mode(&other, &file, 0o600), NfsStat4::Delay);
        let recalled = calls.recv_timeout(LONG).unwrap();
        assert_eq!(recalled.stateid, stateid);
        assert_eq!(recalled.referring.len(), usize::from(is_last));
        assert!(recalled.referring.iter().all(|call| call.slot == SlotId(0)));
    }
}

/// The status flags of SEQUENCE.
fn flags(client: &TestClient<'_>) -> u32 {
    let reply = client.run(&|_| {});
    let mut results = CompoundResults::new(&reply).unwrap();
    results.next::<SequenceOk4>(Nfs4Operation::Sequence).unwrap().status_flags.0
}

fn tested(client: &TestClient<'_>, stateid: Stateid) -> NfsStat4 {
    let asked = TestStateidArgs4 { stateids: curt_xdr::VarArray::new(vec![stateid]).unwrap() };
    let reply = client.run(&|compound| compound.push(&asked));
    let mut results = CompoundResults::new(&reply).unwrap();
    results.next::<SequenceOk4>(Nfs4Operation::Sequence).unwrap();
    results.next::<TestStateidOk4>(Nfs4Operation::TestStateid).unwrap().statuses[0]
}

// SEMANTICS: stateful-12.
#[test]
fn who_does_not_return_a_delegation_within_a_lease_loses_it_and_learns_of_it() {
    let answers: [Answer; 3] = [ok, silent, || Ok(NfsStat4::Delay)];
    for answer in answers {
        let (server, time) = server();
        let (holder, other) = (server.client("holder"), server.client("other"));
        let calls = bind(&holder, answer);
        let file = create(&holder, "file");
        let stateid = delegated(&holder, "file");
        assert_eq!(set_mode(&other, &file, 0o600), NfsStat4::Delay);
        calls.recv_timeout(LONG).unwrap();
        for _ in 0..89 {
            time.advance(Duration::from_secs(1));
            let _ = (flags(&holder), flags(&other));
            server.service.expire_leases();
            assert_eq!(set_mode(&other, &file, 0o600), NfsStat4::Delay);
        }
        time.advance(Duration::from_secs(1));
        let _ = flags(&holder);
        server.service.expire_leases();
        assert_eq!(set_mode(&other, &file, 0o600), NfsStat4::Ok);
        let revoked = SequenceStatusFlags::RECALLABLE_STATE_REVOKED;
        assert_eq!(flags(&holder) & revoked, revoked);
        let read = ReadArgs4 { stateid, offset: 0, count: 1 };
        assert_eq!(holder.at(&file, &|compound| compound.push(&read)), NfsStat4::DelegRevoked);
        assert_eq!(give_back(&holder, &file, stateid), NfsStat4::DelegRevoked);
        assert_eq!(tested(&holder, stateid), NfsStat4::DelegRevoked);
        let free = FreeStateidArgs4 { stateid };
        assert_eq!(holder.status(&|compound| compound.push(&free)), NfsStat4::Ok);
        assert_eq!(tested(&holder, stateid), NfsStat4::BadStateid);
        assert_eq!(flags(&holder) & revoked, 0);
        let counted = server.service.counters.snapshot();
        assert_eq!(counted.events.value(ServerCounter::DelegationsRevoked), 1);
    }
}

// SEMANTICS: stateful-12.
#[test]
fn a_recall_that_was_not_answered_is_repeated_when_the_client_can_be_called_again() {
    let (server, time) = server();
    let (holder, other) = (server.client("holder"), server.client("other"));
    let lost = bind(&holder, silent);
    let file = create(&holder, "file");
    let stateid = delegated(&holder, "file");
    assert_eq!(set_mode(&other, &file, 0o600), NfsStat4::Delay);
    assert_eq!(lost.recv_timeout(LONG).unwrap().stateid, stateid);
    // Nobody asks for the file any more.
    let session = server.service.held.session(&holder.session).unwrap();
    while session.takes_callbacks() {
        std::thread::yield_now();
    }
    let calls = bind(&holder, ok);
    let until = Instant::now() + LONG;
    let repeated = loop {
        time.advance(Duration::from_millis(1));
        server.service.expire_leases();
        match calls.recv_timeout(Duration::from_millis(10)) {
            Ok(repeated) => break repeated,
            Err(_) => assert!(Instant::now() < until, "the recall was not repeated"),
        }
    };
    assert_eq!((repeated.stateid, repeated.object), (stateid, file));
}

// SEMANTICS: stateful-12.
#[test]
fn a_recall_does_not_take_the_sequence_id_of_another_that_was_not_answered() {
    let (server, _) = server();
    let (holder, other) = (server.client("holder"), server.client("other"));
    let lost = bind(&holder, silent);
    let files = ["one", "two"].map(|name| create(&holder, name));
    let stateids = ["one", "two"].map(|name| delegated(&holder, name));
    assert_eq!(set_mode(&other, &files[0], 0o600), NfsStat4::Delay);
    let first = lost.recv_timeout(LONG).unwrap();
    let session = server.service.held.session(&holder.session).unwrap();
    while session.takes_callbacks() || server.service.held.delegations.unanswered().is_empty() {
        std::thread::yield_now();
    }
    // The client has executed it: it would answer whatever else came in its place as it did that.
    let calls = bind(&holder, ok);
    assert_eq!(set_mode(&other, &files[1], 0o600), NfsStat4::Delay);
    let again = calls.recv_timeout(LONG).unwrap();
    assert_eq!((again.place, again.stateid, again.object), (first.place, stateids[0], first.object));
    let second = calls.recv_timeout(LONG).unwrap();
    assert_eq!((second.place, second.stateid), ((SlotId(0), SequenceId(2)), stateids[1]));
}

/// Runs of a server that are killed, over the same files.
pub(super) struct Runs {
    directory: tempfile::TempDir,
    tree: Arc<curt_vfs::MemoryVfs>,
    pub(super) directory_delegations: bool,
}

impl Runs {
    pub(super) fn new() -> Self {
        let tree = super::test_client::memory(1);
        Self { directory: tempfile::tempdir().unwrap(), tree, directory_delegations: false }
    }

    pub(super) fn start(&self) -> Server {
        // The clock of files ticks.
        std::thread::sleep(Duration::from_millis(20));
        let state = PersistentState::open(self.directory.path()).unwrap();
        let vfs = Arc::<curt_vfs::MemoryVfs>::clone(&self.tree);
        let exports = vec![crate::ExportDefinition::for_everyone(b"/srv/files".to_vec(), vfs, rules())];
        let counters = Arc::new(ServerCounters::default());
        let mut service = NfsService::new(NfsServiceConfig { state, exports, counters }).unwrap();
        service.set_directory_delegations(self.directory_delegations);
        service.recover_clients().unwrap();
        Server::over(Arc::new(service)).calling_back()
    }

    /// A run in which a client has these files delegated. Its leases were examined last.
    pub(super) fn delegate(&self, names: &[&str]) -> Vec<FileHandle> {
        let server = self.start();
        let holder = server.client("holder");
        let _calls = bind(&holder, ok);
        let files: Vec<_> = names.iter().map(|name| create(&holder, name)).collect();
        for name in names {
            delegated(&holder, name);
        }
        std::thread::sleep(Duration::from_millis(20));
        server.service.expire_leases();
        std::thread::sleep(Duration::from_millis(20));
        files
    }

    /// A process of the server's machine changes a file.
    fn change(&self, name: &str) {
        use curt_vfs::{FsCred, Vfs as _};
        let found = self.tree.lookup(&FsCred::ROOT, &self.tree.root(), name.as_bytes()).value.unwrap();
        let set = curt_types::SetAttributes { mode: Some(0o600), ..Default::default() };
        self.tree.set_attributes(&FsCred::ROOT, &found.handle, &set, None).value.unwrap();
    }
}

/// Which of these files a client gets delegated again.
fn reclaimed(holder: &TestClient<'_>, files: &[FileHandle]) -> Vec<bool> {
    let claim = OpenClaim::Previous(DelegationType::Read);
    let reclaim = OpenArgs4 { claim, ..opening("", "reader", READ, 0) };
    files.iter().map(|file| delegation(&holder.open(file, &reclaim).unwrap()).is_some()).collect()
}

// SEMANTICS: stateful-13.
#[test]
fn a_delegation_is_reclaimed_unless_its_file_was_changed_before() {
    let runs = Runs::new();
    let files = runs.delegate(&["kept", "by a process", "while no server ran"]);
    runs.change("while no server ran");
    let server = runs.start();
    let holder = server.reclaiming_client("holder", super::test_client::channel());
    let _calls = bind(&holder, ok);
    runs.change("by a process");
    assert_eq!(reclaimed(&holder, &files), [true, false, false]);
}

/// The second run has no leases of the files that are not reclaimed yet.
// SEMANTICS: stateful-13.
#[test]
fn a_file_that_was_changed_before_a_grace_period_that_was_cut_short_is_not_reclaimed() {
    let runs = Runs::new();
    let files = runs.delegate(&["kept", "changed"]);
    runs.change("changed");
    let server = runs.start();
    let holder = server.reclaiming_client("holder", super::test_client::channel());
    let _calls = bind(&holder, ok);
    assert_eq!(reclaimed(&holder, &files[..1]), [true]);
    server.service.expire_leases();
    drop(server);
    let server = runs.start();
    let holder = server.reclaiming_client("holder", super::test_client::channel());
    let _calls = bind(&holder, ok);
    assert_eq!(reclaimed(&holder, &files), [true, false]);
}

// SEMANTICS: stateful-5.
#[test]
fn a_client_whose_lease_has_expired_keeps_its_delegations_until_somebody_wants_the_file() {
    let (server, time) = server();
    let (holder, other) = (server.client("holder"), server.client("other"));
    let calls = bind(&holder, ok);
    let file = create(&holder, "file");
    let stateid = delegated(&holder, "file");
    let pass = |seconds| {
        for _ in 0..seconds {
            time.advance(Duration::from_secs(1));
            let _ = flags(&other);
            server.service.expire_leases();
        }
    };
    pass(200);
    assert_eq!(tested(&holder, stateid), NfsStat4::Ok);
    pass(91);
    assert_eq!(set_mode(&other, &file, 0o600), NfsStat4::Ok);
    assert!(calls.try_recv().is_err(), "nobody waits for such a client");
}

#[test]
fn the_delegations_of_a_client_that_is_removed_are_in_nobodys_way() {
    let (server, _) = server();
    let (holder, other) = (server.client("holder"), server.client("other"));
    let _calls = bind(&holder, ok);
    let file = create(&holder, "file");
    delegated(&holder, "file");
    assert_eq!(set_mode(&other, &file, 0o600), NfsStat4::Delay);
    let id = server.service.clients().iter().find(|client| client.name == "holder").unwrap().id;
    assert!(server.service.expire_client(id));
    assert_eq!(set_mode(&other, &file, 0o600), NfsStat4::Ok);
    server.service.replace_exports(Vec::new()).unwrap();
}

/// An export for clients on connections.
fn served_on_connections() -> crate::ExportDefinition {
    export("/srv/files", 1, crate::ExportRules { secure_ports: false, ..rules() })
}

pub(super) fn waits(server: &Server) -> u64 {
    server.service.counters.snapshot().events.value(ServerCounter::DelegationWaits)
}

// SEMANTICS: stateful-11.
#[test]
fn a_change_waits_for_the_delegation_and_other_calls_of_its_connection_do_not() {
    let (server, time) = serving_exported(served_on_connections());
    let server = server.connected();
    let (holder, mut other) = (server.client("holder"), server.client("other"));
    let calls = bind(&holder, ok);
    for round in 1..=20 {
        // A recall may keep other files without delegations for some time: it is noted by hash.
        time.advance(Duration::from_secs(60));
        let name = format!("file {round}");
        let file = create(&holder, &name);
        let stateid = delegated(&holder, &name);
        let status;
        (other, status) = std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                let status = set_mode(&other, &file, 0o600);
                (other, status)
            });
            assert_eq!(calls.recv_timeout(LONG).unwrap().stateid, stateid);
            while waits(&server) < round && !changes.is_finished() {
                std::thread::yield_now();
            }
            assert_eq!(give_back(&holder, &file, stateid), NfsStat4::Ok);
            changes.join().unwrap()
        });
        assert_eq!(status, NfsStat4::Ok, "round {round}");
    }
}

// SEMANTICS: stateful-11.
#[test]
fn a_change_waits_a_quarter_of_a_second_for_a_client_that_does_not_answer() {
    let server = Server::in_real_time(vec![served_on_connections()]).calling_back().connected();
    let (holder, other) = (server.client("holder"), server.client("other"));
    let answers: [(&str, Answer); 2] = [("answers", ok), ("silent", silent)];
    for (name, answer) in answers {
        let _calls = bind(&holder, answer);
        let file = create(&holder, name);
        let stateid = delegated(&holder, name);
        let began = Instant::now();
        assert_eq!(set_mode(&other, &file, 0o600), NfsStat4::Delay);
        assert!(began.elapsed() >= Duration::from_millis(250), "{name}: {:?}", began.elapsed());
        let counted = waits(&server);
        // What has an effect already is not executed again.
        let untouched = create(&other, "untouched");
        let before = other.at(&untouched, &|compound| {
            compound.push(&RemoveArgs4 { name: component("none") });
        });
        assert_eq!(before, NfsStat4::Notdir);
        let status = other.at(&other.files(), &|compound| {
            compound.push(&RemoveArgs4 { name: component("untouched") });
            compound.push(&RemoveArgs4 { name: component(name) });
        });
        assert_eq!((status, waits(&server)), (NfsStat4::Delay, counted));
        assert_eq!(other.walk(&["srv", "files", "untouched"]), Err(NfsStat4::Noent));
        assert_eq!(give_back(&holder, &file, stateid), NfsStat4::Ok);
        assert_eq!(set_mode(&other, &file, 0o600), NfsStat4::Ok);
    }
}

#[test]
fn a_change_that_waits_gets_its_reply_when_the_server_stops() {
    let rules = crate::ExportRules { secure_ports: false, ..rules() };
    // By its clock no wait ends.
    let (server, time) = serving_exported(export("/srv/files", 1, rules));
    let server = server.connected();
    let (holder, other) = (server.client("holder"), server.client("other"));
    let _calls = bind(&holder, ok);
    let file = create(&holder, "file");
    delegated(&holder, "file");
    let (sender, changed) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || sender.send(set_mode(&other, &file, 0o600)).unwrap());
        while waits(&server) == 0 {
            std::thread::yield_now();
        }
        server.shutdown();
        let status = changed.recv_timeout(LONG);
        time.advance(LONG);
        assert_eq!(status, Ok(NfsStat4::Delay));
    });
}

pub(super) fn delegated_directory(
    client: &TestClient<'_>,
    directory: &FileHandle,
) -> Result<Option<Stateid>, NfsStat4> {
    let asked = GetDirDelegationArgs4 {
        signal_when_available: false,
        notification_types: Bitmap4::EMPTY,
        child_attribute_delay: NfsTime4::default(),
        directory_attribute_delay: NfsTime4::default(),
        child_attributes: Bitmap4::EMPTY,
        directory_attributes: Bitmap4::EMPTY,
    };
    let got = client.last(&[Nfs4Operation::Putfh], Nfs4Operation::GetDirDelegation, &|compound| {
        compound.push(&PutfhArgs4 { object: NfsFh4::from(directory) });
        compound.push(&asked);
    })?;
    Ok(match got {
        GetDirDelegationOk4::Granted { stateid, .. } => Some(stateid),
        GetDirDelegationOk4::Unavailable(_) => None,
    })
}

// SEMANTICS: stateful-14.
#[test]
fn directories_are_delegated_on_request_until_others_change_their_names() {
    let make = |client: &TestClient<'_>, name: &str| {
        status(client.open(&client.files(), &creating(name, "o", READ, 0)))
    };
    let changes: [Change<'_>; 5] = [
        ("CREATE", &|client| make(client, "new")),
        ("REMOVE", &|client| {
            client.at(&client.files(), &|compound| compound.push(&RemoveArgs4 { name: component("file") }))
        }),
        ("RENAME", &|client| rename(client, "file", "elsewhere")),
        ("LINK", &|client| {
            let (file, root) = (client.walk(&["srv", "files", "file"]).unwrap(), client.files());
            client.at(&file, &|compound| {
                compound.bare(Nfs4Operation::Savefh);
                compound.push(&PutfhArgs4 { object: NfsFh4::from(&root) });
                compound.push(&LinkArgs4 { name: component("second") });
            })
        }),
        ("SETATTR", &|client| set_mode(client, &client.files(), 0o600)),
    ];
    for (what, change) in changes {
        let setup = NfsServiceConfig {
            state: PersistentState::with_key([9; 16]),
            exports: vec![export("/srv/files", 1, rules())],
            counters: Arc::new(ServerCounters::default()),
        };
        let mut service = NfsService::new(setup).unwrap();
        service.set_directory_delegations(true);
        let server = Server::over(Arc::new(service)).calling_back();
        let (holder, other) = (server.client("holder"), server.client("other"));
        let root = holder.files();
        let file = create(&holder, "file");
        assert_eq!(delegated_directory(&holder, &root), Ok(None), "it cannot be called");
        let calls = bind(&holder, ok);
        assert_eq!(delegated_directory(&holder, &file), Err(NfsStat4::Notdir));
        assert_eq!(delegated_directory(&holder, &holder.walk(&["srv"]).unwrap()), Ok(None));
        let stateid = delegated_directory(&holder, &root).unwrap().unwrap();
        // Its own changes, and those that are none, recall nothing.
        assert_eq!(make(&holder, "own"), NfsStat4::Ok);
        assert_eq!(make(&other, "own"), NfsStat4::Ok);
        assert_eq!(set_mode(&other, &file, 0o600), NfsStat4::Ok);
        assert!(calls.try_recv().is_err());
        assert_eq!(change(&other), NfsStat4::Delay, "{what}");
        assert_eq!(calls.recv_timeout(LONG).unwrap().stateid, stateid, "{what}");
        assert_eq!(give_back(&holder, &root, stateid), NfsStat4::Ok);
        assert_eq!(change(&other), NfsStat4::Ok, "{what}");
    }
}

#[test]
fn directories_are_not_delegated_unless_the_operator_says_so() {
    let (server, _) = server();
    let client = server.client("one");
    let _calls = bind(&client, ok);
    assert_eq!(delegated_directory(&client, &client.files()), Ok(None));
}

// SEMANTICS: stateful-11.
#[test]
fn a_process_on_the_server_writes_a_file_when_its_delegation_is_back() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // On a file system that has leases.
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, "old").unwrap();
    let (server, time) = serving(directory.path());
    let (holder, other) = (server.client("holder"), server.client("other"));
    let calls = bind(&holder, ok);
    let file = holder.walk(&["srv", "files", "file"]).unwrap();
    let stateid = delegated(&holder, "file");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| std::fs::write(&path, "new"));
        assert_eq!(calls.recv_timeout(LONG).unwrap().stateid, stateid);
        assert!(!writer.is_finished());
        assert_eq!(give_back(&holder, &file, stateid), NfsStat4::Ok);
        writer.join().unwrap().unwrap();
    });
    // The kernel lets a process wait for some time. The client has lost its delegation by then.
    time.advance(Duration::from_secs(60));
    let _ = (flags(&holder), flags(&other));
    let stateid = delegated(&holder, "file");
    let waits = std::fs::read_to_string("/proc/sys/fs/lease-break-time").unwrap();
    let waits: u64 = waits.trim().parse().unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| std::fs::write(&path, "newer"));
        assert_eq!(calls.recv_timeout(LONG).unwrap().stateid, stateid);
        time.advance(Duration::from_secs(waits - 4));
        server.service.expire_leases();
        assert_eq!(tested(&holder, stateid), NfsStat4::Ok);
        time.advance(Duration::from_secs(1));
        server.service.expire_leases();
        assert_eq!(tested(&holder, stateid), NfsStat4::DelegRevoked);
        writer.join().unwrap().unwrap();
    });
    // A process that has it open for writing leaves no room for one.
    let other_path = directory.path().join("other");
    let writer = std::fs::File::create(&other_path).unwrap();
    assert_eq!(open_for(&holder, "other", READ), OpenDelegation::None);
    drop(writer);
    let recalls = bind(&other, ok);
    let of_other = delegated(&other, "other");
    // The server's own write for the holder does not wait for the lease: the holder is asked for
    // its delegation.
    let writes = other.open(&other.files(), &opening("other", "writer", BOTH, 0)).unwrap();
    assert_eq!(write(&other, &writes.handle, writes.stateid), NfsStat4::Ok);
    assert_eq!(recalls.recv_timeout(LONG).unwrap().stateid, of_other);
    assert_eq!(give_back(&other, &writes.handle, of_other), NfsStat4::Ok);
}
