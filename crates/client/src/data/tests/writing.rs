//! Write-back, COMMIT and errors.

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use curt_observe::ClientCounter;
use curt_rpc::{
    auth::{AuthSysCredential, AuthSysGids, MachineName, RpcCredential},
    client::{CallError, Interrupt},
};
use curt_types::{Fault, SetAttributes, SetTime};

use super::{
    Rig, pattern,
    server::{COMMIT, Misbehaviour, READ, WRITE},
    small,
};
use crate::{
    data::{
        block_pool::BlockPool,
        errors::DataError,
        options::DataOptions,
        plane::{OpenData, OpenMode},
        segments::{Segments, WriteOrigin},
        shared_bytes::SharedBytes,
    },
    protocol::{OpenContext, RpcCaller},
    threads::{Background, BackgroundThreads},
};

const FULL: u32 = 28;

// SEMANTICS: write-1.
#[test]
fn a_small_file_is_written_by_one_stable_write_at_close() {
    let rig = Rig::inline(&[], small());
    let open = rig.open();
    for part in pattern(1000).chunks(100) {
        let at = rig.file.data.local_size(0);
        assert_eq!(rig.write(&open, at, part), Ok(100));
    }
    assert_eq!((rig.server.take_seen(), rig.file.data.local_size(0)), (vec![], 1000));
    rig.flush(&open).unwrap();
    assert_eq!(rig.server.take_seen(), [(WRITE, 0, 1000, 2)]);
    assert_eq!((rig.plane.unwritten_bytes(), rig.file.data.has_unwritten()), (0, false));
    assert_eq!(rig.server.state().disk, pattern(1000));
    rig.flush(&open).unwrap();
    assert_eq!(rig.read(&open, 0, 1000).unwrap(), pattern(1000));
    assert_eq!(rig.server.take_seen(), [], "nothing is written or read twice");
}

/// The requests of write-back before a SETATTR of `set`, and those of a flush after it.
fn sent_before(rig: &Rig, open: &OpenData, set: &SetAttributes) -> [Vec<(u32, u64, u32, u32)>; 2] {
    let never = Interrupt::never();
    let caller = RpcCaller { credential: &open.context.credential, interrupt: &never };
    assert_eq!(rig.plane.write_before_setattr(&rig.owner, set, caller), Ok(None), "there is no SETATTR");
    let before = rig.server.take_seen();
    rig.flush(open).unwrap();
    [before, rig.server.take_seen()]
}

// SEMANTICS: write-1, write-4.
#[test]
fn one_write_before_a_setattr_is_stable_if_it_is_all_of_the_file_or_rights_change() {
    let times = SetAttributes { mtime: SetTime::ServerTime, ..SetAttributes::default() };
    let mode = SetAttributes::with_mode(0o600);
    let size = SetAttributes { size: Some(9), ..SetAttributes::default() };
    for (set, contents, bytes, before, after) in [
        (&times, 0, 1000, vec![(WRITE, 0, 1000, 2)], vec![]),
        (&times, 5, 1000, vec![(WRITE, 0, 1000, 0)], vec![(COMMIT, 0, 0, 0)]),
        (&times, 0, 4096, vec![(WRITE, 0, 4096, 0)], vec![(COMMIT, 0, 0, 0)]),
        (&mode, 5, 1000, vec![(WRITE, 0, 1000, 2)], vec![]),
        (&size, 0, 1000, vec![(WRITE, 0, 1000, 0)], vec![(COMMIT, 0, 0, 0)]),
        (&times, 0, 4097, vec![(WRITE, 0, 4096, 0), (WRITE, 4096, 1, 0)], vec![(COMMIT, 0, 0, 0)]),
    ] {
        let rig = Rig::inline(&pattern(contents), small());
        let open = rig.open();
        rig.write(&open, 0, &pattern(bytes)).unwrap();
        assert_eq!(sent_before(&rig, &open, set), [before, after], "{set:?} {contents} {bytes}");
    }
}

#[test]
fn whole_blocks_that_the_writer_caches_are_dropped_once_they_are_durable() {
    let kept_after = |mode: OpenMode, step: usize| {
        let keep_read = 4096;
        let rig = Rig::inline(&[], DataOptions { keep_read, ..small() });
        let open = rig.open_as(1000, mode);
        let contents = pattern(4 * 4096);
        for (number, part) in contents.chunks(step).enumerate() {
            rig.write(&open, (number * step) as u64, part).unwrap();
        }
        let before = rig.plane.unwritten_bytes() + rig.plane.cached_bytes();
        assert_eq!(before, 4 * 4096, "until a COMMIT the server may lose them");
        rig.flush(&open).unwrap();
        let cached = rig.plane.cached_bytes();
        assert_eq!(rig.plane.unwritten_bytes(), 0);
        assert_eq!(rig.read(&rig.open(), 0, contents.len()).unwrap(), contents);
        cached
    };
    assert_eq!(kept_after(OpenMode::default(), 4096), 4096, "the first bytes of a file stay");
    assert_eq!(kept_after(OpenMode::default(), 1000), 4 * 4096, "a kernel keeps no part of a page");
    let direct = OpenMode { direct: true, ..OpenMode::default() };
    assert_eq!(kept_after(direct, 4096), 4 * 4096, "who writes past its cache has none");
}

#[test]
fn a_restart_finds_the_whole_blocks_that_were_not_committed() {
    let keep_read = 0;
    let rig = Rig::inline(&[], DataOptions { keep_read, ..small() });
    let open = rig.open();
    let contents = pattern(3 * 4096);
    for (number, block) in contents.chunks(4096).enumerate() {
        rig.write(&open, number as u64 * 4096, block).unwrap();
    }
    rig.server.state().restart();
    rig.flush(&open).unwrap();
    assert_eq!(rig.server.state().disk, contents);
}

#[test]
fn a_flush_of_overwritten_bytes_waits_for_the_newer_ones() {
    let mut segments = Segments::default();
    let blocks = Arc::new(BlockPool::new(4096, 0));
    let [alice, bob] = [1, 2].map(|uid| {
        let credential = RpcCredential::Sys(AuthSysCredential {
            machine_name: MachineName::new(b"here"),
            uid,
            gid: uid,
            groups: AuthSysGids::default(),
        });
        Arc::new(OpenContext { owner: uid, credential: Arc::new(credential) })
    });
    let origin =
        |first, writer: &Arc<OpenContext>| WriteOrigin { first, writer: Arc::clone(writer), keeps: false };
    segments.write(100, &[1; 100], &origin(1, &alice), &blocks);
    segments.write(0, &[2; 300], &origin(2, &bob), &blocks);
    assert!(segments.waits(1), "in part by another writer");
    segments.put(0, SharedBytes::new(vec![3; 4096]), origin(3, &alice));
    assert!(segments.waits(1), "as a whole block");
    assert_eq!((segments.unwritten(), segments.has_full()), (4096, true));
}

// SEMANTICS: write-1.
#[test]
fn a_large_file_goes_in_whole_blocks_and_is_committed_once() {
    let rig = Rig::inline(&[], small());
    let open = rig.open();
    let contents = pattern(10_000);
    for (number, part) in contents.chunks(1000).enumerate() {
        rig.write(&open, number as u64 * 1000, part).unwrap();
    }
    assert_eq!(rig.server.take_seen(), [(WRITE, 0, 4096, 0), (WRITE, 4096, 4096, 0)]);
    rig.flush(&open).unwrap();
    assert_eq!(rig.server.take_seen(), [(WRITE, 8192, 1808, 0), (COMMIT, 0, 0, 0)]);
    assert_eq!(rig.server.state().disk, contents);
}

// SEMANTICS: cto-7.
#[test]
fn reads_see_what_was_written_and_zeros_in_between() {
    let rig = Rig::inline(&pattern(100), small());
    let open = rig.open();
    rig.write(&open, 50, b"ours").unwrap();
    rig.write(&open, 200, b"far").unwrap();
    let mut expected = pattern(100);
    expected[50..54].copy_from_slice(b"ours");
    expected.resize(200, 0);
    expected.extend(b"far");
    assert_eq!(rig.read(&open, 0, 1000).unwrap(), expected);
    assert_eq!(rig.read(&open, 150, 52).unwrap(), [&[0; 50][..], b"fa"].concat());
    rig.flush(&open).unwrap();
    rig.file.data.invalidate();
    assert_eq!(rig.read(&open, 0, 1000).unwrap(), expected);
}

#[test]
fn data_fetched_before_a_write_do_not_replace_it() {
    let rig = Rig::inline(&pattern(8192), DataOptions { cache_bytes: 0, ..small() });
    let open = rig.open();
    let mut expected = pattern(8192);
    for round in 0..20_u8 {
        let at = usize::from(round) * 300;
        rig.write(&open, at as u64, &[round; 50]).unwrap();
        expected[at..at + 50].fill(round);
        assert_eq!(rig.read(&open, 0, 8192).unwrap(), expected);
        rig.flush(&open).unwrap();
        assert_eq!(rig.read(&open, 0, 8192).unwrap(), expected);
    }
}

#[test]
fn a_restart_between_write_and_commit_has_the_bytes_sent_again() {
    let rig = Rig::inline(&[], small());
    let open = rig.open();
    let contents = pattern(10_000);
    rig.write(&open, 0, &contents).unwrap();
    let mut restarts = 2;
    rig.server.script(move |seen| {
        let restarts_now = seen.procedure == COMMIT && restarts > 0;
        restarts -= i32::from(restarts_now);
        restarts_now.then_some(Misbehaviour::RestartBefore)
    });
    rig.flush(&open).unwrap();
    assert_eq!(rig.server.state().disk, contents);
    let commits = rig.server.take_seen().iter().filter(|seen| seen.0 == COMMIT).count();
    assert_eq!(commits, 3);
    assert_eq!(rig.counters.snapshot().events.value(ClientCounter::WriteResent), 20_000);
    assert_eq!(rig.plane.unwritten_bytes(), 0);
}

#[test]
fn a_restart_is_detected_even_if_the_lost_bytes_were_overwritten_here() {
    let rig = Rig::inline(&pattern(4096), small());
    let open = rig.open();
    rig.write(&open, 0, &[1; 4096]).unwrap();
    assert_eq!(rig.server.take_seen(), [(WRITE, 0, 4096, 0)]);
    rig.server.state().restart();
    rig.write(&open, 0, &[2; 100]).unwrap();
    rig.flush(&open).unwrap();
    let mut expected = vec![1; 4096];
    expected[..100].fill(2);
    assert_eq!(rig.server.state().disk, expected);
}

// SEMANTICS: write-3.
#[test]
fn repeated_restarts_of_the_server_lose_nothing_that_fsync_acknowledged() {
    for seed in 0..50 {
        let mut random = super::random::Random::new(seed);
        let rig = Rig::inline(&[], small());
        let open = rig.open();
        let mut script = super::random::Random::new(seed + 1000);
        rig.server.script(move |_| match script.below(8) {
            0 => Some(Misbehaviour::RestartBefore),
            1 => Some(Misbehaviour::RestartAfter),
            2 => Some(Misbehaviour::Short(1 + u32::try_from(script.below(3000)).unwrap())),
            _ => None,
        });
        let mut expected = vec![0; 20_000];
        for round in 0..20_u8 {
            for _ in 0..random.below(5) {
                let start = usize::try_from(random.below(15_000)).unwrap();
                let end = start + usize::try_from(random.below(5000)).unwrap();
                expected[start..end].fill(round);
                rig.write(&open, start as u64, &expected[start..end]).unwrap();
            }
            rig.flush(&open).unwrap();
            let disk = rig.server.state().disk.clone();
            assert_eq!(disk, expected[..disk.len()], "seed {seed}, round {round}");
            assert!(expected[disk.len()..].iter().all(|byte| *byte == 0));
        }
    }
}

// SEMANTICS: write-6.
#[test]
fn a_full_disk_is_reported_once_to_each_open_file() {
    let rig = Rig::inline(&[], small());
    let (open, other) = (rig.open(), rig.open());
    rig.server.script(|seen| (seen.procedure == WRITE).then_some(Misbehaviour::Status(FULL)));
    rig.write(&open, 0, b"lost").unwrap();
    let full = Err(DataError::Status(Fault::Nospc));
    assert_eq!(rig.flush(&open), full);
    assert_eq!(rig.flush(&open), Ok(()));
    assert_eq!(rig.flush(&other), full);
    assert_eq!(rig.flush(&other), Ok(()));
    assert_eq!(rig.flush(&rig.open()), Ok(()), "old news for who opens now");
    rig.server.script(|_| None);
    rig.write(&open, 0, b"kept").unwrap();
    assert_eq!(rig.flush(&open), Ok(()));
    assert_eq!(rig.server.state().disk, b"kept", "later writes are not lost with the earlier one");
}

#[test]
fn a_write_after_a_failure_returns_the_error() {
    let rig = Rig::inline(&[], small());
    let open = rig.open();
    rig.server.script(|seen| (seen.procedure == WRITE).then_some(Misbehaviour::Status(FULL)));
    rig.write(&open, 0, &[1; 4096]).unwrap();
    assert_eq!(rig.write(&open, 4096, &[1; 4096]), Err(DataError::Status(Fault::Nospc)));
    assert_eq!(rig.flush(&open), Ok(()), "it was told");
}

#[test]
fn a_failed_commit_is_reported_and_the_bytes_it_covered_are_not_durable() {
    let rig = Rig::inline(&[], small());
    let open = rig.open();
    rig.server.script(|seen| (seen.procedure == COMMIT).then_some(Misbehaviour::Status(5)));
    rig.write(&open, 0, &[1; 8192]).unwrap();
    assert_eq!(rig.flush(&open), Err(DataError::Status(Fault::Io)));
    assert_eq!((rig.flush(&open), rig.plane.unwritten_bytes()), (Ok(()), 0));
}

#[test]
fn soft_timeouts_fail_the_write() {
    let rig = Rig::inline(&[], small());
    let open = rig.open();
    rig.server.script(|_| Some(Misbehaviour::Error(CallError::TimedOut { softerr: true })));
    rig.write(&open, 0, b"lost").unwrap();
    assert_eq!(rig.flush(&open), Err(DataError::Call(CallError::TimedOut { softerr: true })));
    assert_eq!(*rig.file.in_flight.lock(), 0, "the inode hears of the end of each WRITE");
}

#[test]
fn short_writes_are_continued_and_impossible_counts_are_errors() {
    let rig = Rig::inline(&[], small());
    let open = rig.open();
    rig.server.script(|seen| (seen.procedure == WRITE).then_some(Misbehaviour::Short(1500)));
    rig.write(&open, 0, &pattern(4096)).unwrap();
    rig.flush(&open).unwrap();
    assert_eq!(rig.server.state().disk, pattern(4096));
    let counts: Vec<u32> = rig.server.take_seen().iter().map(|seen| seen.2).collect();
    assert_eq!(counts, [4096, 2596, 1096, 0]);
    rig.server.script(|seen| (seen.procedure == WRITE).then_some(Misbehaviour::Short(0)));
    rig.write(&open, 0, b"x").unwrap();
    assert!(matches!(rig.flush(&open), Err(DataError::Call(CallError::Malformed(_)))));
}

// SEMANTICS: write-9.
#[test]
fn synchronous_and_direct_writes_are_on_disk_when_they_return() {
    let synchronous = OpenMode { direct: false, synchronous: true };
    let direct = OpenMode { direct: true, synchronous: false };
    for mode in [synchronous, direct] {
        let rig = Rig::inline(&[], small());
        let open = rig.open_as(1, mode);
        rig.write(&open, 0, &[1; 100]).unwrap();
        assert_eq!(rig.server.take_seen(), [(WRITE, 0, 100, 2)]);
        rig.write(&open, 100, &[2; 8192]).unwrap();
        let expected = [[1; 100].as_slice(), &[2; 8192]].concat();
        assert_eq!(rig.server.state().disk, expected);
        rig.server.script(|_| Some(Misbehaviour::Status(FULL)));
        assert_eq!(rig.write(&open, 0, b"x"), Err(DataError::Status(Fault::Nospc)));
        assert_eq!(rig.flush(&open), Ok(()));
    }
}

#[test]
fn appends_follow_each_other() {
    let rig = Rig::inline(b"first ", small());
    let (one, two) = (rig.open(), rig.open());
    rig.append(&one, b"second ").unwrap();
    rig.append(&two, b"third ").unwrap();
    rig.flush(&one).unwrap();
    rig.append(&one, b"fourth").unwrap();
    rig.flush(&one).unwrap();
    assert_eq!(rig.server.state().disk, b"first second third fourth");
}

#[test]
fn truncation_cuts_what_was_written_and_fetched() {
    let rig = Rig::inline(&pattern(100), small());
    let open = rig.open();
    assert_eq!(rig.read(&open, 0, 100).unwrap().len(), 100);
    rig.write(&open, 80, &[9; 100]).unwrap();
    rig.plane.flush_unsent(&rig.owner, &Interrupt::never()).unwrap();
    rig.server.state().memory.truncate(90);
    *rig.file.believed.lock() = Some(90);
    rig.file.data.truncated(90);
    let expected = [&pattern(100)[..80], &[9; 10]].concat();
    assert_eq!(rig.read(&open, 0, 1000).unwrap(), expected);
    rig.flush(&open).unwrap();
    assert_eq!(rig.server.state().disk, expected);
}

// SEMANTICS: write-3.
#[test]
fn bytes_that_a_restarted_server_lost_are_not_sent_while_the_file_is_truncated() {
    let rig = Rig::inline(&[], small());
    let open = rig.open();
    let never = Interrupt::never();
    rig.write(&open, 0, &[1; 8192]).unwrap();
    rig.write(&open, 8192, &[2; 100]).unwrap();
    rig.plane.flush_unsent(&rig.owner, &never).unwrap();
    rig.server.state().restart();
    let resize = rig.plane.begin_resize(&rig.owner, 5000, &never).unwrap();
    rig.server.take_seen();
    // The COMMIT finds that all bytes are lost.
    rig.plane.write_behind(&rig.owner);
    let beyond = |(procedure, offset, length, _): &(u32, u64, u32, u32)| {
        *procedure == WRITE && offset + u64::from(*length) > 5000
    };
    assert!(!rig.server.take_seen().iter().any(beyond));
    rig.server.state().memory.resize(5000, 0);
    *rig.file.believed.lock() = Some(5000);
    rig.file.data.truncated(5000);
    drop(resize);
    rig.flush(&open).unwrap();
    assert_eq!(rig.server.state().disk, [1; 5000]);
}

// SEMANTICS: write-3.
#[test]
fn a_flush_ends_whose_bytes_a_truncation_drops() {
    let rig = Rig::inline(&[], small());
    let open = rig.open();
    let stop = Interrupt::new();
    rig.write(&open, 0, &[1; 100]).unwrap();
    rig.plane.flush_unsent(&rig.owner, &stop).unwrap();
    rig.server.state().restart();
    let resize = rig.plane.begin_resize(&rig.owner, 0, &stop).unwrap();
    std::thread::scope(|threads| {
        let (end, has_ended) = mpsc::channel();
        threads.spawn(|| {
            end.send(rig.plane.flush(&rig.owner, &open, &stop)).unwrap();
            drop(end);
        });
        // The COMMIT finds that the bytes are lost, and they must not be sent now.
        let begun = Instant::now();
        while rig.file.data.core.lock().segments.dirty_count() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the bytes are not lost");
            std::thread::yield_now();
        }
        *rig.file.believed.lock() = Some(0);
        rig.file.data.truncated(0);
        drop(resize);
        let ended = has_ended.recv_timeout(Duration::from_secs(60));
        stop.raise();
        assert_eq!(ended, Ok(Ok(())));
    });
}

#[test]
fn each_writers_bytes_go_with_its_credential() {
    let rig = Rig::inline(&[], small());
    let (one, two) = (rig.open_as(1, OpenMode::default()), rig.open_as(2, OpenMode::default()));
    rig.write(&one, 0, b"one").unwrap();
    rig.write(&two, 3, b"two").unwrap();
    rig.flush(&one).unwrap();
    let state = rig.server.state();
    let writes = state.seen.iter().filter(|seen| seen.procedure == WRITE);
    let who: Vec<_> = writes.map(|seen| (seen.uid, seen.offset)).collect();
    assert_eq!(who, [(Some(1), 0), (Some(2), 3)]);
    assert_eq!(state.disk, b"onetwo");
}

// SEMANTICS: write-1.
#[test]
fn the_timer_writes_behind_and_commits() {
    let rig = Rig::inline(&[], small());
    let open = rig.open();
    rig.write(&open, 0, &pattern(5000)).unwrap();
    rig.inline.run_delayed();
    assert_eq!(rig.server.take_seen(), [(WRITE, 0, 4096, 0)], "it is too early");
    *rig.clock.0.lock() += small().write_behind;
    rig.inline.run_delayed();
    assert_eq!(rig.server.take_seen(), [(WRITE, 4096, 904, 0), (COMMIT, 0, 0, 0)]);
    rig.inline.run_delayed();
    assert!(rig.inline.0.lock().is_empty(), "nothing to do, no timer");
    rig.flush(&open).unwrap();
    assert_eq!(rig.server.take_seen(), []);
}

// SEMANTICS: write-8.
#[test]
fn unwritten_bytes_stay_within_their_bound() {
    let rig = Rig::inline(&[], DataOptions { unwritten_bytes: 64 << 10, ..small() });
    let open = rig.open();
    for number in 0..200 {
        rig.write(&open, number * 4096, &pattern(4096)).unwrap();
        assert!(rig.plane.unwritten_bytes() <= 64 << 10);
    }
    for number in 0..200 {
        // Scattered, so that no block is ever full.
        rig.write(&open, number * 8192, &pattern(1000)).unwrap();
        assert!(rig.plane.unwritten_bytes() <= 64 << 10);
    }
    let commits = rig.server.take_seen().iter().filter(|seen| seen.0 == COMMIT).count();
    assert!((10..=40).contains(&commits), "{commits} COMMITs");
    rig.flush(&open).unwrap();
    assert_eq!(rig.plane.unwritten_bytes(), 0);
}

#[test]
fn no_file_reaches_the_largest_offset() {
    let rig = Rig::inline(&[], small());
    for offset in [u64::MAX - 2, (1 << 63) - 1] {
        let refused = rig.write(&rig.open(), offset, b"beyond");
        assert_eq!(refused, Err(DataError::TooLarge), "{offset}");
    }
    assert_eq!(rig.write(&rig.open(), (1 << 63) - 2, b"beyond"), Ok(1));
}

#[test]
fn a_discarded_file_sends_nothing_more() {
    let rig = Rig::inline(&[], small());
    let open = rig.open();
    rig.write(&open, 0, b"temporary").unwrap();
    rig.file.data.discard();
    rig.flush(&open).unwrap();
    assert_eq!(rig.server.take_seen(), []);
    assert_eq!(rig.plane.unwritten_bytes(), 0);
}

// SEMANTICS: cto-7.
#[test]
fn own_bytes_are_read_back_without_a_request() {
    let rig = Rig::inline(&[], small());
    let open = rig.open();
    rig.write(&open, 0, &pattern(20_000)).unwrap();
    rig.flush(&open).unwrap();
    let _ = rig.server.take_seen();
    assert_eq!(rig.read(&rig.open(), 0, 20_000).unwrap(), pattern(20_000));
    let reads = rig.server.take_seen().iter().filter(|seen| seen.0 == READ).count();
    assert_eq!(reads, 0);
}

#[test]
fn the_wait_at_unmount_ends_although_all_threads_wait_for_the_server() {
    let threads = Arc::new(BackgroundThreads::new(1));
    let rig = Rig::new(b"", small(), Arc::<BackgroundThreads>::clone(&threads), Arc::default());
    let (end, ended) = mpsc::channel::<()>();
    threads.spawn(Box::new(move || ended.recv().unwrap_or_default()));
    let open = rig.open();
    rig.write(&open, 0, b"unsent").unwrap();
    let (plane, (done, is_done)) = (Arc::clone(&rig.plane), mpsc::channel());
    std::thread::spawn(move || done.send(plane.sync_all(Duration::from_millis(10))).unwrap());
    let lost = is_done.recv_timeout(Duration::from_secs(60)).expect("the wait ends");
    assert_eq!(lost.iter().map(|lost| lost.unsent).collect::<Vec<_>>(), [6]);
    drop(end);
}
