//! What a server does with clients that are many, slow, silent or hostile.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(unreachable_pub, dead_code, reason = "shared by the tests of this folder")]
mod fake;

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use curt_rpc::{
    auth::{AuthStatus, Credential},
    client::{CallError, Interrupt, NoEvents, Request, TcpTransport, Transport},
    message::{AcceptStatus, Call, Denial, Versions, decode_reply_header, encode_call_header},
    record,
    server::{CallFailure, Context, Limits, Server, ServerHandle, Service},
};
use curt_xdr::Decoder;
use fake::{Bytes, PROGRAM, eventually, listen, options};
use parking_lot::{Condvar, Mutex};

const ECHO: u32 = 1;
const SLOW: u32 = 2;
const LARGE: u32 = 3;
const FAULT: u32 = 4;
const SLOW_AND_LARGE: u32 = 5;
const FAILURES: u32 = 10;

/// A service whose slow calls wait for the test.
#[derive(Default)]
struct Answers {
    slow_begun: AtomicUsize,
    /// Slow calls that may end.
    released: Mutex<usize>,
    released_more: Condvar,
}

impl Answers {
    fn release(&self, count: usize) {
        *self.released.lock() += count;
        self.released_more.notify_all();
    }

    fn wait(&self) {
        self.slow_begun.fetch_add(1, Ordering::SeqCst);
        let mut released = self.released.lock();
        while *released == 0 {
            self.released_more.wait(&mut released);
        }
        *released -= 1;
    }
}

fn failures() -> [CallFailure; 6] {
    [
        CallFailure::ProgramUnavailable,
        CallFailure::ProgramMismatch(Versions { low: 3, high: 4 }),
        CallFailure::ProcedureUnavailable,
        CallFailure::GarbageArguments,
        CallFailure::SystemError,
        CallFailure::Denied(AuthStatus::TooWeak),
    ]
}

impl Service for Answers {
    fn call(
        &self,
        call: &Call<'_>,
        context: &mut Context<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        assert!(context.peer().ip().is_loopback() && context.local().ip().is_loopback());
        match call.procedure {
            ECHO => reply.extend_from_slice(call.arguments),
            SLOW => {
                context.may_block();
                self.wait();
                reply.extend_from_slice(call.arguments);
            }
            LARGE => reply.resize(reply.len() + (1 << 20), 7),
            SLOW_AND_LARGE => {
                context.may_block();
                self.wait();
                reply.resize(reply.len() + (1 << 20), 7);
            }
            FAULT => panic!("a fault, as the test wants it"),
            other => {
                reply.extend_from_slice(b"what is dropped again");
                return Err(failures()[(other - FAILURES) as usize]);
            }
        }
        Ok(())
    }
}

struct Running {
    address: SocketAddr,
    answers: Arc<Answers>,
    handle: ServerHandle,
    thread: Option<JoinHandle<()>>,
}

fn serve(limits: Limits) -> Running {
    let (listener, address) = listen();
    let answers = Arc::new(Answers::default());
    let limits = Limits {
        record_sizes: vec![(PROGRAM, 2 << 20)],
        ..limits
    };
    let server = Server::new(vec![listener], answers.clone(), limits).unwrap();
    let handle = server.handle();
    let thread = Some(thread::spawn(move || server.run()));
    Running {
        address,
        answers,
        handle,
        thread,
    }
}

impl Running {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    fn transport(&self) -> TcpTransport {
        TcpTransport::new(options(self.address), Arc::new(NoEvents))
    }

    fn stop(&mut self) {
        self.handle.shutdown();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.answers.release(1000);
        if !thread::panicking() {
            self.stop();
        }
    }
}

fn call(transport: &TcpTransport, procedure: u32, arguments: &[u8]) -> Result<Vec<u8>, CallError> {
    let request = Request {
        program: PROGRAM,
        version: 1,
        procedure,
        credential: &Credential::None,
        arguments: &Bytes(arguments),
        bulk: &[],
        results_max: 2 << 20,
    };
    transport
        .call(&request, &Interrupt::never())
        .map(|reply| reply.results().to_vec())
}

fn call_record(xid: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let body = record::open(&mut out);
    encode_call_header(&mut out, xid, (PROGRAM, 1, procedure), &Credential::None);
    out.extend_from_slice(arguments);
    record::close(&mut out, body, 0);
    out
}

/// The next reply: its number, outcome and results.
fn read_reply(stream: &mut TcpStream) -> (u32, Result<AcceptStatus, Denial>, Vec<u8>) {
    let body = fake::read_record(stream).expect("a reply");
    let mut decoder = Decoder::new(&body);
    let header = decode_reply_header(&mut decoder).unwrap();
    (header.xid, header.outcome, decoder.remaining().to_vec())
}

fn expect_echo(stream: &mut TcpStream, xid: u32, arguments: &[u8]) {
    assert_eq!(
        read_reply(stream),
        (xid, Ok(AcceptStatus::Success), arguments.to_vec())
    );
}

fn expect_end(stream: &mut TcpStream) {
    match stream.read(&mut [0; 16]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("the connection should have ended: {other:?}"),
    }
}

/// Whether the server still does its work for others.
fn expect_unharmed(running: &Running) {
    let mut stream = running.connect();
    stream.write_all(&call_record(77, ECHO, &[9; 8])).unwrap();
    expect_echo(&mut stream, 77, &[9; 8]);
}

#[test]
fn many_clients_get_their_own_replies() {
    let running = serve(Limits::default());
    thread::scope(|scope| {
        for client in 0u32..8 {
            let running = &running;
            scope.spawn(move || {
                let transport = running.transport();
                thread::scope(|inner| {
                    for thread in 0u32..3 {
                        let transport = &transport;
                        inner.spawn(move || {
                            for number in 0..100u32 {
                                let mut arguments = [client, thread, number].map(u32::to_be_bytes).concat();
                                arguments.resize(12 + 4 * (number as usize * 97 % 5000), 1);
                                assert_eq!(call(transport, ECHO, &arguments).unwrap(), arguments);
                            }
                        });
                    }
                });
            });
        }
    });
}

#[test]
fn fragments_and_pipelines_are_answered_in_one_go() {
    let running = serve(Limits::default());
    let mut stream = running.connect();
    let whole = call_record(1, ECHO, &[5; 4000]);
    let mut cut = Vec::new();
    for (index, piece) in whole[4..].chunks(700).enumerate() {
        let mut mark = record::mark(piece.len());
        if (index + 1) * 700 < whole.len() - 4 {
            mark[0] = 0;
        }
        cut.extend_from_slice(&mark);
        cut.extend_from_slice(piece);
    }
    for xid in 2..200 {
        cut.extend(call_record(xid, ECHO, &xid.to_be_bytes()));
    }
    stream.write_all(&cut).unwrap();
    expect_echo(&mut stream, 1, &[5; 4000]);
    for xid in 2..200u32 {
        expect_echo(&mut stream, xid, &xid.to_be_bytes());
    }
}

#[test]
fn a_slow_call_delays_nothing_behind_it() {
    let running = serve(Limits::default());
    let mut stream = running.connect();
    // In one segment with what follows, and alone.
    let mut both = call_record(1, SLOW, &[1; 4]);
    both.extend(call_record(2, ECHO, &[2; 4]));
    stream.write_all(&both).unwrap();
    expect_echo(&mut stream, 2, &[2; 4]);
    for xid in 3..20u32 {
        stream
            .write_all(&call_record(xid, if xid % 3 == 0 { SLOW } else { ECHO }, &[3; 4]))
            .unwrap();
        if xid % 3 != 0 {
            expect_echo(&mut stream, xid, &[3; 4]);
        }
    }
    eventually("all slow calls are begun", || {
        running.answers.slow_begun.load(Ordering::SeqCst) == 7
    });
    running.answers.release(7);
    let mut late: Vec<u32> = (0..7).map(|_| read_reply(&mut stream).0).collect();
    late.sort_unstable();
    assert_eq!(late, [1, 3, 6, 9, 12, 15, 18]);
    stream.write_all(&call_record(50, ECHO, &[])).unwrap();
    expect_echo(&mut stream, 50, &[]);
}

#[test]
fn slow_calls_of_one_connection_are_bounded() {
    let running = serve(Limits {
        in_flight: 4,
        ..Limits::default()
    });
    let mut stream = running.connect();
    for xid in 0..10 {
        stream.write_all(&call_record(xid, SLOW, &[])).unwrap();
    }
    eventually("as many as allowed are begun", || {
        running.answers.slow_begun.load(Ordering::SeqCst) == 4
    });
    expect_unharmed(&running);
    assert_eq!(running.answers.slow_begun.load(Ordering::SeqCst), 4);
    running.answers.release(10);
    let mut xids: Vec<u32> = (0..10).map(|_| read_reply(&mut stream).0).collect();
    xids.sort_unstable();
    assert_eq!(xids, (0..10).collect::<Vec<_>>());
}

#[test]
fn every_failure_becomes_its_status() {
    let running = serve(Limits::default());
    let transport = running.transport();
    let errors = [
        CallError::ProgramUnavailable,
        CallError::ProgramMismatch(Versions { low: 3, high: 4 }),
        CallError::ProcedureUnavailable,
        CallError::GarbageArguments,
        CallError::SystemError,
        CallError::Denied(AuthStatus::TooWeak),
    ];
    for (procedure, error) in (FAILURES..).zip(errors) {
        assert_eq!(call(&transport, procedure, &[]), Err(error));
    }
    assert_eq!(call(&transport, ECHO, &[1; 4]), Ok(vec![1; 4]));
}

#[test]
fn a_fault_of_the_service_is_a_system_error_of_that_call() {
    let running = serve(Limits::default());
    let transport = running.transport();
    assert_eq!(call(&transport, FAULT, &[]), Err(CallError::SystemError));
    assert_eq!(call(&transport, ECHO, &[1; 4]), Ok(vec![1; 4]));
}

#[test]
fn malformed_calls_are_rejected_and_the_connection_goes_on() {
    let running = serve(Limits::default());
    let mut stream = running.connect();
    let words = |words: &[u32]| {
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        [record::mark(body.len()).to_vec(), body].concat()
    };
    stream
        .write_all(&words(&[1, 0, 3, PROGRAM, 1, 1, 0, 0, 0, 0]))
        .unwrap();
    let mismatch = Denial::RpcMismatch(Versions { low: 2, high: 2 });
    assert_eq!(read_reply(&mut stream), (1, Err(mismatch), vec![]));
    let cases = [
        // A credential of 404 bytes, one that ends early, AUTH_SYS with 17 groups, a verifier that ends early.
        (
            vec![2, 0, 2, PROGRAM, 1, 1, 0, 404, 0, 0],
            AuthStatus::BadCredential,
        ),
        (
            vec![3, 0, 2, PROGRAM, 1, 1, 1, 40, 0, 0],
            AuthStatus::BadCredential,
        ),
        (
            vec![4, 0, 2, PROGRAM, 1, 1, 1, 20, 0, 0, 0, 0, 17, 0, 0],
            AuthStatus::BadCredential,
        ),
        (vec![5, 0, 2, PROGRAM, 1, 1, 0, 0, 0], AuthStatus::BadVerifier),
    ];
    for (call, status) in cases {
        stream.write_all(&words(&call)).unwrap();
        assert_eq!(
            read_reply(&mut stream),
            (call[0], Err(Denial::Authentication(status)), vec![])
        );
    }
    stream.write_all(&call_record(9, ECHO, &[1; 4])).unwrap();
    expect_echo(&mut stream, 9, &[1; 4]);
}

#[test]
fn what_is_no_call_ends_the_connection_and_no_other() {
    let running = serve(Limits::default());
    let mut other = running.connect();
    let cases: [&[u8]; 7] = [
        b"GET / HTTP/1.1\r\n\r\n",
        // An empty record; a reply; a header cut off.
        &[0x80, 0, 0, 0],
        &[0x80, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0],
        &[0x80, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0],
        // A record of 2 GiB, and one byte above what its program allows.
        &[0xff, 0xff, 0xff, 0xff, 0, 0],
        &[
            0x80, 0x20, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0x20, 0, 0, 1,
        ],
        // 5,000 bytes for a program that is not served.
        &[
            0x80, 0, 0x13, 0x88, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1,
        ],
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
    let running = serve(Limits {
        threads: 4,
        ..Limits::default()
    });
    let mut idle: Vec<_> = (0..300).map(|_| running.connect()).collect();
    let half = call_record(1, ECHO, &[3; 1000]);
    for stream in &mut idle[..150] {
        stream.write_all(&half[..500]).unwrap();
    }
    eventually("all are accepted", || running.handle.connections() == 300);
    let started = Instant::now();
    for _ in 0..20 {
        expect_unharmed(&running);
    }
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "took {:?}",
        started.elapsed()
    );
    assert!(running.handle.threads() <= 4);
    for stream in &mut idle[..150] {
        stream.write_all(&half[500..]).unwrap();
        expect_echo(stream, 1, &[3; 1000]);
    }
}

#[test]
fn more_busy_connections_than_threads_are_all_served() {
    let running = serve(Limits {
        threads: 2,
        ..Limits::default()
    });
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
    let running = serve(Limits {
        threads: 8,
        ..Limits::default()
    });
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
    // As soon as it reads, it gets what it asked for.
    let mut stream = greedy.swap_remove(0);
    stream.set_nonblocking(false).unwrap();
    for xid in 0..60 {
        let (number, outcome, results) = read_reply(&mut stream);
        assert_eq!(
            (number, outcome, results.len()),
            (xid, Ok(AcceptStatus::Success), 1 << 20)
        );
    }
}

#[test]
fn clients_that_never_read_what_was_answered_late_hold_no_thread() {
    let running = serve(Limits {
        threads: 4,
        ..Limits::default()
    });
    running.answers.release(1000);
    let mut greedy: Vec<_> = (0..16).map(|_| running.connect()).collect();
    for stream in &mut greedy {
        let calls: Vec<u8> = (0..40)
            .flat_map(|xid| call_record(xid, SLOW_AND_LARGE, &[]))
            .collect();
        stream.write_all(&calls).unwrap();
    }
    let started = Instant::now();
    for _ in 0..20 {
        expect_unharmed(&running);
    }
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "took {:?}",
        started.elapsed()
    );
    let mut stream = greedy.swap_remove(0);
    let mut xids: Vec<u32> = (0..40).map(|_| read_reply(&mut stream).0).collect();
    xids.sort_unstable();
    assert_eq!(xids, (0..40).collect::<Vec<_>>());
}

#[test]
fn untaken_replies_of_all_are_bounded() {
    let running = serve(Limits {
        unsent: 3 << 20,
        ..Limits::default()
    });
    let mut greedy: Vec<_> = (0..24).map(|_| running.connect()).collect();
    for stream in &mut greedy {
        let calls: Vec<u8> = (0..60).flat_map(|xid| call_record(xid, LARGE, &[])).collect();
        stream.write_all(&calls).unwrap();
    }
    eventually("those above the bound are closed", || {
        running.handle.connections() < 24
    });
    expect_unharmed(&running);
}

#[test]
fn the_longest_idle_connection_makes_room_for_a_new_one() {
    let running = serve(Limits {
        connections: 5,
        ..Limits::default()
    });
    let mut streams: Vec<_> = (0..5).map(|_| running.connect()).collect();
    for (xid, stream) in (0..).zip(&mut streams) {
        stream.write_all(&call_record(xid, ECHO, &[])).unwrap();
        expect_echo(stream, xid, &[]);
    }
    // Only a parked connection is idle: that takes a second.
    eventually("room is made", || {
        let mut stream = running.connect();
        stream.write_all(&call_record(9, ECHO, &[])).is_ok() && fake::read_record(&mut stream).is_some()
    });
    assert!(running.handle.connections() <= 5);
}

#[test]
fn shutdown_finishes_what_was_begun() {
    let mut running = serve(Limits::default());
    let mut stream = running.connect();
    let mut idle = running.connect();
    stream.write_all(&call_record(1, SLOW, &[1; 4])).unwrap();
    eventually("the call is begun", || {
        running.answers.slow_begun.load(Ordering::SeqCst) == 1
    });
    running.handle.shutdown();
    eventually("nobody can connect any more", || {
        TcpStream::connect(running.address).is_err()
    });
    expect_end(&mut idle);
    running.answers.release(1);
    expect_echo(&mut stream, 1, &[1; 4]);
    expect_end(&mut stream);
    running.stop();
}

#[test]
fn shutdown_waits_for_no_client_that_does_not_read() {
    let mut running = serve(Limits {
        farewell: Duration::from_millis(200),
        ..Limits::default()
    });
    let mut greedy = running.connect();
    let calls: Vec<u8> = (0..60).flat_map(|xid| call_record(xid, LARGE, &[])).collect();
    greedy.write_all(&calls).unwrap();
    expect_unharmed(&running);
    let started = Instant::now();
    running.stop();
    assert!(started.elapsed() < Duration::from_secs(5));
}
