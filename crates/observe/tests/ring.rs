//! The ring of a running process, and the copy that a panic leaves. A process has one ring, and a
//! copy is made at its first panic only, so this test is a program of its own.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use curt_observe::events::recording::{RecordedValue, RecordingError, RecordingHead};
use curt_observe::events::{
    Event, EventRecord, EventRing, RecordedProcess, RecordingItem, RecordingReader, keep_in_ring, ring,
};
use curt_observe::probe;

/// The contents of a ring.
#[derive(Debug)]
struct Read {
    head: RecordingHead,
    records: Vec<EventRecord>,
    overwritten: u64,
}

fn read(bytes: &[u8]) -> Result<Read, RecordingError> {
    let mut reader = RecordingReader::open(bytes)?;
    let mut read = Read { head: reader.head().clone(), records: Vec::new(), overwritten: 0 };
    while let Some(item) = reader.next_item()? {
        match item {
            RecordingItem::Event(record) => read.records.push(record),
            RecordingItem::End { lost, .. } => read.overwritten = lost,
            other => panic!("{other:?}"),
        }
    }
    Ok(read)
}

fn origin(pid: u32) -> RecordedProcess {
    RecordedProcess { pid, ..RecordedProcess::default() }
}

fn spoil(bytes: &[u8]) {
    for at in (0..bytes.len()).filter(|at| *at < 64 || at % 20_011 == 0) {
        for value in [0, 0x7f, 0xff] {
            let mut spoilt = bytes.to_vec();
            spoilt[at] = value;
            let _ = read(&spoilt);
        }
    }
}

/// The copies in `directory`.
fn copies(directory: &Path) -> Vec<PathBuf> {
    let mut rings = ring::left_behind(directory).expect("the directory");
    rings.retain(|path| path.to_string_lossy().ends_with("-panic.ring"));
    rings
}

/// A thread panics and the process continues.
fn a_panic_leaves_a_copy(directory: &Path, last: &RecordedValue) {
    assert!(copies(directory).is_empty(), "none was made");
    keep_in_ring(&[Event::NfsUmount, Event::CurtPanicked]);
    for _ in 0..2 {
        assert!(std::thread::spawn(|| panic!("as the test wants it")).join().is_err());
    }
    let copies = copies(directory);
    assert_eq!(copies.len(), 1, "of the first one: {copies:?}");
    let copied = read(&fs::read(&copies[0]).expect("the copy")).expect("a ring");
    let [.., before, panicked] = &copied.records[..] else {
        panic!("{copied:?}");
    };
    assert_eq!(before.values[1], *last);
    assert_eq!(panicked.event, Event::CurtPanicked.index());
    let RecordedValue::Text(place, _) = &panicked.values[0] else {
        panic!("{panicked:?}");
    };
    let place = String::from_utf8_lossy(place);
    assert!(place.starts_with(file!()), "{place}");
}

#[test]
fn the_last_events_are_in_the_file_while_the_process_lives_and_old_files_go() {
    let directory = std::env::temp_dir().join(format!("curt-ring-test-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    for number in 0..ring::LEFT_MAX + 3 {
        fs::write(directory.join(format!("{number}.ring")), "old").expect("a file");
    }
    let former = directory.join("4000000.ring");
    fs::write(&former, "of an earlier process of this number").expect("a file");
    let unused = directory.join("77-panic.ring");
    fs::write(&unused, "").expect("a file");
    let ring = EventRing::create(&directory, origin(4_000_000)).expect("a ring");
    let rings = ring::left_behind(&directory).expect("the directory");
    assert_eq!(rings.len(), ring::LEFT_MAX);
    assert!(!unused.exists(), "a copy that a killed process never made");
    let mut kept = rings.iter().filter_map(|path| fs::read(path).ok());
    assert!(kept.any(|bytes| bytes.starts_with(b"of an earlier")));
    assert!(EventRing::create(&directory, origin(4_000_001)).is_err());
    assert_eq!(fs::metadata(ring.path()).expect("the ring").mode() & 0o777, 0o600);
    keep_in_ring(&[Event::NfsUmount]);
    let told = 20_000_u64;
    for number in 0..told {
        probe!(NfsUmount { server: "nas", name: format!("/mnt/{number}").as_str() });
    }
    let bytes = fs::read(ring.path()).expect("the ring");
    let read = read(&bytes).expect("a ring");
    assert_eq!(read.head.origin, origin(4_000_000));
    assert_eq!(read.head.events, RecordingHead::new(origin(0)).events);
    assert!(read.records.is_sorted_by_key(|record| record.time));
    assert_eq!(read.records.len() as u64 + read.overwritten, told);
    assert!(read.records.len() > 500);
    let last = read.records.last().expect("the last");
    let name = RecordedValue::Text(format!("/mnt/{}", told - 1).into_bytes(), false);
    assert_eq!(last.values[1], name);
    spoil(&bytes);
    a_panic_leaves_a_copy(&directory, &last.values[1]);
    let path = ring.path().to_owned();
    drop(ring);
    assert!(!path.exists() && !Event::NfsUmount.is_wanted());
    assert_eq!(copies(&directory).len(), 1, "it stays, however the process ends");
    fs::remove_dir_all(directory).expect("the directory");
}
