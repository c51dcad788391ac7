//! Requests about clients, sessions, the grace period, conflicts and permissions, for the page of
//! conformance ([`conformance`](super::conformance)): what is asked, and the status.

use std::time::Duration;

use curt_proto::nfs4::*;
use curt_types::FileHandle;
use curt_xdr::{Opaque, VarArray};

use super::fixture::{fattr, name};
use super::locks::{REST, locking, new_owner};
use super::test_client::{
    Opened, Operations, Server, TestClient, channel, compound, creating, export, export_for_flavor, opening,
    rules, user,
};
use crate::exports::CredentialFlavor;
use crate::state::{Principal, RecordedClient, RecordedState};

/// A request, and the status of its reply.
type Row = (&'static str, NfsStat4);

const READ: u32 = ShareAccess4::READ;
const WRITE: u32 = ShareAccess4::WRITE;
const BOTH: u32 = ShareAccess4::BOTH;
const COMPLETE: ReclaimCompleteArgs4 = ReclaimCompleteArgs4 { one_file_system: false };

/// The rows of one topic.
pub(super) struct Topic {
    pub(super) title: &'static str,
    pub(super) rows: Vec<Row>,
}

pub(super) fn topics() -> Vec<Topic> {
    vec![
        Topic { title: "Clients", rows: of_clients() },
        Topic { title: "Sessions", rows: of_sessions() },
        Topic { title: "Requests in a session", rows: of_requests() },
        Topic { title: "The grace period", rows: of_grace() },
        Topic { title: "Conflicts", rows: of_conflicts() },
        Topic { title: "User 1000, with objects of the superuser", rows: of_permissions() },
    ]
}

fn header_status(reply: &[u8]) -> NfsStat4 {
    CompoundResults::new(reply).unwrap().header().status
}

/// Sends operations without SEQUENCE.
fn sent(server: &Server, uid: u32, operations: Operations<'_>) -> NfsStat4 {
    header_status(&server.raw(user(uid), &compound(1, operations)))
}

/// EXCHANGE_ID, with the cases of RFC 8881 section 18.35.4; DESTROY_CLIENTID, RECLAIM_COMPLETE.
fn of_clients() -> Vec<Row> {
    let server = Server::new();
    let presented = |owner: &'static str, verifier: u8, flags: u32| ExchangeIdArgs4 {
        owner: ClientOwner {
            verifier: Verifier4([verifier; 8]),
            owner: Opaque::new(owner.as_bytes()).unwrap(),
        },
        flags: ExchangeIdFlags(flags),
        state_protect: StateProtectArgs::None,
        implementation: VarArray::default(),
    };
    let exchange = |uid, owner, verifier, flags| {
        let arguments = presented(owner, verifier, flags);
        sent(&server, uid, &|compound| compound.push(&arguments))
    };
    let update = ExchangeIdFlags::UPD_CONFIRMED_REC_A;
    let mut rows = vec![
        ("EXCHANGE_ID of an unknown client (case 1)", exchange(0, "new", 1, 0)),
        ("EXCHANGE_ID again, before CREATE_SESSION (case 4)", exchange(0, "new", 1, 0)),
        ("EXCHANGE_ID, an update before CREATE_SESSION (case 7)", exchange(0, "new", 1, update)),
    ];
    let client = server.client("one");
    let clientid = server.service.held.session(&client.session).unwrap().client.id;
    let destroy = |clientid| sent(&server, 0, &|compound| compound.push(&DestroyClientidArgs4 { clientid }));
    let protected = ExchangeIdArgs4 {
        state_protect: StateProtectArgs::MachineCredential(StateProtectOps::default()),
        ..presented("one", 1, 0)
    };
    rows.extend([
        ("EXCHANGE_ID of a client with a session (case 2)", exchange(0, "one", 1, 0)),
        ("EXCHANGE_ID of another principal (case 3)", exchange(1, "one", 1, 0)),
        ("EXCHANGE_ID, an update (case 6)", exchange(0, "one", 1, update)),
        ("EXCHANGE_ID, an update of another instance (case 8)", exchange(0, "one", 2, update)),
        ("EXCHANGE_ID, an update of another principal (case 9)", exchange(1, "one", 1, update)),
        ("EXCHANGE_ID of a client that has restarted (case 5)", exchange(0, "one", 2, 0)),
        ("EXCHANGE_ID with unknown flags", exchange(0, "one", 1, 4)),
        ("EXCHANGE_ID with SP4_MACH_CRED", sent(&server, 0, &|compound| compound.push(&protected))),
        ("DESTROY_CLIENTID with a session", destroy(clientid)),
        ("DESTROY_CLIENTID of an unknown client", destroy(Clientid(5))),
        ("RECLAIM_COMPLETE a second time", client.status(&|compound| compound.push(&COMPLETE))),
    ]);
    rows
}

/// CREATE_SESSION, BIND_CONN_TO_SESSION, BACKCHANNEL_CTL, DESTROY_SESSION.
fn of_sessions() -> Vec<Row> {
    let server = Server::new();
    let client = server.client("one");
    let (session, unknown, fore) = (client.session, SessionId([7; 16]), channel());
    let id = server.service.held.session(&session).unwrap().client.id;
    let create = |clientid, sequence: u32, flags, fore: &ChannelAttributes| {
        let arguments = CreateSessionArgs4 {
            clientid,
            sequence: SequenceId(sequence),
            flags: CreateSessionFlags(flags),
            fore: fore.clone(),
            back: channel(),
            callback_program: 123,
            callback_security: VarArray::default(),
        };
        sent(&server, 0, &|compound| compound.push(&arguments))
    };
    let tiny = ChannelAttributes { request_max: 20, ..channel() };
    let mut rows = vec![
        ("CREATE_SESSION of an unknown client", create(Clientid(5), 1, 0, &fore)),
        ("CREATE_SESSION with a sequence id that is not the next", create(id, 9, 0, &fore)),
        ("CREATE_SESSION repeated", create(id, 1, 0, &fore)),
        ("CREATE_SESSION with unknown flags", create(id, 2, 8, &fore)),
        ("CREATE_SESSION with requests of 20 bytes", create(id, 2, 0, &tiny)),
    ];
    let bind = |session, direction| {
        let arguments = BindConnToSessionArgs4 { session, direction, rdma: false };
        sent(&server, 0, &|compound| compound.push(&arguments))
    };
    let destroy = |session| sent(&server, 0, &|compound| compound.push(&DestroySessionArgs4 { session }));
    let handle = |bytes| Opaque::new(bytes).unwrap();
    let gss = CallbackGssHandles { service: 1, from_server: handle(b"a"), from_client: handle(b"b") };
    let callback_security = VarArray::new(vec![CallbackSecParms4::Gss(gss)]).unwrap();
    let control = BackchannelCtlArgs4 { callback_program: 9, callback_security };
    rows.extend([
        ("BIND_CONN_TO_SESSION for requests", bind(session, ChannelDirFromClient::Fore)),
        (
            "BIND_CONN_TO_SESSION, back only, without a callback credential",
            bind(session, ChannelDirFromClient::Back),
        ),
        ("BIND_CONN_TO_SESSION of an unknown session", bind(unknown, ChannelDirFromClient::Fore)),
        ("BACKCHANNEL_CTL with RPCSEC_GSS only", client.status(&|compound| compound.push(&control))),
        (
            "DESTROY_SESSION beside other operations",
            sent(&server, 0, &|compound| {
                compound.push(&DestroySessionArgs4 { session });
                compound.bare(Nfs4Operation::Putrootfh);
            }),
        ),
        ("DESTROY_SESSION", destroy(session)),
        ("DESTROY_SESSION of one that has ended", destroy(session)),
    ]);
    rows
}

/// SEQUENCE, and the limits of a session.
fn of_requests() -> Vec<Row> {
    let server = Server::new();
    let fore = ChannelAttributes {
        request_max: 2000,
        response_max: 600,
        response_cached_max: 300,
        operations_max: 8,
        ..channel()
    };
    let session = server.client_with("one", fore).session;
    let (root, sequence) = (Nfs4Operation::Putrootfh, |number: u32| SequenceArgs4 {
        session,
        // RECLAIM_COMPLETE was the first.
        sequence: SequenceId(number),
        slot: SlotId(0),
        highest_slot: SlotId(0),
        cache_this: false,
    });
    let run = |arguments: SequenceArgs4, operations: Operations<'_>| {
        sent(&server, 0, &|compound| {
            compound.push(&arguments);
            operations(compound);
        })
    };
    let roots =
        |count| move |compound: &mut CompoundEncoder<'_>| (0..count).for_each(|_| compound.bare(root));
    let everything = Attribute::supported(1).common(Attribute::READABLE);
    let large = |compound: &mut CompoundEncoder<'_>| {
        compound.bare(root);
        (0..5).for_each(|_| compound.push(&GetattrArgs4 { attributes: everything }));
    };
    let long = TestStateidArgs4 { stateids: VarArray::new(vec![Stateid::ANONYMOUS; 200]).unwrap() };
    let cached = SequenceArgs4 { cache_this: true, ..sequence(4) };
    vec![
        (
            "SEQUENCE of an unknown session",
            run(SequenceArgs4 { session: SessionId([7; 16]), ..sequence(2) }, &roots(1)),
        ),
        (
            "SEQUENCE of a slot that is not there",
            run(SequenceArgs4 { slot: SlotId(9), ..sequence(2) }, &roots(1)),
        ),
        (
            "SEQUENCE with a highest slot that is not there",
            run(SequenceArgs4 { highest_slot: SlotId(9), ..sequence(2) }, &roots(1)),
        ),
        ("SEQUENCE with a sequence id that is not the next", run(sequence(9), &roots(1))),
        ("SEQUENCE with the next one", run(sequence(2), &roots(1))),
        ("SEQUENCE repeated, whose reply was not to be cached", run(sequence(2), &roots(1))),
        ("SEQUENCE repeated with other operations", run(sequence(2), &roots(2))),
        (
            "SEQUENCE behind another operation",
            sent(&server, 0, &|compound| {
                compound.push(&sequence(3));
                compound.push(&sequence(3));
            }),
        ),
        ("one operation more than the session allows", run(sequence(4), &roots(8))),
        ("a request larger than the session allows", run(sequence(4), &|compound| compound.push(&long))),
        ("a reply larger than the session allows to be cached", run(cached, &large)),
        ("a reply larger than the session allows", run(sequence(5), &large)),
        ("PUTROOTFH without SEQUENCE", sent(&server, 0, &roots(1))),
    ]
}

fn set(
    client: &TestClient<'_>,
    file: &FileHandle,
    stateid: Stateid,
    values: &AttributeValues<'_>,
) -> NfsStat4 {
    fattr(values, |attributes| {
        client.at(file, &|compound| compound.push(&SetattrArgs4 { stateid, attributes }))
    })
}

fn write(client: &TestClient<'_>, file: &FileHandle, stateid: Stateid) -> NfsStat4 {
    let data = Opaque::new(b"data").unwrap();
    let arguments = WriteArgs4 { stateid, offset: 0, stable: StableHow4::FileSync, data };
    client.at(file, &|compound| compound.push(&arguments))
}

fn read(client: &TestClient<'_>, file: &FileHandle, stateid: Stateid) -> NfsStat4 {
    client.at(file, &|compound| compound.push(&ReadArgs4 { stateid, offset: 0, count: 4 }))
}

fn test_lock(client: &TestClient<'_>, file: &FileHandle) -> NfsStat4 {
    let owner = StateOwner { clientid: Clientid(0), owner: Opaque::new(b"tester").unwrap() };
    let arguments = LocktArgs4 { kind: LockType4::Read, offset: 0, length: REST, owner };
    client.at(file, &|compound| compound.push(&arguments))
}

fn status_of<T>(outcome: Result<T, NfsStat4>) -> NfsStat4 {
    outcome.err().unwrap_or(NfsStat4::Ok)
}

fn size() -> AttributeValues<'static> {
    AttributeValues { size: Some(1), ..AttributeValues::default() }
}

fn mode() -> AttributeValues<'static> {
    AttributeValues { mode: Some(0o600), ..AttributeValues::default() }
}

/// As after a restart of the server, when the client "recorded" had files open.
fn of_grace() -> Vec<Row> {
    let server = Server::new();
    let client = server.client("one");
    let root = client.files();
    let opened = client.open(&root, &creating("file", "o", BOTH, WRITE)).unwrap();
    let Opened { handle: file, stateid, .. } = &opened;
    let principal = Principal::Uid(0);
    let recorded = ["recorded", "second"].map(|owner| RecordedClient {
        owner: owner.as_bytes().into(),
        principal,
        held: RecordedState::default(),
    });
    server.service.held.grace.begin(recorded.into(), Duration::from_secs(90), Duration::from_secs(90));
    let locker = new_owner(*stateid, b"a");
    let lock = locking(LockType4::Read, 0, 8, locker);
    let reclaimed = LockArgs4 { reclaim: true, ..locking(LockType4::Read, 0, 8, locker) };
    let at = |operation: Operations<'_>| client.at(file, operation);
    let anonymous = Stateid::ANONYMOUS;
    let mut rows = vec![
        ("OPEN", status_of(client.open(&root, &opening("file", "p", READ, 0)))),
        ("OPEN that creates", status_of(client.open(&root, &creating("new", "p", READ, 0)))),
        ("LOCK", at(&|compound| compound.push(&lock))),
        ("LOCK, a reclaim after RECLAIM_COMPLETE", at(&|compound| compound.push(&reclaimed))),
        ("LOCKT", test_lock(&client, file)),
        ("READ without an open", read(&client, file, anonymous)),
        ("READ with READ_BYPASS", read(&client, file, Stateid::READ_BYPASS)),
        ("WRITE without an open", write(&client, file, anonymous)),
        ("SETATTR of the size without an open", set(&client, file, anonymous, &size())),
        ("SETATTR of the mode", set(&client, file, anonymous, &mode())),
        ("READ with an open", read(&client, file, *stateid)),
        ("WRITE with an open", write(&client, file, *stateid)),
    ];
    let held = RecordedState { has_delegations: true, ..RecordedState::default() };
    let delegated = RecordedClient { owner: b"delegated".as_slice().into(), principal, held };
    server.service.held.grace.begin(vec![delegated], Duration::from_secs(90), Duration::from_secs(90));
    let rename = RenameArgs4 { from: name("file"), to: name("new") };
    let in_root = |operations: Operations<'_>| client.at(&root, operations);
    rows.extend([
        ("SETATTR before delegations are reclaimed", set(&client, file, anonymous, &mode())),
        (
            "REMOVE before delegations are reclaimed",
            in_root(&|compound| compound.push(&RemoveArgs4 { name: name("file") })),
        ),
        (
            "RENAME before delegations are reclaimed",
            in_root(&|compound| {
                compound.bare(Nfs4Operation::Savefh);
                compound.push(&rename);
            }),
        ),
    ]);
    let claim = OpenClaim::Previous(DelegationType::None);
    let reclaim = |client: &TestClient<'_>, access| {
        let open = OpenArgs4 { claim, ..opening("", "owner", access, 0) };
        status_of(client.open(file, &open))
    };
    let [recorded, other] = ["recorded", "other"].map(|name| server.reclaiming_client(name, channel()));
    rows.extend([
        ("OPEN before RECLAIM_COMPLETE", status_of(recorded.open(&root, &opening("file", "o", READ, 0)))),
        ("OPEN with CLAIM_PREVIOUS", reclaim(&recorded, READ)),
        ("OPEN with CLAIM_PREVIOUS of what another denies", reclaim(&recorded, WRITE)),
        ("OPEN with CLAIM_PREVIOUS of a client that had nothing open", reclaim(&other, READ)),
        ("RECLAIM_COMPLETE", recorded.status(&|compound| compound.push(&COMPLETE))),
        ("OPEN with CLAIM_PREVIOUS after RECLAIM_COMPLETE", reclaim(&recorded, READ)),
    ]);
    server.service.held.grace.end();
    let second = server.reclaiming_client("second", channel());
    rows.push(("OPEN with CLAIM_PREVIOUS after the grace period", reclaim(&second, READ)));
    rows
}

/// Share reservations and locks of others, and the access of an open.
fn of_conflicts() -> Vec<Row> {
    let server = Server::with(vec![
        export("/srv/files", 1, rules()),
        export_for_flavor("/srv/other", 2, CredentialFlavor::None),
    ]);
    let (one, two) = (server.client("one"), server.client("two"));
    let root = one.files();
    let denying = one.open(&root, &creating("denied", "o", BOTH, BOTH)).unwrap();
    let open = |access, deny| status_of(two.open(&root, &opening("denied", "o", access, deny)));
    let mut rows = vec![
        ("OPEN of what another denies", open(READ, 0)),
        ("READ without an open of what another denies", read(&two, &denying.handle, Stateid::ANONYMOUS)),
        ("WRITE without an open of what another denies", write(&two, &denying.handle, Stateid::ANONYMOUS)),
        (
            "SETATTR of the size without an open of what another denies",
            set(&two, &denying.handle, Stateid::ANONYMOUS, &size()),
        ),
    ];
    let shared = one.open(&root, &creating("file", "o", BOTH, 0)).unwrap();
    let reading = two.open(&root, &opening("file", "o", READ, 0)).unwrap();
    let file = &shared.handle;
    let held = locking(LockType4::Write, 0, 8, new_owner(shared.stateid, b"a"));
    assert_eq!(one.at(file, &|compound| compound.push(&held)), NfsStat4::Ok);
    let lock = |client: &TestClient<'_>, kind, stateid| {
        let arguments = locking(kind, 0, 8, new_owner(stateid, b"b"));
        client.at(file, &|compound| compound.push(&arguments))
    };
    let downgrade = |share_access: u32, share_deny| OpenDowngradeArgs4 {
        stateid: reading.stateid,
        seqid: 0,
        share_access: ShareAccess4(share_access),
        share_deny,
    };
    let down = |access, deny| two.at(file, &|compound| compound.push(&downgrade(access, deny)));
    rows.extend([
        ("OPEN that denies what another has", status_of(two.open(&root, &opening("file", "p", READ, WRITE)))),
        ("LOCK of what another has locked", lock(&two, LockType4::Read, reading.stateid)),
        ("LOCKT of what another has locked", test_lock(&two, file)),
        ("LOCK for writing with an open for reading", lock(&two, LockType4::Write, reading.stateid)),
        ("WRITE with an open for reading", write(&two, file, reading.stateid)),
        ("SETATTR of the size with an open for reading", set(&two, file, reading.stateid, &size())),
        ("OPEN_DOWNGRADE to more than is open", down(BOTH, 0)),
        (
            "FREE_STATEID of an open",
            two.status(&|compound| {
                compound.push(&FreeStateidArgs4 { stateid: reading.stateid });
            }),
        ),
        (
            "LOOKUP and GETATTR of an export for another flavor",
            status_of(two.walk(&["srv", "other"]).and_then(|other| {
                let attributes = Attribute::set(&[Attribute::Size]);
                Err::<(), _>(two.at(&other, &|compound| compound.push(&GetattrArgs4 { attributes })))
            })),
        ),
    ]);
    rows
}

/// Access by mode bits.
fn of_permissions() -> Vec<Row> {
    let server = Server::new();
    let client = server.client("one");
    let root = client.files();
    let opened = client.open(&root, &creating("file", "o", BOTH, 0)).unwrap();
    let directory =
        CreateArgs4 { kind: CreateType4::Directory, name: name("closed"), attributes: Fattr4::default() };
    assert_eq!(client.at(&root, &|compound| compound.push(&directory)), NfsStat4::Ok);
    let closed = client.walk(&["srv", "files", "closed"]).unwrap();
    let file = &opened.handle;
    for object in [file, &closed] {
        assert_eq!(set(&client, object, Stateid::ANONYMOUS, &mode()), NfsStat4::Ok);
    }
    client.uid.set(1000);
    let anonymous = Stateid::ANONYMOUS;
    let owner = AttributeValues { owner: Some(Opaque::new(b"1000").unwrap()), ..AttributeValues::default() };
    let time = AttributeValues { time_modify_set: Some(SetTime4::ServerTime), ..AttributeValues::default() };
    let listing = ReaddirArgs4 {
        cookie: 0,
        verifier: Verifier4::default(),
        directory_count: 0,
        max_count: 4096,
        attributes: Bitmap4::EMPTY,
    };
    let link = CreateArgs4 {
        kind: CreateType4::Symlink(Opaque::new(b"to").unwrap()),
        name: name("new"),
        attributes: Fattr4::default(),
    };
    let removed = RemoveArgs4 { name: name("file") };
    let looked_up = LookupArgs4 { name: name("name") };
    let renamed = RenameArgs4 { from: name("file"), to: name("other") };
    let in_root = |operations: Operations<'_>| client.at(&root, operations);
    vec![
        ("OPEN for reading", status_of(client.open(&root, &opening("file", "u", READ, 0)))),
        ("OPEN for writing", status_of(client.open(&root, &opening("file", "u", WRITE, 0)))),
        ("OPEN that creates", status_of(client.open(&root, &creating("new", "u", BOTH, 0)))),
        ("READ without an open", read(&client, file, anonymous)),
        ("WRITE without an open", write(&client, file, anonymous)),
        ("WRITE with an open of the superuser", write(&client, file, opened.stateid)),
        ("SETATTR of the size without an open", set(&client, file, anonymous, &size())),
        ("SETATTR of the mode", set(&client, file, anonymous, &mode())),
        ("SETATTR of the owner", set(&client, file, anonymous, &owner)),
        ("SETATTR of the time", set(&client, file, anonymous, &time)),
        ("LOCKT", test_lock(&client, file)),
        ("CREATE", in_root(&|compound| compound.push(&link))),
        ("REMOVE", in_root(&|compound| compound.push(&removed))),
        (
            "RENAME",
            in_root(&|compound| {
                compound.bare(Nfs4Operation::Savefh);
                compound.push(&renamed);
            }),
        ),
        ("LOOKUP in a directory", client.at(&closed, &|compound| compound.push(&looked_up))),
        ("READDIR", client.at(&closed, &|compound| compound.push(&listing))),
        (
            "GETATTR",
            client.at(&closed, &|compound| {
                compound.push(&GetattrArgs4 { attributes: Attribute::set(&[Attribute::Mode]) });
            }),
        ),
    ]
}
