//! Handles that are not, or no longer, good: for every procedure.

use curt_proto::nfs3::{FileHandle, Procedure, Status};
use curt_vfs::{HandleScheme, NodeHandle};

use super::fixture::{Fixture, bytes_of, rules};
use crate::ExportRules;
use crate::file_handle::{ExportId, FileSystemId, Signed};

/// Arguments of each procedure that begin with this handle and are well formed.
fn arguments(procedure: Procedure, handle: FileHandle) -> Vec<u8> {
    let mut bytes = bytes_of(&handle);
    let name = [0, 0, 0, 1, b'n', 0, 0, 0];
    match procedure {
        Procedure::Null => return Vec::new(),
        Procedure::Getattr
        | Procedure::Readlink
        | Procedure::Fsstat
        | Procedure::Fsinfo
        | Procedure::Pathconf => {}
        Procedure::Setattr => bytes.extend([0; 28]),
        Procedure::Access => bytes.extend([0, 0, 0, 1]),
        Procedure::Lookup | Procedure::Remove | Procedure::Rmdir => bytes.extend(name),
        Procedure::Read | Procedure::Commit => bytes.extend([0; 12]),
        Procedure::Write => bytes.extend([0; 20]),
        Procedure::Create => {
            bytes.extend(name);
            bytes.extend([0; 28]);
        }
        Procedure::Mkdir => {
            bytes.extend(name);
            bytes.extend([0; 24]);
        }
        Procedure::Symlink => {
            bytes.extend(name);
            bytes.extend([0; 24]);
            bytes.extend(name);
        }
        Procedure::Mknod => {
            bytes.extend(name);
            bytes.extend([0, 0, 0, 7]);
            bytes.extend([0; 24]);
        }
        Procedure::Rename => {
            bytes.extend(name);
            bytes.extend(bytes_of(&handle));
            bytes.extend(name);
        }
        Procedure::Link => {
            bytes.extend(bytes_of(&handle));
            bytes.extend(name);
        }
        Procedure::Readdir => {
            bytes.extend([0; 16]);
            bytes.extend([0, 0, 16, 0]);
        }
        Procedure::ReaddirPlus => {
            bytes.extend([0; 16]);
            bytes.extend([0, 0, 16, 0, 0, 0, 16, 0]);
        }
    }
    bytes
}

fn status(fixture: &Fixture, procedure: Procedure, handle: FileHandle) -> Option<Status> {
    let results = fixture
        .raw(procedure.number(), &arguments(procedure, handle))
        .unwrap();
    let number = results
        .first_chunk::<4>()
        .map(|bytes| u32::from_be_bytes(*bytes))?;
    Status::from_number(number)
}

#[test]
fn no_procedure_takes_a_handle_that_is_not_ours() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let mut forged = root.as_bytes().to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let node = fixture
        .service
        .exports
        .current()
        .by_id(ExportId(1))
        .unwrap()
        .vfs
        .root();
    let sign = |export, file_system, node| {
        let signed = Signed {
            parent: None,
            export: ExportId(export),
            file_system: FileSystemId(file_system),
            node,
        };
        fixture.service.key.sign(&signed)
    };
    let gone = NodeHandle::new(node.scheme(), node.kind(), &[0xee; 16]).unwrap();
    let kernel = NodeHandle::new(HandleScheme::Kernel, 1, node.bytes()).unwrap();
    let rows = [
        ("empty", FileHandle::new(&[]).unwrap(), vec![Status::Badhandle]),
        (
            "short",
            FileHandle::new(&root.as_bytes()[..19]).unwrap(),
            vec![Status::Badhandle],
        ),
        (
            "noise",
            FileHandle::new(&[0xa5; 64]).unwrap(),
            vec![Status::Badhandle],
        ),
        ("forged", FileHandle::new(&forged).unwrap(), vec![Status::Stale]),
        ("no such export", sign(99, 1, node), vec![Status::Stale]),
        ("other file system", sign(1, 2, node), vec![Status::Stale]),
        (
            "no such file",
            sign(1, 1, gone),
            vec![Status::Stale, Status::Badhandle],
        ),
        (
            "other scheme",
            sign(1, 1, kernel),
            vec![Status::Stale, Status::Badhandle],
        ),
    ];
    for (what, handle, expected) in rows {
        for procedure in &Procedure::ALL[1..] {
            let got = status(&fixture, *procedure, handle).unwrap();
            assert!(
                expected.contains(&got),
                "{procedure} of a handle that is {what}: {got}"
            );
        }
    }
    assert_eq!(status(&fixture, Procedure::Getattr, root), Some(Status::Ok));
}

#[test]
fn arguments_cut_or_lengthened_are_garbage_to_every_procedure() {
    let fixture = Fixture::new();
    for procedure in &Procedure::ALL {
        let whole = arguments(*procedure, fixture.root());
        assert!(fixture.raw(procedure.number(), &whole).is_ok(), "{procedure}");
        for cut in 0..whole.len() {
            assert!(
                fixture.raw(procedure.number(), &whole[..cut]).is_err(),
                "{procedure} cut to {cut}"
            );
        }
        let longer = [&whole[..], &[0; 4]].concat();
        assert!(
            fixture.raw(procedure.number(), &longer).is_err(),
            "{procedure} with four bytes more"
        );
    }
    assert!(fixture.raw(22, &[]).is_err());
}

#[test]
fn a_secure_export_serves_reserved_ports_alone() {
    let mut fixture = Fixture::new();
    let root = fixture.root();
    fixture.move_to_port(1024);
    for procedure in &Procedure::ALL[1..] {
        assert_eq!(
            status(&fixture, *procedure, root),
            Some(Status::Perm),
            "{procedure}"
        );
    }
    let mut open = Fixture::with_rules(ExportRules {
        secure_ports: false,
        ..rules()
    });
    open.move_to_port(65_535);
    assert_eq!(status(&open, Procedure::Getattr, open.root()), Some(Status::Ok));
}
