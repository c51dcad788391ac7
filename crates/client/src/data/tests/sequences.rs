//! The number of READs of a sequential reader, and the bytes that stay cached.

use super::{Rig, pattern, server::READ, small};
use crate::data::options::DataOptions;

const RSIZE: usize = 16 << 10;
const READS: usize = 64;

/// Reads the whole file in pieces of `step`, and returns the READs' ranges, sorted.
fn read_through(rig: &Rig, contents: &[u8], step: usize) -> Vec<(u64, u64)> {
    let open = rig.open();
    let mut all = Vec::new();
    while all.len() < contents.len() {
        all.extend(rig.read(&open, all.len() as u64, step).unwrap());
    }
    assert!(all == contents, "every byte is where it belongs");
    let mut seen: Vec<_> = rig
        .server
        .take_seen()
        .iter()
        .map(|(procedure, offset, count, _)| {
            assert_eq!(*procedure, READ);
            (*offset, offset + u64::from(*count))
        })
        .collect();
    seen.sort_unstable();
    seen
}

/// The READs of a file if each has the maximum size.
fn exact() -> Vec<(u64, u64)> {
    let size = RSIZE as u64;
    (0..READS as u64).map(|number| (number * size, (number + 1) * size)).collect()
}

#[test]
fn a_sequence_takes_exactly_its_size_by_rsize_reads() {
    let contents = pattern(READS * RSIZE);
    for keep_read in [u64::MAX, RSIZE as u64, 0] {
        for step in [RSIZE, 2 * RSIZE, 5 * RSIZE] {
            // The cache holds little more than the window: read-ahead data must outlive data that
            // were read.
            let options =
                DataOptions { cache_bytes: (3 * step) as u64 + small().read_ahead, keep_read, ..small() };
            let rig = Rig::inline(&contents, options);
            assert_eq!(read_through(&rig, &contents, step), exact(), "{keep_read} {step}");
            // Threads complete the pieces of a window in any order. Its first piece may be queued
            // before data that were read earlier.
            let cache_bytes = options.cache_bytes + 4 * options.read_ahead;
            let rig = Rig::threaded(&contents, DataOptions { cache_bytes, ..options });
            assert_eq!(read_through(&rig, &contents, step), exact(), "{keep_read} {step}, threads");
        }
    }
}

#[test]
fn data_that_the_reader_caches_are_not_cached_here() {
    let contents = pattern(READS * RSIZE);
    let keeping = |keep_read| {
        let rig = Rig::inline(&contents, DataOptions { keep_read, ..small() });
        let seen = read_through(&rig, &contents, 3000);
        let position = seen.iter().fold(0, |position, (start, end)| {
            assert_eq!(*start, position, "no byte is asked for twice");
            *end
        });
        assert_eq!(position, contents.len() as u64);
        rig.plane.cached_bytes()
    };
    let all = contents.len() as u64;
    assert_eq!((keeping(u64::MAX), keeping(0)), (all, 0));
    // The whole beginning stays cached.
    assert_eq!(keeping(RSIZE as u64), RSIZE as u64);
}

#[test]
fn a_segment_stays_cached_until_all_of_it_was_returned() {
    let contents = pattern(4096);
    let options = DataOptions { keep_read: 0, read_ahead: 0, ..small() };
    let rig = Rig::inline(&contents, options);
    let open = rig.open();
    for offset in [3072, 0, 2048] {
        let at = usize::try_from(offset).unwrap();
        assert_eq!(rig.read(&open, offset, 1024).unwrap(), contents[at..at + 1024]);
        assert_eq!(rig.plane.cached_bytes(), 4096);
    }
    let _ = rig.read(&open, 1024, 1024).unwrap();
    assert_eq!(rig.plane.cached_bytes(), 0);
    assert_eq!(rig.server.take_seen().len(), 1);
}

#[test]
fn own_bytes_that_were_written_back_are_returned_once_without_a_request() {
    let options = DataOptions { keep_read: 0, ..small() };
    let rig = Rig::inline(&[], options);
    let open = rig.open();
    assert_eq!(rig.write(&open, 0, b"mine"), Ok(4));
    rig.flush(&open).unwrap();
    let _ = rig.server.take_seen();
    assert_eq!(rig.read(&open, 0, 4096).unwrap(), b"mine");
    assert_eq!((rig.server.take_seen().len(), rig.plane.cached_bytes()), (0, 0));
}

#[test]
fn a_read_that_takes_several_has_them_under_way_together() {
    let contents = pattern(4 * RSIZE);
    let options = DataOptions { read_ahead: 0, ..small() };
    let rig = Rig::threaded(&contents, options);
    rig.server.let_meet(4);
    assert!(rig.read(&rig.open(), 0, 4 * RSIZE).unwrap() == contents);
    assert_eq!(rig.server.take_seen().len(), 4);
}

#[test]
fn a_reader_that_reads_ahead_itself_gets_no_read_ahead() {
    let contents = pattern(READS * RSIZE);
    let rig = Rig::inline(&contents, small());
    rig.plane.set_reader_ahead(1 << 20);
    let open = rig.open();
    for number in 0..4 {
        let offset = number * RSIZE as u64;
        let _ = rig.read(&open, offset, RSIZE).unwrap();
        assert_eq!(rig.server.take_seen(), [(READ, offset, u32::try_from(RSIZE).unwrap(), 0)]);
    }
}
