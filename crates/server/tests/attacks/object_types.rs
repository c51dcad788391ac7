//! Every procedure on an object of every type (CVE-2013-3266: READDIR of a file).

use curt_proto::nfs3::{Procedure, Status};

use crate::calls::{TYPES, World, arguments, call};

/// What a procedure says of an object that is not of its type; none if it takes any.
fn refusals(procedure: Procedure, kind: &str) -> Option<&'static [Status]> {
    let (file, directory, link) = (kind == "file", kind == "directory", kind == "link");
    match procedure {
        Procedure::Null
        | Procedure::Getattr
        | Procedure::Setattr
        | Procedure::Access
        | Procedure::Fsstat
        | Procedure::Fsinfo
        | Procedure::Pathconf => None,
        Procedure::Readlink => (!link).then_some(&[Status::Inval]),
        Procedure::Read | Procedure::Write | Procedure::Commit => {
            (!file).then_some(&[Status::Inval, Status::Isdir])
        }
        Procedure::Lookup
        | Procedure::Create
        | Procedure::Mkdir
        | Procedure::Symlink
        | Procedure::Mknod
        | Procedure::Remove
        | Procedure::Rmdir
        | Procedure::Rename
        | Procedure::Link
        | Procedure::Readdir
        | Procedure::ReaddirPlus => (!directory).then_some(&[Status::Notdir]),
    }
}

#[test]
fn every_procedure_refuses_objects_of_other_types_and_takes_its_own() {
    let mut world = World::new();
    let (root, file) = (world.root, world.object("file"));
    for procedure in Procedure::ALL {
        for kind in TYPES {
            let object = world.object(kind);
            let other = if procedure == Procedure::Link { file } else { root };
            let arguments = arguments(procedure, object, b"name", other);
            let Ok(results) = world.wire.raw(
                (
                    curt_proto::nfs3::PROGRAM,
                    curt_proto::nfs3::VERSION,
                    procedure.number(),
                ),
                &arguments,
            ) else {
                panic!("{procedure} of a {kind} has no results");
            };
            if procedure == Procedure::Null {
                continue;
            }
            let status = crate::calls::status(&results);
            match refusals(procedure, kind) {
                Some(refusals) => assert!(refusals.contains(&status), "{procedure} of a {kind}: {status}"),
                None => assert!(
                    !matches!(
                        status,
                        Status::Notdir | Status::Isdir | Status::Serverfault | Status::Io
                    ),
                    "{procedure} of a {kind}: {status}"
                ),
            }
            // What was made in the directory goes again.
            for remove in [Procedure::Remove, Procedure::Rmdir] {
                let directory = world.object("directory");
                let arguments = crate::calls::arguments(remove, directory, b"name", root);
                let _ = call(&mut world.wire, remove, &arguments);
            }
        }
    }
    world.is_unharmed();
}

#[test]
fn a_link_of_a_directory_and_a_rename_into_itself_are_refused() {
    let mut world = World::new();
    let (root, directory) = (world.root, world.object("directory"));
    let linked = arguments(Procedure::Link, root, b"again", directory);
    let status = call(&mut world.wire, Procedure::Link, &linked).unwrap();
    assert!(matches!(status, Status::Perm | Status::Isdir), "{status}");
    let into_itself = arguments(Procedure::Rename, root, b"directory", directory);
    assert_eq!(
        call(&mut world.wire, Procedure::Rename, &into_itself),
        Ok(Status::Inval)
    );
    world.is_unharmed();
}
