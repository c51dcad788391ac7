//! Credentials: malformed ones (CVE-2026-4747, CVE-2007-3999: bodies of 400 bytes and more),
//! flavours that are weaker than an export requires, groups in any order and number
//! (CVE-2018-1000028), and setters that do not check the owner (CVE-2016-1237).

use std::io::Write;

use curt_proto::nfs3::{
    NfsFh3, NfsProcedure, NfsStat3, NfsTime, PROGRAM, Sattr, SetattrArguments, TimeHow, VERSION,
};
use curt_rpc::auth::{AuthStatus, RpcCredential};
use curt_rpc::message::RejectedReply;
use curt_rpc::record;

use crate::calls::{World, arguments, bytes, call};
use crate::wire::{Answer, Refused, Served, Wire, export, memory, open_rules, user};

/// A GETATTR of `object` with any credential and verifier: flavour, announced length, bytes.
fn with_auth(wire: &mut Wire, object: NfsFh3, auths: [(u32, u32, &[u8]); 2]) -> Answer {
    wire.xid += 1;
    let mut out = Vec::new();
    let body = record::begin_record(&mut out);
    for word in [wire.xid, 0, 2, PROGRAM, VERSION, NfsProcedure::Getattr.number()] {
        out.extend(word.to_be_bytes());
    }
    for (flavor, length, bytes) in auths {
        out.extend(flavor.to_be_bytes());
        out.extend(length.to_be_bytes());
        out.extend(bytes);
    }
    out.extend(bytes(&object));
    record::finish_record(&mut out, body, 0);
    wire.stream.write_all(&out).unwrap();
    wire.receive().expect("a reply").1
}

fn denied(status: AuthStatus) -> Answer {
    Err(Refused::Denied(RejectedReply::Authentication(status)))
}

#[test]
fn credentials_and_verifiers_of_any_length_and_flavour_are_taken_or_denied() {
    let mut world = World::new();
    let object = world.object("file");
    let none: (u32, u32, &[u8]) = (0, 0, &[]);
    for length in [0_u32, 4, 100, 400] {
        let body = vec![0x41; length as usize];
        // Unsupported flavours: AUTH_SHORT, AUTH_DH, RPCSEC_GSS, AUTH_TLS, and unknown ones.
        for flavor in [2, 3, 6, 7, 390_003, u32::MAX] {
            let answer = with_auth(&mut world.wire, object, [(flavor, length, &body), none]);
            assert_eq!(answer, denied(AuthStatus::TooWeak), "{flavor} with {length} bytes");
        }
        let answer = with_auth(&mut world.wire, object, [none, (6, length, &body)]);
        assert!(answer.is_ok(), "a verifier of {length} bytes");
    }
    for length in [401_u32, 404, 0x7fff_ffff, u32::MAX] {
        let body = [0x41; 404];
        for flavor in [0, 1, 6] {
            let answer = with_auth(&mut world.wire, object, [(flavor, length, &body), none]);
            assert_eq!(answer, denied(AuthStatus::BadCredential), "{flavor} with {length} bytes");
        }
        let answer = with_auth(&mut world.wire, object, [none, (0, length, &body)]);
        assert_eq!(answer, denied(AuthStatus::BadVerifier), "{length} bytes");
    }
    // AUTH_SYS: a machine name of 256 bytes, 17 groups, a false count of groups, bytes after the
    // end.
    let sys = |name: u32, groups: u32, tail: usize| {
        let mut body: Vec<u8> = [0, name].map(u32::to_be_bytes).concat();
        body.resize(body.len() + name as usize, b'm');
        body.extend([0, 0, groups].map(u32::to_be_bytes).concat());
        body.resize(body.len() + 4 * groups.min(17) as usize + tail, 0);
        body
    };
    for (name, groups, tail) in [(256, 0, 0), (0, 17, 0), (0, u32::MAX, 0), (0, 0, 4), (252, 16, 4)] {
        let body = sys(name, groups, tail);
        let length = u32::try_from(body.len()).unwrap();
        let answer = with_auth(&mut world.wire, object, [(1, length, &body), none]);
        assert_eq!(answer, denied(AuthStatus::BadCredential), "{name} {groups} {tail}");
    }
    let body = sys(252, 16, 0);
    let length = u32::try_from(body.len()).unwrap();
    assert!(with_auth(&mut world.wire, object, [(1, length, &body), none]).is_ok());
    world.is_unharmed();
}

/// The rules hold for handles that MOUNT did not return, too (chimera#991).
#[test]
fn a_handle_alone_opens_nothing_that_its_export_does_not() {
    use curt_server::{ExportRules, Squash};
    let rules = |rules| {
        vec![
            export(
                "/one",
                std::sync::Arc::new(curt_vfs::MemoryVfs::new(curt_vfs::MemoryOptions::default())),
                rules,
            ),
            memory("/two", 2),
        ]
    };
    let strict = ExportRules { secure_ports: true, ..open_rules() };
    let served = Served::new(rules(open_rules()));
    let mut wire = served.connect();
    let root = wire.mount("/one");
    served.service.replace_exports(rules(strict)).unwrap();
    for procedure in NfsProcedure::ALL.into_iter().filter(|procedure| *procedure != NfsProcedure::Null) {
        let arguments = arguments(procedure, root, b"name", root);
        assert_eq!(call(&mut wire, procedure, &arguments), Ok(NfsStat3::Perm), "{procedure}");
    }
    let read_only = ExportRules { read_only: true, squash: Squash::All, ..open_rules() };
    served.service.replace_exports(rules(read_only)).unwrap();
    for procedure in [
        NfsProcedure::Create,
        NfsProcedure::Mkdir,
        NfsProcedure::Symlink,
        NfsProcedure::Mknod,
        NfsProcedure::Remove,
        NfsProcedure::Rmdir,
        NfsProcedure::Rename,
        NfsProcedure::Link,
        NfsProcedure::Setattr,
        NfsProcedure::Write,
        NfsProcedure::Commit,
    ] {
        let arguments = arguments(procedure, root, b"name", root);
        assert_eq!(call(&mut wire, procedure, &arguments), Ok(NfsStat3::Rofs), "{procedure}");
    }
}

#[test]
fn every_change_of_an_attribute_checks_the_owner() {
    let mut world = World::new();
    let object = world.object("file");
    let keep = Sattr::default();
    let at = TimeHow::SetToClientTime(NfsTime { seconds: 1, nanoseconds: 0 });
    let setters = [
        Sattr { mode: Some(0o6777), ..keep },
        Sattr { uid: Some(1000), ..keep },
        Sattr { gid: Some(1000), ..keep },
        Sattr { atime: at, ..keep },
        Sattr { mtime: at, ..keep },
    ];
    for who in [
        user(1000, 1000, &[0, 5, 7]),
        user(u32::MAX, u32::MAX, &[u32::MAX; 16]),
        user(7, 0, &[]),
        RpcCredential::None,
    ] {
        world.wire.who = who;
        for attributes in setters {
            let set = SetattrArguments { object, attributes, guard: None };
            let status = call(&mut world.wire, NfsProcedure::Setattr, &bytes(&set)).unwrap();
            assert!(matches!(status, NfsStat3::Perm | NfsStat3::Acces), "{attributes:?}: {status}");
        }
    }
    world.wire.who = user(0, 0, &[]);
    world.is_unharmed();
}
