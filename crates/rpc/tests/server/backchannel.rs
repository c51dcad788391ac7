//! Calls of the server over its clients' connections.

use std::{
    io::Write,
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use curt_rpc::{
    auth::RpcCredential,
    client::{CallError, Interrupt, NoTransportEvents, RpcRequest, TcpOptions, TcpTransport, Transport as _},
    clock::ScriptedTime,
    connection::{Backchannel, CallContext, CallHandler, RpcService},
    message::{AcceptStatus, CallFailure, CallMessage, encode_failure},
    record,
    server::{Limits, RpcServer, RpcServerHandle, RpcServerOptions},
};
use parking_lot::Mutex;

use crate::{
    fake::{Bytes, PROGRAM, echo, eventually, listen, options, read_record, reply_record, xid},
    fixture::{ECHO, SLOW, call_record, expect_echo, expect_end},
};

/// Longer than any wait of a test.
const LONG: Duration = Duration::from_secs(60);

/// Echoes, and keeps the backchannel to the last caller.
#[derive(Default)]
struct Keeper {
    last: Mutex<Option<Arc<dyn Backchannel>>>,
    /// Slow calls wait for it.
    gate: Mutex<()>,
    slow_begun: AtomicUsize,
}

impl RpcService for Keeper {
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        *self.last.lock() = context.backchannel();
        if call.procedure == SLOW {
            self.slow_begun.fetch_add(1, Ordering::SeqCst);
            drop(self.gate.lock());
        }
        reply.extend_from_slice(call.arguments);
        Ok(())
    }
}

struct Echo;

impl RpcService for Echo {
    fn call(
        &self,
        call: &CallMessage<'_>,
        _: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        reply.extend_from_slice(call.arguments);
        Ok(())
    }
}

struct World {
    handle: RpcServerHandle,
    address: std::net::SocketAddr,
    keeper: Arc<Keeper>,
}

fn world(options: RpcServerOptions) -> World {
    let (listener, address) = listen();
    let keeper = Arc::new(Keeper::default());
    let server = RpcServer::new(vec![listener], keeper.clone(), options).unwrap();
    let handle = server.handle();
    thread::spawn(move || server.run());
    World { handle, address, keeper }
}

impl Drop for World {
    fn drop(&mut self) {
        self.handle.shutdown();
    }
}

impl World {
    /// A client without Curt's code, and the backchannel to it.
    fn client(&self) -> (TcpStream, Arc<dyn Backchannel>) {
        let mut client = TcpStream::connect(self.address).unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        client.write_all(&call_record(1, ECHO, &[1; 4])).unwrap();
        expect_echo(&mut client, 1, &[1; 4]);
        (client, self.backchannel())
    }

    fn backchannel(&self) -> Arc<dyn Backchannel> {
        self.keeper.last.lock().clone().expect("somebody has called")
    }
}

fn call(backchannel: &dyn Backchannel, arguments: &[u8], timeout: Duration) -> Result<Vec<u8>, CallError> {
    let request = RpcRequest {
        program: PROGRAM,
        version: 1,
        procedure: ECHO,
        credential: &RpcCredential::None,
        arguments: &Bytes(arguments),
        results_max: 64,
    };
    let reply = backchannel.call(&request, timeout)?;
    Ok(reply.results().to_vec())
}

#[test]
fn a_call_of_the_server_is_answered_on_the_clients_connection_while_no_call_waits() {
    let world = world(RpcServerOptions::default());
    let options = TcpOptions { callbacks: Some(CallHandler::of(Arc::new(Echo))), ..options(world.address) };
    let transport = TcpTransport::new(options, Arc::new(NoTransportEvents));
    let request = RpcRequest {
        program: PROGRAM,
        version: 1,
        procedure: ECHO,
        credential: &RpcCredential::None,
        arguments: &Bytes(&[5; 8]),
        results_max: 64,
    };
    for round in 0..20u8 {
        let reply = transport.call(&request, &Interrupt::never()).unwrap();
        assert_eq!(reply.results(), [5; 8]);
        let backchannel = world.backchannel();
        for _ in 0..3 {
            assert_eq!(call(&*backchannel, &[round; 4], LONG), Ok(vec![round; 4]));
        }
    }
    assert_eq!(world.handle.connections(), 1);
    let backchannel = world.backchannel();
    // Many at once, in both directions.
    thread::scope(|scope| {
        for caller in 0..8u8 {
            let (backchannel, transport, request) = (&backchannel, &transport, &request);
            scope.spawn(move || {
                for _ in 0..50 {
                    assert_eq!(call(&**backchannel, &[caller; 4], LONG), Ok(vec![caller; 4]));
                    assert!(transport.call(request, &Interrupt::never()).is_ok());
                }
            });
        }
    });
    assert_eq!(world.handle.connections(), 1);
    drop(transport);
    eventually("the connection is gone", || !backchannel.is_open());
    assert_eq!(call(&*backchannel, &[], LONG), Err(CallError::Closed));
}

#[test]
fn failures_and_replies_that_are_too_long_are_errors_of_the_caller() {
    let world = world(RpcServerOptions::default());
    let (mut client, backchannel) = world.client();
    let peer = thread::spawn(move || {
        let first = read_record(&mut client).unwrap();
        let mut failure = Vec::new();
        let body = record::begin_record(&mut failure);
        encode_failure(&mut failure, xid(&first), AcceptStatus::ProcedureUnavailable);
        record::finish_record(&mut failure, body, 0);
        client.write_all(&failure).unwrap();
        let second = read_record(&mut client).unwrap();
        client.write_all(&reply_record(xid(&second), &[0; 65])).unwrap();
        let third = read_record(&mut client).unwrap();
        client.write_all(&echo(&third)).unwrap();
        client
    });
    assert_eq!(call(&*backchannel, &[], LONG), Err(CallError::ProcedureUnavailable));
    assert!(matches!(call(&*backchannel, &[], LONG), Err(CallError::Malformed(_))));
    assert_eq!(call(&*backchannel, &[7; 8], LONG), Ok(vec![7; 8]));
    // The connection still serves its client.
    let mut client = peer.join().unwrap();
    client.write_all(&call_record(9, ECHO, &[])).unwrap();
    expect_echo(&mut client, 9, &[]);
}

#[test]
fn a_client_that_never_replies_costs_its_callers_their_timeout_alone() {
    let time = ScriptedTime::new();
    let world = world(RpcServerOptions { clock: time.clock(), ..RpcServerOptions::default() });
    let (mut client, backchannel) = world.client();
    let (sender, receiver) = mpsc::channel();
    // The maximum number of calls; by the scripted clock none of them times out.
    for _ in 0..64 {
        let (backchannel, sender) = (Arc::clone(&backchannel), sender.clone());
        thread::spawn(move || sender.send(call(&*backchannel, &[], Duration::from_millis(20))));
    }
    let sent: Vec<u32> = (0..64).map(|_| xid(&read_record(&mut client).unwrap())).collect();
    assert_eq!(call(&*backchannel, &[], LONG), Err(CallError::TooManyCalls));
    time.advance(Duration::from_millis(20));
    for _ in 0..64 {
        let ended = receiver.recv_timeout(LONG).unwrap();
        assert_eq!(ended, Err(CallError::TimedOut { softerr: false }));
    }
    // Late replies, and replies that match no call, are dropped.
    for xid in sent.into_iter().chain([0, u32::MAX]) {
        client.write_all(&reply_record(xid, &[1; 16])).unwrap();
    }
    client.write_all(&call_record(9, ECHO, &[3; 4])).unwrap();
    expect_echo(&mut client, 9, &[3; 4]);
}

#[test]
fn a_call_ends_with_its_connection() {
    let world = world(RpcServerOptions::default());
    let (mut client, backchannel) = world.client();
    let (sender, receiver) = mpsc::channel();
    let caller = Arc::clone(&backchannel);
    thread::spawn(move || sender.send(call(&*caller, &[], LONG * 60)));
    read_record(&mut client).unwrap();
    assert!(backchannel.is_open());
    drop(client);
    assert_eq!(receiver.recv_timeout(LONG).unwrap(), Err(CallError::Closed));
    assert!(!backchannel.is_open());
}

#[test]
fn a_call_ends_when_the_server_stops() {
    let world = world(RpcServerOptions::default());
    let (mut client, backchannel) = world.client();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(call(&*backchannel, &[], LONG * 60)));
    read_record(&mut client).unwrap();
    world.handle.shutdown();
    assert_eq!(receiver.recv_timeout(LONG).unwrap(), Err(CallError::Closed));
}

#[test]
fn a_reply_needs_no_thread() {
    let world =
        world(RpcServerOptions::from(Limits { threads: 1, threads_per_client: 1, ..Limits::default() }));
    let (mut client, backchannel) = world.client();
    // The only thread executes a call of another connection.
    let gate = world.keeper.gate.lock();
    let mut other = TcpStream::connect(world.address).unwrap();
    other.write_all(&call_record(1, SLOW, &[0; 4])).unwrap();
    eventually("the slow call is begun", || world.keeper.slow_begun.load(Ordering::SeqCst) == 1);
    let peer = thread::spawn(move || {
        let record = read_record(&mut client).unwrap();
        client.write_all(&echo(&record)).unwrap();
        client
    });
    assert_eq!(call(&*backchannel, &[2; 4], LONG), Ok(vec![2; 4]));
    drop(peer.join().unwrap());
    drop(gate);
}

#[test]
fn a_reply_over_a_connection_that_was_never_called_costs_it_the_connection() {
    let world = world(RpcServerOptions::default());
    let (mut client, _backchannel) = world.client();
    client.write_all(&reply_record(1, &[])).unwrap();
    expect_end(&mut client);
}
