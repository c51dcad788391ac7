//! Replies that are consumed in the receive buffer: by the thread that reads, once, completely, or
//! not at all.

use std::{
    io::Write,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle, ThreadId},
    time::{Duration, Instant},
};

use curt_rpc::{
    client::{
        CallError, CallReply, CallStatistics, Interrupt, RecoveryMode, ReplySink, TcpTransport, Transport,
    },
    record,
};

use super::fake::*;
use super::transport;

/// A sink's treatment of results.
enum Habit {
    Takes,
    Declines,
    Panics,
}

/// Records the results that it consumed.
struct Recorder {
    habit: Habit,
    calls: AtomicUsize,
    taken: Mutex<Vec<u8>>,
}

impl Recorder {
    fn new(habit: Habit) -> Arc<Self> {
        Arc::new(Self { habit, calls: AtomicUsize::new(0), taken: Mutex::default() })
    }

    fn taken(&self) -> Vec<u8> {
        self.taken.lock().unwrap().clone()
    }
}

impl ReplySink for Recorder {
    fn consume(&self, results: &[u8]) -> bool {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match self.habit {
            Habit::Takes => {
                self.taken.lock().unwrap().extend_from_slice(results);
                true
            }
            Habit::Declines => false,
            Habit::Panics => panic!("as the test wants it"),
        }
    }
}

/// A call with the sink `sink`, until `interrupt` is raised.
fn call_until(
    interrupt: &Interrupt,
    transport: &TcpTransport,
    arguments: &[u8],
    sink: &Arc<dyn ReplySink>,
) -> (Result<CallReply, CallError>, CallStatistics) {
    let mut statistics = CallStatistics::default();
    let arguments = Bytes(arguments);
    let reply = transport.call_with_sink(&request(&arguments), interrupt, &mut statistics, sink);
    (reply, statistics)
}

fn call_with(
    transport: &TcpTransport,
    arguments: &[u8],
    sink: &Arc<Recorder>,
) -> (Result<CallReply, CallError>, CallStatistics) {
    let sink: Arc<dyn ReplySink> = Arc::<Recorder>::clone(sink);
    call_until(&Interrupt::never(), transport, arguments, &sink)
}

fn echoing() -> TcpTransport {
    let (listener, address) = listen();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || echo_all(stream.unwrap()));
        }
    });
    transport(options(address))
}

fn arguments(seed: u32, length: usize) -> Vec<u8> {
    let mut bytes = seed.to_be_bytes().to_vec();
    bytes.resize(length, seed.to_le_bytes()[0]);
    bytes
}

#[test]
fn a_sink_gets_the_results_and_the_caller_does_not() {
    let transport = echoing();
    let sink = Recorder::new(Habit::Takes);
    let sent = arguments(7, 300_000);
    let (reply, statistics) = call_with(&transport, &sent, &sink);
    let reply = reply.unwrap();
    assert!(reply.was_consumed() && reply.results().is_empty());
    assert_eq!(sink.taken(), sent);
    assert!(statistics.bytes_received > 300_000, "{statistics:?}");
}

#[test]
fn results_that_a_sink_declines_or_fails_on_go_to_the_caller() {
    let transport = echoing();
    for habit in [Habit::Declines, Habit::Panics] {
        let sink = Recorder::new(habit);
        let sent = arguments(9, 5000);
        let reply = call_with(&transport, &sent, &sink).0.unwrap();
        assert!(!reply.was_consumed());
        assert_eq!(reply.results(), sent);
        assert_eq!(of(&sink.calls), 1);
        // The connection remains usable.
        assert_eq!(call(&transport, &[1; 4]).unwrap().results(), [1; 4]);
    }
}

#[test]
fn calls_with_and_without_a_sink_share_a_connection() {
    let transport = &echoing();
    thread::scope(|scope| {
        for thread in 0..4_u32 {
            scope.spawn(move || {
                for number in 0..100 {
                    let sent = arguments(thread * 1000 + number, 4 * (1 + number as usize * 500));
                    let sink = Recorder::new(Habit::Takes);
                    assert!(call_with(transport, &sent, &sink).0.unwrap().was_consumed());
                    assert_eq!((sink.taken(), of(&sink.calls)), (sent, 1));
                }
            });
            scope.spawn(move || {
                for number in 0..200 {
                    let sent = arguments(thread * 1000 + number, 400);
                    assert_eq!(call(transport, &sent).unwrap().results(), sent);
                }
            });
        }
    });
}

#[test]
fn a_truncated_reply_does_not_reach_the_sink_but_the_next_one_does() {
    let (listener, address) = listen();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let record = read_record(&mut stream).unwrap();
        let reply = echo(&record);
        stream.write_all(&reply[..reply.len() - 8]).unwrap();
        drop(stream);
        echo_all(listener.accept().unwrap().0);
    });
    let transport = transport(options(address));
    let sink = Recorder::new(Habit::Takes);
    let sent = arguments(3, 200_000);
    let (reply, statistics) = call_with(&transport, &sent, &sink);
    assert!(reply.unwrap().was_consumed());
    assert_eq!((sink.taken(), of(&sink.calls)), (sent, 1));
    assert_eq!(statistics.transmissions, 2);
    drop(transport);
    server.join().unwrap();
}

#[test]
fn refusals_and_replies_that_are_too_long_never_reach_a_sink() {
    let (listener, address) = listen();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let first = xid(&read_record(&mut stream).unwrap());
        // Accepted, but with an undefined status.
        let mut out = Vec::new();
        let body = record::begin_record(&mut out);
        out.extend([first, 1, 0, 0, 0, 9].map(u32::to_be_bytes).concat());
        record::finish_record(&mut out, body, 0);
        stream.write_all(&out).unwrap();
        let second = xid(&read_record(&mut stream).unwrap());
        let mut huge = record::record_mark(1 << 24).to_vec();
        huge.extend(second.to_be_bytes());
        huge.resize(60_000, 3);
        stream.write_all(&huge).unwrap();
        let _ = read_record(&mut stream);
    });
    let transport = transport(options(address));
    for _ in 0..2 {
        let sink = Recorder::new(Habit::Takes);
        let (reply, _) = call_with(&transport, &[5; 8], &sink);
        assert!(matches!(reply, Err(CallError::Malformed(_))), "{reply:?}");
        assert_eq!(of(&sink.calls), 0);
    }
}

/// A server that replies to its first call when the second has arrived, and to that one when the
/// test lets it.
struct OneAfterTheOther {
    address: SocketAddr,
    saw_first: Receiver<()>,
    answer_second: Sender<()>,
    thread: JoinHandle<()>,
}

fn one_after_the_other() -> OneAfterTheOther {
    let (listener, address) = listen();
    let (tell, saw_first) = channel();
    let (answer_second, held) = channel();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let first = read_record(&mut stream).unwrap();
        tell.send(()).unwrap();
        let second = read_record(&mut stream).unwrap();
        stream.write_all(&echo(&first)).unwrap();
        // The sender is dropped if the test fails.
        let _ = held.recv();
        stream.write_all(&echo(&second)).unwrap();
        let _ = read_record(&mut stream);
    });
    OneAfterTheOther { address, saw_first, answer_second, thread }
}

impl OneAfterTheOther {
    /// Called when its client has ended.
    fn end(self) {
        self.thread.join().unwrap();
    }
}

#[test]
fn who_stays_to_read_for_others_leaves_when_interrupted_and_they_go_on() {
    let server = one_after_the_other();
    let transport = &transport(options(server.address));
    let interrupt = &Interrupt::new();
    thread::scope(|scope| {
        let first = Recorder::new(Habit::Takes);
        let leader = scope.spawn({
            let sink: Arc<dyn ReplySink> = Arc::<Recorder>::clone(&first);
            move || {
                let reply = call_until(interrupt, transport, &[1; 8], &sink).0;
                reply.unwrap().was_consumed()
            }
        });
        server.saw_first.recv().unwrap();
        let second = scope.spawn(move || {
            let sink = Recorder::new(Habit::Takes);
            let reply = call_with(transport, &[2; 8], &sink).0;
            (reply.unwrap().was_consumed(), sink.taken())
        });
        eventually("the first reply is taken", || of(&first.calls) == 1);
        interrupt.raise();
        assert!(leader.join().unwrap(), "its own reply was there");
        server.answer_second.send(()).unwrap();
        assert_eq!(second.join().unwrap(), (true, vec![2; 8]));
    });
    transport.close();
    server.end();
}

#[test]
fn who_reads_for_others_leaves_with_its_own_reply_after_a_while() {
    let server = one_after_the_other();
    let transport = &transport(options(server.address));
    thread::scope(|scope| {
        let first = Recorder::new(Habit::Takes);
        let leader = scope.spawn(move || call_with(transport, &[1; 8], &first).0);
        server.saw_first.recv().unwrap();
        let sink = Recorder::new(Habit::Takes);
        let second = scope.spawn(move || call_with(transport, &[2; 8], &sink).0);
        eventually("the first caller has left", || leader.is_finished());
        assert!(leader.join().unwrap().unwrap().was_consumed());
        server.answer_second.send(()).unwrap();
        assert!(second.join().unwrap().unwrap().was_consumed());
    });
    transport.close();
    server.end();
}

/// Reports the thread on which it is called, and waits until the test continues.
struct Holding {
    begun: Mutex<Sender<ThreadId>>,
    release: Mutex<Receiver<()>>,
}

impl ReplySink for Holding {
    fn consume(&self, _: &[u8]) -> bool {
        self.begun.lock().unwrap().send(thread::current().id()).unwrap();
        self.release.lock().unwrap().recv().is_ok()
    }
}

/// The call timeout in [`held_beyond_the_deadline`].
const PATIENCE: Duration = Duration::from_millis(200);

/// Has the thread of another caller hold a reply beyond its caller's timeout; returns the result of
/// that caller, and whether it waited. `None` if the calls did not coincide in this way.
fn held_beyond_the_deadline() -> Option<(Result<CallReply, CallError>, bool)> {
    let (listener, address) = listen();
    let (saw_first, seen_first) = channel();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _unanswered = read_record(&mut stream).unwrap();
        saw_first.send(()).unwrap();
        while let Some(record) = read_record(&mut stream) {
            let _ = stream.write_all(&echo(&record));
        }
    });
    let mut soft = options(address);
    (soft.recovery, soft.timeout, soft.retrans) = (RecoveryMode::Soft, PATIENCE, 0);
    let transport = &transport(soft);
    let (begun, begins) = channel();
    let (release, released) = channel();
    let (begun, released) = (Mutex::new(begun), Mutex::new(released));
    let holding: Arc<dyn ReplySink> = Arc::new(Holding { begun, release: released });
    let outcome = thread::scope(|scope| {
        scope.spawn(|| call(transport, &[1; 8]));
        seen_first.recv().unwrap();
        let caller = scope.spawn(move || call_until(&Interrupt::never(), transport, &[2; 8], &holding).0);
        let reader = loop {
            match begins.recv_timeout(Duration::from_millis(1)) {
                Ok(thread) => break Some(thread),
                Err(_) if caller.is_finished() => break None,
                Err(_) => {}
            }
        };
        let by_another = reader.is_some_and(|reader| reader != caller.thread().id());
        let end = Instant::now() + 2 * PATIENCE;
        while by_another && !caller.is_finished() && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        let waited = !caller.is_finished();
        // No thread holds it if the call timed out before its reply arrived.
        let _ = release.send(());
        let outcome = caller.join().unwrap();
        by_another.then_some((outcome, waited))
    });
    transport.close();
    server.join().unwrap();
    outcome
}

#[test]
fn a_reply_that_a_sink_is_reading_is_waited_for_beyond_the_end_of_all_retries() {
    let (reply, waited) = std::iter::repeat_with(held_beyond_the_deadline).flatten().next().unwrap();
    assert!(waited, "its caller has left: {reply:?}");
    assert!(reply.unwrap().was_consumed());
}
