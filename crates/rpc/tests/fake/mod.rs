//! A server whose bytes the test determines, and a client's options to reach it.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use curt_rpc::{
    auth::RpcCredential,
    client::{
        BulkAtEnd, BulkData, CallArguments, CallError, CallReply, Interrupt, PortSource, RpcRequest,
        ServerName, TcpOptions, Transport, TransportEvents,
    },
    message::{CallMessage, encode_accepted_header},
    record,
};
use curt_xdr::{Encode, put_fixed};

pub const PROGRAM: u32 = 0x2000_0001;

pub fn options(address: SocketAddr) -> TcpOptions {
    TcpOptions::new(ServerName::Address(address.ip()), PortSource::Fixed(address.port()))
}

pub fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::LOCALHOST), 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Opaque arguments of any length.
pub struct Bytes<'a>(pub &'a [u8]);

impl Encode for Bytes<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_fixed(out, self.0);
    }
}

/// Opaque arguments with bulk data between them.
pub struct AroundBulk<'a> {
    pub before: &'a [u8],
    pub bulk: &'a [u8],
    pub behind: &'a [u8],
}

impl CallArguments for AroundBulk<'_> {
    fn encode_around<'a>(&'a self, out: &mut Vec<u8>) -> BulkData<'a> {
        put_fixed(out, self.before);
        let at = out.len();
        put_fixed(out, self.behind);
        BulkData::new(at, self.bulk)
    }
}

impl AroundBulk<'_> {
    /// The arguments as the server gets them.
    pub fn copied(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for part in [self.before, self.bulk, self.behind] {
            put_fixed(&mut out, part);
        }
        out
    }
}

/// The call of all tests; only the bytes differ.
pub fn request(arguments: &dyn CallArguments) -> RpcRequest<'_> {
    RpcRequest {
        program: PROGRAM,
        version: 1,
        procedure: 1,
        credential: &RpcCredential::None,
        arguments,
        results_max: 1 << 20,
    }
}

pub fn call_with(
    transport: &dyn Transport,
    arguments: &[u8],
    bulk: &[u8],
    interrupt: &Interrupt,
) -> Result<CallReply, CallError> {
    transport.call(&request(&BulkAtEnd { head: &Bytes(arguments), bytes: bulk }), interrupt)
}

pub fn call(transport: &dyn Transport, arguments: &[u8]) -> Result<CallReply, CallError> {
    call_with(transport, arguments, &[], &Interrupt::never())
}

/// Reads one record of one fragment; `None` at the end of the stream.
pub fn read_record(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).ok()?;
    let word = u32::from_be_bytes(mark);
    assert!(word >> 31 == 1, "the client sends single fragments");
    let mut body = vec![0; usize::try_from(word & 0x7fff_ffff).unwrap()];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}

/// The record of a successful reply with `results`.
pub fn reply_record(xid: u32, results: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let body = record::begin_record(&mut out);
    encode_accepted_header(&mut out, xid);
    out.extend_from_slice(results);
    record::finish_record(&mut out, body, 0);
    out
}

/// The reply to a call, with its own arguments as results.
pub fn echo(record: &[u8]) -> Vec<u8> {
    let call = CallMessage::decode(record).unwrap();
    reply_record(call.xid, call.arguments)
}

pub fn xid(record: &[u8]) -> u32 {
    CallMessage::decode(record).unwrap().xid
}

/// Echoes all calls of a connection until it ends.
pub fn echo_all(mut stream: TcpStream) {
    while let Some(record) = read_record(&mut stream) {
        if stream.write_all(&echo(&record)).is_err() {
            return;
        }
    }
}

/// Counts events.
#[derive(Default)]
pub struct Counts {
    pub sent: AtomicUsize,
    pub retransmitted: AtomicUsize,
    pub reconnected: AtomicUsize,
    pub not_responding: AtomicUsize,
    pub responding_again: AtomicUsize,
    pub malformed: AtomicUsize,
}

impl Counts {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }
}

pub fn of(counter: &AtomicUsize) -> usize {
    counter.load(Ordering::SeqCst)
}

impl TransportEvents for Counts {
    fn sent(&self, _: usize) {
        self.sent.fetch_add(1, Ordering::SeqCst);
    }
    fn received(&self, _: usize) {}
    fn retransmitted(&self) {
        self.retransmitted.fetch_add(1, Ordering::SeqCst);
    }
    fn connected(&self, again: bool) {
        self.reconnected.fetch_add(usize::from(again), Ordering::SeqCst);
    }
    fn not_responding(&self) {
        self.not_responding.fetch_add(1, Ordering::SeqCst);
    }
    fn responding_again(&self) {
        self.responding_again.fetch_add(1, Ordering::SeqCst);
    }
    fn malformed_reply(&self) {
        self.malformed.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls `condition` for a limited time; returns whether it became true.
pub fn comes_true(mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Polls `condition`, which must become true.
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    assert!(comes_true(condition), "never came true: {what}");
}
