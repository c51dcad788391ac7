//! Networks that drop all segments, and slow servers.

use std::{
    io::Write,
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use curt_rpc::{
    client::{CallError, RecoveryMode, Retransmission, TcpOptions, TcpTransport, Transport},
    message::CallMessage,
};

use super::{
    fake::*,
    sys::{drop_all, pass_all},
};

/// The NULL procedure.
const NULL: u32 = 0;

fn accept(listener: &TcpListener) -> TcpStream {
    listener.accept().unwrap().0
}

/// The next call's procedure, arguments and xid.
fn next_call(stream: &mut TcpStream) -> (u32, Vec<u8>, u32) {
    let record = read_record(stream).unwrap();
    let call = CallMessage::decode(&record).unwrap();
    (call.procedure, call.arguments.to_vec(), call.xid)
}

fn answer(stream: &mut TcpStream, (_, arguments, xid): &(u32, Vec<u8>, u32)) {
    stream.write_all(&reply_record(*xid, arguments)).unwrap();
}

/// A transport over a working connection.
fn connected(listener: &TcpListener, options: TcpOptions) -> (TcpTransport, TcpStream, Arc<Counts>) {
    let counts = Counts::new();
    let transport = TcpTransport::new(options, counts.clone());
    let stream = thread::scope(|scope| {
        let first = scope.spawn(|| call(&transport, &[0; 4]).unwrap());
        let mut stream = accept(listener);
        let called = next_call(&mut stream);
        answer(&mut stream, &called);
        first.join().unwrap();
        stream
    });
    (transport, stream, counts)
}

/// NULL is the first call on a new connection; the others follow after its reply.
fn answer_null(listener: &TcpListener) -> TcpStream {
    let mut stream = accept(listener);
    let null = next_call(&mut stream);
    assert_eq!((null.0, &*null.1), (NULL, &[][..]));
    answer(&mut stream, &null);
    stream
}

// SEMANTICS: rpc-6.
#[test]
fn calls_go_on_elsewhere_when_a_connection_is_silent() {
    let (listener, address) = listen();
    let (transport, mut old, counts) = connected(&listener, options(address));
    drop_all(&old);
    thread::scope(|scope| {
        let callers: Vec<_> = (1..4u8)
            .map(|number| {
                let transport = &transport;
                scope.spawn(move || call(transport, &[number; 4]).unwrap().results().to_vec())
            })
            .collect();
        let mut new = answer_null(&listener);
        let mut again: Vec<_> = (0..3).map(|_| next_call(&mut new)).collect();
        // Bytes that the old connection still delivers are dropped.
        pass_all(&old);
        let _ = old.write_all(&reply_record(again[0].2, &[9; 4]));
        again.iter().for_each(|call| answer(&mut new, call));
        again.sort();
        let arguments: Vec<_> = again.into_iter().map(|call| call.1).collect();
        let expected: Vec<_> = (1..4).map(|number| vec![number; 4]).collect();
        assert_eq!(arguments, expected, "each once");
        let results: Vec<_> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
        assert_eq!(results, expected);
    });
    assert_eq!(of(&counts.retransmitted), 3);
    assert_eq!(of(&counts.reconnected), 1);
}

// SEMANTICS: rpc-6.
#[test]
fn a_reply_that_is_lost_with_the_network_is_not_waited_for() {
    let (listener, address) = listen();
    let (transport, mut old, counts) = connected(&listener, options(address));
    thread::scope(|scope| {
        let caller = scope.spawn(|| call(&transport, &[1; 4]).unwrap());
        // The server's kernel has acknowledged the call, and all later segments are dropped.
        let first = next_call(&mut old);
        drop_all(&old);
        let mut new = answer_null(&listener);
        let again = next_call(&mut new);
        assert_eq!(again, first, "the same call with the same number");
        answer(&mut new, &again);
        assert_eq!(caller.join().unwrap().results(), [1; 4]);
    });
    assert_eq!(of(&counts.retransmitted), 1);
}

/// Serves all connections until the process ends.
fn serve(listener: TcpListener) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || echo_all(stream.unwrap()));
        }
    });
}

/// Whether a connection waits at `listener` to be accepted.
fn has_another(listener: &TcpListener) -> bool {
    listener.set_nonblocking(true).unwrap();
    let accepted = listener.accept();
    listener.set_nonblocking(false).unwrap();
    accepted.is_ok()
}

// SEMANTICS: rpc-7.
#[test]
fn a_server_that_is_slow_or_stopped_keeps_its_connection() {
    let (listener, address) = listen();
    let (transport, mut stream, counts) = connected(&listener, options(address));
    // More than both buffers hold: the server does not read, so its window closes.
    let bulk = vec![5; 8 << 20];
    thread::scope(|scope| {
        let callers: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| call_with(&transport, &[2; 4], &bulk, &Default::default()).unwrap()))
            .collect();
        eventually("it is silent for long", || {
            transport.silent_for().is_some_and(|silence| silence > Duration::from_secs(6))
        });
        assert!(!has_another(&listener), "nothing is wrong with the connection");
        let calls: Vec<_> = callers.iter().map(|_| next_call(&mut stream)).collect();
        let silent_since = Instant::now();
        eventually("it is silent although all was read", || silent_since.elapsed() > Duration::from_secs(4));
        assert!(!has_another(&listener), "nothing is wrong with the connection");
        for slow in &calls {
            stream.write_all(&reply_record(slow.2, &[])).unwrap();
        }
        for caller in callers {
            caller.join().unwrap();
        }
    });
    assert_eq!(of(&counts.reconnected), 0);
    assert_eq!(of(&counts.retransmitted), 0);
}

/// The arguments of a call that the server is slow with.
const SLOW: [u8; 4] = [1; 4];

/// The arguments of a call after which it is not slow any more.
const END: [u8; 4] = [3; 4];

/// Echoes all calls but those with [`SLOW`], until one with [`END`] arrives; then it answers the
/// slow ones too. Counts them in `received`.
fn be_slow_with_some(mut stream: TcpStream, received: &AtomicUsize) {
    let mut slow = Vec::new();
    while let Some(record) = read_record(&mut stream) {
        let call = CallMessage::decode(&record).unwrap();
        if call.arguments == SLOW {
            slow.push(echo(&record));
            received.store(slow.len(), Ordering::SeqCst);
            continue;
        }
        if call.arguments == END {
            slow.iter().for_each(|reply| stream.write_all(reply).unwrap());
        }
        stream.write_all(&echo(&record)).unwrap();
    }
}

// SEMANTICS: rpc-7.
#[test]
fn a_server_that_is_slow_with_one_call_receives_it_once_if_it_must_drop_none() {
    let connect = |retransmission| {
        let (listener, address) = listen();
        let options = TcpOptions { timeout: Duration::from_millis(50), retransmission, ..options(address) };
        let (transport, stream, counts) = connected(&listener, options);
        let received = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&received);
        (transport, counts, received, thread::spawn(move || be_slow_with_some(stream, &counted)))
    };
    let (patient, patient_counts, patient_received, patient_server) = connect(Retransmission::ConnectionLoss);
    let (other, _, received, server) = connect(Retransmission::Timeout);
    thread::scope(|scope| {
        let transports = [&patient, &other];
        let slow = transports.map(|transport| scope.spawn(|| call(transport, &SLOW).unwrap()));
        eventually("one receives it twice, and could have dropped it", || {
            transports.iter().for_each(|transport| drop(call(*transport, &[2; 4]).unwrap()));
            of(&patient_received) >= 1 && of(&received) >= 2
        });
        transports.iter().for_each(|transport| drop(call(*transport, &END).unwrap()));
        slow.into_iter().for_each(|slow| assert_eq!(slow.join().unwrap().results(), SLOW));
    });
    drop((patient, other));
    [server, patient_server].into_iter().for_each(|server| server.join().unwrap());
    assert_eq!(of(&patient_received), 1);
    assert_eq!((of(&patient_counts.retransmitted), of(&patient_counts.reconnected)), (0, 0));
}

// SEMANTICS: rpc-6.
#[test]
fn what_answers_first_is_gone_on_with() {
    let (listener, address) = listen();
    let (transport, mut old, counts) = connected(&listener, options(address));
    drop_all(&old);
    thread::scope(|scope| {
        let caller = scope.spawn(|| call(&transport, &[1; 4]).unwrap());
        let mut new = accept(&listener);
        let null = next_call(&mut new);
        // The server accepts connections and replies to nothing on them: this proves nothing, and
        // no second one is probed.
        pass_all(&old);
        let first = next_call(&mut old);
        assert!(!has_another(&listener));
        answer(&mut old, &first);
        assert_eq!(caller.join().unwrap().results(), [1; 4]);
        // The attempt ends, whatever else arrives.
        let _ = new.write_all(&reply_record(null.2, &[]));
        assert!(read_record(&mut new).is_none());
        let second = scope.spawn(|| call(&transport, &[3; 4]).unwrap());
        let called = next_call(&mut old);
        answer(&mut old, &called);
        second.join().unwrap();
    });
    assert_eq!(of(&counts.retransmitted), 0);
    assert_eq!(of(&counts.reconnected), 0);
}

// SEMANTICS: rpc-6.
#[test]
fn an_outage_of_everything_is_waited_out() {
    let (listener, address) = listen();
    let mut options = options(address);
    options.nconnect = 2.try_into().unwrap();
    let (transport, first, counts) = connected(&listener, options);
    thread::scope(|scope| {
        // One call waits on each connection.
        let callers: Vec<_> = (0..2).map(|_| scope.spawn(|| call(&transport, &[1; 4]).unwrap())).collect();
        let second = accept(&listener);
        drop_all(&first);
        drop_all(&second);
        drop_all(&listener);
        eventually("both were tried in vain", || {
            transport.silent_for().is_some_and(|silence| silence > Duration::from_secs(5))
        });
        pass_all(&listener);
        serve(listener);
        for caller in callers {
            eventually("it is answered", || caller.is_finished());
            assert_eq!(caller.join().unwrap().results(), [1; 4]);
        }
    });
    assert_eq!(of(&counts.reconnected), 2);
}

// SEMANTICS: rpc-6.
#[test]
fn a_soft_call_ends_at_its_time_in_an_outage() {
    let (listener, address) = listen();
    let mut options = options(address);
    options.recovery = RecoveryMode::Soft;
    options.timeout = Duration::from_secs(2);
    options.retrans = 1;
    let (transport, old, _) = connected(&listener, options);
    drop_all(&old);
    drop_all(&listener);
    let began = Instant::now();
    assert_eq!(call(&transport, &[1; 4]).unwrap_err(), CallError::TimedOut { softerr: false });
    assert!(began.elapsed() >= Duration::from_secs(4));
    pass_all(&listener);
    serve(listener);
    eventually("calls are answered again", || {
        call(&transport, &[2; 4]).is_ok_and(|reply| reply.results() == [2; 4])
    });
}
