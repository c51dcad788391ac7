//! READs that are answered with ranges of a file, over a connection.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "wire/mod.rs"]
#[allow(unreachable_pub, dead_code, reason = "shared by the tests of this folder")]
mod wire;

use std::path::Path;
use std::sync::Arc;

use curt_proto::nfs3::{self, NfsFh3, NfsProcedure, NfsResult, NfsStat3, ReadArguments, ReadFail, ReadOk};
use curt_server::{ExportRules, Squash};
use curt_vfs::{LocalOptions, LocalVfs};
use curt_xdr::{Encode, decode_all};
use wire::{Served, Wire, export, open_rules};

/// Not a multiple of four, so that padding follows the last bytes.
const SIZE: u32 = 300_003;

fn content() -> Vec<u8> {
    (0..SIZE).map(|at| (at % 251) as u8).collect()
}

fn serve(directory: &Path) -> Served {
    let options = LocalOptions { table: Some(directory.join(".table")), ..LocalOptions::default() };
    let vfs = LocalVfs::open(directory, &options).unwrap();
    let rules = ExportRules {
        squash: Squash::All,
        anonymous_uid: rustix::process::geteuid().as_raw(),
        anonymous_gid: rustix::process::getegid().as_raw(),
        ..open_rules()
    };
    Served::new(vec![export("/large", Arc::new(vfs), rules)])
}

fn file(wire: &mut Wire) -> NfsFh3 {
    let root = wire.mount("/large");
    let NfsResult::Ok(found) = wire.lookup(root, b"file") else {
        panic!("there is a file");
    };
    found.object
}

fn ask(wire: &mut Wire, file: NfsFh3, offset: u64, count: u32) {
    let mut arguments = Vec::new();
    ReadArguments { file, offset, count }.encode(&mut arguments);
    let procedure = (nfs3::PROGRAM, nfs3::VERSION, NfsProcedure::Read.number());
    wire.send(procedure, &arguments);
}

/// The result of a READ: the bytes, and whether they are the last.
fn decoded(results: &[u8]) -> Result<(Vec<u8>, bool), NfsStat3> {
    match decode_all(results).unwrap() {
        NfsResult::Ok(ReadOk { attributes, count, eof, data }) => {
            assert!(attributes.is_some());
            assert_eq!(usize::try_from(count).unwrap(), data.bytes().len());
            Ok((data.bytes().to_vec(), eof))
        }
        NfsResult::Failed(status, ReadFail { .. }) => Err(status),
    }
}

#[test]
fn pieces_of_a_file_and_copies_are_the_same_bytes() {
    for parent in ["/dev/shm", "/var/tmp"] {
        let directory = tempfile::tempdir_in(parent).unwrap();
        let content = content();
        std::fs::write(directory.path().join("file"), &content).unwrap();
        let served = serve(directory.path());
        let mut wire = served.connect();
        let file = file(&mut wire);
        let ranges: [(u64, u32); 8] = [
            (0, 1 << 20),
            (0, 16 << 10),
            (1, 16_383),
            (100_001, 65_537),
            (283_619, 1 << 20),
            (283_620, 1 << 20),
            (u64::from(SIZE) - 1, 1 << 20),
            (u64::from(SIZE), 1 << 20),
        ];
        // All at once, so that ranges and copies are adjacent in the sent data.
        let first = wire.xid + 1;
        for (offset, count) in ranges {
            ask(&mut wire, file, offset, count);
        }
        for _ in ranges {
            let (xid, answer) = wire.receive().expect("a reply");
            let (offset, count) = ranges[usize::try_from(xid - first).unwrap()];
            let start = usize::try_from(offset).unwrap();
            let end = content.len().min(start + usize::try_from(count).unwrap());
            let (bytes, eof) = decoded(&answer.unwrap()).unwrap();
            assert!(bytes == content[start..end], "{count} from {offset} in {parent}");
            assert_eq!(eof, end == content.len(), "{count} from {offset} in {parent}");
        }
    }
}

#[test]
fn a_file_that_shrinks_between_reads_ends_where_it_ends() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, content()).unwrap();
    let served = serve(directory.path());
    let mut wire = served.connect();
    let file = file(&mut wire);
    for size in [200_000_u32, 20_000, 10, 0] {
        std::fs::File::options().write(true).open(&path).unwrap().set_len(size.into()).unwrap();
        ask(&mut wire, file, 0, 1 << 20);
        let (_, answer) = wire.receive().expect("a reply");
        let (bytes, eof) = decoded(&answer.unwrap()).unwrap();
        assert!(bytes == content()[..usize::try_from(size).unwrap()] && eof, "{size}");
    }
    std::fs::remove_file(&path).unwrap();
    ask(&mut wire, file, 0, 1 << 20);
    let (_, answer) = wire.receive().expect("a reply");
    assert_eq!(decoded(&answer.unwrap()).err(), Some(NfsStat3::Stale));
}
