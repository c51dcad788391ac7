//! Changes in the grace period, of files whose delegations may not be reclaimed yet.

use curt_proto::nfs3::{
    CreateArguments, CreateHow, DirOpArgs, Filename, LinkArguments, NfsFh3, NfsProcedure, NfsStat3,
    RenameArguments, Sattr, SetattrArguments, StableHow, WriteArguments,
};
use curt_proto::nfs4::*;
use curt_types::FileHandle;
use curt_xdr::{Encode, Opaque};

use super::delegations::{
    LONG, Runs, bind, component, create, delegated, delegation, give_back, ok, rename, set_mode, v3, write,
};
use super::test_client::{Server, TestClient, channel, creating, export, opening, rules};

const READ: u32 = ShareAccess4::READ;
const BOTH: u32 = ShareAccess4::BOTH;

/// A change of the file "file" by a client. Returns whether it is to be tried again, or else has
/// succeeded.
type Change<'a> = (&'a str, &'a dyn Fn(&TestClient<'_>, &FileHandle) -> bool);

fn is_delayed(status: NfsStat4) -> bool {
    assert!(matches!(status, NfsStat4::Ok | NfsStat4::Delay), "{status:?}");
    status == NfsStat4::Delay
}

/// A call of NFSv3 beside a client.
fn is_delayed_v3(client: &TestClient<'_>, procedure: NfsProcedure, arguments: &dyn Encode) -> bool {
    use std::sync::atomic::{AtomicU32, Ordering};
    static XID: AtomicU32 = AtomicU32::new(1);
    let status = v3(client.server, 0, XID.fetch_add(1, Ordering::Relaxed), procedure, arguments);
    assert!(matches!(status, NfsStat3::Ok | NfsStat3::Jukebox), "{procedure}: {status:?}");
    status == NfsStat3::Jukebox
}

fn handle(file: &FileHandle) -> NfsFh3 {
    NfsFh3::new(file.as_bytes()).unwrap()
}

fn place(client: &TestClient<'_>, name: &'static str) -> DirOpArgs<'static> {
    DirOpArgs { directory: handle(&client.files()), name: Filename::new(name.as_bytes()).unwrap() }
}

/// Whether a creation of a name by NFSv3 is delayed.
fn creation_is_delayed(client: &TestClient<'_>, name: &'static str, size: Option<u64>) -> bool {
    let how = CreateHow::Unchecked(Sattr { size, ..Sattr::default() });
    let arguments = CreateArguments { place: place(client, name), how };
    is_delayed_v3(client, NfsProcedure::Create, &arguments)
}

fn complete(client: &TestClient<'_>) {
    let complete = ReclaimCompleteArgs4 { one_file_system: false };
    assert_eq!(client.status(&|compound| compound.push(&complete)), NfsStat4::Ok);
}

fn reclaim(client: &TestClient<'_>, file: &FileHandle, kind: DelegationType, access: u32) -> OpenedState {
    let claim = OpenClaim::Previous(kind);
    let opened = client.open(file, &OpenArgs4 { claim, ..opening("", "reader", access, 0) }).unwrap();
    OpenedState { open: opened.stateid, delegation: delegation(&opened) }
}

struct OpenedState {
    open: Stateid,
    delegation: Option<Stateid>,
}

const CHANGES: [Change<'static>; 11] = [
    ("SETATTR", &|client, file| is_delayed(set_mode(client, file, 0o600))),
    ("REMOVE", &|client, _| {
        let remove = RemoveArgs4 { name: component("file") };
        is_delayed(client.at(&client.files(), &|compound| compound.push(&remove)))
    }),
    ("RENAME of it", &|client, _| is_delayed(rename(client, "file", "elsewhere"))),
    ("RENAME over it", &|client, _| is_delayed(rename(client, "other", "file"))),
    ("LINK", &|client, file| {
        let root = client.files();
        is_delayed(client.at(file, &|compound| {
            compound.bare(Nfs4Operation::Savefh);
            compound.push(&PutfhArgs4 { object: NfsFh4::from(&root) });
            compound.push(&LinkArgs4 { name: component("second") });
        }))
    }),
    ("WRITE of NFSv3", &|client, file| {
        let data = Opaque::new(b"x").unwrap();
        let stable = StableHow::Unstable;
        let arguments = WriteArguments { file: handle(file), offset: 0, count: 1, stable, data };
        is_delayed_v3(client, NfsProcedure::Write, &arguments)
    }),
    ("SETATTR of NFSv3", &|client, file| {
        let attributes = Sattr { mode: Some(0o600), ..Sattr::default() };
        let arguments = SetattrArguments { object: handle(file), attributes, guard: None };
        is_delayed_v3(client, NfsProcedure::Setattr, &arguments)
    }),
    ("CREATE of NFSv3 that truncates", &|client, _| creation_is_delayed(client, "file", Some(0))),
    ("REMOVE of NFSv3", &|client, _| is_delayed_v3(client, NfsProcedure::Remove, &place(client, "file"))),
    ("RENAME of NFSv3", &|client, _| {
        let arguments = RenameArguments { from: place(client, "file"), to: place(client, "elsewhere") };
        is_delayed_v3(client, NfsProcedure::Rename, &arguments)
    }),
    ("LINK of NFSv3", &|client, file| {
        let arguments = LinkArguments { file: handle(file), place: place(client, "second") };
        is_delayed_v3(client, NfsProcedure::Link, &arguments)
    }),
];

// SEMANTICS: stateful-11.
#[test]
fn in_the_grace_period_changes_wait_for_delegations_that_are_not_reclaimed_yet() {
    for (what, change) in CHANGES {
        let runs = Runs::new();
        let file = &runs.delegate(&["file", "other"])[0];
        for is_cut_short in [true, false] {
            let server = runs.start();
            let (holder, other) =
                (server.reclaiming_client("holder", channel()), server.client("changes files"));
            let calls = bind(&holder, ok);
            assert!(change(&other, file), "{what}");
            // A new name is in no file's way, and an open without a change neither.
            assert!(!creation_is_delayed(&other, "new", None) && !creation_is_delayed(&other, "file", None));
            let delegation = reclaim(&holder, file, DelegationType::Read, READ).delegation.unwrap();
            assert!(change(&other, file), "{what}: the holder may have others");
            assert!(calls.try_recv().is_err(), "{what}");
            if is_cut_short {
                continue;
            }
            complete(&holder);
            assert!(change(&other, file), "{what}");
            assert_eq!(calls.recv_timeout(LONG).unwrap().stateid, delegation, "{what}");
            assert_eq!(give_back(&holder, file, delegation), NfsStat4::Ok);
            assert!(!change(&other, file), "{what}");
        }
    }
}

// SEMANTICS: stateful-11.
#[test]
fn a_client_that_never_returns_delays_changes_until_the_end_of_the_grace_period() {
    let runs = Runs::new();
    let file = &runs.delegate(&["file"])[0];
    let server = runs.start();
    let other = server.client("other");
    assert!(is_delayed(set_mode(&other, file, 0o600)));
    server.service.held.grace.end();
    assert!(!is_delayed(set_mode(&other, file, 0o600)));
}

// SEMANTICS: stateful-11.
#[test]
fn a_client_with_delegations_writes_in_the_grace_period_what_it_has_open_again() {
    let runs = Runs::new();
    let written = {
        let server = runs.start();
        let holder = server.client("holder");
        let _calls = bind(&holder, ok);
        create(&holder, "read");
        delegated(&holder, "read");
        holder.open(&holder.files(), &creating("written", "reader", BOTH, 0)).unwrap().handle
    };
    let server = runs.start();
    let holder = server.reclaiming_client("holder", channel());
    let opened = reclaim(&holder, &written, DelegationType::None, BOTH);
    assert_eq!(write(&holder, &written, opened.open), NfsStat4::Ok);
    // What needs no open waits until the client itself has completed its reclaims.
    assert!(is_delayed(set_mode(&holder, &written, 0o600)));
    complete(&holder);
    assert!(!is_delayed(set_mode(&holder, &written, 0o600)));
}

fn start_again_after(runs: &Runs, has_delegation: bool) -> (Server, FileHandle) {
    let file = {
        let server = runs.start();
        let client = server.client("client");
        let _calls = has_delegation.then(|| bind(&client, ok));
        let file = create(&client, "file");
        client.open(&client.files(), &opening("file", "reader", READ, 0)).unwrap();
        file
    };
    (runs.start(), file)
}

// SEMANTICS: stateful-11.
#[test]
fn changes_wait_for_no_client_without_delegations() {
    for has_delegation in [false, true] {
        let runs = Runs::new();
        let (server, file) = start_again_after(&runs, has_delegation);
        assert!(server.service.is_in_grace());
        assert_eq!(is_delayed(set_mode(&server.client("other"), &file, 0o600)), has_delegation);
    }
}

// SEMANTICS: stateful-14.
#[test]
fn names_wait_as_well_if_directories_are_delegated() {
    for are_delegated in [false, true] {
        let mut runs = Runs::new();
        runs.directory_delegations = are_delegated;
        let (server, _) = start_again_after(&runs, true);
        let (client, other) = (server.reclaiming_client("client", channel()), server.client("other"));
        assert_eq!(creation_is_delayed(&other, "new", None), are_delegated);
        complete(&client);
        assert!(!creation_is_delayed(&other, "newer", None));
    }
}

// SEMANTICS: stateful-8.
#[test]
fn the_first_open_of_a_client_does_not_write_its_record() {
    let runs = Runs::new();
    let server = runs.start();
    let client = server.reclaiming_client("client", channel());
    let _calls = bind(&client, ok);
    complete(&client);
    create(&client, "file");
    server.service.client_records.fill_disk();
    let opened = client.open(&client.files(), &opening("file", "reader", READ, 0)).unwrap();
    assert!(delegation(&opened).is_some());
}

// SEMANTICS: stateful-8.
#[test]
fn a_host_without_an_export_is_not_recorded() {
    let client = crate::ExportClient {
        client: crate::ClientSpec::Address([10, 0, 0, 1].into()),
        ..crate::ExportClient::everyone(rules())
    };
    let exported = crate::ExportDefinition { clients: vec![client], ..export("/srv/files", 1, rules()) };
    let server = Server::with(vec![exported]);
    for (name, address, is_recorded) in [("one", [10, 0, 0, 1], true), ("two", [10, 0, 0, 2], false)] {
        server.call_from(address);
        let client = server.reclaiming_client(name, channel());
        complete(&client);
        let session = server.service.held.session(&client.session).unwrap();
        assert_eq!(session.client.is_recorded(), is_recorded);
    }
}

// SEMANTICS: stateful-11.
#[test]
fn a_client_that_cannot_be_recorded_gets_no_delegation_and_opens_files() {
    let runs = Runs::new();
    let server = runs.start();
    let client = server.reclaiming_client("client", channel());
    server.service.client_records.fill_disk();
    complete(&client);
    server.service.expire_leases();
    let _calls = bind(&client, ok);
    create(&client, "file");
    server.service.client_records.fill_disk();
    let open = || client.open(&client.files(), &opening("file", "reader", READ, 0)).unwrap();
    for _ in 0..2 {
        assert_eq!(delegation(&open()), None);
    }
    server.service.expire_leases();
    assert!(delegation(&open()).is_some());
}
