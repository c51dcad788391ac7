//! A reader that is served directly from the receive buffer gets the same bytes as any other, and
//! none of them stay cached.

use std::sync::Arc;

use curt_rpc::client::Interrupt;
use parking_lot::Mutex;

use super::{server::*, *};
use crate::data::in_place_read::ReadTarget;

/// Records the bytes that it receives and the number of calls.
#[derive(Default)]
struct Kept(Mutex<Vec<Vec<u8>>>);

impl ReadTarget for Kept {
    fn put(&self, pieces: &[&[u8]]) {
        self.0.lock().push(pieces.concat());
    }
}

/// Options for a reader that caches what it reads, as a kernel does.
fn keeping() -> DataOptions {
    DataOptions { keep_read: 4096, ..small() }
}

/// Reads to a target; returns the bytes that it received, which must be one answer.
fn read_to(rig: &Rig, open: &OpenData, offset: u64, count: usize) -> Result<Vec<u8>, DataError> {
    let kept = Arc::new(Kept::default());
    let target: Arc<dyn ReadTarget> = Arc::<Kept>::clone(&kept);
    let result = rig.plane.read_to(&rig.owner, open, offset, count, &Interrupt::never(), &target);
    let mut given = std::mem::take(&mut *kept.0.lock());
    result.map(|()| {
        assert_eq!(given.len(), 1, "one read has one answer");
        given.remove(0)
    })
}

/// The number of replies that were passed directly to a reader.
fn taken(rig: &Rig) -> usize {
    rig.server.taken()
}

#[test]
fn a_sequence_is_passed_directly_with_as_many_reads_and_is_not_cached() {
    let contents = pattern(200_000);
    let rig = Rig::inline(&contents, keeping());
    rig.plane.set_reader_ahead(1 << 20);
    let open = rig.open();
    let mut all = Vec::new();
    while all.len() < contents.len() {
        all.extend(read_to(&rig, &open, all.len() as u64, 16 << 10).unwrap());
    }
    assert_eq!(all, contents);
    let reads = rig.server.take_seen().len();
    assert_eq!(reads, contents.len().div_ceil(16 << 10));
    assert_eq!(taken(&rig), reads - 1, "all but the beginning, which is kept");
    assert!(rig.plane.cached_bytes() <= 16 << 10);
}

#[test]
fn the_end_of_the_file_is_passed_directly_and_recorded() {
    let contents = pattern(40_000);
    let rig = Rig::inline(&contents, keeping());
    let open = rig.open();
    *rig.file.believed.lock() = None;
    assert_eq!(read_to(&rig, &open, 32_768, 16 << 10).unwrap(), contents[32_768..]);
    assert_eq!(taken(&rig), 1);
    *rig.file.believed.lock() = None;
    assert!(read_to(&rig, &open, 40_960, 16 << 10).unwrap().is_empty());
    assert_eq!(rig.server.take_seen().len(), 1, "nobody asks behind the end");
}

#[test]
fn unwritten_bytes_take_precedence_over_those_of_the_server() {
    let contents = pattern(64 << 10);
    let rig = Rig::inline(&contents, keeping());
    let open = rig.open();
    assert_eq!(rig.write(&open, 20_000, b"mine"), Ok(4));
    let read = read_to(&rig, &open, 16_384, 16 << 10).unwrap();
    assert_eq!(read[20_000 - 16_384..][..4], *b"mine");
    assert_eq!(read[..100], contents[16_384..16_484]);
    // Also beyond the server's end of file: the bytes in between are zeros.
    assert_eq!(rig.write(&open, 70_000, b"mine"), Ok(4));
    let read = read_to(&rig, &open, 64 << 10, 16 << 10).unwrap();
    assert_eq!(read.len(), 70_004 - (64 << 10));
    assert_eq!(read[70_000 - (64 << 10)..], *b"mine");
    assert_eq!(taken(&rig), 0);
}

#[test]
fn bytes_written_while_their_range_is_read_are_seen() {
    let contents = pattern(64 << 10);
    let rig = Rig::inline(&contents, keeping());
    let open = Arc::new(rig.open());
    let (plane, owner, writer) = (Arc::clone(&rig.plane), Arc::clone(&rig.owner), Arc::clone(&open));
    let mut once = true;
    rig.server.script_after(move |seen| {
        if seen.procedure == READ && std::mem::take(&mut once) {
            let position = WritePosition::At(20_000);
            let written = plane.write(&owner, &writer, position, b"mine", &Interrupt::never());
            assert!(written.is_ok());
        }
    });
    let read = read_to(&rig, &open, 16_384, 16 << 10).unwrap();
    assert_eq!(read[20_000 - 16_384..][..4], *b"mine");
    assert_eq!(taken(&rig), 0);
}

#[test]
fn short_answers_are_continued_and_nonsense_is_an_error() {
    let contents = pattern(64 << 10);
    let rig = Rig::inline(&contents, keeping());
    let open = rig.open();
    let mut first = true;
    rig.server.script(move |seen| {
        (seen.procedure == READ && std::mem::take(&mut first)).then_some(Misbehaviour::Short(100))
    });
    assert_eq!(read_to(&rig, &open, 16_384, 16 << 10).unwrap(), contents[16_384..32_768]);
    rig.server.script(|_| Some(Misbehaviour::Results(vec![0, 0, 0, 0, 7])));
    assert!(read_to(&rig, &open, 32_768, 16 << 10).is_err());
    rig.server.script(|_| Some(Misbehaviour::Status(5)));
    assert!(matches!(read_to(&rig, &open, 32_768, 16 << 10), Err(DataError::Status(_))));
    assert_eq!(taken(&rig), 0);
}

#[test]
fn a_read_that_others_wait_for_is_cached_for_them() {
    let contents = pattern(64 << 10);
    let rig = &Rig::threaded(&contents, keeping());
    let open = &rig.open();
    let (entered, inside) = std::sync::mpsc::channel();
    let (go, held) = std::sync::mpsc::channel::<()>();
    rig.server.script(move |_| {
        entered.send(()).unwrap();
        held.recv().unwrap();
        None
    });
    std::thread::scope(|scope| {
        let first = scope.spawn(|| read_to(rig, open, 16_384, 16 << 10).unwrap());
        inside.recv().unwrap();
        let second = scope.spawn(|| read_to(rig, open, 16_384, 16 << 10).unwrap());
        let is_waited_for = || rig.file.data.core.lock().fetches.iter().any(|fetch| fetch.is_shared());
        while !is_waited_for() {
            std::thread::yield_now();
        }
        go.send(()).unwrap();
        assert_eq!(first.join().unwrap(), contents[16_384..32_768]);
        assert_eq!(second.join().unwrap(), contents[16_384..32_768]);
    });
    assert_eq!(rig.server.take_seen().len(), 1);
    assert_eq!(taken(rig), 0);
}

#[test]
fn a_direct_read_is_passed_directly_to_the_reader() {
    let contents = pattern(64 << 10);
    let rig = Rig::inline(&contents, keeping());
    let open = rig.open_as(1000, OpenMode { direct: true, synchronous: false });
    assert_eq!(read_to(&rig, &open, 100, 16_000).unwrap(), contents[100..16_100]);
    assert_eq!(taken(&rig), 1);
    // Takes more than one READ: the bytes are assembled here.
    assert_eq!(read_to(&rig, &open, 100, 20_000).unwrap(), contents[100..20_100]);
    assert_eq!(taken(&rig), 1);
}
