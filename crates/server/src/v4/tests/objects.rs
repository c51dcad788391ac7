//! Every operation on an object of every type.

use curt_proto::nfs4::{
    AccessArgs4, Attribute, AttributeValues, CloseArgs4, CommitArgs4, CompoundEncoder, CreateArgs4, CreateType4,
    DelegreturnArgs4, Fattr4, GetattrArgs4, LinkArgs4, LookupArgs4, Nfs4Operation, NfsFh4, NfsStat4,
    NverifyArgs4, OpenArgs4, OpenClaim, OpenDowngradeArgs4, PutfhArgs4, ReadArgs4, ReaddirArgs4, RemoveArgs4,
    RenameArgs4, SecinfoArgs4, SecinfoNoNameArgs4, SetattrArgs4, ShareAccess4, SpecData4, StableHow4, Stateid,
    Verifier4, VerifyArgs4, WriteArgs4,
};
use curt_types::FileHandle;
use curt_xdr::Opaque;

use super::fixture::{Server, TestClient, creating, opening};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Device,
    Pseudo,
    Gone,
}

fn make(client: &TestClient<'_>, root: &FileHandle, name: &str, kind: CreateType4<'_>) -> FileHandle {
    let name_bytes = Opaque::new(name.as_bytes()).unwrap();
    let create = CreateArgs4 { kind, name: name_bytes, attributes: Fattr4::default() };
    assert_eq!(client.at(root, &|compound| compound.push(&create)), NfsStat4::Ok);
    client.walk(&["srv", "files", name]).unwrap()
}

fn objects(client: &TestClient<'_>) -> Vec<(Kind, FileHandle)> {
    let root = client.files();
    let file = client.open(&root, &creating("file", "maker", 3, 0)).unwrap();
    let close = CloseArgs4 { seqid: 0, stateid: file.stateid };
    assert_eq!(client.at(&file.handle, &|compound| compound.push(&close)), NfsStat4::Ok);
    let gone = make(client, &root, "gone", CreateType4::Fifo);
    let remove = RemoveArgs4 { name: Opaque::new(b"gone").unwrap() };
    assert_eq!(client.at(&root, &|compound| compound.push(&remove)), NfsStat4::Ok);
    let device = CreateType4::CharacterDevice(SpecData4 { major: 1, minor: 3 });
    vec![
        (Kind::File, file.handle),
        (Kind::Directory, make(client, &root, "directory", CreateType4::Directory)),
        (Kind::Symlink, make(client, &root, "link", CreateType4::Symlink(Opaque::new(b"to").unwrap()))),
        (Kind::Fifo, make(client, &root, "fifo", CreateType4::Fifo)),
        (Kind::Device, make(client, &root, "device", device)),
        (Kind::Pseudo, client.walk(&["srv"]).unwrap()),
        (Kind::Gone, gone),
    ]
}

/// Pushes an operation with arguments that are right for some object.
fn push(compound: &mut CompoundEncoder<'_>, operation: Nfs4Operation, attributes: Fattr4<'_>) {
    use Nfs4Operation as Op;
    let (stateid, name) = (Stateid::ANONYMOUS, Opaque::new(b"name").unwrap());
    match operation {
        Op::Access => compound.push(&AccessArgs4 { access: 0x3f }),
        Op::Close => compound.push(&CloseArgs4 { seqid: 0, stateid }),
        Op::Commit => compound.push(&CommitArgs4 { offset: 0, count: 0 }),
        Op::Create => {
            compound.push(&CreateArgs4 { kind: CreateType4::Fifo, name, attributes: Fattr4::default() });
        }
        Op::Delegreturn => compound.push(&DelegreturnArgs4 { stateid }),
        Op::Getattr => compound.push(&GetattrArgs4 { attributes: Attribute::supported(1) }),
        Op::Link => compound.push(&LinkArgs4 { name }),
        Op::Lookup => compound.push(&LookupArgs4 { name }),
        Op::Nverify => compound.push(&NverifyArgs4 { attributes }),
        Op::Verify => compound.push(&VerifyArgs4 { attributes }),
        Op::Open => compound.push(&opening("name", "owner", 1, 0)),
        Op::OpenDowngrade => {
            let share_access = ShareAccess4(1);
            compound.push(&OpenDowngradeArgs4 { stateid, seqid: 0, share_access, share_deny: 0 });
        }
        Op::Read => compound.push(&ReadArgs4 { stateid, offset: 0, count: 10 }),
        Op::Readdir => compound.push(&ReaddirArgs4 {
            cookie: 0,
            verifier: Verifier4::default(),
            names_max: 4096,
            reply_max: 4096,
            attributes: Attribute::supported(1).common(Attribute::READABLE),
        }),
        Op::Remove => compound.push(&RemoveArgs4 { name }),
        Op::Rename => compound.push(&RenameArgs4 { from: name, to: Opaque::new(b"other").unwrap() }),
        Op::Secinfo => compound.push(&SecinfoArgs4 { name }),
        Op::SecinfoNoName => compound.push(&SecinfoNoNameArgs4::Current),
        Op::Setattr => compound.push(&SetattrArgs4 { stateid, attributes }),
        Op::Write => {
            let data = Opaque::new(b"data").unwrap();
            compound.push(&WriteArgs4 { stateid, offset: 0, stable: StableHow4::FileSync, data });
        }
        _ => compound.bare(operation),
    }
}

/// The status of an operation that is meant for other objects.
fn expected(operation: Nfs4Operation, kind: Kind) -> &'static [NfsStat4] {
    use Nfs4Operation as Op;
    use NfsStat4 as S;
    if kind == Kind::Gone {
        return &[S::Stale];
    }
    let is_directory = matches!(kind, Kind::Directory | Kind::Pseudo);
    let not_directory: &[S] = if kind == Kind::Symlink { &[S::Symlink] } else { &[S::Notdir] };
    match operation {
        Op::Access | Op::Getattr | Op::Getfh | Op::Savefh | Op::Restorefh => &[S::Ok],
        Op::SecinfoNoName | Op::Putfh => &[S::Ok],
        Op::Setattr if kind == Kind::Pseudo => &[S::Rofs],
        // The attributes are a size.
        Op::Setattr if kind == Kind::File => &[S::Ok],
        Op::Setattr if is_directory => &[S::Isdir],
        Op::Setattr => &[S::Inval, S::WrongType, S::Symlink],
        Op::Verify => &[S::Ok, S::NotSame],
        Op::Nverify => &[S::Ok, S::Same],
        Op::Close | Op::OpenDowngrade | Op::Delegreturn => &[S::BadStateid],
        Op::Read | Op::Write | Op::Commit if kind == Kind::File => &[S::Ok],
        Op::Read | Op::Write | Op::Commit if is_directory => &[S::Isdir],
        Op::Read | Op::Write | Op::Commit if kind == Kind::Symlink => &[S::Symlink],
        Op::Read | Op::Write | Op::Commit => &[S::WrongType],
        Op::Readlink if kind == Kind::Symlink => &[S::Ok],
        Op::Readlink => &[S::WrongType],
        Op::Create | Op::Link | Op::Remove | Op::Rename if kind == Kind::Pseudo => &[S::Rofs, S::Xdev],
        Op::Create if is_directory => &[S::Ok],
        // The saved filehandle is the object itself.
        Op::Link if is_directory => &[S::Isdir],
        Op::Lookup | Op::Secinfo | Op::Open | Op::Remove | Op::Rename if is_directory => &[S::Noent],
        Op::Readdir | Op::Lookupp if is_directory => &[S::Ok],
        Op::Create | Op::Link | Op::Lookup | Op::Secinfo | Op::Open | Op::Remove | Op::Rename => not_directory,
        Op::Readdir => &[S::Notdir],
        Op::Lookupp => not_directory,
        _ => &[],
    }
}

#[test]
fn every_operation_has_its_status_on_an_object_of_another_type() {
    let server = Server::new();
    let client = server.client("one");
    let mut bytes = Vec::new();
    let size = AttributeValues { size: Some(0), ..AttributeValues::default() };
    size.encode_values(size.present(), &mut bytes);
    let attributes = Fattr4 { mask: size.present(), values: Opaque::new(&bytes).unwrap() };
    let mut wrong = Vec::new();
    for (kind, object) in objects(&client) {
        for operation in Nfs4Operation::ALL {
            let is_supported = operation.availability(1) == curt_proto::nfs4::Availability::Supported;
            if !is_supported || !operation.properties().handles.current() {
                continue;
            }
            let status = client.status(&|compound| {
                compound.push(&PutfhArgs4 { object: NfsFh4::from(&object) });
                if operation.properties().handles.saved() {
                    compound.bare(Nfs4Operation::Savefh);
                }
                push(compound, operation, attributes);
            });
            // Handles of removed objects may be refused by PUTFH or by what uses them.
            let is_only_named = matches!(operation, Nfs4Operation::Getfh | Nfs4Operation::Savefh | Nfs4Operation::SecinfoNoName);
            let expected = expected(operation, kind);
            let is_right = expected.contains(&status)
                || kind == Kind::Gone && (is_only_named || matches!(operation, Nfs4Operation::Close | Nfs4Operation::OpenDowngrade | Nfs4Operation::Delegreturn));
            if !is_right {
                wrong.push(format!("{operation} on {kind:?}: {status}, expected {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_regular_files_are_opened() {
    let server = Server::new();
    let client = server.client("one");
    let all = objects(&client);
    let root = client.files();
    let by_name = |name| client.open(&root, &opening(name, "owner", 1, 0)).err();
    let created = |name| client.open(&root, &creating(name, "owner", 1, 0)).err();
    for (name, status) in [
        ("directory", NfsStat4::Isdir),
        ("link", NfsStat4::Symlink),
        ("fifo", NfsStat4::WrongType),
        ("device", NfsStat4::WrongType),
    ] {
        assert_eq!((by_name(name), created(name)), (Some(status), Some(status)), "{name}");
    }
    for (kind, object) in all {
        let by_handle = OpenArgs4 { claim: OpenClaim::Fh, ..opening("", "owner", 1, 0) };
        let expected = match kind {
            Kind::File => None,
            Kind::Directory | Kind::Pseudo => Some(NfsStat4::Isdir),
            Kind::Symlink => Some(NfsStat4::Symlink),
            Kind::Fifo | Kind::Device => Some(NfsStat4::WrongType),
            Kind::Gone => Some(NfsStat4::Stale),
        };
        assert_eq!(client.open(&object, &by_handle).err(), expected, "{kind:?}");
    }
}
