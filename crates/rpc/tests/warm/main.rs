//! A repeated call allocates no memory in this crate.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod sys;

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use curt_rpc::{
    auth::{AuthSysCredential, AuthSysGids, MachineName, RpcCredential},
    message::{CallMessage, encode_call_header},
    record,
    server::{CallContext, CallFailure, Limits, RpcServer, RpcService},
};

const PROGRAM: u32 = 0x2000_0001;
/// Calls of a round.
const CALLS: usize = 100;
/// How long a round without allocations is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

struct Echo;

impl RpcService for Echo {
    fn call(
        &self,
        call: &CallMessage<'_>,
        _: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        sys::choose_this_thread();
        reply.extend_from_slice(call.arguments);
        Ok(())
    }
}

#[test]
fn a_warm_call_allocates_nothing_in_the_server() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits { record: 2 << 20, ..Limits::default() };
    let server = RpcServer::new(vec![listener], Arc::new(Echo), limits).unwrap();
    let handle = server.handle();
    let running = thread::spawn(move || server.run());
    let mut stream = TcpStream::connect(address).unwrap();
    for size in [100, 8192, 1 << 20] {
        let mut call = Vec::new();
        let body = record::begin_record(&mut call);
        let credential = RpcCredential::Sys(AuthSysCredential {
            machine_name: MachineName::new(b"client"),
            uid: 1,
            gid: 2,
            groups: AuthSysGids::first_of(&[3, 4, 5]),
        });
        encode_call_header(&mut call, 1, PROGRAM, 1, 1, &credential);
        call.resize(call.len() + size, 5);
        record::finish_record(&mut call, body, 0);
        let mut reply = vec![0; size + 28];
        let mut one = || {
            stream.write_all(&call).unwrap();
            stream.read_exact(&mut reply).unwrap();
        };
        for _ in 0..CALLS {
            one();
        }
        let until = Instant::now() + PATIENCE;
        loop {
            let before = sys::allocations_chosen();
            (0..CALLS).for_each(|_| one());
            let allocations = sys::allocations_chosen() - before;
            // If this thread is not scheduled for long, the connection becomes idle and gives its
            // buffers back, or a reply becomes unsent. So the best round counts.
            if allocations == 0 {
                break;
            }
            assert!(Instant::now() < until, "{allocations} allocations in calls of {size} bytes");
        }
    }
    drop(stream);
    handle.shutdown();
    running.join().unwrap();
}
