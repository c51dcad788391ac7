//! A server with clients that are many, slow, silent or hostile.

use std::{
    io::Write,
    sync::atomic::Ordering,
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::fake::{PROGRAM, eventually};
use curt_rpc::{
    auth::AuthStatus,
    message::{AcceptStatus, RejectedReply, VersionRange},
    record,
    server::Limits,
};

use crate::fixture::*;

#[test]
fn slow_calls_of_one_connection_are_bounded() {
    let running = serve(Limits { in_flight: 4, ..Limits::default() });
    let mut stream = running.connect();
    for xid in 0..10 {
        stream.write_all(&call_record(xid, SLOW, &[])).unwrap();
    }
    eventually("as many as allowed are begun", || running.answers.slow_begun.load(Ordering::SeqCst) == 4);
    expect_unharmed(&running);
    assert_eq!(running.answers.slow_begun.load(Ordering::SeqCst), 4);
    running.answers.release(10);
    let mut xids: Vec<u32> = (0..10).map(|_| read_reply(&mut stream).0).collect();
    xids.sort_unstable();
    assert_eq!(xids, (0..10).collect::<Vec<_>>());
}

#[test]
fn malformed_calls_are_rejected_and_the_connection_goes_on() {
    let running = serve(Limits::default());
    let mut stream = running.connect();
    let words = |words: &[u32]| {
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        [record::record_mark(body.len()).to_vec(), body].concat()
    };
    stream.write_all(&words(&[1, 0, 3, PROGRAM, 1, 1, 0, 0, 0, 0])).unwrap();
    let mismatch = RejectedReply::RpcMismatch(VersionRange { low: 2, high: 2 });
    assert_eq!(read_reply(&mut stream), (1, Err(mismatch), vec![]));
    let cases = [
        // A credential of 404 bytes, a truncated one, AUTH_SYS with 17 groups, a truncated
        // verifier.
        (vec![2, 0, 2, PROGRAM, 1, 1, 0, 404, 0, 0], AuthStatus::BadCredential),
        (vec![3, 0, 2, PROGRAM, 1, 1, 1, 40, 0, 0], AuthStatus::BadCredential),
        (vec![4, 0, 2, PROGRAM, 1, 1, 1, 20, 0, 0, 0, 0, 17, 0, 0], AuthStatus::BadCredential),
        (vec![5, 0, 2, PROGRAM, 1, 1, 0, 0, 0], AuthStatus::BadVerifier),
    ];
    for (call, status) in cases {
        stream.write_all(&words(&call)).unwrap();
        assert_eq!(read_reply(&mut stream), (call[0], Err(RejectedReply::Authentication(status)), vec![]));
    }
    stream.write_all(&call_record(9, ECHO, &[1; 4])).unwrap();
    expect_echo(&mut stream, 9, &[1; 4]);
}

#[test]
fn what_is_no_call_ends_the_connection_and_no_other() {
    let running = serve(Limits::default());
    let mut other = running.connect();
    let cases: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\n\r\n",
        // An empty record; a reply; a truncated header.
        &[0x80, 0, 0, 0],
        &[0x80, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0],
        &[0x80, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0],
        // A record of 2 GiB, and one byte above the limit.
        &[0xff, 0xff, 0xff, 0xff, 0, 0],
        &[0x80, 0x20, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0x20, 0, 0, 1],
    ];
    for case in cases {
        let mut stream = running.connect();
        stream.write_all(&call_record(1, ECHO, &[1; 4])).unwrap();
        expect_echo(&mut stream, 1, &[1; 4]);
        stream.write_all(case).unwrap();
        expect_end(&mut stream);
    }
    let mut stream = running.connect();
    let _ = stream.write_all(&[0; 4 * 5000]);
    expect_end(&mut stream);
    other.write_all(&call_record(2, ECHO, &[2; 4])).unwrap();
    expect_echo(&mut other, 2, &[2; 4]);
    eventually("nothing of them is left", || running.handle.connections() == 1);
}

#[test]
fn idle_connections_and_half_records_hold_no_thread() {
    let running = serve(Limits { threads: 4, ..Limits::default() });
    let mut idle: Vec<_> = (0..300).map(|_| running.connect()).collect();
    let half = call_record(1, ECHO, &[3; 1000]);
    for stream in &mut idle[..150] {
        stream.write_all(&half[..500]).unwrap();
    }
    eventually("all are accepted", || running.handle.connections() == 300);
    for _ in 0..20 {
        expect_unharmed(&running);
    }
    assert!(running.handle.threads() <= 4);
    for stream in &mut idle[..150] {
        stream.write_all(&half[500..]).unwrap();
        expect_echo(stream, 1, &[3; 1000]);
    }
}

#[test]
fn more_busy_connections_than_threads_are_all_served() {
    let running = serve(Limits { threads: 2, ..Limits::default() });
    thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                let transport = running.transport();
                for _ in 0..20 {
                    assert_eq!(call(&transport, ECHO, &[1; 8]), Ok(vec![1; 8]));
                }
            });
        }
    });
}

#[test]
fn a_client_that_never_reads_harms_only_itself() {
    let running = serve(Limits { threads: 8, ..Limits::default() });
    let mut greedy: Vec<_> = (0..16).map(|_| running.connect()).collect();
    for stream in &mut greedy {
        stream.set_nonblocking(true).unwrap();
        for xid in 0..60 {
            if stream.write_all(&call_record(xid, LARGE, &[])).is_err() {
                break;
            }
        }
    }
    for _ in 0..20 {
        expect_unharmed(&running);
    }
    // It gets its replies as soon as it reads.
    let mut stream = greedy.swap_remove(0);
    stream.set_nonblocking(false).unwrap();
    for xid in 0..60 {
        let (number, outcome, results) = read_reply(&mut stream);
        assert_eq!((number, outcome, results.len()), (xid, Ok(AcceptStatus::Success), 1 << 20));
    }
}

#[test]
fn clients_that_never_read_what_was_answered_late_hold_no_thread() {
    let running = serve(Limits { threads: 4, ..Limits::default() });
    running.answers.release(1000);
    let mut greedy: Vec<_> = (0..16).map(|_| running.connect()).collect();
    for stream in &mut greedy {
        let calls: Vec<u8> = (0..40).flat_map(|xid| call_record(xid, SLOW_AND_LARGE, &[])).collect();
        stream.write_all(&calls).unwrap();
    }
    for _ in 0..20 {
        expect_unharmed(&running);
    }
    let mut stream = greedy.swap_remove(0);
    let mut xids: Vec<u32> = (0..40).map(|_| read_reply(&mut stream).0).collect();
    xids.sort_unstable();
    assert_eq!(xids, (0..40).collect::<Vec<_>>());
}

#[test]
fn unsent_replies_of_all_clients_are_bounded() {
    let running = serve(Limits {
        // Far below the unsent part of one reply when the socket is full, wherever that is.
        unsent: 64 << 10,
        ..Limits::default()
    });
    let mut greedy: Vec<_> = (0..24).map(|_| running.connect()).collect();
    for stream in &mut greedy {
        let calls: Vec<u8> = (0..60).flat_map(|xid| call_record(xid, LARGE, &[])).collect();
        stream.write_all(&calls).unwrap();
    }
    eventually("those above the bound are closed", || running.handle.connections() < 24);
    expect_unharmed(&running);
}

#[test]
fn the_longest_idle_connection_makes_room_for_a_new_one() {
    let running = serve(Limits { connections: 5, ..Limits::default() });
    let mut streams: Vec<_> = (0..5).map(|_| running.connect()).collect();
    for (xid, stream) in (0..).zip(&mut streams) {
        stream.write_all(&call_record(xid, ECHO, &[])).unwrap();
        expect_echo(stream, xid, &[]);
    }
    // A connection counts as idle only after a second.
    eventually("room is made", || {
        let mut stream = running.connect();
        stream.write_all(&call_record(9, ECHO, &[])).is_ok()
            && crate::fake::read_record(&mut stream).is_some()
    });
    assert!(running.handle.connections() <= 5);
}

#[test]
fn who_waits_for_an_answer_is_not_idle() {
    let running = serve(Limits { connections: 2, ..Limits::default() });
    let (mut waiting, mut idle) = (running.connect(), running.connect());
    waiting.write_all(&call_record(1, SLOW, &[1; 4])).unwrap();
    eventually("the call is begun", || running.answers.slow_begun.load(Ordering::SeqCst) == 1);
    // It became idle after the waiting one.
    idle.write_all(&call_record(2, ECHO, &[])).unwrap();
    expect_echo(&mut idle, 2, &[]);
    eventually("room is made", || {
        let mut stream = running.connect();
        stream.write_all(&call_record(3, ECHO, &[])).is_ok()
            && crate::fake::read_record(&mut stream).is_some()
    });
    running.answers.release(1);
    expect_echo(&mut waiting, 1, &[1; 4]);
}

#[test]
fn shutdown_waits_for_no_client_that_does_not_read() {
    let mut running = serve(Limits { shutdown_timeout: Duration::from_millis(200), ..Limits::default() });
    let mut greedy = running.connect();
    let calls: Vec<u8> = (0..60).flat_map(|xid| call_record(xid, LARGE, &[])).collect();
    greedy.write_all(&calls).unwrap();
    expect_unharmed(&running);
    running.handle.shutdown();
    eventually("the server has ended", || running.thread.as_ref().is_some_and(JoinHandle::is_finished));
    running.stop();
}
