//! Invalid names, in every procedure that takes one (FreeBSD's "/" in READDIR, an over-long LOOKUP
//! name that overflowed a buffer in 2026): with NUL or "/", ".", "..", empty, of 255, 256 and
//! 65,535 bytes, and invalid UTF-8.

use curt_proto::nfs3::{NfsFh3, NfsProcedure, NfsStat3};
use curt_rpc::message::AcceptStatus;

use crate::calls::{World, arguments, call};
use crate::wire::Refused;

const TAKING: [NfsProcedure; 9] = [
    NfsProcedure::Lookup,
    NfsProcedure::Create,
    NfsProcedure::Mkdir,
    NfsProcedure::Symlink,
    NfsProcedure::Mknod,
    NfsProcedure::Remove,
    NfsProcedure::Rmdir,
    NfsProcedure::Rename,
    NfsProcedure::Link,
];

#[test]
fn no_procedure_takes_a_name_that_is_none() {
    let mut world = World::new();
    let (directory, file) = (world.object("directory"), world.object("file"));
    let bad: [&[u8]; 9] =
        [b"", b"/", b"a/b", b"/etc", b"../file", b"\0", b"a\0b", &[b'n'; 256], &[0xff; 65_535]];
    for procedure in TAKING {
        let other = if procedure == NfsProcedure::Link { file } else { world.root };
        for name in bad {
            let arguments = arguments(procedure, directory, name, other);
            let status = call(&mut world.wire, procedure, &arguments).unwrap();
            let expected = if name.len() > 255 { NfsStat3::Nametoolong } else { NfsStat3::Acces };
            let shown = name[..name.len().min(10)].escape_ascii();
            assert_eq!(status, expected, "{procedure} {shown}");
        }
        for name in [&b"."[..], b".."] {
            if procedure == NfsProcedure::Lookup {
                continue;
            }
            let arguments = arguments(procedure, directory, name, other);
            let status = call(&mut world.wire, procedure, &arguments).unwrap();
            assert!(
                matches!(status, NfsStat3::Exist | NfsStat3::Inval | NfsStat3::Acces),
                "{procedure} {}: {status}",
                name.escape_ascii()
            );
        }
    }
    world.is_unharmed();
}

/// Names longer than the limit of this server's decoder: the reply is GARBAGE_ARGS, as knfsd's, and
/// the connection stays open.
#[test]
fn a_name_of_any_length_that_a_record_has_room_for_is_answered() {
    let mut world = World::new();
    let (directory, file) = (world.object("directory"), world.object("file"));
    let garbage = Err(Refused::Not(AcceptStatus::GarbageArguments));
    for length in [65_536, 70_000, 1_000_000] {
        for procedure in TAKING {
            let other = if procedure == NfsProcedure::Link { file } else { world.root };
            let arguments = with_long(b"name", length, procedure, directory, other);
            let answer = call(&mut world.wire, procedure, &arguments);
            assert_eq!(answer, garbage, "{procedure} with {length} bytes");
        }
        // The second name of a RENAME, and the target of a link.
        for (procedure, short) in
            [(NfsProcedure::Rename, &b"another name"[..]), (NfsProcedure::Symlink, b"target")]
        {
            let arguments = with_long(short, length, procedure, directory, world.root);
            let answer = call(&mut world.wire, procedure, &arguments);
            assert_eq!(answer, garbage, "{procedure} with {length} bytes");
        }
    }
    world.is_unharmed();
}

/// Valid arguments, except for one string of this length.
fn with_long(
    short: &[u8],
    length: usize,
    procedure: NfsProcedure,
    directory: NfsFh3,
    other: NfsFh3,
) -> Vec<u8> {
    let mut arguments = arguments(procedure, directory, b"name", other);
    let encoded = |string: &[u8]| {
        let mut bytes = u32::try_from(string.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend(string);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let (old, new) = (encoded(short), encoded(&vec![b'n'; length]));
    let at = arguments.windows(old.len()).position(|bytes| bytes == old).unwrap();
    arguments.splice(at..at + old.len(), new);
    arguments
}

#[test]
fn names_of_any_other_bytes_are_stored_unchanged() {
    let mut world = World::new();
    let directory = world.object("directory");
    let longest = [b'n'; 255];
    let names: [&[u8]; 6] = [b"\xff\xfe", b"\xc3\x28", b"...", b"-rf *", b"\n\x1b[2J", &longest];
    for name in names {
        for (procedure, expected) in [
            (NfsProcedure::Create, NfsStat3::Ok),
            (NfsProcedure::Create, NfsStat3::Exist),
            (NfsProcedure::Lookup, NfsStat3::Ok),
            (NfsProcedure::Remove, NfsStat3::Ok),
            (NfsProcedure::Lookup, NfsStat3::Noent),
        ] {
            let arguments = arguments(procedure, directory, name, directory);
            let status = call(&mut world.wire, procedure, &arguments).unwrap();
            assert_eq!(status, expected, "{procedure} {}", name.escape_ascii());
        }
    }
    world.is_unharmed();
}
