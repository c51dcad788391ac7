//! Many connections that send calls and receive no replies: how many replies are produced for them,
//! and how another client is served.

use std::{
    io::Write,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use curt_rpc::{
    message::CallMessage,
    server::{CallContext, CallFailure, Limits, ResourceLimit, RpcServer, RpcService, SendfileRange},
};
use rustix::net::{AddressFamily, SocketType};

use crate::{
    fake::{eventually, listen},
    fixture::{ECHO, LARGE, RECORD_MAX, call_record, expect_echo},
};

const CONNECTIONS: u8 = 60;
const CALLS: u32 = 64;
const LENGTH: u32 = 1 << 20;
/// Maximum number of long replies produced for a connection that receives none: a socket buffer
/// holds some (4 MiB of send buffer by Linux's defaults, and a small receive buffer while nothing
/// is read), and one more is begun.
const MADE_MAX: usize = 16;
const THREADS: usize = 16;

/// Replies to [`LARGE`] with a file, and counts this for the connection whose number is the
/// argument.
struct Files {
    file: Arc<OwnedFd>,
    made: Vec<AtomicUsize>,
}

impl RpcService for Files {
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        if call.procedure == LARGE {
            self.made[usize::from(call.arguments[3])].fetch_add(1, Ordering::SeqCst);
            let piece = SendfileRange {
                file: Arc::clone(&self.file),
                offset: 0,
                length: LENGTH,
                failed: Arc::default(),
            };
            context.attach(reply.len(), piece);
        } else {
            reply.extend_from_slice(call.arguments);
        }
        Ok(())
    }
}

fn connect_from(last: u8, server: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0))).unwrap();
    rustix::net::connect(&socket, &server).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

#[test]
fn who_takes_nothing_has_a_bounded_number_of_replies_made_and_others_are_served_meanwhile() {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create(c"large", flags).unwrap();
    rustix::fs::ftruncate(&file, LENGTH.into()).unwrap();
    let files = Arc::new(Files {
        file: Arc::new(file),
        made: (0..CONNECTIONS).map(|_| AtomicUsize::new(0)).collect(),
    });
    let limits =
        Limits { record: RECORD_MAX, threads: THREADS, threads_per_client: THREADS - 2, ..Limits::default() };
    let (listener, address) = listen();
    let server = RpcServer::new(vec![listener], files.clone(), limits).unwrap();
    let handle = server.handle();
    let running = thread::spawn(move || server.run());
    let mut other = connect_from(3, address);
    let mut call = |xid| {
        other.write_all(&call_record(xid, ECHO, &[xid.to_be_bytes()[3]; 8])).unwrap();
        expect_echo(&mut other, xid, &[xid.to_be_bytes()[3]; 8]);
        assert!(handle.threads() <= THREADS, "{} threads", handle.threads());
    };
    let mut greedy: Vec<_> = (0..CONNECTIONS).map(|_| connect_from(2, address)).collect();
    for (number, stream) in (0u32..).zip(&mut greedy) {
        let calls = (0..CALLS).flat_map(|xid| call_record(xid, LARGE, &number.to_be_bytes()));
        stream.write_all(&calls.collect::<Vec<_>>()).unwrap();
        call(number);
    }
    let made = || files.made.iter().map(|made| made.load(Ordering::SeqCst));
    let mut xid = 1000;
    eventually("each of them has its turn", || {
        xid += 1;
        call(xid);
        made().all(|made| made > 0)
    });
    (2000..2200).for_each(call);
    assert!(made().all(|made| made <= MADE_MAX), "{:?}", made().collect::<Vec<_>>());
    let met = handle.limits_met().find(|(limit, _)| *limit == ResourceLimit::UnsentPerClient);
    assert_eq!(met.map(|(_, times)| times), Some(0), "what they leave is within their bound");
    drop(greedy);
    handle.shutdown();
    running.join().unwrap();
}
