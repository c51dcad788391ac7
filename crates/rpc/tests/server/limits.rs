//! Each limit of a server: nothing happens at the limit; beyond it only the client that exceeds it
//! is affected.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use curt_rpc::{
    clock::ScriptedTime,
    record,
    server::{Limits, ResourceLimit},
};

use crate::{fake::eventually, fixture::*};

/// How often `limit` was reached.
fn met(running: &Running, limit: ResourceLimit) -> u64 {
    running.handle.limits_met().find_map(|(other, times)| (other == limit).then_some(times)).unwrap()
}

/// A connection of another client: all addresses of 127.0.0.0/8 are local.
fn connect_from(running: &Running, last: u8) -> TcpStream {
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0))).unwrap();
    rustix::net::connect(&socket, &running.address).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// The number of a server's connections with bytes that it has not received.
fn unread(running: &Running) -> usize {
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let local = format!(":{:04X}", running.address.port());
    let is_unread = |socket: &&str| {
        let fields: Vec<_> = socket.split_whitespace().collect();
        // Its number, both addresses, the state (1 is connected), and the queues.
        fields[1].ends_with(&local) && fields[3] == "01" && !fields[4].ends_with(":00000000")
    };
    sockets.lines().filter(is_unread).count()
}

#[test]
fn a_record_above_the_bound_is_refused_before_its_bytes_come_and_one_below_it_is_answered() {
    let running = serve(Limits::default());
    let header = call_record(1, ECHO, &[]).len() - record::MARK_SIZE;
    let mut stream = running.connect();
    let longest = vec![7; RECORD_MAX - header];
    stream.write_all(&call_record(1, ECHO, &longest)).unwrap();
    expect_echo(&mut stream, 1, &longest);
    let beyond = call_record(2, ECHO, &vec![7; RECORD_MAX - header + 1]);
    // The record mark is sufficient.
    stream.write_all(&beyond[..record::MARK_SIZE]).unwrap();
    expect_end(&mut stream);
}

#[test]
fn half_a_record_has_a_time_limit_however_its_bytes_dribble() {
    let time = ScriptedTime::new();
    let limits = Limits { half_record_for: Duration::from_secs(1), ..Limits::default() };
    let running = serve_by(time.clock(), limits);
    let call = call_record(1, ECHO, &[3; 4000]);
    let mut silent = running.connect();
    silent.write_all(&call[..100]).unwrap();
    let (mut dribbling, endless) = (running.connect(), call_record(1, ECHO, &[3; 1 << 20]));
    let mut quick = running.connect();
    quick.write_all(&call[..2000]).unwrap();
    expect_unharmed(&running);
    quick.write_all(&call[2000..]).unwrap();
    expect_echo(&mut quick, 1, &[3; 4000]);
    let mut bytes = endless.iter();
    eventually("both are closed", || {
        time.advance(Duration::from_millis(5));
        let _ = dribbling.write_all(&[*bytes.next().unwrap()]);
        met(&running, ResourceLimit::HalfRecordFor) == 2
    });
    expect_end(&mut silent);
    expect_end(&mut dribbling);
    // A client that sends each of many records in time is not affected.
    quick.write_all(&call).unwrap();
    expect_echo(&mut quick, 1, &[3; 4000]);
}

#[test]
fn a_dribble_holds_no_thread() {
    let running = serve(Limits { threads: 4, ..Limits::default() });
    let call = call_record(1, ECHO, &[3; 4000]);
    let dribbled = AtomicUsize::new(0);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            let mut stream = running.connect();
            let (call, dribbled, over) = (&call, &dribbled, &over);
            scope.spawn(move || {
                for byte in call {
                    if over.load(Ordering::SeqCst) || stream.write_all(&[*byte]).is_err() {
                        return;
                    }
                    dribbled.fetch_add(1, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(30));
                }
            });
        }
        // They would continue for longer than a client waits for a reply.
        while dribbled.load(Ordering::SeqCst) < 4 * 60 {
            expect_unharmed(&running);
            assert_eq!(met(&running, ResourceLimit::HalfRecordFor), 0, "they go on all the time");
        }
        over.store(true, Ordering::SeqCst);
    });
}

#[test]
fn one_clients_half_records_take_no_room_from_another() {
    let running =
        serve(Limits { half_records_per_client: 256 << 10, half_records: 1 << 20, ..Limits::default() });
    let half = &call_record(1, ECHO, &[3; 200_000])[..100_000];
    let mut greedy: Vec<_> = (0..8).map(|_| connect_from(&running, 2)).collect();
    for stream in &mut greedy {
        stream.write_all(half).unwrap();
    }
    eventually("those beyond the client's bound are closed", || {
        met(&running, ResourceLimit::HalfRecordsPerClient) == 6 && running.handle.connections() == 2
    });
    let mut modest = connect_from(&running, 3);
    modest.write_all(half).unwrap();
    expect_unharmed(&running);
    modest.write_all(&call_record(1, ECHO, &[3; 200_000])[100_000..]).unwrap();
    expect_echo(&mut modest, 1, &[3; 200_000]);
    assert_eq!(met(&running, ResourceLimit::HalfRecords), 0);
}

#[test]
fn half_records_of_all_clients_are_bounded() {
    let running = serve(Limits { half_records: 250_000, ..Limits::default() });
    let half = &call_record(1, ECHO, &[3; 200_000])[..100_000];
    let mut streams: Vec<_> = (2..7).map(|last| connect_from(&running, last)).collect();
    for stream in &mut streams {
        stream.write_all(half).unwrap();
    }
    eventually("those beyond the bound are closed", || {
        met(&running, ResourceLimit::HalfRecords) == 3 && running.handle.connections() == 2
    });
    expect_unharmed(&running);
}

#[test]
fn one_clients_calls_that_wait_for_a_thread_are_bounded() {
    let running = serve(Limits {
        threads: 1,
        threads_per_client: 1,
        // Two of the smallest buffers.
        half_records_per_client: 2 << 14,
        ..Limits::default()
    });
    let mut slow = connect_from(&running, 2);
    slow.write_all(&call_record(1, SLOW, &[1; 4])).unwrap();
    eventually("it has the only thread", || running.answers.slow_begun.load(Ordering::SeqCst) == 1);
    let mut greedy: Vec<_> = (0..6).map(|_| connect_from(&running, 3)).collect();
    let call = call_record(2, ECHO, &[3; 8000]);
    greedy.iter_mut().for_each(|stream| stream.write_all(&call).unwrap());
    // The first is not counted: it is the next to get the thread. Two others use more than half of
    // the limit.
    eventually("three of them stay in their sockets", || {
        unread(&running) == 3 && running.handle.connections() == 7
    });
    running.answers.release(1);
    expect_echo(&mut slow, 1, &[1; 4]);
    greedy.iter_mut().for_each(|stream| expect_echo(stream, 2, &[3; 8000]));
    // What has waited is not counted any more.
    let mut again = connect_from(&running, 3);
    let call = call_record(3, ECHO, &[3; 40_000]);
    again.write_all(&call[..30_000]).unwrap();
    expect_unharmed(&running);
    again.write_all(&call[30_000..]).unwrap();
    expect_echo(&mut again, 3, &[3; 40_000]);
    assert_eq!(met(&running, ResourceLimit::HalfRecordsPerClient), 0);
}

#[test]
fn a_call_that_waits_keeps_reading_its_connection_if_the_bytes_after_it_exceed_the_limit() {
    let running = serve(Limits { half_records_per_client: 8 << 10, ..Limits::default() });
    let mut stream = running.connect();
    let calls = [call_record(1, SLOW, &[1; 4]), call_record(2, ECHO, &[2; 60_000])];
    stream.write_all(&calls.concat()).unwrap();
    eventually("the call is begun", || running.answers.slow_begun.load(Ordering::SeqCst) == 1);
    running.answers.release(1);
    expect_echo(&mut stream, 1, &[1; 4]);
    expect_echo(&mut stream, 2, &[2; 60_000]);
}

#[test]
fn idle_connections_end_and_busy_ones_do_not() {
    let time = ScriptedTime::new();
    let limits = Limits { idle_for: Duration::from_secs(1), ..Limits::default() };
    let running = serve_by(time.clock(), limits);
    let mut idle = running.connect();
    let (mut busy, mut waiting) = (running.connect(), running.connect());
    waiting.write_all(&call_record(1, SLOW, &[1; 4])).unwrap();
    eventually("the call is begun", || running.answers.slow_begun.load(Ordering::SeqCst) == 1);
    eventually("the idle one has ended", || {
        time.advance(Duration::from_millis(100));
        busy.write_all(&call_record(2, ECHO, &[2; 4])).unwrap();
        expect_echo(&mut busy, 2, &[2; 4]);
        met(&running, ResourceLimit::IdleFor) > 0
    });
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0, "ended in order");
    assert_eq!(met(&running, ResourceLimit::IdleFor), 1);
    running.answers.release(1);
    expect_echo(&mut waiting, 1, &[1; 4]);
}

#[test]
fn replies_that_nobody_reads_are_dropped_after_a_time() {
    let time = ScriptedTime::new();
    // Long enough for the kernel not to end the connection by its own clock.
    let limits = Limits { unsent_for: Duration::from_secs(120), ..Limits::default() };
    let running = serve_by(time.clock(), limits);
    let calls: Vec<u8> = (0..80).flat_map(|xid| call_record(xid, LARGE, &[])).collect();
    let (mut never, mut slow) = (running.connect(), running.connect());
    never.write_all(&calls).unwrap();
    slow.write_all(&calls).unwrap();
    // It receives a little at a time, for longer than the timeout, and gets all.
    for xid in 0..80 {
        time.advance(Duration::from_secs(2));
        assert_eq!(read_reply(&mut slow).0, xid);
    }
    eventually("who takes nothing is closed", || {
        // The server looks when something happens, or after seconds.
        expect_unharmed(&running);
        met(&running, ResourceLimit::UnsentFor) == 1
    });
    eventually("it is gone", || running.handle.connections() <= 1);
    drop(never);
}

#[test]
fn one_clients_unsent_replies_use_no_room_of_another() {
    let running = serve(Limits { unsent_per_client: 64 << 10, ..Limits::default() });
    let calls: Vec<u8> = (0..60).flat_map(|xid| call_record(xid, LARGE, &[])).collect();
    let mut greedy: Vec<_> = (0..8).map(|_| connect_from(&running, 2)).collect();
    for stream in &mut greedy {
        stream.write_all(&calls).unwrap();
    }
    eventually("it pays", || met(&running, ResourceLimit::UnsentPerClient) >= 7);
    assert_eq!(met(&running, ResourceLimit::Unsent), 0);
    let mut other = connect_from(&running, 3);
    other.write_all(&call_record(1, LARGE, &[])).unwrap();
    assert_eq!(read_reply(&mut other).2.len(), 1 << 20);
}

#[test]
fn a_client_with_too_many_connections_loses_its_own() {
    let running = serve(Limits { connections_per_client: 4, connections: 100, ..Limits::default() });
    let mut other = connect_from(&running, 3);
    let mut greedy: Vec<_> = (0..4).map(|_| connect_from(&running, 2)).collect();
    eventually("all are accepted", || running.handle.connections() == 5);
    assert_eq!(met(&running, ResourceLimit::ConnectionsPerClient), 0);
    let mut fifth = connect_from(&running, 2);
    fifth.write_all(&call_record(1, ECHO, &[])).unwrap();
    expect_echo(&mut fifth, 1, &[]);
    expect_end(&mut greedy[0]);
    assert_eq!(met(&running, ResourceLimit::ConnectionsPerClient), 1);
    other.write_all(&call_record(2, ECHO, &[])).unwrap();
    expect_echo(&mut other, 2, &[]);
}

/// Two clients, each with more slow calls than there are threads: the third client still gets
/// threads.
#[test]
fn clients_with_slow_calls_leave_threads_for_others() {
    let running = serve(Limits { threads: 8, threads_per_client: 6, ..Limits::default() });
    let mut greedy = Vec::new();
    for (client, begun) in [(2, 4), (4, 6)] {
        let mut streams: Vec<_> = (0..10).map(|_| connect_from(&running, client)).collect();
        for (xid, stream) in (0..).zip(&mut streams) {
            stream.write_all(&call_record(xid, SLOW, &[])).unwrap();
            stream.write_all(&call_record(100 + xid, SLOW, &[])).unwrap();
        }
        eventually("half of what is free is taken", || {
            running.answers.slow_begun.load(Ordering::SeqCst) == begun
        });
        greedy.extend(streams);
    }
    let mut other = connect_from(&running, 3);
    for xid in 0..10 {
        other.write_all(&call_record(xid, ECHO, &[1; 4])).unwrap();
        expect_echo(&mut other, xid, &[1; 4]);
    }
    assert_eq!(running.answers.slow_begun.load(Ordering::SeqCst), 6);
    assert!(met(&running, ResourceLimit::ThreadsPerClient) > 0);
    running.answers.release(40);
    for stream in &mut greedy {
        let (one, other) = (read_reply(stream).0, read_reply(stream).0);
        assert_eq!(one.abs_diff(other), 100);
    }
}

/// A socket that is closed with unread bytes is reset, and the reset overtakes replies.
#[test]
fn the_last_replies_survive_what_a_client_still_sends_while_the_server_stops() {
    // The time passes in which a closed connection is read on.
    let mut running = serve_by(ScriptedTime::new().clock(), Limits::default());
    let mut stream = running.connect();
    stream.write_all(&call_record(1, SLOW, &[])).unwrap();
    eventually("the call is begun", || running.answers.slow_begun.load(Ordering::SeqCst) == 1);
    running.handle.shutdown();
    eventually("nobody can connect any more", || TcpStream::connect(running.address).is_err());
    let calls: Vec<u8> = (2..200).flat_map(|xid| call_record(xid, ECHO, &[5; 1000])).collect();
    stream.write_all(&calls).unwrap();
    running.answers.release(1);
    assert_eq!(read_reply(&mut stream).0, 1);
    // Whatever else was received, the connection ends without a reset.
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    running.stop();
}
