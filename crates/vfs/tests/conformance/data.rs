//! Reading, writing, committing, truncating.

use curt_types::{PreOpState, SetAttributes, Stability};
use curt_vfs::{Error, FetchOptions, FetchResult, NewNode, SpecialFile};
use rustix::io::Errno;

use crate::trees::{OTHER, OWNER, ROOT, ReadBytes as _, errno, everywhere};

const NEVER_WAIT: FetchOptions = FetchOptions { sendfile: false, wait: false };

#[test]
fn what_is_written_is_read_with_holes_as_zeroes() {
    everywhere(|tree| {
        let file = tree.file(&tree.root(), "file", 0o644).handle;
        assert_eq!(tree.write(&OWNER, &file, 10, b"tail"), Ok(4));
        assert_eq!(tree.write(&OWNER, &file, 0, b"head"), Ok(4));
        assert_eq!(tree.read(&file, 0, 100), (b"head\0\0\0\0\0\0tail".to_vec(), true));
        assert_eq!(tree.read(&file, 2, 4), (b"ad\0\0".to_vec(), false));
        assert_eq!(tree.read(&file, 10, 4), (b"tail".to_vec(), true));
        assert_eq!(tree.read(&file, 14, 4), (vec![], true));
        assert_eq!(tree.read(&file, 1 << 40, 4), (vec![], true));
    });
}

/// Methods that do not wait return the same as those that do, or nothing with an unchanged buffer.
#[test]
fn a_read_of_nothing_reports_whether_there_is_more() {
    everywhere(|tree| {
        let file = tree.file(&tree.root(), "file", 0o644).handle;
        assert_eq!(tree.write(&OWNER, &file, 0, b"12345"), Ok(5));
        for (offset, end) in [(0, false), (4, false), (5, true), (6, true), (1 << 40, true)] {
            assert_eq!(tree.read(&file, offset, 0), (vec![], end), "at {offset}");
        }
    });
}

#[test]
fn a_read_that_never_waits_is_the_same_read() {
    everywhere(|tree| {
        let file = tree.file(&tree.root(), "file", 0o644).handle;
        let bytes: Vec<u8> = (0..20_000u32).map(|at| (at % 251) as u8).collect();
        assert_eq!(tree.write(&OWNER, &file, 0, &bytes), Ok(20_000));
        let mut answered = 0;
        for (offset, count) in
            [(0, 0), (0, 1), (4095, 4097), (0, 20_000), (19_999, 5), (20_000, 5), (1 << 62, 1), (u64::MAX, 9)]
        {
            let mut data = b"kept".to_vec();
            let Some(answer) = tree.vfs.fetch(&OWNER, &file, offset, count, NEVER_WAIT, &mut data) else {
                assert_eq!(data, b"kept");
                continue;
            };
            answered += 1;
            let Ok(FetchResult::Copied(read)) = answer.value else {
                panic!("no pieces were asked for: {answer:?}");
            };
            let expected = tree.read(&file, offset, count);
            assert_eq!(
                (&data[..4], &data[4..], read.eof),
                (&b"kept"[..], &expected.0[..], expected.1),
                "{count} at {offset}"
            );
            let attributes = answer.attributes.map(|attributes| (attributes.size, attributes.ctime));
            assert_eq!(attributes, Some((20_000, tree.attributes(&file).ctime)));
        }
        assert!(answered >= 4, "what was just written is in the cache");
        let refused = tree
            .vfs
            .fetch(&OTHER, &tree.root(), 0, 1, NEVER_WAIT, &mut Vec::new())
            .map(|answer| answer.value);
        assert_eq!(refused.map(|read| read.is_err()), Some(true));
    });
}

/// A range of a file has the bytes that a read would return, and is returned only above a minimum
/// size.
#[test]
fn a_piece_is_the_same_read() {
    everywhere(|tree| {
        let file = tree.file(&tree.root(), "file", 0o600).handle;
        let bytes: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
        assert_eq!(tree.write(&OWNER, &file, 0, &bytes), Ok(100_000));
        let how = FetchOptions { sendfile: true, wait: true };
        let local = tree.place.is_some();
        for (offset, count, large) in [
            (0, 16_384, true),
            (0, 16_383, false),
            (83_616, 1 << 20, true),
            (83_617, 1 << 20, false),
            (5, 50_000, true),
            (100_000, 50_000, false),
        ] {
            let mut data = b"kept".to_vec();
            let answer = tree.vfs.fetch(&OWNER, &file, offset, count, how, &mut data);
            let answer = answer.expect("it may wait");
            assert_eq!(answer.attributes.map(|attributes| attributes.size), Some(100_000));
            let (read, range) = match answer.value.unwrap() {
                FetchResult::Copied(read) => (read, false),
                FetchResult::FileRange(range) => {
                    assert_eq!(data, b"kept");
                    data.resize(4 + range.read.count as usize, 0);
                    let got = rustix::io::pread(&range.file, &mut data[4..], offset);
                    assert_eq!(got, Ok(range.read.count as usize));
                    (range.read, true)
                }
            };
            assert_eq!(range, large && local, "{count} at {offset}");
            let expected = tree.read(&file, offset, count);
            assert_eq!((&data[4..], read.eof), (&expected.0[..], expected.1), "{count} at {offset}");
        }
        let refused = tree.vfs.fetch(&OTHER, &file, 0, 50_000, how, &mut Vec::new());
        let refused = refused.expect("it may wait").value.err();
        assert_eq!(refused, Some(Error::Os(Errno::ACCESS)));
    });
}

/// After a range could not be sent, bytes are returned.
#[test]
fn no_pieces_are_offered_once_one_could_not_be_sent() {
    everywhere(|tree| {
        let file = tree.file(&tree.root(), "file", 0o600).handle;
        assert_eq!(tree.write(&OWNER, &file, 0, &[7; 50_000]), Ok(50_000));
        let how = FetchOptions { sendfile: true, wait: true };
        let fetch = || tree.vfs.fetch(&OWNER, &file, 0, 50_000, how, &mut Vec::new());
        let first = fetch().expect("it may wait").value.unwrap();
        if let FetchResult::FileRange(range) = first {
            range.failed.store(true, std::sync::atomic::Ordering::SeqCst);
        }
        let second = fetch().expect("it may wait").value.unwrap();
        assert!(matches!(second, FetchResult::Copied(read) if read.count == 50_000));
    });
}

#[test]
fn offsets_at_the_edges_neither_panic_nor_wrap() {
    everywhere(|tree| {
        let file = tree.file(&tree.root(), "file", 0o644).handle;
        for offset in [(1 << 31) - 1, 1 << 31, 1 << 32] {
            assert_eq!(tree.write(&OWNER, &file, offset, b"x"), Ok(1), "{offset}");
            assert_eq!(tree.attributes(&file).size, offset + 1);
        }
        for offset in [i64::MAX as u64, 1 << 63, u64::MAX] {
            assert_eq!(errno(tree.write(&OWNER, &file, offset, b"xx")), Some(Errno::FBIG), "{offset}");
            assert_eq!(tree.read(&file, offset, 10), (vec![], true), "{offset}");
            let size = SetAttributes { size: Some(offset.max(1 << 63)), ..SetAttributes::default() };
            assert_eq!(errno(tree.set(&OWNER, &file, &size).value), Some(Errno::FBIG), "{offset}");
        }
        assert_eq!(tree.attributes(&file).size, (1 << 32) + 1);
    });
}

#[test]
fn a_big_write_is_whole_and_a_sparse_file_uses_little() {
    everywhere(|tree| {
        let file = tree.file(&tree.root(), "file", 0o644).handle;
        let data: Vec<u8> = (0..1 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
        assert_eq!(tree.write(&OWNER, &file, 1 << 30, &data), Ok(1 << 20));
        assert_eq!(tree.read(&file, 1 << 30, 1 << 20), (data, true));
        let attributes = tree.attributes(&file);
        assert_eq!(attributes.size, (1 << 30) + (1 << 20));
        assert!((1 << 20..1 << 24).contains(&attributes.used), "{}", attributes.used);
    });
}

#[test]
fn each_stability_is_returned_as_requested_and_commit_accepts_a_range() {
    everywhere(|tree| {
        let file = tree.file(&tree.root(), "file", 0o644).handle;
        for stability in [Stability::Unstable, Stability::DataSync, Stability::FileSync] {
            let written = tree.vfs.write(&OWNER, &file, 0, b"data", stability).value.unwrap();
            assert_eq!((written.count, written.stability), (4, stability));
        }
        let committed = tree.vfs.commit(&OWNER, &file, 0, 0);
        assert_eq!((committed.value, committed.after.unwrap().size), (Ok(()), 4));
        assert_eq!(errno(tree.vfs.commit(&OTHER, &file, 0, 0).value), Some(Errno::ACCESS));
        assert_eq!(tree.vfs.sync_all(), Ok(()));
    });
}

#[test]
fn a_write_answers_with_what_was_just_before_and_just_after() {
    everywhere(|tree| {
        let file = tree.file(&tree.root(), "file", 0o644);
        let mut last = file.attributes;
        for turn in 0..20 {
            let changed = tree.vfs.write(&OWNER, &file.handle, turn, b"x", Stability::Unstable);
            assert_eq!(changed.before, Some(PreOpState::from(&last)));
            last = changed.after.unwrap();
            assert_eq!(last.size, turn + 1);
        }
    });
}

#[test]
fn writers_of_one_file_never_see_each_other_between_before_and_after() {
    everywhere(|tree| {
        let file = tree.file(&tree.root(), "file", 0o666).handle;
        // Each write extends the file by one byte: sizes before and after it differ by exactly one.
        std::thread::scope(|scope| {
            for caller in [OWNER, OTHER] {
                scope.spawn(move || {
                    for _ in 0..200 {
                        let size = tree.attributes(&file).size;
                        let changed = tree.vfs.write(&caller, &file, size, b"x", Stability::Unstable);
                        let before = changed.before.unwrap().size().unwrap();
                        let after = changed.after.unwrap().size;
                        let grown = after - before;
                        assert!(grown == u64::from(before == size), "{size}: {before} to {after}");
                    }
                });
            }
        });
    });
}

#[test]
fn truncation_cuts_and_grows_with_zeroes() {
    everywhere(|tree| {
        let file = tree.file(&tree.root(), "file", 0o644).handle;
        tree.write(&OWNER, &file, 0, b"0123456789").unwrap();
        for size in [4, 8] {
            let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
            let changed = tree.set(&OWNER, &file, &set);
            assert_eq!((changed.value, changed.after.unwrap().size), (Ok(()), size));
        }
        assert_eq!(tree.read(&file, 0, 100), (b"0123\0\0\0\0".to_vec(), true));
    });
}

#[test]
fn only_regular_files_have_data() {
    everywhere(|tree| {
        let root = tree.root();
        let set = SetAttributes::with_mode(0o666);
        let fifo = tree
            .vfs
            .make(&ROOT, &root, b"fifo", NewNode::Special(SpecialFile::Fifo, &set))
            .value
            .unwrap()
            .node
            .handle;
        let null = curt_types::Device { major: 1, minor: 3 };
        let device = SpecialFile::CharacterDevice(null);
        let device =
            tree.vfs.make(&ROOT, &root, b"null", NewNode::Special(device, &set)).value.unwrap().node.handle;
        let link =
            tree.vfs.make(&ROOT, &root, b"link", NewNode::Symlink(b"file", &set)).value.unwrap().node.handle;
        let rows = [(root, Errno::ISDIR), (fifo, Errno::INVAL), (device, Errno::INVAL), (link, Errno::INVAL)];
        for (node, expected) in rows {
            let mut data = Vec::new();
            let size = SetAttributes { size: Some(0), ..SetAttributes::default() };
            let answers = [
                errno(tree.vfs.read(&ROOT, &node, 0, 10, &mut data).value),
                errno(tree.vfs.write(&ROOT, &node, 0, b"x", Stability::Unstable).value),
                errno(tree.vfs.commit(&ROOT, &node, 0, 0).value),
                errno(tree.set(&ROOT, &node, &size).value),
            ];
            assert_eq!(answers, [Some(expected); 4], "{node:?}");
            assert!(data.is_empty());
        }
    });
}

#[test]
fn a_full_file_system_is_reported_and_loses_nothing() {
    use curt_vfs::{MemoryOptions, MemoryVfs, Vfs};
    let options = MemoryOptions { bytes_max: 8192, ..MemoryOptions::default() };
    let vfs = MemoryVfs::new(options);
    let set = SetAttributes { uid: Some(1000), ..SetAttributes::with_mode(0o666) };
    let made = vfs.create(&ROOT, &vfs.root(), b"file", curt_vfs::CreateMode::Guarded(&set));
    let file = made.value.unwrap().node.handle;
    let write =
        |caller, offset| vfs.write(caller, &file, offset, b"x", Stability::Unstable).value.map(|_| ());
    assert_eq!(write(&OWNER, 0), Ok(()));
    assert_eq!(write(&OWNER, 100), Ok(()));
    assert_eq!(write(&ROOT, 4096), Ok(()));
    assert_eq!(write(&ROOT, 8192), Err(Error::Os(Errno::NOSPC)));
    assert_eq!(vfs.attributes(&file).unwrap().size, 4097);
    assert_eq!(vfs.space(&file).value.unwrap().bytes_available, 0);
    assert_eq!(vfs.remove(&ROOT, &vfs.root(), b"file").value, Ok(()));
    assert_eq!(vfs.space(&vfs.root()).value.unwrap().bytes_available, 8192);
}

#[test]
fn a_power_cut_loses_uncommitted_data_and_a_failed_commit_is_reported() {
    use curt_vfs::{FaultPoint, MemoryOptions, MemoryVfs, Vfs};
    let vfs = MemoryVfs::new(MemoryOptions::default());
    let set = SetAttributes::with_mode(0o644);
    let made = vfs.create(&ROOT, &vfs.root(), b"file", curt_vfs::CreateMode::Guarded(&set));
    let file = made.value.unwrap().node.handle;
    let write = |data: &[u8], stability| vfs.write(&ROOT, &file, 0, data, stability).value.map(|_| ());
    assert_eq!(write(b"kept", Stability::FileSync), Ok(()));
    assert_eq!(write(b"lost", Stability::Unstable), Ok(()));
    vfs.fail_next(FaultPoint::Commit, Error::Lost(Errno::IO), 1);
    assert_eq!(vfs.commit(&ROOT, &file, 0, 0).value, Err(Error::Lost(Errno::IO)));
    vfs.lose_unstable_data();
    let mut data = Vec::new();
    assert_eq!(vfs.read(&ROOT, &file, 0, 10, &mut data).value.map(|_| ()), Ok(()));
    assert_eq!(data, b"kept");
    assert_eq!(write(b"safe", Stability::Unstable), Ok(()));
    assert_eq!(vfs.commit(&ROOT, &file, 0, 0).value, Ok(()));
    vfs.lose_unstable_data();
    data.clear();
    assert_eq!(vfs.read(&ROOT, &file, 0, 10, &mut data).value.map(|_| ()), Ok(()));
    assert_eq!(data, b"safe");
}

#[test]
fn a_pinned_file_outlives_its_last_name_until_the_pin_is_dropped() {
    everywhere(|tree| {
        let root = tree.root();
        for replaced in [false, true] {
            let file = tree.file(&root, "file", 0o644).handle;
            assert_eq!(tree.write(&OWNER, &file, 0, b"data"), Ok(4));
            let pins = [(); 2].map(|()| tree.vfs.pin(&file).unwrap());
            if replaced {
                tree.file(&root, "other", 0o644);
                tree.vfs.rename(&ROOT, &root, b"other", &root, b"file").value.unwrap();
            } else {
                tree.vfs.remove(&ROOT, &root, b"file").value.unwrap();
            }
            let [first, second] = pins;
            drop(first);
            // Descriptors that are not in use may be closed at any time.
            tree.vfs.release_all();
            assert_eq!(tree.read(&file, 0, 100), (b"data".to_vec(), true));
            assert_eq!(tree.write(&OWNER, &file, 4, b" more"), Ok(5));
            let found = tree.attributes(&file);
            assert_eq!((found.nlink, found.size), (0, 9));
            tree.vfs.commit(&OWNER, &file, 0, 0).value.unwrap();
            let again = tree.vfs.link(&ROOT, &file, &root, b"again").directory.value;
            assert_eq!(again, Err(Error::STALE));
            drop(second);
            tree.vfs.release_all();
            assert_eq!(tree.vfs.attributes(&file), Err(Error::STALE));
            let left = tree.vfs.lookup(&ROOT, &root, b"file").value.is_ok();
            assert_eq!(left, replaced);
            if replaced {
                tree.vfs.remove(&ROOT, &root, b"file").value.unwrap();
            }
        }
    });
}
