//! Statistics of calls and connections: transmissions, waiting times, attempts.

use std::{
    io::Write,
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use curt_observe::TransportFigure;
use curt_rpc::client::{
    CallStatistics, Interrupt, PortSource, ServerName, TcpOptions, TcpTransport, Transport,
};
use curt_rpc::clock::{ScriptedTime, TimeSource};

use super::fake::*;

/// The delay of the server's replies.
const DELAY: Duration = Duration::from_millis(30);

#[test]
fn a_call_reports_its_transmissions_and_its_waiting_time() {
    let (listener, address) = listen();
    let counts = Counts::new();
    let events = Arc::clone(&counts);
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let first = read_record(&mut stream).unwrap();
        // The connection is lost: the call is sent again over another one.
        drop(stream);
        let (mut stream, _) = listener.accept().unwrap();
        let second = read_record(&mut stream).unwrap();
        assert_eq!(first, second);
        // The caller may record the transmission later than its server receives it.
        eventually("the caller knows that it is sent", || of(&events.sent) == 2);
        thread::sleep(DELAY);
        let reply = echo(&second);
        // A reply that matches no call arrives before.
        let mut stray = reply.clone();
        stray[4] ^= 0x55;
        stream.write_all(&stray).unwrap();
        stream.write_all(&reply).unwrap();
        (first.len() + 4, reply.len() - 4, stream)
    });
    let transport = TcpTransport::new(options(address), counts);
    assert_eq!(transport.report().connections, 0);
    let mut statistics = CallStatistics::default();
    let began = std::time::Instant::now();
    let arguments = AroundBulk { before: &[7; 40], bulk: &[8; 5], behind: &[9; 12] };
    let reply =
        transport.call_with_statistics(&request(&arguments), &Interrupt::never(), &mut statistics).unwrap();
    assert_eq!(reply.results(), arguments.copied());
    let took = began.elapsed();
    let (sent, received, _stream) = server.join().unwrap();
    assert_eq!(statistics.transmissions, 2);
    assert_eq!(statistics.bytes_sent, 2 * sent as u64);
    assert_eq!(statistics.bytes_received, received as u64);
    // It waited for its second connection, and then for the server.
    assert!(!statistics.queued.is_zero() && statistics.queued + DELAY <= took, "{statistics:?} of {took:?}");

    assert!(
        statistics.lost.is_some_and(|lost| lost <= statistics.queued),
        "it was sent again after that: {statistics:?}"
    );

    let report = transport.report();
    let figures = [
        TransportFigure::Binds,
        TransportFigure::Connects,
        TransportFigure::Sends,
        TransportFigure::Receives,
        TransportFigure::UnknownXids,
        TransportFigure::Backlog,
        TransportFigure::Sending,
        TransportFigure::Pending,
    ];
    // One send on each connection found one waiting call: itself.
    assert_eq!(figures.map(|figure| report.value(figure)), [0, 2, 2, 2, 1, 0, 0, 2]);
    assert_eq!((report.connections, report.most_at_once), (1, 1));
    assert!(report.port != 0 && report.value(TransportFigure::ConnectTime) > 0);
}

#[test]
fn a_server_that_ended_the_connection_at_once_or_refused_another_was_restarted() {
    for (is_late, refuses, restarted) in [(false, false, true), (true, false, false), (true, true, true)] {
        let (listener, address) = listen();
        let (time, counts) = (ScriptedTime::new(), Counts::new());
        let attempts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&attempts);
        let (clock, events) = (Arc::clone(&time), Arc::clone(&counts));
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            read_record(&mut stream).unwrap();
            // The caller may record the transmission later than its server receives it.
            eventually("the caller knows that it is sent", || of(&events.sent) == 1);
            if is_late {
                clock.advance(Duration::from_secs(2));
            }
            let listener = if refuses {
                drop(listener);
                drop(stream);
                // The third follows a refused one.
                eventually("another attempt", || attempts.load(Ordering::Relaxed) >= 3);
                TcpListener::bind(address).unwrap()
            } else {
                drop(stream);
                listener
            };
            let (mut stream, _) = listener.accept().unwrap();
            let call = read_record(&mut stream).unwrap();
            stream.write_all(&echo(&call)).unwrap();
            stream
        });
        let ask = move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(address.port())
        };
        let mut options =
            TcpOptions::new(ServerName::Address(address.ip()), PortSource::Lookup(Arc::new(ask)));
        options.clock = TimeSource::Scripted(time);
        let transport = TcpTransport::new(options, counts);
        let mut statistics = CallStatistics::default();
        let arguments = Bytes(&[7; 40]);
        transport.call_with_statistics(&request(&arguments), &Interrupt::never(), &mut statistics).unwrap();
        drop(server.join().unwrap());
        assert_eq!((statistics.transmissions, statistics.restarted), (2, restarted));
    }
}
