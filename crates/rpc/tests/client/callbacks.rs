//! Calls of the server over the client's connection.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Weak,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use curt_rpc::{
    auth::RpcCredential,
    client::{Interrupt, NoTransportEvents, TcpOptions, TcpTransport, Transport},
    connection::{CallContext, CallHandler, RpcService},
    message::{AcceptStatus, CallFailure, CallMessage, decode_reply_header, encode_call_header},
    record,
};
use curt_xdr::Decoder;
use parking_lot::{Condvar, Mutex};

use crate::fake::*;

const ECHO: u32 = 1;
/// Waits for the test, and then calls the server over the same connection.
const CALLS_BACK: u32 = 2;
const FAULT: u32 = 3;

/// A client's service for calls of its server.
#[derive(Default)]
struct Callbacks {
    transport: Mutex<Weak<TcpTransport>>,
    released: Mutex<bool>,
    released_more: Condvar,
}

impl Callbacks {
    fn release(&self) {
        *self.released.lock() = true;
        self.released_more.notify_all();
    }
}

impl RpcService for Callbacks {
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        assert!(context.backchannel().is_none() && !context.allows_sendfile());
        match call.procedure {
            ECHO => reply.extend_from_slice(call.arguments),
            CALLS_BACK => {
                let mut released = self.released.lock();
                while !*released {
                    self.released_more.wait(&mut released);
                }
                drop(released);
                let transport = self.transport.lock().upgrade().ok_or(CallFailure::SystemError)?;
                let called = crate::fake::call(&*transport, call.arguments);
                reply.extend_from_slice(called.map_err(|_| CallFailure::SystemError)?.results());
            }
            FAULT => panic!("a fault, as the test wants it"),
            _ => return Err(CallFailure::ProcedureUnavailable),
        }
        Ok(())
    }
}

struct World {
    service: Arc<Callbacks>,
    transport: Arc<TcpTransport>,
    server: TcpStream,
    listener: TcpListener,
}

/// A client with a service, and the server's end of its connection.
fn world() -> World {
    let (listener, address) = listen();
    let service = Arc::new(Callbacks::default());
    let options = TcpOptions { callbacks: Some(CallHandler::of(service.clone())), ..options(address) };
    let never = Interrupt::never();
    let transport = TcpTransport::connect(options, Arc::new(NoTransportEvents), &never).unwrap();
    let transport = Arc::new(transport);
    *service.transport.lock() = Arc::downgrade(&transport);
    let (server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    World { service, transport, server, listener }
}

fn call_record(xid: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let body = record::begin_record(&mut out);
    encode_call_header(&mut out, xid, PROGRAM, 1, procedure, &RpcCredential::None);
    out.extend_from_slice(arguments);
    record::finish_record(&mut out, body, 0);
    out
}

fn read_reply(server: &mut TcpStream) -> (u32, AcceptStatus, Vec<u8>) {
    let reply = read_record(server).expect("a reply");
    let mut decoder = Decoder::new(&reply);
    let header = decode_reply_header(&mut decoder).unwrap();
    (header.xid, header.outcome.unwrap(), decoder.remaining().to_vec())
}

fn expect_echo(server: &mut TcpStream, xid: u32) {
    let arguments = xid.to_be_bytes();
    server.write_all(&call_record(xid, ECHO, &arguments)).unwrap();
    assert_eq!(read_reply(server), (xid, AcceptStatus::Success, arguments.to_vec()));
}

/// Begins a call of the client; the test has the server's end.
fn begin_call(transport: &Arc<TcpTransport>) -> Receiver<Vec<u8>> {
    let (sender, results): (SyncSender<Vec<u8>>, _) = sync_channel(1);
    let transport = Arc::clone(transport);
    thread::spawn(move || sender.send(call(&*transport, &[9; 8]).unwrap().results().to_vec()));
    results
}

#[test]
fn the_server_is_answered_while_no_call_waits() {
    let World { transport, mut server, .. } = world();
    for xid in 1..20 {
        expect_echo(&mut server, xid);
    }
    // Also between calls of the client.
    for xid in 20..30 {
        let results = begin_call(&transport);
        let record = read_record(&mut server).unwrap();
        server.write_all(&echo(&record)).unwrap();
        assert_eq!(results.recv().unwrap(), [9; 8]);
        expect_echo(&mut server, xid);
    }
}

#[test]
fn the_server_is_answered_while_a_call_waits_and_numbers_of_both_directions_are_apart() {
    let World { transport, mut server, .. } = world();
    let results = begin_call(&transport);
    let record = read_record(&mut server).unwrap();
    expect_echo(&mut server, xid(&record));
    expect_echo(&mut server, xid(&record).wrapping_add(1));
    server.write_all(&echo(&record)).unwrap();
    assert_eq!(results.recv().unwrap(), [9; 8]);
}

#[test]
fn a_service_may_call_the_server_before_it_replies() {
    let World { service, transport: _transport, mut server, .. } = world();
    server.write_all(&call_record(5, CALLS_BACK, &[3; 8])).unwrap();
    service.release();
    let record = read_record(&mut server).unwrap();
    server.write_all(&echo(&record)).unwrap();
    assert_eq!(read_reply(&mut server), (5, AcceptStatus::Success, vec![3; 8]));
}

#[test]
fn failures_and_faults_of_the_service_are_replies() {
    let (_transport, mut server) = world_server();
    server.write_all(&call_record(1, FAULT, &[])).unwrap();
    assert_eq!(read_reply(&mut server).1, AcceptStatus::SystemError);
    server.write_all(&call_record(2, 77, &[])).unwrap();
    assert_eq!(read_reply(&mut server).1, AcceptStatus::ProcedureUnavailable);
    // A truncated header has no reply, and is harmless.
    let mut cut = Vec::new();
    let body = record::begin_record(&mut cut);
    cut.extend([3u32, 0, 2].map(u32::to_be_bytes).concat());
    record::finish_record(&mut cut, body, 0);
    server.write_all(&cut).unwrap();
    expect_echo(&mut server, 4);
}

fn world_server() -> (Arc<TcpTransport>, TcpStream) {
    let world = world();
    (world.transport, world.server)
}

/// Reads until the client ends the connection.
fn read_to_end(server: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ = server.read_to_end(&mut rest);
    rest
}

#[test]
fn a_server_that_sends_more_calls_than_can_wait_loses_the_connection() {
    let World { service, transport, mut server, listener } = world();
    // The thread that executes calls is busy, and the caller of a call reads.
    server.write_all(&call_record(1, CALLS_BACK, &[])).unwrap();
    let results = begin_call(&transport);
    read_record(&mut server).unwrap();
    let flood: Vec<u8> = (2..1000).flat_map(|xid| call_record(xid, ECHO, &[])).collect();
    // The connection may end before all is sent.
    let _ = server.write_all(&flood);
    assert_eq!(read_to_end(&mut server), b"", "nothing was answered");
    // The call is sent again over another connection.
    let (mut server, _) = listener.accept().unwrap();
    let record = read_record(&mut server).unwrap();
    server.write_all(&echo(&record)).unwrap();
    assert_eq!(results.recv().unwrap(), [9; 8]);
    expect_echo(&mut server, 7);
    service.release();
}

#[test]
fn calls_of_the_server_are_executed_in_order() {
    let World { service, transport: _transport, mut server, .. } = world();
    server.write_all(&call_record(1, CALLS_BACK, &[7; 4])).unwrap();
    for xid in 2..50 {
        server.write_all(&call_record(xid, ECHO, &[])).unwrap();
    }
    service.release();
    let record = read_record(&mut server).unwrap();
    server.write_all(&echo(&record)).unwrap();
    let answered: Vec<u32> = (1..50).map(|_| read_reply(&mut server).0).collect();
    assert_eq!(answered, (1..50).collect::<Vec<_>>(), "in order");
}

#[test]
fn a_call_that_is_too_long_costs_the_connection_when_it_is_announced() {
    let (_transport, mut server) = world_server();
    let mut begun = record::record_mark(1 << 20).to_vec();
    begun.extend([1u32, 0].map(u32::to_be_bytes).concat());
    server.write_all(&begun).unwrap();
    assert_eq!(read_to_end(&mut server), b"");
}

#[test]
fn without_a_service_calls_of_the_server_are_dropped_and_are_no_replies() {
    let (listener, address) = listen();
    let transport = Arc::new(TcpTransport::new(options(address), Arc::new(NoTransportEvents)));
    let results = begin_call(&transport);
    let (mut server, _) = listener.accept().unwrap();
    let record = read_record(&mut server).unwrap();
    for _ in 0..100 {
        server.write_all(&call_record(xid(&record), ECHO, &[])).unwrap();
    }
    server.write_all(&echo(&record)).unwrap();
    assert_eq!(results.recv().unwrap(), [9; 8]);
    let report = transport.report();
    assert_eq!(report.connections, 1);
}

#[test]
fn a_client_that_is_gone_leaves_no_thread_behind() {
    let World { service, transport, mut server, .. } = world();
    expect_echo(&mut server, 1);
    drop(transport);
    assert_eq!(read_to_end(&mut server), b"");
    eventually("the thread has let go of the service", || Arc::strong_count(&service) == 1);
}
