//! The kernel's caches, their timeouts and their invalidation.
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

mod toy;

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    time::Duration,
};

use curt_fuse::NodeId;
use rustix::io::Errno;
use toy::{Fixture, Toy};

const LONG: Duration = Duration::from_secs(3600);

// SEMANTICS: attr-4.
#[test]
fn names_and_attributes_are_valid_each_for_its_own_timeout() {
    for (entry_valid, attributes_valid) in
        [(Duration::ZERO, LONG), (LONG, Duration::ZERO), (LONG, LONG), (Duration::ZERO, Duration::ZERO)]
    {
        let toy = Toy { entry_valid, attributes_valid, ..Toy::default() };
        toy.plant("file", b"x");
        let fixture = Fixture::new(toy);
        fs::metadata(fixture.path("file")).unwrap();
        let before = (fixture.toy.stuck.calls("lookup"), fixture.toy.stuck.calls("getattr"));
        for _ in 0..10 {
            fs::metadata(fixture.path("file")).unwrap();
        }
        let lookups = fixture.toy.stuck.calls("lookup") - before.0;
        let getattrs = fixture.toy.stuck.calls("getattr") - before.1;
        assert_eq!(lookups, if entry_valid.is_zero() { 10 } else { 0 });
        // A reply to LOOKUP has attributes, but with a timeout of zero stat(2) requests them again.
        assert_eq!(getattrs, if attributes_valid.is_zero() { 10 } else { 0 });
    }
}

#[test]
fn negative_entries_are_valid_for_their_timeout() {
    for (missing_valid, lookups) in [(Duration::ZERO, 10), (LONG, 1)] {
        let fixture = Fixture::new(Toy { missing_valid, ..Toy::default() });
        for _ in 0..10 {
            assert!(!fixture.path("missing").exists());
        }
        assert_eq!(fixture.toy.stuck.calls("lookup"), lookups);
    }
}

#[test]
fn a_file_that_changed_is_seen_after_it_was_voided() {
    let toy = Toy { entry_valid: LONG, attributes_valid: LONG, ..Toy::default() };
    let id = toy.plant("file", b"old text");
    let fixture = Fixture::new(toy);
    let path = fixture.path("file");
    assert_eq!(fs::read(&path).unwrap(), b"old text");
    for data in [&b"new"[..], b"a text that is longer", b""] {
        let before = fs::read(&path).unwrap();
        fixture.toy.replace(id, data);
        assert_eq!(fs::read(&path).unwrap(), before, "the kernel believes what it has");
        fixture.notifier.invalidate_inode(id, 0, 0).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), data.len() as u64);
        assert_eq!(fs::read(&path).unwrap(), data);
    }
}

#[test]
fn attributes_alone_can_be_voided() {
    let toy = Toy { entry_valid: LONG, attributes_valid: LONG, ..Toy::default() };
    let id = toy.plant("file", b"old");
    let fixture = Fixture::new(toy);
    fs::read(fixture.path("file")).unwrap();
    fixture.notifier.invalidate_inode(id, -1, 0).unwrap();
    let (reads, getattrs) = (fixture.toy.stuck.calls("read"), fixture.toy.stuck.calls("getattr"));
    let mut byte = [0];
    File::open(fixture.path("file")).unwrap().read_exact_at(&mut byte, 0).unwrap();
    fs::metadata(fixture.path("file")).unwrap();
    assert_eq!(fixture.toy.stuck.calls("read"), reads);
    assert!(fixture.toy.stuck.calls("getattr") > getattrs);
}

#[test]
fn the_kernel_reports_that_it_does_not_have_the_inode_of_a_notification() {
    let fixture = Fixture::new(Toy::default());
    assert_eq!(fixture.notifier.invalidate_inode(NodeId(999), 0, 0), Err(Errno::NOENT));
}
