//! A server with replies that the test determines, and its clients.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::fake::{Bytes, PROGRAM, listen, options};
use curt_rpc::{
    auth::{AuthStatus, RpcCredential},
    client::{CallError, Interrupt, NoTransportEvents, RpcRequest, TcpTransport, Transport},
    clock::TimeSource,
    message::{
        AcceptStatus, CallMessage, RejectedReply, VersionRange, decode_reply_header, encode_call_header,
    },
    record,
    server::{CallContext, CallFailure, Limits, RpcServer, RpcServerHandle, RpcServerOptions, RpcService},
};
use curt_xdr::Decoder;
use parking_lot::{Condvar, Mutex};

pub(crate) const ECHO: u32 = 1;
pub(crate) const SLOW: u32 = 2;
pub(crate) const LARGE: u32 = 3;
pub(crate) const FAULT: u32 = 4;
pub(crate) const SLOW_AND_LARGE: u32 = 5;
pub(crate) const FAILURES: u32 = 8;

/// A service whose slow calls wait for the test.
#[derive(Default)]
pub(crate) struct Answers {
    pub(crate) slow_begun: AtomicUsize,
    /// Number of slow calls that may end.
    pub(crate) released: Mutex<usize>,
    pub(crate) released_more: Condvar,
}

impl Answers {
    pub(crate) fn release(&self, count: usize) {
        *self.released.lock() += count;
        self.released_more.notify_all();
    }

    pub(crate) fn wait(&self) {
        self.slow_begun.fetch_add(1, Ordering::SeqCst);
        let mut released = self.released.lock();
        while *released == 0 {
            self.released_more.wait(&mut released);
        }
        *released -= 1;
    }
}

pub(crate) fn failures() -> [CallFailure; 6] {
    [
        CallFailure::ProgramUnavailable,
        CallFailure::ProgramMismatch(VersionRange { low: 3, high: 4 }),
        CallFailure::ProcedureUnavailable,
        CallFailure::GarbageArguments,
        CallFailure::SystemError,
        CallFailure::Denied(AuthStatus::TooWeak),
    ]
}

impl RpcService for Answers {
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
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

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) answers: Arc<Answers>,
    pub(crate) handle: RpcServerHandle,
    pub(crate) thread: Option<JoinHandle<()>>,
}

/// Maximum record size of these servers.
pub(crate) const RECORD_MAX: usize = 2 << 20;

pub(crate) fn serve(limits: Limits) -> Running {
    serve_by(TimeSource::System, limits)
}

/// A server with this clock.
pub(crate) fn serve_by(clock: TimeSource, limits: Limits) -> Running {
    let (listener, address) = listen();
    let answers = Arc::new(Answers::default());
    let limits = Limits { record: RECORD_MAX, ..limits };
    let options = RpcServerOptions { limits, clock, acceptor: None };
    let server = RpcServer::new(vec![listener], answers.clone(), options).unwrap();
    let handle = server.handle();
    let thread = Some(thread::spawn(move || server.run()));
    Running { address, answers, handle, thread }
}

impl Running {
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    pub(crate) fn transport(&self) -> TcpTransport {
        TcpTransport::new(options(self.address), Arc::new(NoTransportEvents))
    }

    pub(crate) fn stop(&mut self) {
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

pub(crate) fn call(transport: &TcpTransport, procedure: u32, arguments: &[u8]) -> Result<Vec<u8>, CallError> {
    let request = RpcRequest {
        program: PROGRAM,
        version: 1,
        procedure,
        credential: &RpcCredential::None,
        arguments: &Bytes(arguments),
        results_max: 2 << 20,
    };
    transport.call(&request, &Interrupt::never()).map(|reply| reply.results().to_vec())
}

pub(crate) fn call_record(xid: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let body = record::begin_record(&mut out);
    encode_call_header(&mut out, xid, PROGRAM, 1, procedure, &RpcCredential::None);
    out.extend_from_slice(arguments);
    record::finish_record(&mut out, body, 0);
    out
}

/// The next reply: its xid, status and results.
pub(crate) fn read_reply(stream: &mut TcpStream) -> (u32, Result<AcceptStatus, RejectedReply>, Vec<u8>) {
    let body = crate::fake::read_record(stream).expect("a reply");
    let mut decoder = Decoder::new(&body);
    let header = decode_reply_header(&mut decoder).unwrap();
    (header.xid, header.outcome, decoder.remaining().to_vec())
}

pub(crate) fn expect_echo(stream: &mut TcpStream, xid: u32, arguments: &[u8]) {
    assert_eq!(read_reply(stream), (xid, Ok(AcceptStatus::Success), arguments.to_vec()));
}

pub(crate) fn expect_end(stream: &mut TcpStream) {
    match stream.read(&mut [0; 16]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("the connection should have ended: {other:?}"),
    }
}

/// Checks that the server still serves other clients.
pub(crate) fn expect_unharmed(running: &Running) {
    let mut stream = running.connect();
    stream.write_all(&call_record(77, ECHO, &[9; 8])).unwrap();
    expect_echo(&mut stream, 77, &[9; 8]);
}
