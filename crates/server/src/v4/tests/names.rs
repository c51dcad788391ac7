//! Names: which are refused, and what CREATE, REMOVE, RENAME, LINK, LOOKUP, LOOKUPP and SECINFO do
//! with the others.

use curt_proto::nfs4::NfsStat4::{
    Badchar, Badname, Badtype, Exist, Inval, Nametoolong, Noent, Nofilehandle, Notempty, Ok, Stale,
};
use curt_proto::nfs4::*;
use curt_xdr::Opaque;

use super::fixture::{Fixture, OBJECTS, bytes, go, name};

fn create<'a>(new: &'a str, kind: CreateType4<'a>) -> CreateArgs4<'a> {
    CreateArgs4 { kind, name: name(new), attributes: Fattr4::default() }
}

#[test]
fn bad_names_are_refused_in_the_same_way_by_each_operation() {
    Fixture::with_each_tree(|fixture| {
        let long = [b'n'; 256];
        let rows: [(&[u8], NfsStat4); 8] = [
            (b"", Inval),
            (b".", Badname),
            (b"..", Badname),
            (b"a/b", Badchar),
            (b"/", Badchar),
            (b"a\0", Badchar),
            (&long, Nametoolong),
            (&[b'n'; 4096], Nametoolong),
        ];
        let good = name("file");
        for (bad, expected) in rows {
            let bad = bytes(bad);
            let attributes = Fattr4::default();
            let one: &[&str] = &["one"];
            let statuses = [
                fixture.on(one, &LookupArgs4 { name: bad }),
                fixture.on(one, &SecinfoArgs4 { name: bad }),
                fixture.on(one, &RemoveArgs4 { name: bad }),
                fixture.on(one, &CreateArgs4 { kind: CreateType4::Directory, name: bad, attributes }),
                fixture.on_both(one, one, &RenameArgs4 { from: bad, to: good }),
                fixture.on_both(one, one, &RenameArgs4 { from: good, to: bad }),
                fixture.on_both(&["one", "file"], one, &LinkArgs4 { name: bad }),
                fixture.on(&[], &LookupArgs4 { name: bad }),
            ];
            assert_eq!(statuses, [expected; 8], "{bad:?}");
        }
        for odd in [&b"\xff\xfe"[..], b"...", b" ", &[b'n'; 255]] {
            let attributes = Fattr4::default();
            let made = CreateArgs4 { kind: CreateType4::Fifo, name: bytes(odd), attributes };
            assert_eq!(fixture.on(&["one"], &made), Ok);
            assert_eq!(fixture.on(&["one"], &LookupArgs4 { name: bytes(odd) }), Ok);
        }
    });
}

#[test]
fn a_created_object_is_the_current_one_and_changes_its_directory() {
    Fixture::with_each_tree(|fixture| {
        let device = SpecData4 { major: 3, minor: 4 };
        let kinds = [
            (CreateType4::Directory, Ftype4::Directory),
            (CreateType4::BlockDevice(device), Ftype4::BlockDevice),
            (CreateType4::CharacterDevice(device), Ftype4::CharacterDevice),
            (CreateType4::Symlink(Opaque::new(b"some/where").unwrap()), Ftype4::Symlink),
            (CreateType4::Socket, Ftype4::Socket),
            (CreateType4::Fifo, Ftype4::Fifo),
        ];
        for (at, (kind, expected)) in kinds.into_iter().enumerate() {
            let new = format!("new{at}");
            let change =
                || fixture.getattr(&["one"], Attribute::set(&[Attribute::Change]), |values, _| values.change);
            let before = change();
            let reply = fixture.run(|compound| {
                go(compound, &["one"]);
                compound.push(&create(&new, kind));
                let wanted = Attribute::set(&[Attribute::Type, Attribute::Rawdev]);
                compound.push(&GetattrArgs4 { attributes: wanted });
            });
            let mut results = reply.after(1);
            let made: CreateOk4 = results.next(Nfs4Operation::Create).unwrap();
            assert!(made.directory.atomic);
            assert_eq!((Some(made.directory.before), Some(made.directory.after)), (before, change()));
            assert_ne!(made.directory.before, made.directory.after);
            let got: GetattrOk4<'_> = results.next(Nfs4Operation::Getattr).unwrap();
            let values = AttributeValues::decode(&got.attributes).unwrap();
            assert_eq!(values.kind, Some(expected));
            if matches!(expected, Ftype4::BlockDevice | Ftype4::CharacterDevice) {
                assert_eq!(values.rawdev, Some(device));
            }
            assert_eq!(fixture.on(&["one"], &create(&new, kind)), Exist);
        }
    });
}

#[test]
fn create_refuses_what_it_cannot_make() {
    Fixture::with_each_tree(|fixture| {
        for kind in [0, 1, 8, 9, 100] {
            assert_eq!(fixture.on(&["one"], &create("new", CreateType4::Other(kind))), Badtype, "{kind}");
        }
        let empty = CreateType4::Symlink(Opaque::new(b"").unwrap());
        assert_eq!(fixture.on(&["one"], &create("new", empty)), Inval);
        let huge = CreateType4::BlockDevice(SpecData4 { major: 1 << 12, minor: 0 });
        assert_eq!(fixture.on(&["one"], &create("new", huge)), Inval);
        assert_eq!(fixture.on(&["one"], &LookupArgs4 { name: name("new") }), Noent);
    });
}

#[test]
fn remove_takes_every_type_and_no_full_directory() {
    Fixture::with_each_tree(|fixture| {
        assert_eq!(fixture.on(&["one", "directory"], &create("inner", CreateType4::Fifo)), Ok);
        let remove = |object| fixture.on(&["one"], &RemoveArgs4 { name: name(object) });
        assert_eq!(remove("directory"), Notempty);
        assert_eq!(fixture.on(&["one", "directory"], &RemoveArgs4 { name: name("inner") }), Ok);
        for (object, _) in OBJECTS {
            assert_eq!((remove(object), remove(object)), (Ok, Noent), "{object}");
        }
    });
}

/// No operation of the compounds but PUTFH finds that out.
#[test]
fn the_handle_of_a_removed_object_is_stale_if_nothing_is_done_to_it() {
    Fixture::with_each_tree(|fixture| {
        let handle = Attribute::set(&[Attribute::Filehandle]);
        let handle = fixture
            .getattr(&["one", "fifo"], handle, |values, _| values.filehandle.unwrap().bytes().to_vec());
        let put = |and_get| {
            let reply = fixture.run(|compound| {
                compound.push(&PutfhArgs4 { object: NfsFh4::new(&handle).unwrap() });
                if and_get {
                    compound.bare(Nfs4Operation::Getfh);
                }
            });
            reply.status()
        };
        assert_eq!((put(false), put(true)), (Ok, Ok));
        assert_eq!(fixture.on(&["one"], &RemoveArgs4 { name: name("fifo") }), Ok);
        assert_eq!((put(false), put(true)), (Stale, Stale));
    });
}

#[test]
fn rename_replaces_objects_of_the_same_kind() {
    Fixture::with_each_tree(|fixture| {
        let rename =
            |from, to| fixture.on_both(&["one"], &["one"], &RenameArgs4 { from: name(from), to: name(to) });
        assert_eq!(rename("missing", "x"), Noent);
        assert_eq!(rename("file", "directory"), Exist);
        assert_eq!(rename("directory", "file"), Exist);
        assert_eq!(fixture.on(&["one"], &create("full", CreateType4::Directory)), Ok);
        assert_eq!(fixture.on(&["one", "full"], &create("inner", CreateType4::Fifo)), Ok);
        assert_eq!(rename("directory", "full"), Notempty);
        assert_eq!(rename("full", "directory"), Ok);
        assert_eq!(rename("fifo", "socket"), Ok);
        assert_eq!(rename("fifo", "socket"), Noent);
        assert_eq!(fixture.on_both(&["one", "file"], &["one"], &LinkArgs4 { name: name("link to it") }), Ok);
        for to in ["file", "link to it"] {
            let reply = fixture.run(|compound| {
                go(compound, &["one"]);
                compound.bare(Nfs4Operation::Savefh);
                compound.push(&RenameArgs4 { from: name("file"), to: name(to) });
                compound.push(&LookupArgs4 { name: name("file") });
            });
            assert_eq!(reply.status(), Ok);
            let mut results = reply.after(1);
            results.next::<()>(Nfs4Operation::Savefh).unwrap();
            let RenameOk4 { source, target } = results.next(Nfs4Operation::Rename).unwrap();
            assert_eq!((source.before, target.before), (source.after, target.after), "nothing was changed");
        }
    });
}

#[test]
fn lookupp_leads_up_to_the_root_of_all() {
    let fixture = Fixture::new();
    let reply = fixture.run(|compound| {
        go(compound, &[]);
        compound.bare(Nfs4Operation::Getfh);
        for step in ["deep", "two"] {
            compound.push(&LookupArgs4 { name: name(step) });
        }
        compound.bare(Nfs4Operation::Lookupp);
        compound.bare(Nfs4Operation::Lookupp);
        compound.bare(Nfs4Operation::Getfh);
        compound.bare(Nfs4Operation::Lookupp);
    });
    let mut results = reply.after(0);
    let first = results.next::<GetfhOk4<'_>>(Nfs4Operation::Getfh).unwrap();
    for operation in [Nfs4Operation::Lookup; 2].into_iter().chain([Nfs4Operation::Lookupp; 2]) {
        results.next::<()>(operation).unwrap();
    }
    assert_eq!(results.next::<GetfhOk4<'_>>(Nfs4Operation::Getfh).unwrap(), first);
    assert_eq!(results.next::<()>(Nfs4Operation::Lookupp), Err(ResultError::Failed(Noent)));
    let parent = fixture.run(|compound| {
        go(compound, &["one", "directory"]);
        compound.bare(Nfs4Operation::Lookupp);
        compound.push(&LookupArgs4 { name: name("file") });
    });
    assert_eq!(parent.status(), Ok);
}

#[test]
fn secinfo_returns_the_flavors_and_uses_the_filehandle_up() {
    let fixture = Fixture::new();
    let asked: [&dyn Fn(&mut CompoundEncoder<'_>); 4] = [
        &|compound| compound.push(&SecinfoArgs4 { name: name("file") }),
        &|compound| compound.push(&SecinfoArgs4 { name: name("directory") }),
        &|compound| compound.push(&SecinfoNoNameArgs4::Current),
        &|compound| compound.push(&SecinfoNoNameArgs4::Parent),
    ];
    for (at, ask) in asked.into_iter().enumerate() {
        let reply = fixture.run(|compound| {
            go(compound, &["one"]);
            ask(compound);
            compound.bare(Nfs4Operation::Getfh);
        });
        let operation = if at < 2 { Nfs4Operation::Secinfo } else { Nfs4Operation::SecinfoNoName };
        let mut results = reply.after(1);
        let ok: SecinfoOk4<'_> = results.next(operation).unwrap();
        assert_eq!(ok.flavors.first(), Some(&Secinfo::Flavor(1)), "AUTH_SYS is preferred");
        assert_eq!(reply.status(), Nofilehandle);
    }
    assert_eq!(fixture.on(&["one"], &SecinfoArgs4 { name: name("missing") }), Noent);
    assert_eq!(fixture.on(&[], &SecinfoNoNameArgs4::Parent), Noent);
}
