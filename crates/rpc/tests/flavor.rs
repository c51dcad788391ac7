//! A flavor that protects messages, on both ends of a connection.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "fake/mod.rs"]
#[allow(unreachable_pub, dead_code, reason = "shared by the tests of this folder")]
mod fake;

use std::{
    borrow::Cow,
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    io::Write,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use curt_rpc::{
    auth::{AuthStatus, ContextCredential, OpaqueVerifier, RpcCredential},
    client::{
        CallArguments, CallError, CallStatistics, Interrupt, NoTransportEvents, ReplySink, RpcRequest,
        TcpOptions, TcpTransport, Transport as _,
    },
    connection::{CallContext, CallHandler, RpcService},
    message::{CallFailure, CallMessage},
    security::flavor::{AuthFlavor, FlavorAcceptor, FlavorInitiator},
    server::{Limits, RpcServer, RpcServerHandle, RpcServerOptions, SendfileRange},
};
use curt_xdr::{DecodeError, Encode};
use fake::*;
use parking_lot::Mutex;

/// An unassigned flavor number.
const FLAVOR: u32 = 0x4b53_554d;

const ECHO: u32 = 1;
/// Replies with a range of a file if allowed, and states whether it is.
const PIECE: u32 = 2;
/// Refuses the call.
const REFUSE: u32 = 3;

fn checksum(key: u64, bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, bytes).hash(&mut hasher);
    hasher.finish()
}

/// Signs the header and a sequence number, inverts all bits of the rest, and puts a checksum before
/// it.
struct Checksummed {
    key: u64,
    sequence: AtomicU32,
    /// Whether arguments and results are transformed as well.
    wraps: bool,
}

/// As in RPCSEC_GSS: for a reply the call's sequence number is signed.
const REPLY: &[u8] = b"reply";

impl Checksummed {
    fn signature(&self, header: &[u8]) -> u64 {
        let is_reply = header.get(4..8) == Some(&[0, 0, 0, 1]);
        checksum(self.key, if is_reply { REPLY } else { header })
    }
}

impl AuthFlavor for Checksummed {
    fn encode_credential(&self, out: &mut Vec<u8>) {
        let sequence = self.sequence.fetch_add(1, Ordering::SeqCst);
        for word in [FLAVOR, 8, sequence, u32::from(self.wraps)] {
            word.encode(out);
        }
    }

    fn sign(&self, out: &mut Vec<u8>, from: usize) {
        let signature = self.signature(&out[from..]);
        [FLAVOR, 8].iter().for_each(|word| word.encode(out));
        signature.encode(out);
    }

    fn verify(&self, signed: &[u8], verifier: OpaqueVerifier<'_>) -> Result<(), AuthStatus> {
        let expected = self.signature(signed).to_be_bytes();
        let is_right = verifier.flavor == FLAVOR && verifier.body == expected;
        is_right.then_some(()).ok_or(AuthStatus::RejectedVerifier)
    }

    fn wraps(&self) -> bool {
        self.wraps
    }

    fn wrap(&self, out: &mut Vec<u8>, from: usize) {
        let plain = out.split_off(from);
        checksum(self.key, &plain).encode(out);
        out.extend(plain.iter().map(|byte| !byte));
    }

    fn unwrap<'m>(&self, body: &'m [u8]) -> Result<Cow<'m, [u8]>, DecodeError> {
        let (sum, hidden) = body.split_first_chunk().ok_or(DecodeError::Short)?;
        let plain: Vec<u8> = hidden.iter().map(|byte| !byte).collect();
        let is_right = checksum(self.key, &plain) == u64::from_be_bytes(*sum);
        let wrong = DecodeError::BadValue { name: "checksum", value: 0 };
        is_right.then_some(Cow::Owned(plain)).ok_or(wrong)
    }

    fn wrapped_max(&self, length: usize) -> usize {
        length + 8
    }
}

/// Both ends of the contexts with one key.
#[derive(Debug)]
struct Contexts {
    key: u64,
    wraps: bool,
    /// The sequence numbers that a server has seen.
    seen: Mutex<Vec<u32>>,
    next: AtomicU32,
}

impl Contexts {
    fn new(key: u64, wraps: bool) -> Arc<Self> {
        Arc::new(Self { key, wraps, seen: Mutex::default(), next: AtomicU32::new(1) })
    }

    fn credential(self: &Arc<Self>) -> RpcCredential {
        RpcCredential::Context(ContextCredential(self.clone()))
    }
}

impl FlavorInitiator for Contexts {
    fn begin_call(&self) -> Arc<dyn AuthFlavor> {
        Arc::new(Checksummed {
            key: self.key,
            sequence: AtomicU32::new(self.next.fetch_add(100, Ordering::SeqCst)),
            wraps: self.wraps,
        })
    }
}

impl FlavorAcceptor for Contexts {
    fn accept(&self, flavor: u32, credential: &[u8]) -> Result<Arc<dyn AuthFlavor>, CallFailure> {
        let words = credential.first_chunk::<8>().filter(|_| flavor == FLAVOR);
        let words = words.ok_or(CallFailure::Denied(AuthStatus::GssCredentialProblem))?;
        let sequence = u32::from_be_bytes(*words.first_chunk().unwrap());
        let mut seen = self.seen.lock();
        if seen.contains(&sequence) {
            return Err(CallFailure::NoReply);
        }
        seen.push(sequence);
        Ok(Arc::new(Checksummed { key: self.key, sequence: AtomicU32::new(0), wraps: words[7] == 1 }))
    }
}

struct Service;

impl RpcService for Service {
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        match call.procedure {
            ECHO => reply.extend_from_slice(call.arguments),
            PIECE => {
                let may = context.allows_sendfile();
                u32::from(may).encode(reply);
                if may {
                    let piece = SendfileRange {
                        file: Arc::new(File::open("/proc/self/exe").unwrap().into()),
                        offset: 0,
                        length: 4,
                        failed: Arc::default(),
                    };
                    context.attach(reply.len(), piece);
                }
            }
            _ => return Err(CallFailure::ProcedureUnavailable),
        }
        Ok(())
    }
}

struct Running(RpcServerHandle, SocketAddr);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

fn serve(contexts: &Arc<Contexts>) -> Running {
    let (listener, address) = listen();
    let options = RpcServerOptions {
        acceptor: Some(Arc::<Contexts>::clone(contexts)),
        ..RpcServerOptions::from(Limits::default())
    };
    let server = RpcServer::new(vec![listener], Arc::new(Service), options).unwrap();
    let handle = server.handle();
    thread::spawn(move || server.run());
    Running(handle, address)
}

fn transport(address: SocketAddr) -> TcpTransport {
    TcpTransport::new(options(address), Arc::new(NoTransportEvents))
}

fn request<'a>(
    procedure: u32,
    credential: &'a RpcCredential,
    arguments: &'a dyn CallArguments,
) -> RpcRequest<'a> {
    RpcRequest { procedure, credential, ..fake::request(arguments) }
}

fn arguments(bulk: &[u8]) -> AroundBulk<'_> {
    AroundBulk { before: &[1, 2, 3, 4], bulk, behind: &[5, 6, 7, 8] }
}

fn call_by(
    transport: &TcpTransport,
    procedure: u32,
    credential: &RpcCredential,
    bulk: &[u8],
) -> Result<Vec<u8>, CallError> {
    let arguments = arguments(bulk);
    let request = request(procedure, credential, &arguments);
    let reply = transport.call(&request, &Interrupt::never())?;
    Ok(reply.results().to_vec())
}

/// Counts the results, and consumes them.
#[derive(Default)]
struct Sink(AtomicUsize);

impl ReplySink for Sink {
    fn consume(&self, results: &[u8]) -> bool {
        self.0.fetch_add(results.len(), Ordering::SeqCst);
        true
    }
}

#[test]
fn calls_and_replies_pass_through_the_flavor_on_both_ends() {
    for wraps in [false, true] {
        let contexts = Contexts::new(7, wraps);
        let running = serve(&contexts);
        let transport = transport(running.1);
        let credential = contexts.credential();
        for length in [0, 1, 5, 100_000] {
            let bulk = vec![9; length];
            let results = call_by(&transport, ECHO, &credential, &bulk).unwrap();
            assert!(results == arguments(&bulk).copied(), "{length} bytes, wraps: {wraps}");
        }
        // A failure has a verifier as well.
        let refused = call_by(&transport, REFUSE, &credential, &[]);
        assert_eq!(refused, Err(CallError::ProcedureUnavailable));
        // Other flavors still work.
        assert!(call_by(&transport, ECHO, &RpcCredential::None, &[]).is_ok());
    }
}

#[test]
fn data_are_used_and_sent_from_where_they_are_only_if_nothing_is_wrapped() {
    for wraps in [false, true] {
        let contexts = Contexts::new(7, wraps);
        let running = serve(&contexts);
        let transport = transport(running.1);
        let credential = contexts.credential();
        let may = call_by(&transport, PIECE, &credential, &[]).unwrap();
        assert_eq!(may, if wraps { vec![0, 0, 0, 0] } else { b"\0\0\0\x01\x7fELF".to_vec() });
        let counter = Arc::new(Sink::default());
        let sink: Arc<dyn ReplySink> = counter.clone();
        let arguments = Bytes(&[5; 8]);
        let request = request(ECHO, &credential, &arguments);
        let mut statistics = CallStatistics::default();
        let reply = transport.call_with_sink(&request, &Interrupt::never(), &mut statistics, &sink);
        let reply = reply.unwrap();
        assert_eq!(reply.was_consumed(), !wraps);
        let expected = if wraps { (0, &[5; 8][..]) } else { (8, &[][..]) };
        assert_eq!((counter.0.load(Ordering::SeqCst), reply.results()), expected);
    }
}

#[test]
fn a_peer_with_another_key_is_refused() {
    let running = serve(&Contexts::new(7, true));
    let forged = Contexts::new(8, true).credential();
    let refused = call_by(&transport(running.1), ECHO, &forged, &[]);
    assert_eq!(refused, Err(CallError::Denied(AuthStatus::RejectedVerifier)));
    // A server without the key: it echoes without a verifier.
    let (listener, address) = listen();
    thread::spawn(move || echo_all(listener.accept().unwrap().0));
    let unsigned = call_by(&transport(address), ECHO, &forged, &[]);
    assert_eq!(unsigned, Err(CallError::Denied(AuthStatus::InvalidResponse)));
}

/// A proxy to `server` for one client, which applies `change` to the first record.
fn between(server: SocketAddr, change: fn(&mut Vec<u8>)) -> SocketAddr {
    let (listener, address) = listen();
    thread::spawn(move || {
        let mut client = listener.accept().unwrap().0;
        let mut server = std::net::TcpStream::connect(server).unwrap();
        let mut first = true;
        while let Some(mut record) = read_record(&mut client) {
            if std::mem::take(&mut first) {
                change(&mut record);
            }
            let mark = curt_rpc::record::record_mark(record.len());
            server.write_all(&mark).unwrap();
            server.write_all(&record).unwrap();
            let Some(reply) = read_record(&mut server) else {
                return;
            };
            client.write_all(&curt_rpc::record::record_mark(reply.len())).unwrap();
            client.write_all(&reply).unwrap();
        }
    });
    address
}

#[test]
fn a_header_that_was_changed_on_its_way_is_refused_and_so_are_arguments() {
    let contexts = Contexts::new(7, true);
    let running = serve(&contexts);
    let credential = contexts.credential();
    // The procedure is signed.
    let way = transport(between(running.1, |record| record[23] = 2));
    let refused = call_by(&way, ECHO, &credential, &[]);
    assert_eq!(refused, Err(CallError::Denied(AuthStatus::RejectedVerifier)));
    // The arguments are wrapped.
    let way = transport(between(running.1, |record| *record.last_mut().unwrap() ^= 1));
    let garbage = call_by(&way, ECHO, &credential, &[]);
    assert_eq!(garbage, Err(CallError::GarbageArguments));
    assert!(call_by(&way, ECHO, &credential, &[]).is_ok(), "the connection goes on");
}

#[test]
fn a_call_that_is_sent_again_is_signed_again() {
    let contexts = Contexts::new(7, true);
    let running = serve(&contexts);
    let (listener, address) = listen();
    let server = running.1;
    thread::spawn(move || {
        // The first connection is lost after the server has received the call.
        let mut client = listener.accept().unwrap().0;
        let record = read_record(&mut client).unwrap();
        let mut to = std::net::TcpStream::connect(server).unwrap();
        to.write_all(&curt_rpc::record::record_mark(record.len())).unwrap();
        to.write_all(&record).unwrap();
        read_record(&mut to).unwrap();
        drop(client);
        let mut client = listener.accept().unwrap().0;
        let record = read_record(&mut client).unwrap();
        to.write_all(&curt_rpc::record::record_mark(record.len())).unwrap();
        to.write_all(&record).unwrap();
        let reply = read_record(&mut to).unwrap();
        client.write_all(&curt_rpc::record::record_mark(reply.len())).unwrap();
        client.write_all(&reply).unwrap();
    });
    let options = TcpOptions { timeout: Duration::from_secs(60), ..options(address) };
    let transport = TcpTransport::new(options, Arc::new(NoTransportEvents));
    let results = call_by(&transport, ECHO, &contexts.credential(), &[]);
    assert_eq!(results, Ok(vec![1, 2, 3, 4, 5, 6, 7, 8]));
    assert_eq!(*contexts.seen.lock(), [1, 2]);
}

#[test]
fn calls_of_the_server_pass_through_the_flavor_too() {
    /// Calls back with a context when it is called.
    struct CallsBack(Arc<Contexts>, std::sync::mpsc::SyncSender<Result<Vec<u8>, CallError>>);
    impl RpcService for CallsBack {
        fn call(
            &self,
            _: &CallMessage<'_>,
            context: &mut CallContext<'_>,
            _: &mut Vec<u8>,
        ) -> Result<(), CallFailure> {
            let (backchannel, credential) = (context.backchannel().unwrap(), self.0.credential());
            let sender = self.1.clone();
            thread::spawn(move || {
                let arguments = Bytes(&[6; 8]);
                let request = request(ECHO, &credential, &arguments);
                let reply = backchannel.call(&request, Duration::from_secs(60));
                sender.send(reply.map(|reply| reply.results().to_vec()))
            });
            Ok(())
        }
    }
    let contexts = Contexts::new(7, true);
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let (listener, address) = listen();
    let service = Arc::new(CallsBack(contexts.clone(), sender));
    let server = RpcServer::new(vec![listener], service, Limits::default()).unwrap();
    let running = Running(server.handle(), address);
    thread::spawn(move || server.run());
    let options = TcpOptions {
        callbacks: Some(CallHandler { service: Arc::new(Service), acceptor: Some(contexts) }),
        ..options(running.1)
    };
    let transport = TcpTransport::new(options, Arc::new(NoTransportEvents));
    assert!(call_by(&transport, ECHO, &RpcCredential::None, &[]).is_ok());
    assert_eq!(receiver.recv().unwrap(), Ok(vec![6; 8]));
}
