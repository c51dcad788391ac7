//! The pseudo file system: from the root to every export, and back.

use curt_proto::nfs4::{
    Attribute, Bitmap4, CompoundResults, CreateArgs4, CreateType4, Fattr4, Fsid4, Ftype4, GetattrArgs4,
    GetfhOk4, ListingItem4, LookupArgs4, Nfs4Operation, NfsFh4, NfsStat4, PutfhArgs4, ReaddirArgs4,
    RemoveArgs4, RenameArgs4, Secinfo, SecinfoArgs4, SecinfoNoNameArgs4, SecinfoOk4, SequenceOk4, Verifier4,
};
use curt_types::{FileHandle, SetAttributes};
use curt_vfs::{FsCred, NewNode};
use curt_xdr::Opaque;

use super::test_client::{Server, TestClient, creating, export, export_for_flavor, root_export, rules};
use crate::ExportRules;
use crate::exports::CredentialFlavor;

fn parent(client: &TestClient<'_>, of: &FileHandle) -> Result<FileHandle, NfsStat4> {
    let reply = client.run(&|compound| {
        compound.push(&PutfhArgs4 { object: NfsFh4::from(of) });
        compound.bare(Nfs4Operation::Lookupp);
        compound.bare(Nfs4Operation::Getfh);
    });
    let mut results = CompoundResults::new(&reply).unwrap();
    if results.header().status != NfsStat4::Ok {
        return Err(results.header().status);
    }
    results.next::<SequenceOk4>(Nfs4Operation::Sequence).unwrap();
    results.status(Nfs4Operation::Putfh).unwrap();
    results.status(Nfs4Operation::Lookupp).unwrap();
    let got: GetfhOk4<'_> = results.next(Nfs4Operation::Getfh).unwrap();
    Ok(got.object.into())
}

/// fsid, fileid and mounted_on_fileid.
fn numbers(client: &TestClient<'_>, of: &FileHandle) -> (Fsid4, u64, u64) {
    let wanted = [Attribute::Fsid, Attribute::Fileid, Attribute::MountedOnFileid];
    let reply = client.run(&|compound| {
        compound.push(&PutfhArgs4 { object: NfsFh4::from(of) });
        compound.push(&GetattrArgs4 { attributes: Attribute::set(&wanted) });
    });
    let mut results = CompoundResults::new(&reply).unwrap();
    results.next::<SequenceOk4>(Nfs4Operation::Sequence).unwrap();
    results.status(Nfs4Operation::Putfh).unwrap();
    let ok: curt_proto::nfs4::GetattrOk4<'_> = results.next(Nfs4Operation::Getattr).unwrap();
    let values = curt_proto::nfs4::AttributeValues::decode(&ok.attributes).unwrap();
    (values.fsid.unwrap(), values.fileid.unwrap(), values.mounted_on_fileid.unwrap())
}

/// The names in a directory.
fn names(client: &TestClient<'_>, of: &FileHandle) -> Vec<String> {
    let reply = client.run(&|compound| {
        compound.push(&PutfhArgs4 { object: NfsFh4::from(of) });
        compound.push(&ReaddirArgs4 {
            cookie: 0,
            verifier: Verifier4::default(),
            directory_count: 8192,
            max_count: 8192,
            attributes: Bitmap4::EMPTY,
        });
    });
    let mut results = CompoundResults::new(&reply).unwrap();
    results.next::<SequenceOk4>(Nfs4Operation::Sequence).unwrap();
    results.status(Nfs4Operation::Putfh).unwrap();
    assert_eq!(results.status(Nfs4Operation::Readdir), Ok(NfsStat4::Ok));
    let decoder = results.decoder();
    decoder.get::<Verifier4>().unwrap();
    let mut names = Vec::new();
    while decoder.bool().unwrap() {
        decoder.u64().unwrap();
        names.push(String::from_utf8(decoder.opaque(255).unwrap().to_vec()).unwrap());
        decoder.get::<Fattr4<'_>>().unwrap();
    }
    assert!(decoder.bool().unwrap(), "all fit");
    names.sort();
    names
}

// SEMANTICS: stateful-1.
#[test]
fn every_export_is_reached_from_the_root_and_left_upwards() {
    let server = Server::with(vec![
        export("/srv/one", 1, rules()),
        export("/srv/deep/er/two", 2, rules()),
        export("/three", 3, rules()),
    ]);
    let client = server.client("one");
    let root = client.walk(&[]).unwrap();
    assert_eq!(names(&client, &root), ["srv", "three"]);
    let srv = client.walk(&["srv"]).unwrap();
    assert_eq!(names(&client, &srv), ["deep", "one"]);
    for path in [&["srv", "one"][..], &["srv", "deep", "er", "two"], &["three"]] {
        let export = client.walk(path).unwrap();
        client.open(&export, &creating("file", "owner", 1, 0)).unwrap();
        assert_eq!(names(&client, &export), ["file"]);
        let mut at = export;
        for depth in (0..path.len()).rev() {
            at = parent(&client, &at).unwrap();
            assert_eq!(at, client.walk(&path[..depth]).unwrap());
        }
        assert_eq!((at, parent(&client, &root)), (root.clone(), Err(NfsStat4::Noent)));
    }
    assert_eq!(client.walk(&["srv", "none"]).unwrap_err(), NfsStat4::Noent);
    assert_eq!(client.walk(&["srv", ".."]).unwrap_err(), NfsStat4::Badname);
    // One file system, with numbers of its own; the roots of exports say what they cover.
    let (above, in_srv) = (numbers(&client, &root), numbers(&client, &srv));
    assert_eq!((above.0, above.1 != in_srv.1), (in_srv.0, true));
    assert_eq!((in_srv.1, above.1), (in_srv.2, above.2));
    let one = numbers(&client, &client.walk(&["srv", "one"]).unwrap());
    let three = numbers(&client, &client.walk(&["three"]).unwrap());
    assert!(one.0 != above.0 && three.0 != one.0 && one.1 != one.2 && one.2 != three.2);
}

#[test]
fn the_pseudo_file_system_is_read_only_and_stable_over_restarts() {
    let exports = || vec![export("/srv/one", 1, rules())];
    let server = Server::with(exports());
    let client = server.client("one");
    let srv = client.walk(&["srv"]).unwrap();
    let name = || Opaque::new(b"new").unwrap();
    let create = CreateArgs4 { kind: CreateType4::Directory, name: name(), attributes: Fattr4::default() };
    assert_eq!(client.at(&srv, &|compound| compound.push(&create)), NfsStat4::Rofs);
    assert_eq!(client.at(&srv, &|compound| compound.push(&RemoveArgs4 { name: name() })), NfsStat4::Rofs);
    assert_eq!(client.open(&srv, &creating("new", "owner", 3, 0)).unwrap_err(), NfsStat4::Rofs);
    assert_eq!(client.open(&srv, &creating("one", "owner", 3, 0)).unwrap_err(), NfsStat4::Isdir);
    let again = Server::with(exports());
    let client = again.client("one");
    assert_eq!(client.walk(&["srv"]).unwrap(), srv);
    assert_eq!(names(&client, &srv), ["one"]);
    let empty = Server::with(Vec::new());
    let client = empty.client("one");
    let putfh = client.status(&|compound| compound.push(&PutfhArgs4 { object: NfsFh4::from(&srv) }));
    assert_eq!(putfh, NfsStat4::Stale);
    assert!(names(&client, &client.walk(&[]).unwrap()).is_empty());
}

// SEMANTICS: stateful-1.
#[test]
fn fsid_0_is_the_root_of_all() {
    let server = Server::with(vec![root_export("/srv/all", 1), export("/elsewhere", 2, rules())]);
    let client = server.client("one");
    let root = client.walk(&[]).unwrap();
    client.open(&root, &creating("file", "owner", 1, 0)).unwrap();
    assert_eq!(names(&client, &root), ["file"]);
    assert_eq!(parent(&client, &root), Err(NfsStat4::Noent));
    assert_eq!(client.walk(&["elsewhere"]).unwrap_err(), NfsStat4::Noent);
}

fn flavors(client: &TestClient<'_>, of: &FileHandle, name: Option<&str>) -> Result<Vec<u32>, NfsStat4> {
    let operation = if name.is_some() { Nfs4Operation::Secinfo } else { Nfs4Operation::SecinfoNoName };
    let reply = client.run(&|compound| {
        compound.push(&PutfhArgs4 { object: NfsFh4::from(of) });
        match name {
            Some(name) => compound.push(&SecinfoArgs4 { name: Opaque::new(name.as_bytes()).unwrap() }),
            None => compound.push(&SecinfoNoNameArgs4::Current),
        }
    });
    let mut results = CompoundResults::new(&reply).unwrap();
    if results.header().status != NfsStat4::Ok {
        return Err(results.header().status);
    }
    results.next::<SequenceOk4>(Nfs4Operation::Sequence).unwrap();
    results.status(Nfs4Operation::Putfh).unwrap();
    let ok: SecinfoOk4<'_> = results.next(operation).unwrap();
    let number = |flavor: &Secinfo<'_>| match flavor {
        Secinfo::Gss(_) => 6,
        Secinfo::Flavor(number) => *number,
    };
    Ok(ok.flavors.iter().map(number).collect())
}

#[test]
fn an_export_of_another_flavor_is_named_by_secinfo_and_otherwise_refused() {
    let server = Server::with(vec![
        export_for_flavor("/srv/sys", 1, CredentialFlavor::Sys),
        export_for_flavor("/srv/none", 2, CredentialFlavor::None),
    ]);
    let client = server.client("one");
    let srv = client.walk(&["srv"]).unwrap();
    let sys = client.walk(&["srv", "sys"]).unwrap();
    client.anonymous.set(true);
    let none = client.walk(&["srv", "none"]).unwrap();
    assert_eq!(flavors(&client, &srv, Some("sys")), Ok(vec![1]));
    assert_eq!(flavors(&client, &sys, None), Ok(vec![1]));
    let look = |of: &FileHandle| {
        client.at(of, &|compound| {
            compound.push(&GetattrArgs4 { attributes: Attribute::set(&[Attribute::Type]) })
        })
    };
    assert_eq!((look(&sys), look(&none)), (NfsStat4::Wrongsec, NfsStat4::Ok));
    // PUTFH alone, and what asks or leaves, is allowed.
    assert_eq!(client.at(&sys, &|_| {}), NfsStat4::Ok);
    assert_eq!(parent(&client, &sys), Ok(srv.clone()));
    client.anonymous.set(false);
    assert_eq!((look(&sys), look(&none)), (NfsStat4::Ok, NfsStat4::Wrongsec));
    assert_eq!(flavors(&client, &srv, Some("none")), Ok(vec![0]));
    // SECINFO consumes the current filehandle.
    let after = client.at(&srv, &|compound| {
        compound.push(&SecinfoArgs4 { name: Opaque::new(b"sys").unwrap() });
        compound.bare(Nfs4Operation::Getfh);
    });
    assert_eq!(after, NfsStat4::Nofilehandle);
    let lookup = client.at(&srv, &|compound| {
        compound.push(&LookupArgs4 { name: Opaque::new(b"none").unwrap() });
    });
    assert_eq!(lookup, NfsStat4::Wrongsec);
}

/// An entry's error and type, and whether it has a handle.
type DescribedEntry = (Option<NfsStat4>, Option<Ftype4>, bool);

/// The entries of a directory with these attributes.
fn described(
    client: &TestClient<'_>,
    of: &FileHandle,
    wanted: &[Attribute],
) -> Result<Vec<DescribedEntry>, NfsStat4> {
    let reply = client.run(&|compound| {
        compound.push(&PutfhArgs4 { object: NfsFh4::from(of) });
        compound.push(&ReaddirArgs4 {
            cookie: 0,
            verifier: Verifier4::default(),
            directory_count: 8192,
            max_count: 8192,
            attributes: Attribute::set(wanted),
        });
    });
    let mut results = CompoundResults::new(&reply).unwrap();
    if results.header().status != NfsStat4::Ok {
        return Err(results.header().status);
    }
    results.next::<SequenceOk4>(Nfs4Operation::Sequence).unwrap();
    results.status(Nfs4Operation::Putfh).unwrap();
    results.status(Nfs4Operation::Readdir).unwrap();
    let decoder = results.decoder();
    decoder.get::<Verifier4>().unwrap();
    let mut entries = Vec::new();
    while let ListingItem4::Entry(entry) = decoder.get().unwrap() {
        let values = curt_proto::nfs4::AttributeValues::decode(&entry.attributes).unwrap();
        entries.push((values.rdattr_error, values.kind, values.filehandle.is_some()));
    }
    Ok(entries)
}

/// READDIR has no NFS4ERR_WRONGSEC (RFC 8881 section 15.2), in the pseudo file system or an export.
#[test]
fn an_export_of_another_flavor_does_not_hide_its_neighbours() {
    let outer = export("/srv/outer", 1, rules());
    let set = SetAttributes::with_mode(0o755);
    for name in [&b"inner"[..], b"plain"] {
        let root = FsCred::new(0, 0, &[]);
        outer.vfs.make(&root, &outer.vfs.root(), name, NewNode::Directory(&set)).value.unwrap();
    }
    let server = Server::with(vec![
        outer,
        export_for_flavor("/srv/none", 2, CredentialFlavor::None),
        export_for_flavor("/srv/outer/inner", 3, CredentialFlavor::None),
    ]);
    let client = server.client("one");
    let of = |path: &[&str], wanted: &[Attribute]| described(&client, &client.walk(path).unwrap(), wanted);
    let directory = Some(Ftype4::Directory);
    for path in [&["srv"][..], &["srv", "outer"]] {
        assert_eq!(of(path, &[]), Ok(vec![(None, None, false); 2]));
        assert_eq!(of(path, &[Attribute::MountedOnFileid]), Ok(vec![(None, None, false); 2]));
        assert_eq!(of(path, &[Attribute::Type]), Ok(vec![(None, directory, false); 2]));
        let mut errors = of(path, &[Attribute::RdattrError, Attribute::Type]).unwrap();
        errors.sort_by_key(|entry| entry.1.is_none());
        let wrong = (Some(NfsStat4::Wrongsec), None, false);
        assert_eq!(errors, [(Some(NfsStat4::Ok), directory, false), wrong]);
    }
    // There is no handle to what the other export covers.
    let mut handles = of(&["srv", "outer"], &[Attribute::Type, Attribute::Filehandle]).unwrap();
    handles.sort_by_key(|entry| entry.2);
    assert_eq!(handles, [(None, directory, false), (None, directory, true)]);
}

// RFC: 8881 section 2.6.3.1.1: which operation fails after a filehandle of another flavor.
#[test]
fn a_filehandle_of_another_flavor_fails_where_the_rfc_says() {
    let server = Server::with(vec![
        export_for_flavor("/srv/sys", 1, CredentialFlavor::Sys),
        export_for_flavor("/srv/none", 2, CredentialFlavor::None),
    ]);
    let client = server.client("one");
    let sys = client.walk(&["srv", "sys"]).unwrap();
    client.anonymous.set(true);
    let none = client.walk(&["srv", "none"]).unwrap();
    let name = || Opaque::new(b"name").unwrap();
    fn put(object: &FileHandle) -> PutfhArgs4<'_> {
        PutfhArgs4 { object: NfsFh4::from(object) }
    }
    let look = GetattrArgs4 { attributes: Attribute::set(&[Attribute::Type]) };
    let failing = |operations: super::test_client::Operations<'_>| {
        let reply = client.run(operations);
        let header = *CompoundResults::new(&reply).unwrap().header();
        (header.status, header.results - 1)
    };
    let wrong_at = |place| (NfsStat4::Wrongsec, place);
    // SAVEFH does not count.
    let saved = failing(&|c| {
        c.push(&put(&sys));
        c.bare(Nfs4Operation::Savefh);
        c.push(&look);
    });
    assert_eq!(saved, wrong_at(1));
    assert_eq!(
        failing(&|c| {
            c.push(&put(&sys));
            c.bare(Nfs4Operation::Savefh);
        }),
        (NfsStat4::Ok, 2)
    );
    // The last of several decides, RESTOREFH too.
    let restored = failing(&|c| {
        c.push(&put(&sys));
        c.bare(Nfs4Operation::Savefh);
        c.push(&put(&none));
        c.bare(Nfs4Operation::Restorefh);
        c.push(&look);
    });
    assert_eq!(restored, wrong_at(4));
    // OPEN by name fails itself, OPEN by handle does not.
    let opening = super::test_client::opening("name", "owner", 1, 0);
    assert_eq!(
        failing(&|c| {
            c.push(&put(&sys));
            c.push(&opening);
        }),
        wrong_at(2)
    );
    let by_handle = curt_proto::nfs4::OpenArgs4 { claim: curt_proto::nfs4::OpenClaim::Fh, ..opening };
    assert_eq!(
        failing(&|c| {
            c.push(&put(&sys));
            c.push(&by_handle);
        }),
        wrong_at(1)
    );
    // SECINFO never fails so.
    assert_eq!(flavors(&client, &sys, Some("name")), Ok(vec![1]));
    // No flavor is right for both.
    let renamed = failing(&|c| {
        c.push(&put(&sys));
        c.bare(Nfs4Operation::Savefh);
        c.push(&put(&none));
        c.push(&RenameArgs4 { from: name(), to: name() });
    });
    assert_eq!(renamed, (NfsStat4::Xdev, 4));
}

// RFC: 8881 section 2.6.3.1.1.3: the flavors of the name count, not those of its directory.
#[test]
fn an_export_is_entered_with_its_flavor_from_an_export_of_another() {
    let outer = export_for_flavor("/srv/outer", 1, CredentialFlavor::Sys);
    let set = SetAttributes::with_mode(0o755);
    for name in ["inner", "other"] {
        let made = outer.vfs.make(
            &FsCred::new(0, 0, &[]),
            &outer.vfs.root(),
            name.as_bytes(),
            NewNode::Directory(&set),
        );
        made.value.unwrap();
    }
    let server = Server::with(vec![outer, export_for_flavor("/srv/outer/inner", 2, CredentialFlavor::None)]);
    let client = server.client("one");
    let outer = client.walk(&["srv", "outer"]).unwrap();
    let look_up = |name: &str| {
        client.at(&outer, &|compound| {
            compound.push(&LookupArgs4 { name: Opaque::new(name.as_bytes()).unwrap() });
            compound.push(&GetattrArgs4 { attributes: Attribute::set(&[Attribute::Type]) });
        })
    };
    assert_eq!((look_up("inner"), look_up("other")), (NfsStat4::Wrongsec, NfsStat4::Ok));
    assert_eq!(flavors(&client, &outer, Some("inner")), Ok(vec![0]));
    client.anonymous.set(true);
    assert_eq!(look_up("inner"), NfsStat4::Ok);
    assert_eq!(flavors(&client, &outer, Some("inner")), Ok(vec![0]));
    // Others of its names are not shown, whether they exist or not.
    for name in ["other", "missing"] {
        assert_eq!(look_up(name), NfsStat4::Wrongsec);
        assert_eq!(flavors(&client, &outer, Some(name)), Ok(vec![1]));
    }
}

// SEMANTICS: stateful-1.
#[test]
fn exports_of_other_clients_are_invisible() {
    let hidden = ExportRules { secure_ports: true, ..rules() };
    let mut other = export("/srv/hidden/export", 2, hidden);
    other.clients[0].client = crate::ClientSpec::parse("10.9.8.7").unwrap();
    let server = Server::with(vec![export("/srv/one", 1, rules()), other]);
    let client = server.client("one");
    let srv = client.walk(&["srv"]).unwrap();
    assert_eq!(names(&client, &srv), ["one"]);
    assert_eq!(client.walk(&["srv", "hidden"]).unwrap_err(), NfsStat4::Noent);
}
