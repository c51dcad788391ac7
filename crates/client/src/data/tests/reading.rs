//! Reads with and without read-ahead.

use curt_observe::ClientCounter;
use curt_rpc::client::{CallError, Interrupt};
use curt_types::Fault;

use super::{
    Rig, pattern,
    server::{Misbehaviour, READ},
    small,
};
use crate::data::{errors::DataError, options::DataOptions, plane::OpenMode};

const KIB: usize = 1024;

#[test]
fn a_small_file_takes_one_read_and_none_the_second_time() {
    let contents = pattern(1000);
    let rig = Rig::inline(&contents, small());
    let open = rig.open();
    assert_eq!(rig.read(&open, 0, 4096).unwrap(), contents);
    assert_eq!(rig.server.take_seen(), [(READ, 0, 1000, 0)]);
    assert_eq!(rig.read(&open, 10, 5).unwrap(), contents[10..15]);
    assert_eq!(rig.read(&open, 1000, 100).unwrap(), b"");
    assert_eq!(rig.read(&rig.open(), 0, 1000).unwrap(), contents);
    assert_eq!(rig.server.take_seen(), []);
    assert_eq!(rig.counters.snapshot().events.value(ClientCounter::ReadHitBytes), 1005);
}

#[test]
fn an_empty_file_with_valid_attributes_takes_no_read() {
    let rig = Rig::inline(&[], small());
    assert_eq!(rig.read(&rig.open(), 0, 4096).unwrap(), b"");
    assert_eq!(rig.server.take_seen(), []);
}

#[test]
fn without_a_valid_size_the_servers_end_of_file_is_found_once() {
    let contents = pattern(1000);
    let rig = Rig::inline(&contents, small());
    *rig.file.believed.lock() = None;
    let open = rig.open();
    assert_eq!(rig.read(&open, 0, 4096).unwrap(), contents);
    assert_eq!(rig.read(&open, 1000, 4096).unwrap(), b"");
    assert_eq!(rig.server.take_seen(), [(READ, 0, 16 << 10, 0)]);
}

#[test]
fn a_sequence_is_read_ahead_and_every_byte_is_read_once() {
    let contents = pattern(300 * KIB + 17);
    let rig = Rig::inline(&contents, small());
    let open = rig.open();
    let mut all = Vec::new();
    while all.len() < contents.len() {
        all.extend(rig.read(&open, all.len() as u64, 3000).unwrap());
    }
    assert_eq!(all, contents);
    let mut seen = rig.server.take_seen();
    seen.sort_unstable();
    let mut position = 0;
    for (_, offset, count, _) in &seen {
        assert_eq!(*offset, position, "no byte is asked for twice: {seen:?}");
        position += u64::from(*count);
    }
    assert!(seen.len() <= 21, "{} READs for 300 KiB of 16 KiB each", seen.len());
    assert!(rig.counters.snapshot().events.value(ClientCounter::ReadAhead) > 10);
}

#[test]
fn several_reads_are_under_way_before_a_sequential_reader() {
    let contents = pattern(512 * KIB);
    let rig = Rig::threaded(&contents, small());
    let open = rig.open();
    let mut all = rig.read(&open, 0, 16 << 10).unwrap();
    rig.server.let_meet(3);
    while all.len() < contents.len() {
        all.extend(rig.read(&open, all.len() as u64, 16 << 10).unwrap());
    }
    assert_eq!(all, contents);
}

#[test]
fn a_random_reader_gets_whole_units_and_no_more() {
    let contents = pattern(300 * KIB);
    let rig = Rig::inline(&contents, small());
    let open = rig.open();
    for at in [200_000, 100_000, 250_000] {
        let start = usize::try_from(at).unwrap();
        assert_eq!(rig.read(&open, at, 100).unwrap(), contents[start..start + 100]);
    }
    let seen = rig.server.take_seen();
    let ranges: Vec<_> = seen.iter().map(|seen| (seen.1, u64::from(seen.2))).collect();
    assert_eq!(ranges, [(196_608, 4096), (98_304, 4096), (249_856, 4096)]);
}

#[test]
fn short_reads_are_continued_and_an_empty_one_before_the_end_is_an_error() {
    let contents = pattern(10_000);
    let rig = Rig::inline(&contents, small());
    rig.server.script(|_| Some(Misbehaviour::Short(3000)));
    assert_eq!(rig.read(&rig.open(), 0, 10_000).unwrap(), contents);
    rig.file.data.invalidate();
    rig.server.script(|_| Some(Misbehaviour::Short(0)));
    let error = rig.read(&rig.open(), 0, 10_000).unwrap_err();
    assert!(matches!(error, DataError::Call(CallError::Malformed(_))), "{error:?}");
}

#[test]
fn a_change_by_others_is_seen_after_invalidation() {
    let rig = Rig::inline(b"old", small());
    let open = rig.open();
    assert_eq!(rig.read(&open, 0, 10).unwrap(), b"old");
    rig.server.state().replace(b"newer");
    assert_eq!(rig.read(&open, 0, 10).unwrap(), b"old");
    rig.file.data.invalidate();
    *rig.file.believed.lock() = Some(5);
    assert_eq!(rig.read(&open, 0, 10).unwrap(), b"newer");
    assert_eq!(rig.server.take_seen().len(), 2);
}

#[test]
fn a_file_that_shrinks_while_it_is_read_ends_where_it_ends() {
    let rig = Rig::inline(&pattern(10_000), small());
    rig.server.state().replace(b"short");
    assert_eq!(rig.read(&rig.open(), 0, 10_000).unwrap(), b"short");
    assert_eq!(rig.read(&rig.open(), 5000, 10_000).unwrap(), b"");
}

#[test]
fn each_direct_read_sends_a_read() {
    let contents = pattern(40 * KIB);
    let rig = Rig::inline(&contents, small());
    let open = rig.open_as(1, OpenMode { direct: true, synchronous: false });
    for _ in 0..2 {
        assert_eq!(rig.read(&open, 0, 50 * KIB).unwrap(), contents);
        assert_eq!(
            rig.server.take_seen(),
            [(READ, 0, 16 << 10, 0), (READ, 16 << 10, 16 << 10, 0), (READ, 32 << 10, 16 << 10, 0)]
        );
    }
    assert_eq!(rig.plane.cached_bytes(), 0);
}

#[test]
fn refusals_reach_the_reader_and_a_busy_server_is_waited_for() {
    let rig = Rig::inline(b"data", small());
    rig.server.script(|_| Some(Misbehaviour::Status(13)));
    assert_eq!(rig.read(&rig.open(), 0, 4), Err(DataError::Status(Fault::Acces)));
    let mut busy = 3;
    rig.server.script(move |_| {
        busy -= 1;
        (busy >= 0).then_some(Misbehaviour::Status(10_008))
    });
    let before = rig.clock.0.lock().to_owned();
    assert_eq!(rig.read(&rig.open(), 0, 4).unwrap(), b"data");
    assert_eq!((*rig.clock.0.lock() - before).as_millis(), 100 + 200 + 400);
}

#[test]
fn nonsense_from_the_server_is_an_error_and_no_panic() {
    let rig = Rig::inline(&pattern(1000), small());
    let sane = {
        let mut results = vec![0; 8];
        results.extend([0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 4, 1, 2, 3, 4]);
        results
    };
    for length in 0..sane.len() {
        let cut = sane[..length].to_vec();
        rig.server.script(move |_| Some(Misbehaviour::Results(cut.clone())));
        assert!(rig.read(&rig.open(), 0, 1000).is_err(), "{length} bytes");
    }
    let mut too_much = vec![0; 8];
    too_much.extend([0, 0, 4, 0, 0, 0, 0, 1, 0, 0, 4, 0]);
    too_much.extend([9; 1024]);
    for results in [too_much, [&sane[..], &[0; 4]].concat()] {
        rig.server.script(move |_| Some(Misbehaviour::Results(results.clone())));
        assert!(rig.read(&rig.open(), 0, 1000).is_err());
    }
    rig.server.script(move |_| Some(Misbehaviour::Results(sane.clone())));
    assert_eq!(rig.read(&rig.open(), 0, 1000).unwrap(), [1, 2, 3, 4]);
}

#[test]
fn clean_bytes_stay_within_their_bound_and_used_ones_are_evicted_last() {
    let contents = pattern(256 * KIB);
    let rig = Rig::inline(&contents, DataOptions { cache_bytes: 64 << 10, read_ahead: 0, ..small() });
    let open = rig.open();
    for offset in (0..256 * KIB as u64).step_by(4096) {
        let start = usize::try_from(offset).unwrap();
        assert_eq!(rig.read(&open, offset, 4096).unwrap(), contents[start..start + 4096]);
        let _ = rig.read(&open, 0, 4096).unwrap();
        assert!(rig.plane.cached_bytes() <= 64 << 10);
    }
    assert_eq!(rig.server.take_seen().iter().filter(|seen| seen.1 == 0).count(), 1, "the page in use stays");
    drop(open);
    let Rig { file, owner, plane, .. } = rig;
    drop((file, owner));
    assert_eq!(plane.cached_bytes(), 0, "a forgotten file holds nothing");
}

#[test]
fn readers_of_one_range_share_one_read() {
    let contents = pattern(4096);
    let rig = Rig::threaded(&contents, small());
    let (entered, inside) = std::sync::mpsc::channel();
    let (go, held) = std::sync::mpsc::channel::<()>();
    rig.server.script(move |_| {
        entered.send(()).unwrap();
        held.recv().unwrap();
        None
    });
    std::thread::scope(|scope| {
        let readers: Vec<_> =
            (0..4).map(|_| scope.spawn(|| rig.read(&rig.open(), 0, 4096).unwrap())).collect();
        inside.recv().unwrap();
        go.send(()).unwrap();
        for reader in readers {
            // A reader that arrives after the READ has ended finds the bytes cached.
            assert_eq!(reader.join().unwrap(), contents);
        }
    });
    assert_eq!(rig.server.take_seen().len(), 1);
}

#[test]
fn an_interrupted_leader_of_a_shared_read_does_not_interrupt_the_others() {
    let contents = pattern(4096);
    let rig = Rig::threaded(&contents, small());
    let (entered, inside) = std::sync::mpsc::channel();
    let mut calls = 0;
    rig.server.script(move |_| {
        entered.send(()).unwrap();
        calls += 1;
        (calls == 1).then_some(Misbehaviour::Silence)
    });
    let interrupt = Interrupt::new();
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| rig.plane.read(&rig.owner, &rig.open(), 0, 4096, &interrupt).map(drop));
        inside.recv().unwrap();
        let other = scope.spawn(|| rig.read(&rig.open(), 0, 4096).unwrap());
        interrupt.raise();
        assert_eq!(leader.join().unwrap(), Err(DataError::Call(CallError::Interrupted)));
        assert_eq!(other.join().unwrap(), contents);
    });
}

#[test]
fn reads_beyond_the_maximum_file_size_return_the_end_of_file() {
    let rig = Rig::inline(b"data", small());
    assert_eq!(rig.read(&rig.open(), u64::MAX, 100).unwrap(), b"");
    assert_eq!(rig.read(&rig.open(), u64::MAX - 50, usize::MAX).unwrap(), b"");
}

#[test]
fn an_end_of_file_found_before_an_append_is_not_used_after_it() {
    let rig = Rig::threaded(&pattern(4096), small());
    let (entered, inside) = std::sync::mpsc::channel();
    let (go, held) = std::sync::mpsc::channel::<()>();
    let mut first = true;
    // The READ has seen the end of file, and its reply is delayed.
    rig.server.script_after(move |seen| {
        if seen.procedure == READ && std::mem::take(&mut first) {
            entered.send(()).unwrap();
            held.recv().unwrap();
        }
    });
    let open = rig.open();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| rig.read(&open, 0, 4096).unwrap());
        inside.recv().unwrap();
        rig.append(&open, b"more").unwrap();
        rig.flush(&open).unwrap();
        go.send(()).unwrap();
        assert_eq!(reader.join().unwrap(), pattern(4096));
    });
    rig.file.data.evict_all();
    *rig.file.believed.lock() = None;
    assert_eq!(rig.read(&open, 4096, 100).unwrap(), b"more");
}

#[test]
fn a_gap_within_a_unit_is_filled_whatever_the_server_gives() {
    let contents = pattern(8192);
    for most in [1, 100, 5000] {
        let rig = Rig::inline(&contents, small());
        let open = rig.open();
        rig.write(&open, 0, &contents[..3000]).unwrap();
        rig.server.script(move |seen| (seen.procedure == READ).then_some(Misbehaviour::Short(most)));
        assert_eq!(rig.read(&open, 2990, 50).unwrap(), contents[2990..3040]);
    }
}
