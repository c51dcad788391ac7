//! Invalid and stale handles, for every procedure.

use curt_proto::nfs3::{NfsFh3, NfsProcedure, NfsStat3};
use curt_vfs::{HandleScheme, NodeHandle};

use super::fixture::{Fixture, bytes_of, rules};
use crate::ExportRules;
use crate::file_handle::{ExportId, FileSystemId, HandleContents};
use crate::v3::wire_handle;

/// Well-formed arguments of each procedure that begin with this handle.
fn arguments(procedure: NfsProcedure, handle: NfsFh3) -> Vec<u8> {
    let mut bytes = bytes_of(&handle);
    let name = [0, 0, 0, 1, b'n', 0, 0, 0];
    match procedure {
        NfsProcedure::Null => return Vec::new(),
        NfsProcedure::Getattr
        | NfsProcedure::Readlink
        | NfsProcedure::Fsstat
        | NfsProcedure::Fsinfo
        | NfsProcedure::Pathconf => {}
        NfsProcedure::Setattr => bytes.extend([0; 28]),
        NfsProcedure::Access => bytes.extend([0, 0, 0, 1]),
        NfsProcedure::Lookup | NfsProcedure::Remove | NfsProcedure::Rmdir => bytes.extend(name),
        NfsProcedure::Read | NfsProcedure::Commit => bytes.extend([0; 12]),
        NfsProcedure::Write => bytes.extend([0; 20]),
        NfsProcedure::Create => {
            bytes.extend(name);
            bytes.extend([0; 28]);
        }
        NfsProcedure::Mkdir => {
            bytes.extend(name);
            bytes.extend([0; 24]);
        }
        NfsProcedure::Symlink => {
            bytes.extend(name);
            bytes.extend([0; 24]);
            bytes.extend(name);
        }
        NfsProcedure::Mknod => {
            bytes.extend(name);
            bytes.extend([0, 0, 0, 7]);
            bytes.extend([0; 24]);
        }
        NfsProcedure::Rename => {
            bytes.extend(name);
            bytes.extend(bytes_of(&handle));
            bytes.extend(name);
        }
        NfsProcedure::Link => {
            bytes.extend(bytes_of(&handle));
            bytes.extend(name);
        }
        NfsProcedure::Readdir => {
            bytes.extend([0; 16]);
            bytes.extend([0, 0, 16, 0]);
        }
        NfsProcedure::ReaddirPlus => {
            bytes.extend([0; 16]);
            bytes.extend([0, 0, 16, 0, 0, 0, 16, 0]);
        }
    }
    bytes
}

fn status(fixture: &Fixture, procedure: NfsProcedure, handle: NfsFh3) -> Option<NfsStat3> {
    let results = fixture.raw(procedure.number(), &arguments(procedure, handle)).unwrap();
    let number = results.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes))?;
    NfsStat3::from_number(number)
}

#[test]
fn no_procedure_takes_a_handle_that_is_not_ours() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let mut forged = root.as_bytes().to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let node = fixture.service.exports.current().by_id(ExportId(1)).unwrap().vfs.root();
    let sign = |export, file_system, node| {
        let signed = HandleContents {
            parent: None,
            export: ExportId(export),
            file_system: FileSystemId(file_system),
            node,
        };
        wire_handle(&fixture.service.key.sign(&signed))
    };
    let gone = NodeHandle::new(node.scheme(), node.kind(), &[0xee; 16]).unwrap();
    let kernel = NodeHandle::new(HandleScheme::Kernel, 1, node.bytes()).unwrap();
    let rows = [
        ("empty", NfsFh3::new(&[]).unwrap(), vec![NfsStat3::Badhandle]),
        ("short", NfsFh3::new(&root.as_bytes()[..19]).unwrap(), vec![NfsStat3::Badhandle]),
        ("noise", NfsFh3::new(&[0xa5; 64]).unwrap(), vec![NfsStat3::Badhandle]),
        ("forged", NfsFh3::new(&forged).unwrap(), vec![NfsStat3::Stale]),
        ("no such export", sign(99, 1, node), vec![NfsStat3::Stale]),
        ("other file system", sign(1, 2, node), vec![NfsStat3::Stale]),
        ("no such file", sign(1, 1, gone), vec![NfsStat3::Stale, NfsStat3::Badhandle]),
        ("other scheme", sign(1, 1, kernel), vec![NfsStat3::Stale, NfsStat3::Badhandle]),
    ];
    for (what, handle, expected) in rows {
        for procedure in &NfsProcedure::ALL[1..] {
            let got = status(&fixture, *procedure, handle).unwrap();
            assert!(expected.contains(&got), "{procedure} of a handle that is {what}: {got}");
        }
    }
    assert_eq!(status(&fixture, NfsProcedure::Getattr, root), Some(NfsStat3::Ok));
}

#[test]
fn arguments_cut_or_lengthened_are_garbage_to_every_procedure() {
    let fixture = Fixture::new();
    for procedure in &NfsProcedure::ALL {
        let whole = arguments(*procedure, fixture.root());
        assert!(fixture.raw(procedure.number(), &whole).is_ok(), "{procedure}");
        for cut in 0..whole.len() {
            assert!(fixture.raw(procedure.number(), &whole[..cut]).is_err(), "{procedure} cut to {cut}");
        }
        let longer = [&whole[..], &[0; 4]].concat();
        assert!(fixture.raw(procedure.number(), &longer).is_err(), "{procedure} with four bytes more");
    }
    assert!(fixture.raw(22, &[]).is_err());
}

#[test]
fn a_secure_export_serves_reserved_ports_alone() {
    let mut fixture = Fixture::new();
    let root = fixture.root();
    fixture.move_to_port(1024);
    for procedure in &NfsProcedure::ALL[1..] {
        assert_eq!(status(&fixture, *procedure, root), Some(NfsStat3::Perm), "{procedure}");
    }
    let mut open = Fixture::with_rules(ExportRules { secure_ports: false, ..rules() });
    open.move_to_port(65_535);
    assert_eq!(status(&open, NfsProcedure::Getattr, open.root()), Some(NfsStat3::Ok));
}
