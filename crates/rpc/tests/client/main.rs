//! The client's guarantees for callers, with any behaviour of the server.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod callbacks;
#[path = "../fake/mod.rs"]
#[allow(unreachable_pub, reason = "shared by the tests of this folder")]
mod fake;
mod malformed;
mod outages;
mod reply_sink;
mod statistics;
mod sys;

use std::{
    collections::HashSet,
    io::{ErrorKind, Write},
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use curt_rpc::{
    client::{
        CallError, Interrupt, NoTransportEvents, PortSource, RecoveryMode, ServerName, TcpOptions,
        TcpTransport, Transport,
    },
    message::CallMessage,
};
use fake::*;
use rustix::net::{AddressFamily, SocketType};

fn transport(options: TcpOptions) -> TcpTransport {
    TcpTransport::new(options, Arc::new(NoTransportEvents))
}

/// A port without a listener, reserved while the result is held.
fn refusing() -> (OwnedFd, SocketAddr) {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    rustix::net::bind(&socket, &any).unwrap();
    let address = rustix::net::getsockname(&socket).unwrap();
    (socket, address.try_into().unwrap())
}

/// `threads` threads make `calls` calls each, with different arguments, and compare the results.
fn many_calls(transport: &TcpTransport, threads: u32, calls: u32) {
    thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for number in 0..calls {
                    let mut arguments = [thread.to_be_bytes(), number.to_be_bytes()].concat();
                    arguments.resize(8 + 4 * (number as usize % 3000), 7);
                    assert_eq!(call(transport, &arguments).unwrap().results(), arguments);
                }
            });
        }
    });
}

#[test]
fn replies_in_any_order_reach_their_callers() {
    let (listener, address) = listen();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(3))).unwrap();
        let mut held = Vec::new();
        loop {
            // Up to seven calls are delayed, and answered in reverse order, in pieces.
            let mut peek = [0; 1];
            let idle = match stream.peek(&mut peek) {
                Ok(0) => return,
                Ok(_) => {
                    stream.set_read_timeout(None).unwrap();
                    let Some(record) = read_record(&mut stream) else {
                        return;
                    };
                    stream.set_read_timeout(Some(Duration::from_millis(3))).unwrap();
                    held.push(echo(&record));
                    false
                }
                Err(_) => true,
            };
            if idle || held.len() == 7 {
                while let Some(reply) = held.pop() {
                    let (first, second) = reply.split_at(reply.len() / 3);
                    stream.write_all(first).unwrap();
                    stream.write_all(second).unwrap();
                }
            }
        }
    });
    many_calls(&transport(options(address)), 16, 150);
}

// SEMANTICS: sessions-20.
#[test]
fn all_connections_go_to_the_address_of_the_first_until_they_are_lost() {
    let [(first, at_first), (second, at_second)] = [listen(), listen()];
    let lookups = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&lookups);
    // The server's name has another address each time.
    let port = PortSource::Lookup(Arc::new(move |_| {
        Ok(if counted.fetch_add(1, Ordering::SeqCst) == 0 { at_first.port() } else { at_second.port() })
    }));
    let options = TcpOptions { port, nconnect: 2.try_into().unwrap(), ..options(at_first) };
    let transport = Arc::new(TcpTransport::connect(options, Counts::new(), &Interrupt::never()).unwrap());
    let calls: Vec<_> = (0..2)
        .map(|_| {
            let transport = Arc::clone(&transport);
            thread::spawn(move || call(&*transport, &[1; 4]).unwrap())
        })
        .collect();
    first.set_nonblocking(true).unwrap();
    let mut streams = Vec::new();
    eventually("both connections are at the first address", || {
        streams.extend(first.accept().ok());
        streams.len() == 2
    });
    for (mut stream, _) in streams {
        stream.set_nonblocking(false).unwrap();
        let reply = echo(&read_record(&mut stream).unwrap());
        stream.write_all(&reply).unwrap();
    }
    calls.into_iter().for_each(|call| drop(call.join().unwrap()));
    assert_eq!(lookups.load(Ordering::SeqCst), 1);
    drop(first);
    thread::spawn(move || second.incoming().for_each(|stream| echo_all(stream.unwrap())));
    assert_eq!(call(&*transport, &[2; 4]).unwrap().results(), [2; 4]);
    assert_eq!(lookups.load(Ordering::SeqCst), 2);
}

#[test]
fn calls_survive_a_server_that_keeps_cutting_the_connection() {
    let (listener, address) = listen();
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let all = Arc::clone(&seen);
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            for count in 0.. {
                let Some(record) = read_record(&mut stream) else {
                    break;
                };
                all.lock().unwrap().insert(xid(&record));
                let reply = echo(&record);
                // Some connections end between records, some inside one.
                if count == 40 + number % 5 {
                    let _ = stream.write_all(&reply[..(number * 7) % reply.len()]);
                    break;
                }
                stream.write_all(&reply).unwrap();
            }
        }
    });
    let counts = Counts::new();
    let transport = TcpTransport::new(options(address), counts.clone());
    many_calls(&transport, 8, 60);
    assert!(of(&counts.reconnected) > 5);
    assert!(of(&counts.retransmitted) > 5);
    // Sent again means: with the same xid.
    assert_eq!(seen.lock().unwrap().len(), 8 * 60);
}

/// A thread that makes a call and returns its result.
fn stuck_caller(
    transport: Arc<TcpTransport>,
    number: usize,
    interrupt: Interrupt,
) -> JoinHandle<Result<(), CallError>> {
    // Some have large data, so that the socket is full and many wait for the writing role.
    let bulk = vec![1; if number.is_multiple_of(10) { 200_000 } else { 0 }];
    let caller = move || call_with(&*transport, &[0; 8], &bulk, &interrupt).map(drop);
    thread::Builder::new().stack_size(128 << 10).spawn(caller).unwrap()
}

#[test]
fn a_thousand_callers_of_a_stopped_server_are_let_go_at_once() {
    let (listener, address) = listen();
    let (resume, resumed) = channel::<()>();
    let server = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        resumed.recv().unwrap();
        echo_all(stream);
    });
    let mut timeout = options(address);
    timeout.timeout = Duration::from_millis(20);
    timeout.retrans = 1;
    let counts = Counts::new();
    let transport = Arc::new(TcpTransport::new(timeout, counts.clone()));
    let interrupts: Vec<_> = (0..1000).map(|_| Interrupt::new()).collect();
    let callers: Vec<_> = interrupts
        .iter()
        .enumerate()
        .map(|(number, interrupt)| stuck_caller(Arc::clone(&transport), number, interrupt.clone()))
        .collect();
    eventually("the outage is told", || of(&counts.not_responding) == 1);
    eventually("silence is measured", || transport.silent_for().unwrap() > Duration::from_millis(100));
    let let_go = |caller: JoinHandle<Result<(), CallError>>| {
        eventually("the caller is let go", || caller.is_finished());
        assert_eq!(caller.join().unwrap(), Err(CallError::Interrupted));
    };
    // First one at a time: each returns while the server does not reply, and no other call is
    // affected.
    let mut callers = callers.into_iter();
    for (interrupt, caller) in interrupts.iter().zip(callers.by_ref()).take(50) {
        interrupt.raise();
        let_go(caller);
    }
    for interrupt in &interrupts[50..900] {
        interrupt.raise();
    }
    callers.by_ref().take(850).for_each(let_go);
    assert!(callers.as_slice().iter().all(|caller| !caller.is_finished()));
    assert_eq!(of(&counts.not_responding), 1, "once per outage, however many wait");
    // The others, and new ones, get their replies when the server continues, after the records that
    // were begun before.
    resume.send(()).unwrap();
    for caller in callers {
        assert_eq!(caller.join().unwrap(), Ok(()));
    }
    assert_eq!(call(&*transport, &[5; 4]).unwrap().results(), [5; 4]);
    assert!(of(&counts.responding_again) >= 1);
    assert_eq!(of(&counts.responding_again), of(&counts.not_responding));
    assert_eq!(transport.silent_for(), None);
    transport.close();
    server.join().unwrap();
}

#[test]
fn interrupts_at_any_moment_leave_the_stream_in_order() {
    let (listener, address) = listen();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || echo_all(stream.unwrap()));
        }
    });
    let counts = Counts::new();
    let transport = TcpTransport::new(options(address), counts.clone());
    thread::scope(|scope| {
        for thread in 0u32..12 {
            let transport = &transport;
            scope.spawn(move || {
                for number in 0u32..120 {
                    let interrupt = Interrupt::new();
                    let raiser = interrupt.clone();
                    let delay = Duration::from_micros(u64::from(number * 17 % 700));
                    let bulk = vec![thread.to_be_bytes()[3]; (number as usize % 7) * 60_000];
                    let arguments = [thread.to_be_bytes(), number.to_be_bytes()].concat();
                    thread::scope(|inner| {
                        inner.spawn(move || {
                            thread::sleep(delay);
                            raiser.raise();
                        });
                        match call_with(transport, &arguments, &bulk, &interrupt) {
                            Ok(reply) => {
                                assert_eq!(reply.results()[..8], arguments);
                                assert_eq!(reply.results()[8..], bulk);
                            }
                            Err(error) => assert_eq!(error, CallError::Interrupted),
                        }
                    });
                }
            });
        }
    });
    assert_eq!(of(&counts.malformed), 0);
    assert_eq!(of(&counts.reconnected), 0);
    assert_eq!(call(&transport, &[9; 4]).unwrap().results(), [9; 4]);
}

// SEMANTICS: rpc-5.
#[test]
fn a_soft_call_ends_after_its_patience_and_a_hard_one_does_not() {
    let (listener, address) = listen();
    let (go_on, going_on) = channel::<()>();
    thread::spawn(move || {
        let streams: Vec<_> = (0..2).map(|_| listener.accept().unwrap().0).collect();
        going_on.recv().unwrap();
        let serving: Vec<_> =
            streams.into_iter().map(|stream| thread::spawn(move || echo_all(stream))).collect();
        for serve in serving {
            serve.join().unwrap();
        }
    });
    for (hardness, softerr) in [(RecoveryMode::Soft, false), (RecoveryMode::SoftErr, true)] {
        let (unserved, address) = listen();
        let mut soft = options(address);
        soft.recovery = hardness;
        soft.timeout = Duration::from_millis(30);
        soft.retrans = 1;
        let started = Instant::now();
        assert_eq!(call(&transport(soft), &[]).unwrap_err(), CallError::TimedOut { softerr });
        assert!(started.elapsed() >= Duration::from_millis(60));
        drop(unserved);
    }
    let mut hard = options(address);
    hard.timeout = Duration::from_millis(300);
    hard.retrans = 0;
    hard.nconnect = 2.try_into().unwrap();
    let counts = Counts::new();
    let transport = TcpTransport::new(hard, counts.clone());
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert_eq!(call(&transport, &[1; 4]).unwrap().results(), [1; 4]));
        }
        eventually("several patiences are over", || {
            transport.silent_for().is_some_and(|silence| silence > Duration::from_secs(1))
        });
        assert_eq!(of(&counts.not_responding), 1, "once per outage, however long");
        assert_eq!(of(&counts.retransmitted), 0, "TCP has lost nothing");
        go_on.send(()).unwrap();
    });
    // One of them may have reported an outage just when another got its reply; this call ends it.
    assert_eq!(call(&transport, &[1; 4]).unwrap().results(), [1; 4]);
    assert!(of(&counts.responding_again) >= 1);
    assert_eq!(of(&counts.responding_again), of(&counts.not_responding));
}

#[test]
fn a_soft_call_ends_in_time_although_it_reads_for_others() {
    let (listener, address) = listen();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while let Some(record) = read_record(&mut stream) {
            if CallMessage::decode(&record).unwrap().arguments != [1; 4]
                && stream.write_all(&echo(&record)).is_err()
            {
                return;
            }
        }
    });
    let mut options = options(address);
    options.timeout = Duration::from_millis(100);
    options.retrans = 1;
    options.recovery = RecoveryMode::Soft;
    let transport = transport(options);
    let over = Interrupt::new();
    thread::scope(|scope| {
        for _ in 0..3 {
            // They make calls all the time, so that there are always replies to read for others.
            scope.spawn(|| {
                let again = || call_with(&transport, &[2; 4], &[], &over).err();
                while !matches!(again(), Some(CallError::Interrupted | CallError::Closed)) {}
            });
        }
        let ends: Vec<_> = (0..4)
            .map(|_| {
                let soft = scope.spawn(|| call(&transport, &[1; 4]).unwrap_err());
                let has_ended = comes_true(|| soft.is_finished());
                has_ended.then(|| soft.join().unwrap())
            })
            .collect();
        over.raise();
        transport.close();
        assert_eq!(ends, vec![Some(CallError::TimedOut { softerr: false }); 4]);
    });
}

#[test]
fn a_request_that_the_server_dropped_is_sent_again_on_the_same_connection() {
    let (listener, address) = listen();
    let dropped = Arc::new(Mutex::new(Vec::new()));
    let numbers = Arc::clone(&dropped);
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while let Some(record) = read_record(&mut stream) {
            let call = CallMessage::decode(&record).unwrap();
            let mut numbers = numbers.lock().unwrap();
            if call.arguments == [1; 4] {
                numbers.push(call.xid);
                if numbers.len() == 1 {
                    continue;
                }
            }
            stream.write_all(&echo(&record)).unwrap();
        }
    });
    let mut options = options(address);
    options.timeout = Duration::from_millis(30);
    let transport = transport(options);
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(call(&transport, &[1; 4]).unwrap().results(), [1; 4]));
        eventually("the call was dropped", || dropped.lock().unwrap().len() == 1);
        assert_eq!(call(&transport, &[2; 4]).unwrap().results(), [2; 4]);
    });
    let numbers = dropped.lock().unwrap();
    assert_eq!(numbers.len(), 2);
    assert_eq!(numbers[0], numbers[1]);
}

#[test]
fn an_absent_server_is_waited_for_and_its_port_looked_up_again() {
    let (_unused, address) = refusing();
    let lookups = Arc::new(Mutex::new(0));
    let times = Arc::clone(&lookups);
    let mut options = options(address);
    let (place, found): (_, Receiver<_>) = channel();
    let port = Mutex::new((found, address.port()));
    options.port = PortSource::Lookup(Arc::new(move |_| {
        *times.lock().unwrap() += 1;
        let mut port = port.lock().unwrap();
        if let Ok(new) = port.0.try_recv() {
            port.1 = new;
        }
        Ok(port.1)
    }));
    options.server = ServerName::Name("localhost".into());
    let transport = transport(options);
    thread::scope(|scope| {
        let caller = scope.spawn(|| assert_eq!(call(&transport, &[1; 4]).unwrap().results(), [1; 4]));
        eventually("more than one attempt is made", || *lookups.lock().unwrap() > 2);
        let (listener, address) = listen();
        place.send(address.port()).unwrap();
        scope.spawn(move || echo_all(listener.accept().unwrap().0));
        caller.join().unwrap();
        assert_eq!(transport.silent_for(), None);
        transport.close();
    });
}

#[test]
fn connecting_once_reports_why_it_failed() {
    let (_unused, address) = refusing();
    let connect =
        |options| TcpTransport::connect(options, Arc::new(NoTransportEvents), &Interrupt::never()).err();
    assert_eq!(connect(options(address)), Some(CallError::Unreachable(ErrorKind::ConnectionRefused)));
    let mut unknown = options(address);
    unknown.server = ServerName::Name("no-such-host.invalid".into());
    assert_eq!(connect(unknown), Some(CallError::Unreachable(ErrorKind::NotFound)));
    let raised = Interrupt::new();
    raised.raise();
    let interrupted = TcpTransport::connect(options(address), Arc::new(NoTransportEvents), &raised).err();
    assert_eq!(interrupted, Some(CallError::Interrupted));
}

#[test]
fn a_closed_transport_lets_its_callers_go() {
    let (listener, address) = listen();
    let transport = transport(options(address));
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..10).map(|_| scope.spawn(|| call(&transport, &[]))).collect();
        let _stream = listener.accept().unwrap();
        transport.close();
        for caller in waiting {
            assert_eq!(caller.join().unwrap().unwrap_err(), CallError::Closed);
        }
    });
    assert_eq!(call(&transport, &[]).unwrap_err(), CallError::Closed);
}

#[test]
fn calls_are_spread_over_nconnect_connections() {
    let (listener, address) = listen();
    let mut options = options(address);
    options.nconnect = 4.try_into().unwrap();
    let transport = transport(options);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| call(&transport, &[]).unwrap());
        }
        // No call gets a reply before all four connections are established.
        let streams: Vec<_> = (0..4).map(|_| listener.accept().unwrap().0).collect();
        for mut stream in streams {
            scope.spawn(move || {
                let record = read_record(&mut stream).unwrap();
                stream.write_all(&echo(&record)).unwrap();
            });
        }
    });
}

#[test]
fn reserved_ports_are_used_and_those_in_use_passed_over() {
    let (listener, address) = listen();
    let mut options = options(address);
    options.reserved_port = true;
    let transports: Vec<_> = (0..5).map(|_| transport(options.clone())).collect();
    let mut ports = HashSet::new();
    for transport in &transports {
        let caller = Interrupt::new();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| call_with(transport, &[], &[], &caller));
            listener.set_nonblocking(true).unwrap();
            eventually("connected, or refused the right to the port", || match listener.accept() {
                Ok((_, peer)) => {
                    ports.insert(peer.port());
                    true
                }
                Err(_) => false,
            });
            caller.raise();
            let _ = waiting.join().unwrap();
        });
    }
    assert!(ports.iter().all(|port| *port < 1024), "{ports:?}");
    assert!(ports.len() >= 2, "ports are chosen at random: {ports:?}");
}
