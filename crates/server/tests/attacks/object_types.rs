//! Every procedure on an object of every type (CVE-2013-3266: READDIR of a file).

use curt_proto::nfs3::{NfsProcedure, NfsStat3};

use crate::calls::{TYPES, World, arguments, call};

/// The status of a procedure for an object of another type; none if it takes any type.
fn refusals(procedure: NfsProcedure, kind: &str) -> Option<&'static [NfsStat3]> {
    let (file, directory, link) = (kind == "file", kind == "directory", kind == "link");
    match procedure {
        NfsProcedure::Null
        | NfsProcedure::Getattr
        | NfsProcedure::Setattr
        | NfsProcedure::Access
        | NfsProcedure::Fsstat
        | NfsProcedure::Fsinfo
        | NfsProcedure::Pathconf => None,
        NfsProcedure::Readlink => (!link).then_some(&[NfsStat3::Inval]),
        NfsProcedure::Read | NfsProcedure::Write | NfsProcedure::Commit => {
            (!file).then_some(&[NfsStat3::Inval, NfsStat3::Isdir])
        }
        NfsProcedure::Lookup
        | NfsProcedure::Create
        | NfsProcedure::Mkdir
        | NfsProcedure::Symlink
        | NfsProcedure::Mknod
        | NfsProcedure::Remove
        | NfsProcedure::Rmdir
        | NfsProcedure::Rename
        | NfsProcedure::Link
        | NfsProcedure::Readdir
        | NfsProcedure::ReaddirPlus => (!directory).then_some(&[NfsStat3::Notdir]),
    }
}

#[test]
fn every_procedure_refuses_objects_of_other_types_and_takes_its_own() {
    let mut world = World::new();
    let (root, file) = (world.root, world.object("file"));
    for procedure in NfsProcedure::ALL {
        for kind in TYPES {
            let object = world.object(kind);
            let other = if procedure == NfsProcedure::Link { file } else { root };
            let arguments = arguments(procedure, object, b"name", other);
            let Ok(results) = world
                .wire
                .raw((curt_proto::nfs3::PROGRAM, curt_proto::nfs3::VERSION, procedure.number()), &arguments)
            else {
                panic!("{procedure} of a {kind} has no results");
            };
            if procedure == NfsProcedure::Null {
                continue;
            }
            let status = crate::calls::status(&results);
            match refusals(procedure, kind) {
                Some(refusals) => assert!(refusals.contains(&status), "{procedure} of a {kind}: {status}"),
                None => assert!(
                    !matches!(
                        status,
                        NfsStat3::Notdir | NfsStat3::Isdir | NfsStat3::Serverfault | NfsStat3::Io
                    ),
                    "{procedure} of a {kind}: {status}"
                ),
            }
            // Remove the object that was created in the directory.
            for remove in [NfsProcedure::Remove, NfsProcedure::Rmdir] {
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
    let linked = arguments(NfsProcedure::Link, root, b"again", directory);
    let status = call(&mut world.wire, NfsProcedure::Link, &linked).unwrap();
    assert!(matches!(status, NfsStat3::Perm | NfsStat3::Isdir), "{status}");
    let into_itself = arguments(NfsProcedure::Rename, root, b"directory", directory);
    assert_eq!(call(&mut world.wire, NfsProcedure::Rename, &into_itself), Ok(NfsStat3::Inval));
    world.is_unharmed();
}
